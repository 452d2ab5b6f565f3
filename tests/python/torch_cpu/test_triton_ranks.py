"""overlace.triton on CPU ranks: its functions and the examples' kernels by Triton's interpreter, in processes of their
own, as TRITON_INTERPRET counts when triton is imported."""

from __future__ import annotations

import ctypes
import importlib
import sys
import time
from pathlib import Path

import pytest
import ranks
from ranks import overlace, run_ranks, torch

pytest.importorskip("triton", reason="triton is not installed")
EXAMPLES = Path(__file__).resolve().parents[3] / "python" / "examples" / "triton"


def kernels():
    """Imported on ranks only: they are interpreted there."""
    sys.path.insert(0, str(Path(__file__).parent))
    return importlib.import_module("triton_kernels")


def examples():
    sys.path.insert(0, str(EXAMPLES))
    for path in sorted(EXAMPLES.glob("*.py")):
        importlib.import_module(path.stem).run(ranks.spare, "cpu")


def woven(index, tiles, rank, size):
    """The same order, by a list: an own tile behind every `size` - 1 of the others."""
    others = [((rank + 1 + step) % size, number) for step in range(size - 1) for number in range(tiles)]
    own = [(rank, number) for number in range(tiles)]
    line = []
    for place in range(tiles):
        line += others[place * (size - 1) : (place + 1) * (size - 1)] + own[place : place + 1]
    return line[index]


def orders():
    """All of a rank's tiles once each, in the order that a list of them gives; no team is needed."""
    import overlace.triton as ot

    found = kernels()
    for size in (1, 2, 3, 5):
        for rank in range(size):
            h = torch.tensor([rank, size], dtype=torch.int64)
            for tiles in (1, 3, 4):
                want = {
                    "linear": [(owner, t) for owner in range(size) for t in range(tiles)],
                    "remote_first": [((rank + 1 + s) % size, t) for s in range(size) for t in range(tiles)],
                    "woven": [woven(i, tiles, rank, size) for i in range(size * tiles)],
                }
                for kind, tiles_in_order in want.items():
                    out = torch.full((size * tiles, 2), -1, dtype=torch.int32)
                    found.list_tiles[(1,)](out, h, tiles, kind)
                    assert [tuple(pair) for pair in out.tolist()] == tiles_in_order, (kind, size, rank, tiles)
    assert callable(ot.launch)


def functions(context, group):
    """Rows, words and barriers between two ranks."""
    import overlace.triton as ot

    found, rank = kernels(), context.rank
    h = context.device_handle(ids=3).tensor()
    there = context.empty_symmetric((5, 40))
    there.zero_()
    here = torch.arange(7 * 33, dtype=torch.float32).view(7, 33) + 1000 * rank
    out = torch.zeros(4, dtype=torch.int64)
    counters = torch.zeros(1, dtype=torch.int64)
    context.barrier()
    for launch in range(3):
        ot.launch(found.exchange, 1, there, here, out, counters, h, symmetric=["there"], group=group)
        assert out.tolist() == [rank, 2, launch, 1]
        assert torch.equal(there[:4, :30], here[:4, :30] - 1000 * rank + 1000 * (1 - rank))
        assert there[4].eq(0).all() and there[:, 30:].eq(0).all()
    context.free(there)


def refusals(context, group):
    import overlace.triton as ot

    found = kernels()
    h = context.device_handle(ids=1).tensor()
    whole = context.empty_symmetric((4, 8))
    calls = [
        (overlace.InvalidArgument, lambda: ot.launch(found.touch, 0, whole, group=group), "grid is \\(0,\\), wanted"),
        (overlace.Unsupported, lambda: ot.launch(found.touch, 2, whole, group=group), "grid is \\(2,\\), wanted 1"),
        (
            overlace.InvalidArgument,
            lambda: ot.launch(found.touch, 1, whole, symmetric=["y"], group=group),
            "symmetric names 'y', wanted tensors of the kernel: x",
        ),
        (
            overlace.InvalidArgument,
            lambda: ot.launch(found.touch, 1, h, symmetric=["x"], group=group),
            "launch: x: the tensor \\[19\\] lies in no memory of empty_symmetric",
        ),
    ]
    for kind, call, text in calls:
        with pytest.raises(kind, match=text):
            call()
    ot.launch(found.touch, lambda meta: (1,), whole[1:, 2:5], symmetric=["x"], group=group)
    context.free(whole)


class Record(ctypes.Structure):
    """TimeoutRecord."""

    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("magic", "rank", "peer", "team", "id", "block", "call", "kind")),
        *((name, ctypes.c_uint64) for name in ("expected", "seen", "waited_ns", "last_change_ns", "extra")),
    )


def deadline(context, group):
    """Rank 0 waits for what rank 1 does not send, in a record and with an abort word that are its own here."""
    import overlace.triton as ot

    found = kernels()
    handle = context.device_handle(ids=4)
    words, record, abort = list(handle.words), Record(), ctypes.c_uint32()
    words[10:13] = ctypes.addressof(abort), ctypes.addressof(record), int(0.2e9)
    out = torch.zeros(1, dtype=torch.int64)
    if context.rank == 0:
        abort.value, words[12] = 1, int(300e9)  # an abort ends a wait
        ot.launch(found.wait_for_nothing, 1, out, torch.tensor(words), group=group)
        assert out.item() == 2 and record.magic == 0
        context.check()
        abort.value, words[12] = 0, int(0.2e9)
        began = time.monotonic()
        ot.launch(found.wait_for_nothing, 1, out, torch.tensor(words), group=group)
        assert 0.2 <= time.monotonic() - began < 15 and out.item() == 2
        assert (record.magic, record.rank, record.peer, record.kind) == (0x0B1ACE01, 0, 1, 1)
        assert (record.id, record.expected, record.seen) == (handle.first_id + 3, 1, 0)
        assert (record.block, record.call, record.extra) == (0, 0, 0)
        assert record.waited_ns > 0.2e9 and record.last_change_ns == record.waited_ns
    # All ranks hear of it.
    with pytest.raises(overlace.Error, match=r"rank 0 waited for rank 1, signal .*expected >= 1, seen 0"):
        context.barrier()
    with pytest.raises(overlace.Error, match="rank 0 waited for rank 1"):
        context.check()


def everything(_group):
    orders()
    with overlace.init(ranks.spare, timeout_s=ranks.TIMEOUT_S) as context:
        for body in (functions, refusals, deadline):
            body(context, ranks.spare)
    examples()


def test_functions_and_examples(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    run_ranks(2, everything, fresh=True)


def without_interpreter(group):
    import overlace.triton as ot

    with pytest.raises(overlace.Unsupported, match="the ranks are on CPUs, wanted GPUs, or TRITON_INTERPRET=1"):
        ot.launch(kernels().touch, 1, torch.zeros(1), group=group)


def test_cpu_ranks_want_the_interpreter():
    run_ranks(1, without_interpreter)
