"""The bench of a decoder block: its model against the whole in fp64, versions that are wrong or stuck, records."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from ranks import RANKS, overlace, run_ranks, torch  # noqa: F401

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench" / "driver")]

import records  # noqa: E402
import schema  # noqa: E402
import torch_block  # noqa: E402
import torch_block_model as model  # noqa: E402


def whole_weight(parts, name):
    """The weight of the unsharded block, of each rank's part."""
    mine = parts.weights[name].detach()
    every = [torch.empty_like(mine) for _ in range(parts.ranks)]
    torch.distributed.all_gather(every, mine.contiguous())
    if name in model.ROW:
        return torch.cat(every, 1)
    shape, per = parts.shape, parts.ranks
    heads = [shape.hidden // per, *[shape.kv_heads * shape.head_size // per] * 2]
    split = heads if name == "qkv" else [shape.ffn // per] * 2
    return torch.cat([torch.cat(same) for same in zip(*(part.split(split) for part in every), strict=True)])


def oracle_is_the_whole_block(group):
    shape, rank, size = model.SHAPES["tiny"], group.rank(), group.size()
    parts = model.Parts(shape, 48, 16, torch.float64, torch.device("cpu"), 5)
    found = model.oracle(parts)
    every = [[torch.empty_like(t) for _ in range(size)] for t in (parts.x, parts.grad)]
    for filled, mine in zip(every, (parts.x, parts.grad), strict=True):
        torch.distributed.all_gather(filled, mine.detach())
    x, grad = torch.cat(every[0]).requires_grad_(), torch.cat(every[1])
    weights = {name: whole_weight(parts, name).requires_grad_() for name in parts.weights}
    q, kv = shape.hidden, shape.kv_heads * shape.head_size

    def attention(h):
        t = (h @ weights["qkv"].t()).split([q, kv, kv], 1)
        heads = [part.unflatten(1, (-1, shape.head_size)) for part in t]
        angles = torch.arange(16)[:, None] * 5e5 ** (-torch.arange(4, dtype=torch.float64) / 4)
        cos, sin = (t.repeat(3, 1)[:, None] for t in (angles.cos(), angles.sin()))
        for i in (0, 1):
            a, b = heads[i].chunk(2, -1)
            heads[i] = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
        outs = []
        for begin in (0, 16, 32):
            for head in range(shape.heads):
                of_group = head * shape.kv_heads // shape.heads
                rows = slice(begin, begin + 16)
                scores = heads[0][rows, head] @ heads[1][rows, of_group].t() / shape.head_size**0.5
                scores = scores.masked_fill(torch.ones(16, 16).triu(1).bool(), -torch.inf)
                outs.append(scores.softmax(-1) @ heads[2][rows, of_group])
        return torch.stack(outs).unflatten(0, (3, -1)).transpose(1, 2).flatten(0, 1).flatten(1)

    def norm(t):
        return t / (t.square().mean(-1, keepdim=True) + 1e-5).sqrt()

    middle = x + attention(norm(x)) @ weights["o"].t()
    gate, up = (norm(middle) @ weights["gate_up"].t()).chunk(2, -1)
    y = middle + (gate * gate.sigmoid() * up) @ weights["down"].t()
    y.backward(grad)
    torch.testing.assert_close(found["y"], y.detach().chunk(size)[rank])
    torch.testing.assert_close(found["dx"], x.grad.chunk(size)[rank])
    torch.testing.assert_close(found["do"], weights["o"].grad.chunk(size, 1)[rank])
    torch.testing.assert_close(found["ddown"], weights["down"].grad.chunk(size, 1)[rank])
    qkv = torch.cat([t.chunk(size)[rank] for t in weights["qkv"].grad.split([q, kv, kv])])
    torch.testing.assert_close(found["dqkv"], qkv)
    gate_up = torch.cat([t.chunk(size)[rank] for t in weights["gate_up"].grad.chunk(2)])
    torch.testing.assert_close(found["dgate_up"], gate_up)


def test_the_oracle_is_the_whole_block():
    run_ranks(RANKS, oracle_is_the_whole_block)


def bench(out, *words):
    command = [sys.executable, str(ROOT / "bench/torch_block.py"), "--ranks", "2", "--shape", "tiny", "--tokens", "64"]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
    words = ["--sequence", "32", "--out", str(out), *words]
    return subprocess.run([*command, *words], capture_output=True, text=True, timeout=400, env=env, check=False)


def test_versions_are_verified_and_wrong_ones_refused(tmp_path):
    out = tmp_path / "r.jsonl"
    names = [*torch_block.NAMES, "torch_wrong"]
    done = bench(out, "--verify-only", "--competitors", ",".join(names))
    assert done.returncode == 1, done.stdout + done.stderr
    assert schema.check_file(out) == []
    rows = records.read(out)
    assert [r["competitor"] for r in rows] == names * len(torch_block.DIRECTIONS)
    status = {r["competitor"]: r["status"] for r in rows}
    assert status == dict.fromkeys(names, "ok") | {
        "torch_async_tp": "unsupported",
        "torch_wrong": "wrong",
    }
    reason = {r["competitor"]: r["reason"] for r in rows}
    assert reason["torch_wrong"].startswith("rms and largest errors (those of nccl): rank 0: y")
    assert reason["overlace_compiled"].startswith("12 of 12 collectives rewritten"), reason["overlace_compiled"]
    assert all(r["verify"]["ok"] for r in rows if r["status"] == "ok")


TIMED = ["--repetitions", "2", "--burst-ms", "1", "--warm-s", "0"]
STAGE = ["--stage-timeout-s", "45"]
UNTIL_THEY_END = {
    "stuck": ["--verify-only", "--competitors", "nccl,torch_stuck", *STAGE],
    "killed": ["--verify-only", "--competitors", "nccl,torch_killed", *STAGE],
    "late": ["--competitors", "nccl,torch_late", *TIMED, *STAGE],
    "too long": ["--verify-only", "--competitors", "nccl,torch_stuck", "--directions", "step", "--timeout-s", "60"],
}


@pytest.fixture(scope="module", autouse=True)
def ended(tmp_path_factory):
    """The ends of the benches in which a version is stuck, by name. They sleep until a deadline, so they run side by
    side, and beside the other tests of this file, which come first."""
    folder = tmp_path_factory.mktemp("ended")
    with ThreadPoolExecutor(len(UNTIL_THEY_END)) as pool:
        started = {name: pool.submit(bench, folder / f"{name}.jsonl", *words) for name, words in UNTIL_THEY_END.items()}
        yield lambda name: (started[name].result(), folder / f"{name}.jsonl")


def test_times_have_what_records_need(tmp_path):
    out = tmp_path / "r.jsonl"
    done = bench(out, "--competitors", "nccl,overlace", *TIMED)
    assert done.returncode == 0, done.stdout + done.stderr
    assert schema.check_file(out) == []
    rows = records.read(out)
    assert {(r["competitor"], r["case"]["name"]) for r in rows} == {
        (name, f"tiny {direction}") for name in ("nccl", "overlace") for direction in torch_block.DIRECTIONS
    }
    assert all(len(r["time_us"]["samples"]) == 2 and r["verify"]["rms_error_after"] > 0 for r in rows)
    assert all(r["flops"] > 0 and r["case"]["sequence"] == 32 for r in rows)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--competitors", "ncll"], "there is no competitor ncll"),
        (["--directions", "back"], "there is no direction back; wanted some of forward, step"),
        (["--tokens", "63"], "--tokens is 63, wanted a multiple of 2 ranks"),
        (["--shape", "llama"], "--shape is llama"),
    ],
)
def test_what_it_does_not_know_is_refused(tmp_path, words, text):
    done = bench(tmp_path / "r.jsonl", *words)
    assert done.returncode == 2
    assert text in done.stderr


@pytest.mark.parametrize(("name", "why"), [("stuck", " did not end within 45 s"), ("killed", ": the process ended")])
def test_one_that_never_ends_or_dies_is_left_out(ended, name, why):
    done, out = ended(name)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {r["competitor"]: r for r in records.read(out)}
    assert {version: r["status"] for version, r in rows.items()} == {"nccl": "ok", f"torch_{name}": "absent"}
    assert f"first forward and backward{why}" in rows[f"torch_{name}"]["reason"]


def test_what_is_measured_stays_where_a_later_stage_never_ends(ended):
    done, out = ended("late")
    assert done.returncode == 0, done.stdout + done.stderr
    assert schema.check_file(out) == []
    rows = {(r["competitor"], r["case"]["name"]): r for r in records.read(out)}
    assert len(rows) == len(records.read(out)) == 4
    assert [key for key, r in rows.items() if r["status"] != "ok"] == [("torch_late", "tiny step")]
    assert rows["torch_late", "tiny step"]["status"] == "absent"
    assert "warm-up, step did not end within 45 s" in rows["torch_late", "tiny step"]["reason"]


def test_a_bench_that_takes_too_long_says_so(ended):
    done, out = ended("too long")
    assert done.returncode == 4, done.stdout + done.stderr
    assert schema.check_file(out) == []
    rows = {r["competitor"]: r for r in records.read(out)}
    assert {name: r["status"] for name, r in rows.items()} == {"nccl": "timeout", "torch_stuck": "timeout"}
    assert "all versions did not end within 60 s: rank" in rows["nccl"]["reason"]
