"""Triton, first step: each rank sends a row to the next one and waits for that of the rank before it.

usage: put_and_signal.py [--ranks 2] [--device cpu|cuda]        on CPUs with TRITON_INTERPRET=1, slowly
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

N, BLOCK, ROUNDS = 1000, 1024, 5
FULL, EMPTY = tl.constexpr(0), tl.constexpr(1)  # signals: what they say of a box


@triton.jit
def pass_on(x, box, y, h, n, BLOCK: tl.constexpr):
    """y <- x of the rank before this one, which puts it into `box`."""
    rank, size = ot.rank(h), ot.size(h)
    next, previous = (rank + 1) % size, (rank + size - 1) % size
    i = tl.arange(0, BLOCK)
    ot.put_tile(box + i, tl.load(x + i, mask=i < n), i < n, h, next)
    ot.signal_add(h, next, FULL, 1)  # covers what the whole program has stored
    if ot.wait_ge(h, previous, FULL, 1):  # else the team is aborted: the host says why
        tl.store(y + i, tl.load(box + i, mask=i < n), mask=i < n)
        ot.consume(h, previous, FULL, 1)
        ot.signal_add(h, previous, EMPTY, 1)
        if ot.wait_ge(h, next, EMPTY, 1):  # the next launch may put there again
            ot.consume(h, next, EMPTY, 1)


def run(group: dist.ProcessGroup, device: str) -> None:
    with overlace.init(group, backend="cuda_peer" if device == "cuda" else "cpu") as context:
        rank, size = context.rank, context.size
        x = torch.arange(N, dtype=torch.float32, device=device) + 1000 * rank
        y = torch.empty_like(x)
        box = context.empty_symmetric(N)  # at the same place in every rank's heap
        h = context.device_handle(ids=2).tensor(device)
        context.barrier()  # every rank has its box
        for _ in range(ROUNDS):
            ot.launch(pass_on, 1, x, box, y, h, N, BLOCK=BLOCK, symmetric=["box"], group=group)
            x, y = y, x
        context.synchronize()  # raises what a wait failed of
        want = torch.arange(N, dtype=torch.float32, device=device) + 1000 * ((rank - ROUNDS) % size)
        torch.testing.assert_close(x, want, rtol=0, atol=0)
        context.free(box)


if __name__ == "__main__":
    launch(run, __doc__)
