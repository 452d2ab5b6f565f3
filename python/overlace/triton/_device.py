"""Functions for kernels: twins of those in include/overlace/device, one for each thing that a fused operator does.

All of them are called by a whole program, that is by all threads of a block, and end with what the CTA barrier of their
twins' callers gives: a signal covers the stores of the whole program before it, and behind a wait the whole program may
load. `h` is a tensor of `DeviceHandle.tensor`. Ranks are those of the team; ids are counted from 0 in each handle.
"""

from __future__ import annotations

import importlib

import triton
import triton.language as tl
from triton import knobs

from overlace.triton import _layout as at

ptx = importlib.import_module("overlace.triton." + ("_interpreted" if knobs.runtime.interpret else "_ptx"))

_POLLS_PER_LOOK = ptx.POLLS_PER_LOOK
_ABORT_LOOK_NS = tl.constexpr(2000000)  # kAbortLookNs of overlace/device/poll.cuh
_TIMED_OUT = tl.constexpr(1)
_ABORTED = tl.constexpr(2)


@triton.jit
def rank(h):
    """This rank. Twin: `channel.team.rank`. Orders nothing."""
    return tl.load(h + at.RANK).to(tl.int32)


@triton.jit
def size(h):
    """Number of ranks. Twin: `channel.team.size`. Orders nothing."""
    return tl.load(h + at.SIZE).to(tl.int32)


@triton.jit
def peer_ptr(ptr, h, peer):
    """Where `ptr`, a pointer or a block of pointers into memory of `empty_symmetric`, lies in the memory of `peer`.

    Twin: `peer_ptr`. Orders nothing.
    """
    moved = tl.load(h + at.BASES + peer) - tl.load(h + at.BASES + rank(h))
    in_bytes = ptr.to(tl.pointer_type(tl.int8), bitcast=True) + tl.multiple_of(moved, at.ALIGNMENT)
    return in_bytes.to(ptr.dtype, bitcast=True)


@triton.jit
def put_tile(ptr, value, mask, h, peer):
    """Stores a block of values at `peer`, where `mask` holds: from registers to its place there.

    Twin: stores to `peer_ptr` by a kernel's epilogue. Orders nothing: `signal_add` behind it does.
    """
    tl.store(peer_ptr(ptr, h, peer), value, mask=mask)


@triton.jit
def put_rows(dst, src, rows, columns, dst_stride, src_stride, h, peer, BLOCK: tl.constexpr):
    """Copies a matrix from this rank's memory to `peer`; strides are of rows, in elements, BLOCK elements at a time.

    Twin: `put_cta`. Orders nothing: `signal_add` behind it does.
    """
    there = peer_ptr(dst, h, peer)
    for row in range(rows):
        for begin in range(0, columns, BLOCK):
            column = begin + tl.arange(0, BLOCK)
            value = tl.load(src + tl.cast(row, tl.int64) * src_stride + column, mask=column < columns)
            tl.store(there + tl.cast(row, tl.int64) * dst_stride + column, value, mask=column < columns)


@triton.jit
def _own_id(h, id):
    return tl.load(h + at.FIRST_ID) + id


@triton.jit
def _slot(h, owner, sender, id):
    """What `sender` has added to signal `id`, counted from the team's first, of `owner`."""
    place = id * tl.load(h + at.SLOT_STRIDE) + sender
    offset = tl.load(h + at.SLOTS) + place * tl.load(h + at.SLOT_PITCH)
    return (tl.load(h + at.BASES + owner) + offset).to(tl.pointer_type(tl.int64))


@triton.jit
def _ticket(h, sender, id):
    tickets = tl.load(h + at.TICKETS).to(tl.pointer_type(tl.int64))
    return tickets + id * tl.load(h + at.SLOT_STRIDE) + sender


@triton.jit
def _add(h, peer, id, delta, sem: tl.constexpr):
    tl.atomic_add(_slot(h, peer, rank(h), id), tl.cast(delta, tl.int64), sem=sem, scope="sys")


@triton.jit
def signal_add(h, peer, id, delta):
    """Adds `delta` to signal `id` of `peer`.

    Twin: a CTA barrier, then `signal_add`. Release at system scope: the stores of this program before it, to `peer` or
    to its own memory, are visible at `peer` behind the wait that this add satisfies.
    """
    tl.debug_barrier()
    _add(h, peer, _own_id(h, id), delta, "release")


@triton.jit
def fence():
    """Orders the stores of this program before its later signals and stores, to all ranks.

    Twin: `ptx::fence_sys` by one thread between two CTA barriers. It takes about 2 us while stores to peers are under
    way.
    """
    tl.debug_barrier()
    ptx.fence_sys()
    tl.debug_barrier()


@triton.jit
def signal_add_all(h, id, delta):
    """Does `signal_add` to every other rank. Twin: `signal_add_all`. Release at system scope, by one fence for all."""
    tl.debug_barrier()
    ptx.fence_sys()
    for step in range(1, size(h)):
        _add(h, (rank(h) + step) % size(h), _own_id(h, id), delta, "relaxed")


@triton.jit
def _time_out(h, sender, id, want, seen, waited_ns, unchanged_ns):
    """Writes the record, unless another waiter of this rank has, and aborts the runtime. Twin: `time_out`."""
    if ptx.claim(tl.load(h + at.CLAIM).to(tl.pointer_type(tl.int32))):
        record = tl.load(h + at.RECORD)
        words = record.to(tl.pointer_type(tl.int32))
        tl.store(words + at.RECORD_RANK // 4, rank(h))
        tl.store(words + at.RECORD_PEER // 4, tl.cast(sender, tl.int32))
        tl.store(words + at.RECORD_TEAM // 4, tl.load(h + at.TEAM_ID).to(tl.int32))
        tl.store(words + at.RECORD_ID // 4, tl.cast(id, tl.int32))
        tl.store(words + at.RECORD_BLOCK // 4, tl.program_id(0))
        tl.store(words + at.RECORD_CALL // 4, 0)
        tl.store(words + at.RECORD_KIND // 4, at.KIND_SIGNAL)
        values = record.to(tl.pointer_type(tl.int64))
        tl.store(values + at.RECORD_EXPECTED // 8, want)
        tl.store(values + at.RECORD_SEEN // 8, seen)
        tl.store(values + at.RECORD_WAITED_NS // 8, waited_ns)
        tl.store(values + at.RECORD_LAST_CHANGE_NS // 8, unchanged_ns)
        tl.store(values + at.RECORD_EXTRA // 8, tl.cast(0, tl.int64))
        ptx.store_release_sys(words + at.RECORD_MAGIC // 4, at.MAGIC)
        ptx.abort(tl.load(h + at.ABORT_WORD).to(tl.pointer_type(tl.int32)), rank(h), sender, id, want, seen, waited_ns)


@triton.jit
def _poll(h, sender, id, want):
    """Twin: `poll_until` by the first thread, then a CTA barrier that tells all threads whether it has failed."""
    word = _slot(h, rank(h), sender, id)
    abort_word = tl.load(h + at.ABORT_WORD).to(tl.pointer_type(tl.int32))
    timeout_ns = tl.load(h + at.TIMEOUT_NS)
    begin = ptx.global_ns()
    now = begin
    last_look = begin
    last_change = begin
    seen = want
    if ptx.is_first_thread():
        seen = ptx.load_acquire_sys(word)
    last = seen
    polls = tl.cast(0, tl.int32)
    failed = tl.cast(0, tl.int32)
    while (seen - want < 0) & (failed == 0):  # other threads than the first do not enter
        seen = ptx.load_acquire_sys(word)
        polls += 1
        if polls % _POLLS_PER_LOOK == 0:
            now = ptx.global_ns()
            if seen != last:
                last = seen
                last_change = now
            if now - begin > timeout_ns:
                failed = tl.where(seen - want < 0, _TIMED_OUT, 0)
            if (now - last_look > _ABORT_LOOK_NS) & (failed == 0):
                failed = tl.where(ptx.load_relaxed_sys(abort_word) != 0, _ABORTED, 0)
                last_look = now
    has_failed = ptx.any_thread(failed != 0)
    if has_failed:
        has_timed_out = ptx.any_thread(failed == _TIMED_OUT)
        if has_timed_out:
            _time_out(h, sender, id, want, seen, now - begin, now - last_change)
    return has_failed == 0


@triton.jit
def wait_ge(h, sender, id, delta):
    """Waits until `sender` has added `delta` to signal `id` of this rank, beyond what `consume` has counted off.

    Returns whether it came: if not, the deadline is over or the team was aborted, nothing may be read, and the program
    leaves. Then `Context.check` says who waited for what. Twin: `wait_ge` by one thread for `ticket` + delta, then a
    CTA barrier. Acquire at system scope: behind it the program sees what `sender` stored before it added.
    """
    own = _own_id(h, id)
    want = tl.load(_ticket(h, sender, own), volatile=True) + delta
    return _poll(h, sender, own, want)


@triton.jit
def wait_all(h, id, delta):
    """Does `wait_ge` for every other rank; returns whether all came.

    Twin: `wait_ge`, in a loop. Acquire at system scope, as often.
    """
    came = tl.cast(1, tl.int32)
    for step in range(1, size(h)):
        came &= wait_ge(h, (rank(h) + step) % size(h), id, delta).to(tl.int32)
    return came != 0


@triton.jit
def _consume(h, sender, id, delta):
    ticket = _ticket(h, sender, id)
    tl.store(ticket, tl.load(ticket, volatile=True) + delta)


@triton.jit
def consume(h, sender, id, delta):
    """Counts `delta` of what `sender` has added off: the next `wait_ge` waits for what comes after it.

    Once for each signal, by one program, when no other one will wait for the same (`last_arriver`). Twin: `consume`.
    Orders nothing; what it counts is private to this rank.
    """
    _consume(h, sender, _own_id(h, id), delta)


@triton.jit
def consume_all(h, id, delta):
    """Does `consume` for every other rank. Twin: `consume`, in a loop. Orders nothing."""
    for step in range(1, size(h)):
        consume(h, (rank(h) + step) % size(h), id, delta)


@triton.jit
def barrier(h):
    """Waits for one program of every rank; returns whether all came, as `wait_ge` does.

    By one program of each rank at a time. Twin: `barrier_block` with the channel's own id. Release and acquire at
    system scope, from all to all.
    """
    own = tl.load(h + at.BARRIER_ID)
    tl.debug_barrier()
    for step in range(1, size(h)):
        _add(h, (rank(h) + step) % size(h), own, 1, "release")
    came = tl.cast(1, tl.int32)
    for step in range(1, size(h)):
        peer = (rank(h) + step) % size(h)
        want = tl.load(_ticket(h, peer, own), volatile=True) + 1
        _consume(h, peer, own, 1)
        came &= _poll(h, peer, own, want).to(tl.int32)
    return came != 0


@triton.jit
def last_arriver(counter, n):
    """Whether this program is the last of `n` that call it in a launch: it then sees what all others did before.

    counter: an int64 in memory of this GPU that begins at 0 and is never reset; each launch has `n` calls on it. Twin:
    a CTA barrier, `counter_arrive`, a CTA barrier. Release and acquire at GPU scope.
    """
    tl.debug_barrier()
    before = tl.atomic_add(counter, tl.cast(1, tl.int64), sem="acq_rel", scope="gpu")
    return (before + 1) % n == 0


@triton.jit
def epoch(counter, n):
    """How many launches with `n` arrivals each came before this one, for buffers that take turns.

    Called before this program's `last_arriver` on the counter, so that it is the same in all programs, and in a
    replayed graph another one each time. Twin: `inbox_epoch`. Orders nothing.
    """
    return tl.load(counter, volatile=True) // n


@triton.jit
def tile_order(index, tiles, h, kind: tl.constexpr):
    """The tile that comes at place `index` of a rank's work, which has `tiles` tiles for each rank.

    Returns whose it is and its number among those of that rank. kind: "linear" goes by rank; "remote_first" begins with
    those of the next rank and ends with this rank's own; "woven" spreads its own evenly among those of the others.
    Twin: `tile_at` of src/spec/tile_order_pod.h. Orders nothing.
    """
    me = rank(h)
    n = size(h)
    if kind == "linear":
        return index // tiles, index % tiles
    elif kind == "remote_first":
        return (me + 1 + index // tiles) % n, index % tiles
    else:
        tl.static_assert(kind == "woven", "tile_order: kind is none of linear, remote_first, woven")
        own = index // n
        if (index + 1) // n == own:
            other = index - own
            owner = (me + 1 + other // tiles) % n
            number = other % tiles
        else:
            owner = me
            number = own
        return owner, number
