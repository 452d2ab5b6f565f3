"""bench/gnn_ooc/chain.py on a small graph: a record of each command and of all, and their table."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("bench/gnn_ooc", "bench/driver", "tools")]
chain, records, gen_gnn = (importlib.import_module(name) for name in ("chain", "records", "gen_gnn"))


def test_every_command_has_a_record(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    words = ["--vertices", "4096", "--dim", "16", "--fanouts", "5,3", "--folder", str(tmp_path), "--git", "test"]
    assert chain.main([*words, "--out", str(out)]) == 0
    rows = {row["competitor"]: row for row in records.read(out)}
    assert list(rows) == ["generate", "sample", "plan", "pack", "verify", "train", "whole"]
    parts = sum(row["time_us"]["median"] for name, row in rows.items() if name != "whole")
    assert rows["whole"]["time_us"]["median"] == pytest.approx(parts)
    assert not list(tmp_path.glob("overlace_gnn_chain_*"))
    section = gen_gnn.chain_section(gen_gnn.cases_of(list(rows.values())))
    assert sum(line.startswith("| `overlace gnn ") for line in section) == 6
    assert not gen_gnn.chain_section({})


def test_a_command_that_fails_ends_the_chain(tmp_path: Path) -> None:
    words = ["--vertices", "4096", "--dim", "-1", "--git", "test"]
    with pytest.raises(SystemExit, match="overlace gnn generate"):
        chain.main([*words, "--out", str(tmp_path / "out.jsonl")])
