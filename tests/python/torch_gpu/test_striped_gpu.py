"""StripedTensor on GPUs: products that nobody changed, exact; graphs, turns, proof, refusals, a rank that is
killed. Ranks are processes over gloo, two at least: with one GPU they share it.

By hand: `PYTHONPATH=build/cuda/python python3 -m pytest tests/python/torch_gpu/test_striped_gpu.py`.
"""

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from gpu_ranks import GPUS, dist, overlace, product, torch, whole
from rank_pool import Pool

sys.path.append(str(Path(__file__).resolve().parents[1]))
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
SIZE = 4 if GPUS >= 4 else 2
ROWS, N, K = 512, 2048, 256  # a block is a page of 2 MiB


def _work(rank, ranks, store, pipe):
    from rank_pool import serve

    os.environ["OVERLACE_ALLOW_SHARED_GPU"] = "1" if ranks > GPUS else "0"
    torch.cuda.set_device(rank % GPUS)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    serve(pipe, lambda body, arguments: body(dist.group.WORLD, *arguments))
    dist.destroy_process_group()


_pools = []


def run_ranks(body, *arguments):
    if not _pools or _pools[-1].has_ended:
        _pools.append(Pool(SIZE, _work))
    return _pools[-1].run(SIZE, body, arguments, wait_s=240, grace_s=30)


def team(group, timeout_s=60):
    return overlace.init(group, backend="cuda_peer", timeout_s=timeout_s)


def operands(rank, call, m, n, k):
    return whole(m, k, 100 * call + 10 * rank + 1, BF16), whole(k, n, 100 * call + 10 * rank + 2, BF16)


def products(size, call, m, n, k, scales=False):
    """Those of all ranks, rounded as each of them rounds its own."""
    out = []
    for rank in range(size):
        whole_product = product(*operands(rank, call, m, n, k))
        if scales:
            whole_product = whole_product * row_scale(m) * row_scale(n).t()
        out.append(whole_product.to(BF16))
    return out


def row_scale(rows):
    """Powers of two, which round nothing."""
    return (2.0 ** -(torch.arange(rows) % 3).float())[:, None]


def by_mm(a, b, out):
    torch.mm(a, b, out=out)


def by_scaled_mm(a, b, out):
    weight = b.t().contiguous().to(FP8)
    scales = row_scale(len(a)), row_scale(len(weight)).t()
    torch._scaled_mm(a.to(FP8), weight.t(), *scales, out_dtype=BF16, out=out)


def by_bmm(a, b, out):
    torch.bmm(a.unflatten(0, (len(out), -1)), b.expand(len(out), *b.shape), out=out)


def by_triton(a, b, out):
    import plain_matmul

    plain_matmul.multiply(a, b, out)


def check_sum(got, parts, mine):
    total = torch.zeros_like(parts[0][mine], dtype=torch.float32)
    for part in parts:
        total += part[mine].float()
    assert torch.equal(got, total.to(got.dtype)), f"{(got != total.to(got.dtype)).sum()} elements differ"


def producers(group, by, calls):
    with team(group) as context, torch.device("cuda"):
        rank, size = context.rank, context.size
        m, mine = ROWS * size, slice(rank * ROWS, (rank + 1) * ROWS)
        shape = (size, ROWS, N) if by is by_bmm else (m, N)
        with overlace.StripedTensor(shape, BF16, group, name="y") as t:
            assert t.out.device == context.device == t.out.device and t.out.shape == shape
            for call in range(calls):
                a, b = operands(rank, call, m, N, K)
                t.run(lambda out, a=a, b=b: by(a, b, out), inputs=(a, b))
                parts = products(size, call, m, N, K, scales=by is by_scaled_mm)
                if call % 3 == 2:
                    assert torch.equal(t.all_to_all(), torch.cat([part[mine] for part in parts])), call
                else:
                    check_sum(t.reduce_scatter(dtype=torch.float32 if call % 3 else None), parts, mine)
            context.synchronize()


@pytest.mark.parametrize("by", [by_mm, by_scaled_mm, by_bmm, by_triton])
def test_products_that_nobody_changed(by):
    if by is by_triton:
        pytest.importorskip("triton", reason="triton is not installed")
    run_ranks(producers, by, 6)


def shapes(group):
    """Padded rows, ragged and empty blocks, owners that are dealt in turn."""
    with team(group) as context, torch.device("cuda"):
        rank, size = context.rank, context.size
        with overlace.StripedTensor((256 * size, 3000), BF16, group) as t:
            assert t.out.stride() == (4096, 1)
            a, b = operands(rank, 0, 256 * size, 3000, K)
            t.run(lambda out: torch.mm(a, b, out=out))
            check_sum(t.reduce_scatter(), products(size, 0, 256 * size, 3000, K), slice(rank * 256, rank * 256 + 256))
        used = [0 if block == 1 else 100 - block for block in range(size)]
        with overlace.StripedTensor((size, 100, 999), BF16, group, used_rows=used) as t:
            a, b = operands(rank, 1, 100 * size, 999, K)
            t.run(lambda out: by_bmm(a, b, out))
            mine = slice(rank * 100, rank * 100 + used[rank])
            check_sum(t.reduce_scatter(), products(size, 1, 100 * size, 999, K), mine)
        owners = [block % size for block in range(2 * size)]
        with overlace.StripedTensor((2 * ROWS * size, N), BF16, group, owners=owners) as t:
            a, b = operands(rank, 2, 2 * ROWS * size, N, K)
            t.run(lambda out: torch.mm(a, b, out=out))
            mine = torch.arange(2 * ROWS * size).unflatten(0, (2 * size, ROWS))[rank::size].flatten()
            check_sum(t.reduce_scatter(), products(size, 2, 2 * ROWS * size, N, K), mine)
        context.synchronize()


def test_shapes_and_owners():
    run_ranks(shapes)


def replays(group, count):
    """Two calls in one graph, replayed with operands that change, ranks late in turn; then eager calls again."""
    with team(group) as context, torch.device("cuda"):
        rank, size = context.rank, context.size
        m, mine = ROWS * size, slice(rank * ROWS, (rank + 1) * ROWS)
        t = overlace.StripedTensor((m, N), BF16, group)
        a, b = torch.zeros(m, K, dtype=BF16), torch.zeros(K, N, dtype=BF16)
        y, z = torch.empty(ROWS, N, dtype=BF16), torch.empty(m, N, dtype=BF16)

        def step():
            torch.mm(a, b, out=t.out)
            t.reduce_scatter(out=y)
            torch.mm(a, b, out=t.out)
            t.all_to_all(out=z)

        t.verify(lambda out: torch.mm(a, b, out=out))
        step()
        context.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        for call in range(count + 2):
            mine_a, mine_b = operands(rank, call, m, N, K)
            parts = products(size, call, m, N, K)
            a.copy_(mine_a), b.copy_(mine_b)
            if (call + rank) % 3 == 0:
                torch.cuda._sleep(1_000_000)
            if call < count:
                graph.replay()
                graph.replay()  # right behind: nobody may store where peers still read
            else:
                step()
            check_sum(y, parts, mine)
            assert torch.equal(z, torch.cat([part[mine] for part in parts])), call
        context.synchronize()
        del graph
        t.close()


def test_replays():
    run_ranks(replays, 100)


def many(group, calls):
    """The host runs ahead of ranks that are late in turn: the same bits in every call."""
    with team(group) as context, torch.device("cuda"):
        rank, size = context.rank, context.size
        torch.manual_seed(rank)
        a, b = torch.randn(ROWS * size, K, dtype=BF16), torch.randn(K, N, dtype=BF16)
        with overlace.StripedTensor((ROWS * size, N), BF16, group) as t:
            results = []
            for call in range(calls):
                if (call * 7 + rank * 3) % 11 == 0:
                    torch.cuda._sleep(300_000)
                torch.mm(a * (1 + call % 2), b, out=t.out)
                results.append(t.reduce_scatter())
            for call, result in enumerate(results):
                assert torch.equal(result, results[call % 2]), call
            assert not torch.equal(results[0], results[1])
            context.synchronize()


def test_many_calls_are_equal():
    run_ranks(many, 200)


def refusals(group):
    with team(group) as context, torch.device("cuda"):
        size = context.size
        t = overlace.StripedTensor((ROWS * size, N), BF16, group, name="y")
        a, b = operands(context.rank, 0, ROWS * size, N, K)

        def refused(text, call, kind=overlace.InvalidArgument):
            with pytest.raises(kind) as raised:
                call()
            assert text in str(raised.value), str(raised.value)

        refused(
            "blocks of 1000 rows of bf16 end at edges of pages of 2097152 bytes where rows are a multiple of 131072 "
            "elements apart: 131072 for 8192 columns",
            lambda: overlace.StripedTensor((1000 * size, 8192), BF16, group),
            overlace.Unsupported,
        )
        refused(
            "are not those of the local product", lambda: t.verify(lambda out: out.addmm_(a, b)), overlace.Unsupported
        )
        refused("inputs[1] lies at 0x", lambda: t.run(lambda out: None, inputs=(a, t.out)))
        refused(
            "out is on cpu, wanted cuda", lambda: t.reduce_scatter(out=torch.empty(ROWS, N, dtype=BF16, device="cpu"))
        )
        stream = torch.cuda.Stream()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")
            refused("is being captured", lambda: overlace.StripedTensor((ROWS * size, N), BF16, group))
            refused("is being captured", lambda: t.verify(lambda out: torch.mm(a, b, out=out)))
            torch.zeros(1)
            graph.capture_end()
        del graph
        t.run(lambda out: torch.mm(a, b, out=out))
        check_sum(
            t.reduce_scatter(),
            products(size, 0, ROWS * size, N, K),
            slice(context.rank * ROWS, (context.rank + 1) * ROWS),
        )
        context.synchronize()
        t.close()


def test_refusals():
    run_ranks(refusals)


def refused_of_ipc(group):
    with team(group), pytest.raises(overlace.Unsupported, match="a heap of kind ipc cannot map parts of several ranks"):
        overlace.StripedTensor((ROWS * group.size(), N), BF16, group)


def test_heaps_of_ipc_are_refused(monkeypatch):
    monkeypatch.setenv("OVERLACE_HEAP", "ipc")
    pool = Pool(SIZE, _work)
    pool.run(SIZE, refused_of_ipc, (), wait_s=240, grace_s=30)
    assert pool.end() == []


def killed(group):
    """Rank 1 dies while the others store into its pages."""
    with team(group, timeout_s=20) as context, torch.device("cuda"):
        m = ROWS * context.size
        t = overlace.StripedTensor((m, N), BF16, group)
        a, b = operands(context.rank, 0, m, N, K)
        torch.mm(a, b, out=t.out)
        t.reduce_scatter()
        context.synchronize()
        context.barrier()
        if context.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        began = time.monotonic()
        try:
            for _ in range(1000):
                torch.mm(a, b, out=t.out)
                t.reduce_scatter()
            context.synchronize()
        except overlace.Error as error:
            return str(error), time.monotonic() - began
        return "no error", 0.0


def test_a_killed_rank_ends_the_calls():
    pool = Pool(SIZE, _work)
    try:
        for pipe in pool.pipes:
            pipe.send((killed, ()))
        assert pool.pipes[0].poll(120)
        is_ok, answer = pool.pipes[0].recv()
        assert is_ok, answer
        assert re.search(r"rank 1\b", answer[0]) and answer[1] < 30, answer
    finally:
        pool.kill()
