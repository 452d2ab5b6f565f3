"""All-to-All + GEMM: its shapes, gradient and function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

import torch

from overlace.context import group_name, size_of
from overlace.ops._common import (
    check_blocks,
    check_factors,
    columns_of_my_rows,
    flat_splits,
    grad_of_weight,
    needs_gradient,
    plan_of_backward,
    register_gradient,
    register_shapes,
    rows_of_my_columns,
    rows_of_ranks,
    run,
    sent_and_received,
    splits_back,
)

_ops = torch.ops.overlace
# NOTE: an overload, not the name above it: that looks for one that fits at each call.
_op = torch.ops.overlace.a2a_gemm.default


@register_shapes("a2a_gemm")
def _shapes(a, b, bias, group, *, return_a=False, out_dtype=None, splits=(), exchange="rows", blocks=(), plan=""):
    rank, size = size_of("a2a_gemm", group, {"a": a, "b": b, "bias": bias})
    check_factors("a2a_gemm", a, b, "b", rank, size if exchange == "cols" else 1)
    check_blocks("a2a_gemm", exchange, blocks, b.shape[0], "K", size)
    if exchange == "cols":
        rows = rows_of_ranks(a.shape[0], splits, size)[rank]
    else:
        rows = sum(sent_and_received(a.shape[0], splits, rank, size)[1])
    received = a.new_empty((rows, b.shape[0]) if return_a else (0, 0))
    return received, a.new_empty((rows, b.shape[1]), dtype=out_dtype or a.dtype)


def _setup(ctx, inputs, keyword_only_inputs, output) -> None:
    a, b, bias, ctx.group = inputs
    ctx.splits, ctx.plan = keyword_only_inputs["splits"], keyword_only_inputs["plan"]
    ctx.exchange, ctx.blocks = keyword_only_inputs["exchange"], keyword_only_inputs["blocks"]
    ctx.keeps_received = keyword_only_inputs["return_a"]
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[0] if ctx.keeps_received else a, b)
    ctx.rows = a.shape[0]


def _exchanged(rows, splits, ctx, is_back=False):
    """The exchange alone, with the splits of the operator; of its own where they are none."""
    group = ctx.group
    if ctx.exchange == "cols":
        return (rows_of_my_columns if is_back else columns_of_my_rows)(rows, splits, ctx.blocks, group)
    rank, size = size_of("backward", group)
    if not splits and rows.shape[0] % size == 0:
        return _ops.all_to_all(rows, 0, group)
    sent, received = sent_and_received(rows.shape[0], splits, rank, size)
    return _ops.all_to_all(rows, 0, group, send_splits=sent, recv_splits=received)


def _backward(ctx, grad_received, grad):
    kept, b = ctx.saved_tensors
    needs_a, needs_b, needs_bias = ctx.needs_input_grad[:3]
    size = size_of("backward", ctx.group)[1]
    is_cols = ctx.exchange == "cols"
    back = rows_of_ranks(ctx.rows, ctx.splits, size) if is_cols else splits_back(ctx.rows, ctx.splits, size)
    grad_a = grad_b = grad_bias = None
    if grad is not None:
        dy = grad.to(b.dtype)
        if needs_a:
            grad_a = _ops.gemm_a2a(
                dy,
                b.t(),
                None,
                ctx.group,
                splits=back,
                exchange=ctx.exchange,
                blocks=ctx.blocks,
                plan=plan_of_backward(ctx.plan),
            )
        if needs_b:
            received = kept if ctx.keeps_received else _exchanged(kept, ctx.splits, ctx)
            grad_b = grad_of_weight(received, dy, b)
        grad_bias = dy.sum(0).to(ctx.bias_dtype) if needs_bias else None
    if needs_a and grad_received is not None and ctx.keeps_received:
        own = _exchanged(grad_received, back, ctx, is_back=True)
        grad_a = own if grad_a is None else grad_a + own
    return grad_a, grad_b, grad_bias, None


@overload
def a2a_gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    group: object,
    bias: torch.Tensor | None = ...,
    splits: Sequence[int] | Sequence[Sequence[int]] | None = ...,
    exchange: str = ...,
    blocks: Sequence[int] | None = ...,
    return_a: Literal[False] = ...,
    out_dtype: torch.dtype | None = ...,
    plan: str = ...,
) -> torch.Tensor: ...
@overload
def a2a_gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    group: object,
    bias: torch.Tensor | None = ...,
    splits: Sequence[int] | Sequence[Sequence[int]] | None = ...,
    exchange: str = ...,
    blocks: Sequence[int] | None = ...,
    return_a: Literal[True],
    out_dtype: torch.dtype | None = ...,
    plan: str = ...,
) -> tuple[torch.Tensor, torch.Tensor]: ...
@overload
def a2a_gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    group: object,
    bias: torch.Tensor | None = ...,
    splits: Sequence[int] | Sequence[Sequence[int]] | None = ...,
    exchange: str = ...,
    blocks: Sequence[int] | None = ...,
    return_a: bool = ...,
    out_dtype: torch.dtype | None = ...,
    plan: str = ...,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]: ...
def a2a_gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    group: object,
    bias: torch.Tensor | None = None,
    splits: Sequence[int] | Sequence[Sequence[int]] | None = None,
    exchange: str = "rows",
    blocks: Sequence[int] | None = None,
    return_a: bool = False,
    out_dtype: torch.dtype | None = None,
    plan: str = "",
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """All-to-All, then GEMM: the rows that all ranks have for this one, in rank order, times its b.

    The mirror of gemm_a2a: the rows of `a` are one block for each rank. With exchange="cols" each rank has its part of
    the columns of all ranks' rows, and gets all columns of its own rows: from heads to sequence behind an attention.

    a: (rows of this rank, K); with exchange="cols" (rows of all ranks, K / ranks). Dtypes as in ag_gemm.
    b: (K, N), of the dtype of a; rows or columns contiguous. Each rank has its own; N may differ by rank.
    group, plan: as in ag_gemm.
    bias: (N) or None, added to each row.
    splits, exchange: as in gemm_a2a.
    blocks: as in gemm_a2a, of K.
    return_a: give the rows that came, too. They are kept for the gradient of b wherever that is needed.
    out_dtype: that of a (default) or float32.

    Gives (sum over s of `splits[s][rank]`, N), with exchange="cols" (rows of this rank, N); with return_a a tuple of
    the rows that came and that. The gradient of a is one gemm_a2a. Raises as gemm_a2a. Source: arXiv 2305.06942,
    section 3.
    """
    name = group_name(group)
    keeps = return_a or needs_gradient((b,))
    options: dict[str, Any] = {}
    if keeps or splits is not None or out_dtype or plan or exchange != "rows" or blocks:
        options = {
            "return_a": keeps,
            "out_dtype": out_dtype,
            "splits": flat_splits("a2a_gemm", splits, size_of("a2a_gemm", name)[1], exchange),
            "exchange": exchange,
            "blocks": list(blocks or ()),
            "plan": plan,
        }
    received, out = run(_op, (a, b, bias, name), options, (a, b, bias))
    return (received, out) if return_a else out


register_gradient("a2a_gemm", _backward, _setup)
