"""overlace.optim.CO2(on_failure="drop_group"): groups that are killed, stop or leave, and those that go on."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import overlace, run_ranks, torch
from test_co2 import backward, flat, model_of

RANKS, TAU, LAST, TIMEOUT_S = 3, 3, 16, 4


def start(group, **options):
    model = model_of()
    inner = torch.optim.SGD(model.parameters(), lr=0.05)
    co2 = overlace.optim.CO2(
        model, inner, outer_group=group, tau=TAU, outer_timeout_s=TIMEOUT_S, check_every=1, **options
    )
    return model, co2


def anchor_of(model, co2):
    with co2.anchor_parameters():
        return flat(model)


def fail_once(co2):
    """The next boundary fails here, as a wait does whose data do not come, and not where they have come."""
    call = co2._call

    def failing(name, *arguments):
        if name == "ovl_co2_on_inner_step" and co2._steps % TAU == 0:
            co2._call = call
            raise overlace.PeerLost("the data of a rank have not come")
        call(name, *arguments)

    co2._call = failing


def go_on(model, co2, rank, first, last, happen=None):
    """Parameters before the first step behind a loss, and which that is."""
    begin, losses = None, 0
    for step in range(first, last):
        if happen is not None:
            happen(step, co2)
        co2.zero_grad()
        backward(model, rank, step)
        co2.step()
        if len(co2.lost_ranks) > losses and not co2._survivors.waits():
            begin, losses = (co2._steps, flat(model)), len(co2.lost_ranks)
    return begin


PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path
sys.path[:0] = {tests!r}
import warnings
import torch, torch.distributed as dist
import test_co2_survivors as t

warnings.simplefilter("ignore")
torch.set_num_threads(1)
folder, cases = Path(sys.argv[1]), json.loads(sys.argv[2])

def rank_of(number, rank):
    losses, options = cases[number]
    dist.init_process_group("gloo", init_method=f"file://{{folder}}/store.{{number}}", rank=rank, world_size=t.RANKS)
    model, co2 = t.start(dist.group.WORLD, **options)
    anchors = []  # before each step

    def happen(step, co2):
        anchors.append(t.anchor_of(model, co2))
        for fault, culprit, at in losses:
            if rank != culprit or step != at:
                continue
            if fault == "raise":
                co2._call("ovl_co2_abort", b"ValueError: it was enough")
                os._exit(3)
            if fault == "behind":
                t.fail_once(co2)
                continue
            # In the middle of an exchange where one is under way, or when others are through their boundary.
            time.sleep(1 if fault == "kill late" else 0.02)
            os.kill(os.getpid(), signal.SIGSTOP if fault == "stop" else signal.SIGKILL)

    begin = t.go_on(model, co2, rank, 0, t.LAST, happen)
    if number % 2 == 1:
        co2.flush()
    co2.save(folder / f"save.{{number}}")
    if begin is None and co2.lost_ranks:
        begin = co2._steps, t.flat(model)
    co2.flush()
    end = t.flat(model)
    lost, groups = co2.lost_ranks, dist.get_process_group_ranks(co2.group)
    # A run of those that are left goes on from there.
    again, other = t.start(co2.group, **{{**options, "on_failure": "abort"}})
    if begin is not None:
        other._put(begin[1])
        other._begin_anew(begin[0], {{name: p.detach().clone() for name, p in other._layout.kept.items()}})
        t.go_on(again, other, rank, begin[0], t.LAST)
        other.flush()
    # What was saved goes on to the same end.
    loaded, third = t.start(co2.group, **options)
    third.load(folder / f"save.{{number}}")
    third.flush()
    torch.save({{"end": end, "again": t.flat(again), "loaded": t.flat(loaded), "begin": begin, "lost": lost,
                 "groups": groups, "anchors": anchors}}, folder / f"end.{{number}}.{{rank}}")
    for one in (co2, other, third):
        one.close()

for number in range(len(cases)):
    children = []
    for rank in range(t.RANKS):
        child = os.fork()
        if child == 0:
            try:
                rank_of(number, rank)
            except BaseException as error:
                (folder / f"error.{{number}}.{{rank}}").write_text(f"{{type(error).__name__}}: {{error}}")
            os._exit(0)
        children.append(child)
    stopped = [children[culprit] for fault, culprit, _ in cases[number][0] if fault == "stop"]
    for child in children:
        if child not in stopped:
            os.waitpid(child, 0)
    for child in stopped:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
"""


def run_cases(tmp_path, cases):
    """By case and rank what it ended with, or the text of its error."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(tests=[str(folder) for folder in Path(__file__).parents[:2]]))
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path), json.dumps(cases)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr

    def ended(number, rank):
        error = tmp_path / f"error.{number}.{rank}"
        if error.exists():
            return error.read_text()
        path = tmp_path / f"end.{number}.{rank}"
        return torch.load(path) if path.exists() else None

    return [[ended(number, rank) for rank in range(RANKS)] for number in range(len(cases))]


DROP = {"on_failure": "drop_group", "bucket_bytes": 200}
SLOW = {**DROP, "link": "100KB/s,5ms"}
LOSSES = [
    [["kill", 1, 0]],  # before the first exchange
    [["kill", 2, 4]],  # within a round
    [["kill", 0, 6]],  # within an exchange
    [["stop", 1, 9]],
    [["raise", 2, 8]],
    [["kill late", 1, 9], ["behind", 2, 8]],  # rank 0 is a round further than rank 2 when it learns of it
    [["kill", 2, 4], ["kill", 0, 11]],  # rank 1 goes on alone
    [["kill", 1, 15]],  # within the last exchange: one case is seen by save, one by flush
    [["kill", 2, 15]],
]


def test_those_that_are_left_go_on_from_a_common_anchor(tmp_path):
    whole, *ends = run_cases(tmp_path, [[[], DROP], *([losses, SLOW] for losses in LOSSES)])
    assert all(torch.equal(one["end"], whole[0]["end"]) for one in whole)
    assert whole[0]["lost"] == []
    for losses, ranks in zip(LOSSES, ends, strict=True):
        lost = [rank for fault, rank, _ in losses if fault != "behind"]
        left = [rank for rank in range(RANKS) if rank not in lost]
        assert [ranks[rank] for rank in lost] == [None] * len(lost), losses
        assert all(isinstance(ranks[rank], dict) for rank in left), (losses, ranks)
        first = ranks[left[0]]
        step, values = first["begin"]
        # Others may still be at the boundary that the lost one was through, or already a round further.
        boundary = losses[-1][2] // TAU * TAU
        assert boundary <= step <= boundary + 2 * TAU, losses
        if len(lost) == 1:  # an anchor of the run that lost nobody, at most two boundaries old
            assert any(torch.equal(values, a) for a in whole[0]["anchors"][max(0, step - 2 * TAU) : step + 1]), losses
        if losses[-1][0] == "behind":  # both have that of the boundary that rank 2 was not through
            assert step == 12
            assert torch.equal(values, whole[0]["anchors"][9])
            assert not torch.equal(values, whole[0]["anchors"][8])
        for one in (ranks[rank] for rank in left):
            assert one["lost"] == lost, losses
            assert one["groups"] == left, losses
            assert one["begin"][0] == step, losses
            assert torch.equal(one["begin"][1], values), losses
            assert torch.equal(one["end"], first["end"]), losses
            assert torch.equal(one["again"], one["end"]), losses
            assert torch.equal(one["loaded"], one["end"]), losses


def refused(group):
    def expect(kind, text, **options):
        with pytest.raises(kind, match=text):
            start(group, **{"on_failure": "drop_group", **options})

    expect(overlace.Unsupported, "'drop_group' with transport 'process_group'; sup", transport="process_group")
    expect(overlace.Unsupported, "'drop_group' with inner_group .*; supported: None", inner_group=group)
    expect(overlace.Unsupported, "'drop_group' with samples 8; supported: None", samples=8)
    expect(overlace.InvalidArgument, "min_groups is 0, wanted: an integer of at least 1", min_groups=0)
    expect(overlace.InvalidArgument, "on_failure is 'drop', wanted one of 'abort', 'drop_group'", on_failure="drop")


def test_what_it_does_not_work_with_is_refused():
    run_ranks(2, refused)


def test_too_few_that_are_left_and_the_default_are_told_who_is_lost(tmp_path):
    few = {"on_failure": "drop_group", "min_groups": 3}
    of_few, of_default = run_cases(tmp_path, [[[["kill", 1, 4]], few], [[["kill", 1, 4]], {}]])
    for rank in (0, 2):
        assert of_few[rank].startswith("PeerLost: CO2: ranks 1 are lost and 2 groups are left, wanted: at least"), (
            of_few
        )
        assert of_default[rank].startswith("PeerLost: "), of_default
        assert "rank 1" in of_default[rank], of_default
