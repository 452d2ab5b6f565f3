"""Tensor-parallel layers on overlace's operators. Their state is that of the unsharded model."""

from overlace.nn.linear import ColumnParallelLinear, RowParallelLinear, interleave_gate_up

__all__ = ["ColumnParallelLinear", "RowParallelLinear", "interleave_gate_up"]
