"""Tensors in the symmetric heap: reached by peers, given back, refused where they are not."""

from __future__ import annotations

import ctypes

import pytest
from ranks import overlace, run_ranks, torch


def _exchange(group):
    context = overlace.context_of(group)
    rank, size = group.rank(), group.size()
    before = context.stats().heap_in_use
    x = overlace.empty_symmetric((4, 6), torch.bfloat16, group=group)
    y = context.empty_symmetric(5, torch.int64)
    assert x.shape == (4, 6) and x.dtype == torch.bfloat16 and x.is_contiguous() and y.shape == (5,)
    assert context.stats().heap_in_use > before
    x.copy_(torch.arange(24).reshape(4, 6) + 32 * rank)
    y.fill_(rank)
    context.barrier()
    for other in range(size):
        want = (torch.arange(24).reshape(4, 6) + 32 * other).bfloat16()
        assert torch.equal(context.peer(x, other), want)
        assert torch.equal(context.peer(x[1:3, ::2].t(), other), want[1:3, ::2].t())
        assert context.peer(y[3:], other).tolist() == [other, other]
    context.barrier()
    context.peer(y, (rank + 1) % size)[rank % 5] = 100 + rank  # a store into the next rank's memory
    context.barrier()
    previous = (rank + size - 1) % size
    assert y[previous % 5] == 100 + previous and (y == rank).sum() == 4
    context.free(y)
    context.free(x[2:])
    assert context.stats().heap_in_use == before


@pytest.mark.parametrize("size", [1, 2, 3])
def test_peers_see_what_is_stored(size):
    run_ranks(size, _exchange)


def _refusals(group):
    context = overlace.context_of(group)
    x = context.empty_symmetric((2, 2))
    elsewhere = "lies in no memory of empty_symmetric of this context, wanted what it returned or a view of that"
    cases = [
        (lambda: context.peer(x, 2), "peer: rank is 2, wanted 0 to 1"),
        (lambda: context.peer(torch.ones(3), 0), f"peer: the tensor \\[3\\] {elsewhere}"),
        (lambda: context.free(torch.ones(3)), f"free: the tensor \\[3\\] {elsewhere}"),
        (
            lambda: context.empty_symmetric((2, -1)),
            "empty_symmetric: shape is \\(2, -1\\), wanted numbers of 0 or more",
        ),
        (lambda: context.empty_symmetric(2, "float32"), "empty_symmetric: dtype is 'float32', wanted a torch.dtype"),
        (lambda: context.device_handle(-1), "device_handle: ids is -1, wanted 0 to 1048575"),
        (lambda: overlace.empty_symmetric(2, group="none"), "group 'none' has no overlace team"),
    ]
    for call, text in cases:
        with pytest.raises(overlace.InvalidArgument, match=text):
            call()
    with pytest.raises(overlace.OutOfMemory):
        context.empty_symmetric(1 << 40, torch.uint8)
    assert context.empty_symmetric(0).shape == (0,)
    context.free(x)
    with pytest.raises(overlace.InvalidArgument, match="free: the tensor"):
        context.free(x)


def test_bad_input():
    run_ranks(2, _refusals)


def _handle(group):
    context = overlace.context_of(group)
    x = context.empty_symmetric(3)
    handle = context.device_handle(ids=4)
    rank, size = ctypes.c_int32.from_buffer_copy(handle.pod), ctypes.c_int32.from_buffer_copy(handle.pod, 4)
    assert (rank.value, size.value) == (group.rank(), group.size())
    words = handle.tensor()
    assert words.dtype == torch.int64 and words.tolist() == list(handle.words)
    assert words[:2].tolist() == [group.rank(), group.size()] and words[16] == handle.first_id
    # The last are the bases of the heaps: my own is where my tensor lies.
    mine, other = handle.words[17 + group.rank()], handle.words[18 - group.rank()]
    offset = x.data_ptr() - mine
    assert 0 < offset < context.stats().heap_bytes
    assert context.peer(x, 1 - group.rank()).data_ptr() == other + offset
    again = context.device_handle(ids=2)
    assert handle.ids == 4 and again.first_id >= handle.first_id + 4
    assert context.device_handle().ids == 0
    return handle.first_id


def test_device_handle():
    assert len(set(run_ranks(2, _handle))) == 1  # ids are the same on all ranks
