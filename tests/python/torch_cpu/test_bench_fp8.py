"""The bench of scaled operands: its competitors agree with fp64 on CPU ranks, wrong ones are refused, records fit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import torch  # noqa: F401

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench" / "driver")]

import schema  # noqa: E402

CASES = [{"name": "tiny", "op": op, "n": 48, "k": 64, "m": [96]} for op in ("ag_gemm", "gemm_rs", "gemm_ar")]
OURS = "library,auto,uniform_fused_1d:4,bf16_library"


def run(tmp_path, scales, competitors, *more):
    (tmp_path / "cases.json").write_text(json.dumps({"cpu": [*CASES, {**CASES[0], "name": "odd", "k": 40}]}))
    out = tmp_path / "records.jsonl"
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(ROOT / "bench" / "fp8.py")]
    words += ["--cases", str(tmp_path / "cases.json"), "--scales", scales, "--competitors", competitors]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [*words, "--out", str(out), *more], capture_output=True, text=True, timeout=240, env=environment, check=False
    )
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    return done, rows


@pytest.mark.parametrize("scales", ["tensor", "rows"])
def test_all_agree_with_fp64_and_records_fit_the_schema(tmp_path, scales):
    done, rows = run(tmp_path, scales, f"torch_library,{OURS}", "--verify-only")
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(rows) == 3 * 5, "K of 40 has no rows of fp8"
    for row in rows:
        assert row["dtype"] == "e4m3" and row["case"]["scales"] == scales
        if row["competitor"] == "torch_library" and scales == "rows":
            assert row["status"] == "unsupported" and "per-tensor scaling for CPU" in row["reason"]
        else:
            assert row["status"] == "ok", row
            assert 0 < row["verify"]["rms_error"] < 0.01
    assert schema.check_file(tmp_path / "records.jsonl") == []


def test_a_wrong_element_is_refused(tmp_path):
    done, rows = run(tmp_path, "rows", "library,wrong", "--verify-only")
    assert done.returncode == 1, done.stderr[-2000:]
    assert {row["status"] for row in rows if row["competitor"] == "wrong"} == {"wrong"}
    assert {row["status"] for row in rows if row["competitor"] == "library"} == {"ok"}
