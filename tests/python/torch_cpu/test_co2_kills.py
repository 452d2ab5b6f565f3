"""overlace.optim.CO2 where ranks are killed, leave or stop: what the others are told, and runs that go on from a save,
over both transports of CPU ranks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import overlace, run_ranks, torch
from test_co2 import TRANSPORTS, backward, flat, model_of

TAU, LAST, CULPRIT = 3, 10, 1
TIMEOUT_S = 4  # where a rank is stopped, which is found by a deadline alone
LOAD_S = 4  # what cores that others use may add to a deadline and 2 s
SLOW = {"host": {"link": "100KB/s,5ms"}, "process_group": {}}  # so that an exchange is on its way for some steps


def start(group, transport, timeout_s=60):
    model = model_of()
    inner = torch.optim.AdamW(model.parameters(), lr=0.01)
    options = dict(tau=TAU, gap="adaptive", check_every=1, outer_timeout_s=timeout_s, bucket_bytes=200)
    return model, overlace.optim.CO2(model, inner, outer_group=group, transport=transport, **options, **SLOW[transport])


def step_of(model, co2, rank, step):
    co2.zero_grad()
    backward(model, rank, step)
    co2.step()


PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path
sys.path[:0] = {tests!r}
import torch, torch.distributed as dist
import overlace.optim  # once, not in every child
import test_co2_kills as t
torch.set_num_threads(1)
folder, cases = Path(sys.argv[1]), json.loads(sys.argv[2])

def happen(case):
    (folder / f"happened.{{case['name']}}").write_text(str(time.time()))
    if case["fault"] == "leave":
        os._exit(3)
    os.kill(os.getpid(), signal.SIGSTOP if case["fault"] == "stop" else signal.SIGKILL)

def rank_of(case, rank):
    store = f"file://{{folder}}/store.{{case['name']}}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=case["ranks"])
    timeout_s = t.TIMEOUT_S if case["fault"] == "stop" else 60
    model, co2 = t.start(dist.group.WORLD, case["transport"], timeout_s)
    saves = folder / case["saves"] if case["saves"] else None
    first = 0
    if saves and (saves / "current.json").exists():
        co2.load(saves)
        first = co2._steps
    try:
        for step in range(first, t.LAST):
            is_last = step == case["at"] and rank == t.CULPRIT
            if is_last and case["fault"] == "raise":
                co2.__exit__(ValueError, ValueError("it was enough"), None)
                os._exit(3)
            t.step_of(model, co2, rank, step)
            if is_last and case["fault"]:
                happen(case)
            if saves:
                co2.save(saves)
        co2.flush()
        co2.close()
    finally:
        (folder / f"over.{{case['name']}}.{{rank}}").write_text(str(time.time()))
    torch.save({{"end": t.flat(model), "first": first}}, folder / f"end.{{case['name']}}.{{rank}}")

def start(case, rank):
    child = os.fork()
    if child == 0:
        try:
            rank_of(case, rank)
        except BaseException as error:
            (folder / f"error.{{case['name']}}.{{rank}}").write_text(f"{{type(error).__name__}}: {{error}}")
        os._exit(0)
    return child

def together(cases):
    children = [(case, rank, start(case, rank)) for case in cases for rank in range(case["ranks"])]
    stopped = [child for case, rank, child in children if case["fault"] == "stop" and rank == t.CULPRIT]
    for _, _, child in children:
        if child not in stopped:
            os.waitpid(child, 0)
    for child in stopped:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

for phase in sorted({{case["phase"] for case in cases}}):
    of_phase = [case for case in cases if case["phase"] == phase]
    for begin in range(0, len(of_phase), 5):  # so many at a time
        together(of_phase[begin : begin + 5])
"""


def run_cases(tmp_path, cases):
    """What each rank of each case ended with, or the text of its error, or None where it was lost. Cases of a phase
    come behind those of the phases before."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(tests=[str(folder) for folder in Path(__file__).parents[:2]]))
    words = [sys.executable, str(program), str(tmp_path), json.dumps(cases)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr

    def ended(name, rank):
        error, end = (tmp_path / f"{kind}.{name}.{rank}" for kind in ("error", "end"))
        return error.read_text() if error.exists() else torch.load(end) if end.exists() else None

    return {case["name"]: [ended(case["name"], rank) for rank in range(case["ranks"])] for case in cases}


def case_of(name, transport, fault=None, at=-1, ranks=2, saves="", phase=0):
    return dict(name=name, transport=transport, fault=fault, at=at, ranks=ranks, saves=saves, phase=phase)


def test_killed_after_every_step_of_three_rounds_and_resumed_with_the_same_bits(tmp_path):
    cases = []
    for transport in TRANSPORTS:
        cases.append(case_of(f"{transport}.whole", transport))
        for k in range(LAST):  # three rounds and the first step of a fourth
            saves = f"{transport}.saves.{k}"
            cases.append(case_of(f"{transport}.killed.{k}", transport, "kill", k, saves=saves))
            cases.append(case_of(f"{transport}.resumed.{k}", transport, saves=saves, phase=1))
    ends = run_cases(tmp_path, cases)
    wanted = ends["host.whole"][0]["end"]
    for transport in TRANSPORTS:
        assert all(torch.equal(one["end"], wanted) for one in ends[f"{transport}.whole"])
        for k in range(LAST):
            told, lost = ends[f"{transport}.killed.{k}"]
            assert lost is None, (transport, k, lost)
            assert told.startswith(("PeerLost: ", "Timeout: ")), (transport, k, told)
            for one in ends[f"{transport}.resumed.{k}"]:
                assert isinstance(one, dict), (transport, k, one)
                assert one["first"] == k, transport  # behind the last save that both had made
                assert torch.equal(one["end"], wanted), (transport, k)


FAULTS = [*(("kill", at) for at in range(3, 7)), ("leave", 3), ("leave", 5), ("raise", 4), ("raise", 6)]
FAULTS += [("stop", 4), ("stop", 5)]


def test_whoever_is_lost_ends_all_others_in_time(tmp_path):
    cases = [
        case_of(f"{transport}.{fault}.{at}", transport, fault, at, ranks=3)
        for transport in TRANSPORTS
        for fault, at in FAULTS
    ]
    ends = run_cases(tmp_path, cases)
    for case in cases:
        name = case["name"]
        assert ends[name][CULPRIT] is None, case
        for rank in (0, 2):
            told = ends[name][rank]
            assert isinstance(told, str), (name, "went on")
            assert told.startswith(("PeerLost: ", "Timeout: ")), (name, told)
            if case["transport"] == "host":  # torch does not say who is missing
                assert "rank 1" in told, (name, told)
            if case["fault"] != "raise":
                happened = float((tmp_path / f"happened.{name}").read_text())
                over = float((tmp_path / f"over.{name}.{rank}").read_text())
                assert over - happened < TIMEOUT_S + 2 + LOAD_S, (name, over - happened)


def not_finite(group, transport):
    model, co2 = start(group, transport)
    for step in range(TAU):
        step_of(model, co2, group.rank(), step)
    anchors, step = [], TAU
    with pytest.raises(overlace.NonFinite) as told:
        while step < 8 * TAU:
            step_of(model, co2, group.rank(), step)
            if group.rank() == 1 and (step + 1) % TAU != 0:
                with torch.no_grad():
                    model[2].weight[1, 3] = float("nan")
            step += 1
            if step % TAU == 0:
                with co2.anchor_parameters():
                    anchors.append(flat(model))
                assert bool(flat(model).isfinite().all()) or group.rank() == 1
    # The first good increment comes in; three bad ones leave the anchor as it was.
    assert all(torch.equal(anchor, anchors[0]) for anchor in anchors[1:])
    co2.close()
    return step, str(told.value), anchors[0].tolist()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_values_that_are_no_numbers_in_one_group_end_all_after_three_rounds(transport):
    first, second = run_ranks(2, not_finite, transport)
    assert first == second
    assert first[0] == 5 * TAU - 1


def out_of_step(group, transport):
    """One group ends its round a step earlier."""
    model, co2 = start(group, transport)
    for step in range(TAU + 1):
        step_of(model, co2, group.rank(), step)
    with pytest.raises(overlace.Desync) as told:
        if group.rank() == 1:
            co2.flush()
        for step in range(TAU + 1, 3 * TAU):
            step_of(model, co2, group.rank(), step)
    co2.close()
    return str(told.value)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_groups_that_come_to_be_out_of_step_are_told_both_values(transport):
    for text in run_ranks(2, out_of_step, transport):
        assert "steps" in text, text
