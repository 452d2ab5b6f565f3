"""Parallel linear layers of serving engines in eager mode: a layer's product and the engine's collective are one call.

The layer's own forward runs, so what it does with biases, padding and its results stays. Inside of it a product is put
off until the collective that takes it, and a gather until the product that takes it; what nothing of ours can take is
computed as the layer asked for it. overlace._engines has the collectives.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.overrides import TorchFunctionMode

from overlace import ops
from overlace._engines import ENGINE_COLLECTIVES, EngineCollective, arguments_by_name
from overlace.context import Context, context_of
from overlace.errors import InvalidArgument, Unsupported

__all__ = ["Enabled", "enable"]

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
# They tell of a tensor without its elements.
_ATTRIBUTES = ("shape", "dtype", "device", "ndim", "layout", "is_cuda", "is_cpu", "requires_grad")
_SIZES = ("size", "dim", "numel", "stride", "is_contiguous", "is_floating_point", "element_size", "new_empty")
_TELLS = {getattr(torch.Tensor, name) for name in _SIZES} | {torch.empty_like}
_TELLS |= {getattr(torch.Tensor, name).__get__ for name in _ATTRIBUTES}


@dataclasses.dataclass(kw_only=True)
class _PutOff:
    """A tensor that has its shape and not its elements yet. own: computes them as the layer asked for it. is_ours: made
    here, so that it may take other memory. is_used: whatever the layer wanted it for is done."""

    tensor: torch.Tensor
    own: Callable[[], torch.Tensor]
    is_ours: bool = True
    is_used: bool = False


@dataclasses.dataclass(kw_only=True)
class _Product(_PutOff):
    """x weight^T + bias, of this rank alone."""

    x: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None


@dataclasses.dataclass(kw_only=True)
class _Gathered(_PutOff):
    """The rows of all ranks' x."""

    x: torch.Tensor
    context: Context


@dataclasses.dataclass
class _Layer:
    name: str
    module: nn.Module
    contexts: Mapping[str, Context]  # by the engine's names of their groups
    plan: str
    gives_bias: bool | None = None  # this rank, to a product that is summed; None: not seen yet
    is_added: bool = False  # rank 0 gives one

    def context(self, name: str) -> Context:
        if name not in self.contexts:
            known = ", ".join(f"'{one}'" for one in self.contexts)
            raise InvalidArgument(f"{self.name}: its collective is of group '{name}', wanted one of names: {known}")
        return self.contexts[name]

    def bias_of_sum(self, given: torch.Tensor | None, context: Context) -> torch.Tensor | None:
        """What is added to the sum once. Engines add it on rank 0; all ranks have to know, who agree at the first
        call."""
        own: Any = getattr(self.module, "bias", None)
        if self.gives_bias is None:
            said: list[Any] = [None] * context.size
            dist.all_gather_object(said, (given is not None, isinstance(own, torch.Tensor)), group=context.group)
            for rank, (gives, has) in enumerate(said):
                if gives and rank > 0:
                    raise InvalidArgument(
                        f"{self.name}: rank {rank} adds its bias before the sum, wanted rank 0 alone: it is once in it"
                    )
                if said[0][0] and not has:
                    raise InvalidArgument(
                        f"{self.name}: rank {rank} has no bias, wanted that of rank 0, which adds one"
                    )
            self.gives_bias, self.is_added = given is not None, said[0][0]
        if (given is not None) != self.gives_bias:
            got = "no bias" if given is None else "a bias"
            raise InvalidArgument(
                f"{self.name}: rank {context.rank} gives {got}, wanted what it gave at its first call"
            )
        return own if self.is_added and given is None else given


@functools.lru_cache(maxsize=1024)  # a schema tells names slowly
def _collective_of(func: Any) -> tuple[EngineCollective, list[str]] | None:
    """Of an operator of an engine, with the names of its arguments."""
    if not isinstance(func, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return None
    schema = (func if isinstance(func, torch._ops.OpOverload) else getattr(func, func.overloads()[0]))._schema
    form = ENGINE_COLLECTIVES.get(schema.name)
    return None if form is None else (form, [argument.name for argument in schema.arguments])


def _holds(of: Any, tensor: torch.Tensor) -> bool:
    """Faster than torch's pytree."""
    if isinstance(of, (tuple, list)):
        return any(_holds(one, tensor) for one in of)
    return any(_holds(one, tensor) for one in of.values()) if isinstance(of, dict) else of is tensor


class _Forward(TorchFunctionMode):
    """One call of a layer."""

    def __init__(self, layer: _Layer) -> None:
        super().__init__()
        self.layer, self.waiting = layer, list[Any]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is nn.functional.linear:
            return self.linear(*args, **kwargs)
        found = _collective_of(func)
        if found is not None:
            form, names = found
            return self.collective(form, arguments_by_name(names, args, kwargs), lambda: func(*args, **kwargs))
        if self.waiting and func not in _TELLS:
            self.compute((args, kwargs))
        return func(*args, **kwargs)

    def compute(self, of: Any) -> None:
        """Those in `of` that are put off get their elements."""
        for one in [w for w in self.waiting if _holds(of, w.tensor)]:
            self.fill(one, one.own())

    def fill(self, one: _PutOff, elements: torch.Tensor) -> None:
        if one.is_ours:
            one.tensor.set_(elements.contiguous())  # type: ignore[call-overload]
        elif elements is not one.tensor:
            one.tensor.copy_(elements)
        self.waiting = [other for other in self.waiting if other is not one]

    def end(self, result: Any) -> None:
        """Nobody waits behind the layer's forward."""
        self.compute((result, [one.tensor for one in self.waiting if not one.is_used]))

    def waiting_for(self, tensor: torch.Tensor, kind: type[_PutOff]) -> Any:
        return next((w for w in self.waiting if w.tensor is tensor and isinstance(w, kind)), None)

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        gathered = self.waiting_for(x, _Gathered)
        fits = weight.dim() == 2 and weight.dtype in _DTYPES and weight.dtype == x.dtype and x.dim() >= 2
        if gathered is not None and fits:
            rows, out = ops.ag_gemm(
                gathered.x,
                weight.t(),
                group=gathered.context.group,
                biases=bias,
                return_a=True,
                plan=self.layer.plan,
            )
            self.fill(gathered, rows)
            return out
        self.compute((x, weight, bias))

        def own() -> torch.Tensor:
            return nn.functional.linear(x, weight, bias)

        if not fits:
            return own()
        product = x.new_empty((*x.shape[:-1], weight.shape[0]))
        self.waiting.append(_Product(tensor=product, own=own, x=x, weight=weight, bias=bias))
        return product

    def collective(self, form: EngineCollective, given: dict[str, Any], own: Callable[[], Any]) -> Any:
        sent = given[form.sent]
        context = self.layer.context(given["group_name"])
        product = self.waiting_for(sent, _Product)
        if not form.is_along_rows(given, sent.dim()) or (product is None) == (form.kind != "all_gather"):
            self.compute(given)
            return own()
        if product is None:
            return self.gather(form, given, context, own)
        bias = self.layer.bias_of_sum(product.bias, context)
        run = ops.gemm_ar if form.kind == "all_reduce" else ops.gemm_rs
        result = run(product.x, product.weight.t(), group=context.group, bias=bias, plan=self.layer.plan)
        product.is_used = True
        if not form.written:
            return result
        written = given[form.written]
        if written is sent:
            return self.fill(product, result)
        written.copy_(result)
        return None

    def gather(self, form: EngineCollective, given: dict[str, Any], context: Context, own: Callable[[], Any]) -> Any:
        x = given[form.sent]
        self.compute(x)
        rows = (x.shape[0] * context.size, *x.shape[1:])
        tensor = given[form.written] if form.written else x.new_empty(rows)
        if tensor.shape != rows or not tensor.is_contiguous() or x.dim() < 2:
            return own()

        def elements() -> torch.Tensor:
            result = own()
            return tensor if form.written else result

        self.waiting.append(_Gathered(tensor=tensor, own=elements, is_ours=not form.written, x=x, context=context))
        return None if form.written else tensor


@dataclasses.dataclass
class Enabled(contextlib.AbstractContextManager):
    """Lasts until remove(), or to the end of a with block. layers: names of those that it took."""

    layers: tuple[str, ...]
    _undo: list[Callable[[], None]]

    def remove(self) -> None:
        """The layers get their own forward back. Nothing happens the second time."""
        while self._undo:
            self._undo.pop()()

    def __exit__(self, *error: object) -> None:
        self.remove()


def _check(layer: _Layer) -> None:
    """The module tells, as layers of the engines do, by attributes; those that it lacks are taken to fit."""
    module = layer.module
    weight: Any = getattr(module, "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.dim() != 2 or weight.dtype not in _DTYPES:
        got = f"{list(weight.shape)} of {weight.dtype}" if isinstance(weight, torch.Tensor) else repr(weight)
        wanted = ", ".join(map(str, _DTYPES))
        raise Unsupported(f"{layer.name}: weight is {got}, wanted (N, K) of one of {wanted}, not quantised")
    groups = [(context.rank, context.size) for context in layer.contexts.values()]
    got_ranks = [getattr(module, name, None) for name in ("tp_rank", "tp_size")]
    if not any(all(got in (None, want) for got, want in zip(got_ranks, of, strict=True)) for of in groups):
        wanted = " or ".join(f"{rank} of {size}" for rank, size in groups)
        raise InvalidArgument(
            f"{layer.name}: it is of rank {got_ranks[0]} of {got_ranks[1]}, wanted {wanted}, of names"
        )


def _install(layer: _Layer) -> Callable[[], None]:
    module = layer.module
    before, plain = module.__dict__.get("forward"), module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return plain(*args, **kwargs)
        call = _Forward(layer)
        with call:
            result = plain(*args, **kwargs)
        call.end(result)
        return result

    def undo() -> None:
        if before is None:
            del module.forward
        else:
            module.forward = before

    module.forward = forward  # as torch's styles do
    return undo


def enable(
    model: nn.Module,
    layers: type[nn.Module] | Sequence[type[nn.Module]],
    *,
    names: Mapping[str, object],
    plan: str = "",
) -> Enabled:
    """Products and collectives in the forward of these layers become operators, without torch.compile.

    model: one layer, or a module that has some. layers: their classes, as RowParallelLinear of the engine; of each the
    forward calls torch.nn.functional.linear, and an operator of the engine before or behind it.
    names: process groups, each after overlace.init, by the engine's names, as in {"tp:0": group}.
    plan: as the operators take it.

    all_reduce of a product becomes gemm_ar, reduce_scatter of its rows gemm_rs, all_gather of rows and their product
    ag_gemm. A bias that rank 0 alone adds to its part of a sum is added once; the ranks agree on that at the layer's
    first call, which must come before a graph is captured. Forward alone: where gradients are on (no torch.no_grad or
    inference_mode), and in torch.compile, layers stay their own. Between a product and its collective only functions
    of torch may read it.

    Raises InvalidArgument where no layer is found, where one is of another rank or group, and at a call whose
    collective is of a group that is none of names or whose bias another rank than 0 adds; Unsupported where a weight is
    quantised. Nothing has moved then, and all ranks raise; but one that alone gives another bias than at its first call
    raises alone, and the others' call ends with their deadline.
    """
    classes = tuple(layers) if isinstance(layers, Sequence) else (layers,)
    contexts = {name: context_of(group) for name, group in names.items()}
    if not contexts:
        raise InvalidArgument('overlace.compat.engines.enable: names is {}, wanted groups, as in {"tp:0": group}')
    found = [
        _Layer(name or type(module).__name__, module, contexts, plan)
        for name, module in model.named_modules()
        if isinstance(module, classes)
    ]
    if not found:
        wanted = ", ".join(one.__name__ for one in classes)
        raise InvalidArgument(f"overlace.compat.engines.enable: model has no layer of {wanted}, wanted one or more")
    for layer in found:
        _check(layer)
    return Enabled(tuple(layer.name for layer in found), [_install(layer) for layer in found])
