"""Plain collectives of the team: their shapes, gradients and functions."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from overlace.context import group_name, size_of
from overlace.errors import InvalidArgument
from overlace.ops._common import (
    register_gradient,
    register_shapes,
    replicated,
    run,
    scale_of,
)

_ops = torch.ops.overlace
# NOTE: overloads, not the names above them: those look for one that fits at each call.
_OP = {
    name: getattr(torch.ops.overlace, name).default
    for name in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
}


def _dim_of(op: str, x: torch.Tensor, dim: int) -> int:
    """From 0."""
    if x.dim() == 0:
        raise InvalidArgument(f"{op}: x is [], wanted one dimension or more")
    if not -x.dim() <= dim < x.dim():
        raise InvalidArgument(f"{op}: dim is {dim}, x is {list(x.shape)}: wanted {-x.dim()} to {x.dim() - 1}")
    return dim % x.dim()


def _check_divisible(op: str, x: torch.Tensor, dim: int, size: int) -> None:
    if x.shape[dim] % size != 0:
        raise InvalidArgument(
            f"{op}: x is {list(x.shape)}, dim {dim}: {x.shape[dim]}, wanted a multiple of {size} ranks"
        )


@register_shapes("all_gather")
def _all_gather(x, dim, group):
    dim, (_, size) = _dim_of("all_gather", x, dim), size_of("all_gather", group, {"x": x})
    return x.new_empty((*x.shape[:dim], x.shape[dim] * size, *x.shape[dim + 1 :]))


@register_shapes("reduce_scatter")
def _reduce_scatter(x, reduce_op, dim, group):
    dim, (_, size) = _dim_of("reduce_scatter", x, dim), size_of("reduce_scatter", group, {"x": x})
    _check_divisible("reduce_scatter", x, dim, size)
    return x.new_empty((*x.shape[:dim], x.shape[dim] // size, *x.shape[dim + 1 :]))


@register_shapes("all_reduce")
def _all_reduce(x, reduce_op, group):
    size_of("all_reduce", group, {"x": x})
    return x.new_empty(x.shape)


@register_shapes("all_to_all")
def _all_to_all(x, dim, group, *, send_splits=(), recv_splits=()):
    dim, (_, size) = _dim_of("all_to_all", x, dim), size_of("all_to_all", group, {"x": x})
    if not send_splits and not recv_splits:
        _check_divisible("all_to_all", x, dim, size)
        return x.new_empty(x.shape)
    return x.new_empty((*x.shape[:dim], sum(recv_splits), *x.shape[dim + 1 :]))


def _setup_collective(ctx, inputs, output) -> None:
    _, *options, ctx.group = inputs
    ctx.average = "avg" in options
    ctx.dim = options[-1] if options else None


def _setup_all_to_all(ctx, inputs, keyword_only_inputs, output) -> None:
    _, ctx.dim, ctx.group = inputs
    ctx.send_splits = keyword_only_inputs.get("send_splits", [])
    ctx.recv_splits = keyword_only_inputs.get("recv_splits", [])


def _backward_all_gather(ctx, grad):
    return _ops.reduce_scatter(grad, "sum", ctx.dim, ctx.group), None, None


def _backward_reduce_scatter(ctx, grad):
    full = _ops.all_gather(grad, ctx.dim, ctx.group)
    return full * scale_of(ctx) if ctx.average else full, None, None, None


def _backward_all_reduce(ctx, grad):
    grad = replicated(grad, ctx.group)
    return grad * scale_of(ctx) if ctx.average else grad, None, None


def _backward_all_to_all(ctx, grad):
    turned = {"send_splits": ctx.recv_splits, "recv_splits": ctx.send_splits} if ctx.send_splits else {}
    return _ops.all_to_all(grad, ctx.dim, ctx.group, **turned), None, None


def all_gather(x: torch.Tensor, *, group: object, dim: int = 0) -> torch.Tensor:
    """The tensors of all ranks, in rank order along dim: NCCL on GPUs, the team's CPU engine on CPU ranks.

    x: any shape with one dimension or more, any dtype; shape and dtype the same on all ranks. They are not compared:
        where they differ, results are wrong, or a wait ends with Timeout.
    dim: which dimension is gathered, from 0, or from the last with -1. Another than the first costs a copy of the
        result, unless all before it are of size 1; strided x is copied first.

    Gives a contiguous tensor, dim of it `ranks` times that of x. Its gradient is reduce_scatter (sum).
    Raises InvalidArgument (dim, device, an unknown group), Unsupported (a team without an engine), EngineError,
    Timeout, PeerLost.
    """
    return run(_OP["all_gather"], (x, dim, group_name(group)), {}, (x,))


def reduce_scatter(x: torch.Tensor, *, group: object, reduce_op: str = "sum", dim: int = 0) -> torch.Tensor:
    """This rank's part, along dim, of the sum over ranks of x.

    x: as in all_gather, of float32, bfloat16, float16, float64, int64 or int32.
    reduce_op: "sum" or, of floats, "avg", the sum divided by the ranks.
    dim: which dimension is split; its size must be a multiple of the ranks. Another than the first costs a copy of x,
        unless all before it are of size 1.

    Gives a contiguous tensor, dim of it that of x over the ranks. Its gradient is all_gather. Raises as all_gather;
    InvalidArgument for dtypes that cannot be added and sizes that cannot be split, too.
    """
    return run(_OP["reduce_scatter"], (x, reduce_op, dim, group_name(group)), {}, (x,))


def all_reduce(x: torch.Tensor, *, group: object, reduce_op: str = "sum") -> torch.Tensor:
    """The sum over ranks of x, on all of them; x itself is left as it is.

    x: as in reduce_scatter, also without dimensions. reduce_op: as there.
    Gives a contiguous tensor of the shape of x. The gradient is local: that of the result must be the same on all
    ranks, as it is where everything behind it is computed by all of them. Raises as reduce_scatter.
    """
    return run(_OP["all_reduce"], (x, reduce_op, group_name(group)), {}, (x,))


def all_to_all(
    x: torch.Tensor,
    *,
    group: object,
    dim: int = 0,
    send_splits: Sequence[int] | None = None,
    recv_splits: Sequence[int] | None = None,
) -> torch.Tensor:
    """Part p of x along dim goes to rank p: the result has, in rank order along dim, what each rank had for this one.

    x: as in all_gather; without splits all parts are of one size.
    dim: which dimension is split and joined; without splits its size must be a multiple of the ranks. Another than the
        first costs a copy of x and one of the result, unless all before it are of size 1.
    send_splits, recv_splits: both or none: sizes along dim of the part for each rank and of the part from each, 0 or
        more. What a rank sends to a peer must be what that peer's recv_splits say; they are not compared.

    Gives a contiguous tensor: of the shape of x, or with sum(recv_splits) along dim. Its gradient is all_to_all, with
    the splits exchanged. Raises as all_gather; InvalidArgument for sizes that cannot be split so, too.
    """
    if send_splits is None and recv_splits is None:
        return run(_OP["all_to_all"], (x, dim, group_name(group)), {}, (x,))
    if send_splits is None or recv_splits is None:
        raise InvalidArgument(
            f"all_to_all: send_splits are {send_splits}, recv_splits {recv_splits}, wanted both or none"
        )
    splits = {"send_splits": list(send_splits), "recv_splits": list(recv_splits)}
    return run(_OP["all_to_all"], (x, dim, group_name(group)), splits, (x,))


register_gradient("all_gather", _backward_all_gather, _setup_collective)
register_gradient("reduce_scatter", _backward_reduce_scatter, _setup_collective)
register_gradient("all_reduce", _backward_all_reduce, _setup_collective)
register_gradient("all_to_all", _backward_all_to_all, _setup_all_to_all)
