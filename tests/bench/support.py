"""Module path of the bench driver, its command line, and made-up records."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench" / "driver"))
OVERLACE = os.environ.get("OVERLACE_BIN", str(ROOT / "build/cpu/overlace"))


def sibling(name: str) -> Path:
    """A program that lies beside the command line: where it was built, or where it is installed."""
    folder = Path(OVERLACE).resolve().parent
    places = (folder / "bench", folder.parent / "libexec/overlace")
    return next(place / name for place in places if (place / name).exists())


def bench(*words: str, timeout_s: float = 120) -> subprocess.CompletedProcess:
    """`overlace bench` on CPU ranks."""
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OVERLACE_TIMEOUT_S": "60"}
    return subprocess.run(
        [OVERLACE, "bench", *words], capture_output=True, text=True, timeout=timeout_s, env=env, check=False
    )


class FolderTest(unittest.TestCase):
    """A test with a folder of its own."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)


def record(competitor: str, us: list[float], run: str = "2026-01-01T00:00:00Z", **changes: object) -> dict:
    """A timed row of ag_gemm on made-up GPUs."""
    ordered = sorted(us)
    row = {
        "schema": "overlace.bench/1",
        "run": run,
        "date": "2026-01-01T00:00:00Z",
        "git": "abc",
        "command": "bench_dense",
        "machine": {"name": "4 x GPU", "gpus": "4 x GPU"},
        "workload": "ag_gemm",
        "case": {"name": "70B qkv", "m": 8192, "n": 2560, "k": 8192},
        "dtype": "bf16",
        "team": 4,
        "launch": "stream",
        "data": "normal(0,1), seed 1",
        "method": {"repetitions": len(us), "n": 100},
        "competitor": competitor,
        "status": "ok",
        "flops": 2.0 * 8192 * 2560 * 8192,
        "time_us": {
            "median": ordered[len(us) // 2],
            "p10": ordered[0],
            "p90": ordered[-1],
            "min": ordered[0],
            "samples": us,
        },
    }
    return {**row, **changes}


def case(run: str = "2026-01-01T00:00:00Z", **us: float) -> list[dict]:
    """One record per competitor, with a spread of 1 %."""
    return [record(name, [0.99 * t, t, 1.01 * t], run) for name, t in us.items()]
