"""Layers of serving engines in eager mode: where a layer's forward calls `linear` and then its engine's all-reduce or
reduce-scatter, or the engine's all-gather and then `linear`, one operator of overlace runs in place of both.

A product waits for the very next call of torch alone, which either is the collective or finds it computed; questions
such as `y.shape` may come in between. What torch does not see, an extension that writes into the input, is not noticed.

It knows the operators that overlace.compile knows (docs/guides/pytorch_programs.md), by their names: no engine is
imported. Models that an engine compiles take the pass of overlace.compile instead.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from overlace import ops
from overlace._engines import COLLECTIVES, Collective
from overlace.context import context_of, group_name
from overlace.errors import InvalidArgument
from overlace.planning import plan as plan_of

__all__ = ["KINDS", "Adapter", "enable"]
_NAME = "overlace.compat.engines.enable"
# The classes of layers of vLLM and SGLang that hold a collective, by name.
KINDS = ("ColumnParallelLinear", "MergedColumnParallelLinear", "QKVParallelLinear", "RowParallelLinear")
_WHENS = ("gain", "always")
_BEHIND_PRODUCTS = {"sum": ops.gemm_ar, "scatter": ops.gemm_rs}  # what a collective and the product before it are
_DTYPES = {torch.float64, torch.float32, torch.bfloat16, torch.float16}
_ASKS = {"empty", "dim", "size", "stride", "numel", "nelement", "element_size", "is_contiguous", "is_floating_point"}


class _Later(torch.Tensor):
    """What `make` will give: the result of a product or a gather that may yet become part of one call.

    Whatever reads it computes it; its sizes, dtype and device are known before."""

    make: Callable[[], torch.Tensor]
    given: torch.Tensor  # the input of linear, or the shard of a gather
    weight: torch.Tensor | None  # of linear; none of a gather
    group: str  # the engine's name of a gather's group
    value: torch.Tensor | None  # once something has read it

    @staticmethod
    def of(make: Callable, given: Any, weight: Any, sizes: list[int], group: str = "") -> _Later:
        own: Any = torch.Tensor._make_wrapper_subclass(_Later, sizes, dtype=given.dtype, device=given.device)
        own.make, own.given, own.weight, own.group, own.value = make, given, weight, group, None
        result: _Later = own
        return result

    def settle(self) -> torch.Tensor:
        if self.value is None:
            self.value = self.make()
        return self.value

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        args, kwargs = _settled((args, kwargs or {}))
        return func(*args, **kwargs)


def _settled(tree: Any) -> Any:
    """Faster than torch's pytree; results of other kinds than these hold what settles when it is read."""
    kind = type(tree)
    if kind is _Later:
        return tree.settle()
    if kind in (tuple, list):
        return kind(map(_settled, tree))
    return {key: _settled(value) for key, value in tree.items()} if kind is dict else tree


@dataclasses.dataclass(frozen=True)
class Adapter:
    """What `enable` made. calls: how often each operator took the place of an engine's two so far."""

    calls: collections.Counter[str]
    _names: Mapping[str, str]
    _decides: Callable[[str, int, int, int, torch.dtype, str], bool]
    _plan: str
    _wrapped: list[tuple[nn.Module, Callable]]

    def disable(self) -> None:
        """The layers run as their engine has them again."""
        for module, own in self._wrapped:
            if module.__dict__.get("forward") is own:
                del module.forward
        self._wrapped.clear()

    def _wrap(self, module: nn.Module) -> None:
        plain = module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            if torch.is_grad_enabled() or torch.compiler.is_compiling():
                return plain(*args, **kwargs)
            with _Fusing(self) as mode:
                out = plain(*args, **kwargs)
            mode.settle()
            return _settled(out)

        module.forward = forward
        self._wrapped.append((module, forward))

    def _call(self, op: Callable, x: torch.Tensor, weight: torch.Tensor, name: str) -> torch.Tensor | None:
        """The one call, or None where it is not to be: the same on all ranks, by sizes, dtypes and the machine."""
        group = self._names.get(name)
        has_fitting_dims = weight.dim() == 2 and (x.dim() >= 2 if op is ops.gemm_ar else x.dim() == 2)
        if group is None or not has_fitting_dims or x.dtype != weight.dtype or x.dtype not in _DTYPES:
            return None
        size = context_of(group).size
        rows = math.prod(x.shape[:-1]) * (size if op is ops.ag_gemm else 1)
        if rows == 0 or (op is ops.gemm_rs and rows % size != 0):
            return None
        if not self._decides(op.__name__, rows, weight.shape[0], weight.shape[1], x.dtype, group):
            return None
        self.calls[op.__name__] += 1
        result: Any = op(x, weight.t(), group=group, plan=self._plan)
        return result


class _Fusing(TorchFunctionMode):
    """Inside of one layer's forward. At most one result is not computed yet, and the next call decides about it."""

    def __init__(self, adapter: Adapter) -> None:
        super().__init__()
        self.adapter = adapter
        self.later: _Later | None = None

    def settle(self) -> None:
        if self.later is not None:
            self.later.settle()
            self.later = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _ASKS or name == "__get__":  # attributes, as y.is_cuda, which change nothing
            return func(*args, **kwargs)
        if func is nn.functional.linear:
            return self._linear(*args, **kwargs)
        schema = _schema_of(func)
        known = None if schema is None else COLLECTIVES.get(schema.name)
        if known is not None and known.does in _BEHIND_PRODUCTS:
            return self._reduce(func, schema, known, args, kwargs)
        self.settle()
        args, kwargs = _settled((args, kwargs))
        if known is not None and not known.output:
            return self._gather(func, schema, known, args, kwargs)
        return func(*args, **kwargs)

    def _linear(self, input: Any, weight: Any, bias: Any = None) -> Any:
        before, self.later = self.later, None
        if before is not None and before is input and before.value is None and before.weight is None:
            fits = bias is None and _is_plain(weight)
            made = self.adapter._call(ops.ag_gemm, before.given, weight, before.group) if fits else None
            if made is not None:
                return made
        if before is not None:
            before.settle()
        input, weight, bias = _settled((input, weight, bias))
        if bias is not None or not (_is_plain(input) and _is_plain(weight)) or input.dim() < 2:
            return nn.functional.linear(input, weight, bias)
        sizes = [*input.shape[:-1], weight.shape[0]]
        self.later = _Later.of(lambda: nn.functional.linear(input, weight), input, weight, sizes)
        return self.later

    def _reduce(self, func: Any, schema: Any, known: Collective, args: tuple, kwargs: dict[str, Any]) -> Any:
        given = _by_name(schema, args, kwargs)
        before, self.later = self.later, None
        is_open = before is not None and given[known.sent] is before and before.value is None
        if before is not None and is_open and before.weight is not None and given.get("dim", 0) in (0, -before.dim()):
            made = self.adapter._call(_BEHIND_PRODUCTS[known.does], before.given, before.weight, given["group_name"])
            if made is not None:
                return _given_back(schema, known, given, before, made)
        if before is not None:
            before.settle()
        args, kwargs = _settled((args, kwargs))
        return func(*args, **kwargs)

    def _gather(self, func: Any, schema: Any, known: Collective, args: tuple, kwargs: dict[str, Any]) -> Any:
        given = _by_name(schema, args, kwargs)
        shard, group = given[known.sent], given["group_name"]
        if not _is_plain(shard) or shard.dim() != 2 or given["dim"] not in (0, -2) or group not in self.adapter._names:
            return func(*args, **kwargs)
        sizes = [shard.shape[0] * given["world_size"], shard.shape[1]]
        self.later = _Later.of(lambda: func(*args, **kwargs), shard, None, sizes, group)
        return self.later


def _given_back(
    schema: Any, known: Collective, given: Mapping[str, Any], before: _Later, made: torch.Tensor
) -> torch.Tensor | None:
    """As the engine's operator gives it: a result, in the tensor for it, or in place of what it was given."""
    if schema.returns:
        return made
    if known.output:
        given[known.output].copy_(made)
    else:
        before.value = made
    return None


def _is_plain(tensor: Any) -> bool:
    return type(tensor) in (torch.Tensor, nn.Parameter)


@functools.lru_cache(maxsize=1024)
def _schema_of(func: Any) -> Any:
    """The schema of an operator that is called by torch.ops; None of all other functions."""
    if isinstance(func, torch._ops.OpOverloadPacket):
        func = getattr(func, "default", None)
    return getattr(func, "_schema", None) if isinstance(func, torch._ops.OpOverload) else None


def _by_name(schema: Any, args: tuple, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {argument.name: value for argument, value in zip(schema.arguments, args, strict=False)} | dict(kwargs)


def enable(
    model: nn.Module,
    names: Mapping[str, object],
    *,
    when: str = "gain",
    plan: str = "",
    kinds: Collection[str] = KINDS,
) -> Adapter:
    """Layers of `model` whose class has one of these names run a product and their engine's collective as one call.

    names: process groups by the names that the engine has for them, as in {"tp:0": group}, each after overlace.init.
    when, plan: as in overlace.compile.enable; "gain" leaves a call to the engine where the planner would do the same.
    kinds: names of classes; a layer's forward must call torch.nn.functional.linear beside the engine's operator.

    Call it on all ranks, with the same model. A layer with a bias stays as it is: engines add it on one rank. So do
    calls with gradients, quantised products, uneven rows, and gathers or scatters of another dimension than the first.
    """
    if not isinstance(model, nn.Module):
        raise InvalidArgument(f"{_NAME}: model is {type(model).__name__}, wanted a torch.nn.Module")
    if when not in _WHENS:
        raise InvalidArgument(f"{_NAME}: when is '{when}', wanted one of {', '.join(_WHENS)}")
    if not isinstance(names, Mapping) or not names:
        raise InvalidArgument(f"{_NAME}: names is {names!r}, wanted groups by the engine's names, as {{'tp:0': group}}")
    groups = {name: group_name(group) for name, group in names.items()}
    for group in groups.values():
        context_of(group)
    decided: dict[tuple, bool] = {}

    def decides(*problem: Any) -> bool:
        if when == "always" or plan not in ("", "auto"):
            return True
        if problem not in decided:
            op, m, n, k, dtype, group = problem
            decided[problem] = not plan_of(op, m, n, k, dtype=dtype, group=group).is_library
        return decided[problem]

    adapter = Adapter(collections.Counter(), groups, decides, "" if plan == "auto" else plan, [])
    for module in model.modules():
        if type(module).__name__ in kinds and getattr(module, "bias", None) is None:
            if "forward" in module.__dict__:
                kind = type(module).__name__
                raise InvalidArgument(
                    f"{_NAME}: forward of a {kind} is replaced, wanted that of its class: disable() first"
                )
            adapter._wrap(module)
    return adapter
