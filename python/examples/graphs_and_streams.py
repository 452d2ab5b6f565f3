"""overlace beside collectives of another group, with captured calls, padded rows and a call that is refused.

Every result is compared with that of torch.

usage: graphs_and_streams.py [--ranks 2] [--device cpu|cuda]
"""

from __future__ import annotations

import overlace
import torch
import torch.distributed as dist
from launch import launch

ROWS, K, N = 192, 64, 48
# Runs beside kernels of other streams that wait for other ranks, whichever of them starts first.
BESIDE = "library"  # and for its gradients; without gradients also "hetero_unfused_1d:2"


def overlapped(x, weight, gradients, group, replicas, side):
    """The gradients of the replicas are added up on their own stream, while the layer is computed."""
    if side is not None:
        side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        dist.all_reduce(gradients, group=replicas)
    y = overlace.ops.gemm_rs(x, weight.t(), group=group, plan=BESIDE)
    if side is not None:
        torch.cuda.current_stream().wait_stream(side)
    return y


def in_order(x, weight, gradients, group, replicas, side):
    """Any plan: what waits for other ranks comes one behind the other, on all ranks alike."""
    dist.all_reduce(gradients, group=replicas)  # on the current stream
    return overlace.ops.gemm_rs(x, weight.t(), group=group)


def capture(x, weight, group):
    """A graph and its output. The first call of a shape cannot be captured, so it is made before."""
    overlace.ops.gemm_rs(x, weight.t(), group=group)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        y = overlace.ops.gemm_rs(x, weight.t(), group=group)
    return graph, y


def padded(x, rows=64):
    """Rows of zeros up to the next multiple: few shapes where there were many."""
    return torch.nn.functional.pad(x, (0, 0, 0, -x.shape[0] % rows))


def refused(x, weight, group, context):
    """A call that is refused moves nothing, and the team goes on."""
    try:
        overlace.ops.gemm_rs(x, weight[:, 1:].t(), group=group)
    except overlace.InvalidArgument as error:
        context.check()
        return str(error)
    return ""


def wanted(x, weight, group):
    total = x @ weight.t()
    dist.all_reduce(total, group=group)
    return total.chunk(group.size())[group.rank()]


def run(group: dist.ProcessGroup, device: str) -> None:
    torch.manual_seed(group.rank())
    # Small integers: sums are exact in any order.
    x, weight = (torch.randint(-2, 3, sizes, device=device).float() for sizes in ((ROWS, K), (N, K)))
    replicas = group  # in a program: the group of the other dimension of the mesh, with its own communicator
    side = torch.cuda.Stream() if device == "cuda" else None
    with overlace.init(group) as context:
        want = wanted(x, weight, group)
        for call in (overlapped, in_order):
            gradients = torch.ones(1000, device=device)
            assert torch.equal(call(x, weight, gradients, group, replicas, side), want)
            assert torch.equal(gradients, torch.full_like(gradients, group.size()))
        for rows in (130, 150, 190):
            part = padded(x[:rows])
            assert part.shape[0] == ROWS
            y = overlace.ops.gemm_rs(part, weight.t(), group=group)
            assert torch.equal(y, wanted(part, weight, group))
        assert "K 64 != 63" in refused(x, weight, group, context)
        if device == "cuda":
            graph, y = capture(x, weight, group)
            x.mul_(2)
            graph.replay()
            assert torch.equal(y, 2 * want)
            del graph  # and with it what it held


if __name__ == "__main__":
    launch(run, __doc__)
