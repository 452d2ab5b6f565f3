"""stream_blocks: the blocks of any nn.ModuleList use weights that pass through slots."""

from __future__ import annotations

import collections
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import FrameType

import torch
from torch import nn

from overlace import errors
from overlace.offload import _native
from overlace.offload._backward import Passes, both_ways, is_in_backward
from overlace.offload._files import Files, Stored
from overlace.offload._ring import Block, CudaLane, DeviceRing, HostRing, Ring, Weight


@dataclass
class _Tensor:
    """A parameter of a block, under all names that it has there."""

    names: list[str]
    owners: list[tuple[nn.Module, str]]
    parameter: nn.Parameter
    was: torch.Tensor  # its data before
    rest: torch.Tensor  # its data while its block does not run
    stored: Stored | None = None
    version: int = 0

    @property
    def bytes(self) -> int:
        return self.rest.numel() * self.rest.element_size()


@dataclass
class _Block:
    name: str
    module: nn.Module
    tensors: list[_Tensor] = field(default_factory=list)
    depth: int = 0  # calls of it that run
    streamed: int = -1  # number in the ring; -1: resident
    is_again: bool = False  # backward computes it once more
    keeping: torch.autograd.graph.saved_tensors_hooks | None = None  # while it runs, where backward will follow


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
        self._ring: Ring | None = None
        self._passes: Passes | None = None  # where gradients pass through the blocks
        self._backward = backward
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._in_use: collections.deque[tuple[_Block, list[bool]]] = collections.deque()  # [False]: it runs
        self._position = 0  # in the order
        self._buffers: list[tuple[nn.Module, str, torch.Tensor]] = []
        self._files = None if source == "host" else Files(source)
        self._order = _checked(blocks, device, slots, order)
        if backward and self._order.count(self._order[0]) > 1:
            text = f"stream_blocks: order is {self._order} with backward=True"
            raise errors.InvalidArgument(f"{text}; wanted its first block only once, as it begins a pass")
        self._blocks = _found(blocks, device if backward else None, prefix)
        if self._files is not None:
            _locate(self._blocks, self._files, prefix, rename or str)
        for block in self._blocks:
            for tensor in block.tensors:
                _check_layout(block, tensor)
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
        shared = _shared(self._blocks)
        for tensor in shared:
            self._make_resident(tensor)
        for block in self._blocks:
            block.tensors = [t for t in block.tensors if all(t is not other for other in shared)]
            for module in block.module.modules():
                for name, buffer in module._buffers.items():
                    if buffer is not None and buffer.device != self._device:
                        self._buffers.append((module, name, buffer))
                        module._buffers[name] = buffer.to(self._device)
        self._resident = [*shared, *self._choose_resident()]

    def _choose_resident(self) -> list[_Tensor]:
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

    def _rest(self, tensor: _Tensor) -> None:
        """Takes the parameter's data to where they rest."""
        if tensor.stored is not None and self._files is not None:
            tensor.rest = self._files.mapped(tensor.stored)
        elif self._device.type == "cuda":
            tensor.rest = tensor.was.to("cpu").pin_memory()
        _set(tensor, tensor.rest)
        tensor.version = _version(tensor)

    def _make_resident(self, tensor: _Tensor) -> None:
        at = tensor.rest.to(self._device)
        if tensor.stored is not None and at.data_ptr() == tensor.rest.data_ptr():
            at = at.clone()  # of the file: memory of its own
        tensor.rest = at
        _set(tensor, at)

    def _open(self) -> None:
        numbered = [Block(b.name, [_weight(t) for t in b.tensors]) for b in self._streamed]
        forward = [self._blocks[i].streamed for i in self._order if self._blocks[i].streamed >= 0]
        order = both_ways(forward) if self._backward else forward
        if order and self._device.type == "cpu":
            self._ring = HostRing(numbered, order, self._slots, self._engine, self._timeout_s)
        elif order:
            source: HostRing | Callable[[int], list[torch.Tensor]]
            source = [[t.rest for t in b.tensors] for b in self._streamed].__getitem__
            if self._files is not None:
                ring = HostRing(numbered, order, self._slots + 1, self._engine, self._timeout_s, is_fixed=False)
                _pin(ring)
                source = ring
            self._ring = DeviceRing(numbered, order, self._slots, self._device, CudaLane(self._device), source)
        if self._ring is not None and self._backward:
            self._passes = Passes(self._ring, forward, [block.name for block in self._streamed])
        _STREAMED.update(block.module for block in self._blocks)
        for i in sorted(set(self._order)):
            block = self._blocks[i]
            before, after = self._hooks_of(i)
            self._hooks.append(block.module.register_forward_pre_hook(before, with_kwargs=True, prepend=True))
            self._hooks.append(block.module.register_forward_hook(after, always_call=True))

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
        self._check_call(block, args, kwargs)
        if self._passes is not None and is_in_backward():
            self._begin_again(block, self._passes)
            return
        expected = self._order[self._position]
        if index == self._order[0] and (self._position != 0 or self._in_use):
            for other in self._blocks:
                if other.depth > 0 and _is_running(other.module):
                    text = f"stream_blocks: {block.name} was called inside {other.name}"
                    raise errors.make("desync", f"{text}, wanted {self._blocks[expected].name}, the next of the order")
            self._restart()
        elif index != expected:
            wanted, first = self._blocks[expected].name, self._blocks[self._order[0]].name
            text = f"stream_blocks: {block.name} was called, wanted {wanted}, the next of the order"
            raise errors.make("desync", text if wanted == first else f"{text}, or {first}, its first")
        if self._position == 0 and (self._take_changes() or not self._begin_pass()):
            self._restart()
        self._check_parameters(block)
        if block.streamed >= 0:
            ring = self._passes or self._ring
            assert ring is not None  # a block streams through it
            self._use(block, ring.acquire(block.streamed))
            self._in_use.append((block, [False]))
        block.depth = 1
        self._position = (self._position + 1) % len(self._order)

    def _begin_pass(self) -> bool:
        return self._passes is None or self._passes.begin()

    def _begin_again(self, block: _Block, passes: Passes) -> None:
        """Checkpointing calls blocks in backward, from the last to the first."""
        self._check_parameters(block)
        if block.streamed >= 0:
            self._use(block, passes.again(block.streamed))
        block.depth, block.is_again = 1, True

    def _use(self, block: _Block, views: list[torch.Tensor]) -> None:
        for tensor, view in zip(block.tensors, views, strict=True):
            _set(tensor, view)
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
        next(state for other, state in self._in_use if other is block)[0] = True
        written = [t for t in block.tensors if _version(t) != t.version]
        self._put_back(block)
        # A block that ran inside another one waits for it.
        while self._ring is not None and self._in_use and self._in_use[0][1][0]:
            self._ring.release(self._in_use.popleft()[0].streamed)
        if written:
            name = f"{block.name}: {written[0].names[0]}"
            raise errors.InvalidArgument(f"stream_blocks: {name} was written while its block ran; slots are only read")

    @staticmethod
    def _stop_keeping(block: _Block) -> None:
        if block.keeping is not None:
            block.keeping.__exit__()
            block.keeping = None

    def _put_back(self, block: _Block) -> None:
        for tensor in block.tensors:
            _set(tensor, tensor.rest)
            tensor.version = _version(tensor)

    def _restart(self) -> None:
        for block, _ in self._in_use:
            block.depth = 0
            self._put_back(block)
        for block in reversed(self._blocks):
            block.depth, block.is_again = 0, False
            self._stop_keeping(block)
        self._in_use.clear()
        self._position = 0
        if self._ring is not None:
            self._ring.restart()
        if self._passes is not None:
            self._passes.restart()

    def _take_changes(self) -> bool:
        """Between two passes host memory may have got other values: what was read ahead of them is old."""
        changed = [t for b in self._streamed for t in b.tensors if _version(t) != t.version]
        for tensor in changed:
            if tensor.stored is not None:
                text = f"stream_blocks: {tensor.names[0]} was written, but it streams from {tensor.stored.path}"
                raise errors.InvalidArgument(f'{text}; wanted source="host", or no writes')
            tensor.version = _version(tensor)
        return bool(changed)

    # What is refused.

    def _check_call(self, block: _Block, args: tuple, kwargs: dict) -> None:
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
        if self._device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            text = f"stream_blocks: {block.name} was called while a CUDA graph is captured, which is not there yet"
            raise errors.Unsupported(text)
        if tensors and tensors[0].device.type != self._device.type:
            text = f"stream_blocks: {block.name} was given a tensor on {tensors[0].device}, wanted {self._device}"
            raise errors.InvalidArgument(text)

    def _check_parameters(self, block: _Block) -> None:
        for tensor in block.tensors:
            for (module, attribute), name in zip(tensor.owners, tensor.names, strict=True):
                parameter = module._parameters.get(attribute)
                if parameter is not tensor.parameter or parameter.data_ptr() != tensor.rest.data_ptr():
                    text = f"stream_blocks: {block.name}: {name} was replaced after wrapping"
                    raise errors.InvalidArgument(f"{text}; wanted close(), the change, then stream_blocks again")
            if block.streamed >= 0 and _version(tensor) != tensor.version:
                text = f"stream_blocks: {block.name}: {tensor.names[0]} was written in the middle of a pass"
                raise errors.InvalidArgument(f"{text}; wanted it before {self._blocks[self._order[0]].name}")

    # What is known and how it ends.

    def stats(self) -> dict[str, float]:
        """What has streamed: blocks, bytes, waits, waited_s, filled_s, memory_bytes (of the slots); resident_bytes."""
        of_ring = self._ring.stats() if self._ring is not None else {"blocks": 0, "bytes": 0, "memory_bytes": 0}
        return {**of_ring, "resident_bytes": sum(t.bytes for t in self._resident)}

    def close(self) -> None:
        """Parameters are what they were before; those from files are the files' bytes, read when they are touched."""
        self._restore()

    def _restore(self) -> None:
        for block in self._blocks:
            _STREAMED.discard(block.module)
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._in_use.clear()
        for block in self._blocks:
            for tensor in block.tensors:
                self._give_back(tensor)
        for tensor in getattr(self, "_resident", []):
            self._give_back(tensor)
        for module, name, buffer in self._buffers:
            module._buffers[name] = buffer
        self._buffers.clear()
        if self._ring is not None:
            self._ring.close()
            self._ring = self._passes = None

    def _give_back(self, tensor: _Tensor) -> None:
        if tensor.stored is not None and self._files is not None:
            _set(tensor, self._files.mapped(tensor.stored))
        elif all(module._parameters.get(name) is tensor.parameter for module, name in tensor.owners):
            if self._device.type == "cuda" and tensor.was.device.type == "cpu":
                tensor.was.copy_(tensor.rest)
            _set(tensor, tensor.was)

    def __enter__(self) -> StreamedBlocks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_STREAMED: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # modules that stream now


def _pin(ring: HostRing) -> None:
    """The slots of a host ring are pinned memory until it closes; copies from them need not wait then."""
    stats = ring.stream.stats()
    code = int(torch.cuda.cudart().cudaHostRegister(stats.memory, stats.memory_bytes, 0))
    if code != 0:
        raise errors.make(
            "cuda", f"stream_blocks: cudaHostRegister of {stats.memory_bytes} bytes gave {code}, wanted 0"
        )
    ring.before_close = lambda: torch.cuda.cudart().cudaHostUnregister(stats.memory)


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
    steps = list(range(len(modules))) if order is None else list(order)
    if not steps or not all(isinstance(i, int) and 0 <= i < len(modules) for i in steps):
        raise errors.InvalidArgument(f"stream_blocks: order is {steps}, wanted numbers from 0 to {len(modules) - 1}")
    if any(m in _STREAMED for m in modules):
        raise errors.InvalidArgument("stream_blocks: a block streams already; wanted close() first")
    return steps


def _found(blocks: Iterable[nn.Module], trained_on: torch.device | None, prefix: str | None) -> list[_Block]:
    """Parameters of the blocks, each once. Where some are trained, without those."""
    found: list[_Block] = []
    known: dict[int, _Tensor] = {}
    for i, module in enumerate(blocks):
        block = _Block(f"{prefix or 'blocks.'}{i}", module)
        here: dict[int, _Tensor] = {}
        for path, owner in module.named_modules(remove_duplicate=False):
            for attribute, parameter in owner._parameters.items():
                if parameter is None:
                    continue
                if trained_on is not None and parameter.requires_grad:
                    _check_trained(f"{block.name}: {attribute}", parameter, trained_on)
                    continue
                tensor = here.get(id(parameter)) or known.get(id(parameter))
                if tensor is None:
                    tensor = _Tensor([], [], parameter, parameter.data, parameter.data)
                here[id(parameter)] = known[id(parameter)] = tensor
                if all(o is not owner or a != attribute for o, a in tensor.owners):
                    tensor.names.append(f"{i}.{path}.{attribute}" if path else f"{i}.{attribute}")
                    tensor.owners.append((owner, attribute))
        block.tensors = list(here.values())
        found.append(block)
    return found


def _check_trained(name: str, parameter: nn.Parameter, device: torch.device) -> None:
    if parameter.device.type != device.type:
        text = f"stream_blocks: {name} wants a gradient and is on {parameter.device}, wanted {device}"
        raise errors.InvalidArgument(f"{text}: what is trained does not stream")


def _locate(blocks: list[_Block], files: Files, prefix: str | None, rename: Callable[[str], str]) -> None:
    """Where the parameters lie in the files."""
    first = next((t for b in blocks for t in b.tensors), None)
    if first is None:
        return
    before = files.prefix_of(rename(first.names[0]), prefix)
    for i, block in enumerate(blocks):
        block.name = f"{before}{i}"
        for tensor in block.tensors:
            names = [before + rename(name) for name in tensor.names]
            listed = [files.tensors[name] for name in names if name in files.tensors]
            if not listed:
                raise errors.make("corrupt", f"{files.text}: tensor {names[0]!r} is missing")
            tensor.stored = stored = listed[0]
            wanted = (tuple(tensor.parameter.shape), tensor.parameter.dtype)
            if (stored.shape, stored.dtype) != wanted:
                text = f"{stored.path}: tensor {stored.name!r} is {stored.dtype} {stored.shape}"
                raise errors.make("corrupt", f"{text}, wanted {wanted[1]} {wanted[0]}")
            if stored.offset % stored.dtype.itemsize:
                text = f"{stored.path}: tensor {stored.name!r} begins at byte {stored.offset}"
                raise errors.Unsupported(f"{text}, wanted a multiple of {stored.dtype.itemsize}")


def _check_layout(block: _Block, tensor: _Tensor) -> None:
    data = tensor.was
    if tensor.stored is None and data.is_meta:
        text = f"stream_blocks: {block.name}: {tensor.names[0]} is on the meta device"
        raise errors.InvalidArgument(f"{text}; wanted values, or source= files")
    is_dense = data.layout == torch.strided and torch.ops.aten.is_non_overlapping_and_dense(data)
    if type(data) is not torch.Tensor or not is_dense:
        text = f"stream_blocks: {block.name}: {tensor.names[0]} is {type(data).__name__} of strides"
        raise errors.Unsupported(f"{text} {tuple(data.stride())}; wanted a plain dense tensor")


def _shared(blocks: list[_Block]) -> list[_Tensor]:
    """What several blocks use: it stays on the device, once."""
    seen: dict[int, int] = collections.Counter(id(t) for b in blocks for t in b.tensors)
    return list({id(t): t for b in blocks for t in b.tensors if seen[id(t)] > 1}.values())


def _weight(tensor: _Tensor) -> Weight:
    rest, stored = tensor.rest, tensor.stored
    piece = (
        _native.Piece(stored.bytes, stored.path, stored.offset)
        if stored is not None
        else _native.Piece(tensor.bytes, memory=rest.data_ptr())
    )
    return Weight(tensor.names[0], rest.dtype, tuple(rest.shape), tuple(rest.stride()), piece)


def _set(tensor: _Tensor, data: torch.Tensor) -> None:
    if tensor.parameter.is_meta and not data.is_meta:  # it cannot be given memory
        tensor.parameter = nn.Parameter(data, requires_grad=tensor.parameter.requires_grad)
        for module, attribute in tensor.owners:
            module._parameters[attribute] = tensor.parameter
    else:
        tensor.parameter.data = data


def _version(tensor: _Tensor) -> int:
    return 0 if tensor.parameter.is_inference() else tensor.parameter._version


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
