"""GraphSAGE, GCN and GAT in plain torch operations, with the formulas of PyG's layers.

A layer is called with x (num_src, in), edge_index (2, num_edges) of ids below num_src, from and to, and num_dst: the
first num_dst rows are the destinations whose results are returned.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from overlace import errors
from overlace.gnn.loader import Batch

if TYPE_CHECKING:
    from overlace.gnn.halo import SparseHalo  # which wants the operators


def _sum_at(values: Tensor, index: Tensor, count: int) -> Tensor:
    """Sums of rows by destination: (count, ...)."""
    return values.new_zeros((count, *values.shape[1:])).index_add_(0, index, values)


def _in_degrees(target: Tensor, count: int, like: Tensor) -> Tensor:
    """Edges that lead to each destination, of the type of `like`. NOTE: torch.bincount waits for a GPU.

    Counted in fp32 or fp64: a sum of ones in bf16 ends at 256, one in fp16 at 2048.
    """
    kind = torch.promote_types(like.dtype, torch.float32)
    ones = like.new_ones(1, dtype=kind).expand(len(target))
    return like.new_zeros(count, dtype=kind).index_add_(0, target, ones).to(like.dtype)


class SAGEConv(nn.Module):
    """W_l mean(x_j) + b + W_r x_i over in-neighbours j (GraphSAGE, arXiv 1706.02216)."""

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.lin_l = nn.Linear(in_dim, out_dim)
        self.lin_r = nn.Linear(in_dim, out_dim, bias=False)

    def forward(self, x: Tensor, edge_index: Tensor, num_dst: int) -> Tensor:
        source, target = edge_index
        total = _sum_at(x[source], target, num_dst)
        count = _in_degrees(target, num_dst, x).clamp(min=1)
        return self.lin_l(total / count[:, None]) + self.lin_r(x[:num_dst])


class GCNConv(nn.Module):
    """D^-1/2 (A + I) D^-1/2 x W + b, D the in-degrees of A + I (GCN, arXiv 1609.02907)."""

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.lin = nn.Linear(in_dim, out_dim, bias=False)
        self.bias = nn.Parameter(torch.zeros(out_dim))

    def forward(self, x: Tensor, edge_index: Tensor, num_dst: int) -> Tensor:
        source, target = edge_index
        return self.around(x, _in_degrees(target, len(x), x), lambda h: _sum_at(h[source], target, num_dst))

    def around(self, x: Tensor, in_degrees: Tensor, sum_of: Callable[[Tensor], Tensor]) -> Tensor:
        """The layer, with sums over in-neighbours by `sum_of`, from (num_src, out) to (num_dst, out)."""
        scale = (in_degrees + 1).rsqrt()[:, None]
        h = self.lin(x) * scale
        total = sum_of(h)
        return (total + h[: len(total)]) * scale[: len(total)] + self.bias


class GATConv(nn.Module):
    """Attention over in-neighbours and the vertex itself, heads side by side (GAT, arXiv 1710.10903)."""

    def __init__(self, in_dim: int, out_dim: int, heads: int = 1) -> None:
        super().__init__()
        self.heads, self.out_dim = heads, out_dim
        self.lin = nn.Linear(in_dim, heads * out_dim, bias=False)
        self.att_src = nn.Parameter(torch.empty(heads, out_dim))
        self.att_dst = nn.Parameter(torch.empty(heads, out_dim))
        self.bias = nn.Parameter(torch.zeros(heads * out_dim))
        for weight in (self.lin.weight, self.att_src, self.att_dst):
            bound = math.sqrt(6 / sum(weight.shape))
            nn.init.uniform_(weight, -bound, bound)

    def forward(self, x: Tensor, edge_index: Tensor, num_dst: int) -> Tensor:
        h = self.lin(x).view(-1, self.heads, self.out_dim)
        own = torch.arange(num_dst, device=x.device)
        source, target = torch.cat([edge_index[0], own]), torch.cat([edge_index[1], own])
        score = (h * self.att_src).sum(-1)[source] + (h * self.att_dst).sum(-1)[target]  # (edges, heads)
        score = functional.leaky_relu(score, 0.2)
        highest = score.new_full((num_dst, self.heads), -math.inf)
        highest = highest.scatter_reduce(0, target[:, None].expand_as(score), score.detach(), "amax")
        weight = (score - highest[target]).exp()
        total = _sum_at(weight, target, num_dst)
        mixed = _sum_at(h[source] * (weight / total[target])[..., None], target, num_dst)
        return mixed.reshape(num_dst, -1) + self.bias


class Model(nn.Module):
    """A model of as many layers as hops were sampled, with ReLU and dropout between; logits (batch_size, num_classes).

    `kind`: "sage", "gcn" or "gat". Each layer works on the rows that the next one needs, no others.
    """

    def __init__(
        self,
        kind: str,
        dim: int,
        hidden: int,
        num_classes: int,
        layers: int,
        heads: int = 4,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if kind not in ("sage", "gcn", "gat"):
            raise errors.InvalidArgument(f"kind is {kind!r}, wanted sage, gcn or gat")
        if kind == "gat" and hidden % heads != 0:
            raise errors.InvalidArgument(f"hidden is {hidden}, wanted a multiple of {heads} heads")
        self.dropout = dropout
        self.layers = nn.ModuleList()
        for i in range(layers):
            first = dim if i == 0 else hidden
            is_last = i + 1 == layers
            last = num_classes if is_last else hidden
            if kind == "gat":
                self.layers.append(GATConv(first, last if is_last else last // heads, 1 if is_last else heads))
            else:
                self.layers.append((SAGEConv if kind == "sage" else GCNConv)(first, last))

    def forward(self, batch: Batch) -> Tensor:
        if batch.num_layers != len(self.layers):
            raise errors.InvalidArgument(
                f"the batch has {batch.num_layers} hops, the model {len(self.layers)} layers, wanted as many"
            )
        x = batch.x.to(next(self.parameters()).dtype)
        for i, layer in enumerate(self.layers):
            edge_index, num_src, num_dst = batch.layer(i)
            x = layer(x[:num_src], edge_index, num_dst)
            if i + 1 < len(self.layers):
                x = functional.dropout(functional.relu(x), self.dropout, self.training)
        return x


class FullBatchGCN(Model):
    """Model("gcn", ...), with its parameters, on all vertices of a graph that is dealt to ranks.

    Each layer has a site of the halo in training, and waits for fresh sums in evaluation. Gradients of parameters are
    of the rank's own vertices: add them up over ranks.
    """

    def __init__(self, dim: int, hidden: int, num_classes: int, layers: int = 2, dropout: float = 0.0) -> None:
        super().__init__("gcn", dim, hidden, num_classes, layers, dropout=dropout)

    def forward(self, x: Tensor, halo: SparseHalo) -> Tensor:  # type: ignore[override]  # a part of a graph, no batch
        """x: (own vertices, dim), in the order of halo.part.vertices. Logits (own vertices, num_classes)."""
        in_degrees = halo.in_degrees.to(x.dtype)
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, GCNConv)
            site = i if self.training else None
            x = layer.around(x, in_degrees, functools.partial(halo.aggregate, site=site))
            if i + 1 < len(self.layers):
                x = functional.dropout(functional.relu(x), self.dropout, self.training)
        return x
