"""A Llama-shaped decoder block with tensor and sequence parallelism, and its versions: one per competitor.

All versions share the same parameters and do the same work but for how the four linear layers communicate. Query, key
and value are one matrix, gate and up another, of each rank its heads and columns: the fewest products and collectives.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.nn import functional as F


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of the whole block, before it is split."""

    hidden: int
    ffn: int
    heads: int
    kv_heads: int

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads

    def weights(self, ranks: int) -> dict[str, tuple[int, int]]:
        """(N, K) of a rank's parts."""
        q, kv = self.hidden // ranks, self.kv_heads * self.head_size // ranks
        return {
            "qkv": (q + 2 * kv, self.hidden),
            "o": (self.hidden, q),
            "gate_up": (2 * self.ffn // ranks, self.hidden),
            "down": (self.hidden, self.ffn // ranks),
        }

    def forward_flops(self, ranks: int, tokens: int, sequence: int) -> float:
        """Operations of one rank's forward pass; attention is causal."""
        products = 2.0 * tokens * sum(n * k for n, k in self.weights(ranks).values())
        return products + 2.0 * tokens * sequence * self.hidden / ranks


SHAPES = {"llama-3.1-70b": Shape(8192, 28672, 64, 8), "tiny": Shape(64, 96, 8, 4)}
COLUMN, ROW = ("qkv", "gate_up"), ("o", "down")


class Parts:
    """A rank's parameters, input and incoming gradient: normal data, other numbers on each rank."""

    def __init__(self, shape: Shape, tokens: int, sequence: int, dtype: torch.dtype, device: torch.device, seed: int):
        self.shape, self.tokens, self.sequence = shape, tokens, sequence
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        random = torch.Generator(device).manual_seed(seed * 1000 + self.rank)

        def normal(rows: int, cols: int, scale: float = 1.0) -> torch.Tensor:
            return (torch.randn(rows, cols, generator=random, device=device) * scale).to(dtype)

        total = {"qkv": 1, "gate_up": 1, "o": self.ranks, "down": self.ranks}
        self.weights = {
            name: nn.Parameter(normal(n, k, 1 / math.sqrt(k * total[name])))
            for name, (n, k) in shape.weights(self.ranks).items()
        }
        ones = torch.ones(shape.hidden, dtype=dtype, device=device)
        self.norms = {name: nn.Parameter(ones.clone()) for name in ("norm1", "norm2")}
        mine = tokens // self.ranks
        self.x, self.other_x, self.grad = (normal(mine, shape.hidden) for _ in range(3))
        self.x.requires_grad_()

    def double(self) -> Parts:
        """The same numbers in fp64."""
        wide = Parts.__new__(Parts)
        vars(wide).update(vars(self))
        wide.weights = {name: nn.Parameter(w.detach().double()) for name, w in self.weights.items()}
        wide.norms = {name: nn.Parameter(w.detach().double()) for name, w in self.norms.items()}
        wide.x, wide.other_x, wide.grad = (t.detach().double() for t in (self.x, self.other_x, self.grad))
        wide.x.requires_grad_()
        return wide


class Block(nn.Module):
    """x (tokens / ranks, hidden), this rank's part of the sequences, to the same."""

    def __init__(self, parts: Parts, linears: dict[str, nn.Module]) -> None:
        super().__init__()
        self.parts_of_heads = [parts.shape.heads // parts.ranks, *[parts.shape.kv_heads // parts.ranks] * 2]
        self.head_size, self.sequence = parts.shape.head_size, parts.sequence
        self.norm1, self.norm2 = parts.norms["norm1"], parts.norms["norm2"]
        self.qkv, self.o, self.gate_up, self.down = (linears[name] for name in ("qkv", "o", "gate_up", "down"))
        half = self.head_size // 2
        frequencies = 5e5 ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = (torch.arange(parts.tokens) % parts.sequence)[:, None] * frequencies
        like = parts.weights["qkv"]
        cos, sin = (t[:, None].to(like.device, like.dtype) for t in (angles.cos(), angles.sin()))
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)

    def rotated(self, x: torch.Tensor) -> torch.Tensor:
        """Rotary positions; x (tokens, heads, size)."""
        a, b = x.chunk(2, -1)
        return torch.cat((a * self.cos - b * self.sin, b * self.cos + a * self.sin), -1)

    def attention(self, qkv: torch.Tensor) -> torch.Tensor:
        heads = qkv.unflatten(-1, (-1, self.head_size))
        q, k, v = heads.split(self.parts_of_heads, 1)
        batched = [t.unflatten(0, (-1, self.sequence)).transpose(1, 2) for t in (self.rotated(q), self.rotated(k), v)]
        attended = F.scaled_dot_product_attention(*batched, is_causal=True, enable_gqa=True)
        return attended.transpose(1, 2).flatten(0, 1).flatten(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.rms_norm(x, self.norm1.shape, self.norm1, 1e-5)
        x = x + self.o(self.attention(self.qkv(h)))
        h = F.rms_norm(x, self.norm2.shape, self.norm2, 1e-5)
        gate, up = self.gate_up(h).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        full = x.new_empty(x.shape[0] * dist.get_world_size(), *x.shape[1:])
        dist.all_gather_into_tensor(full, x)
        return full

    @staticmethod
    def backward(ctx, grad):
        return _Scatter.forward(ctx, grad)


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        part = x.new_empty(x.shape[0] // dist.get_world_size(), *x.shape[1:])
        dist.reduce_scatter_tensor(part, x.contiguous())
        return part

    @staticmethod
    def backward(ctx, grad):
        return _Gather.forward(ctx, grad.contiguous())


class _Linear(nn.Module):
    """Two kinds each of column- and row-parallel layers: by the calls of torch.distributed, and by functional ones."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight


class Column(_Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(_Gather.apply(x), self.weight)


class Row(_Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Scatter.apply(F.linear(x, self.weight))


class FunctionalColumn(_Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(functional.all_gather_tensor_autograd(x, 0, dist.group.WORLD), self.weight)


class FunctionalRow(_Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.reduce_scatter_tensor_autograd(F.linear(x, self.weight), "sum", 0, dist.group.WORLD)


def plain(parts: Parts, column: type = Column, row: type = Row) -> Block:
    weights = parts.weights
    return Block(parts, {name: (column if name in COLUMN else row)(weights[name]) for name in (*COLUMN, *ROW)})


def with_modules(parts: Parts) -> Block:
    """Layers of overlace.nn, around the same memory."""
    from overlace.nn import ColumnParallelLinear, RowParallelLinear
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard

    mesh = DeviceMesh.from_group(dist.group.WORLD, parts.x.device.type)
    linears: dict[str, nn.Module] = {}
    for name, weight in parts.weights.items():
        is_column = name in COLUMN
        n, k = weight.shape
        sizes = (k, n * parts.ranks) if is_column else (k * parts.ranks, n)
        kind = ColumnParallelLinear if is_column else RowParallelLinear
        layer = kind(*sizes, bias=False, group=mesh, device="meta", dtype=weight.dtype)
        placement = Shard(0) if is_column else Shard(1)
        layer.weight = nn.Parameter(DTensor.from_local(weight.detach(), mesh, [placement], run_check=False))
        linears[name] = layer
    return Block(parts, linears)


class Result:
    """What a training step gives on this rank, by name."""

    @staticmethod
    def of(block: Callable, module: Block, parts: Parts) -> dict[str, torch.Tensor]:
        step(block, module, parts)
        y = block(parts.x)
        y.backward(parts.grad)
        found = {"y": y.detach(), "dx": parts.x.grad}
        for name in (*COLUMN, *ROW, "norm1", "norm2"):
            layer = getattr(module, name)
            grad = (layer.weight if isinstance(layer, nn.Module) else layer).grad
            found[f"d{name}"] = getattr(grad, "_local_tensor", grad)
        clear(module, parts)
        return found


def clear(module: Block, parts: Parts) -> None:
    parts.x.grad = None
    for parameter in module.parameters():
        parameter.grad = None


def step(block: Callable, module: Block, parts: Parts) -> torch.Tensor:
    """Forward and backward; no optimizer. What it leaves is cleared."""
    y = block(parts.x)
    y.backward(parts.grad)
    clear(module, parts)
    return y


def oracle(parts: Parts) -> dict[str, torch.Tensor]:
    """In fp64, by the plain collectives and attention without flash kernels."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    wide = parts.double()
    module = plain(wide)
    with sdpa_kernel(SDPBackend.MATH):
        return Result.of(module, module, wide)
