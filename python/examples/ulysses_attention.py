"""An attention over a sequence that is split between ranks (DeepSpeed Ulysses): from sequence to heads and back.

The projection to q, k and v and its all-to-all are one call, the all-to-all behind the heads and the output projection
another. Results and gradients are compared with those of the unsharded attention.

usage: ulysses_attention.py [--ranks 2] [--device cpu|cuda]
"""

from __future__ import annotations

import overlace
import torch
import torch.distributed as dist
from launch import launch
from torch import nn
from torch.nn import functional as F

WIDTH, HEADS, KV_HEADS, HEAD = 48, 4, 2, 8  # grouped queries: two heads of q for one of k and v
ROWS = 11  # of the sequence; ranks have not as many
BLOCKS = [HEADS * HEAD, KV_HEADS * HEAD, KV_HEADS * HEAD]  # columns of q, k, v: each is dealt by itself


def heads_of(qkv: torch.Tensor, parts: int) -> torch.Tensor:
    """Causal attention of one of `parts` equal parts of the heads, over the whole sequence."""
    q, k, v = (
        part.unflatten(1, (-1, HEAD)).transpose(0, 1) for part in qkv.split([block // parts for block in BLOCKS], 1)
    )
    out = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True, enable_gqa=True)[0]
    return out.transpose(0, 1).flatten(1)


class Attention(nn.Module):
    """Without `group`: the whole sequence. With it: this rank's rows, `rows` of each rank."""

    def __init__(self, dtype: torch.dtype, device: str) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, sum(BLOCKS), dtype=dtype, device=device)
        self.out = nn.Linear(HEADS * HEAD, WIDTH, dtype=dtype, device=device)

    def forward(
        self, x: torch.Tensor, group: dist.ProcessGroup | None = None, rows: list[int] | None = None
    ) -> torch.Tensor:
        if group is None:
            return self.out(heads_of(self.qkv(x), 1))
        options = {"group": group, "exchange": "cols", "splits": rows}
        qkv = overlace.ops.gemm_a2a(x, self.qkv.weight.t(), bias=self.qkv.bias, blocks=BLOCKS, **options)
        mine = heads_of(qkv, group.size())
        return overlace.ops.a2a_gemm(mine, self.out.weight.t(), bias=self.out.bias, **options)


def check(group: dist.ProcessGroup, device: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = Attention(dtype, device)
    x = torch.randn(ROWS, WIDTH, dtype=dtype, device=device)
    upstream = torch.randn(ROWS, WIDTH, dtype=dtype, device=device)
    whole = x.clone().requires_grad_()
    wanted = model(whole)
    gradients = torch.autograd.grad(wanted, [whole, *model.parameters()], upstream)

    rank = group.rank()
    rows = [len(part) for part in x.tensor_split(group.size())]
    mine = x.split(rows)[rank].clone().requires_grad_()
    got = model(mine, group, rows)
    grad_x, *grads = torch.autograd.grad(got, [mine, *model.parameters()], upstream.split(rows)[rank].contiguous())
    sums = [overlace.ops.all_reduce(grad, group=group) for grad in grads]  # each rank has those of its rows
    near = 1e-12 if dtype == torch.float64 else 1e-4
    torch.testing.assert_close(got, wanted.split(rows)[rank], rtol=near, atol=near)
    torch.testing.assert_close(grad_x, gradients[0].split(rows)[rank], rtol=near, atol=near)
    for mine, want in zip(sums, gradients[1:], strict=True):
        torch.testing.assert_close(mine, want, rtol=near, atol=near)


def run(group: dist.ProcessGroup, device: str) -> None:
    with overlace.init(group) as context:
        for dtype in (torch.float32,) if device == "cuda" else (torch.float64, torch.float32):
            before = context.stats().calls
            check(group, device, dtype)
            assert context.stats().calls - before >= 4  # of the operators: two forward, two backward


if __name__ == "__main__":
    launch(run, __doc__)
