"""bench/gnn_ooc/full_batch.py on a small graph: a record of each way, exact bytes, and their page."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
overlace = pytest.importorskip("overlace", reason="PYTHONPATH does not name the package that the build makes")
if overlace._WHY_NO_TORCH:
    pytest.skip(overlace._WHY_NO_TORCH, allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("bench/gnn_ooc", "bench/driver", "tools")]
full_batch, records, gen_full_batch = (
    importlib.import_module(name) for name in ("full_batch", "records", "gen_full_batch")
)
FEW = ["--epochs", "2", "--seeds", "1", "--ranks", "2", "--repeats", "1", "--timed-epochs", "5", "--git", "test"]


def test_records_of_all_ways_and_their_page(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    words = ["--graphs", "dcsbm", "--vertices", "1024", "--dim", "8", "--hidden", "8", *FEW]
    assert full_batch.main([*words, "--out", str(out)]) == 0
    rows = records.read(out)
    found = {(row["case"]["name"], row["competitor"]): row for row in rows}
    assert {way for name, way in found if name == "full_dcsbm_2_2"} == set(full_batch.WAYS)
    alone, fresh = found["full_dcsbm_2_1", "alone"], found["full_dcsbm_2_2", "fresh"]
    assert abs(alone["accuracy"]["mean"] - fresh["accuracy"]["mean"]) < 0.02  # a tie may fall otherwise
    late = found["full_dcsbm_2_2", "late_5"]
    assert late["boundary_rows"] == fresh["boundary_rows"] > 0 == found["full_dcsbm_2_2", "never"]["boundary_rows"]
    headers = 2 * 2 * 2 * 32  # of two ranks, two layers, both directions
    assert late["planned_bytes"] - headers == pytest.approx((fresh["planned_bytes"] - headers) / 5, abs=1)
    for way in full_batch.DELAYS:
        row = found["full_time", way]
        assert row["bytes"] == row["planned_bytes"], "five epochs are one turn of delay 5, so counts are exact"
        assert row["waited_us"] <= row["time_us"]["median"]
        assert row["flags"] == ["emulated"]
    page = gen_full_batch.page(rows)
    for (name, way), row in found.items():
        if name == "full_dcsbm_2_2":
            assert f"| 2 | `{way}`: {gen_full_batch.NAMES[way]} | {100 * row['accuracy']['mean']:.2f} |" in page
        if name == "full_time":
            assert f" | {row['bytes']:.0f} |" in page
