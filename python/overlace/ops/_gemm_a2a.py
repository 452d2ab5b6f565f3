"""GEMM + All-to-All: its shapes, gradient and function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from overlace.context import group_name, size_of
from overlace.ops._common import (
    check_factors,
    flat_splits,
    grad_of_weight,
    plan_of_backward,
    run,
    sent_and_received,
    splits_back,
)

_ops = torch.ops.overlace
# NOTE: an overload, not the name above it: that looks for one that fits at each call.
_op = torch.ops.overlace.gemm_a2a.default


@torch.library.register_fake("overlace::gemm_a2a")
def _shapes(a, b, bias, group, *, out_dtype=None, splits=(), plan=""):
    rank, size = size_of("gemm_a2a", group, {"a": a, "b": b, "bias": bias})
    check_factors("gemm_a2a", a, b, "b", rank)
    _, received = sent_and_received(a.shape[0], splits, rank, size)
    return a.new_empty((sum(received), b.shape[1]), dtype=out_dtype or a.dtype)


def _setup(ctx, inputs, keyword_only_inputs, output) -> None:
    a, b, bias, ctx.group = inputs
    ctx.splits, ctx.plan = keyword_only_inputs["splits"], keyword_only_inputs["plan"]
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.save_for_backward(a, b)


def _backward(ctx, grad):
    a, b = ctx.saved_tensors
    needs_a, needs_b, needs_bias = ctx.needs_input_grad[:3]
    _, size = size_of("backward", ctx.group)
    # The rows go back to whom they came from, and all three gradients are made of them.
    dy, grad_a = _ops.a2a_gemm(
        grad.to(a.dtype),
        b.t() if needs_a else b.t()[:, :0],
        None,
        ctx.group,
        return_a=needs_b or needs_bias,
        splits=splits_back(a.shape[0], ctx.splits, size),
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
    out_dtype: torch.dtype | None = None,
    plan: str = "",
) -> torch.Tensor:
    """GEMM and All-to-All of its rows: what each rank multiplied for this one, in rank order.

    The rows of `a` are one block for each rank, and block d of `a b` goes to rank d.

    a: (M of this rank, K). Dtypes as in ag_gemm.
    b: (K, N), of the dtype of a; rows or columns contiguous. Each rank has its own; K may differ by rank.
    group, plan: as in ag_gemm.
    bias: (N) or None, added to each row of this rank's product. Its gradient is that of this rank's rows.
    splits: rows from rank s to rank d as splits[s][d], or at s * ranks + d of a flat list; 0 or more, and the same on
        all ranks. None: all ranks have as many rows, and cut them as torch.tensor_split does.
    out_dtype: that of a (default) or float32; rows travel in it, rounded once.

    Gives (sum over s of splits[s][rank], N). The gradient is one a2a_gemm, whose exchange all three are made of. Raises
    as ag_gemm; PlanMismatch where ranks give other splits. Source: arXiv 2305.06942, section 3, whose
    mixture-of-experts operator this is for blocks of any length.
    """
    name = group_name(group)
    options: dict[str, Any] = {}
    if splits is not None or out_dtype or plan:
        options = {
            "out_dtype": out_dtype,
            "splits": flat_splits("gemm_a2a", splits, size_of("gemm_a2a", name)[1]),
            "plan": plan,
        }
    return run(_op, (a, b, bias, name), options, (a, b, bias))


torch.library.register_autograd("overlace::gemm_a2a", _backward, setup_context=_setup)
