"""The machine that schedules are chosen for, and why they are."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import ranks
from ranks import overlace, run_ranks, said_by_programs, torch

RATES = "10MB/s,1GFLOP/s"


def named(group, machine):
    with pytest.raises(overlace.InvalidArgument, match="wanted None, a name, a file or rates"):
        overlace.init(ranks.spare, machine="")
    with pytest.raises(overlace.InvalidArgument, match='the argument machine is "h100"'):
        overlace.init(ranks.spare, machine="h100")
    with overlace.init(ranks.spare, machine=machine) as context:
        assert context.machine == f"{machine}, the argument machine"
        plan = overlace.plan("ag_gemm", 4096, 512, 512, dtype=torch.float32, group=ranks.spare)
        assert not plan.is_library, plan.reason
        a = torch.arange(64 * 8, dtype=torch.float32).reshape(64, 8) % 5 + group.rank()
        b = torch.arange(8 * 16, dtype=torch.float32).reshape(8, 16) % 3
        whole = overlace.ops.all_gather(a, group=ranks.spare)
        assert torch.equal(overlace.ops.ag_gemm(a, b, group=ranks.spare), whole @ b)
    unknown = overlace.context_of(group).machine
    assert unknown == "no machine file for CPU ranks"


def test_named():
    run_ranks(2, named, RATES)


def limited(group):
    context = overlace.context_of(group)
    a, b = torch.ones(4, 8), torch.ones(8, 2)
    whole = overlace.ops.gemm_ar(a, b, group=group)
    with context.limit_sms(64), context.limit_sms(2):
        assert torch.equal(overlace.ops.gemm_ar(a, b, group=group), whole)
    for wrong in (-1, 1.5, True, "64"):
        with pytest.raises(overlace.InvalidArgument, match=r"limit_sms: sms is .*, wanted 0"), context.limit_sms(wrong):
            pass
    with pytest.raises(KeyError), context.limit_sms(2):
        raise KeyError
    with overlace.init(ranks.spare) as other, other.limit_sms(2):
        other.close()


def test_a_limit_of_sms():
    run_ranks(2, limited)


@pytest.mark.parametrize("machine", [RATES, str(Path(__file__).resolve().parents[3] / "machine" / "cpu2.json")])
def test_explained(machine):
    code = (
        "import torch, overlace, torch.distributed as d\n"
        "d.init_process_group('gloo', store=d.HashStore(), rank=0, world_size=1)\n"
        "overlace.init()\n"
        "for _ in range(2): overlace.ops.gemm_rs(torch.ones(4, 8), torch.ones(8, 2), group=None)\n"
    )
    env = {**os.environ, "OVERLACE_EXPLAIN": "1", "OVERLACE_MACHINE": machine}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("overlace: ")]
    reason = "library: one rank has nothing to transfer: library"
    assert lines == [f"overlace: gemm_rs M 4 N 2 K 8 G 1 fp32: {reason} [{machine}, OVERLACE_MACHINE]"]


WITHOUT_ROOM = """
import json, os, tempfile, torch, overlace, torch.distributed as d
told = tempfile.TemporaryFile("w+")
os.dup2(told.fileno(), 2)
d.init_process_group("gloo")
rank = d.get_rank()
said = {}
with overlace.init(heap_bytes=1 << 20, max_heap_bytes=8 << 20) as context:
    for rows in (1024, 8192):  # gathered: 1 MiB twice, for which the heap grows, and 8 MiB twice
        a, b = torch.full((rows // 2, 256), rank + 1.0), torch.ones(256, 16)
        c = overlace.ops.ag_gemm(a, b, group=None)
        exact = torch.cat([torch.full((rows // 2, 16), 256.0 * (r + 1)) for r in range(2)])
        stats = context.stats()
        said[rows] = [torch.equal(c, exact), stats.heap_growths, stats.smaller_plans]
told.seek(0)
print(json.dumps([said, [line for line in told if line.startswith("overlace: ")]]))
"""


def test_a_plan_that_the_heap_has_no_room_for_is_told(monkeypatch):
    """`auto` takes one that needs less once the heap is as large as it may be; `stats` and what is explained say so."""
    monkeypatch.setenv("OVERLACE_EXPLAIN", "1")
    monkeypatch.setenv("OVERLACE_MACHINE", RATES)
    for rank, (said, lines) in enumerate(said_by_programs(WITHOUT_ROOM, 2)):
        small, large = said["1024"], said["8192"]
        assert small[0] and large[0]
        assert small[1] >= 1 and small[2] == 0
        assert large[2] >= 1
        limited = [line for line in lines if re.search(r"M 8192 .*schedules? needs? more than \d+ bytes of heap", line)]
        assert bool(limited) == (rank == 0), lines
        assert "M 1024 " not in "".join(limited)
        if rank == 0:
            first, *others = [line for line in lines if " M 8192 " in line]
            assert not first.startswith(tuple(others)) and others, lines
