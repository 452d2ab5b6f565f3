"""The router before a mixture of experts: its shapes, gradients and function. Local; no rank waits for another."""

from __future__ import annotations

import ctypes as c
import math

import torch

from overlace._call import tensor_of
from overlace._library import Tensor, _Sized, call
from overlace.errors import InvalidArgument
from overlace.ops._common import register_gradient, run

_NAME = "moe_router"
_MOST_CHOICES = 32


class _Router(_Sized):
    """ovl_moe_router."""

    _fields_ = (
        ("struct_size", c.c_size_t),
        *((name, Tensor) for name in ("x", "w_gate", "bias", "idx", "weights")),
        ("score", c.c_char_p),
        ("renormalize", c.c_int32),
        ("num_groups", c.c_int32),
        ("kept_groups", c.c_int32),
        ("route_scale", c.c_double),
    )


def _outputs(x, w_gate, bias, top_k):
    """Weights and experts; in this order, as torch's own check of operators wants a float first."""
    if x.dim() != 2 or not 1 <= top_k <= _MOST_CHOICES:
        raise InvalidArgument(
            f"{_NAME}: x is {list(x.shape)}, top_k is {top_k}, wanted two dimensions and 1 to {_MOST_CHOICES}"
        )
    shape = (x.shape[0], top_k)
    return x.new_empty(shape, dtype=torch.float32), x.new_empty(shape, dtype=torch.int32)


def _choose_by_torch(x, w_gate, bias, top_k, score, renormalize, num_groups, kept_groups, route_scale):
    """What the library chooses on the host, on whatever device the tensors are: weights, then experts."""
    with torch.autocast(x.device.type, enabled=False):
        logits = x.float() @ w_gate.float().t()
    finite = logits.isfinite()
    scores = torch.softmax(logits.masked_fill(~finite, -math.inf), 1) if score == "softmax" else torch.sigmoid(logits)
    scores = torch.where(finite, scores, 0)
    keys = scores if bias is None else scores + bias
    keys = torch.where(finite & keys.isfinite(), keys, -math.inf)
    if kept_groups < num_groups:
        groups = keys.unflatten(1, (num_groups, -1))
        best = groups.sort(dim=2, descending=True).values[:, :, :2]
        # A second one that is none adds nothing.
        sums = best[:, :, 0] + torch.where(best[:, :, 1:] > -math.inf, best[:, :, 1:], 0).sum(2)
        kept = sums.sort(dim=1, descending=True, stable=True).indices[:, :kept_groups]
        is_kept = torch.zeros_like(sums, dtype=torch.bool).scatter_(1, kept, True)
        keys = torch.where(is_kept.unsqueeze(2), groups, -math.inf).flatten(1)
    ids = keys.sort(dim=1, descending=True, stable=True).indices[:, :top_k]  # equal keys by ascending expert
    chosen = keys.gather(1, ids) > -math.inf
    weights = torch.where(chosen, scores.gather(1, ids), 0)
    if renormalize:
        weights = weights / (weights.sum(1, keepdim=True) + 1e-20)
    return weights * route_scale, torch.where(chosen, ids, -1).to(torch.int32)


def _check_options(x, w_gate, bias, top_k, options) -> None:
    """Checks what the library does, without tokens."""
    fits = w_gate.dim() == 2 and x.shape[1] == w_gate.shape[1] and x.dtype == w_gate.dtype
    if not fits or x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise InvalidArgument(
            f"{_NAME}: x is {x.dtype} {list(x.shape)} and w_gate {w_gate.dtype} {list(w_gate.shape)}, wanted (T, H) "
            "and (E, H), both float32, bfloat16 or float16"
        )
    on_host = {"x": torch.empty(0, 1), "w_gate": torch.empty(len(w_gate), 1)}
    on_host |= {} if bias is None else {"bias": torch.empty(bias.shape, dtype=bias.dtype)}
    _choose(on_host | {"idx": torch.empty(0, top_k, dtype=torch.int32), "weights": torch.empty(0, top_k)}, options)


def _forward(
    x, w_gate, bias, top_k, *, score="softmax", renormalize=False, num_groups=1, kept_groups=1, route_scale=1.0
):
    weights, idx = _outputs(x, w_gate, bias, top_k)
    options = {"score": score, "renormalize": renormalize, "num_groups": num_groups, "kept_groups": kept_groups}
    options["route_scale"] = route_scale
    if x.is_cuda:
        for name, t in {"w_gate": w_gate, "bias": bias}.items():
            if t is not None and t.device != x.device:
                raise InvalidArgument(f"{_NAME}: {name} is on {t.device}, wanted {x.device}, where x is")
        _check_options(x, w_gate, bias, top_k, options)
        return _choose_by_torch(x, w_gate, bias, top_k, **options)
    given = {"x": x, "w_gate": w_gate, "bias": bias, "idx": idx, "weights": weights}
    dense = {name: t.detach().contiguous() for name, t in given.items() if t is not None}
    _choose(dense, options)
    return weights, idx


def _choose(dense: dict[str, torch.Tensor], options: dict) -> None:
    tensors = {name: tensor_of(_NAME, name, t, torch.device("cpu")) for name, t in dense.items()}
    router = _Router(**tensors, **options | {"score": options["score"].encode()})
    call("ovl_moe_choose_experts", c.byref(router), None)


_op = torch.library.custom_op(
    "overlace::moe_router",
    _forward,
    mutates_args=(),
    schema=(
        '(Tensor x, Tensor w_gate, Tensor? bias, int top_k, *, str score="softmax", bool renormalize=False, '
        "int num_groups=1, int kept_groups=1, float route_scale=1.0) -> (Tensor, Tensor)"
    ),
)


@_op.register_fake
def _shapes(x, w_gate, bias, top_k, **options):
    return _outputs(x, w_gate, bias, top_k)


def _setup(ctx, inputs, keyword_only_inputs, output) -> None:
    x, w_gate, _, _ = inputs
    names = ("score", "renormalize", "route_scale")
    ctx.score, ctx.renormalize, ctx.scale = (keyword_only_inputs[name] for name in names)
    ctx.save_for_backward(x, w_gate, output[1])


def _gradients(ctx, grad):
    """Scores are computed again. What has a logit that is not finite has the score 0, so no part in any gradient."""
    x, w_gate, idx = ctx.saved_tensors
    tokens, gate = x.float(), w_gate.float()
    logits = tokens @ gate.t()
    finite = logits.isfinite()
    # A row with such a value has no finite logit at all; 0 times it would be no 0.
    tokens = torch.where(finite.any(1, keepdim=True), tokens, 0)
    gate = torch.where(finite.any(0).unsqueeze(1), gate, 0)
    is_softmax = ctx.score == "softmax"
    scores = torch.softmax(torch.where(finite, logits, -math.inf), 1) if is_softmax else torch.sigmoid(logits)
    scores = torch.where(finite, scores, 0)
    chosen, at = idx >= 0, idx.clamp(min=0).long()
    picked = torch.where(chosen, scores.gather(1, at), 0)
    grad = torch.where(chosen, grad * ctx.scale, 0)
    if ctx.renormalize:
        total = picked.sum(1, keepdim=True) + 1e-20
        grad = torch.where(chosen, (grad - (grad * picked).sum(1, keepdim=True) / total) / total, 0)
    if is_softmax:
        of_scores = torch.zeros_like(scores).scatter_add(1, at, grad)
        of_logits = scores * (of_scores - (grad * picked).sum(1, keepdim=True))
    else:
        of_logits = torch.zeros_like(scores).scatter_add(1, at, grad * picked * (1 - picked))
    of_x = (of_logits @ gate).to(x.dtype) if ctx.needs_input_grad[0] else None
    of_gate = (of_logits.t() @ tokens).to(w_gate.dtype) if ctx.needs_input_grad[1] else None
    return of_x, of_gate, None, None


def _backward(ctx, grad, _):
    with torch.autocast(grad.device.type, enabled=False):  # autograd and graphs run this under the caller's
        return _gradients(ctx, grad)


register_gradient("moe_router", _backward, _setup)


def moe_router(
    x: torch.Tensor,
    w_gate: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    top_k: int,
    score: str = "softmax",
    renormalize: bool = False,
    num_groups: int = 1,
    kept_groups: int = 1,
    route_scale: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The experts that each token goes to, and their weights: what overlace.ops.moe takes. Local; on
    CPUs by the library, on GPUs by torch.

    x: (..., H), T rows of float32, bfloat16 or float16.
    w_gate: (E, H) of the dtype of x. Logits are x w_gate^T in float32, whatever autocast says; on GPUs by torch, with
        TF32 where torch.set_float32_matmul_precision asks for it.
    bias: (E) float32 or None: added to the scores for the choice alone, so it has no gradient.
    top_k: experts of a token, 1 to 32 and at most those of the kept groups.
    score: of a logit: "softmax", over all experts, or "sigmoid".
    renormalize: weights are divided by their sum over the token's experts.
    num_groups, kept_groups: experts are in groups of E / num_groups; they are chosen from the groups with the largest
        sums of their two best scores.
    route_scale: a factor of all weights.

    Gives idx (..., top_k) int32, by descending score, equal ones by ascending expert, and weights (..., top_k) float32.
    An expert whose logit is not finite is never chosen; where fewer than top_k are left, idx is -1 and the weight 0.
    Gradients of weights go to x and w_gate, through the chosen scores; the choice itself has none; second
    ones too, outside of compiled functions. Raises InvalidArgument.
    """
    matrix = x.flatten(0, -2) if x.dim() > 2 else x
    options = {"score": score, "renormalize": renormalize, "num_groups": num_groups, "kept_groups": kept_groups}
    arguments = (matrix, w_gate, bias, top_k)
    weights, idx = run(
        torch.ops.overlace.moe_router.default, arguments, options | {"route_scale": route_scale}, (x, w_gate)
    )
    if x.dim() > 2:
        idx, weights = (t.reshape(*x.shape[:-1], top_k) for t in (idx, weights))
    return idx, weights
