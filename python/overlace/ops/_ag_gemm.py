"""AllGather + GEMM: its shapes, gradient and function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

import torch

from overlace.context import group_name, size_of
from overlace.errors import InvalidArgument, Unsupported
from overlace.ops._common import (
    activation_of,
    as_before,
    check_factors,
    grad_of_gathered,
    grad_of_weight,
    has_contiguous_rows,
    needs_gradient,
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
_op = torch.ops.overlace.ag_gemm.default


@register_shapes("ag_gemm")
def _shapes(
    a, bs, biases, gather_dim, group, *, return_a=False, out_dtype=None, activation="none", row_offsets=(), plan=""
):
    rank, size = size_of("ag_gemm", group, {"a": a, **numbered("bs", bs), **numbered("biases", biases)})
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
        check_factors("ag_gemm", a, b, f"bs[{i}]", rank)
    m = row_offsets[-1] if row_offsets else a.shape[0] * size
    a_full = a.new_empty((m, a.shape[1]) if return_a else (0, 0))
    pair = 2 if activation == "swiglu" else 1
    return a_full, [a.new_empty((m, b.shape[1] // pair), dtype=out_dtype or a.dtype) for b in bs]


def _setup(ctx, inputs, keyword_only_inputs, output) -> None:
    if keyword_only_inputs["activation"] != "none":
        raise Unsupported(
            f"ag_gemm: activation is '{keyword_only_inputs['activation']}' where a gradient is needed, wanted none; "
            "overlace.ops.ag_gemm does it behind the operator"
        )
    a, bs, biases, _, ctx.group = inputs
    ctx.row_offsets, ctx.plan = keyword_only_inputs["row_offsets"], keyword_only_inputs["plan"]
    ctx.keeps_gathered, ctx.num_biases = keyword_only_inputs["return_a"], len(biases)
    ctx.num_bs, ctx.bias_dtypes = len(bs), [t.dtype for t in biases]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[0] if ctx.keeps_gathered else a, *bs)


def _grads_of_weights(ctx, kept, dys, bs):
    """Gradients of the weights from the kept activation, or from one gathered again."""
    plan = plan_of_backward(ctx.plan)
    if not dys:
        return []
    if not ctx.keeps_gathered:
        if all(has_contiguous_rows(b) for b in bs):
            return _ops.ag_wgrad(kept, dys, 0, ctx.group, row_offsets=ctx.row_offsets, plan=plan)
        kept, _ = _ops.ag_gemm(
            kept, [bs[0][:, :0]], [], 0, ctx.group, return_a=True, row_offsets=ctx.row_offsets, plan=plan
        )
    return [grad_of_weight(kept, dy, b) for dy, b in zip(dys, bs, strict=True)]


def _backward(ctx, grad_a_full, grads):
    kept, *bs = ctx.saved_tensors
    needs_a, needs_bs, needs_biases = ctx.needs_input_grad[:3]
    pairs = [(dy, b) for dy, b in zip(grads, bs, strict=True) if dy is not None]
    grad_a = grad_of_gathered(ctx, grad_a_full if ctx.keeps_gathered else None, pairs, kept) if needs_a else None
    grad_bs: list[torch.Tensor | None] = [None] * ctx.num_bs
    if any(needs_bs):
        wanted = [i for i, dy in enumerate(grads) if needs_bs[i] and dy is not None]
        dys = [grads[i].to(kept.dtype) for i in wanted]
        found = _grads_of_weights(ctx, kept, dys, [bs[i] for i in wanted])
        for i, grad in zip(wanted, found, strict=True):
            grad_bs[i] = grad
    grad_biases: list[torch.Tensor | None] = [None] * ctx.num_biases
    for i, dtype in enumerate(ctx.bias_dtypes):
        if needs_biases[i] and grads[i] is not None:
            grad_biases[i] = grads[i].sum(0).to(dtype)
    return grad_a, grad_bs, grad_biases, None, None


@overload
def ag_gemm(
    a: torch.Tensor,
    bs: torch.Tensor,
    *,
    group: object,
    biases: torch.Tensor | Sequence[torch.Tensor] | None = ...,
    gather_dim: int = ...,
    return_a: Literal[False] = ...,
    keep_gathered: bool = ...,
    out_dtype: torch.dtype | None = ...,
    activation: str = ...,
    row_offsets: Sequence[int] | None = ...,
    plan: str = ...,
) -> torch.Tensor: ...
@overload
def ag_gemm(
    a: torch.Tensor,
    bs: Sequence[torch.Tensor],
    *,
    group: object,
    biases: torch.Tensor | Sequence[torch.Tensor] | None = ...,
    gather_dim: int = ...,
    return_a: Literal[False] = ...,
    keep_gathered: bool = ...,
    out_dtype: torch.dtype | None = ...,
    activation: str = ...,
    row_offsets: Sequence[int] | None = ...,
    plan: str = ...,
) -> list[torch.Tensor]: ...
@overload
def ag_gemm(
    a: torch.Tensor,
    bs: torch.Tensor,
    *,
    group: object,
    biases: torch.Tensor | Sequence[torch.Tensor] | None = ...,
    gather_dim: int = ...,
    return_a: Literal[True],
    keep_gathered: bool = ...,
    out_dtype: torch.dtype | None = ...,
    activation: str = ...,
    row_offsets: Sequence[int] | None = ...,
    plan: str = ...,
) -> tuple[torch.Tensor, torch.Tensor]: ...
@overload
def ag_gemm(
    a: torch.Tensor,
    bs: Sequence[torch.Tensor],
    *,
    group: object,
    biases: torch.Tensor | Sequence[torch.Tensor] | None = ...,
    gather_dim: int = ...,
    return_a: Literal[True],
    keep_gathered: bool = ...,
    out_dtype: torch.dtype | None = ...,
    activation: str = ...,
    row_offsets: Sequence[int] | None = ...,
    plan: str = ...,
) -> tuple[torch.Tensor, list[torch.Tensor]]: ...
@overload
def ag_gemm(
    a: torch.Tensor,
    bs: torch.Tensor | Sequence[torch.Tensor],
    *,
    group: object,
    biases: torch.Tensor | Sequence[torch.Tensor] | None = ...,
    gather_dim: int = ...,
    return_a: bool = ...,
    keep_gathered: bool = ...,
    out_dtype: torch.dtype | None = ...,
    activation: str = ...,
    row_offsets: Sequence[int] | None = ...,
    plan: str = ...,
) -> torch.Tensor | list[torch.Tensor] | tuple[torch.Tensor, torch.Tensor | list[torch.Tensor]]: ...
def ag_gemm(
    a: torch.Tensor,
    bs: torch.Tensor | Sequence[torch.Tensor],
    *,
    group: object,
    biases: torch.Tensor | Sequence[torch.Tensor] | None = None,
    gather_dim: int = 0,
    return_a: bool = False,
    keep_gathered: bool = True,
    out_dtype: torch.dtype | None = None,
    activation: str = "none",
    row_offsets: Sequence[int] | None = None,
    plan: str = "",
) -> torch.Tensor | list[torch.Tensor] | tuple[torch.Tensor, torch.Tensor | list[torch.Tensor]]:
    """AllGather and GEMM: `concat over ranks of a, along gather_dim` times each of bs. A column-parallel layer.

    a: (..., K), this rank's part; float32, bfloat16, float16, and float64 on CPUs.
    bs: one (K, N) or several, of the dtype of a; rows or columns contiguous, so `weight.t()` is free. N may differ
        by rank. The gather hides behind the widest of them.
    group: ProcessGroup, DeviceMesh of one dimension, or None for the default group; `overlace.init` made its team.
    biases: (N) for each of bs, or None; of the dtype of the results, on CPU ranks of a too.
    gather_dim: any dimension of a but the last. Another than 0 costs copies.
    return_a: give the gathered activation too.
    keep_gathered: where a weight needs a gradient, the gathered activation is kept for it; False keeps this rank's part
        and gathers again in backward (for weights stored (K, N) by ag_wgrad), which all ranks must choose alike.
    out_dtype: that of a (default) or float32.
    activation: of the results, behind the bias: "none", "silu", "gelu", or "swiglu", where column 2i of b is a gate and
        2i + 1 what it is for, silu(gate) times that: N / 2 columns (overlace.nn.interleave_gate_up makes such weights).
        "swiglu" of one b, where nothing needs a gradient, is the operator's own, in the epilogue where its schedule is
        one kernel; else torch does it behind the operator, since the gradient needs the results before it.
    row_offsets: where each rank's part begins along gather_dim, and the end: ranks + 1 numbers. None: equal parts.
    plan: "" or "auto" (overlace decides), "FAMILY" or "FAMILY:DEGREE" as `--schedule` of the command line takes it
        ("hetero_unfused_1d:4": four chunks per shard), or a schedule in JSON.

    Gives one tensor for one b, a list for a list; with return_a a tuple of the gathered activation and that.
    Raises InvalidArgument (shapes, dtypes, devices, an unknown group), PlanMismatch (the ranks disagree; on all of
    them), Unsupported, Timeout, PeerLost. Maths: arXiv 2406.06858, section 2.
    """
    is_one = isinstance(bs, torch.Tensor)
    factors = [bs] if isinstance(bs, torch.Tensor) else list(bs)
    vectors = [] if biases is None else [biases] if isinstance(biases, torch.Tensor) else list(biases)
    activate = activation_of("ag_gemm", activation, factors)
    matrix, rows, dim = rows_first("ag_gemm", a, gather_dim, "gather_dim")
    keeps = return_a or (keep_gathered and needs_gradient(factors))
    tensors = (matrix, *factors, *vectors)
    options: dict[str, Any] = {}
    if keeps or out_dtype or row_offsets or plan:
        offsets = offsets_in_rows(row_offsets, rows)
        options = {"return_a": keeps, "out_dtype": out_dtype, "row_offsets": offsets, "plan": plan}
    if activation == "swiglu" and len(factors) == 1 and not needs_gradient(tensors):
        options["activation"], activate = activation, None
    arguments = (matrix, factors, vectors, 0, group_name(group))
    a_full, outs = run(_op, arguments, options, tensors)
    if activate is not None:
        outs = [activate(out) for out in outs]
    if len(rows) > 1:
        outs = [as_before(out, rows, dim) for out in outs]
    result = outs[0] if is_one else outs
    return (as_before(a_full, rows, dim), result) if return_a else result


register_gradient("ag_gemm", _backward, _setup)
