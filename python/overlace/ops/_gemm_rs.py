"""GEMM + ReduceScatter: its shapes, gradient and function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from overlace.context import group_name, size_of
from overlace.errors import InvalidArgument
from overlace.ops._common import (
    activation_of,
    as_before,
    check_factors,
    grad_of_weight,
    offsets_in_rows,
    plan_of_backward,
    register_gradient,
    register_shapes,
    rows_first,
    run,
    scale_of,
    setup_reduced,
)

_ops = torch.ops.overlace
# NOTE: an overload, not the name above it: that looks for one that fits at each call.
_op = torch.ops.overlace.gemm_rs.default


@register_shapes("gemm_rs")
def _shapes(a, b, bias, reduce_op, scatter_dim, group, *, out_dtype=None, activation="none", row_offsets=(), plan=""):
    rank, size = size_of("gemm_rs", group, {"a": a, "b": b, "bias": bias})
    check_factors("gemm_rs", a, b, "b", rank)
    if row_offsets:
        m = row_offsets[rank + 1] - row_offsets[rank]
    else:
        if a.shape[0] % size != 0:
            raise InvalidArgument(
                f"gemm_rs: a is {list(a.shape)}, scatter_dim 0: {a.shape[0]}, wanted a multiple of {size} ranks; "
                "row_offsets split it otherwise"
            )
        m = a.shape[0] // size
    return a.new_empty((m, b.shape[1]), dtype=out_dtype or a.dtype)


def _backward(ctx, grad):
    a, b = ctx.saved_tensors
    needs_a, needs_b, needs_bias = ctx.needs_input_grad[:3]
    dy = grad.to(a.dtype)
    factor = b.t() if needs_a else b.t()[:, :0]
    full, (grad_a,) = _ops.ag_gemm(
        dy * scale_of(ctx) if ctx.average else dy,
        [factor],
        [],
        0,
        ctx.group,
        return_a=True,
        row_offsets=ctx.row_offsets,
        plan=plan_of_backward(ctx.plan),
    )
    grad_bias = None
    if needs_bias:  # added once to each row, by its owner: every rank has the whole sum
        # All ranks hold one bias, but AG(dy) each for itself: a second derivative is that of the sum over ranks.
        is_recorded = torch.is_grad_enabled() and dy.requires_grad
        total = _ops.all_reduce(dy.sum(0), "sum", ctx.group) if is_recorded else None
        grad_bias = (full.sum(0) if total is None else total).to(ctx.bias_dtype)
        if ctx.average:
            grad_bias = grad_bias / scale_of(ctx)
    grad_b = grad_of_weight(a, full, b) if needs_b else None
    return grad_a if needs_a else None, grad_b, grad_bias, None, None, None


def _check_divisible(a: torch.Tensor, dim: int, name: str) -> None:
    ranks = size_of("gemm_rs", name)[1]
    if a.shape[dim] % ranks != 0:
        raise InvalidArgument(
            f"gemm_rs: a is {list(a.shape)}, scatter_dim {dim}: {a.shape[dim]}, wanted a multiple of {ranks} ranks; "
            "row_offsets split it otherwise"
        )


def gemm_rs(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    group: object,
    bias: torch.Tensor | None = None,
    reduce_op: str = "sum",
    scatter_dim: int = 0,
    out_dtype: torch.dtype | None = None,
    activation: str = "none",
    row_offsets: Sequence[int] | None = None,
    plan: str = "",
) -> torch.Tensor:
    """GEMM and ReduceScatter: this rank's part, along scatter_dim, of the sum over ranks of `a b`. Row-parallel layers.

    a: (..., K), all rows; K may differ by rank. Dtypes as in ag_gemm.
    b: (K, N), of the dtype of a; rows or columns contiguous.
    group, activation, row_offsets, plan: as in ag_gemm, of the sum.
    bias: (N) or None, the same on all ranks: added once, after the sum. Its gradient is whole on every rank.
    reduce_op: "sum" or "avg"; "avg" divides the sum by the ranks, not the bias.
    scatter_dim: any dimension of a but the last; its size must be a multiple of the ranks without row_offsets.
    out_dtype: that of a (default) or float32; partial sums travel in it, and are added in float32 in rank order.

    Gives (..., N) with this rank's part of scatter_dim. Raises as ag_gemm. Maths: arXiv 2406.06858, section 2.
    """
    activate = activation_of("gemm_rs", activation, [b])
    matrix, rows, dim = rows_first("gemm_rs", a, scatter_dim, "scatter_dim")
    name = group_name(group)
    if len(rows) > 1 and not row_offsets:  # of a matrix the operator says so
        _check_divisible(a, dim, name)
    options: dict[str, Any] = {}
    if out_dtype or row_offsets or plan:
        options = {"out_dtype": out_dtype, "row_offsets": offsets_in_rows(row_offsets, rows), "plan": plan}
    out = run(_op, (matrix, b, bias, reduce_op, 0, name), options, (matrix, b, bias))
    return as_before(out if activate is None else activate(out), rows, dim)


register_gradient("gemm_rs", _backward, setup_reduced)
