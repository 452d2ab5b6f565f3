"""bench/offload on a small stack: records of every way, what is wrong is not timed, what is missing is said."""

from __future__ import annotations

import importlib
import sys
import types
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


@pytest.fixture
def group_offloading(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """A diffusers.hooks that notes with what it is called, and writes a file where one is wanted."""
    calls = []

    def apply_group_offloading(module: torch.nn.Module, **options: object) -> None:
        calls.append((module, options))
        if options["offload_to_disk_path"] is not None:
            folder = Path(str(options["offload_to_disk_path"]))
            folder.mkdir()
            (folder / "group_0.safetensors").write_bytes(b"0")

    hooks = types.SimpleNamespace(apply_group_offloading=apply_group_offloading)
    monkeypatch.setitem(sys.modules, "accelerate", types.ModuleType("accelerate"))
    monkeypatch.setitem(sys.modules, "diffusers", types.ModuleType("diffusers"))
    monkeypatch.setitem(sys.modules, "diffusers.hooks", hooks)
    return calls


@pytest.mark.parametrize("source", ["host", "disk"])
def test_diffusers_is_given_what_it_brings_ahead(tmp_path: Path, group_offloading: list[tuple], source: str) -> None:
    """It looks for blocks in lists among a module's children, and brings them ahead where there is another child."""
    model = ways.Model(3, 16, 1)
    folder = tmp_path / "diffusers" if source == "disk" else None
    for _ in range(2):  # files of an earlier one go
        blocks = model.stack()
        way = ways.Diffusers(blocks, folder, "cuda")
    ((whole, options),) = group_offloading[1:]
    assert [child is blocks for child in whole.children()] == [True, False]
    assert (options["use_stream"], options["record_stream"], options["low_cpu_mem_usage"]) == (True, True, False)
    assert options["onload_device"] == torch.device("cuda") and options["num_blocks_per_group"] == 1
    assert way.forget == ([] if folder is None else [folder / "group_0.safetensors"])
    x = torch.ones(2, 16)
    assert torch.equal(way.run(x), ways.Way(model.stack()).run(x))
    assert torch.equal(way.run(x), way.run(x)) and not way.run(x).is_inference()


@pytest.mark.parametrize("missing", ["accelerate", "diffusers.hooks"])
def test_diffusers_is_absent_with_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, group_offloading: list[tuple], missing: str
) -> None:
    with pytest.raises(ways.Absent, match="streams to CUDA devices only"):
        ways.Diffusers(ways.Model(1, 16, 1).stack(), None, "cpu")
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ways.Absent, match=f"{missing} cannot be imported"):
        ways.Diffusers(ways.Model(1, 16, 1).stack(), None, "cuda")
    assert not group_offloading


def test_bad_words_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert offload.main(["--sources", "tape", "--out", str(tmp_path / "x")]) == 2
    assert "wanted" in capsys.readouterr().out
