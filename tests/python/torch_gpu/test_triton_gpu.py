"""overlace.triton on GPUs: the examples, replayed graphs, ranks that are late or gone. Ranks are processes over gloo,
two at least: with one GPU they share it, where each wait takes as long as the driver lets the other process compute.

By hand: `PYTHONPATH=build/cuda/python python3 -m pytest tests/python/torch_gpu/test_triton_gpu.py`.
"""

import importlib
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from gpu_ranks import GPUS, dist, overlace, product, torch, whole
from rank_pool import Pool

pytest.importorskip("triton", reason="triton is not installed")
import overlace.triton as ot

EXAMPLES = Path(__file__).resolve().parents[3] / "python" / "examples" / "triton"
SIZE = 4 if GPUS >= 4 else 2
sys.path.append(str(EXAMPLES))


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


def example(group, name):
    importlib.import_module(name).run(group, "cuda")


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.py")))
def test_example(name):
    run_ranks(example, name)


def replays(group, count):
    """Both operators in one graph, with operands that change: exact, in every replay."""
    from gemv_all_reduce import gemv_all_reduce
    from matmul_all_to_all import matmul_all_to_all

    bf16, programs = torch.bfloat16, 64
    with team(group) as context, torch.device("cuda"):
        rank, size = context.rank, context.size
        m, n, k = 192, 256, 128
        out = context.empty_symmetric((size * m, n), bf16)
        box = context.empty_symmetric((2, size, 5, n))
        counters = torch.zeros(3, dtype=torch.int64)
        handles = [context.device_handle(ids=ids).tensor("cuda") for ids in (2, 1)]
        a, b = torch.empty(size * m, k, dtype=bf16), whole(k, n, 1, bf16)
        x, w, y = torch.empty(5, k, dtype=bf16), whole(n, k, 2, bf16), torch.empty(5, n, dtype=torch.float32)

        def step():
            matmul_all_to_all(a, b, out, counters, handles[0], programs, group)
            gemv_all_reduce(x, w, y, box, counters[1:], handles[1], programs, group)

        def operands(seed, of):
            return whole(size * m, k, 8 * seed + of, bf16), whole(5, k, 8 * seed + of + 100, bf16)

        a.zero_(), x.zero_()
        context.barrier()
        step()  # compiles
        context.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        mine = slice(rank * m, (rank + 1) * m)
        for seed in range(count):
            everything = [operands(seed, of) for of in range(size)]
            a.copy_(everything[rank][0]), x.copy_(everything[rank][1])
            graph.replay()
            assert torch.equal(out, torch.cat([product(other[mine], b) for other, _ in everything]).to(bf16)), seed
            assert torch.equal(y, sum(product(tokens, w.t()) for _, tokens in everything)), seed
        context.synchronize()
        del graph
        context.free(box)
        context.free(out)


def test_replays():
    run_ranks(replays, 100)


def wait_kernel(context, group):
    """The first step's kernel, and its arguments."""
    from put_and_signal import pass_on

    box = context.empty_symmetric(1000)
    h = context.device_handle(ids=2).tensor("cuda")
    x = torch.ones(1000, device="cuda")
    context.barrier()
    return pass_on, (1, x, box, torch.empty_like(x), h, 1000), {"BLOCK": 1024, "symmetric": ["box"], "group": group}


def late(group):
    """Rank 1 never launches: rank 0 says whom it waited for, and all ranks learn of it."""
    with team(group, timeout_s=2) as context:
        kernel, arguments, options = wait_kernel(context, group)
        text = r"timeout after \d+\.\d s: rank 0 waited for rank \d+, team \"world\", signal \d+ \(.*block 0\): "
        if context.rank == 0:
            ot.launch(kernel, *arguments, **options)
            with pytest.raises(overlace.Timeout, match=text + r"expected >= 1, seen 0, last change \d\.\d s ago"):
                context.synchronize()
        else:
            until = time.monotonic() + 60
            with pytest.raises(overlace.Error, match="rank 0"):
                while time.monotonic() < until:
                    context.check()
                    time.sleep(0.05)


def test_a_late_rank_ends_the_wait_with_its_name():
    run_ranks(late)


def killed(group):
    with team(group, timeout_s=20) as context:
        kernel, arguments, options = wait_kernel(context, group)
        if context.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        ot.launch(kernel, *arguments, **options)
        began = time.monotonic()
        try:
            context.synchronize()
        except overlace.Error as error:
            return str(error), time.monotonic() - began
        return "no error", 0.0


def test_a_killed_rank_ends_the_wait():
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


def refused(group):
    with team(group) as context:
        kernel, (_, *arguments), options = wait_kernel(context, group)
        x = arguments[0]
        with pytest.raises(
            overlace.Unsupported, match=r"the grid \(1000000,\) of pass_on has 1000000 programs, wanted"
        ):
            ot.launch(kernel, 1000000, *arguments, **options)
        with pytest.raises(overlace.InvalidArgument, match=r"launch: box: the tensor \[1000\] lies in no memory of"):
            ot.launch(kernel, 1, x, x, *arguments[2:], **options)
        with pytest.raises(overlace.InvalidArgument, match="launch: x is on cpu, wanted cuda"):
            ot.launch(kernel, 1, x.cpu(), *arguments[1:], **options)
        context.synchronize()


def test_refusals():
    run_ranks(refused)
