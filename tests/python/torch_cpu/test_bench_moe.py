"""The bench of the mixture-of-experts layer: its oracle, its routings, competitors that are wrong, records."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import RANKS, overlace, run_ranks, torch  # noqa: F401

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench" / "driver")]

import moe_cases  # noqa: E402
import records  # noqa: E402
import schema  # noqa: E402
import torch_moe  # noqa: E402
import torch_moe_layer  # noqa: E402

OVERLACE = os.environ.get("OVERLACE_BIN", str(ROOT / "build/cpu/overlace"))


class RankOf:
    """What a layer asks of its rank, in a process group that is there already."""

    on_gpus, device = False, torch.device("cpu")

    def __init__(self, group):
        self.rank, self.size = group.rank(), group.size()

    def worst(self, *mine):
        values = torch.tensor(mine, dtype=torch.float64)
        torch.distributed.all_reduce(values, torch.distributed.ReduceOp.MAX)
        return values.tolist()


def oracle_is_the_whole_layer(group):
    for case in moe_cases.SETS["verify"]:
        layer = torch_moe_layer.Layer(case, RankOf(group), 3)
        parts = [None] * group.size()
        torch.distributed.all_gather_object(parts, (layer.w1[0], layer.w2[0]))
        w1, w2 = (torch.cat(same).double() for same in zip(*parts, strict=True))
        assert w1.shape == (case.experts, 2 * case.intermediate, case.hidden)
        token = layer.sample[-1]
        want = torch.zeros(case.hidden, dtype=torch.float64)
        for expert, weight in zip(layer.experts[token], layer.weights[token], strict=True):
            x = layer.x[0][token].double()
            gate, up = w1[expert][: case.intermediate] @ x, w1[expert][case.intermediate :] @ x
            want += weight.double() * (w2[expert] @ (gate / (1 + torch.exp(-gate)) * up))
        torch.testing.assert_close(layer.wanted[-1], want, rtol=1e-12, atol=1e-12)
        ordered = [layer.sample.tolist(), list(range(case.tokens))]
        assert sorted(ordered[0]) == ordered[1], "fewer tokens than are drawn are all checked"


def test_the_oracle_is_the_whole_layer():
    run_ranks(RANKS, oracle_is_the_whole_layer)


def wrong_rows_of_experts_are_noticed(group):
    layer = torch_moe_layer.Layer(moe_cases.SETS["verify"][0], RankOf(group), 3)
    out = torch_moe.compute(layer)(0)
    assert out.shape[0] > 0
    assert layer.errors(out, "compute")[1] < 1e-5
    out[layer.wanted_rows[0][0], 0] += 1
    assert layer.errors(out, "compute")[1] > 1e-2


def test_wrong_rows_of_experts_are_noticed():
    run_ranks(RANKS, wrong_rows_of_experts_are_noticed)


@pytest.mark.parametrize("routing", moe_cases.ROUTINGS)
def test_experts_are_drawn_by_their_odds(routing):
    case = moe_cases.Case("x", 20000, 8, 8, 6, 1, routing, "fp32")
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    experts, weights = torch_moe_layer.choose(case, order, torch.Generator().manual_seed(1))
    found = torch.bincount(experts.flatten(), minlength=6)[order] / case.tokens
    odds = torch.arange(1.0, 7.0) ** -1.2 if routing == "zipf" else torch.ones(6)
    assert (found - odds / odds.sum()).abs().max() < 0.02
    several = moe_cases.Case("x", 100, 8, 8, 6, 4, routing, "fp32")
    experts, weights = torch_moe_layer.choose(several, order, torch.Generator().manual_seed(1))
    assert all(len(set(row)) == 4 for row in experts.tolist())
    torch.testing.assert_close(weights.sum(1), torch.ones(100))


def bench(out, *words):
    command = [OVERLACE, "bench", "moe", "--python", sys.executable, "--out", str(out), *words]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OVERLACE_TIMEOUT_S": "60"}
    return subprocess.run(command, capture_output=True, text=True, timeout=200, env=env, check=False)


def test_every_competitor_is_right(tmp_path):
    out = tmp_path / "r.jsonl"
    done = bench(out, "--verify-only", "--ranks", "2")  # takes the set `verify`
    assert done.returncode == 0, done.stdout + done.stderr
    assert schema.check_file(out) == []
    rows = records.read(out)
    assert [r["competitor"] for r in rows] == list(torch_moe.NAMES) * len(moe_cases.SETS["verify"])
    status = {r["competitor"]: (r["status"], r["reason"]) for r in rows}
    for name in ("torch_graph", "overlace_graph", *moe_cases.FAMILIES):
        assert status.pop(name) == ("unsupported", "CPU ranks have no CUDA graphs")
    assert status == dict.fromkeys(("torch", "torch_exchanged", "overlace", "compute"), ("ok", ""))
    assert {r["launch"] for r in rows if r["competitor"] == "overlace_graph"} == {"graph"}
    assert all(r["verify"]["ok"] and r["verify"]["rms_error"] > 0 for r in rows if r["status"] == "ok")
    assert all("time_us" not in r and "seed 1" in r["data"] for r in rows)
    assert {r["case"]["routing"] for r in rows} == set(moe_cases.ROUTINGS)
    assert len(records.groups(rows)) == len(moe_cases.SETS["verify"]), "one table for each case, graphs among them"
    assert all(r["load"] >= 1 for r in rows) and max(r["load"] for r in rows) > 1


def test_right_ones_are_timed_and_wrong_ones_never(tmp_path):
    out = tmp_path / "r.jsonl"
    names = ("torch", "torch_wrong", "torch_exchanged", "overlace", "compute")
    short = ("--repetitions", "2", "--burst-ms", "1", "--warm-s", "0", "--set", "verify", "--filter", "even")
    done = bench(out, "--competitors", ",".join(names), *short)
    assert done.returncode == 1, done.stdout + done.stderr
    assert schema.check_file(out) == []
    rows = {r["competitor"]: r for r in records.read(out)}
    assert tuple(rows) == names
    wrong = rows.pop("torch_wrong")
    assert wrong["status"] == "wrong" and "time_us" not in wrong and "differs by" in wrong["reason"]
    assert all(r["status"] == "ok" and len(r["time_us"]["samples"]) == 2 for r in rows.values())
    assert all(r["verify"]["rms_error_after"] > 0 for r in rows.values())
    assert "x torch" in done.stdout and "WRONG moe even torch_wrong" in done.stdout


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--competitors", "torhc", "--filter", "lone"], "there is no competitor torhc"),
        (["--set", "norm"], "--set is norm, of which moe has no cases; wanted smoke"),
    ],
)
def test_unknown_names_are_refused(tmp_path, words, text):
    done = bench(tmp_path / "r.jsonl", "--verify-only", *words)
    assert done.returncode != 0
    assert text in done.stderr
