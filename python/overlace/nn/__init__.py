"""Layers split over ranks, on overlace's operators. Their state is that of the unsharded model."""

from overlace.nn.embedding import ShardedEmbeddingBag
from overlace.nn.linear import ColumnParallelLinear, RowParallelLinear, interleave_gate_up
from overlace.nn.moe import MoELayer

__all__ = ["ColumnParallelLinear", "MoELayer", "RowParallelLinear", "ShardedEmbeddingBag", "interleave_gate_up"]
