"""AllGather + gradient of a weight: its shapes, gradient and function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import torch

from overlace.context import group_name, size_of
from overlace.errors import InvalidArgument
from overlace.ops._common import (
    grad_of_gathered,
    numbered,
    offsets_in_rows,
    plan_of_backward,
    register_gradient,
    register_shapes,
    rows_first,
    run,
)

_ops = torch.ops.overlace
# NOTE: an overload, not the name above it: that looks for one that fits at each call.
_op = torch.ops.overlace.ag_wgrad.default


@register_shapes("ag_wgrad")
def _shapes(x, dys, gather_dim, group, *, row_offsets=(), plan=""):
    _, size = size_of("ag_wgrad", group, {"x": x, **numbered("dys", dys)})
    m = row_offsets[-1] if row_offsets else x.shape[0] * size
    for i, dy in enumerate(dys):
        if x.dim() != 2 or dy.dim() != 2 or dy.shape[0] != m:
            raise InvalidArgument(
                f"ag_wgrad: x is {list(x.shape)}, dys[{i}] is {list(dy.shape)}, wanted two dimensions, {m} rows in dys"
            )
    return [x.new_empty((x.shape[1], dy.shape[1])) for dy in dys]


def _setup(ctx, inputs, keyword_only_inputs, output) -> None:
    x, dys, _, ctx.group = inputs
    ctx.row_offsets, ctx.plan = keyword_only_inputs["row_offsets"], keyword_only_inputs["plan"]
    ctx.num_dys = len(dys)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, *dys)


def _backward(ctx, grads):
    x, *dys = ctx.saved_tensors
    needs_x, needs_dys = ctx.needs_input_grad[:2]
    grad_x = None
    if needs_x:
        grad_x = grad_of_gathered(ctx, None, [(dy, g) for dy, g in zip(dys, grads, strict=True) if g is not None], x)
    grad_dys: list[torch.Tensor | None] = [None] * ctx.num_dys
    wanted = [i for i, g in enumerate(grads) if needs_dys[i] and g is not None]
    if wanted:
        factors, plan = [grads[i].to(x.dtype) for i in wanted], plan_of_backward(ctx.plan)
        _, found = _ops.ag_gemm(x, factors, [], 0, ctx.group, row_offsets=ctx.row_offsets, plan=plan)
        for i, grad in zip(wanted, found, strict=True):
            grad_dys[i] = grad
    return grad_x, grad_dys, None, None


@overload
def ag_wgrad(
    x: torch.Tensor,
    dys: torch.Tensor,
    *,
    group: object,
    gather_dim: int = ...,
    row_offsets: Sequence[int] | None = ...,
    plan: str = ...,
) -> torch.Tensor: ...


@overload
def ag_wgrad(
    x: torch.Tensor,
    dys: Sequence[torch.Tensor],
    *,
    group: object,
    gather_dim: int = ...,
    row_offsets: Sequence[int] | None = ...,
    plan: str = ...,
) -> list[torch.Tensor]: ...


def ag_wgrad(
    x: torch.Tensor,
    dys: torch.Tensor | Sequence[torch.Tensor],
    *,
    group: object,
    gather_dim: int = 0,
    row_offsets: Sequence[int] | None = None,
    plan: str = "",
) -> torch.Tensor | list[torch.Tensor]:
    """AllGather and the gradients of the weights behind it: `(concat over ranks of x)^T dy` for each of dys.

    x: (..., K), this rank's part, as ag_gemm took it.
    dys: (..., N) each, the rows of all ranks, of the dtype of x.
    group, gather_dim, row_offsets, plan: as in ag_gemm. The gather hides behind the widest of dys: its rows are summed
        as they come, own rows first, or slab by slab of K; sums are float32 (float64 of float64), rounded once.

    Gives (K, N), a list of them for a list. Raises as ag_gemm.
    """
    is_one = isinstance(dys, torch.Tensor)
    matrix, rows, dim = rows_first("ag_wgrad", x, gather_dim, "gather_dim")
    several = [dys] if isinstance(dys, torch.Tensor) else dys
    factors = [rows_first("ag_wgrad", dy, dim, "gather_dim")[0] for dy in several]
    arguments = (matrix, factors, 0, group_name(group))
    options = {"row_offsets": offsets_in_rows(row_offsets, rows), "plan": plan} if row_offsets or plan else {}
    outs = run(_op, arguments, options, (matrix, *factors))
    return outs[0] if is_one else outs


register_gradient("ag_wgrad", _backward, _setup)
