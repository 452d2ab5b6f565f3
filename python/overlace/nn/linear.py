"""Linear layers whose weight is split over the ranks of a group."""

from __future__ import annotations

from typing import cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from overlace import ops
from overlace.context import context_of, process_group
from overlace.errors import InvalidArgument
from overlace.ops import replicated


def interleave_gate_up(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The rows of both interleaved, gate first: what activation="swiglu" takes. gate, up: (N, ...), weights as
    nn.Linear has them, or biases (N). Gives (2 N, ...), a copy."""
    if gate.shape != up.shape:
        raise InvalidArgument(
            f"interleave_gate_up: gate is {list(gate.shape)}, up is {list(up.shape)}, wanted one shape"
        )
    return torch.stack((gate, up), 1).flatten(0, 1)


def _mesh_of(group: object) -> DeviceMesh:
    found = process_group(group)
    if isinstance(group, DeviceMesh):
        return group
    kind = "cuda" if context_of(found).is_gpu else "cpu"
    return DeviceMesh.from_group(found, kind)


def _distributed(full: torch.Tensor, mesh: DeviceMesh, placement: Placement) -> nn.Parameter:
    """This rank's part of what all ranks hold alike; nothing is sent."""
    return nn.Parameter(distribute_tensor(full.detach(), mesh, [placement], src_data_rank=None), full.requires_grad)


class _ParallelLinear(nn.Module):
    """Parameters are DTensors: `state_dict()["weight"].full_tensor()` is the weight of nn.Linear, on any number of
    ranks, and initial values are those that nn.Linear draws from the same seed."""

    _weight: Placement
    _bias: Placement
    _split: str  # which of the two sizes is split

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        group: object = None,
        sequence_parallel: bool = True,
        sequence_dim: int = 0,
        plan: str = "",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self._take(nn.Linear(in_features, out_features, bias, device=device, dtype=dtype), group)
        self.sequence_parallel, self.sequence_dim, self.plan = sequence_parallel, sequence_dim, plan

    def _take(self, linear: nn.Linear, group: object) -> None:
        mesh = _mesh_of(group)
        size = getattr(linear, self._split)
        if size % mesh.size() != 0:
            raise InvalidArgument(
                f"{type(self).__name__}: {self._split} is {size}, wanted a multiple of {mesh.size()} ranks"
            )
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.group_name: str = mesh.get_group().group_name
        self.weight = _distributed(linear.weight, mesh, self._weight)
        bias = None if linear.bias is None else _distributed(linear.bias, mesh, self._bias)
        self.register_parameter("bias", bias)

    @classmethod
    def from_module(
        cls,
        linear: nn.Linear,
        *,
        group: object = None,
        sequence_parallel: bool = True,
        sequence_dim: int = 0,
        plan: str = "",
    ) -> _ParallelLinear:
        """Takes this rank's part of a layer that all ranks hold alike."""
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        layer._take(linear, group)
        layer.sequence_parallel, layer.sequence_dim, layer.plan = sequence_parallel, sequence_dim, plan
        return layer

    def _local(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        weight, bias = self.weight, cast("torch.Tensor | None", self.bias)
        return (
            weight.to_local() if isinstance(weight, DTensor) else weight,
            bias.to_local() if isinstance(bias, DTensor) else bias,
        )

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"group='{self.group_name}', sequence_parallel={self.sequence_parallel}"
        )


class ColumnParallelLinear(_ParallelLinear):
    """nn.Linear with its outputs split: out_features / ranks columns of y = x W^T + b on each rank.

    x: (..., in_features); with sequence_parallel this rank's part along sequence_dim, and AllGather and GEMM are one
    operator; without it the whole x, which all ranks hold alike, and the gradient of x is all-reduced.
    Gives (..., out_features / ranks), whole along sequence_dim. The gathered x is kept for the weight's gradient;
    `layer.keep_gathered = False` keeps this rank's part of it and gathers again in backward. `layer.activation` is that
    of overlace.ops.ag_gemm: with "swiglu" and a weight of interleave_gate_up, out_features / ranks / 2 columns.
    """

    _weight, _bias, _split = Shard(0), Shard(0), "out_features"
    keep_gathered = True
    activation = "none"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self._local()
        if self.sequence_parallel:
            return ops.ag_gemm(
                x,
                weight.t(),
                group=self.group_name,
                biases=bias,
                gather_dim=self.sequence_dim,
                keep_gathered=self.keep_gathered,
                activation=self.activation,
                plan=self.plan,
            )
        activate = ops.activation_of(ops.ag_gemm.__name__, self.activation, [weight.t()])
        out = _SharedInput.apply(x, weight, bias, self.group_name)
        return out if activate is None else activate(out)


class RowParallelLinear(_ParallelLinear):
    """nn.Linear with its inputs split: each rank has in_features / ranks of them, the products are summed.

    x: (..., in_features / ranks), as a ColumnParallelLinear gives it.
    Gives (..., out_features): with sequence_parallel this rank's part along sequence_dim, by GEMM and ReduceScatter in
    one operator; without it the whole, the same on all ranks, by GEMM and AllReduce. The bias is added once.
    """

    _weight, _bias, _split = Shard(1), Replicate(), "in_features"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self._local()
        if self.sequence_parallel:
            return ops.gemm_rs(
                x, weight.t(), group=self.group_name, bias=bias, scatter_dim=self.sequence_dim, plan=self.plan
            )
        return ops.gemm_ar(x, weight.t(), group=self.group_name, bias=bias, plan=self.plan)


class _SharedInput(torch.autograd.Function):
    """A linear layer on an input that all ranks hold alike: backward sums over them, as GEMM and AllReduce in one."""

    @staticmethod
    def forward(ctx, x, weight, bias, group_name):
        ctx.save_for_backward(x, weight)
        ctx.group_name, ctx.has_bias = group_name, bias is not None
        return nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        flat, rows = grad.flatten(0, -2), replicated(x, ctx.group_name).flatten(0, -2)
        return (
            ops.gemm_ar(grad, weight, group=ctx.group_name) if needs_x else None,
            flat.t() @ rows if needs_weight else None,
            flat.sum(0) if needs_bias and ctx.has_bias else None,
            None,
        )
