"""stream_blocks: the blocks of any nn.ModuleList use weights that pass through slots."""

from __future__ import annotations

import collections
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import nn

from overlace import errors
from overlace.offload import _graphs, _native
from overlace.offload._backward import Passes, both_ways, is_in_backward
from overlace.offload._blocks import (
    BlockTensor,
    ModelBlock,
    blocks_of,
    check_layout,
    locate,
    set_data,
    tied_of,
    version_of,
    weight_of,
)
from overlace.offload._files import Files
from overlace.offload._ring import Block, CudaLane, DeviceRing, HostRing, Lane, Ring

_Source = HostRing | Callable[[int], list[torch.Tensor]]


@dataclass
class _Walk:
    """Where passes over the blocks are: those that are called, or those of a graph that is being captured."""

    ring: Ring | None = None
    position: int = 0  # in the order
    in_use: collections.deque[tuple[ModelBlock, list[bool]]] = field(default_factory=collections.deque)  # [False]: runs
    is_old: bool = False  # what the ring holds: it must begin again
    capture: int = 0  # id of the graph's capture; 0: none


def stream_blocks(
    blocks: nn.ModuleList | Sequence[nn.Module],
    device: torch.device | str,
    *,
    source: str | os.PathLike | list = "host",
    resident: int | str = 0,
    slots: int = 2,
    order: Sequence[int] | None = None,
    backward: bool = False,
    prefix: str | None = None,
    rename: Callable[[str], str] | None = None,
    engine: str | None = None,
    timeout_s: float = 0,
) -> StreamedBlocks:
    """From now on the blocks' parameters are, while their block runs, views of `slots` slots on `device`, filled ahead.

    source: "host", the memory that they have now, or safetensors: a file, a list, or a directory; the values are then
    those of the files, and parameters on the meta device become real. prefix: what stands before "0.", "1." in the
    names of the files' tensors, where it cannot be found out; rename: from a parameter's name in the list of blocks,
    such as "0.q_proj.base_layer.weight" of an adapter, to that of the files behind the prefix. order: in which blocks
    are called, over and over; by default each once, forward; its first block may be called at any time and begins it
    again. resident: bytes of blocks that stay on the device and do not stream. engine, timeout_s: of the reads
    (OVERLACE_IO, OVERLACE_TIMEOUT_S).
    backward: gradients pass through the blocks, which stream in reverse order then; parameters that want a gradient,
    such as those of adapters, do not stream and are left as they are. Without it only without gradients. Buffers,
    parameters that several blocks share, and all outside of the blocks do not stream.
    """
    at = torch.device(device)
    return StreamedBlocks(blocks, at, source, resident, slots, order, backward, prefix, rename, engine, timeout_s)


class StreamedBlocks:
    """What stream_blocks made. Used by one thread; close() gives the blocks back, and so does leaving a `with`."""

    def __init__(
        self,
        blocks: nn.ModuleList | Sequence[nn.Module],
        device: torch.device,
        source: str | os.PathLike | list,
        resident: int | str,
        slots: int,
        order: Sequence[int] | None,
        backward: bool,
        prefix: str | None,
        rename: Callable[[str], str] | None,
        engine: str | None,
        timeout_s: float,
    ) -> None:
        self._device, self._engine, self._timeout_s, self._slots = device, engine, timeout_s, slots
        self._calls = self._walk = _Walk()  # _walk: where the last call was
        self._captured: _Walk | None = None  # of the last graph
        self._passes: Passes | None = None  # where gradients pass through the blocks
        self._backward = backward
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._buffers: list[tuple[nn.Module, str, torch.Tensor]] = []
        self._files = None if source == "host" else Files(source)
        self._order = _checked(blocks, device, slots, order)
        if backward and self._order.count(self._order[0]) > 1:
            text = f"stream_blocks: order is {self._order} with backward=True"
            raise errors.InvalidArgument(f"{text}; wanted its first block only once, as it begins a pass")
        self._blocks = blocks_of(blocks, device if backward else None, prefix)
        if self._files is not None:
            locate(self._blocks, self._files, prefix, rename or str)
        for block in self._blocks:
            for tensor in block.tensors:
                check_layout(block, tensor)
        self._resident_bytes = _native.size("resident", resident)
        try:
            self._place()
            self._open()
        except BaseException:
            self._restore()
            raise

    # What lies where.

    def _place(self) -> None:
        for block in self._blocks:
            for tensor in block.tensors:
                self._rest(tensor)
        tied = tied_of(self._blocks)
        for tensor in tied:
            self._make_resident(tensor)
        for block in self._blocks:
            block.tensors = [t for t in block.tensors if all(t is not other for other in tied)]
            for module in block.module.modules():
                for name, buffer in module._buffers.items():
                    if buffer is not None and buffer.device != self._device:
                        self._buffers.append((module, name, buffer))
                        module._buffers[name] = buffer.to(self._device)
        self._resident = [*tied, *self._choose_resident()]

    def _choose_resident(self) -> list[BlockTensor]:
        """Blocks that stay, evenly among the others so that the transfers between them are hidden."""
        used = [self._blocks[i] for i in sorted(set(self._order))]
        sizes = [sum(t.bytes for t in block.tensors) for block in used]
        count, total = 0, 0
        for size in sorted(sizes, reverse=True):  # any choice of so many blocks fits
            total += size
            if total > self._resident_bytes:
                break
            count += 1
        staying = [block for i, block in enumerate(used) if i * count % len(used) < count]
        for block in staying:
            for tensor in block.tensors:
                self._make_resident(tensor)
        self._streamed = [b for b in used if all(b is not s for s in staying) and b.tensors]
        for i, block in enumerate(self._streamed):
            block.streamed = i
        return [tensor for block in staying for tensor in block.tensors]

    def _rest(self, tensor: BlockTensor) -> None:
        """Takes the parameter's data to where they rest."""
        if tensor.stored is not None and self._files is not None:
            tensor.rest = self._files.mapped(tensor.stored)
        elif self._device.type == "cuda":
            tensor.rest = tensor.was.to("cpu").pin_memory()
        set_data(tensor, tensor.rest)
        tensor.version = version_of(tensor)

    def _make_resident(self, tensor: BlockTensor) -> None:
        at = tensor.rest.to(self._device)
        if tensor.stored is not None and at.data_ptr() == tensor.rest.data_ptr():
            at = at.clone()  # of the file: memory of its own
        tensor.rest = at
        set_data(tensor, at)

    def _open(self) -> None:
        self._numbered = [Block(b.name, [weight_of(t) for t in b.tensors]) for b in self._streamed]
        self._forward = [self._blocks[i].streamed for i in self._order if self._blocks[i].streamed >= 0]
        order = both_ways(self._forward) if self._backward else self._forward
        if order and self._device.type == "cpu":
            self._calls.ring = HostRing(self._numbered, order, self._slots, self._engine, self._timeout_s)
        elif order and self._files is None:
            self._calls.ring = self._device_ring(order, CudaLane(self._device), self._resting)
        elif order:
            slots = self._slots + 1
            source = HostRing(self._numbered, order, slots, self._engine, self._timeout_s, is_fixed=False)
            _pin(source)
            self._calls.ring = self._device_ring(order, CudaLane(self._device), source)
        if self._calls.ring is not None and self._backward:
            self._passes = Passes(self._calls.ring, self._forward, [block.name for block in self._streamed])
        _STREAMED.update(block.module for block in self._blocks)
        for i in sorted(set(self._order)):
            block = self._blocks[i]
            before, after = self._hooks_of(i)
            self._hooks.append(block.module.register_forward_pre_hook(before, with_kwargs=True, prepend=True))
            self._hooks.append(block.module.register_forward_hook(after, always_call=True))

    def _resting(self, streamed: int) -> list[torch.Tensor]:
        return [tensor.rest for tensor in self._streamed[streamed].tensors]

    def _device_ring(self, order: list[int], lane: Lane, source: _Source, *, is_endless: bool = True) -> DeviceRing:
        return DeviceRing(self._numbered, order, self._slots, self._device, lane, source, is_endless=is_endless)

    # What happens around a block.

    def _hooks_of(self, index: int) -> tuple:
        @torch.compiler.disable
        def before(module: nn.Module, args: tuple, kwargs: dict) -> None:
            self._begin(index, args, kwargs)

        @torch.compiler.disable
        def after(module: nn.Module, args: tuple, output: object) -> None:
            self._end(index)

        return before, after

    def _begin(self, index: int, args: tuple, kwargs: dict) -> None:
        block = self._blocks[index]
        if block.depth > 0:  # it calls itself
            block.depth += 1
            return
        capture = _graphs.capture_of(self._device)
        self._check_call(block, args, kwargs, capture is not None)
        if self._passes is not None and is_in_backward():
            self._begin_again(block, self._passes)
            return
        walk = self._walk_of(capture)
        self._check_turn(index, walk)
        if walk.position == 0:
            self._begin_pass(walk, capture)
        self._check_parameters(block)
        if block.streamed >= 0:
            ring = self._passes or walk.ring
            assert ring is not None  # a block streams through it
            self._use(block, ring.acquire(block.streamed))
            walk.in_use.append((block, [False]))
        block.depth = 1
        walk.position = (walk.position + 1) % len(self._order)

    def _walk_of(self, capture: _graphs.Capture | None) -> _Walk:
        if capture is None:
            return self._calls
        if self._captured is None or self._captured.capture != capture.id:
            self._captured = _Walk(capture=capture.id)
        return self._captured

    def _check_turn(self, index: int, walk: _Walk) -> None:
        """The block is the next one, or the first. What an interrupt has left of another pass is given back."""
        block, expected, other = self._blocks[index], self._order[walk.position], self._walk
        is_left = other is not walk and bool(other.in_use)
        if index == self._order[0] and (walk.position != 0 or walk.in_use or is_left):
            for running in self._blocks:
                if running.depth > 0 and _is_running(running.module):
                    text = f"stream_blocks: {block.name} was called inside {running.name}"
                    raise errors.make("desync", f"{text}, wanted {self._blocks[expected].name}, the next of the order")
            self._leave(walk)
        elif index != expected:
            wanted, first = self._blocks[expected].name, self._blocks[self._order[0]].name
            text = f"stream_blocks: {block.name} was called, wanted {wanted}, the next of the order"
            raise errors.make("desync", text if wanted == first else f"{text}, or {first}, its first")
        if is_left:
            self._leave(other)
        self._walk = walk

    def _begin_pass(self, walk: _Walk, capture: _graphs.Capture | None) -> None:
        if self._take_changes():
            self._calls.is_old = True  # a graph copies what is there when it runs
        if capture is not None:
            self._begin_captured(walk, capture)
            return
        self._let_go()
        if walk.is_old:
            self._restart()
        if self._passes is not None and not self._passes.begin():
            self._restart()

    def _begin_captured(self, walk: _Walk, capture: _graphs.Capture) -> None:
        """The graph has slots of its own, and copies of its own into them, so it may run whenever it wants."""
        if walk.ring is not None:
            walk.ring.restart()
        elif self._forward:
            held = [t.rest for block in self._streamed for t in block.tensors]
            capture.keep(self, held)
            ring = self._device_ring(self._forward, capture.lane(), self._resting, is_endless=False)
            held.append(ring.memory)
            walk.ring = ring

    def _let_go(self) -> int:
        """Forgets graphs that are gone; how many there are."""
        graphs = _graphs.let_go(self)
        if graphs == 0 and self._captured is not None and self._captured.ring is not None:
            self._captured = None
            self._walk = self._calls
        return graphs

    def _begin_again(self, block: ModelBlock, passes: Passes) -> None:
        """Checkpointing calls blocks in backward, from the last to the first."""
        self._check_parameters(block)
        if block.streamed >= 0:
            self._use(block, passes.again(block.streamed))
        block.depth, block.is_again = 1, True

    def _use(self, block: ModelBlock, views: list[torch.Tensor]) -> None:
        for tensor, view in zip(block.tensors, views, strict=True):
            set_data(tensor, view)
        if self._passes is not None and torch.is_grad_enabled():
            block.keeping = self._passes.keeping(views)
            if block.keeping is not None:
                block.keeping.__enter__()

    def _end(self, index: int) -> None:
        block = self._blocks[index]
        if block.depth == 0:  # _begin refused it
            return
        block.depth -= 1
        if block.depth > 0 or block.streamed < 0:
            return
        self._stop_keeping(block)
        if block.is_again:
            block.is_again = False
            self._put_back(block)  # backward still uses its slot
            return
        walk = self._walk
        next(state for other, state in walk.in_use if other is block)[0] = True
        written = [t for t in block.tensors if version_of(t) != t.version]
        self._put_back(block)
        # A block that ran inside another one waits for it.
        while walk.ring is not None and walk.in_use and walk.in_use[0][1][0]:
            walk.ring.release(walk.in_use.popleft()[0].streamed)
        if written:
            name = f"{block.name}: {written[0].names[0]}"
            raise errors.InvalidArgument(f"stream_blocks: {name} was written while its block ran; slots are only read")

    @staticmethod
    def _stop_keeping(block: ModelBlock) -> None:
        if block.keeping is not None:
            block.keeping.__exit__()
            block.keeping = None

    def _put_back(self, block: ModelBlock) -> None:
        for tensor in block.tensors:
            set_data(tensor, tensor.rest)
            tensor.version = version_of(tensor)

    def _leave(self, walk: _Walk) -> None:
        """Its next pass begins with the first block."""
        for block, _ in walk.in_use:
            block.depth = 0
            self._put_back(block)
        for block in reversed(self._blocks):
            block.depth, block.is_again = 0, False
            self._stop_keeping(block)
        walk.in_use.clear()
        walk.position, walk.is_old = 0, True

    def _restart(self) -> None:
        self._calls.is_old = False
        if self._calls.ring is not None:
            self._calls.ring.restart()
        if self._passes is not None:
            self._passes.restart()

    def _take_changes(self) -> bool:
        """Between two passes host memory may have got other values: what was read ahead of them is old."""
        changed = [t for b in self._streamed for t in b.tensors if version_of(t) != t.version]
        for tensor in changed:
            if tensor.stored is not None:
                text = f"stream_blocks: {tensor.names[0]} was written, but it streams from {tensor.stored.path}"
                raise errors.InvalidArgument(f'{text}; wanted source="host", or no writes')
            tensor.version = version_of(tensor)
        return bool(changed)

    # What is refused.

    def _check_call(self, block: ModelBlock, args: tuple, kwargs: dict, is_captured: bool) -> None:
        tensors = [x for x in _flat((args, kwargs)) if isinstance(x, torch.Tensor)]
        if torch.is_grad_enabled():
            with_gradient = any(t.parameter.requires_grad for t in block.tensors) or any(
                t.requires_grad for t in tensors
            )
            if with_gradient and not self._backward:
                text = f"stream_blocks: {block.name} was called with gradients enabled"
                raise errors.Unsupported(f"{text}; wanted torch.no_grad() or torch.inference_mode(), or backward=True")
            wanting = [t.names[0] for t in block.tensors if t.parameter.requires_grad]
            if wanting and block.streamed >= 0:
                text = f"stream_blocks: {block.name}: {wanting[0]} streams and wants a gradient"
                raise errors.Unsupported(f"{text}; wanted requires_grad_() before stream_blocks, or not at all")
            if self._backward and any(other.depth > 0 and other is not block for other in self._blocks):
                text = f"stream_blocks: {block.name} was called inside another block with gradients enabled"
                raise errors.Unsupported(f"{text}; wanted blocks one behind the other")
        if is_captured and (self._files is not None or self._backward):
            got = "backward=True" if self._files is None else f"source={self._files.text}"
            text = f"stream_blocks: {block.name} was called while a CUDA graph is captured, with {got}"
            wanted = 'source="host", as a graph reads no files' if self._files is not None else "backward=False"
            raise errors.Unsupported(f"{text}; wanted {wanted}")
        if tensors and tensors[0].device.type != self._device.type:
            text = f"stream_blocks: {block.name} was given a tensor on {tensors[0].device}, wanted {self._device}"
            raise errors.InvalidArgument(text)

    def _check_parameters(self, block: ModelBlock) -> None:
        for tensor in block.tensors:
            for (module, attribute), name in zip(tensor.owners, tensor.names, strict=True):
                parameter = module._parameters.get(attribute)
                if parameter is not tensor.parameter or tensor.parameter.data_ptr() != tensor.rest.data_ptr():
                    text = f"stream_blocks: {block.name}: {name} was replaced after wrapping"
                    raise errors.InvalidArgument(f"{text}; wanted close(), the change, then stream_blocks again")
            if block.streamed >= 0 and version_of(tensor) != tensor.version:
                text = f"stream_blocks: {block.name}: {tensor.names[0]} was written in the middle of a pass"
                raise errors.InvalidArgument(f"{text}; wanted it before {self._blocks[self._order[0]].name}")

    # What is known and how it ends.

    def stats(self) -> dict[str, float]:
        """What has streamed: blocks, bytes, waits, waited_s, filled_s, memory_bytes (of the slots); resident_bytes.
        graphs: CUDA graphs that hold slots and pinned memory of it; what these have streamed is not counted."""
        ring = self._calls.ring
        of_ring = ring.stats() if ring is not None else {"blocks": 0, "bytes": 0, "memory_bytes": 0}
        resident = sum(t.bytes for t in self._resident)
        return {**of_ring, "resident_bytes": resident, "graphs": self._let_go()}

    def close(self) -> None:
        """Parameters are what they were before; those from files are the files' bytes, read when they are touched.
        Graphs that were captured go on with the values that there are now."""
        if _graphs.capture_of(self._device) is not None:
            text = "stream_blocks: close() was called while a CUDA graph is captured"
            raise errors.make("capture", f"{text}; wanted it behind the capture")
        self._restore()

    def _restore(self) -> None:
        for block in self._blocks:
            _STREAMED.discard(block.module)
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        for block in self._blocks:
            for tensor in block.tensors:
                self._give_back(tensor)
        for tensor in getattr(self, "_resident", []):
            self._give_back(tensor)
        for module, name, buffer in self._buffers:
            module._buffers[name] = buffer
        self._buffers.clear()
        if self._calls.ring is not None:
            self._calls.ring.close()
        self._calls = self._walk = _Walk()
        self._captured = self._passes = None
        _graphs.let_go()

    def _give_back(self, tensor: BlockTensor) -> None:
        if tensor.stored is not None and self._files is not None:
            set_data(tensor, self._files.mapped(tensor.stored))
        elif all(module._parameters.get(name) is tensor.parameter for module, name in tensor.owners):
            if self._device.type == "cuda" and tensor.was.device.type == "cpu":
                tensor.was.copy_(tensor.rest)
            set_data(tensor, tensor.was)
            tensor.rest = tensor.was  # pinned memory goes, unless a graph holds it

    def __enter__(self) -> StreamedBlocks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_STREAMED: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # modules that stream now


def _pin(ring: HostRing) -> None:
    """The slots of a host ring are pinned memory until it closes; copies from them need not wait then."""
    stats = ring.stream.stats()
    runtime: Any = torch.cuda.cudart()
    code = int(runtime.cudaHostRegister(stats.memory, stats.memory_bytes, 0))
    if code != 0:
        raise errors.make(
            "cuda", f"stream_blocks: cudaHostRegister of {stats.memory_bytes} bytes gave {code}, wanted 0"
        )
    ring.before_close = lambda: runtime.cudaHostUnregister(stats.memory)


def _checked(blocks: Iterable[nn.Module], device: torch.device, slots: int, order: Sequence[int] | None) -> list[int]:
    modules = list(blocks)
    if not modules or not all(isinstance(m, nn.Module) for m in modules):
        raise errors.InvalidArgument(
            f"stream_blocks: blocks are {type(blocks).__name__} of {len(modules)}, wanted modules"
        )
    if len({id(m) for m in modules}) != len(modules):
        raise errors.InvalidArgument("stream_blocks: a module is there twice; wanted each once, and order=")
    if slots < 2:
        raise errors.InvalidArgument(f"stream_blocks: slots is {slots}, wanted 2 or more")
    if device.type not in ("cpu", "cuda"):
        raise errors.Unsupported(f"stream_blocks: device is {device}, wanted cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise errors.Unsupported(f"stream_blocks: device is {device}, but torch sees no GPU")
    if _graphs.capture_of(device) is not None:
        raise errors.make("capture", "stream_blocks was called while a CUDA graph is captured; wanted it before")
    steps = list(range(len(modules))) if order is None else list(order)
    if not steps or not all(isinstance(i, int) and 0 <= i < len(modules) for i in steps):
        raise errors.InvalidArgument(f"stream_blocks: order is {steps}, wanted numbers from 0 to {len(modules) - 1}")
    if any(m in _STREAMED for m in modules):
        raise errors.InvalidArgument("stream_blocks: a block streams already; wanted close() first")
    return steps


def _is_running(module: nn.Module) -> bool:
    """Whether a call of it is on the stack; one that an interrupt ended has told nobody."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "_call_impl" and frame.f_locals.get("self") is module:
            return True
        frame = frame.f_back
    return False


def _flat(value: object) -> list[object]:
    if isinstance(value, (list, tuple)):
        return [x for item in value for x in _flat(item)]
    if isinstance(value, dict):
        return [x for item in value.values() for x in _flat(item)]
    return [value]
