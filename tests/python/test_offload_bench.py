"""bench/offload on a small stack: records of every way, what is wrong is not timed, what is missing is said."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("bench/offload", "bench/driver", "tools")]
offload, ways, records, gen_offload = (
    importlib.import_module(name) for name in ("offload", "ways", "records", "gen_offload")
)
WORDS = ["--layers", "3", "--width", "64", "--tokens", "4", "--repetitions", "2", "--git", "test"]
WORDS += ["--run-layers", "3", "--run-width", "128"]
OURS = {"resident", "brought", "overlace", "layer_by_layer"}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    out = tmp_path_factory.mktemp("offload") / "out.jsonl"
    assert offload.main([*WORDS, "--out", str(out)]) == 0
    return records.read(out)


def test_every_way_is_checked_and_timed_or_absent_with_a_reason(rows: list[dict]) -> None:
    for case in ("disk, 4", "host, 4"):
        of = {row["competitor"]: row for row in rows if row["case"]["name"] == case}
        assert set(of) > OURS
        for name, row in of.items():
            if row["status"] == "absent":
                assert name not in OURS
                assert "imported" in row["reason"] or "CUDA" in row["reason"]
                continue
            assert row["verify"]["ok"] and row["verify"]["max_error"] <= offload.MOST_ERROR["fp32"]
            assert len(row["time_us"]["samples"]) == row["method"]["repetitions"] == 2
            assert ("bytes" in row) == (name != "resident") and row.get("bytes", 0) in (0, 3 * 2 * 64 * 256 * 4)
        assert of["overlace"]["verify"]["max_error"] == 0
        for name in ("overlace", "brought"):
            assert 0 <= of[name]["waited_us"] <= max(of[name]["time_us"]["samples"])
        assert of["fsdp2_cpu_offload"]["status"] == "absent"


def test_runs_are_verified_and_simulated(rows: list[dict]) -> None:
    of = {row["competitor"]: row for row in rows if row["case"]["name"] == "run, 4"}
    assert set(of) == {"run_resident", "run_host", "run_disk"}
    assert all(row["verify"]["ok"] and len(row["time_us"]["samples"]) == 2 for row in of.values())
    assert "simulated_us" not in of["run_resident"]
    for name in ("run_host", "run_disk"):
        # No pass is shorter than its computation.
        assert of[name]["simulated_us"] >= 0.99 * of["run_resident"]["time_us"]["median"]
        assert of[name]["waited_us"] >= 0


def test_the_page_has_every_case_and_says_what_was_missed(rows: list[dict]) -> None:
    text = gen_offload.page(rows)
    for part in (
        "## 4 tokens, weights from disk",
        "## 4 tokens, weights from host",
        "shared with other work",
        "absent",
    ):
        assert part in text
    assert "| 4 tokens | disk |" in text and "run, 4, run_host | simulated within" in text
    cases = gen_offload.cases_of(rows)
    slow = {**cases["host, 4"], "overlace": {**cases["host, 4"]["overlace"]}}
    slow["overlace"]["time_us"] = {**slow["overlace"]["time_us"], "median": 1e9}
    goals = gen_offload.goals_section({"host, 4": slow})
    assert all(line.endswith("| no |") for line in goals[5:]) and len(goals) > 6


def test_a_way_with_another_result_is_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(ways.Streamed):
        def run(self, x: torch.Tensor) -> torch.Tensor:
            y = super().run(x).clone()
            y[-1, -1] += 1e-2
            return y

    monkeypatch.setattr(ways, "Streamed", Wrong)
    out = tmp_path / "out.jsonl"
    assert offload.main([*WORDS, "--sources", "host", "--run-layers", "0", "--out", str(out)]) == 0
    (row,) = [row for row in records.read(out) if row["competitor"] == "overlace"]
    assert row["status"] == "wrong" and "wanted at most" in row["reason"] and "time_us" not in row


def test_bad_words_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert offload.main(["--sources", "tape", "--out", str(tmp_path / "x")]) == 2
    assert "wanted" in capsys.readouterr().out
