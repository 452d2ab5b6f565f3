"""What the operators of Python share: errors, shapes of more than two dimensions, and parts of their gradients."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.nn import functional as F

from overlace.context import size_of
from overlace.errors import InvalidArgument, Unsupported, of_operator
from overlace.planning import LIBRARY_FAMILY

FRAGMENT = torch.library.Library("overlace", "FRAGMENT")  # torch makes one, with its stack, for each registration
_ops = torch.ops.overlace
_ROWS_OF_MATRIX = (-1,)
_A_PLAN = "hetero_unfused_1d:4"

# Gradients are registered from Python, which costs a call 5 us even where none is needed.
_BelowAutograd = getattr(torch._C, "_AutoDispatchBelowAutograd", contextlib.nullcontext)


def run(
    op: Callable[..., Any], arguments: tuple, options: dict[str, Any], tensors: Sequence[torch.Tensor | None]
) -> Any:
    """What the operators raise comes as the class it belongs to. tensors: all that could need a gradient. options: none
    where all are the default; each costs a call a microsecond."""
    if forward_ad._current_level >= 0:  # of torch.func.jvp, too; torch itself would give tangents of 0
        refuse_tangents(op, tensors)
    if torch.compiler.is_compiling():
        return op(*arguments, **options)
    try:
        if needs_gradient(tensors):
            return op(*arguments, **options)
        with _BelowAutograd():
            return op(*arguments, **options)
    except RuntimeError as error:
        own = of_operator(error)
        plan = options.get("plan", "")
        if own is None and not isinstance(plan, str):  # torch's own message has the type, not the value
            own = InvalidArgument(f"{op.__name__.split('.')[0]}: plan is {plan!r}, wanted a text, as '{_A_PLAN}'")
        if own is None:
            raise
        raise own from None


def refuse_tangents(op: Callable[..., Any], tensors: Sequence[torch.Tensor | None]) -> None:
    for t in tensors:
        if t is not None and forward_ad.unpack_dual(t).tangent is not None:
            name = op.__name__.split(".")[0]
            raise Unsupported(
                f"{name}: a tensor of {list(t.shape)} has a tangent of forward-mode AD (torch.func.jvp, "
                "torch.autograd.forward_ad), wanted none: operators have reverse-mode gradients alone"
            )


def register_shapes(op: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """torch.library.register_fake of an operator of overlace.

    All are registered from this file: torch finds out who registers by a search in all modules, which it makes anew for
    each file."""

    def register(shapes: Callable[..., Any]) -> Callable[..., Any]:
        return torch.library.register_fake(f"overlace::{op}", shapes, lib=FRAGMENT)

    return register


def register_gradient(op: str, backward: Callable[..., Any], setup: Callable[..., None]) -> None:
    """torch.library.register_autograd of an operator of overlace whose gradient has operators in it."""

    def refusing(ctx: Any, *grads: Any) -> Any:
        if forward_ad._current_level >= 0:
            flat = [g for grad in grads for g in (grad if isinstance(grad, (list, tuple)) else (grad,))]
            refuse_tangents(getattr(_ops, op), flat)
        return backward(ctx, *grads)

    torch.library.register_autograd(f"overlace::{op}", refusing, setup_context=setup, lib=FRAGMENT)


def needs_gradient(tensors: Sequence[torch.Tensor | None]) -> bool:
    if torch.is_grad_enabled():
        for t in tensors:  # not any(...): a generator costs a call 0.2 us
            if t is not None and t.requires_grad:
                return True
    return False


def rows_first(op: str, t: torch.Tensor, dim: int, name: str) -> tuple[torch.Tensor, Sequence[int], int]:
    """The matrix of `t` whose rows are cut along `dim`; the shape of its rows with that dimension, of whatever size,
    first; dim from 0."""
    if dim == 0 and t.dim() == 2:
        return t, _ROWS_OF_MATRIX, 0
    if t.dim() < 2:
        raise InvalidArgument(f"{op}: a is {list(t.shape)}, wanted two dimensions or more")
    if not -t.dim() <= dim < t.dim() - 1 or dim == -1:
        raise InvalidArgument(
            f"{op}: {name} is {dim}, a is {list(t.shape)}: wanted 0 to {t.dim() - 2}; the last is that of the sum"
        )
    dim %= t.dim()
    if t.dim() == 2:
        return t, _ROWS_OF_MATRIX, dim
    moved = t.movedim(dim, 0)
    return moved.flatten(0, -2), moved.shape[:-1], dim


def as_before(matrix: torch.Tensor, rows: Sequence[int], dim: int) -> torch.Tensor:
    """The inverse for a result: its rows have this shape, and their first dimension goes back to `dim`."""
    return matrix.unflatten(0, (-1, *rows[1:])).movedim(0, dim) if len(rows) > 1 else matrix


def offsets_in_rows(row_offsets: Sequence[int] | None, rows: Sequence[int]) -> list[int]:
    if not row_offsets:
        return []
    inner = math.prod(rows[1:])
    return [offset * inner for offset in row_offsets]


def _swiglu(t: torch.Tensor) -> torch.Tensor:
    return F.silu(t[..., 0::2]) * t[..., 1::2]


_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": lambda t: F.silu(t, inplace=not t.requires_grad),
    "gelu": F.gelu,
    "swiglu": _swiglu,
}


def activation_of(op: str, name: str, bs: Sequence[torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """What is to be done with the results; checked before anything moves."""
    if name == "none":
        return None
    if name not in _ACTIVATIONS:
        raise InvalidArgument(f"{op}: activation is '{name}', wanted one of none, {', '.join(_ACTIVATIONS)}")
    odd = [b for b in bs if name == "swiglu" and b.shape[-1] % 2 != 0]
    if odd:
        raise InvalidArgument(f"{op}: activation is 'swiglu', b is {list(odd[0].shape)}: wanted pairs of columns")
    return _ACTIVATIONS[name]


def numbered(name: str, tensors: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"{name}[{i}]": t for i, t in enumerate(tensors)}


def check_factors(op: str, a: torch.Tensor, b: torch.Tensor, name: str, rank: int, parts: int = 1) -> None:
    """parts: a has one of so many equal parts of K."""
    for label, t in (("a", a), (name, b)):
        if t.dim() != 2:
            raise InvalidArgument(f"{op}: {label} is {list(t.shape)}, wanted two dimensions")
    if a.shape[1] * parts != b.shape[0]:
        times = f"{parts} x " if parts > 1 else ""
        raise InvalidArgument(
            f"{op}: a is {list(a.shape)} on rank {rank}, {name} is {list(b.shape)}: "
            f"K {times}{a.shape[1]} != {b.shape[0]}, wanted the same"
        )


def plan_of_backward(plan: str) -> str:
    """Plans name a family of one operator; only `library` is one of all."""
    return plan if plan.removeprefix("family=") == LIBRARY_FAMILY else ""


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
    """A gradient that all ranks have: `t` itself where no second backward is to come."""
    return _Replicated.apply(t, group) if torch.is_grad_enabled() and t.requires_grad else t


def has_contiguous_rows(b):
    """By its stride alone: ranks that have a single column, or none, decide as the others do."""
    return b.stride(1) == 1


def grad_of_weight(rows, dy, b):
    """rows^T dY, stored as b is: K or N contiguous."""
    return rows.t() @ dy if has_contiguous_rows(b) else (dy.t() @ rows).t()


def grad_of_gathered(ctx, grad_a_full, pairs, like):
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
        dy, weight, None, "sum", 0, ctx.group, row_offsets=ctx.row_offsets, plan=plan_of_backward(ctx.plan)
    )


def setup_reduced(ctx, inputs, keyword_only_inputs, output) -> None:
    a, b, bias, reduce_op, *_, ctx.group = inputs
    ctx.row_offsets = keyword_only_inputs.get("row_offsets", [])
    ctx.plan, ctx.average = keyword_only_inputs["plan"], reduce_op == "avg"
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.save_for_backward(a, b)


def scale_of(ctx) -> float:
    return 1.0 / size_of("backward", ctx.group)[1] if ctx.average else 1.0


# ---- rows that go from each rank to each ----


def sent_and_received(rows: int, splits: Sequence[int], rank: int, size: int) -> tuple[list[int], list[int]]:
    """Rows of this rank that go to each rank, and rows that come from each. Without splits: as torch.tensor_split."""
    if splits:
        return list(splits[rank * size : (rank + 1) * size]), list(splits[rank::size])
    sent = [rows // size + (part < rows % size) for part in range(size)]
    return sent, [sent[rank]] * size


def splits_back(rows: int, splits: Sequence[int], size: int) -> list[int]:
    """Those of the exchange that brings all rows back; empty where it cuts them evenly."""
    if not splits:
        sent, _ = sent_and_received(rows, splits, 0, size)
        return [] if rows % size == 0 else [sent[s] for s in range(size) for _ in range(size)]
    return [splits[d * size + s] for s in range(size) for d in range(size)]


def flat_splits(
    op: str, splits: Sequence[int] | Sequence[Sequence[int]] | None, size: int, exchange: str = "rows"
) -> list[int]:
    """The splits as the operators take them: row by row."""
    if splits is None:
        return []
    rows: list[list[Any]] = [list(row) if isinstance(row, (list, tuple)) else [row] for row in splits]
    flat = [entry for row in rows for entry in row]
    is_matrix = len(rows) == size and all(len(row) == size for row in rows)
    is_list = len(rows) == size * size and all(len(row) == 1 for row in rows)
    fits, wanted = is_matrix or is_list, f"{size} rows of {size} integers, 0 or more: from each rank to each"
    if exchange == "cols":
        fits, wanted = len(flat) == len(rows) == size, f"{size} integers, 0 or more: rows of each rank"
    if not fits or not all(isinstance(entry, int) and entry >= 0 for entry in flat):
        raise InvalidArgument(f"{op}: splits are {splits}, wanted {wanted}")
    return flat


# ---- columns that go from each rank to each ----


def check_blocks(op: str, exchange: str, blocks: Sequence[int], columns: int, name: str, size: int) -> None:
    """name: of the size that the columns are."""
    if exchange not in ("rows", "cols"):
        raise InvalidArgument(f"{op}: exchange is '{exchange}', wanted 'rows' or 'cols'")
    if exchange == "rows":
        if blocks:
            raise InvalidArgument(f"{op}: blocks are given, wanted none: no columns travel")
        return
    each = f"a multiple of {size}{' above 0' if blocks else ''}: as many columns for each rank"
    if not blocks and columns % size != 0:
        raise InvalidArgument(f"{op}: {name} is {columns}, wanted {each}")
    for j, block in enumerate(blocks):
        if block < 1 or block % size != 0:
            raise InvalidArgument(f"{op}: blocks[{j}] is {block}, wanted {each}")
    if blocks and sum(blocks) != columns:
        raise InvalidArgument(f"{op}: blocks sum to {sum(blocks)}, wanted {name} = {columns}")


def rows_of_ranks(rows: int, splits: Sequence[int], size: int) -> list[int]:
    """How many of all `rows` each rank has; without splits as torch.tensor_split."""
    return list(splits) if splits else [rows // size + (rank < rows % size) for rank in range(size)]


def columns_of_my_rows(x, splits, blocks, group):
    """The exchange of a2a_gemm alone: (rows of all, K / size) to (rows of this rank, K)."""
    rank, size = size_of("backward", group)
    rows = rows_of_ranks(x.shape[0], splits, size)
    came = _ops.all_to_all(x, 0, group, send_splits=rows, recv_splits=[rows[rank]] * size)
    widths = [block // size for block in blocks] or [x.shape[1]]
    parts = came.unflatten(0, (size, rows[rank])).movedim(0, 1).split(widths, 2)
    return torch.cat([part.flatten(1) for part in parts], 1)


def rows_of_my_columns(x, splits, blocks, group):
    """Its inverse; splits: not empty where ranks have not as many rows."""
    rank, size = size_of("backward", group)
    rows = list(splits) or [x.shape[0]] * size
    parts = [part.unflatten(1, (size, -1)) for part in x.split(list(blocks) or [x.shape[1]], 1)]
    dealt = torch.cat(parts, 2).movedim(1, 0).flatten(0, 1)
    return _ops.all_to_all(dealt, 0, group, send_splits=[rows[rank]] * size, recv_splits=rows)
