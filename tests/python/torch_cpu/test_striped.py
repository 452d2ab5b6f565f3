"""StripedTensor on CPU ranks: products that nobody changed, sums and rows of all ranks, turns, proof and refusals."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import assert_same, overlace, run_ranks, torch, whole

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn


def operands(rank: int, call: int, m: int, n: int, k: int, dtype=BF16):
    """Small integers that differ by rank and call: products and sums of them are exact."""
    return whole(m, k, 100 * call + 10 * rank + 1, dtype), whole(k, n, 100 * call + 10 * rank + 2, dtype)


def of_all_ranks(size: int, call: int, m: int, n: int, k: int):
    """The products of all ranks, in fp64."""
    return [a @ b for a, b in (operands(rank, call, m, n, k, torch.float64) for rank in range(size))]


def by_mm(a, b, out):
    torch.mm(a, b, out=out)


def by_scaled_mm(a, b, out):
    one = torch.tensor(1.0)
    torch._scaled_mm(a.to(FP8), b.to(FP8).t().contiguous().t(), one, one, out_dtype=BF16, out=out)


def by_triton(a, b, out):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import plain_matmul

    plain_matmul.multiply(a, b, out)


def by_bmm(a, b, out):
    """One shard of rows in each entry of the batch."""
    torch.bmm(a.unflatten(0, (len(out), -1)), b.expand(len(out), *b.shape), out=out)


def producers(group, by, calls, dtype=BF16):
    """Sums and rows of every call, exact in all elements."""
    rank, size = group.rank(), group.size()
    m, n, k = 32 * size, 128, 32
    shape = (size, 32, n) if by is by_bmm else (m, n)
    mine = slice(rank * 32, (rank + 1) * 32)
    with overlace.StripedTensor(shape, dtype, group, name="y") as t:
        assert t.owned_rows == 32 and t.out.shape == shape and t.out.dtype == dtype and t.device == t.out.device
        seen = set()
        for call in range(calls):
            a, b = operands(rank, call, m, n, k, dtype)
            before = t.out.data_ptr()
            t.run(lambda out, a=a, b=b: by(a, b, out), inputs=(a, b))
            seen.add(t.out.data_ptr())
            want = of_all_ranks(size, call, m, n, k)
            if call % 3 == 2:
                assert_same(t.all_to_all(), torch.cat([w[mine] for w in want]).to(dtype))
            elif call % 3 == 1:
                assert_same(t.reduce_scatter(dtype=torch.float32), sum(w[mine] for w in want).float())
            else:
                out = torch.empty(32, n + 8, dtype=dtype)[:, :n]  # rows with gaps
                assert t.reduce_scatter(out=out) is out
                assert_same(out, sum(w[mine] for w in want).to(dtype))
            assert t.out.data_ptr() != before or call == 0  # a proof takes a turn, too
        assert len(seen) == 2
    return repr(t)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("by", [by_mm, by_scaled_mm, by_bmm])
def test_products_that_nobody_changed(by, size):
    said = run_ranks(size, producers, by, 6)
    shape = (size, 32, 128) if by is by_bmm else (32 * size, 128)
    assert said == [f"<overlace.StripedTensor 'y' of {shape}, torch.bfloat16, closed>"] * size


def test_a_kernel_in_triton(monkeypatch):
    pytest.importorskip("triton", reason="triton is not installed")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    run_ranks(2, producers, by_triton, 3, torch.float32, fresh=True)  # Triton's interpreter has no bf16


def shapes(group):
    """Padded rows, ragged and empty blocks, owners that are dealt in turn."""
    rank, size = group.rank(), group.size()
    with overlace.StripedTensor((8 * size, 100), torch.float32, group) as t:
        assert t.out.stride() == (128, 1)  # 8 rows of 512 bytes are a page
        a, b = operands(rank, 0, 8 * size, 100, 16, torch.float32)
        t.run(lambda out: torch.mm(a, b, out=out))
        want = of_all_ranks(size, 0, 8 * size, 100, 16)
        assert_same(t.reduce_scatter(), sum(w[rank * 8 : rank * 8 + 8] for w in want).float())

    # 11 rows of two ranks: 6 and 5; the padded last row of A is multiplied, too, and nobody takes it.
    used = [6 - (block == size - 1) for block in range(size)]
    rows = sum(used)
    with overlace.StripedTensor((size, 6, 40), torch.float32, group, used_rows=used) as t:
        a, b = operands(rank, 1, rows, 40, 16, torch.float32)
        padded = torch.cat([a, a.new_zeros(6 * size - rows, 16)])
        t.run(lambda out: by_bmm(padded, b, out))
        want = of_all_ranks(size, 1, rows, 40, 16)
        assert t.owned_rows == used[rank]
        assert_same(t.reduce_scatter(), sum(w[rank * 6 : rank * 6 + used[rank]] for w in want).float())

    owners = [block % size for block in range(2 * size)]
    with overlace.StripedTensor((16 * size, 128), torch.float32, group, owners=owners) as t:
        a, b = operands(rank, 2, 16 * size, 128, 16, torch.float32)
        t.run(lambda out: torch.mm(a, b, out=out))
        want = [
            w.unflatten(0, (2 * size, 8))[rank::size].flatten(0, 1) for w in of_all_ranks(size, 2, 16 * size, 128, 16)
        ]
        assert_same(t.all_to_all(), torch.cat(want).float())

    with overlace.StripedTensor((2, 8, 128), torch.float32, group, owners=[0, 0], used_rows=[8, 0]) as t:
        t.run(lambda out: out.fill_(rank + 1))
        got = t.reduce_scatter()
        assert got.shape == ((8 if rank == 0 else 0), 128)
        assert rank != 0 or (got == sum(range(1, size + 1))).all()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_shapes_and_owners(size):
    run_ranks(size, shapes)


def many_calls(group, calls):
    """The same bits in every call: ranks drift apart, the order of the sum does not."""
    rank, size = group.rank(), group.size()
    torch.manual_seed(rank)
    a, b = torch.randn(64 * size, 32, dtype=BF16), torch.randn(32, 64, dtype=BF16)
    with overlace.StripedTensor((64 * size, 64), BF16, group) as t:
        torch.mm(a, b, out=t.out)
        first = t.reduce_scatter()
        for call in range(1, calls):
            torch.mm(a, b, out=t.out)
            assert torch.equal(t.reduce_scatter(), first), call
        everyone = torch.mm(a, b)
        parts = overlace.ops.all_to_all(everyone, group=group).unflatten(0, (size, 64))
        total = torch.zeros(64, 64)
        for part in parts:
            total += part.float()
        assert torch.equal(first, total.to(BF16))


def test_a_thousand_calls_are_equal():
    run_ranks(3, many_calls, 1000)


def proofs(group):
    """What adds to its output, leaves out an element or reads what it writes is found on all ranks, and named."""
    rank = group.rank()
    t = overlace.StripedTensor((16, 256), torch.float32, group, name="y")
    a, b = operands(rank, 0, 16, 256, 8, torch.float32)

    def adds(out):
        out.addmm_(a, b)

    def leaves_out(out):
        torch.mm(a, b, out=out)
        if rank == 1 and out.data_ptr() in {tensor.data_ptr() for tensor in t._outs}:
            out[9, 3] = 77.0  # of owner 1, as rank 1 wrote it

    def said(product):
        with pytest.raises(overlace.Unsupported) as raised:
            t.verify(product)
        return str(raised.value)

    text = "elements are not those of the local product, first row"
    assert f"StripedTensor.verify: 'y': 4096 of 4096 {text} 0 of this rank, column 0, as rank 0 wrote it: nan" in said(
        adds
    )
    named = said(leaves_out)
    theirs, other = operands(1, 0, 16, 256, 8, torch.float32)
    want = f"{theirs[9] @ other[:, 3]}"
    assert f"'y': 1 of 4096 {text} 1 of this rank, column 3, as rank 1 wrote it: 77.0, wanted {want}" in named
    assert named.startswith("rank 1: ") == (rank == 0)

    with overlace.StripedTensor((16, 100), torch.float32, group) as padded:

        def packs(out):
            out.as_strided((16, 100), (100, 1)).copy_(a @ b[:, :100])

        with pytest.raises(overlace.Unsupported, match=r"an output with strides \(128, 1\) and a contiguous one"):
            padded.verify(packs)

    def no_engine(*_arguments, **_options):
        raise overlace.Unsupported("no engine")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overlace.ops, "all_to_all", no_engine)
        t.verify(lambda out: torch.mm(a, b, out=out))
        assert "1 of 4096" in said(leaves_out)

    def fails(out):
        if rank == 0:
            raise ValueError("no such kernel")

    with pytest.raises(ValueError, match="no such kernel"):  # InvalidArgument on the others is one, too
        t.verify(fails)
    t.run(lambda out: torch.mm(a, b, out=out))  # proven now
    t.reduce_scatter()
    calls = []
    t.run(lambda out: calls.append(torch.mm(a, b, out=out)))
    assert len(calls) == 1  # not again
    t.reduce_scatter()
    t.close()


def test_a_product_is_proven_by_all_ranks():
    run_ranks(2, proofs)


def refusals(group):
    rank, size = group.rank(), group.size()
    context = overlace.context_of(group)

    def refused(text, call, kind=overlace.InvalidArgument):
        with pytest.raises(kind) as raised:
            call()
        assert text in str(raised.value), str(raised.value)

    def made(*arguments, **options):
        return lambda: overlace.StripedTensor(*arguments, group=group, **options)

    # What one rank asks wrongly all are told.
    refused(
        "StripedTensor: shape is (9, 64): 9 rows, wanted a multiple of 2 blocks; (2, 5, 64) with used_rows= has blocks "
        "of any length",
        made((9 if rank == 1 else 8, 64)),
    )
    refused("differs between ranks of team", made((8, 512 * (rank + 1))), overlace.PlanMismatch)
    refused("rank 1 has bf16 matrix of 2 blocks of 4 rows of 1024", made((8, 512 * (rank + 1))), overlace.PlanMismatch)
    refused("owners[1] is 7, wanted 0 to 1", made((8, 512), owners=[0, 7]))
    refused("StripedTensor: shape is (8,), wanted two sizes, or three of a batch", made((8,)))
    refused("StripedTensor: shape is (0, 4, 8), wanted at least 1 block", made((0, 4, 8)))
    refused("StripedTensor: shape is 'x', wanted two or three sizes", made("x"))
    refused("StripedTensor: dtype is torch.complex64, wanted one of torch.float64", made((8, 512), torch.complex64))
    refused("used_rows is [1, 2], wanted None where shape is (8, 512), no batch", made((8, 512), used_rows=[1, 2]))
    refused("used_rows has 1 entries, wanted 2: one for each block", made((2, 8, 512), used_rows=[1]))
    refused("used[1] is 9, wanted 0 to 8 rows", made((2, 8, 512), used_rows=[1, 9]))
    refused("StripedTensor: name is 3, wanted a text", made((8, 512), name=3))
    refused("group 'none' has no overlace team", lambda: overlace.StripedTensor((8, 512), group="none"))
    refused(
        "blocks of 129 rows of fp32 end at edges of pages of 4096 bytes where rows are a multiple of 1024 elements "
        "apart: 1024 for 100 columns, 528384 bytes for 51600",
        made((258, 100), torch.float32),
        overlace.Unsupported,
    )
    t = overlace.StripedTensor((2 * 8, 512), BF16, group, name="y")
    a = torch.ones(16, 512, dtype=BF16)
    for rows, take in ((8, t.reduce_scatter), (16, t.all_to_all)):
        wrong = f"out must be ({rows}, 512) (rows of this rank's blocks), got (3, 512)"
        refused(wrong, functools.partial(take, out=a[:3]))
        refused("out is fp64, wanted bf16", functools.partial(take, out=a[:rows].double()))
        refused("in the striped memory at 0x", functools.partial(take, out=t.out[:rows]))
        refused("out is a list, wanted a torch.Tensor or None", functools.partial(take, out=[1]))
    refused("inputs[1] lies at 0x", lambda: t.run(lambda out: None, inputs=(a, t.out[2:4])))
    refused("inputs[0] is a int, wanted a torch.Tensor", lambda: t.run(lambda out: None, inputs=(3,), verify=False))
    t.run(lambda out: torch.mm(a[:, :16], a, out=out))  # and all is well afterwards
    assert (t.reduce_scatter() == 32).all()
    words = overlace.StripedTensor((8, 1024), torch.int32, group)
    words.out.fill_(rank + 5)
    refused("the matrix is i32, which cannot be added, wanted bf16, fp16, fp32 or fp64", words.reduce_scatter)
    assert words.all_to_all().flatten().tolist() == [5] * 4096 + [6] * 4096
    words.close()
    words.close()
    for what in ("reduce_scatter", "all_to_all"):
        refused(f"StripedTensor.{what}: 'striped' was closed before this call", getattr(words, what))
    refused("StripedTensor.out: 'striped' was closed before this call", lambda: words.out)
    refused("StripedTensor.verify: 'striped' was closed", lambda: words.verify(print))
    context.barrier()
    assert size == 2 and "8 rows of rank" in repr(t)  # t ends with the team


def test_bad_input():
    run_ranks(2, refusals)


def ends_with_its_team(group):
    other = torch.distributed.new_group([0, 1])
    with overlace.init(other, timeout_s=20):
        t = overlace.StripedTensor((8, 1024), torch.float32, other)
        t.out.fill_(1)
        assert (t.reduce_scatter() == 2).all()
    t.close()  # nothing is left to give back
    with pytest.raises(overlace.InvalidArgument, match="was closed before this call"):
        _ = t.out


def test_the_team_gives_its_memory_back():
    run_ranks(2, _in_its_own, fresh=True)


def _in_its_own(group):
    ends_with_its_team(group)


ROOT = Path(__file__).resolve().parents[3]
GUIDE = ROOT / "docs" / "guides" / "striped.md"


def quantized(t):
    """One scale: what the CPU's fp8 takes."""
    return t.to(FP8), torch.tensor(1.0)


def in_bf16(q, weight, _scale, _weight_scale, out_dtype, out=None):
    a, b = q.to(BF16), weight.to(BF16)
    return torch.mm(a, b) if out is None else torch.mm(a, b, out=out)


def layers_of_the_guide(group, product):
    """The layer before and after: the same rows on every rank."""
    rank, size = group.rank(), group.size()
    blocks = dict(re.findall(r"^```python file=(\w+)\.py\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE))
    before, after = ({"torch": torch, "overlace": overlace, "quantized": quantized} for _ in range(2))
    exec(blocks["before"], before)
    exec(blocks["after"], after)
    rows, n, k = 16 * size, 128, 64
    weight = whole(n, k, rank + 1, BF16)
    with pytest.MonkeyPatch.context() as patch:
        if product == "bf16":
            patch.setattr(torch, "_scaled_mm", in_bf16)
        old, new = before["Fp8RowParallel"](weight, group), after["Fp8RowParallel"](weight, group, rows)
        for call in range(4):
            x = whole(rows, k, 10 * call + rank, BF16)
            assert_same(new(x), old(x))
            everyone = [
                whole(rows, k, 10 * call + r, torch.float64) @ whole(n, k, r + 1, torch.float64).t()
                for r in range(size)
            ]
            assert_same(new(x), sum(part[rank * 16 : rank * 16 + 16] for part in everyone).to(BF16))
    new.parts.close()


@pytest.mark.parametrize("product", ["bf16", "fp8"])
def test_the_guide(product):
    run_ranks(2, layers_of_the_guide, product)


def test_the_bench_refuses_what_is_wrong(tmp_path):
    sys.path[:0] = [str(ROOT / "bench" / "driver")]
    import records
    import schema

    out = tmp_path / "r.jsonl"
    names = ["compute", "torch_library", "striped", "overlace", "torch_wrong", "striped_graph"]
    words = ["--set", "verify", "--competitors", ",".join(names), "--out", str(out)]
    short = ["--repetitions", "2", "--burst-ms", "1", "--warm-s", "0"]
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", str(ROOT / "bench/torch_striped.py")]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, *launcher, *words, *short]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=env, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert schema.check_file(out) == []
    rows = {(row["dtype"], row["competitor"]): row for row in records.read(out)}
    status = {name: [rows[dtype, name]["status"] for dtype in ("bf16", "e4m3")] for name in names}
    right = {name: ["ok", "ok"] for name in names[:3]}
    unsupported = ["unsupported", "unsupported"]
    rest = {"overlace": ["ok", "unsupported"], "torch_wrong": ["wrong", "wrong"], "striped_graph": unsupported}
    assert status == right | rest
    assert all("time_us" in rows[dtype, name] for dtype in ("bf16", "e4m3") for name in names[:3])
    assert "time_us" not in rows["bf16", "torch_wrong"]
    assert done.stdout.count("striped / torch_library") == 2 and rows["bf16", "striped"]["verify"]["ok"]
