"""The operators, with names, defaults and errors of Python; torch.ops.overlace.* is what they call.

All are collective: every rank of `group` calls them in the same order, with the same shapes but for what is said to be
a rank's own. The work is queued on the current CUDA stream; on CPU ranks it is done on return. Gradients: see
overlace.autograd. `group` is a ProcessGroup, a DeviceMesh of one dimension, or the name of a group.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from overlace.context import group_name, size_of
from overlace.errors import InvalidArgument, of_operator

# NOTE: overloads, not the names above them: those look for one that fits at each call.
_ag_gemm, _ag_wgrad = torch.ops.overlace.ag_gemm.default, torch.ops.overlace.ag_wgrad.default
_gemm_rs, _gemm_ar = torch.ops.overlace.gemm_rs.default, torch.ops.overlace.gemm_ar.default
_all_gather, _reduce_scatter = torch.ops.overlace.all_gather.default, torch.ops.overlace.reduce_scatter.default
_all_reduce, _all_to_all = torch.ops.overlace.all_reduce.default, torch.ops.overlace.all_to_all.default
_ROWS_OF_MATRIX = (-1,)


# Gradients are registered from Python, which costs a call 5 us even where none is needed.
_BelowAutograd = getattr(torch._C, "_AutoDispatchBelowAutograd", contextlib.nullcontext)


def _run(
    op: Callable[..., Any], arguments: tuple, options: dict[str, Any], tensors: Sequence[torch.Tensor | None]
) -> Any:
    """What the operators raise comes as the class it belongs to. tensors: all that could need a gradient. options: none
    where all are the default; each costs a call a microsecond."""
    if torch.compiler.is_compiling():
        return op(*arguments, **options)
    try:
        if _needs_gradient(tensors):
            return op(*arguments, **options)
        with _BelowAutograd():
            return op(*arguments, **options)
    except RuntimeError as error:
        own = of_operator(error)
        if own is None:
            raise
        raise own from None


def _rows_first(op: str, t: torch.Tensor, dim: int, name: str) -> tuple[torch.Tensor, Sequence[int], int]:
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


def _as_before(matrix: torch.Tensor, rows: Sequence[int], dim: int) -> torch.Tensor:
    """The inverse for a result: its rows have this shape, and their first dimension goes back to `dim`."""
    return matrix.unflatten(0, (-1, *rows[1:])).movedim(0, dim) if len(rows) > 1 else matrix


def _offsets(row_offsets: Sequence[int] | None, rows: Sequence[int]) -> list[int]:
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


def _needs_gradient(tensors: Sequence[torch.Tensor | None]) -> bool:
    if torch.is_grad_enabled():
        for t in tensors:  # not any(...): a generator costs a call 0.2 us
            if t is not None and t.requires_grad:
                return True
    return False


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
    biases: (N) for each of bs, or None.
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
    plan: "" (overlace decides), "family=NAME[,degree=N]", or a schedule in JSON.

    Gives one tensor for one b, a list for a list; with return_a a tuple of the gathered activation and that.
    Raises InvalidArgument (shapes, dtypes, devices, an unknown group), PlanMismatch (the ranks disagree; on all of
    them), Unsupported, Timeout, PeerLost. Maths: arXiv 2406.06858, section 2.
    """
    is_one = isinstance(bs, torch.Tensor)
    factors = [bs] if is_one else list(bs)
    vectors = [] if biases is None else [biases] if isinstance(biases, torch.Tensor) else list(biases)
    activate = activation_of("ag_gemm", activation, factors)
    matrix, rows, dim = _rows_first("ag_gemm", a, gather_dim, "gather_dim")
    keeps = return_a or (keep_gathered and _needs_gradient(factors))
    tensors = (matrix, *factors, *vectors)
    options: dict[str, Any] = {}
    if keeps or out_dtype or row_offsets or plan:
        offsets = _offsets(row_offsets, rows)
        options = {"return_a": keeps, "out_dtype": out_dtype, "row_offsets": offsets, "plan": plan}
    if activation == "swiglu" and len(factors) == 1 and not _needs_gradient(tensors):
        options["activation"], activate = activation, None
    arguments = (matrix, factors, vectors, 0, group_name(group))
    a_full, outs = _run(_ag_gemm, arguments, options, tensors)
    if activate is not None:
        outs = [activate(out) for out in outs]
    if len(rows) > 1:
        outs = [_as_before(out, rows, dim) for out in outs]
    result = outs[0] if is_one else outs
    return (_as_before(a_full, rows, dim), result) if return_a else result


def ag_wgrad(
    x: torch.Tensor,
    dys: torch.Tensor | Sequence[torch.Tensor],
    *,
    group: object,
    gather_dim: int = 0,
    row_offsets: Sequence[int] | None = None,
    plan: str = "",
) -> torch.Tensor | list[torch.Tensor]:
    """AllGather and the gradients of the weights behind it: `(concat over ranks of x)^T dy` for each of dys.

    x: (..., K), this rank's part, as ag_gemm took it.
    dys: (..., N) each, the rows of all ranks, of the dtype of x.
    group, gather_dim, row_offsets, plan: as in ag_gemm. The gather hides behind the widest of dys: its rows are summed
        as they come, own rows first, or slab by slab of K; sums are float32 (float64 of float64), rounded once.

    Gives (K, N), a list of them for a list. Raises as ag_gemm.
    """
    is_one = isinstance(dys, torch.Tensor)
    matrix, rows, dim = _rows_first("ag_wgrad", x, gather_dim, "gather_dim")
    factors = [_rows_first("ag_wgrad", dy, dim, "gather_dim")[0] for dy in ([dys] if is_one else dys)]
    arguments = (matrix, factors, 0, group_name(group))
    options = {"row_offsets": _offsets(row_offsets, rows), "plan": plan} if row_offsets or plan else {}
    outs = _run(_ag_wgrad, arguments, options, (matrix, *factors))
    return outs[0] if is_one else outs


def gemm_rs(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    group: object,
    bias: torch.Tensor | None = None,
    reduce_op: str = "sum",
    scatter_dim: int = 0,
    out_dtype: torch.dtype | None = None,
    activation: str = "none",
    row_offsets: Sequence[int] | None = None,
    plan: str = "",
) -> torch.Tensor:
    """GEMM and ReduceScatter: this rank's part, along scatter_dim, of the sum over ranks of `a b`. Row-parallel layers.

    a: (..., K), all rows; K may differ by rank. Dtypes as in ag_gemm.
    b: (K, N), of the dtype of a; rows or columns contiguous.
    group, activation, row_offsets, plan: as in ag_gemm, of the sum.
    bias: (N) or None, the same on all ranks: added once, after the sum. Its gradient is whole on every rank.
    reduce_op: "sum" or "avg"; "avg" divides the sum by the ranks, not the bias.
    scatter_dim: any dimension of a but the last; its size must be a multiple of the ranks without row_offsets.
    out_dtype: that of a (default) or float32; partial sums travel in it, and are added in float32 in rank order.

    Gives (..., N) with this rank's part of scatter_dim. Raises as ag_gemm. Maths: arXiv 2406.06858, section 2.
    """
    activate = activation_of("gemm_rs", activation, [b])
    matrix, rows, dim = _rows_first("gemm_rs", a, scatter_dim, "scatter_dim")
    name = group_name(group)
    if len(rows) > 1 and not row_offsets:  # of a matrix the operator says so
        _check_divisible(a, dim, name)
    options: dict[str, Any] = {}
    if out_dtype or row_offsets or plan:
        options = {"out_dtype": out_dtype, "row_offsets": _offsets(row_offsets, rows), "plan": plan}
    out = _run(_gemm_rs, (matrix, b, bias, reduce_op, 0, name), options, (matrix, b, bias))
    return _as_before(out if activate is None else activate(out), rows, dim)


def _check_divisible(a: torch.Tensor, dim: int, name: str) -> None:
    ranks = size_of("gemm_rs", name)[1]
    if a.shape[dim] % ranks != 0:
        raise InvalidArgument(
            f"gemm_rs: a is {list(a.shape)}, scatter_dim {dim}: {a.shape[dim]} is no multiple of {ranks} ranks; "
            "row_offsets split it otherwise"
        )


def gemm_ar(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    group: object,
    bias: torch.Tensor | None = None,
    reduce_op: str = "sum",
    plan: str = "",
) -> torch.Tensor:
    """GEMM and AllReduce: the sum over ranks of `a b`, the same bits on all of them. A row-parallel layer.

    a: (..., K); K may differ by rank.
    b: (K, N), of the dtype of a; rows or columns contiguous.
    group, bias, reduce_op, plan: as in gemm_rs.

    Gives (..., N). The gradient of a is local: that of the result must be the same on all ranks, as it is where
    everything behind it is computed by all of them. Raises as ag_gemm.
    """
    if a.dim() < 2:
        raise InvalidArgument(f"gemm_ar: a is {list(a.shape)}, wanted two dimensions or more")
    name = group_name(group)
    matrix = a if a.dim() == 2 else a.flatten(0, -2)
    out = _run(_gemm_ar, (matrix, b, bias, reduce_op, name), {"plan": plan} if plan else {}, (matrix, b, bias))
    return out.unflatten(0, a.shape[:-1]) if a.dim() > 2 else out


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
    return _run(_all_gather, (x, dim, group_name(group)), {}, (x,))


def reduce_scatter(x: torch.Tensor, *, group: object, reduce_op: str = "sum", dim: int = 0) -> torch.Tensor:
    """This rank's part, along dim, of the sum over ranks of x.

    x: as in all_gather, of float32, bfloat16, float16, float64, int64 or int32.
    reduce_op: "sum" or, of floats, "avg", the sum divided by the ranks.
    dim: which dimension is split; its size must be a multiple of the ranks. Another than the first costs a copy of x,
        unless all before it are of size 1.

    Gives a contiguous tensor, dim of it that of x over the ranks. Its gradient is all_gather. Raises as all_gather;
    InvalidArgument for dtypes that cannot be added and sizes that cannot be split, too.
    """
    return _run(_reduce_scatter, (x, reduce_op, dim, group_name(group)), {}, (x,))


def all_reduce(x: torch.Tensor, *, group: object, reduce_op: str = "sum") -> torch.Tensor:
    """The sum over ranks of x, on all of them; x itself is left as it is.

    x: as in reduce_scatter, also without dimensions. reduce_op: as there.
    Gives a contiguous tensor of the shape of x. The gradient is local: that of the result must be the same on all
    ranks, as it is where everything behind it is computed by all of them. Raises as reduce_scatter.
    """
    return _run(_all_reduce, (x, reduce_op, group_name(group)), {}, (x,))


def all_to_all(x: torch.Tensor, *, group: object, dim: int = 0) -> torch.Tensor:
    """Part p of x along dim goes to rank p: the result has, in rank order along dim, what each rank had for this one.

    x: as in all_gather; all parts are of one size.
    dim: which dimension is split and joined; its size must be a multiple of the ranks. Another than the first costs a
        copy of x and one of the result, unless all before it are of size 1.

    Gives a contiguous tensor of the shape of x. Its gradient is all_to_all. Raises as all_gather; InvalidArgument for
    sizes that cannot be split, too.
    """
    return _run(_all_to_all, (x, dim, group_name(group)), {}, (x,))
