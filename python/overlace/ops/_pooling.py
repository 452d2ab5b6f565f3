"""Gradients of pooled bags on the rank that holds their tables: what src/spec/families/pool.cc computes, reversed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from overlace.ops._placement import Placement


class Pooling(NamedTuple):
    mode: str
    bounds: str
    dtype: torch.dtype  # of the tables
    sparse: bool = False


class _Entries(NamedTuple):
    """The entries of one feature that count: places in indices, rows of the table, bags they belong to."""

    at: torch.Tensor
    row: torch.Tensor
    bag: torch.Tensor


def _entries(indices: torch.Tensor, offsets: torch.Tensor, rows: int, padding: int, bounds: str) -> _Entries:
    begins, ends = offsets[:-1].long(), offsets[1:].long()
    fits = (begins >= 0) & (begins <= ends) & (ends <= len(indices))
    lengths = torch.where(fits, ends - begins, 0)
    bag = torch.repeat_interleave(lengths)
    at = torch.arange(len(bag), device=bag.device) + (begins - lengths.cumsum(0) + lengths)[bag]
    row = indices[at].long()
    counts, is_inside = row != padding, (row >= 0) & (row < rows)
    if padding < 0:
        counts = torch.ones_like(counts)
    if bounds in ("error", "ignore"):  # with error GPUs leave out what they will tell of
        counts &= is_inside
    elif bounds == "clamp":
        row = row.clamp(0, rows - 1)
    elif bounds == "zero_row":
        row = torch.where(is_inside, row, 0)
    return _Entries(at[counts], row[counts], bag[counts])


def _is_largest(values: torch.Tensor, bag: torch.Tensor, bags: int) -> torch.Tensor:
    """Which value of each bag and column is the maximum: the first of equal ones, the first NaN."""
    where = bag[:, None].expand_as(values)
    top = values.new_full((bags, values.shape[1]), -torch.inf).scatter_reduce(0, where, values, "amax")
    place = torch.arange(len(bag), device=bag.device)[:, None].expand_as(values)
    place = torch.where((values == top[bag]) | values.isnan(), place, len(bag))
    first = place.new_full(top.shape, len(bag)).scatter_reduce(0, where, place, "amin")
    return place == first[bag]


def _added(shape: tuple[int, int], place: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Zeros with each row of values added at its place, in their order: on GPUs index_add has none, index_put sorts."""
    if values.is_cuda:
        return values.new_zeros(shape).index_put((place,), values, accumulate=True)
    return values.new_zeros(shape).index_add(0, place, values)


def _sum_of_rows(shape: tuple[int, int], parts: list[tuple[torch.Tensor, torch.Tensor]], pooling: Pooling):
    """(rows, width): the values of each row added in the order of the entries, feature by feature, rounded once."""
    row, values = torch.cat([row for row, _ in parts]), torch.cat([values for _, values in parts])
    if not pooling.sparse:
        return _added(shape, row, values).to(pooling.dtype)
    kept, place = torch.unique(row, return_inverse=True)  # sorted
    sums = _added((len(kept), shape[1]), place, values).to(pooling.dtype)
    return torch.sparse_coo_tensor(kept[None], sums, shape, is_coalesced=True, check_invariants=False)


def gradients_of_pooling(
    upstream: torch.Tensor,
    weights: Sequence[torch.Tensor],
    indices: torch.Tensor,
    offsets: torch.Tensor,
    factors: torch.Tensor | None,
    placement: Placement,
    rank: int,
    pooling: Pooling,
    wanted: tuple[bool, bool],
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Gradients of this rank's slices and of the factors of its entries; nothing of those that are not wanted.

    upstream: (samples of all ranks, columns of this rank's features), the gradient of what it pooled.
    weights: the slices, for the gradient of factors and for mode max; else they may be missing.
    Sums of 16-bit tables are made in fp32, others in the dtype of the tables. Made of differentiable operators.
    """
    needs_weights, needs_factors = wanted
    precise = torch.promote_types(pooling.dtype, torch.float32)
    batch, (shapes, slices) = len(upstream), placement.slices(rank)
    parts: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[] for _ in shapes]
    # Also on a rank without tables all gradients are of the exchange, so that each takes part in that of second ones.
    nothing = upstream.reshape(-1)[:0].to(precise)
    of_factors = nothing.new_zeros(len(indices) if needs_factors else 0) + nothing.sum()
    column = 0
    for i, (f, at) in enumerate(zip(placement.of(rank), slices, strict=True)):
        own = offsets[i * batch : (i + 1) * batch + 1]
        entries = _entries(indices, own, placement.rows[f.table], placement.padding[f.table], pooling.bounds)
        values = upstream[:, column : column + f.width].to(precise)
        column += f.width
        if pooling.mode == "mean":
            values = values / torch.bincount(entries.bag, minlength=batch).clamp(min=1)[:, None]
        values = values[entries.bag]
        if pooling.mode == "max":
            looked_up = weights[at].detach().to(precise)[entries.row]
            values = torch.where(_is_largest(looked_up, entries.bag, batch), values, 0)
        if needs_factors:
            products = (values * weights[at].to(precise)[entries.row]).sum(1)
            of_factors = of_factors.index_add(0, entries.at, products)
        if factors is not None:
            values = values * factors.to(precise)[entries.at, None]
        parts[at].append((entries.row, values))
    grads = []
    if needs_weights:
        grads = [_sum_of_rows(shape, part, pooling) for shape, part in zip(shapes, parts, strict=True)]
        grads = grads or [nothing.to(pooling.dtype).clone()]
    return grads, of_factors.to(pooling.dtype)
