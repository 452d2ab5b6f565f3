"""Code that calls torch.ops.symm_mem runs on overlace by another name; the results are those of the plain collectives.

usage: swap_symm_mem.py [--ranks 2] [--device cpu|cuda]
"""

from __future__ import annotations

import overlace
import torch
import torch.distributed as dist
from launch import launch
from overlace.compat import symm_mem  # was: symm_mem = torch.ops.symm_mem

ROWS, K, N = 64, 32, 48


def two_layers(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, name: str) -> torch.Tensor:
    """Two layers as they were written for torch.ops.symm_mem."""
    _, (hidden,) = symm_mem.fused_all_gather_matmul(x, [w1.t()], 0, name, return_A=False)
    return symm_mem.fused_matmul_reduce_scatter(torch.relu(hidden), w2.t(), "sum", 0, name)


def run(group: dist.ProcessGroup, device: str) -> None:
    torch.manual_seed(group.rank())
    x, w1, w2 = (torch.randn(*sizes, device=device) for sizes in ((ROWS, K), (N, K), (K, N)))
    with overlace.init(group):  # was: enable_symm_mem_for_group(group.group_name)
        got = two_layers(x, w1, w2, group.group_name)

    full = [torch.empty_like(x) for _ in range(group.size())]
    dist.all_gather(full, x, group=group)
    total = torch.relu(torch.cat(full) @ w1.t()) @ w2.t()
    dist.all_reduce(total, group=group)
    torch.testing.assert_close(got, total.chunk(group.size())[group.rank()], rtol=1e-5, atol=1e-4)


if __name__ == "__main__":
    launch(run, __doc__)
