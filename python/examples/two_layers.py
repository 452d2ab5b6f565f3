"""Two linear layers, the first split by columns, the second by rows, beside the same layers on one rank.

usage: two_layers.py [--ranks 2] [--device cpu|cuda]
"""

from __future__ import annotations

import overlace
import torch
from launch import launch


def layers(x, weight1, weight2, group):
    with overlace.init(group):
        y = overlace.ops.ag_gemm(x, weight1.t(), group=group)  # rows of all ranks, columns of this one
        return overlace.ops.gemm_rs(y, weight2.t(), group=group)  # rows of this rank of the sum over ranks


def run(group, device):
    rank, ranks = group.rank(), group.size()
    torch.manual_seed(1)
    whole = torch.randn(64 * ranks, 96, device=device)
    w1, w2 = torch.randn(ranks, 128, 96, device=device), torch.randn(ranks, 96, 128, device=device)
    want = sum(whole @ a.t() @ b.t() for a, b in zip(w1, w2, strict=True))
    z = layers(whole.chunk(ranks)[rank], w1[rank], w2[rank], group)
    torch.testing.assert_close(z, want.chunk(ranks)[rank], rtol=1e-4, atol=1e-2)


if __name__ == "__main__":
    launch(run, __doc__)
