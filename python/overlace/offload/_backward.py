"""Passes that autograd goes back through: blocks stream forward, then in reverse order.

What autograd saves of a slot is kept as its place in the block, as the slot will have other values by then. When it is
asked for again, the block is brought again, and whatever lies between in the order is passed over.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch._C._autograd import _top_saved_tensors_default_hooks

from overlace import errors
from overlace.offload._ring import Ring


@dataclass(frozen=True)
class _Place:
    """The place of a saved tensor: in which pass and step, in which weight of its block, and how it lies there."""

    number: int
    step: int
    weight: int
    offset: int  # bytes, from the weight's begin
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def is_in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def both_ways(order: Sequence[int]) -> list[int]:
    return [*order, *reversed(order)]


class Passes:
    """Where a ring is whose order is both_ways(order)."""

    def __init__(self, ring: Ring, order: Sequence[int], names: Sequence[str]) -> None:
        self._ring, self._order, self._names = ring, both_ways(order), names
        self._forward = len(order)
        self._number = 0  # of the pass
        self._next = 0  # step of the order that the ring gives next
        self._held = -1  # step that backward uses
        self._views: list[torch.Tensor] = []  # of that step

    # Forward.

    def begin(self) -> bool:
        """A pass begins. False: the ring is somewhere in the order, and must begin again."""
        self._number += 1
        self._let_go()
        return self._next == 0

    def restart(self) -> None:
        """The ring has begun again."""
        self._next, self._held, self._views = 0, -1, []

    def acquire(self, block: int) -> list[torch.Tensor]:
        views = self._ring.acquire(block)
        self._next += 1
        return views

    def keeping(self, views: list[torch.Tensor]) -> torch.autograd.graph.saved_tensors_hooks | None:
        """Around the computation with `views`, those of the step that was acquired last. None: whoever saves tensors
        here computes them again instead of keeping them."""
        found = _top_saved_tensors_default_hooks(True)
        if found is not None and found[0].__module__ == "torch.utils.checkpoint":
            return None
        step = self._held if self._held >= 0 else self._next - 1
        step = step if step < self._forward else len(self._order) - 1 - step
        pack_other, unpack_other = found if found is not None else (lambda x: x, lambda x: x)

        def pack(tensor: torch.Tensor) -> object:
            place = _place(tensor, views, self._number, step)
            return place if place is not None else pack_other(tensor)

        def unpack(saved: object) -> torch.Tensor:
            return self._unpacked(saved) if isinstance(saved, _Place) else unpack_other(saved)

        return torch.autograd.graph.saved_tensors_hooks(pack, unpack)

    # Backward.

    def again(self, block: int) -> list[torch.Tensor]:
        """For a block that is computed again in backward: its views, until backward asks for another one."""
        last = self._held if self._held >= 0 else self._next
        steps = [i for i in range(max(last, self._forward), len(self._order)) if self._order[i] == block]
        if not steps:
            self._fail(block, "was computed again behind its turn")
        return self._back_to(steps[0])

    def _unpacked(self, place: _Place) -> torch.Tensor:
        block = self._order[place.step]
        if torch.is_grad_enabled():
            text = f"stream_blocks: {self._names[block]}: backward with create_graph=True"
            raise errors.Unsupported(f"{text}; wanted it without: streamed weights have no second derivative")
        if place.number != self._number:
            self._fail(block, f"is wanted by backward of pass {place.number}, but pass {self._number} has begun")
        view = self._back_to(len(self._order) - 1 - place.step)[place.weight]
        size = place.dtype.itemsize
        begin = (view.storage_offset() * view.element_size() + place.offset) // size
        out = torch.empty(0, dtype=place.dtype, device=view.device)
        return out.set_(view.untyped_storage(), begin, place.shape, place.stride)

    def _back_to(self, step: int) -> list[torch.Tensor]:
        """The views of a step of the backward half."""
        if step == self._held:
            return self._views
        block = self._order[step]
        if step < self._next:
            self._fail(block, "is wanted by a backward that has passed it, as of retain_graph=True")
        self._let_go()
        while self._next < step:
            passed = self._order[self._next]
            self.acquire(passed)
            self._ring.release(passed)
        self._views = self.acquire(block)
        self._held = step
        return self._views

    def _let_go(self) -> None:
        if self._held < 0:
            return
        block, self._held, self._views = self._order[self._held], -1, []
        self._ring.release(block)
        self._next %= len(self._order)

    def _fail(self, block: int, why: str) -> None:
        text = f"stream_blocks: {self._names[block]} {why}"
        raise errors.make("desync", f"{text}; wanted one backward behind each pass, before the next one")


def _place(tensor: torch.Tensor, views: list[torch.Tensor], number: int, step: int) -> _Place | None:
    """None: the tensor does not lie in any of the views."""
    if tensor.layout != torch.strided or tensor.numel() == 0:
        return None
    at = tensor.data_ptr()
    for i, view in enumerate(views):
        if view.numel() > 0 and view.device == tensor.device:
            offset = at - view.data_ptr()
            if 0 <= offset < math.prod(view.shape) * view.element_size():
                shape, stride = tuple(tensor.shape), tuple(tensor.stride())
                return _Place(number, step, i, offset, tensor.dtype, shape, stride)
    return None
