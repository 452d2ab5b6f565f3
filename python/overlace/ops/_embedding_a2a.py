"""Embedding + All-to-All: its shapes, gradients and function."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from overlace._call import call_within_op
from overlace.context import context_of, group_name, size_of
from overlace.errors import InvalidArgument
from overlace.ops._common import register_gradient, rows_of_ranks, run
from overlace.ops._placement import Placement, read_placement
from overlace.ops._pooling import Pooling, gradients_of_pooling

_ops = torch.ops.overlace
_NAME = "embedding_a2a"


def _placement_of(text: str) -> Placement:
    placement = read_placement(text)
    if placement is None:
        raise InvalidArgument(f"{_NAME}: placement is {text!r}, wanted JSON of tables and features")
    return placement


def _shapes_of(placement: Placement, rank: int) -> list[tuple[int, ...]]:
    """Shapes of the slices of a rank; one without has one empty tensor."""
    return [*placement.slices(rank)[0]] or [(0,)]


def _rows_of(batch: int, row_offsets: Sequence[int], size: int) -> list[int]:
    """Samples of each rank."""
    if not row_offsets:
        return rows_of_ranks(batch, (), size)
    rows = [end - begin for begin, end in itertools.pairwise(row_offsets)]
    if len(rows) != size or row_offsets[0] != 0 or min(rows) < 0:
        raise InvalidArgument(
            f"{_NAME}: row_offsets are {list(row_offsets)}, wanted {size + 1} numbers that begin with 0 and do not fall"
        )
    return rows


def _flat(weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """The slices one after the other: without a copy where they lie in memory so."""
    first, end = weights[0], weights[0].storage_offset()
    for w in weights:
        if not w.is_contiguous() or w.data_ptr() != first.data_ptr() + (end - first.storage_offset()) * w.itemsize:
            return torch.cat([w.reshape(-1) for w in weights])
        end += w.numel()
    if end * first.itemsize > first.untyped_storage().nbytes():  # neighbours by chance
        return torch.cat([w.reshape(-1) for w in weights])
    return first.as_strided((end - first.storage_offset(),), (1,))


def _check_weights(weights: Sequence[torch.Tensor]) -> None:
    if not weights:
        raise InvalidArgument(f"{_NAME}: weights are empty, wanted one tensor or more; a rank without tables gives (0)")
    for i, w in enumerate(weights):
        if w.dtype != weights[0].dtype:
            raise InvalidArgument(f"{_NAME}: weights[{i}] is {w.dtype}, wanted {weights[0].dtype} as weights[0]")


def _check_shapes(weights: Sequence[torch.Tensor], placement: Placement, rank: int) -> None:
    got, wanted = [list(w.shape) for w in weights], [list(shape) for shape in _shapes_of(placement, rank)]
    if got != wanted:
        raise InvalidArgument(f"{_NAME}: weights are {got} on rank {rank}, wanted {wanted} as the placement says")


def _forward(
    weights,
    indices,
    offsets,
    per_sample_weights,
    batch,
    placement,
    group,
    *,
    mode="sum",
    bounds="error",
    out_dtype=None,
    sparse=False,
    row_offsets=(),
    plan="",
):
    rank, size = size_of(_NAME, group)
    _check_weights(weights)
    read = read_placement(placement)
    flat = _flat([w.detach() for w in weights])
    # What the library refuses, it refuses on all ranks; what is left is the order of the elements.
    if read is not None and flat.numel() == sum(map(math.prod, _shapes_of(read, rank))):
        _check_shapes(weights, read, rank)
    columns = 1 if read is None else read.columns
    out = flat.new_empty((_rows_of(batch, row_offsets, size)[rank], columns), dtype=out_dtype or flat.dtype)
    tensors = {
        "weights": flat,
        "indices": indices.contiguous(),
        "offsets": offsets.contiguous(),
        "per_sample_weights": None if per_sample_weights is None else per_sample_weights.detach().contiguous(),
        "out": out,
    }
    fields: dict[str, Any] = {"batch": batch, "mode": mode, "bounds": bounds, "placement": placement}
    if row_offsets:
        fields["row_offsets"] = list(row_offsets)
    call_within_op(_NAME, tensors, context_of(group), plan, fields)
    return out


_op = torch.library.custom_op(
    "overlace::embedding_a2a",
    _forward,
    mutates_args=(),
    schema=(
        "(Tensor[] weights, Tensor indices, Tensor offsets, Tensor? per_sample_weights, SymInt batch, str placement, "
        'str group, *, str mode="sum", str bounds="error", ScalarType? out_dtype=None, bool sparse=False, '
        'int[] row_offsets=[], str plan="") -> Tensor'
    ),
)


@_op.register_fake
def _shapes(weights, indices, offsets, per_sample_weights, batch, placement, group, **options):
    rank, size = size_of(_NAME, group, {"indices": indices, "offsets": offsets})
    _check_weights(weights)
    read = _placement_of(placement)
    _check_shapes(weights, read, rank)
    rows = _rows_of(batch, options.get("row_offsets", ()), size)[rank]
    return weights[0].new_empty((rows, read.columns), dtype=options.get("out_dtype") or weights[0].dtype)


# ---- gradients ----


def _to_owners(grad, placement: Placement, rows: Sequence[int], rank: int, group: str):
    """(my samples, all columns) of each rank to (all samples, my columns): each feature's to the rank that pools it."""
    order, widths = placement.packed_columns(len(rows))
    sent = torch.cat([block.reshape(-1) for block in grad[:, order.to(grad.device)].split(widths, 1)])
    sends, comes = [rows[rank] * width for width in widths], [n * widths[rank] for n in rows]
    came = _ops.all_to_all(sent, 0, group, send_splits=sends, recv_splits=comes)
    return came.view(sum(rows), widths[rank])


def _gradients(
    grad,
    weights,
    indices,
    offsets,
    factors,
    batch,
    placement,
    group,
    *,
    mode,
    bounds,
    dtype,
    sparse=False,
    row_offsets,
    needs_weights,
    needs_factors,
):
    """Gradients of the slices, and of the factors; of those that are needed."""
    rank, size = size_of(_NAME, group)
    read = _placement_of(placement)
    upstream = _to_owners(grad, read, _rows_of(batch, row_offsets, size), rank, group)
    pooling, wanted = Pooling(mode, bounds, dtype, sparse), (needs_weights, needs_factors)
    return gradients_of_pooling(upstream, weights, indices, offsets, factors, read, rank, pooling, wanted)


# One operator, as torch.compile could not look into it: how many entries a feature has is known at run time only.
_gradients_op = torch.library.custom_op(
    "overlace::embedding_a2a_backward",
    _gradients,
    mutates_args=(),
    schema=(
        "(Tensor grad, Tensor[] weights, Tensor indices, Tensor offsets, Tensor? factors, SymInt batch, "
        "str placement, str group, *, str mode, str bounds, ScalarType dtype, int[] row_offsets, bool needs_weights, "
        "bool needs_factors) -> (Tensor[], Tensor)"
    ),
)


@_gradients_op.register_fake
def _shapes_of_gradients(grad, weights, indices, offsets, factors, batch, placement, group, **options):
    rank, _ = size_of(_NAME, group)
    shapes = _shapes_of(_placement_of(placement), rank) if options["needs_weights"] else []
    grads = [grad.new_empty(shape, dtype=options["dtype"]) for shape in shapes]
    return grads, grad.new_empty(indices.shape if options["needs_factors"] else (0,), dtype=options["dtype"])


def _setup_second(ctx, inputs, keyword_only_inputs, output) -> None:
    grad, weights, indices, offsets, factors, *ctx.others = inputs
    ctx.options = keyword_only_inputs
    ctx.save_for_backward(grad, indices, offsets, factors, *weights)


def _second(ctx, upstream_of_slices, upstream_of_factors):
    """Gradients of the gradients, computed once more by operators that have gradients themselves."""
    grad, indices, offsets, factors, *weights = ctx.saved_tensors
    with torch.enable_grad():
        grad, *weights = (t.detach().requires_grad_() for t in (grad, *weights))
        factors = None if factors is None else factors.detach().requires_grad_()
        slices, of_factors = _gradients(grad, weights, indices, offsets, factors, *ctx.others, **ctx.options)
    given = [*zip(slices, upstream_of_slices or (), strict=True), (of_factors, upstream_of_factors)]
    outs, upstreams = zip(*((out, up) for out, up in given if out.requires_grad and up is not None), strict=True)
    inputs = [grad, *weights, *([] if factors is None else [factors])]
    first, *found = torch.autograd.grad(outs, inputs, upstreams, allow_unused=True)
    last = None if factors is None else found.pop()
    return first, found, None, None, last, None, None, None


register_gradient("embedding_a2a_backward", _second, _setup_second)


def _setup(ctx, inputs, keyword_only_inputs, output) -> None:
    weights, indices, offsets, factors, *ctx.others = inputs
    ctx.options = {name: keyword_only_inputs[name] for name in ("mode", "bounds", "sparse", "row_offsets")}
    ctx.dtype, ctx.num_slices = weights[0].dtype, len(weights)
    reads = ctx.options["mode"] == "max" or (factors is not None and factors.requires_grad)
    ctx.save_for_backward(indices, offsets, factors, *(weights if reads else ()))


def _backward(ctx, grad):
    indices, offsets, factors, *weights = ctx.saved_tensors
    needs_weights, needs_factors = any(ctx.needs_input_grad[0]), ctx.needs_input_grad[3]
    options = {**ctx.options, "dtype": ctx.dtype, "needs_weights": needs_weights, "needs_factors": needs_factors}
    gradients = _gradients if options["sparse"] else _ops.embedding_a2a_backward
    if not options["sparse"]:
        del options["sparse"]
    grads, of_factors = gradients(grad, weights, indices, offsets, factors, *ctx.others, **options)
    of_weights = grads if needs_weights else [None] * ctx.num_slices
    return of_weights, None, None, of_factors if needs_factors else None, None, None, None


register_gradient("embedding_a2a", _backward, _setup)


def embedding_a2a(
    weights: Sequence[torch.Tensor],
    indices: torch.Tensor,
    offsets: torch.Tensor | None = None,
    per_sample_weights: torch.Tensor | None = None,
    *,
    group: object,
    batch: int,
    placement: Mapping[str, Any] | str,
    lengths: torch.Tensor | None = None,
    mode: str = "sum",
    bounds: str = "error",
    out_dtype: torch.dtype | None = None,
    sparse: bool = False,
    row_offsets: Sequence[int] | None = None,
    plan: str = "",
) -> torch.Tensor:
    """Bags of embeddings pooled where their tables lie, then All-to-All: all features of this rank's samples.

    Rank r pools its features for the samples of all ranks. On CUDA tensors the forward pass is queued and waits for
    nothing; gradients are torch's operators, of which some wait, so that they cannot be captured.

    weights: the slices of tables that this rank's features name, each once, in the order of the placement: (rows,
        width) each, of one dtype, float32, bfloat16, float16 or float64, the same on all ranks. Not copied where they
        are contiguous and lie one behind the other in one memory. A rank without tables gives one tensor (0), which
        needs a gradient where the others' do.
    indices: (entries of this rank), int64 or int32: rows of tables, bag by bag.
    offsets: (features of this rank x batch + 1), int64 or int32: bag f batch + b, of this rank's feature f and sample
        b, begins at entry offsets[f batch + b]; the first is 0, the last the number of entries.
    lengths: (features of this rank x batch) of any shape, instead of offsets: how many entries each bag has.
    per_sample_weights: (entries of this rank) or None, of the dtype of weights, with mode="sum": factors of entries.
    group, plan: as in ag_gemm.
    batch: samples of all ranks.
    placement: {"tables": [{"rows", "dim", "padding": -1}], "features": [{"table", "rank", "first": 0, "width": dim,
        "column"}], "entries": 1} or its JSON, the same on all ranks: columns [first, first + width) of a table, which
        `rank` pools, become [column, column + width) of the result. Every column of the result is that of one feature.
        Entries of bags that are the padding are left out; `entries` is the expected length of a bag, for planning.
    mode: "sum", "mean" or "max". An empty bag gives zeros.
    bounds: what becomes of an index outside its table: "error"; "ignore", it is left out; "clamp", the nearest row;
        "zero_row", row 0; "none", it is not looked at. But for "error", bags whose offsets fall are empty.
    out_dtype: that of weights (default) or float32; rows travel in it. Sums are made in float64 and rounded once; on
        GPUs in float32 (float64 for float64), in the same order.
    sparse: gradients of weights are sparse tensors of the rows that are looked up, coalesced; not in torch.compile.
    row_offsets: ranks + 1 numbers, samples of rank r are [r] to [r + 1]; None: as torch.tensor_split deals them.

    Gives (samples of this rank, columns of all features). Gradients, first and second, of weights and of
    per_sample_weights: of the sum of what all ranks make of their samples. The gradient of the result goes back to the
    tables' ranks by one all_to_all, and is added entry by entry in their order, in float32 for 16-bit tables: equal
    calls give equal bits. That of max goes to the first of equal rows. Raises InvalidArgument before anything moves, of
    a bad index with rank, feature, bag, position, value and rows; the first call of a shape on all ranks, later ones on
    that rank alone. On GPUs a bad index or offset is left out, and the rank that pools it raises behind its next call
    of an operator, which is made, at `Context.check()`, or with OVERLACE_CHECK=sync behind the call itself.
    PlanMismatch where ranks give other placements, modes or bounds.
    Source: arXiv 2305.06942, section 3.
    """
    if (offsets is None) == (lengths is None):
        raise InvalidArgument(f"{_NAME}: {'no' if offsets is None else 'both'} offsets and lengths, wanted one of them")
    if lengths is not None:
        offsets = torch.nn.functional.pad(lengths.reshape(-1).cumsum(0), (1, 0))
    text = placement if isinstance(placement, str) else json.dumps(placement)
    options: dict[str, Any] = {"mode": mode, "bounds": bounds, "out_dtype": out_dtype, "sparse": sparse}
    options |= {"row_offsets": list(row_offsets or ()), "plan": plan}
    arguments = (list(weights), indices, offsets, per_sample_weights, batch, text, group_name(group))
    return run(_ops.embedding_a2a.default, arguments, options, (*weights, per_sample_weights))
