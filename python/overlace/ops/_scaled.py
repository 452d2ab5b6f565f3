"""ag_gemm, gemm_rs and gemm_ar of fp8 with scales: their shapes and functions. They have no gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

import torch

from overlace.context import group_name, size_of
from overlace.errors import InvalidArgument, Unsupported
from overlace.ops._common import (
    FRAGMENT,
    as_before,
    check_factors,
    offsets_in_rows,
    register_shapes,
    rows_first,
    run,
)
from overlace.planning import FP8

_MULTIPLE = 16  # elements of a row of fp8
# NOTE: overloads, not the names above them: those look for one that fits at each call.
_ag = torch.ops.overlace.ag_gemm_scaled.default
_rs = torch.ops.overlace.gemm_rs_scaled.default
_ar = torch.ops.overlace.gemm_ar_scaled.default


# ---- shapes ----


def _check(op, a, a_scale, b, b_scale, bias, group) -> tuple[int, int]:
    rank, size = size_of(op, group, {"a": a, "a_scale": a_scale, "b": b, "b_scale": b_scale, "bias": bias})
    check_factors(op, a, b, "b", rank)
    of_b = FP8[:1] if a.dtype == torch.float8_e5m2 else FP8  # two of e5m2 have no product
    scales: tuple[torch.dtype, ...] = (torch.float32,)
    for name, t, dtypes in (("a", a, FP8), ("b", b, of_b), ("a_scale", a_scale, scales), ("b_scale", b_scale, scales)):
        if t.dtype not in dtypes:
            raise InvalidArgument(f"{op}: {name} is {t.dtype}, wanted {' or '.join(map(str, dtypes))}")
    if a.shape[1] % _MULTIPLE != 0:
        raise InvalidArgument(f"{op}: a is {list(a.shape)}, wanted a K that is a multiple of {_MULTIPLE}")
    is_rows = a_scale.dim() == 2
    wanted = {"a_scale": [a.shape[0], 1], "b_scale": [1, b.shape[1]]} if is_rows else {"a_scale": [1], "b_scale": [1]}
    for name, t in (("a_scale", a_scale), ("b_scale", b_scale)):
        if list(t.shape) != wanted[name]:
            raise InvalidArgument(f"{op}: {name} is {list(t.shape)}, wanted {wanted[name]}")
    return rank, size


@register_shapes("ag_gemm_scaled")
def _shapes_of_ag(
    a, a_scale, b, b_scale, bias, gather_dim, group, *, return_a=False, out_dtype=None, row_offsets=(), plan=""
):
    _, size = _check("ag_gemm_scaled", a, a_scale, b, b_scale, bias, group)
    m = row_offsets[-1] if row_offsets else a.shape[0] * size
    full = a.new_empty((m, a.shape[1]) if return_a else (0, 0))
    return full, a.new_empty((m, b.shape[1]), dtype=out_dtype or torch.bfloat16)


@register_shapes("gemm_rs_scaled")
def _shapes_of_rs(
    a, a_scale, b, b_scale, bias, reduce_op, scatter_dim, group, *, out_dtype=None, row_offsets=(), plan=""
):
    rank, size = _check("gemm_rs_scaled", a, a_scale, b, b_scale, bias, group)
    if row_offsets:
        m = row_offsets[rank + 1] - row_offsets[rank]
    else:
        _check_divisible("gemm_rs_scaled", a, 0, size)
        m = a.shape[0] // size
    return a.new_empty((m, b.shape[1]), dtype=out_dtype or torch.bfloat16)


@register_shapes("gemm_ar_scaled")
def _shapes_of_ar(a, a_scale, b, b_scale, bias, reduce_op, group, *, out_dtype=None, plan=""):
    _check("gemm_ar_scaled", a, a_scale, b, b_scale, bias, group)
    return a.new_empty((a.shape[0], b.shape[1]), dtype=out_dtype or torch.bfloat16)


def _check_divisible(op: str, a: torch.Tensor, dim: int, ranks: int) -> None:
    if a.shape[dim] % ranks != 0:
        raise InvalidArgument(
            f"{op}: a is {list(a.shape)}, scatter_dim {dim}: {a.shape[dim]}, wanted a multiple of {ranks} ranks; "
            "row_offsets split it otherwise"
        )


def _refuse_backward(op: str) -> None:
    def backward(ctx: Any, *grads: Any) -> Any:
        raise Unsupported(
            f"{op}: its gradient is wanted, and it has none: scaled products go forward only; "
            f"overlace.ops.{op.removesuffix('_scaled')} of wider operands has one"
        )

    def setup(ctx: Any, inputs: Any, **_: Any) -> None: ...

    torch.library.register_autograd(f"overlace::{op}", backward, setup_context=setup, lib=FRAGMENT)


for _name in ("ag_gemm_scaled", "gemm_rs_scaled", "gemm_ar_scaled"):
    _refuse_backward(_name)


# ---- functions ----


def _scale_of_rows(op: str, a: torch.Tensor, scale: torch.Tensor, dim: int, dim_name: str) -> torch.Tensor:
    """(1), or (rows, 1) in the order of the rows of a's matrix."""
    if scale.dim() < 2:
        return scale.reshape(-1)
    if list(scale.shape) != [*a.shape[:-1], 1]:
        raise InvalidArgument(
            f"{op}: a_scale is {list(scale.shape)}, wanted {[*a.shape[:-1], 1]}, or [] or [1] of the whole tensor"
        )
    return rows_first(op, scale, dim, dim_name)[0]


def _scale_of_columns(scale: torch.Tensor) -> torch.Tensor:
    return scale.reshape(-1) if scale.dim() < 2 else scale


@overload
def ag_gemm_scaled(
    a: torch.Tensor,
    a_scale: torch.Tensor,
    b: torch.Tensor,
    b_scale: torch.Tensor,
    *,
    group: object,
    bias: torch.Tensor | None = ...,
    gather_dim: int = ...,
    return_a: Literal[False] = ...,
    out_dtype: torch.dtype | None = ...,
    row_offsets: Sequence[int] | None = ...,
    plan: str = ...,
) -> torch.Tensor: ...
@overload
def ag_gemm_scaled(
    a: torch.Tensor,
    a_scale: torch.Tensor,
    b: torch.Tensor,
    b_scale: torch.Tensor,
    *,
    group: object,
    bias: torch.Tensor | None = ...,
    gather_dim: int = ...,
    return_a: Literal[True],
    out_dtype: torch.dtype | None = ...,
    row_offsets: Sequence[int] | None = ...,
    plan: str = ...,
) -> tuple[torch.Tensor, torch.Tensor]: ...
@overload
def ag_gemm_scaled(
    a: torch.Tensor,
    a_scale: torch.Tensor,
    b: torch.Tensor,
    b_scale: torch.Tensor,
    *,
    group: object,
    bias: torch.Tensor | None = ...,
    gather_dim: int = ...,
    return_a: bool = ...,
    out_dtype: torch.dtype | None = ...,
    row_offsets: Sequence[int] | None = ...,
    plan: str = ...,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]: ...
def ag_gemm_scaled(
    a: torch.Tensor,
    a_scale: torch.Tensor,
    b: torch.Tensor,
    b_scale: torch.Tensor,
    *,
    group: object,
    bias: torch.Tensor | None = None,
    gather_dim: int = 0,
    return_a: bool = False,
    out_dtype: torch.dtype | None = None,
    row_offsets: Sequence[int] | None = None,
    plan: str = "",
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """ag_gemm of fp8: `a_scale b_scale (concat over ranks of a) b`, as torch._scaled_mm has it.

    a: (..., K), this rank's part, float8_e4m3fn or float8_e5m2, the same on all ranks; K a multiple of 16.
    a_scale: float32: of one element and at most one dimension, the same on all ranks, or (..., 1), one for each row;
        those travel with their rows.
    b: (K, N), float8_e4m3fn, or float8_e5m2 beside an a of float8_e4m3fn; columns contiguous: `weight.t()`. N may
        differ by rank; on GPUs it is a multiple of 16.
    b_scale: float32: of one element as a_scale is, or (1, N) beside scales of rows.
    bias: (N) of out_dtype, or None.
    group, gather_dim, return_a, row_offsets: as in ag_gemm.
    out_dtype: bfloat16 (default), float16 or float32. Sums are float32.
    plan: as in ag_gemm; families of one kernel raise Unsupported.

    There is no gradient: backward raises Unsupported. Raises as ag_gemm.
    """
    matrix, rows, dim = rows_first("ag_gemm_scaled", a, gather_dim, "gather_dim")
    scale = _scale_of_rows("ag_gemm_scaled", a, a_scale, gather_dim, "gather_dim")
    tensors = (matrix, scale, b, _scale_of_columns(b_scale), bias)
    options: dict[str, Any] = {}
    if return_a or out_dtype or row_offsets or plan:
        offsets = offsets_in_rows(row_offsets, rows)
        options = {"return_a": return_a, "out_dtype": out_dtype, "row_offsets": offsets, "plan": plan}
    full, out = run(_ag, (*tensors, 0, group_name(group)), options, tensors)
    out = as_before(out, rows, dim)
    return (as_before(full, rows, dim), out) if return_a else out


def gemm_rs_scaled(
    a: torch.Tensor,
    a_scale: torch.Tensor,
    b: torch.Tensor,
    b_scale: torch.Tensor,
    *,
    group: object,
    bias: torch.Tensor | None = None,
    reduce_op: str = "sum",
    scatter_dim: int = 0,
    out_dtype: torch.dtype | None = None,
    row_offsets: Sequence[int] | None = None,
    plan: str = "",
) -> torch.Tensor:
    """gemm_rs of fp8: this rank's part of the sum over ranks of `a_scale b_scale a b`.

    a: (..., K), all rows, float8_e4m3fn or float8_e5m2; K, a multiple of 16, may differ by rank.
    a_scale: float32: of one element and at most one dimension, or (..., 1), one for each row; each rank has its own.
    b, b_scale: as in ag_gemm_scaled.
    group, reduce_op, scatter_dim, row_offsets: as in gemm_rs.
    bias: (N) of out_dtype, or None, the same on all ranks: added once, after the sum.
    out_dtype: bfloat16 (default), float16 or float32. Partial sums travel in it, and are added in float32.
    plan: as in ag_gemm_scaled.

    There is no gradient: backward raises Unsupported. Raises as ag_gemm.
    """
    matrix, rows, dim = rows_first("gemm_rs_scaled", a, scatter_dim, "scatter_dim")
    scale = _scale_of_rows("gemm_rs_scaled", a, a_scale, scatter_dim, "scatter_dim")
    name = group_name(group)
    if len(rows) > 1 and not row_offsets:  # of a matrix the operator says so
        _check_divisible("gemm_rs_scaled", a, dim, size_of("gemm_rs_scaled", name)[1])
    tensors = (matrix, scale, b, _scale_of_columns(b_scale), bias)
    options: dict[str, Any] = {}
    if out_dtype or row_offsets or plan:
        options = {"out_dtype": out_dtype, "row_offsets": offsets_in_rows(row_offsets, rows), "plan": plan}
    return as_before(run(_rs, (*tensors, reduce_op, 0, name), options, tensors), rows, dim)


def gemm_ar_scaled(
    a: torch.Tensor,
    a_scale: torch.Tensor,
    b: torch.Tensor,
    b_scale: torch.Tensor,
    *,
    group: object,
    bias: torch.Tensor | None = None,
    reduce_op: str = "sum",
    out_dtype: torch.dtype | None = None,
    plan: str = "",
) -> torch.Tensor:
    """gemm_ar of fp8: the sum over ranks of `a_scale b_scale a b`, the same bits on all of them.

    a, a_scale, b, b_scale, bias, out_dtype, plan: as in gemm_rs_scaled.
    group, reduce_op: as in gemm_rs.

    There is no gradient: backward raises Unsupported. Raises as ag_gemm.
    """
    matrix, rows, _ = rows_first("gemm_ar_scaled", a, 0, "rows")
    scale = _scale_of_rows("gemm_ar_scaled", a, a_scale, 0, "rows")
    tensors = (matrix, scale, b, _scale_of_columns(b_scale), bias)
    options = {"out_dtype": out_dtype, "plan": plan} if out_dtype or plan else {}
    out = run(_ar, (*tensors, reduce_op, group_name(group)), options, tensors)
    return as_before(out, rows, 0)
