"""Styles for torch's parallelize_module, in eager mode: a linear layer and its collective become one operator.

They are torch's own styles where a layout has no collective that could hide behind the product, or where the module is
no nn.Linear. The mesh's group needs overlace.init(mesh) first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor import parallel as torch_parallel
from torch.distributed.tensor.parallel import SequenceParallel

from overlace import ops
from overlace.context import context_of, group_name

__all__ = ["ColwiseParallel", "RowwiseParallel", "SequenceParallel"]


def _local(x: torch.Tensor, placement: Placement) -> torch.Tensor:
    """This rank's part of a DTensor; a plain tensor is one already."""
    if not isinstance(x, DTensor):
        return x
    return x.redistribute(placements=[placement]).to_local()


def _parts_of(module: nn.Linear) -> tuple[torch.Tensor, torch.Tensor | None]:
    weight, bias = cast(DTensor, module.weight), cast("DTensor | None", module.bias)
    return weight.to_local().t(), None if bias is None else bias.to_local()


def _replace(
    module: nn.Linear,
    mesh: DeviceMesh,
    placements: dict[str, Placement],
    src_data_rank: int | None,
    forward: Callable[[torch.Tensor], torch.Tensor],
) -> nn.Module:
    """Splits the parameters and puts `forward` in place of the module's own."""
    context_of(mesh)  # raises where there is no team

    def partition(_name: str, part: nn.Module, device_mesh: DeviceMesh) -> None:
        for name, parameter in list(part.named_parameters(recurse=False)):
            split = distribute_tensor(parameter.detach(), device_mesh, [placements[name]], src_data_rank=src_data_rank)
            part.register_parameter(name, nn.Parameter(split, parameter.requires_grad))

    distribute_module(module, mesh, partition)
    module.forward = forward  # type: ignore[method-assign, assignment]  # as torch's styles do
    return module


class ColwiseParallel(torch_parallel.ColwiseParallel):
    """Like torch's. With input_layouts=Shard(d), d any dimension but the last, AllGather and GEMM are one operator."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        (given,), (wanted,) = self.input_layouts, self.output_layouts
        if not (isinstance(module, nn.Linear) and isinstance(given, Shard) and wanted == Shard(-1)):
            return super()._apply(module, device_mesh)
        group = group_name(device_mesh)

        def forward(x: torch.Tensor) -> torch.Tensor:
            weight, bias = _parts_of(module)
            y = ops.ag_gemm(_local(x, given), weight, group=group, biases=bias, gather_dim=given.dim)
            return y if self.use_local_output else DTensor.from_local(y, device_mesh, [Shard(-1)], run_check=False)

        return _replace(module, device_mesh, {"weight": Shard(0), "bias": Shard(0)}, self.src_data_rank, forward)


class RowwiseParallel(torch_parallel.RowwiseParallel):
    """Like torch's. With output_layouts=Shard(d), d any dimension but the last, GEMM and ReduceScatter are one
    operator, with Replicate() GEMM and AllReduce."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        (given,), (wanted,) = self.input_layouts, self.output_layouts
        if not (isinstance(module, nn.Linear) and given == Shard(-1) and isinstance(wanted, (Shard, Replicate))):
            return super()._apply(module, device_mesh)
        group = group_name(device_mesh)

        def forward(x: torch.Tensor) -> torch.Tensor:
            weight, bias = _parts_of(module)
            mine = _local(x, Shard(x.dim() - 1))
            if isinstance(wanted, Shard):
                y = ops.gemm_rs(mine, weight, group=group, bias=bias, scatter_dim=wanted.dim)
            else:
                y = ops.gemm_ar(mine, weight, group=group, bias=bias)
            return y if self.use_local_output else DTensor.from_local(y, device_mesh, [wanted], run_check=False)

        return _replace(module, device_mesh, {"weight": Shard(1), "bias": Replicate()}, self.src_data_rank, forward)
