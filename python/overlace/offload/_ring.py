"""Rings of slots that blocks pass through: in host memory, or on a device behind a stream of copies."""

from __future__ import annotations

import collections
import ctypes as c
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from overlace import errors
from overlace.offload._native import BlockStream, Piece

_ALIGNMENT = 256  # of tensors in slots on a device, as allocators of CUDA align


@dataclass(frozen=True)
class Weight:
    """What a tensor of a block is, and where its bytes come from."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    piece: Piece

    def view_of(self, flat: torch.Tensor) -> torch.Tensor:
        return flat.as_strided(self.shape, self.stride)


@dataclass(frozen=True)
class Block:
    name: str
    weights: list[Weight]


class Ring(Protocol):
    """The same calls as those of BlockStream, with tensors."""

    def acquire(self, block: int) -> list[torch.Tensor]: ...
    def release(self, block: int) -> None: ...
    def restart(self) -> None: ...
    def close(self) -> None: ...
    def stats(self) -> dict[str, float]: ...


def padded(order: Sequence[int], slots: int, filler: int) -> list[int]:
    """A whole number of rounds through the ring, so that each use of a block is always in the same slot."""
    return [*order, *[filler] * (-len(order) % slots)]


def at_address(address: int, dtype: torch.dtype, count: int) -> torch.Tensor:
    """Memory of the library, not copied and not kept alive."""
    if count == 0:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer((c.c_byte * (count * dtype.itemsize)).from_address(address), dtype=dtype, count=count)


class HostRing:
    """Slots of host memory: the library's BlockStream and its threads."""

    def __init__(
        self,
        blocks: list[Block],
        order: Sequence[int],
        slots: int,
        engine: str | None = None,
        timeout_s: float = 0,
        *,
        is_fixed: bool = True,  # each use of a block is always in the same slot, and a pass ends before the next
    ) -> None:
        self._blocks = blocks
        self._pad = len(blocks)  # a block of nothing
        self._order = padded(order, slots, self._pad) if is_fixed else list(order)
        self._acquired = self._released = 0  # steps of the padded order
        self._blocks_given = 0
        streamed = [(block.name, [w.piece for w in block.weights]) for block in blocks]
        self.stream = BlockStream([*streamed, ("end of the order", [])], self._order, slots, engine, timeout_s)
        self._views: dict[tuple[int, ...], list[torch.Tensor]] = {}
        self.before_close: Callable[[], None] | None = None

    def acquire(self, block: int) -> list[torch.Tensor]:
        addresses = self.stream.acquire(block)
        self._acquired += 1
        self._blocks_given += 1
        key = (block, *addresses)
        if key not in self._views:
            pairs = zip(self._blocks[block].weights, addresses, strict=True)
            with torch.inference_mode(False):  # else parameters would become tensors of inference mode
                self._views[key] = [w.view_of(at_address(at, w.dtype, math.prod(w.shape))) for w, at in pairs]
        return self._views[key]

    def release(self, block: int) -> None:
        self.stream.release(block)
        self._released += 1
        # Behind the last block of the order nothing is in use, so that what fills the round can pass.
        while self._released == self._acquired and self._order[self._acquired % len(self._order)] == self._pad:
            self.stream.acquire(self._pad)
            self._acquired += 1
            self.stream.release(self._pad)
            self._released += 1

    def restart(self) -> None:
        self.stream.restart()
        self._acquired = self._released = 0

    def close(self) -> None:
        self._views.clear()
        if self.before_close is not None:
            self.before_close()
            self.before_close = None
        self.stream.close()

    def stats(self) -> dict[str, float]:
        s = self.stream.stats()
        names = ("bytes", "waits", "waited_s", "filled_s", "memory_bytes")
        return {"blocks": self._blocks_given, **{name: getattr(s, name) for name in names}}


class Lane(Protocol):
    """A queue of copies beside the queue of computation. Events are of one and awaited by the other."""

    def copy(self, to: torch.Tensor, source: torch.Tensor) -> None: ...
    def copied(self) -> Any: ...  # an event behind the copies that were queued
    def used(self) -> Any: ...  # an event behind the computation that was queued
    def copy_after(self, event: Any) -> None: ...
    def use_after(self, event: Any) -> None: ...
    def wait(self, event: Any) -> None: ...  # the host does


def _event_on(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event()
    event.record(stream)
    return event


class CudaLane:
    """Copies on a stream of their own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def copy(self, to: torch.Tensor, source: torch.Tensor) -> None:
        with torch.cuda.stream(self._stream):
            to.copy_(source, non_blocking=True)

    def copied(self) -> torch.cuda.Event:
        return _event_on(self._stream)

    def used(self) -> torch.cuda.Event:
        return _event_on(torch.cuda.current_stream(self._device))

    def copy_after(self, event: torch.cuda.Event) -> None:
        self._stream.wait_event(event)

    def use_after(self, event: torch.cuda.Event) -> None:
        torch.cuda.current_stream(self._device).wait_event(event)

    def wait(self, event: torch.cuda.Event) -> None:
        event.synchronize()


class DeviceRing:
    """Slots on a device. A copy waits until the computation that used its slot has passed, and computation until the
    copy has. The source is `resting` (tensors of each block in pinned memory) or a HostRing that reads files. A ring
    that is not endless brings the blocks of one pass, and those of another one behind restart()."""

    def __init__(
        self,
        blocks: list[Block],
        order: Sequence[int],
        slots: int,
        device: torch.device,
        lane: Lane,
        source: HostRing | Callable[[int], list[torch.Tensor]],
        *,
        is_endless: bool = True,
    ) -> None:
        self._blocks, self._lane, self._source, self._is_endless = blocks, lane, source, is_endless
        self._order = padded(order, slots, len(blocks)) if is_endless else list(order)
        self._places = [_places(block) for block in blocks]
        slot_bytes = max([end for _, end in self._places], default=0)
        with torch.inference_mode(False):  # as for the views of it
            self._memory = torch.empty(slots, max(slot_bytes, 1), dtype=torch.uint8, device=device)
        self._views: dict[tuple[int, int], list[torch.Tensor]] = {}
        self._ready: list[object] = [None] * slots  # event behind the copy into each slot
        self._held: collections.deque[tuple[int, object]] = collections.deque()  # blocks of the source, being copied
        self._counted = {"blocks": 0, "bytes": 0}
        self._begin()

    def _begin(self) -> None:
        """What was queued before may still use the memory of the slots, whoever had it."""
        self._lane.copy_after(self._lane.used())
        self._asked = self._acquired = self._released = 0  # steps
        for _ in self._ready:
            self._ask()

    def _block_of(self, step: int) -> int:
        return self._order[step % len(self._order)]

    def _name_of(self, block: int) -> str:
        return self._blocks[block].name if block < len(self._blocks) else "end of the order"

    def _slot_of(self, step: int) -> int:
        return step % len(self._ready)

    def _views_of(self, block: int, slot: int) -> list[torch.Tensor]:
        if (block, slot) not in self._views:
            offsets, _ = self._places[block]
            with torch.inference_mode(False):
                self._views[block, slot] = [
                    w.view_of(self._memory[slot].narrow(0, at, w.piece.bytes).view(w.dtype))
                    for w, at in zip(self._blocks[block].weights, offsets, strict=True)
                ]
        return self._views[block, slot]

    def _resting(self, block: int) -> list[torch.Tensor]:
        if not isinstance(self._source, HostRing):
            return self._source(block)
        if self._held and len(self._held) == len(self._ready):  # the source has one slot more
            self._let_go()
        return self._source.acquire(block)

    def _let_go(self) -> None:
        block, event = self._held.popleft()
        self._lane.wait(event)
        assert isinstance(self._source, HostRing)  # nothing else is held
        self._source.release(block)

    def _ask(self) -> None:
        """Queues the copies of the next block; the slot must be free for the copies that are queued from now on."""
        if not self._is_endless and self._asked == len(self._order):
            return
        step, block = self._asked, self._block_of(self._asked)
        self._asked += 1
        if block == len(self._blocks):
            return
        for to, source in zip(self._views_of(block, self._slot_of(step)), self._resting(block), strict=True):
            self._lane.copy(to, source)
        self._ready[self._slot_of(step)] = event = self._lane.copied()
        if isinstance(self._source, HostRing):
            self._held.append((block, event))

    def acquire(self, block: int) -> list[torch.Tensor]:
        wanted = self._block_of(self._acquired)
        if block != wanted:
            text = f"block stream: block {self._name_of(block)} was asked for, wanted {self._name_of(wanted)}"
            raise errors.make("desync", text + ", the next of the order")
        if self._acquired == self._asked:
            text = f"block stream: block {self._name_of(block)} was asked for while all {len(self._ready)} slots are in"
            first = self._name_of(self._block_of(self._released))
            raise errors.make("desync", f"{text} use; wanted {first} released")
        slot = self._slot_of(self._acquired)
        self._lane.use_after(self._ready[slot])
        self._acquired += 1
        self._counted["blocks"] += 1
        self._counted["bytes"] += sum(w.piece.bytes for w in self._blocks[block].weights)
        return self._views_of(block, slot)

    def release(self, block: int) -> None:
        wanted = self._block_of(self._released) if self._released < self._acquired else None
        if block != wanted:
            name = "none: none is in use" if wanted is None else self._name_of(wanted)
            raise errors.make("desync", f"block stream: block {self._name_of(block)} was released, wanted {name}")
        self._released += 1
        self._lane.copy_after(self._lane.used())
        self._ask()
        while self._released == self._acquired and self._block_of(self._acquired) == len(self._blocks):
            self._acquired += 1
            self._released += 1
            self._ask()

    def restart(self) -> None:
        while self._held:
            self._let_go()
        if isinstance(self._source, HostRing):
            self._source.restart()
        self._begin()

    def close(self) -> None:
        while self._held:
            self._let_go()
        for event in self._ready:
            if event is not None:
                self._lane.wait(event)
        if isinstance(self._source, HostRing):
            self._source.close()
        self._views.clear()

    @property
    def memory(self) -> torch.Tensor:
        """All slots."""
        return self._memory

    def stats(self) -> dict[str, float]:
        source = self._source.stats() if isinstance(self._source, HostRing) else {}
        return {
            **source,
            **self._counted,
            "memory_bytes": self._memory.numel(),
            "host_bytes": source.get("memory_bytes", 0),
        }


def _places(block: Block) -> tuple[list[int], int]:
    """Offsets of a block's tensors in a slot, and the bytes that they take."""
    offsets, end = [], 0
    for weight in block.weights:
        offsets.append(end)
        end += -(-weight.piece.bytes // _ALIGNMENT) * _ALIGNMENT
    return offsets, end
