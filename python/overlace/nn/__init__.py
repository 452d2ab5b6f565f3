"""Tensor-parallel layers on overlace's operators. Their state is that of the unsharded model."""

from overlace.nn.linear import ColumnParallelLinear, RowParallelLinear

__all__ = ["ColumnParallelLinear", "RowParallelLinear"]
