"""GEMM + All-to-All: its shapes, gradient and function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from overlace.context import group_name, size_of
from overlace.ops._common import (
    check_blocks,
    check_factors,
    flat_splits,
    grad_of_weight,
    plan_of_backward,
    register_gradient,
    register_shapes,
    run,
    sent_and_received,
    splits_back,
)

_ops = torch.ops.overlace
# NOTE: an overload, not the name above it: that looks for one that fits at each call.
_op = torch.ops.overlace.gemm_a2a.default


@register_shapes("gemm_a2a")
def _shapes(a, b, bias, group, *, out_dtype=None, splits=(), exchange="rows", blocks=(), plan=""):
    rank, size = size_of("gemm_a2a", group, {"a": a, "b": b, "bias": bias})
    check_factors("gemm_a2a", a, b, "b", rank)
    check_blocks("gemm_a2a", exchange, blocks, b.shape[1], "N", size)
    if exchange == "cols":
        rows = sum(splits) if splits else a.shape[0] * size
        return a.new_empty((rows, b.shape[1] // size), dtype=out_dtype or a.dtype)
    _, received = sent_and_received(a.shape[0], splits, rank, size)
    return a.new_empty((sum(received), b.shape[1]), dtype=out_dtype or a.dtype)


def _setup(ctx, inputs, keyword_only_inputs, output) -> None:
    a, b, bias, ctx.group = inputs
    ctx.splits, ctx.plan = keyword_only_inputs["splits"], keyword_only_inputs["plan"]
    ctx.exchange, ctx.blocks = keyword_only_inputs["exchange"], keyword_only_inputs["blocks"]
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.save_for_backward(a, b)


def _backward(ctx, grad):
    a, b = ctx.saved_tensors
    needs_a, needs_b, needs_bias = ctx.needs_input_grad[:3]
    _, size = size_of("backward", ctx.group)
    # What was sent goes back to whom it came from, and all three gradients are made of it.
    is_cols = ctx.exchange == "cols"
    dy, grad_a = _ops.a2a_gemm(
        grad.to(a.dtype),
        b.t() if needs_a else b.t()[:, :0],
        None,
        ctx.group,
        return_a=needs_b or needs_bias,
        splits=ctx.splits if is_cols else splits_back(a.shape[0], ctx.splits, size),
        exchange=ctx.exchange,
        blocks=ctx.blocks,
        plan=plan_of_backward(ctx.plan),
    )
    grad_b = grad_of_weight(a, dy, b) if needs_b else None
    return grad_a if needs_a else None, grad_b, dy.sum(0).to(ctx.bias_dtype) if needs_bias else None, None


def gemm_a2a(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    group: object,
    bias: torch.Tensor | None = None,
    splits: Sequence[int] | Sequence[Sequence[int]] | None = None,
    exchange: str = "rows",
    blocks: Sequence[int] | None = None,
    out_dtype: torch.dtype | None = None,
    plan: str = "",
) -> torch.Tensor:
    """GEMM and All-to-All of its rows, or its columns: what each rank multiplied for this one, in rank order.

    The rows of `a` are one block for each rank, and block d of `a b` goes to rank d. With exchange="cols" each rank
    gets its part of the columns of all ranks' rows instead: from sequence to heads before an attention, q, k and v in
    one product.

    a: (M of this rank, K). Dtypes as in ag_gemm.
    b: (K, N), of the dtype of a; rows or columns contiguous. Each rank has its own; K may differ by rank.
    group, plan: as in ag_gemm.
    bias: (N) or None, added to each row of this rank's product. Its gradient is that of this rank's rows.
    splits: rows from rank s to rank d as `splits[s][d]`, or at s * ranks + d of a flat list; 0 or more, and the same on
        all ranks. None: all ranks have as many rows, and cut them as torch.tensor_split does. With exchange="cols": one
        number per rank, its rows; None: all have as many.
    exchange: "rows" or "cols".
    blocks: with exchange="cols", N in blocks, each a multiple of the ranks, of which rank d gets the d-th part; None: N
        is one block. As [heads of q x D, heads of k x D, heads of v x D]: each rank has its heads of q, of k and of v.
    out_dtype: that of a (default) or float32; rows travel in it, rounded once.

    Gives (sum over s of `splits[s][rank]`, N); with exchange="cols" (rows of all ranks, N / ranks). The gradient is one
    a2a_gemm, whose exchange all three are made of. Raises as ag_gemm; PlanMismatch where ranks give other splits or
    blocks. Sources: arXiv 2305.06942, section 3, whose mixture-of-experts operator this is for blocks of any length;
    arXiv 2309.14509 (Ulysses) for the exchange of columns.
    """
    name = group_name(group)
    options: dict[str, Any] = {}
    if splits is not None or out_dtype or plan or exchange != "rows" or blocks:
        options = {
            "out_dtype": out_dtype,
            "splits": flat_splits("gemm_a2a", splits, size_of("gemm_a2a", name)[1], exchange),
            "exchange": exchange,
            "blocks": list(blocks or ()),
            "plan": plan,
        }
    return run(_op, (a, b, bias, name), options, (a, b, bias))


register_gradient("gemm_a2a", _backward, _setup)
