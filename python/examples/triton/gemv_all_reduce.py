"""Triton: the product of a few tokens with weights that ranks share along K, and its sum over ranks, in one kernel.

usage: gemv_all_reduce.py [--ranks 2] [--device cpu|cuda]        on CPUs with TRITON_INTERPRET=1, slowly
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

TILE = {"M": 16, "BLOCK_N": 32, "BLOCK_K": 256}


@triton.jit
def matmul_sum(
    x, w, y, box, arrivals, h, m, n, k, M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):  # fmt: skip
    """y (m, n) <- the sum over ranks of x (m, k) times w (n, k) transposed, m <= M. box: two buffers that take
    turns, each with the fp32 part of every rank."""
    me, size, first, programs = ot.rank(h), ot.size(h), tl.program_id(0), tl.num_programs(0)
    parts = box + ot.epoch(arrivals, programs) % 2 * size * m * n
    row = tl.arange(0, M)
    tiles = tl.cdiv(n, BLOCK_N)
    for tile in range(first, tiles, programs):
        column = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        total = tl.zeros((M, BLOCK_N), tl.float32)
        for begin in range(0, k, BLOCK_K):
            inner = begin + tl.arange(0, BLOCK_K)
            left, right = row[:, None] * k + inner[None, :], column.to(tl.int64)[None, :] * k + inner[:, None]
            tokens = tl.load(x + left, mask=(row < m)[:, None] & (inner < k)[None, :], other=0.0)
            weights = tl.load(w + right, mask=(inner < k)[:, None] & (column < n)[None, :], other=0.0)
            total = tl.dot(tokens, weights, total, input_precision="ieee")
        mask = (row < m)[:, None] & (column < n)[None, :]
        for peer in range(size):
            ot.put_tile(parts + (me * m + row)[:, None] * n + column[None, :], total, mask, h, peer)
    if ot.last_arriver(arrivals, programs):
        ot.signal_add_all(h, 0, 1)
    if ot.wait_all(h, 0, 1):
        for tile in range(first, tiles, programs):
            column = tile * BLOCK_N + tl.arange(0, BLOCK_N)
            mask = (row < m)[:, None] & (column < n)[None, :]
            total = tl.zeros((M, BLOCK_N), tl.float32)
            for peer in range(size):  # in the order of ranks: the same bits on all of them
                total += tl.load(parts + (peer * m + row)[:, None] * n + column[None, :], mask=mask)
            tl.store(y + row[:, None] * n + column[None, :], total.to(y.dtype.element_ty), mask=mask)
    if ot.last_arriver(arrivals + 1, programs):
        ot.consume_all(h, 0, 1)


def gemv_all_reduce(x, w, y, box, arrivals, h, programs, group):
    """box: two times size times y in fp32, symmetric. arrivals: two zeros at first."""
    (m, k), n = x.shape, w.shape[0]
    ot.launch(matmul_sum, programs, x, w, y, box, arrivals, h, m, n, k, **TILE, symmetric=["box"], group=group)


def check(context: overlace.Context, m: int, n: int, k: int, dtype: torch.dtype) -> None:
    size, device = context.size, context.device
    box = context.empty_symmetric((2, size, m, n))
    arrivals = torch.zeros(2, dtype=torch.int64, device=device)
    h = context.device_handle(ids=1).tensor(device)
    programs = torch.cuda.get_device_properties(device).multi_processor_count if context.is_gpu else 1
    y = torch.empty(m, n, dtype=dtype, device=device)
    context.barrier()
    for seed in range(4):
        torch.manual_seed(seed)
        everything = [(torch.randn(m, k).to(dtype), torch.randn(n, k).to(dtype)) for _ in range(size)]
        x, w = (t.to(device) for t in everything[context.rank])
        gemv_all_reduce(x, w, y, box, arrivals, h, programs, context.group)
        context.synchronize()
        want = sum(x.double() @ w.double().t() for x, w in everything)
        bounds = {"rtol": torch.finfo(dtype).eps, "atol": 4 * size * k * torch.finfo(torch.float32).eps}
        torch.testing.assert_close(y.cpu().double(), want, **bounds)
    context.free(box)


def run(group: dist.ProcessGroup, device: str) -> None:
    with overlace.init(group, backend="cuda_peer" if device == "cuda" else "cpu") as context:
        if device == "cuda":
            for m in (1, 16):
                check(context, m, 4104, 1032, torch.bfloat16)
        else:
            check(context, 3, 72, 136, torch.float32)


if __name__ == "__main__":
    launch(run, __doc__)
