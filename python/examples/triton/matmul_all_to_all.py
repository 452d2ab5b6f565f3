"""Triton, third step: a product whose rows go to the ranks that own them, tile by tile, while others are computed.

usage: matmul_all_to_all.py [--ranks 2] [--device cpu|cuda]        on CPUs with TRITON_INTERPRET=1, slowly
"""

from __future__ import annotations

import sys
from pathlib import Path

import overlace
import overlace.triton as ot
import torch
import torch.distributed as dist
import triton
import triton.language as tl

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from launch import launch

READY, DONE = tl.constexpr(0), tl.constexpr(1)  # signals: `out` may be written; all of a rank has come
TILE = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32}


@triton.jit
def matmul_rows(
    a, b, out, arrivals, h, m, n, k, ORDER: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr
):  # fmt: skip
    """a (size * m, k), b (k, n); rows [d * m, (d + 1) * m) of the product go to rank d, to the place of this rank."""
    me, size, first, programs = ot.rank(h), ot.size(h), tl.program_id(0), tl.num_programs(0)
    if first == 0:
        ot.signal_add_all(h, READY, 1)  # whoever read `out` on this rank did so before this launch
    across = tl.cdiv(n, BLOCK_N)
    tiles = tl.cdiv(m, BLOCK_M) * across
    is_ready = first < 0
    for index in range(first, tiles * size, programs):
        owner, tile = ot.tile_order(index, tiles, h, ORDER)
        row = tile // across * BLOCK_M + tl.arange(0, BLOCK_M)
        column = tile % across * BLOCK_N + tl.arange(0, BLOCK_N)
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for begin in range(0, k, BLOCK_K):
            inner = begin + tl.arange(0, BLOCK_K)
            left = a + (owner * m + row).to(tl.int64)[:, None] * k + inner[None, :]
            right = b + inner.to(tl.int64)[:, None] * n + column[None, :]
            x = tl.load(left, mask=(row < m)[:, None] & (inner < k)[None, :], other=0.0)
            w = tl.load(right, mask=(inner < k)[:, None] & (column < n)[None, :], other=0.0)
            total = tl.dot(x, w, total, input_precision="ieee")
        if index == first:  # late, so that the first tile is computed meanwhile
            is_ready = ot.wait_all(h, READY, 1)
        there = out + (me * m + row).to(tl.int64)[:, None] * n + column[None, :]
        mask = (row < m)[:, None] & (column < n)[None, :] & is_ready
        ot.put_tile(there, total.to(out.dtype.element_ty), mask, h, owner)
    if ot.last_arriver(arrivals, programs):
        ot.signal_add_all(h, DONE, 1)
        if ot.wait_all(h, DONE, 1):  # the others have come, too: this launch ends with all of `out`
            ot.consume_all(h, READY, 1)
            ot.consume_all(h, DONE, 1)


def matmul_all_to_all(a, b, out, arrivals, h, programs, group, order="woven"):
    """`out`, symmetric, is the result until the next call."""
    m, n, k = a.shape[0] // group.size(), b.shape[1], a.shape[1]
    options = {"ORDER": order, **TILE, "symmetric": ["out"], "group": group}
    ot.launch(matmul_rows, programs, a, b, out, arrivals, h, m, n, k, **options)


def check(context: overlace.Context, m: int, n: int, k: int, dtype: torch.dtype, order: str) -> None:
    size, device = context.size, context.device
    out = context.empty_symmetric((size * m, n), dtype)
    arrivals = torch.zeros(1, dtype=torch.int64, device=device)
    h = context.device_handle(ids=2).tensor(device)
    programs = torch.cuda.get_device_properties(device).multi_processor_count if context.is_gpu else 1
    context.barrier()
    for seed in range(3):
        torch.manual_seed(seed)
        everything = [(torch.randn(size * m, k).to(dtype), torch.randn(k, n).to(dtype)) for _ in range(size)]
        a, b = (t.to(device) for t in everything[context.rank])
        matmul_all_to_all(a, b, out, arrivals, h, programs, context.group, order)
        context.synchronize()
        mine = slice(context.rank * m, (context.rank + 1) * m)
        want = torch.cat([(x.double() @ w.double())[mine] for x, w in everything])
        bounds = {"rtol": torch.finfo(dtype).eps, "atol": 4 * k * torch.finfo(torch.float32).eps}
        torch.testing.assert_close(out.cpu().double(), want, **bounds)
    context.free(out)


def run(group: dist.ProcessGroup, device: str) -> None:
    with overlace.init(group, backend="cuda_peer" if device == "cuda" else "cpu") as context:
        shape = (1000, 520, 264) if device == "cuda" else (70, 72, 40)
        for order in ("woven", "remote_first", "linear"):
            check(context, *shape, torch.bfloat16 if device == "cuda" else torch.float32, order)


if __name__ == "__main__":
    launch(run, __doc__)
