"""Which elements of which parameters a rank takes part with in the exchange of its group, and what its group must do
after they were written (docs/design/co2.md)."""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard

from overlace.errors import InvalidArgument, Unsupported
from overlace.optim.groups import begun, hook_group

_SUPPORTED = (torch.float32, torch.bfloat16, torch.float16)
SPREAD_BYTES = 8 << 20  # of slices that are on their way inside a group at a time
Piece = tuple[torch.nn.Parameter, int, int]  # elements [begin, end) of each slice of a parameter


@dataclasses.dataclass(frozen=True)
class Part:
    """`values`: one-dimensional, in the parameter's own memory; `group_count`: elements of the whole parameter."""

    name: str
    values: torch.Tensor
    group_count: int


def _ddp_problem(model: torch.nn.parallel.DistributedDataParallel, inner: dist.ProcessGroup | None) -> str:
    wanted = 1 if inner is None else inner.size()
    ranks = dist.get_process_group_ranks(model.process_group)
    is_hooked, group = hook_group(model)
    if is_hooked:
        hooked = 1 if group is None else group.size()
        if hooked == wanted and len(ranks) > hooked and model.broadcast_buffers and any(True for _ in model.buffers()):
            return (
                "the model's broadcast_buffers is True, which sends buffers to all ranks at each forward, wanted: "
                "DistributedDataParallel(..., broadcast_buffers=False)"
            )
        if hooked == wanted:
            return ""
        return f"the model's co2_hook averages over {hooked} ranks, wanted: {wanted}, those of inner_group"
    if len(ranks) == wanted and (inner is None or ranks == dist.get_process_group_ranks(inner)):
        return ""
    return (
        f"the model is a DistributedDataParallel over {len(ranks)} ranks, whose gradients would be averaged over all "
        f"at each step; wanted: model.register_comm_hook(groups, overlace.optim.co2_hook) before CO2, or "
        f"DistributedDataParallel(process_group=inner_group) over {wanted} ranks"
    )


def statistics_of(model: torch.nn.Module) -> list[torch.Tensor]:
    """Running means and variances of BatchNorm, which each rank collects from its own batches."""
    norms = [m for m in model.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    return [t for norm in norms for t in (norm.running_mean, norm.running_var) if t is not None]


def buffers_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Plain buffers that a state_dict of the model has, BatchNorm's statistics among them."""
    return {
        f"{prefix}.{name}" if prefix else name: buffer
        for prefix, module in model.named_modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and name not in module._non_persistent_buffers_set and not isinstance(buffer, DTensor)
    }


def told(layout: Layout, group: dist.ProcessGroup) -> Layout:
    """The layout, with warnings to the program of what is taken and may not be what was meant."""
    if group.size() == 1:
        text = "CO2: outer_group has one rank, so this group trains alone and nothing is exchanged"
        warnings.warn(text, RuntimeWarning, stacklevel=3)
    for name, p in layout.parameters.items():
        if p.dtype != torch.float32:
            text = (
                f"CO2: parameter {name} is {p.dtype}; anchors are float32, and it is rounded from them at each boundary"
            )
            warnings.warn(text, RuntimeWarning, stacklevel=3)
            break
    return layout


class Layout:
    """One rank a group: whole parameters. The others change what is written below."""

    def __init__(self, model: torch.nn.Module, inner: dist.ProcessGroup | None) -> None:
        self.inner = inner
        self.model = model
        self.shards = 1 if inner is None else inner.size()
        if isinstance(model, torch.nn.parallel.DistributedDataParallel) and (problem := _ddp_problem(model, inner)):
            raise InvalidArgument(f"CO2: {problem}")
        self.settle()
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise InvalidArgument("CO2: the model has no parameter that requires a gradient, wanted at least one")
        for name, p in self.parameters.items():
            _check(name, p)
        # The library writes there: storage that a model gives up is kept.
        self.kept = {name: self.local(p) for name, p in self.parameters.items()}

    def settle(self) -> None:
        """Before parameters are looked at."""

    def local(self, p: torch.nn.Parameter) -> torch.Tensor:
        """What this rank keeps of a parameter in memory, with the memory of a later call where nothing moved."""
        values: Any = p.data  # a DTensor's are one
        return values.to_local() if isinstance(p, DTensor) else values

    def gradient(self, p: torch.nn.Parameter) -> torch.Tensor | None:
        return p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad

    def part(self, p: torch.nn.Parameter) -> torch.Tensor:
        """What of it this rank takes part with."""
        return self.local(p).view(-1)

    def parts(self) -> Iterator[Part]:
        for name, p in self.parameters.items():
            yield Part(name, self.part(p), p.numel())

    def spread(self) -> None:
        """After parts were written: the rest of the group sees them. Collective in the group."""

    def check_same(self) -> None:
        """Parameters added, unfrozen or made anew later would train in each group alone."""
        now = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        for name, p in now.items():
            if self.parameters.get(name) is not p:
                what = "is another object than" if name in self.parameters else "was not there, or not trainable,"
                raise InvalidArgument(
                    f"CO2: parameter {name} {what} when CO2 was made; make CO2 after whatever adds or replaces it"
                )
        for name in self.parameters:
            if name not in now:
                raise InvalidArgument(
                    f"CO2: parameter {name} is gone or frozen, which was trainable when CO2 was made; make CO2 again "
                    "after that"
                )

    def check_memory(self) -> None:
        self.settle()
        for name, p in self.parameters.items():
            if self.local(p).data_ptr() != self.kept[name].data_ptr():
                raise InvalidArgument(
                    f"CO2: parameter {name} has other memory than when CO2 was made; make CO2 after whatever moves it"
                )


def _check(name: str, p: torch.nn.Parameter) -> None:
    if p.device.type not in ("cpu", "cuda"):
        raise Unsupported(f"CO2: parameter {name} is on {p.device}; supported: CPU and CUDA tensors")
    if p.dtype not in _SUPPORTED:
        raise InvalidArgument(f"CO2: parameter {name} is {p.dtype}, wanted float32, bfloat16 or float16")
    if not isinstance(p, DTensor) and not p.is_contiguous():
        raise InvalidArgument(f"CO2: parameter {name} has strides {p.stride()}, wanted a contiguous one")


class Slices(Layout):
    """Every rank of a group has all parameters (DistributedDataParallel in the group): each takes a slice of each."""

    def part(self, p: torch.nn.Parameter) -> torch.Tensor:
        assert self.inner is not None
        begin, end = self._range(p, self.inner.rank())
        return self.local(p).view(-1)[begin:end]

    def _alike(self) -> list[torch.nn.Parameter]:
        """What all ranks of the group have."""
        return list(self.parameters.values())

    def _range(self, p: torch.nn.Parameter, shard: int) -> tuple[int, int]:
        cut = -(-p.numel() // self.shards)
        return min(shard * cut, p.numel()), min((shard + 1) * cut, p.numel())

    @torch.no_grad()
    def spread(self) -> None:
        # In the order of the parameters: a set of dtypes has another order in each process.
        for dtype in dict.fromkeys(p.dtype for p in self._alike()):
            buffers: list[torch.Tensor] = []  # of the first pieces, which are the longest: memory is taken once
            for pieces in self._pieces([p for p in self._alike() if p.dtype == dtype]):
                count = sum(end - begin for _, begin, end in pieces)
                if not buffers:
                    buffers = [
                        torch.zeros(count, dtype=dtype, device=self.local(pieces[0][0]).device)
                        for _ in range(self.shards + 1)
                    ]
                self._gather(pieces, [buffer[:count] for buffer in buffers])

    def _pieces(self, whole: list[torch.nn.Parameter]) -> Iterator[list[Piece]]:
        """So many at a time that what is sent and what comes take SPREAD_BYTES."""
        most = max(1, SPREAD_BYTES // ((1 + self.shards) * whole[0].element_size()))
        pieces: list[Piece] = []
        room = most
        for p in whole:
            cut, begin = -(-p.numel() // self.shards), 0
            while begin < cut:
                end = min(cut, begin + room)
                pieces.append((p, begin, end))
                room, begin = room - (end - begin), end
                if room == 0:
                    yield pieces
                    pieces, room = [], most
        if pieces:
            yield pieces

    def _gather(self, pieces: list[Piece], buffers: list[torch.Tensor]) -> None:
        mine, *everybody = buffers
        at = 0
        for p, begin, end in pieces:
            values = self.part(p)[begin:end]
            mine[at : at + values.numel()] = values
            at += end - begin
        dist.all_gather(everybody, mine, group=self.inner)
        at = 0
        for p, begin, end in pieces:
            for shard, theirs in enumerate(everybody):
                of_shard = slice(*self._range(p, shard))
                values = self.local(p).view(-1)[of_shard][begin:end]
                values.copy_(theirs[at : at + values.numel()])
            at += end - begin


class Zero1(Layout):
    """ZeroRedundancyOptimizer: each rank takes the parameters that it updates."""

    def __init__(self, model: torch.nn.Module, inner: dist.ProcessGroup, optimizer: Any) -> None:
        if getattr(optimizer, "_overlap_with_ddp", False):
            raise Unsupported("CO2: ZeroRedundancyOptimizer has overlap_with_ddp=True, supported: False")
        theirs = dist.get_process_group_ranks(optimizer.process_group)
        mine = dist.get_process_group_ranks(inner)
        if theirs != mine:
            raise InvalidArgument(
                f"CO2: ZeroRedundancyOptimizer has process_group of ranks {theirs}, wanted: {mine}, inner_group"
            )
        self._own = {id(p) for group in optimizer.optim.param_groups for p in group["params"]}
        super().__init__(model, inner)
        owned = [name for name, p in self.parameters.items() if id(p) in self._own]
        everybody: list = [None] * inner.size()
        dist.all_gather_object(everybody, owned, group=inner)
        self._owner = {name: rank for rank, names in enumerate(everybody) for name in names}
        for name in self.parameters:
            if name not in self._owner:
                raise InvalidArgument(
                    f"CO2: parameter {name} is not one of the ZeroRedundancyOptimizer's, wanted: all that require a "
                    "gradient"
                )

    def part(self, p: torch.nn.Parameter) -> torch.Tensor:
        return p.data.view(-1)[: p.numel() if id(p) in self._own else 0]

    @torch.no_grad()
    def spread(self) -> None:
        ranks = dist.get_process_group_ranks(self.inner)
        works = [
            begun(dist.broadcast(p.data, ranks[self._owner[name]], group=self.inner, async_op=True))
            for name, p in self.parameters.items()
        ]
        for work in works:
            work.wait()


def _is_split(p: torch.nn.Parameter) -> bool:
    return isinstance(p, DTensor) and isinstance(p.placements[0], Shard)


def _check_placement(name: str, p: DTensor, shards: int) -> None:
    if p.device_mesh.ndim != 1:
        raise InvalidArgument(
            f"CO2: parameter {name} has a mesh of {p.device_mesh.ndim} dimensions {tuple(p.device_mesh.shape)}, "
            "which would average gradients between groups at each step; wanted: the one-dimensional mesh of "
            "inner_group, such as fully_shard(model, mesh=DeviceMesh.from_group(inner_group, 'cpu'))"
        )
    if p.device_mesh.size() != shards:
        raise InvalidArgument(f"CO2: parameter {name} has a mesh of {p.device_mesh.size()} ranks, wanted: {shards}")
    if not isinstance(p.placements[0], Shard | Replicate):
        raise Unsupported(f"CO2: parameter {name} is placed {p.placements}; supported: Shard and Replicate")
    if not p.to_local().is_contiguous():
        raise InvalidArgument(f"CO2: parameter {name} has a local tensor that is not contiguous, wanted: contiguous")


class Parallel(Slices):
    """Tensor parallelism in the group: what is split is a rank's own, what all ranks have is taken in slices."""

    def __init__(self, model: torch.nn.Module, inner: dist.ProcessGroup) -> None:
        super().__init__(model, inner)
        for name, p in self.parameters.items():
            if isinstance(p, DTensor):
                _check_placement(name, p, self.shards)

    def part(self, p: torch.nn.Parameter) -> torch.Tensor:
        return self.local(p).view(-1) if _is_split(p) else super().part(p)

    def _alike(self) -> list[torch.nn.Parameter]:
        return [p for p in self.parameters.values() if not _is_split(p)]


def _sharded_modules(model: torch.nn.Module) -> list[Any]:
    """Those of fully_shard. Whoever has one has imported it."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return [] if fsdp is None else [module for module in model.modules() if isinstance(module, fsdp.FSDPModule)]


class Sharded(Layout):
    """DTensors whose local tensors are the shards of the group (fully_shard)."""

    def __init__(self, model: torch.nn.Module, inner: dist.ProcessGroup) -> None:
        super().__init__(model, inner)
        for name, p in self.parameters.items():
            if not isinstance(p, DTensor):
                raise Unsupported(
                    f"CO2: parameter {name} is a plain tensor in a model of fully_shard; supported: all of them "
                    "sharded over inner_group"
                )
            _check_placement(name, p, self.shards)
            if not _is_split(p):
                raise Unsupported(f"CO2: parameter {name} is placed {p.placements} by fully_shard; supported: Shard")

    def settle(self) -> None:
        """Between steps a model may still hold gathered parameters: shards are where values are."""
        for module in _sharded_modules(self.model):
            module.reshard()


def layout_of(model: torch.nn.Module, inner: dist.ProcessGroup | None, optimizer: torch.optim.Optimizer) -> Layout:
    """What fits the model and its inner optimizer. Collective in the group. Throws InvalidArgument, Unsupported."""
    # Whoever has one has imported it. An import here would give its functions the group of now as a default, for ever.
    zero = sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer")
    alone = inner is None or inner.size() == 1
    if zero is not None and isinstance(optimizer, zero.ZeroRedundancyOptimizer):
        if inner is None:
            raise InvalidArgument("CO2: inner_optimizer is a ZeroRedundancyOptimizer, wanted: its group as inner_group")
        return Zero1(model, inner, optimizer)
    if any(isinstance(p, DTensor) for p in model.parameters()):
        if inner is None:
            raise InvalidArgument(
                "CO2: the model's parameters are DTensors, wanted: the group of their mesh as inner_group"
            )
        is_all_split = all(_is_split(p) for p in model.parameters() if p.requires_grad)
        return Sharded(model, inner) if is_all_split or _sharded_modules(model) else Parallel(model, inner)
    return Layout(model, None) if alone else Slices(model, inner)
