"""Shapes of the operators' results: for torch.compile, and for errors before anything moves. They touch no peer."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from overlace.context import size_of
from overlace.errors import InvalidArgument, Unsupported


def _numbered(name: str, tensors: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"{name}[{i}]": t for i, t in enumerate(tensors)}


def _check_factors(op: str, a: torch.Tensor, b: torch.Tensor, name: str, rank: int) -> None:
    for label, t in (("a", a), (name, b)):
        if t.dim() != 2:
            raise InvalidArgument(f"{op}: {label} is {list(t.shape)}, wanted two dimensions")
    if a.shape[1] != b.shape[0]:
        raise InvalidArgument(
            f"{op}: a is {list(a.shape)} on rank {rank}, {name} is {list(b.shape)}: K {a.shape[1]} != {b.shape[0]}"
        )


@torch.library.register_fake("overlace::ag_gemm")
def _ag_gemm(
    a, bs, biases, gather_dim, group, *, return_a=False, out_dtype=None, activation="none", row_offsets=(), plan=""
):
    rank, size = size_of("ag_gemm", group, {"a": a, **_numbered("bs", bs), **_numbered("biases", biases)})
    if activation not in ("none", "swiglu"):
        raise Unsupported(
            f"ag_gemm: activation is '{activation}', only 'none' and 'swiglu' are there; "
            "overlace.ops.ag_gemm has others"
        )
    if activation == "swiglu" and len(bs) != 1:
        raise Unsupported(
            f"ag_gemm: activation is 'swiglu' of {len(bs)} bs, wanted one; overlace.ops.ag_gemm takes several"
        )
    if activation == "swiglu" and bs[0].shape[-1] % 2 != 0:
        raise InvalidArgument(f"ag_gemm: activation is 'swiglu', b is {list(bs[0].shape)}: wanted pairs of columns")
    for i, b in enumerate(bs):
        _check_factors("ag_gemm", a, b, f"bs[{i}]", rank)
    m = row_offsets[-1] if row_offsets else a.shape[0] * size
    a_full = a.new_empty((m, a.shape[1]) if return_a else (0, 0))
    pair = 2 if activation == "swiglu" else 1
    return a_full, [a.new_empty((m, b.shape[1] // pair), dtype=out_dtype or a.dtype) for b in bs]


@torch.library.register_fake("overlace::ag_wgrad")
def _ag_wgrad(x, dys, gather_dim, group, *, row_offsets=(), plan=""):
    _, size = size_of("ag_wgrad", group, {"x": x, **_numbered("dys", dys)})
    m = row_offsets[-1] if row_offsets else x.shape[0] * size
    for i, dy in enumerate(dys):
        if x.dim() != 2 or dy.dim() != 2 or dy.shape[0] != m:
            raise InvalidArgument(
                f"ag_wgrad: x is {list(x.shape)}, dys[{i}] is {list(dy.shape)}, wanted two dimensions, {m} rows in dys"
            )
    return [x.new_empty((x.shape[1], dy.shape[1])) for dy in dys]


@torch.library.register_fake("overlace::gemm_rs")
def _gemm_rs(a, b, bias, reduce_op, scatter_dim, group, *, out_dtype=None, activation="none", row_offsets=(), plan=""):
    rank, size = size_of("gemm_rs", group, {"a": a, "b": b, "bias": bias})
    _check_factors("gemm_rs", a, b, "b", rank)
    if row_offsets:
        m = row_offsets[rank + 1] - row_offsets[rank]
    else:
        if a.shape[0] % size != 0:
            raise InvalidArgument(
                f"gemm_rs: a is {list(a.shape)}, scatter_dim 0: {a.shape[0]} is no multiple of {size} ranks; "
                "row_offsets split it otherwise"
            )
        m = a.shape[0] // size
    return a.new_empty((m, b.shape[1]), dtype=out_dtype or a.dtype)


@torch.library.register_fake("overlace::gemm_ar")
def _gemm_ar(a, b, bias, reduce_op, group, *, plan=""):
    rank, _ = size_of("gemm_ar", group, {"a": a, "b": b, "bias": bias})
    _check_factors("gemm_ar", a, b, "b", rank)
    return a.new_empty((a.shape[0], b.shape[1]))


def _dim_of(op: str, x: torch.Tensor, dim: int) -> int:
    """From 0."""
    if x.dim() == 0:
        raise InvalidArgument(f"{op}: x is [], wanted one dimension or more")
    if not -x.dim() <= dim < x.dim():
        raise InvalidArgument(f"{op}: dim is {dim}, x is {list(x.shape)}: wanted {-x.dim()} to {x.dim() - 1}")
    return dim % x.dim()


def _check_divisible(op: str, x: torch.Tensor, dim: int, size: int) -> None:
    if x.shape[dim] % size != 0:
        raise InvalidArgument(f"{op}: x is {list(x.shape)}, dim {dim}: {x.shape[dim]} is no multiple of {size} ranks")


@torch.library.register_fake("overlace::all_gather")
def _all_gather(x, dim, group):
    dim, (_, size) = _dim_of("all_gather", x, dim), size_of("all_gather", group, {"x": x})
    return x.new_empty((*x.shape[:dim], x.shape[dim] * size, *x.shape[dim + 1 :]))


@torch.library.register_fake("overlace::reduce_scatter")
def _reduce_scatter(x, reduce_op, dim, group):
    dim, (_, size) = _dim_of("reduce_scatter", x, dim), size_of("reduce_scatter", group, {"x": x})
    _check_divisible("reduce_scatter", x, dim, size)
    return x.new_empty((*x.shape[:dim], x.shape[dim] // size, *x.shape[dim + 1 :]))


@torch.library.register_fake("overlace::all_reduce")
def _all_reduce(x, reduce_op, group):
    size_of("all_reduce", group, {"x": x})
    return x.new_empty(x.shape)


@torch.library.register_fake("overlace::all_to_all")
def _all_to_all(x, dim, group):
    dim, (_, size) = _dim_of("all_to_all", x, dim), size_of("all_to_all", group, {"x": x})
    _check_divisible("all_to_all", x, dim, size)
    return x.new_empty(x.shape)
