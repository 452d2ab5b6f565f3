"""The bench of embedding and All-to-All: its oracle, its rows, competitors that are wrong, records."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import RANKS, overlace, run_ranks, torch  # noqa: F401

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench" / "driver")]

import embedding_cases  # noqa: E402
import records  # noqa: E402
import schema  # noqa: E402
import torch_embedding_bags  # noqa: E402

OVERLACE = os.environ.get("OVERLACE_BIN", str(ROOT / "build/cpu/overlace"))


class RankOf:
    """What bags ask of their rank, in a process group that is there already."""

    on_gpus, device = False, torch.device("cpu")

    def __init__(self, group):
        self.rank, self.size = group.rank(), group.size()


def the_oracle_is_every_bag(group):
    for case in embedding_cases.SETS["verify"]:
        bags = torch_embedding_bags.Bags(case, RankOf(group), 3)
        parts = [None] * group.size()
        torch.distributed.all_gather_object(parts, (bags.table, *bags.bags[0]))
        sample = int(bags.sample[-1]) + sum(bags.counts[: group.rank()])
        want = []
        for table, rows, offsets in parts:
            for t in range(case.tables):
                begin, end = offsets[t * case.samples + sample : t * case.samples + sample + 2].tolist()
                pooled = torch.zeros(case.dim, dtype=torch.float64)
                for row in rows[begin:end].tolist():
                    pooled += table[t * case.rows + row].double()
                want.append(pooled)
        torch.testing.assert_close(bags.wanted[-1], torch.cat(want), rtol=1e-12, atol=1e-12)
        lengths = bags.bags[0][1].diff()
        assert int(lengths.sum()) == case.tables * case.samples * case.length, "as long in the mean as the case says"
        out = bags.by_torch(0, bags.whole_rows())
        assert bags.errors(out, "torch")[1] < 1e-2
        out[bags.sample[0], -1] += 1
        assert bags.errors(out, "torch")[1] > 1e-2


def test_the_oracle_is_every_bag():
    run_ranks(RANKS, the_oracle_is_every_bag)


@pytest.mark.parametrize("distribution", embedding_cases.DISTRIBUTIONS)
def test_rows_are_drawn_by_their_odds(distribution):
    case = embedding_cases.Case("x", 1, 4, 1000, 40, distribution, "fp32", 6)
    bags = torch_embedding_bags.Bags.__new__(torch_embedding_bags.Bags)
    bags.case, bags.rank = case, type("Alone", (), {"device": torch.device("cpu")})
    rows, offsets = bags._drawn(torch.Generator().manual_seed(1))
    assert len(set(offsets.diff().tolist())) > 40, "lengths of bags differ"
    found = (torch.bincount(rows, minlength=6) / len(rows)).sort(descending=True).values
    odds = torch.arange(1.0, 7.0) ** -embedding_cases.ZIPF if distribution == "zipf" else torch.ones(6)
    assert (found - odds / odds.sum()).abs().max() < 0.02


def bench(out, *words):
    command = [OVERLACE, "bench", "embedding", "--python", sys.executable, "--out", str(out), *words]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OVERLACE_TIMEOUT_S": "60"}
    return subprocess.run(command, capture_output=True, text=True, timeout=200, env=env, check=False)


def test_every_competitor_is_right(tmp_path):
    out = tmp_path / "r.jsonl"
    done = bench(out, "--verify-only", "--ranks", "2")  # takes the set `verify`
    assert done.returncode == 0, done.stdout + done.stderr
    assert schema.check_file(out) == []
    rows = records.read(out)
    assert [r["competitor"] for r in rows] == list(embedding_cases.NAMES) * len(embedding_cases.SETS["verify"])
    status = {r["competitor"]: (r["status"], r["reason"]) for r in rows}
    for name in ("torch_graph", "overlace_graph", *embedding_cases.FAMILIES):
        assert status.pop(name) == ("unsupported", "CPU ranks have no CUDA graphs")
    assert status == dict.fromkeys(("torch", "overlace", "compute"), ("ok", ""))
    assert len(records.groups(rows)) == len(embedding_cases.SETS["verify"]), "one table for each case"


def test_right_ones_are_timed_and_wrong_ones_never(tmp_path):
    out = tmp_path / "r.jsonl"
    short = ("--repetitions", "2", "--burst-ms", "1", "--warm-s", "0", "--set", "verify", "--filter", "even")
    done = bench(out, "--competitors", "torch,torch_wrong,overlace,compute", *short)
    assert done.returncode == 1, done.stdout + done.stderr
    rows = {r["competitor"]: r for r in records.read(out)}
    wrong = rows.pop("torch_wrong")
    assert wrong["status"] == "wrong" and "time_us" not in wrong
    assert all(r["status"] == "ok" and len(r["time_us"]["samples"]) == 2 for r in rows.values())
    assert "GB/s" in done.stdout and "x torch" in done.stdout


def test_draws_do_not_depend_on_their_count():
    cases = [embedding_cases.draw(1, number) for number in range(200)]
    assert cases[:9] == [embedding_cases.draw(1, number) for number in range(9)]
    assert all(case.gathered() <= embedding_cases.MOST_GATHERED[0] and case.dim % 4 == 0 for case in cases)
    assert {case.dtype for case in cases} == {"fp32", "bf16"}


def test_an_unknown_set_is_refused(tmp_path):
    done = bench(tmp_path / "r.jsonl", "--verify-only", "--set", "norm")
    assert done.returncode != 0
    assert "--set is norm, of which embedding has no cases; wanted smoke" in done.stderr
