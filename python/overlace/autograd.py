"""Gradients of the operators. Only those that are needed are computed; all ranks must need the same ones.

| forward | gradient of the activation | gradient of the weight |
|---|---|---|
| Y_i = AG(x) W_i | dx = RS(sum_i dY_i W_i^T): one gemm_rs | dW_i = AG(x)^T dY_i: of AG(x), kept or gathered again |
| y = RS(A W) | dA = AG(dy) W^T: ag_gemm, which also gives AG(dy) | dW = A^T AG(dy) |
| Y = AR(A W) | dA = dY W^T, local: dY is the same on all ranks | dW = A^T dY |
| dW_i = AG(x)^T dY_i | dx = RS(sum_i dY_i dW_i'^T), dW_i' the gradient of dW_i: one gemm_rs | of dY_i: AG(x) dW_i' |

Of the plain collectives: all_gather and reduce_scatter are each other's; that of all_to_all is itself; that of
all_reduce is local, as of Y = AR(A W).

Gradients are made of differentiable operators, so they have gradients themselves, of any order. What all ranks hold
alike (dY of AR, a bias of RS and its gradient) counts once: where each rank goes on with it alone, its own gradient is
the sum over ranks.

The gradient of a weight lies in memory as the weight does, so that autograd adds it without a copy: of `weight.t()` it
is the transpose of dY^T A. ag_wgrad, which gathers again and hides that, gives results whose rows are contiguous: it is
for weights stored like that.
"""

from __future__ import annotations

import torch

from overlace.errors import Unsupported

_ops = torch.ops.overlace


def _plan_of_backward(plan: str) -> str:
    """Plans name a family of one operator; only `library` is one of all."""
    return plan if plan == "family=library" else ""


class _Replicated(torch.autograd.Function):
    """What is the same on all ranks, and used by each alone: the gradients of those uses are summed over ranks."""

    @staticmethod
    def forward(ctx, t, group):
        ctx.group = group
        return t.view_as(t)

    @staticmethod
    def backward(ctx, grad):
        return _ops.all_reduce(grad, "sum", ctx.group), None


def replicated(t, group):
    """Of gradients: `t` itself where no second backward is to come."""
    return _Replicated.apply(t, group) if torch.is_grad_enabled() and t.requires_grad else t


def _setup_ag_gemm(ctx, inputs, keyword_only_inputs, output) -> None:
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


def _has_contiguous_rows(b):
    """By its stride alone: ranks that have a single column, or none, decide as the others do."""
    return b.stride(1) == 1


def _grad_of_weight(rows, dy, b):
    """rows^T dY, stored as b is: K or N contiguous."""
    return rows.t() @ dy if _has_contiguous_rows(b) else (dy.t() @ rows).t()


def _grads_of_weights(ctx, kept, dys, bs):
    """Of the kept activation, or of one gathered again."""
    plan = _plan_of_backward(ctx.plan)
    if not dys:
        return []
    if not ctx.keeps_gathered:
        if all(_has_contiguous_rows(b) for b in bs):
            return _ops.ag_wgrad(kept, dys, 0, ctx.group, row_offsets=ctx.row_offsets, plan=plan)
        kept, _ = _ops.ag_gemm(
            kept, [bs[0][:, :0]], [], 0, ctx.group, return_a=True, row_offsets=ctx.row_offsets, plan=plan
        )
    return [_grad_of_weight(kept, dy, b) for dy, b in zip(dys, bs, strict=True)]


def _grad_of_gathered(ctx, grad_a_full, pairs, like):
    """RS of the sum of dY W^T, and of what came back through the gathered activation itself."""
    dys, weights = [dy.to(like.dtype) for dy, _ in pairs], [b.t() for _, b in pairs]
    if grad_a_full is not None:
        dys.append(grad_a_full)
        weights.append(torch.eye(like.shape[1], dtype=like.dtype, device=like.device))
    if not dys:
        return None
    dy = dys[0] if len(dys) == 1 else torch.cat(dys, 1)
    weight = weights[0] if len(weights) == 1 else torch.cat(weights, 0)
    return _ops.gemm_rs(
        dy, weight, None, "sum", 0, ctx.group, row_offsets=ctx.row_offsets, plan=_plan_of_backward(ctx.plan)
    )


def _backward_ag_gemm(ctx, grad_a_full, grads):
    kept, *bs = ctx.saved_tensors
    needs_a, needs_bs, needs_biases = ctx.needs_input_grad[:3]
    pairs = [(dy, b) for dy, b in zip(grads, bs, strict=True) if dy is not None]
    grad_a = _grad_of_gathered(ctx, grad_a_full if ctx.keeps_gathered else None, pairs, kept) if needs_a else None
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


def _setup_reduced(ctx, inputs, keyword_only_inputs, output) -> None:
    a, b, bias, reduce_op, *_, ctx.group = inputs
    ctx.row_offsets = keyword_only_inputs.get("row_offsets", [])
    ctx.plan, ctx.average = keyword_only_inputs["plan"], reduce_op == "avg"
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.save_for_backward(a, b)


def _scale_of(ctx) -> float:
    from overlace.context import size_of

    return 1.0 / size_of("backward", ctx.group)[1] if ctx.average else 1.0


def _backward_gemm_rs(ctx, grad):
    a, b = ctx.saved_tensors
    needs_a, needs_b, needs_bias = ctx.needs_input_grad[:3]
    dy = grad.to(a.dtype)
    factor = b.t() if needs_a else b.t()[:, :0]
    full, (grad_a,) = _ops.ag_gemm(
        dy * _scale_of(ctx) if ctx.average else dy,
        [factor],
        [],
        0,
        ctx.group,
        return_a=True,
        row_offsets=ctx.row_offsets,
        plan=_plan_of_backward(ctx.plan),
    )
    grad_bias = None
    if needs_bias:  # added once to each row, by its owner: every rank has the whole sum
        # All ranks hold one bias, but AG(dy) each for itself: a second derivative is that of the sum over ranks.
        is_recorded = torch.is_grad_enabled() and dy.requires_grad
        total = _ops.all_reduce(dy.sum(0), "sum", ctx.group) if is_recorded else None
        grad_bias = (full.sum(0) if total is None else total).to(ctx.bias_dtype)
        if ctx.average:
            grad_bias = grad_bias / _scale_of(ctx)
    grad_b = _grad_of_weight(a, full, b) if needs_b else None
    return grad_a if needs_a else None, grad_b, grad_bias, None, None, None


def _backward_gemm_ar(ctx, grad):
    a, b = ctx.saved_tensors
    needs_a, needs_b, needs_bias = ctx.needs_input_grad[:3]
    dy = replicated(grad, ctx.group)
    dy = dy * _scale_of(ctx) if ctx.average else dy
    grad_bias = grad.sum(0).to(ctx.bias_dtype) if needs_bias else None
    grad_b = _grad_of_weight(a, dy, b) if needs_b else None
    return dy @ b.t() if needs_a else None, grad_b, grad_bias, None, None


def _setup_ag_wgrad(ctx, inputs, keyword_only_inputs, output) -> None:
    x, dys, _, ctx.group = inputs
    ctx.row_offsets, ctx.plan = keyword_only_inputs["row_offsets"], keyword_only_inputs["plan"]
    ctx.num_dys = len(dys)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, *dys)


def _backward_ag_wgrad(ctx, grads):
    x, *dys = ctx.saved_tensors
    needs_x, needs_dys = ctx.needs_input_grad[:2]
    grad_x = None
    if needs_x:
        grad_x = _grad_of_gathered(ctx, None, [(dy, g) for dy, g in zip(dys, grads, strict=True) if g is not None], x)
    grad_dys: list[torch.Tensor | None] = [None] * ctx.num_dys
    wanted = [i for i, g in enumerate(grads) if needs_dys[i] and g is not None]
    if wanted:
        factors, plan = [grads[i].to(x.dtype) for i in wanted], _plan_of_backward(ctx.plan)
        _, found = _ops.ag_gemm(x, factors, [], 0, ctx.group, row_offsets=ctx.row_offsets, plan=plan)
        for i, grad in zip(wanted, found, strict=True):
            grad_dys[i] = grad
    return grad_x, grad_dys, None, None


def _setup_collective(ctx, inputs, output) -> None:
    _, *options, ctx.group = inputs
    ctx.average = "avg" in options
    ctx.dim = options[-1] if options else None


def _backward_all_gather(ctx, grad):
    return _ops.reduce_scatter(grad, "sum", ctx.dim, ctx.group), None, None


def _backward_reduce_scatter(ctx, grad):
    full = _ops.all_gather(grad, ctx.dim, ctx.group)
    return full * _scale_of(ctx) if ctx.average else full, None, None, None


def _backward_all_reduce(ctx, grad):
    grad = replicated(grad, ctx.group)
    return grad * _scale_of(ctx) if ctx.average else grad, None, None


def _backward_all_to_all(ctx, grad):
    return _ops.all_to_all(grad, ctx.dim, ctx.group), None, None


torch.library.register_autograd("overlace::ag_gemm", _backward_ag_gemm, setup_context=_setup_ag_gemm)
torch.library.register_autograd("overlace::ag_wgrad", _backward_ag_wgrad, setup_context=_setup_ag_wgrad)
torch.library.register_autograd("overlace::gemm_rs", _backward_gemm_rs, setup_context=_setup_reduced)
torch.library.register_autograd("overlace::gemm_ar", _backward_gemm_ar, setup_context=_setup_reduced)
torch.library.register_autograd("overlace::all_gather", _backward_all_gather, setup_context=_setup_collective)
torch.library.register_autograd("overlace::reduce_scatter", _backward_reduce_scatter, setup_context=_setup_collective)
torch.library.register_autograd("overlace::all_reduce", _backward_all_reduce, setup_context=_setup_collective)
torch.library.register_autograd("overlace::all_to_all", _backward_all_to_all, setup_context=_setup_collective)
