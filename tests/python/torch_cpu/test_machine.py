"""The machine that schedules are chosen for, and why they are."""

import os
import subprocess
import sys

import ranks
from ranks import overlace, run_ranks, torch

RATES = "10MB/s,1GFLOP/s"


def named(group, machine):
    import pytest

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


def test_explained():
    code = (
        "import torch, overlace, torch.distributed as d\n"
        "d.init_process_group('gloo', store=d.HashStore(), rank=0, world_size=1)\n"
        "overlace.init()\n"
        "for _ in range(2): overlace.ops.gemm_rs(torch.ones(4, 8), torch.ones(8, 2), group=None)\n"
    )
    env = {**os.environ, "OVERLACE_EXPLAIN": "1", "OVERLACE_MACHINE": RATES}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("overlace: ")]
    reason = "library: one rank has nothing to transfer: library"
    assert lines == [f"overlace: gemm_rs M 4 N 2 K 8 G 1 fp32: {reason} [{RATES}, OVERLACE_MACHINE]"]
