"""AdaGrad with one number of state for each row of a table."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from overlace.errors import InvalidArgument

_NAME = "RowwiseAdagrad"
# Numbers of a parameter group, each finite and at least this. With a smaller eps fp32 would divide zero by zero.
_LEAST = {"lr": 0.0, "eps": torch.finfo(torch.float32).tiny, "initial_accumulator_value": 0.0}
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """What a table of that dtype is updated in, and what its state is."""
    return torch.promote_types(dtype, torch.float32)


class RowwiseAdagrad(torch.optim.Optimizer):
    """AdaGrad for embedding tables. For each row w of a table, with gradient g of n columns, and the row's number s:

        s += (g_0^2 + ... + g_(n-1)^2) / n;  w -= lr * g / (sqrt(s) + eps)

    params: parameters (rows, columns) of float16, bfloat16, float32 or float64, or groups of them as in torch.optim;
        those without elements are left as they are. lr: 0 or more; eps: 1.2e-38 or more (in float32 the square of a
        gradient below 1e-23 is 0, so that eps alone divides it); initial_accumulator_value: s before the first step, 0
        or more. All may differ by group.

    Gradients are dense, or sparse of whole rows, as nn.EmbeddingBag and overlace.nn.ShardedEmbeddingBag make them with
    sparse=True: then only their rows are read and written, and entries of one row are added up first. Equal gradients
    give the same bits in both forms. Tables are updated in place, in float32 (float64 where they are that), and rounded
    once; s is `state[parameter]["sum"]` (rows), has that dtype, and keeps it in `load_state_dict`. A dense gradient
    takes temporary memory of a few times the table.

    Each rank updates the tables that it has: nothing is sent. Raises InvalidArgument for other numbers and parameters,
    for gradients of other layouts before any table changes, and for a state of another optimizer or of other tables
    before anything of it is taken. Source: row-wise AdaGrad of arXiv 2104.05158.
    """

    def __init__(
        self, params: ParamsT, lr: float = 1e-2, *, eps: float = 1e-8, initial_accumulator_value: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "eps": eps, "initial_accumulator_value": initial_accumulator_value})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        try:
            _check_group(self.param_groups[-1])
        except InvalidArgument:
            self.param_groups.pop()
            raise
        group = self.param_groups[-1]
        for p in group["params"]:
            first = group["initial_accumulator_value"]
            self.state[p]["sum"] = p.new_full(p.shape[:1], first, dtype=_wide(p.dtype), requires_grad=False)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """A step of all tables that have gradients. closure: computes loss and gradients anew; its loss is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        updates = [
            (group, p, p.grad)
            for group in self.param_groups
            for p in group["params"]
            if p.grad is not None and p.numel()
        ]
        for _, p, grad in updates:
            _check_gradient(p, grad)
            _check_state(p, self.state[p])
        for group, p, grad in updates:
            _update(p, grad.to(_wide(p.dtype)), self.state[p]["sum"], group["lr"], group["eps"])
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes what `state_dict()` of the same tables gave."""
        groups, own = state_dict["param_groups"], [group["params"] for group in self.param_groups]
        got, wanted = [len(group["params"]) for group in groups], [len(params) for params in own]
        if got != wanted:
            raise InvalidArgument(f"{_NAME}: the state is of groups of {got} parameters, wanted {wanted}")
        states = {}
        for group, params in zip(groups, own, strict=True):
            _check_numbers(group)
            for name, p in zip(group["params"], params, strict=True):
                states[p] = state_dict["state"].get(name, {})
                _check_state(p, states[p])
        super().load_state_dict(state_dict)  # in which sums get the parameters' dtype
        for p, state in states.items():
            self.state[p]["sum"] = state["sum"].to(p.device, _wide(p.dtype), copy=True)


def _check_numbers(group: dict[str, Any]) -> None:
    for name, least in _LEAST.items():
        value = group.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < math.inf:
            raise InvalidArgument(f"{_NAME}: {name} is {value!r}, wanted a finite number of {least:.3g} or more")


def _check_group(group: dict[str, Any]) -> None:
    _check_numbers(group)
    for i, p in enumerate(group["params"]):
        if p.dim() == 0 or (p.numel() > 0 and (p.dim() != 2 or p.dtype not in _DTYPES)):
            raise InvalidArgument(
                f"{_NAME}: parameter {i} of its group is {p.dtype} {list(p.shape)}, wanted (rows, columns) of float16, "
                "bfloat16, float32 or float64"
            )


def _check_state(p: torch.Tensor, state: dict[str, Any]) -> None:
    got = {key: list(value.shape) if isinstance(value, torch.Tensor) else value for key, value in state.items()}
    if got != {"sum": [len(p)]}:
        raise InvalidArgument(f"{_NAME}: the state of a table {list(p.shape)} has {got}, wanted sum [{len(p)}]")


def _check_gradient(p: torch.Tensor, grad: torch.Tensor) -> None:
    if grad.layout == torch.strided or (grad.layout == torch.sparse_coo and grad.sparse_dim() == 1):
        return
    raise InvalidArgument(
        f"{_NAME}: the gradient of a table {list(p.shape)} is {grad.layout}"
        f"{f' with {grad.sparse_dim()} sparse dimensions' if grad.layout == torch.sparse_coo else ''}"
        ", wanted a dense one, or torch.sparse_coo with 1 sparse dimension"
    )


def _update(p: torch.Tensor, grad: torch.Tensor, sums: torch.Tensor, lr: float, eps: float) -> None:
    rows: slice | torch.Tensor = slice(None)
    if grad.is_sparse:
        grad = grad.coalesce()
        rows, grad = grad.indices()[0], grad.values()
    grad = grad.contiguous()  # so that numbers of a row are added in one order
    sums[rows] += grad.square().mean(1)
    divisor = sums[rows].sqrt().add_(eps)
    p[rows] = torch.addcdiv(p[rows].to(grad.dtype), grad, divisor[:, None], value=-lr).to(p.dtype)
