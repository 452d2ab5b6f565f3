"""Checkpoints of overlace.optim.CO2: torch.distributed.checkpoint, folders that are whole at any time, other runs."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import overlace, run_ranks, torch
from test_co2 import backward, flat, model_of

dist = torch.distributed
OPTIONS = dict(tau=3, gap="adaptive", transport="host", outer_timeout_s=20)
LAST = 11


def start(group, **options):
    model = model_of()
    inner = torch.optim.AdamW(model.parameters(), lr=0.01)
    return model, inner, overlace.optim.CO2(model, inner, outer_group=group, **{**OPTIONS, **options})


def go_on(parts, group, first, last):
    model, inner, co2 = parts
    for step in range(first, last):
        inner.zero_grad()
        backward(model, group.rank(), step)
        co2.step()


def end(parts):
    parts[2].flush()
    parts[2].close()
    return flat(parts[0])


def straight(group, **options):
    parts = start(group, **options)
    go_on(parts, group, 0, LAST)
    return end(parts)


def by_dcp(group, folder):
    import torch.distributed.checkpoint as dcp

    wanted = straight(group)
    for stop in (1, 4, 6):
        first = start(group)
        go_on(first, group, 0, stop)
        where = os.path.join(folder, str(stop))
        dcp.save(first[2].state_dict(), checkpoint_id=where, process_group=group)
        first[2].close()
        later = start(group)
        state = later[2].state_dict()
        dcp.load(state, checkpoint_id=where, process_group=group)
        later[2].load_state_dict(state)
        go_on(later, group, stop, LAST)
        assert torch.equal(end(later), wanted), stop


def start_with_statistics(group, **options):
    torch.manual_seed(5)
    nn = torch.nn
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    model.register_buffer("scratch", torch.zeros(1), persistent=False)
    inner = torch.optim.SGD(model.parameters(), lr=0.05)
    return model, inner, overlace.optim.CO2(model, inner, outer_group=group, **OPTIONS, **options)


def with_statistics(group, folder):
    def begin():
        return start_with_statistics(group)

    def seen(parts):
        own = {name: value.clone() for name, value in parts[0].state_dict().items()}
        parts[2].close()
        return own

    whole = begin()
    go_on(whole, group, 0, LAST)
    whole[2].flush()
    wanted = seen(whole)
    first = begin()
    go_on(first, group, 0, 4)
    own_mean = first[0][1].running_mean.clone()
    first[2].save(folder)
    assert torch.equal(first[0][1].running_mean, own_mean)  # a save changes nothing
    first[2].close()
    later = begin()
    go_on(later, group, 0, 1)
    later[0].scratch += 3
    later[2].load(folder)
    assert torch.equal(later[0][1].running_mean, own_mean)
    assert float(later[0].scratch) == 3
    go_on(later, group, 4, LAST)
    later[2].flush()
    got = seen(later)
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(got[name], value), name
    # Other buffers are refused, and nothing changes.
    other = begin()
    other[0].register_buffer("count", torch.zeros(2))
    with pytest.raises(overlace.Error, match=r"buffers are 3, wanted: 4") as told:
        other[2].load(folder)
    assert told.value.code == "stale"
    other[2].close()
    return own_mean.tolist()


def test_statistics_of_batch_norm_are_in_a_checkpoint(tmp_path):
    first, second = run_ranks(2, with_statistics, str(tmp_path))
    assert first != second  # each rank's own came back


def with_mean_statistics(group, folder):
    for buffers in ("average", "keep"):
        where = os.path.join(folder, buffers)
        parts = start_with_statistics(group, buffers=buffers)
        go_on(parts, group, 0, 4)
        norm = parts[0][1]
        own = torch.stack([norm.running_mean, norm.running_var])
        everybody = [torch.empty_like(own) for _ in range(2)]
        dist.all_gather(everybody, own, group=group)
        assert not torch.equal(*everybody)
        parts[2].save(where, consolidate=True)
        now = torch.stack([norm.running_mean, norm.running_var])
        parts[2].close()
        assert torch.equal(now, (everybody[0] + everybody[1]) / 2 if buffers == "average" else own)
        later = start_with_statistics(group, buffers=buffers)
        later[2].load(where)
        got = torch.stack([later[0][1].running_mean, later[0][1].running_var])
        assert torch.equal(got, now if buffers == "average" else everybody[0])  # the first group writes it
        assert int(later[0][1].num_batches_tracked) == 4
        later[2].close()


def test_a_consolidated_checkpoint_has_the_mean_of_the_statistics(tmp_path):
    run_ranks(2, with_mean_statistics, str(tmp_path))


def test_torch_distributed_checkpoint(tmp_path):
    run_ranks(2, by_dcp, str(tmp_path))


class Disk:
    """Fails the n-th time that a file is put in its place, on one rank."""

    def __init__(self, fails_at):
        self.left, self.replace = fails_at, os.replace

    def __call__(self, source, target):
        self.left -= 1
        if self.left == 0:
            raise OSError(28, "No space left on device")
        self.replace(source, target)


def by_folder(group, folder):
    from overlace.optim import _checkpoint

    folder = Path(folder)
    wanted = straight(group)
    parts = start(group)
    go_on(parts, group, 0, 4)
    parts[2].save(folder)
    go_on(parts, group, 4, 5)
    for rank, fails_at in ((0, 1), (1, 1), (0, 2)):  # own file of either rank; the file that makes it current
        if group.rank() == rank:
            _checkpoint.os.replace = Disk(fails_at)
        with pytest.raises(overlace.IoError, match="No space left on device"):
            parts[2].save(folder)
        if group.rank() == rank:
            _checkpoint.os.replace = _checkpoint.os.replace.replace
    go_on(parts, group, 5, LAST)
    assert torch.equal(end(parts), wanted)
    later = start(group)
    go_on(later, group, 0, 2)  # what is loaded counts
    later[2].load(folder)
    go_on(later, group, 4, 6)
    later[2].save(folder)  # in place of the first, and of what failed
    dist.barrier(group=group)
    assert len(list(folder.glob("save-*"))) == 1
    later[2].close()
    last = start(group)
    last[2].load(folder)
    go_on(last, group, 6, LAST)
    assert torch.equal(end(last), wanted)


def test_a_save_that_fails_leaves_the_one_before(tmp_path):
    run_ranks(2, by_folder, str(tmp_path))


def others(group, folder):
    folder = Path(folder)
    saved = start(group)
    go_on(saved, group, 0, 4)
    saved[2].save(folder)
    saved[2].close()

    def refused(kind, text, model=None, **options):
        model = model_of() if model is None else model
        before = flat(model)
        inner = torch.optim.AdamW(model.parameters(), lr=0.01)
        co2 = overlace.optim.CO2(model, inner, outer_group=group, **{**OPTIONS, **options})
        with pytest.raises(kind, match=text) as told:
            co2.load(folder)
        assert torch.equal(flat(model), before)
        co2.close()
        return told.value.code

    assert refused(overlace.IoError, "tau is 3, wanted: 4", tau=4) == "stale"
    assert refused(overlace.IoError, "rule is co2, wanted: diloco", rule="diloco", gap=None) == "stale"
    for wire in (torch.bfloat16, torch.int8):
        assert refused(overlace.IoError, f"wire_dtype is torch.float32, wanted: {wire}", wire_dtype=wire) == "stale"
    torch.manual_seed(1)
    wider = torch.nn.Sequential(torch.nn.Linear(6, 17), torch.nn.Tanh(), torch.nn.Linear(17, 3))
    assert refused(overlace.IoError, r"parameter 0 is 0\.weight torch\.float32 16x6, wanted", model=wider) == "stale"
    longer = torch.nn.Sequential(*model_of(), torch.nn.Linear(3, 3))
    assert refused(overlace.IoError, "parameters are 4, wanted: 6", model=longer) == "stale"
    # One rank's file is cut: all ranks are told.
    own = next(folder.glob("save-*")) / f"group_{group.rank()}_shard_0.pt"
    data = own.read_bytes()
    if group.rank() == 1:
        own.write_bytes(data[:-7])
    dist.barrier(group=group)
    assert refused(overlace.IoError, r"group_1_shard_0\.pt: its checksum is") == "corrupt"
    if group.rank() == 1:
        own.unlink()
    dist.barrier(group=group)
    assert refused(overlace.IoError, "No such file or directory; wanted: the file of this rank") == "corrupt"
    dist.barrier(group=group)
    current = folder / "current.json"
    text = current.read_text()
    dist.barrier(group=group)
    for edited, code, what in (
        (text.replace('\\"format\\": 2', '\\"format\\": 9'), "version_mismatch", "format is 9, wanted: 2"),
        (text[:-9], "corrupt", "not what CO2.save writes"),
        ("[]", "corrupt", "not what CO2.save writes"),
    ):
        assert edited != text
        if group.rank() == 0:
            current.write_text(edited)
        dist.barrier(group=group)
        assert refused(overlace.Error, what) == code
        dist.barrier(group=group)
    folder = folder / "nothing"
    assert refused(overlace.IoError, "wanted: a folder that CO2.save wrote") == "io"


def test_other_runs_and_damage_are_refused_with_field_got_and_wanted(tmp_path):
    run_ranks(2, others, str(tmp_path))


def four(group, folder, consolidate):
    parts = start(group, warmup_sync_steps=2, total_steps=30)
    go_on(parts, group, 0, 7)
    parts[2].save(folder, consolidate=consolidate)
    return end(parts).tolist()


def two(group, folder):
    options = dict(warmup_sync_steps=2, total_steps=30)
    parts = start(group, **options)
    with pytest.raises(overlace.IoError, match=r"groups is 4, wanted: 2; saved with consolidate=True it would fit"):
        parts[2].load(folder + "/plain")
    go_on(parts, group, 0, 4)
    parts[2].load(folder + "/any")
    loaded = flat(parts[0]).tolist()
    assert not parts[2].wants_gradient_mean  # warm-up was over
    go_on(parts, group, 7, 9)
    parts[2].save(folder + "/later")
    go_on(parts, group, 9, LAST)
    wanted = end(parts)
    later = start(group, **options)
    later[2].load(folder + "/later")
    go_on(later, group, 9, LAST)
    assert torch.equal(end(later), wanted)
    return loaded


def test_a_consolidated_state_fits_another_number_of_groups(tmp_path):
    run_ranks(4, four, str(tmp_path / "plain"), False)
    saved = run_ranks(4, four, str(tmp_path / "any"), True)
    loaded = run_ranks(2, two, str(tmp_path))
    assert loaded[0] == loaded[1] == saved[0] == saved[3]
    assert sorted(p.name for p in next((tmp_path / "any").glob("save-*")).iterdir()) == ["shard_0.pt"]


PROGRAM = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = {tests!r}
import torch, torch.distributed as dist
import test_co2_checkpoint as t
from overlace.optim import _checkpoint

rank, store, folder, kill = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
group = dist.group.WORLD
parts = t.start(group)
first = 0
if (Path(folder) / "current.json").exists():
    parts[2].load(folder)
    first = parts[2]._steps
for step in range(first, t.LAST):
    t.go_on(parts, group, step, step + 1)
    if kill >= 0 and step == kill and rank == 1:
        whole = _checkpoint.os.replace
        def replace(source, target):
            Path(target).write_bytes(b"half")  # as a disk that is not done
            os.kill(os.getpid(), signal.SIGKILL)
        _checkpoint.os.replace = replace
    parts[2].save(folder)
torch.save(t.end(parts), folder + f"/end.{{rank}}")
"""


def run_program(tmp_path, name, store, folder, kill):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(tests=[str(folder) for folder in Path(__file__).parents[:2]]))
    words = [str(tmp_path / store), str(tmp_path / folder), str(kill)]
    ranks = [
        subprocess.Popen([sys.executable, str(program), str(rank), *words], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    texts = [rank.communicate(timeout=120)[1] for rank in ranks]
    return [rank.returncode for rank in ranks], texts


def test_killed_while_it_saves_and_resumed_with_the_same_bits(tmp_path):
    for folder in ("whole", "killed"):
        (tmp_path / folder).mkdir()
    codes, texts = run_program(tmp_path, "whole", "s0", "whole", -1)
    assert codes == [0, 0], texts
    codes, texts = run_program(tmp_path, "killed", "s1", "killed", 5)
    assert codes[1] == -signal.SIGKILL
    assert codes[0] != 0
    about = json.loads(json.loads((tmp_path / "killed" / "current.json").read_text())["about"])
    assert about["steps"] == 5  # that of the step before
    codes, texts = run_program(tmp_path, "killed", "s2", "killed", -1)
    assert codes == [0, 0], texts
    ends = [torch.load(tmp_path / folder / f"end.{rank}") for folder in ("whole", "killed") for rank in range(2)]
    assert all(torch.equal(other, ends[0]) for other in ends[1:])
