"""GEMM + AllReduce + residual + RMSNorm: its shapes, gradient and function."""

from __future__ import annotations

import math

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
)

_NAME = "gemm_ar_norm"
# NOTE: an overload, not the name above it: that looks for one that fits at each call.
_op = torch.ops.overlace.gemm_ar_norm.default


def _check(a, b, residual, norm_weight, eps, rank) -> None:
    check_factors(_NAME, a, b, "b", rank)
    for name, t, wanted in (
        ("residual", residual, [a.shape[0], b.shape[1]]),
        ("norm_weight", norm_weight, [b.shape[1]]),
    ):
        if list(t.shape) != wanted:
            raise InvalidArgument(f"{_NAME}: {name} is {list(t.shape)} on rank {rank}, wanted {wanted}")
        if t.dtype != a.dtype:
            raise InvalidArgument(f"{_NAME}: {name} is {t.dtype} on rank {rank}, wanted {a.dtype} as a")
    if not (eps > 0 and math.isfinite(eps)):
        raise InvalidArgument(f"{_NAME}: eps is {eps}, wanted a finite number above 0")


@register_shapes("gemm_ar_norm")
def _shapes(a, b, residual, norm_weight, bias, eps, group, *, plan=""):
    tensors = {"a": a, "b": b, "residual": residual, "norm_weight": norm_weight, "bias": bias}
    rank, _ = size_of(_NAME, group, tensors)
    _check(a, b, residual, norm_weight, eps, rank)
    shape = (a.shape[0], b.shape[1])
    return a.new_empty(shape), a.new_empty(shape)


def _setup(ctx, inputs, keyword_only_inputs, output) -> None:
    a, b, _, norm_weight, bias, ctx.eps, ctx.group = inputs
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.save_for_backward(a, b, norm_weight, output[0])


def _through_norm(x, weight, grad, eps):
    """Gradients of the rows x and of the weight, in the type that computes."""
    wide = torch.promote_types(x.dtype, torch.float32)
    x, weight, grad = x.to(wide), weight.to(wide), grad.to(wide)
    scale = torch.rsqrt(x.square().mean(1, keepdim=True) + eps)
    unit, weighed = x * scale, grad * weight
    return scale * (weighed - unit * (weighed * unit).mean(1, keepdim=True)), (grad * unit).sum(0)


def _backward(ctx, grad_out, grad_normed):
    a, b, norm_weight, out = ctx.saved_tensors
    needs_a, needs_b, needs_residual, needs_weight, needs_bias = ctx.needs_input_grad[:5]
    grad_rows, grad_weight = _through_norm(out, norm_weight, grad_normed, ctx.eps)
    grad = (grad_out.to(grad_rows.dtype) + grad_rows).to(a.dtype)
    dy = replicated(grad, ctx.group)
    return (
        dy @ b.t() if needs_a else None,
        grad_of_weight(a, dy, b) if needs_b else None,
        grad if needs_residual else None,
        grad_weight.to(norm_weight.dtype) if needs_weight else None,
        grad.sum(0).to(ctx.bias_dtype) if needs_bias else None,
        None,
        None,
    )


def gemm_ar_norm(
    a: torch.Tensor,
    b: torch.Tensor,
    residual: torch.Tensor,
    norm_weight: torch.Tensor,
    *,
    group: object,
    bias: torch.Tensor | None = None,
    eps: float = 1e-6,
    plan: str = "",
) -> tuple[torch.Tensor, torch.Tensor]:
    """GEMM, AllReduce, residual and RMSNorm: the end of a row-parallel layer, the same bits on all ranks.

    a: (..., K); K may differ by rank.
    b: (K, N), of the dtype of a; rows or columns contiguous.
    residual: (..., N) with the leading dimensions of a, of the dtype of a; the same on all ranks.
    norm_weight: (N), contiguous, of the dtype of a; the same on all ranks.
    group, bias, plan: as in gemm_ar.
    eps: added to the mean of squares, above 0.

    Gives (out, normed), both (..., N): out = sum over ranks of a b, + bias, rounded as gemm_ar rounds it, + residual,
    rounded again; normed = out / sqrt(mean of out^2 over N + eps) * norm_weight, made of the rounded out in float32
    (float64 of float64) and rounded once. out is the residual of what follows, and neither shares memory with the
    arguments. Gradients of a, b, residual, norm_weight and bias: as in gemm_ar those of the results must be the same
    on all ranks, and they move nothing. Raises as ag_gemm.
    """
    if a.dim() < 2:
        raise InvalidArgument(f"{_NAME}: a is {list(a.shape)}, wanted two dimensions or more")
    matrix, added = a, residual
    if a.dim() > 2:
        if residual.shape[:-1] != a.shape[:-1]:
            raise InvalidArgument(
                f"{_NAME}: residual is {list(residual.shape)}, wanted {[*a.shape[:-1], b.shape[-1]]} as the sum"
            )
        matrix, added = a.flatten(0, -2), residual.flatten(0, -2)
    arguments = (matrix, b, added, norm_weight, bias, eps, group_name(group))
    out, normed = run(_op, arguments, {"plan": plan} if plan else {}, (matrix, b, added, norm_weight, bias))
    if a.dim() > 2:
        out, normed = (t.unflatten(0, a.shape[:-1]) for t in (out, normed))
    return out, normed


register_gradient(_NAME, _backward, _setup)
