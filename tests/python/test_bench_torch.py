"""Competitors through PyTorch: the data of the other benches, and wrong ones refused, on CPU ranks with gloo."""

import argparse
import gc
import math
import os
import subprocess
import sys
import time
import types
import weakref
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench" / "driver")]

import protocol  # noqa: E402
import records  # noqa: E402
import schema  # noqa: E402
import torch_competitors  # noqa: E402
import torch_entrants  # noqa: E402
import torch_rank  # noqa: E402

OVERLACE = os.environ.get("OVERLACE_BIN", str(ROOT / "build/cpu/overlace"))


def test_data_are_those_of_the_twin() -> None:
    rows = torch.tensor([0, 5, 123456])
    got = torch_rank.normal(7, 3, rows, 40, 0.5)
    for i, row in enumerate(rows.tolist()):
        want = [protocol.normal(7, 3, row, col, 0.5) for col in range(40)]
        assert torch.allclose(got[i], torch.tensor(want, dtype=torch.float64), rtol=0, atol=1e-12)


class FakeRank:
    """Alone, or beside one that says that it cannot."""

    on_gpus = False

    def __init__(self, others: float = 0.0) -> None:
        self.others = others

    def worst(self, *mine: float) -> list[float]:
        return [max(one, self.others) for one in mine]

    def synchronize(self) -> None:
        pass


class FakeLayer:
    """Wants ones; the part `compute` twos."""

    def __init__(self) -> None:
        self.case = argparse.Namespace(dtype="fp32")

    def errors(self, out: torch.Tensor, name: str) -> tuple[float, float]:
        return torch_entrants.relative(out, torch.full((8,), 2.0 if name == "compute" else 1.0, dtype=torch.float64))


def verified(rank: FakeRank, is_after: bool = False, **values: float) -> dict[str, torch_entrants.Entrant]:
    """Entrants that give 8 of their value, as bursts left them."""
    entrants = {
        name: torch_entrants.Entrant(name, lambda _, value=value: torch.full((8,), value), samples=[1.0])
        for name, value in values.items()
    }
    torch_entrants.Bench(argparse.Namespace(), rank).verify(list(entrants.values()), FakeLayer(), is_after)
    return entrants


@pytest.mark.parametrize("is_after", [False, True])
def test_what_is_wrong_loses_its_times(is_after: bool) -> None:
    found = verified(FakeRank(), is_after, right=1.0, wrong=1.5, missing=math.nan, compute=2.0)
    status = {name: (x.status, len(x.samples)) for name, x in found.items()}
    assert status == {"right": ("ok", 1), "wrong": ("wrong", 0), "missing": ("wrong", 0), "compute": ("ok", 1)}
    assert verified(FakeRank(), is_after, right=1.0, compute=2.1)["compute"].status == "wrong"


def test_what_another_rank_lacks_is_called_by_none() -> None:
    found = verified(FakeRank(others=1.0), right=1.0)["right"]
    assert (found.status, found.reason) == ("unsupported", "another rank could not run it")


def test_the_fastest_configuration_that_runs_is_taken() -> None:
    class FakeWorkload:
        rank, sets = FakeRank(), 2

    def fails(_: int) -> None:
        raise RuntimeError("tile does not fit")

    def slow(_: int) -> None:
        time.sleep(0.005)

    def quick(_: int) -> None:
        pass

    assert torch_competitors.fastest(FakeWorkload(), [slow, fails, quick]) is quick
    with pytest.raises(torch_competitors.Missing, match="tile does not fit"):
        torch_competitors.fastest(FakeWorkload(), [fails])


def bench(out: Path, *words: str) -> subprocess.CompletedProcess:
    command = [OVERLACE, "bench", "--python", sys.executable, "--out", str(out), "--set", "verify", *words]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OVERLACE_TIMEOUT_S": "60"}
    return subprocess.run(command, capture_output=True, text=True, timeout=280, env=env, check=False)


def test_right_ones_are_timed_and_wrong_ones_refused(tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    names = "torch_library,torch_wrong,torch_async_tp,torch_one_shot,quack"
    short = ("--repetitions", "2", "--burst-ms", "1", "--warm-s", "0")
    done = bench(out, "ag_gemm", "gemm_rs", "gemm_ar", "--filter", "a", "--competitors", names, *short)
    assert done.returncode == 1, done.stdout + done.stderr
    assert schema.check_file(out) == []
    rows = records.read(out)
    assert {r["workload"] for r in rows} == set(records.OPERATORS)
    ran = [r for r in rows if r["competitor"] == "torch_library" and r["status"] == "ok"]
    assert {r["workload"] for r in ran} == set(records.OPERATORS)
    assert all(len(r["time_us"]["samples"]) == 2 and r["verify"]["ok"] for r in ran)
    wrong = [r for r in rows if r["competitor"] == "torch_wrong" and r["status"] != "unsupported"]
    assert wrong and all(r["status"] == "wrong" and "time_us" not in r for r in wrong)
    for name in ("torch_async_tp", "torch_one_shot", "quack"):
        mine = [r for r in rows if r["competitor"] == name]
        assert mine and all(r["status"] in ("unsupported", "absent") and r["reason"] for r in mine)


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    done = bench(tmp_path / "r.jsonl", "ag_gemm", "--filter", "half", "--competitors", "torch_libary", "--verify-only")
    assert done.returncode != 0
    assert "there is no competitor torch_libary" in done.stderr


def test_what_a_graph_reads_lives_as_long_as_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a graph knows addresses alone: a call makes choices of another type once, and every replay reads them."""
    made: list[weakref.ref[torch.Tensor]] = []

    def make() -> Any:
        choices = torch.zeros(8)
        made.append(weakref.ref(choices))
        return lambda i: choices + i

    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: types.SimpleNamespace(replay=lambda: None))
    monkeypatch.setattr(torch.cuda, "graph", lambda graph: nullcontext())
    rank: Any = types.SimpleNamespace(on_gpus=True, synchronize=lambda: None)
    replay = torch_rank.captured(rank, 3, make())
    gc.collect()
    assert torch.equal(replay(2), torch.full((8,), 2.0))
    (choices,) = made
    assert choices() is not None
    del replay
    gc.collect()
    assert choices() is None
