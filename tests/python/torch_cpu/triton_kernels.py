"""Kernels of test_triton_ranks.py; in a module of their own, as triton is imported where they run."""

import overlace.triton as ot
import triton
import triton.language as tl


@triton.jit
def list_tiles(out, h, tiles, KIND: tl.constexpr):
    for index in range(tiles * ot.size(h)):
        owner, number = ot.tile_order(index, tiles, h, KIND)
        tl.store(out + 2 * index, owner)
        tl.store(out + 2 * index + 1, number)


@triton.jit
def touch(x):
    tl.store(x, 1.0)


@triton.jit
def exchange(there, here, out, counter, h):
    """Four rows of 30 of 33 values to the other rank, where a row has 40; then signals of each kind and a barrier."""
    rank, size = ot.rank(h), ot.size(h)
    other = 1 - rank
    came = ot.barrier(h)  # the other rank's last launch has been read
    ot.put_rows(there, here, 4, 30, 40, 33, h, other, BLOCK=16)
    ot.signal_add(h, other, 0, 3)
    ot.signal_add_all(h, 2, 1)
    came = came & ot.wait_ge(h, other, 0, 3) & ot.wait_all(h, 2, 1)
    ot.consume(h, other, 0, 3)
    ot.consume_all(h, 2, 1)
    ot.fence()
    tl.store(out, rank)
    tl.store(out + 1, size)
    tl.store(out + 2, ot.epoch(counter, 1))
    tl.store(out + 3, (ot.last_arriver(counter, 1) & came).to(tl.int64))


@triton.jit
def wait_for_nothing(out, h):
    came = ot.wait_ge(h, 1, 3, 1)
    tl.store(out, tl.where(came, 1, 2))
