"""Mixture of experts: its shapes, gradients and function."""

from __future__ import annotations

import ctypes as c
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NoReturn, overload

import torch

from overlace import _library, errors
from overlace._call import tensor_of
from overlace._library import Tensor, _Sized
from overlace.context import context_of, group_name, size_of
from overlace.errors import Error, Internal, InvalidArgument, Unsupported
from overlace.ops._common import register_gradient, run

_NAME = "moe"
_OPERANDS = ("x", "idx", "weights", "w1", "w2", "b1", "b2")
_SCALARS = ("weights", "dweights")  # of which kernels take single numbers
_GRADIENTS = ("dweights", "dw1", "dw2", "db1", "db2")
_REFUSED = Tensor(None, 0, 1, (0,), (1,))  # (0) fp64, which the library takes nowhere


class _Layer(_Sized):
    """ovl_moe."""

    _fields_ = (
        ("struct_size", c.c_size_t),
        *((name, Tensor) for name in (*_OPERANDS, "out")),
        ("num_experts", c.c_int64),
        ("activation", c.c_char_p),
        ("gated", c.c_int32),
        ("capacity_factor", c.c_double),
        ("expert_begin", c.POINTER(c.c_int64)),
        ("max_tokens", c.c_int64),
        ("family", c.c_char_p),
    )


class _Grad(_Sized):
    """ovl_moe_grad."""

    _fields_ = (("struct_size", c.c_size_t), *((name, Tensor) for name in ("dy", "dx", *_GRADIENTS)))


def _with_rows(t: torch.Tensor, is_scalar: bool) -> torch.Tensor:
    """Matrices, or stacks of them, with rows as the library takes them; others are copied. `is_scalar`: kernels read
    single numbers of it, of others 16 bytes at a time."""
    if t.dim() < 2:
        return t
    rows_lie = t.stride(-1) == 1 and (t.shape[-2] <= 1 or t.stride(-2) >= t.shape[-1])
    if t.is_cuda and t.is_floating_point() and not is_scalar:
        unit = 16 // t.element_size()
        strides = (stride for stride, size in zip(t.stride()[:-1], t.shape[:-1], strict=True) if size > 1)
        apart = t.dim() < 3 or t.shape[0] <= 1 or t.stride(0) >= t.shape[1] * t.stride(1)
        rows_lie = rows_lie and apart and t.data_ptr() % 16 == 0 and all(stride % unit == 0 for stride in strides)
    return t if rows_lie else t.clone(memory_format=torch.contiguous_format)


class _Call:
    """A call of the library by this rank. What cannot be given to the library becomes something that it refuses, so
    that the other ranks, which meet this one there, refuse the call too."""

    def __init__(self, op: str, group: str) -> None:
        self.op, self.context = op, context_of(group)
        self.why: Exception | None = None  # this rank refuses the call
        self._kept: list[torch.Tensor] = []  # the library has their addresses

    def view(self, name: str, t: torch.Tensor | None, *, is_output: bool = False) -> Tensor:
        if t is None:
            return Tensor()
        try:
            lies = _with_rows(t.detach(), is_scalar=name in _SCALARS)
            if is_output and lies.data_ptr() != t.data_ptr():
                raise Internal(f"{self.op}: {name} has strides {t.stride()}, wanted rows as the library writes them")
            self._kept.append(lies)
            return tensor_of(self.op, name, lies, self.context.device)
        except Error as error:
            self.why = self.why or error
            return _REFUSED

    def layer(self, tensors: Mapping[str, torch.Tensor | None], fields: Mapping[str, Any]) -> _Layer:
        begin, wanted = fields["expert_begin"], self.context.size + 1
        if begin and len(begin) != wanted:
            self.why = self.why or InvalidArgument(
                f"{self.op}: expert_begin has {len(begin)} entries, wanted {wanted}, one more than ranks"
            )
            begin = [0] * wanted
        return _Layer(
            **{name: self.view(name, t) for name, t in tensors.items()},
            num_experts=fields["num_experts"],
            activation=fields["activation"].encode(),
            gated=fields["gated"],
            capacity_factor=fields["capacity_factor"],
            expert_begin=(c.c_int64 * wanted)(*begin) if begin else None,
            max_tokens=fields["max_tokens"],
            family=fields["family"].encode(),
        )

    def run(self, function: str, *arguments: object) -> None:
        if self.why is not None and self.context.is_gpu:
            raise self.why  # nobody meets there
        code = getattr(_library.operators(), function)(self.context.name.encode(), *arguments)
        text = _library.LIBRARY.ovl_error_text().decode() if code != 0 else ""
        if self.why is not None:
            raise self.why
        if code != 0:
            raise errors.make(_library.LIBRARY.ovl_error_name(code).decode(), text)


def _fields(options: Mapping[str, Any], num_experts: int) -> dict[str, Any]:
    given: dict[str, Any] = {"activation": "silu", "gated": True, "capacity_factor": 0.0, "expert_begin": ()}
    given |= {"max_tokens": 0, "family": "auto"}
    return given | dict(options) | {"num_experts": num_experts}


def _forward(x, idx, weights, w1, w2, b1, b2, num_experts, group, **options):
    call = _Call(_NAME, group)
    operands = dict(zip(_OPERANDS, (x, idx, weights, w1, w2, b1, b2), strict=True))
    on = call.context.device
    out = torch.empty(x.shape, dtype=x.dtype, device=on)
    load = torch.zeros(w1.shape[:1], dtype=torch.int64, device=on)
    dropped = torch.zeros((), dtype=torch.int64, device=on)
    layer = call.layer({**operands, "out": out}, _fields(options, num_experts))
    to = [c.c_void_p(t.data_ptr()) for t in (load, dropped)]
    call.run("ovl_torch_moe_run", c.byref(layer), *to)
    return out, load, dropped


_OPTIONS = (
    'str activation="silu", bool gated=True, float capacity_factor=0.0, int[] expert_begin=[], int max_tokens=0, '
    'str family="auto"'
)
_TENSORS = "Tensor x, Tensor idx, Tensor weights, Tensor w1, Tensor w2, Tensor? b1, Tensor? b2"

_op = torch.library.custom_op(
    "overlace::moe",
    _forward,
    mutates_args=(),
    schema=f"({_TENSORS}, int num_experts, str group, *, {_OPTIONS}) -> (Tensor, Tensor, Tensor)",
)


def _check(op: str, group: str, tensors: Mapping[str, torch.Tensor | None]) -> None:
    """For shape functions; the library checks all when it runs."""
    size_of(op, group, tensors)
    for name, dims in {"x": 2, "idx": 2, "weights": 2, "w1": 3, "w2": 3}.items():
        t = tensors[name]
        if t is not None and t.dim() != dims:
            raise InvalidArgument(f"{op}: {name} is {list(t.shape)}, wanted {dims} dimensions")


@_op.register_fake
def _shapes(x, idx, weights, w1, w2, b1, b2, num_experts, group, **options):
    _check(_NAME, group, dict(zip(_OPERANDS, (x, idx, weights, w1, w2, b1, b2), strict=True)))
    load, dropped = (x.new_empty(shape, dtype=torch.int64) for shape in (w1.shape[:1], ()))
    return x.new_empty(x.shape), load, dropped


# ---- gradients ----


def _empty_gradients(operands: Sequence[torch.Tensor | None], needs: Sequence[bool]) -> list[torch.Tensor]:
    """Room for gradients of x, weights, w1, w2, b1, b2; of what is not needed, or not there, (0)."""
    wanted = [operands[0], *operands[2:]]
    device = next(t.device for t in operands if t is not None)
    return [
        torch.empty(
            t.shape if t is not None and need else (0,),
            dtype=torch.float32 if t is None else t.dtype,
            device=device if t is None else t.device,
        )
        for t, need in zip(wanted, (True, *needs), strict=True)
    ]


def _gradients(dy, x, idx, weights, w1, w2, b1, b2, num_experts, group, needs, **options):
    call, fields = _Call("moe_grad", group), _fields(options, num_experts)
    operands: dict[str, torch.Tensor | None] = dict(zip(_OPERANDS, (x, idx, weights, w1, w2, b1, b2), strict=True))
    dx, *others = grads = _empty_gradients(list(operands.values()), needs)
    layer = call.layer(operands, fields)
    there = [need and t is not None for need, t in zip(needs, (weights, w1, w2, b1, b2), strict=True)]
    wanted = [pair for pair, given in zip(zip(_GRADIENTS, others, strict=True), there, strict=True) if given]
    views = {name: call.view(name, grad, is_output=True) for name, grad in [("dx", dx), *wanted]}
    grad = _Grad(dy=call.view("dy", dy), **views)
    call.run("ovl_torch_moe_run_grad", c.byref(layer), c.byref(grad))
    return tuple(grads)


_gradients_op = torch.library.custom_op(
    "overlace::moe_grad",
    _gradients,
    mutates_args=(),
    schema=(
        f"(Tensor dy, {_TENSORS}, int num_experts, str group, bool[] needs, *, {_OPTIONS}) -> "
        "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
    ),
)


@_gradients_op.register_fake
def _shapes_of_gradients(dy, x, idx, weights, w1, w2, b1, b2, num_experts, group, needs, **options):
    _check("moe_grad", group, dict(zip(_OPERANDS, (x, idx, weights, w1, w2, b1, b2), strict=True)))
    return tuple(_empty_gradients((x, idx, weights, w1, w2, b1, b2), needs))


def _setup(ctx, inputs, keyword_only_inputs, output) -> None:
    *operands, ctx.num_experts, ctx.group = inputs
    ctx.options = keyword_only_inputs
    ctx.save_for_backward(*operands)


def _backward(ctx, dy, _load, _dropped):
    _, _, *needs = ctx.needs_input_grad[: len(_OPERANDS)]
    dx, *others = torch.ops.overlace.moe_grad(dy, *ctx.saved_tensors, ctx.num_experts, ctx.group, needs, **ctx.options)
    of_weights = [grad if need else None for grad, need in zip(others, needs, strict=True)]
    return dx, None, *of_weights, None, None


register_gradient("moe", _backward, _setup)


def _refuse_second(_ctx: Any, *_grads: torch.Tensor) -> NoReturn:
    raise Unsupported(
        f"{_NAME}: backward through its own gradients (create_graph=True), wanted first derivatives alone: "
        "experts have no second ones"
    )


torch.library.register_autograd("overlace::moe_grad", _refuse_second)


# ---- the function ----


def refuse(group: object, why: Exception) -> NoReturn:
    """Raises `why`, after the call that the other ranks are in, and which the library refuses for this rank."""
    call = _Call(_NAME, group_name(group))
    if call.context.is_gpu:
        raise why
    call.why = why
    layer = _Layer(x=_REFUSED, out=_REFUSED, activation=b"silu", num_experts=1)
    to = [torch.zeros(1, dtype=torch.int64) for _ in range(2)]
    call.run("ovl_torch_moe_run", c.byref(layer), *(c.c_void_p(t.data_ptr()) for t in to))
    raise why


def _check_places(group: object, tensors: Mapping[str, torch.Tensor | None]) -> None:
    """With one on the meta device, torch takes the shape function for all, and the other ranks would wait."""
    on = {name: t.device.type for name, t in tensors.items() if t is not None}
    if "meta" in on.values() and len(set(on.values())) > 1:
        places = ", ".join(f"{name} is on {place}" for name, place in on.items())
        refuse(group, InvalidArgument(f"{_NAME}: {places}, wanted all on one device"))


def _matrices(group: object, x: torch.Tensor, **choices: torch.Tensor) -> list[torch.Tensor]:
    """x (..., H) and choices (..., k) as matrices with a row for each token."""
    if x.dim() <= 2:
        return [x, *choices.values()]
    rows = list(x.shape[:-1])
    for name, t in choices.items():
        if list(t.shape[:-1]) != rows:
            wanted = f"[{', '.join(map(str, rows))}, k], as x is {list(x.shape)}"
            refuse(group, InvalidArgument(f"{_NAME}: {name} is {list(t.shape)}, wanted {wanted}"))
    return [t.flatten(0, -2) for t in (x, *choices.values())]


def real_rows(group: object, x: torch.Tensor, num_tokens: torch.Tensor | int) -> torch.Tensor:
    """(..., 1) bool, with the leading dimensions of x: which rows are in front of the padding."""
    rows = math.prod(x.shape[:-1])
    if isinstance(num_tokens, torch.Tensor):
        is_integer = num_tokens.dtype in (torch.int32, torch.int64)
        if not is_integer or num_tokens.numel() != 1 or num_tokens.device != x.device:
            got = f"{num_tokens.dtype} {list(num_tokens.shape)} on {num_tokens.device}"
            why = f"num_tokens is {got}, wanted one int32 or int64 on {x.device}, where x is, or an int"
            refuse(group, InvalidArgument(f"{_NAME}: {why}"))
        num_tokens = num_tokens.reshape(())
    elif not 0 <= num_tokens <= rows:
        refuse(group, InvalidArgument(f"{_NAME}: num_tokens is {num_tokens}, wanted 0 to {rows}, the rows of x"))
    return (torch.arange(rows, device=x.device) < num_tokens).view(*x.shape[:-1], 1)


@overload
def moe(
    x: torch.Tensor,
    idx: torch.Tensor,
    weights: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    b1: torch.Tensor | None = ...,
    b2: torch.Tensor | None = ...,
    *,
    num_experts: int,
    activation: str = ...,
    gated: bool = ...,
    capacity_factor: float = ...,
    expert_begin: Sequence[int] | None = ...,
    max_tokens: int = ...,
    family: str = ...,
    num_tokens: torch.Tensor | int | None = ...,
    return_load: Literal[False] = ...,
    group: object = ...,
) -> torch.Tensor: ...


@overload
def moe(
    x: torch.Tensor,
    idx: torch.Tensor,
    weights: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    b1: torch.Tensor | None = ...,
    b2: torch.Tensor | None = ...,
    *,
    num_experts: int,
    activation: str = ...,
    gated: bool = ...,
    capacity_factor: float = ...,
    expert_begin: Sequence[int] | None = ...,
    max_tokens: int = ...,
    family: str = ...,
    num_tokens: torch.Tensor | int | None = ...,
    return_load: Literal[True],
    group: object = ...,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]: ...


def moe(
    x: torch.Tensor,
    idx: torch.Tensor,
    weights: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    b1: torch.Tensor | None = None,
    b2: torch.Tensor | None = None,
    *,
    num_experts: int,
    activation: str = "silu",
    gated: bool = True,
    capacity_factor: float = 0.0,
    expert_begin: Sequence[int] | None = None,
    max_tokens: int = 0,
    family: str = "auto",
    num_tokens: torch.Tensor | int | None = None,
    return_load: bool = False,
    group: object = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mixture of experts that are spread over the ranks: y[t] = sum over j of weights[t, j] expert(idx[t, j])(x[t]).

    expert(v) = act(v w1^T + b1) w2^T + b2, or of gated experts (act(v gate^T) * (v up^T)) w2^T. Of E experts this rank
    owns E_loc; T, its tokens, may differ by rank and be 0.

    On GPUs (Hopper, at most 8 of one host that reach each other's memory): gated by "silu", bfloat16 or float16, H and
    I multiples of 8, no biases. Counts stay on the device; a call and its backward wait for nothing on the host and
    may be captured. The first call of each size is collective and takes memory: R max_tokens k rows of H + I elements
    on the device and (R + 1) max_tokens rows of H in the symmetric heap, until the group is closed; the first backward
    of each size as well, R max_tokens k rows of 2 H + 9 I and (R + 2) max_tokens rows of H. Expert numbers that do not
    exist count as -1. A rank that raises has queued nothing, and the others wait for it up to the deadline.

    x: (..., H), T rows of float32, bfloat16 or float16, the same dtype on all ranks.
    idx: (..., k), with the leading dimensions of x, int32 or int64: experts 0 to E - 1, one also twice, or -1 for
        none; k is 1 to 32.
    weights: (..., k), float32; bfloat16 and float16 are converted.
    w1: (E_loc, I, H) of the dtype of x; gated: (E_loc, 2 I, H), the gate's rows, then those of up.
    w2: (E_loc, H, I); b1: (E_loc, I); b2: (E_loc, H); biases of the dtype of x, or None on all ranks, not with gated. A
        rank without experts gives tensors with E_loc = 0, which need gradients where the others' do.
    num_experts: E, at most 8192.
    activation: "silu", "gelu_tanh", "gelu_erf" or "relu".
    gated: whether experts multiply by a gate.
    capacity_factor: 0: every choice is computed; else an expert takes ceil(factor T k / E) choices of each rank, and
        later ones in the order (token, choice) count as -1.
    expert_begin: ranks + 1 numbers, the same on all ranks: rank r owns experts [r] to [r + 1]; None: [r] is
        floor(r E / ranks).
    max_tokens: GPUs: the most tokens of a rank in any call, the same on all ranks; CPU ranks take any number.
    family: GPUs: "serial", kernel after kernel; "fused", one behind routing, with equal bits; "auto": the faster.
    num_tokens: how many rows of x are tokens, an int or an integer tensor on the device of x, which a captured call
        reads at each replay; the rows behind them are padding, whatever they hold: they get zeros, and have no
        gradients. None: all. The capacity is that of all rows.
    return_load: a tuple instead: y; (E_loc) int64, the choices that each expert of this rank computed; () int64, the
        choices of this rank beyond the capacity.
    group: as in ag_gemm.

    Gives (..., H) of the dtype of x; tokens without experts get zeros. Gradients, the first only, of x, weights, w1,
    w2, b1 and b2: those of experts are of the sum over ranks. Nothing but the arguments is kept for them; experts
    compute their hidden layer again; backward through them raises Unsupported, on the rank that asks for it. Equal
    inputs on as many ranks give equal bits. Raises InvalidArgument or Unsupported, on CPU ranks on all where one cannot
    make the call, before anything moves; PlanMismatch where ranks give other sizes or options, which GPUs look at in
    the first call of a size.
    """
    rows = x.shape[:-1]
    _check_places(group, dict(zip(_OPERANDS, (x, idx, weights, w1, w2, b1, b2), strict=True)))
    is_real = None if num_tokens is None else real_rows(group, x, num_tokens)
    x, idx, weights = _matrices(group, x, idx=idx, weights=weights)
    if is_real is not None and idx.dim() == 2 and len(idx) == len(x):  # else the library refuses
        idx = torch.where(is_real.view(-1, 1), idx, -1)
    if idx.dtype == torch.int64:  # what is no expert stays none
        idx = idx.clamp(-(2**31), 2**31 - 1).to(torch.int32)
    if weights.dtype in (torch.bfloat16, torch.float16):
        weights = weights.float()
    arguments = (x, idx, weights, w1, w2, b1, b2, num_experts, group_name(group))
    options: dict[str, Any] = {"activation": activation, "gated": gated, "capacity_factor": capacity_factor}
    options |= {"expert_begin": list(expert_begin or ()), "max_tokens": max_tokens, "family": family}
    op: Callable[..., Any] = torch.ops.overlace.moe.default
    out, load, dropped = run(op, arguments, options, (x, weights, w1, w2, b1, b2))
    if len(rows) > 1:
        out = out.reshape(*rows, out.shape[-1])
    return (out, load, dropped) if return_load else out
