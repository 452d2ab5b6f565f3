"""GEMM + AllReduce: its shapes, gradient and function."""

from __future__ import annotations

import torch

from overlace.context import group_name, size_of
from overlace.errors import InvalidArgument
from overlace.ops._common import (
    check_factors,
    grad_of_weight,
    register_gradient,
    register_shapes,
    replicated,
    run,
    scale_of,
    setup_reduced,
)

# NOTE: an overload, not the name above it: that looks for one that fits at each call.
_op = torch.ops.overlace.gemm_ar.default


@register_shapes("gemm_ar")
def _shapes(a, b, bias, reduce_op, group, *, plan=""):
    rank, _ = size_of("gemm_ar", group, {"a": a, "b": b, "bias": bias})
    check_factors("gemm_ar", a, b, "b", rank)
    return a.new_empty((a.shape[0], b.shape[1]))


def _backward(ctx, grad):
    a, b = ctx.saved_tensors
    needs_a, needs_b, needs_bias = ctx.needs_input_grad[:3]
    dy = replicated(grad, ctx.group)
    dy = dy * scale_of(ctx) if ctx.average else dy
    grad_bias = grad.sum(0).to(ctx.bias_dtype) if needs_bias else None
    grad_b = grad_of_weight(a, dy, b) if needs_b else None
    return dy @ b.t() if needs_a else None, grad_b, grad_bias, None, None


def gemm_ar(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    group: object,
    bias: torch.Tensor | None = None,
    reduce_op: str = "sum",
    plan: str = "",
) -> torch.Tensor:
    """GEMM and AllReduce: the sum over ranks of `a b`, the same bits on all of them. A row-parallel layer.

    a: (..., K); K may differ by rank.
    b: (K, N), of the dtype of a; rows or columns contiguous.
    group, bias, reduce_op, plan: as in gemm_rs.

    Gives (..., N). The gradient of a is local: that of the result must be the same on all ranks, as it is where
    everything behind it is computed by all of them. Raises as ag_gemm.
    """
    if a.dim() < 2:
        raise InvalidArgument(f"gemm_ar: a is {list(a.shape)}, wanted two dimensions or more")
    name = group_name(group)
    matrix = a if a.dim() == 2 else a.flatten(0, -2)
    out = run(_op, (matrix, b, bias, reduce_op, name), {"plan": plan} if plan else {}, (matrix, b, bias))
    return out.unflatten(0, a.shape[:-1]) if a.dim() > 2 else out


register_gradient("gemm_ar", _backward, setup_reduced)
