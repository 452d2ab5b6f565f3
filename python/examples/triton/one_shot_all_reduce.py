"""Triton, second step: an all-reduce in one kernel, in which every rank sends all it has to every other one.

usage: one_shot_all_reduce.py [--ranks 2] [--device cpu|cuda]        on CPUs with TRITON_INTERPRET=1, slowly
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

N, BLOCK, ROUNDS = 3000, 256, 5


@triton.jit
def all_reduce(x, y, box, arrivals, h, n, BLOCK: tl.constexpr):
    """y <- the sum of x over ranks, in their order. box: two buffers that take turns, each a row from every rank."""
    rank, size, programs = ot.rank(h), ot.size(h), tl.num_programs(0)
    rows = box + ot.epoch(arrivals, programs) % 2 * size * n
    for begin in range(tl.program_id(0) * BLOCK, n, programs * BLOCK):
        i = begin + tl.arange(0, BLOCK)
        value = tl.load(x + i, mask=i < n)
        for peer in range(size):
            ot.put_tile(rows + rank * n + i, value, i < n, h, peer)
    if ot.last_arriver(arrivals, programs):  # it sends one signal for all
        ot.signal_add_all(h, 0, 1)
    if ot.wait_all(h, 0, 1):
        for begin in range(tl.program_id(0) * BLOCK, n, programs * BLOCK):
            i = begin + tl.arange(0, BLOCK)
            total = tl.zeros((BLOCK,), tl.float32)
            for peer in range(size):
                total += tl.load(rows + peer * n + i, mask=i < n)
            tl.store(y + i, total, mask=i < n)
    if ot.last_arriver(arrivals + 1, programs):  # all have waited
        ot.consume_all(h, 0, 1)


def run(group: dist.ProcessGroup, device: str) -> None:
    with overlace.init(group, backend="cuda_peer" if device == "cuda" else "cpu") as context:
        # Who is two calls ahead has seen all ranks in the call between, so that they have read what it overwrites.
        box = context.empty_symmetric((2, context.size, N))
        arrivals = torch.zeros(2, dtype=torch.int64, device=device)
        h = context.device_handle(ids=1).tensor(device)
        y = torch.empty(N, device=device)
        programs = 8 if device == "cuda" else 1
        context.barrier()
        for step in range(ROUNDS):
            parts = [torch.randn(N, generator=torch.Generator().manual_seed(step * 8 + r)) for r in range(context.size)]
            x = parts[context.rank].to(device)
            ot.launch(all_reduce, programs, x, y, box, arrivals, h, N, BLOCK=BLOCK, symmetric=["box"], group=group)
            context.synchronize()
            want = sum(part.double() for part in parts)
            torch.testing.assert_close(y.cpu().double(), want, rtol=1e-6, atol=1e-6)
        context.free(box)


if __name__ == "__main__":
    launch(run, __doc__)
