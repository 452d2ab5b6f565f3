"""What a call costs the process that makes it: no memory that stays; and the program that measures its time."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import overlace, run_ranks, torch

ROOT = Path(__file__).resolve().parents[3]
CALLS = 50000


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def grown_bytes(group, op):
    a, b = torch.ones(4, 4), torch.ones(4, 4)
    call = getattr(overlace.ops, op)
    with torch.no_grad():
        for _ in range(1000):
            call(a, b, group=group)
        before = resident_bytes()
        for _ in range(CALLS):
            call(a, b, group=group)
    return resident_bytes() - before


@pytest.mark.parametrize("op", ["ag_gemm", "ag_wgrad", "gemm_rs", "gemm_ar"])
def test_a_call_leaves_no_memory(op):
    (grown,) = run_ranks(1, grown_bytes, op)
    assert grown < 16 * CALLS, f"{grown / CALLS:.0f} bytes per call"


def test_host_times_of_all_ways(tmp_path):
    out = tmp_path / "times.json"
    program = str(ROOT / "python/bench/host_time.py")
    words = ["--device", "cpu", "--calls", "100", "--nodes", "50", "--git", "abc", "--json", str(out)]
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [sys.executable, program, *words], capture_output=True, text=True, timeout=200, env=env, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(out.read_text())
    assert (record["ranks"], record["git"], record["machine"]) == (1, "abc", "CPU")
    rows = {row["what"]: row for row in record["calls"]}
    for op in ("ag_gemm", "ag_wgrad", "gemm_rs", "gemm_ar"):
        ways = ("C API again", "torch.ops", "torch.ops below autograd", "overlace.ops")
        assert all("above_c_us" in rows[f"{way} {op}"] for way in ways)
        assert "above_c_us" not in rows[f"C API {op}"]
    assert all(0 < row["p10_us"] <= row["host_us"] <= row["p90_us"] for row in rows.values())
