"""Blocks of a model as they stream: their modules, and their parameters with where each lies."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import nn

from overlace import errors
from overlace.offload import _native
from overlace.offload._files import Files, Stored
from overlace.offload._ring import Weight


@dataclass
class BlockTensor:
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
class ModelBlock:
    name: str
    module: nn.Module
    tensors: list[BlockTensor] = field(default_factory=list)
    depth: int = 0  # calls of it that run
    streamed: int = -1  # number in the ring; -1: resident
    is_again: bool = False  # backward computes it once more
    keeping: torch.autograd.graph.saved_tensors_hooks | None = None  # while it runs, where backward will follow


def blocks_of(blocks: Iterable[nn.Module], trained_on: torch.device | None, prefix: str | None) -> list[ModelBlock]:
    """Parameters of the blocks, each once. Where some are trained, without those."""
    found: list[ModelBlock] = []
    known: dict[int, BlockTensor] = {}
    for i, module in enumerate(blocks):
        block = ModelBlock(f"{prefix or 'blocks.'}{i}", module)
        here: dict[int, BlockTensor] = {}
        for path, owner in module.named_modules(remove_duplicate=False):
            for attribute, parameter in owner._parameters.items():
                if parameter is None:
                    continue
                if trained_on is not None and parameter.requires_grad:
                    _check_trained(f"{block.name}: {attribute}", parameter, trained_on)
                    continue
                tensor = here.get(id(parameter)) or known.get(id(parameter))
                if tensor is None:
                    tensor = BlockTensor([], [], parameter, parameter.data, parameter.data)
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


def locate(blocks: list[ModelBlock], files: Files, prefix: str | None, rename: Callable[[str], str]) -> None:
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


def check_layout(block: ModelBlock, tensor: BlockTensor) -> None:
    data = tensor.was
    if tensor.stored is None and data.is_meta:
        text = f"stream_blocks: {block.name}: {tensor.names[0]} is on the meta device"
        raise errors.InvalidArgument(f"{text}; wanted values, or source= files")
    is_dense = data.layout == torch.strided and torch.ops.aten.is_non_overlapping_and_dense(data)
    if type(data) is not torch.Tensor or not is_dense:
        text = f"stream_blocks: {block.name}: {tensor.names[0]} is {type(data).__name__} of strides"
        raise errors.Unsupported(f"{text} {tuple(data.stride())}; wanted a plain dense tensor")


def tied_of(blocks: list[ModelBlock]) -> list[BlockTensor]:
    """What several blocks use: it stays on the device, once."""
    seen: dict[int, int] = collections.Counter(id(t) for b in blocks for t in b.tensors)
    return list({id(t): t for b in blocks for t in b.tensors if seen[id(t)] > 1}.values())


def weight_of(tensor: BlockTensor) -> Weight:
    rest, stored = tensor.rest, tensor.stored
    piece = (
        _native.Piece(stored.bytes, stored.path, stored.offset)
        if stored is not None
        else _native.Piece(tensor.bytes, memory=rest.data_ptr())
    )
    return Weight(tensor.names[0], rest.dtype, tuple(rest.shape), tuple(rest.stride()), piece)


def set_data(tensor: BlockTensor, data: torch.Tensor) -> None:
    if tensor.parameter.is_meta and not data.is_meta:  # it cannot be given memory
        tensor.parameter = nn.Parameter(data, requires_grad=tensor.parameter.requires_grad)
        for module, attribute in tensor.owners:
            module._parameters[attribute] = tensor.parameter
    else:
        tensor.parameter.data = data


def version_of(tensor: BlockTensor) -> int:
    return 0 if tensor.parameter.is_inference() else tensor.parameter._version
