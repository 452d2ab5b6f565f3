"""Tables of embeddings that lie on the ranks of a group, each whole on one of them."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Sequence

import torch
from torch import nn

from overlace import ops
from overlace.context import context_of, group_name
from overlace.errors import InvalidArgument

_NAME = "ShardedEmbeddingBag"


def _balanced(sizes: Sequence[int], ranks: int) -> list[int]:
    """The largest first, each to the rank that has least."""
    held, out = [0] * ranks, [0] * len(sizes)
    for t in sorted(range(len(sizes)), key=lambda t: -sizes[t]):
        out[t] = held.index(min(held))
        held[out[t]] += sizes[t]
    return out


class ShardedEmbeddingBag(nn.Module):
    """A list of nn.EmbeddingBag, each table on one rank: pooled there, then sent to the samples' owners.

    tables: (rows, columns) of each. Initial values are those that the nn.EmbeddingBags draw from the same seed, one
        after the other. ranks: where each table lies; None: the largest first, each to the rank with least.
    mode, bounds, plan: as in overlace.ops.embedding_a2a; sparse: its gradients are sparse.
    padding_idx: of all tables, or of each, None where there is none.
    allow_pruned: entries whose index is -1 are left out, of a mean's count, too, whatever the bounds. They are not
        sent.

    Parameters are this rank's tables, under the names that nn.ModuleList([nn.EmbeddingBag(...), ...]) has: "0.weight".
    `state_dict` has those, so that the union over ranks is the state of the unsharded list; `full_state_dict()`
    gathers it. `load_state_dict` takes either. Their gradients are of the sum over ranks. On GPUs it is moved as any
    module is; forward waits for the device there, as counts of bags are exchanged on the host.
    """

    def __init__(
        self,
        tables: Sequence[tuple[int, int]],
        *,
        group: object = None,
        ranks: Sequence[int] | None = None,
        mode: str = "sum",
        padding_idx: int | Sequence[int | None] | None = None,
        bounds: str = "error",
        allow_pruned: bool = False,
        sparse: bool = False,
        plan: str = "",
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        paddings = padding_idx if isinstance(padding_idx, Sequence) else [padding_idx] * len(tables)
        bags = (  # one at a time: those of other ranks are dropped as soon as they have drawn their values
            nn.EmbeddingBag(rows, dim, padding_idx=padding, dtype=dtype)
            for (rows, dim), padding in zip(tables, paddings, strict=True)
        )
        self._take([(rows, dim) for rows, dim in tables], bags, group, ranks)
        self.mode, self.bounds, self.allow_pruned, self.sparse, self.plan = mode, bounds, allow_pruned, sparse, plan

    @classmethod
    def from_modules(
        cls,
        bags: Sequence[nn.EmbeddingBag],
        *,
        group: object = None,
        ranks: Sequence[int] | None = None,
        bounds: str = "error",
        allow_pruned: bool = False,
        plan: str = "",
    ) -> ShardedEmbeddingBag:
        """Takes this rank's tables of modules that all ranks hold alike, a copy; they must have one mode and dtype."""
        modes = {(bag.mode, bag.weight.dtype, bag.sparse) for bag in bags}
        if len(modes) != 1 or any(bag.max_norm is not None for bag in bags):
            raise InvalidArgument(f"{_NAME}: modules have {modes}, wanted one mode, dtype and sparse, and no max_norm")
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        layer._take([(bag.num_embeddings, bag.embedding_dim) for bag in bags], bags, group, ranks)
        layer.mode, layer.sparse = bags[0].mode, bags[0].sparse
        layer.bounds, layer.allow_pruned, layer.plan = bounds, allow_pruned, plan
        return layer

    def _take(
        self,
        shapes: list[tuple[int, int]],
        bags: Iterable[nn.EmbeddingBag],
        group: object,
        ranks: Sequence[int] | None,
    ) -> None:
        context = context_of(group)
        if not shapes:
            raise InvalidArgument(f"{_NAME}: no tables, wanted one or more")
        owners = list(ranks) if ranks is not None else _balanced([math.prod(s) for s in shapes], context.size)
        if len(owners) != len(shapes) or not all(0 <= rank < context.size for rank in owners):
            raise InvalidArgument(
                f"{_NAME}: ranks are {owners}, wanted one from 0 to {context.size - 1} for each of {len(shapes)} tables"
            )
        self.group_name, self.rank, self.size = group_name(group), context.rank, context.size
        self.shapes, self.owners, self.columns = shapes, owners, sum(dim for _, dim in shapes)
        self.mine = [t for t, owner in enumerate(owners) if owner == self.rank]
        paddings = []
        for t, bag in enumerate(bags):
            self.dtype, self.device = bag.weight.dtype, bag.weight.device
            paddings.append(-1 if bag.padding_idx is None else bag.padding_idx)
            if owners[t] != self.rank:
                continue
            table = nn.Module()
            table.register_parameter("weight", nn.Parameter(bag.weight.detach().clone()))
            self.add_module(str(t), table)
        if not self.mine:  # what takes part in backward, and what an optimizer has
            self.anchor = nn.Parameter(torch.empty(0, dtype=self.dtype, device=self.device))
        self._pack()
        features, column = [], 0
        for t, (_, dim) in enumerate(shapes):
            features.append({"table": t, "rank": owners[t], "column": column})
            column += dim
        # The order in which bags travel: rank by rank, as the placement orders features.
        self._order = sorted(range(len(shapes)), key=lambda t: owners[t])
        named = [
            {"rows": rows, "dim": dim, "padding": padding}
            for (rows, dim), padding in zip(shapes, paddings, strict=True)
        ]
        self._placement = json.dumps({"tables": named, "features": features})

    # ---- parameters and state ----

    def _tables(self) -> list[nn.Parameter]:
        return [self.get_parameter(f"{t}.weight") for t in self.mine]

    def _pack(self) -> None:
        """One behind the other in one memory, where the operator reads them without a copy."""
        tables = self._tables()
        if not tables:
            return
        flat = torch.cat([p.detach().reshape(-1) for p in tables])
        for p, part in zip(tables, flat.split([p.numel() for p in tables]), strict=True):
            p.data = part.view(p.shape)

    def _apply(self, fn, recurse=True):
        super()._apply(fn, recurse)
        moved = fn(torch.empty(0, dtype=self.dtype, device=self.device))
        self.dtype, self.device = moved.dtype, moved.device
        self._pack()
        return self

    def _load_from_state_dict(self, state_dict, prefix, metadata, strict, missing, unexpected, errors) -> None:
        for t, shape in enumerate(self.shapes):  # tables of other ranks are not strange
            if t not in self.mine:
                given = state_dict.pop(f"{prefix}{t}.weight", None)
                if given is not None and tuple(given.shape) != shape:
                    errors.append(f"{prefix}{t}.weight is {list(given.shape)}, wanted {list(shape)}")
        # The module itself has no state: not the anchor. Each of its own tables says what is strange.
        strange = [key for key in state_dict if key[len(prefix) :].split(".")[0] not in self._modules]
        unexpected.extend(strange if strict else ())

    def _save_to_state_dict(self, destination, prefix, keep_vars) -> None:
        pass

    @torch.no_grad()
    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """All tables on all ranks, as the unsharded list has them: copies. Collective."""
        own = dict(zip(self.mine, self._tables(), strict=True))
        state = {}
        for t, (rows, dim) in enumerate(self.shapes):
            sent = own[t].detach() if t in own else torch.empty(0, dim, dtype=self.dtype, device=self.device)
            sends, comes = [len(sent)] * self.size, [0] * self.size
            comes[self.owners[t]] = rows
            state[f"{t}.weight"] = ops.all_to_all(
                sent.repeat(self.size, 1), group=self.group_name, send_splits=sends, recv_splits=comes
            )
        return state

    # ---- forward ----

    def forward(
        self,
        indices: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
        *,
        lengths: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Pools the bags of this rank's samples, B of them, of all T tables. Collective; B may differ by rank.

        indices: (entries), int64 or int32, the same on all ranks: table by table, in a table bag by bag.
        offsets: (T B + 1), where bag t B + b, of table t and sample b, begins; or lengths: (T, B), how many entries it
            has.
        per_sample_weights: (entries) or None, on all ranks or on none, of the tables' dtype, with mode "sum".

        Gives (B, columns of all tables): those of table 0, then of table 1, and so on. Raises InvalidArgument on all
        ranks where one of them has bad bags, which is told before anything else is sent; where bounds is "error" also
        for an index outside its table, with rank, table, bag, position, value and rows.
        """
        try:
            bags, factors = self._checked(indices, offsets, lengths, per_sample_weights), per_sample_weights
            if self.allow_pruned:
                indices, bags, factors = _without_pruned(indices, bags, factors)
            why = None
        except InvalidArgument as error:
            bags, why = indices.new_zeros(len(self.shapes), 0, dtype=torch.int64), error
        counts = bags.sum(1).tolist()
        sent = [sum(counts[t] for t in self._order if self.owners[t] == rank) for rank in range(self.size)]
        samples = bags.shape[1] if why is None else -1
        header = torch.tensor([samples, per_sample_weights is not None, *sent], device=bags.device)
        rows, has_factors, *entries = self._gather(header, why)
        if len(set(has_factors)) > 1:
            raise InvalidArgument(f"{_NAME}: per_sample_weights of ranks are {has_factors}, wanted all or none")

        held = [self.owners.count(rank) for rank in range(self.size)]
        came = self._send(
            bags[self._order].reshape(-1), [n * rows[self.rank] for n in held], [held[self.rank] * n for n in rows]
        )
        place, own = _by_table(came, rows, held[self.rank])
        received = entries[self.rank]
        took = self._send(_reordered(indices, counts, self._order), sent, received)[place]
        if factors is not None:
            factors = self._send(_reordered(factors, counts, self._order), sent, received)[place]
        return ops.embedding_a2a(
            self._tables() or [self.anchor],
            took,
            None,
            factors,
            lengths=own,
            group=self.group_name,
            batch=sum(rows),
            placement=self._placement,
            mode=self.mode,
            bounds=self.bounds,
            sparse=self.sparse,
            row_offsets=[0, *itertools.accumulate(rows)],
            plan=self.plan,
        )

    def _send(self, x: torch.Tensor, sends: list[int], comes: list[int]) -> torch.Tensor:
        return ops.all_to_all(x, group=self.group_name, send_splits=sends, recv_splits=comes)

    def _gather(self, header: torch.Tensor, why: InvalidArgument | None) -> list[list[int]]:
        """The headers of all ranks, entry by entry: samples, whether there are factors, and entries for each rank."""
        all_of = ops.all_gather(header, group=self.group_name).view(self.size, -1).t().tolist()
        if why is not None:
            raise why
        if -1 in all_of[0]:
            raise InvalidArgument(f"{_NAME}: rank {all_of[0].index(-1)} has bad bags, wanted good ones on all ranks")
        return all_of

    def _checked(self, indices, offsets, lengths, factors) -> torch.Tensor:
        """Lengths (T, B) of bags that are what forward says."""
        if (offsets is None) == (lengths is None):
            raise InvalidArgument(f"{_NAME}: got {'no' if offsets is None else 'both'} offsets and lengths, wanted one")
        given = lengths.reshape(-1).long() if lengths is not None else offsets.long().diff()
        what = "lengths have" if lengths is not None else "offsets have 1 and"
        if given.numel() % len(self.shapes) != 0 or (lengths is None and offsets.dim() != 1):
            raise InvalidArgument(
                f"{_NAME}: {what} {given.numel()} entries, wanted some for each of {len(self.shapes)}"
            )
        if indices.dim() != 1 or indices.dtype not in (torch.int64, torch.int32):
            raise InvalidArgument(
                f"{_NAME}: indices are {indices.dtype} {list(indices.shape)}, wanted one dimension of int64 or int32"
            )
        begin = 0 if offsets is None or len(offsets) == 0 else int(offsets[0])
        if bool((given < 0).any()) or begin != 0 or int(given.sum()) != len(indices):
            least = int(given.min()) if len(given) else 0
            raise InvalidArgument(
                f"{_NAME}: bags begin at {begin}, the shortest has {least} entries, all have {int(given.sum())}, "
                f"wanted 0, 0 or more, and {len(indices)}, those of indices"
            )
        if factors is not None and (factors.shape != indices.shape or factors.dtype != self.dtype):
            raise InvalidArgument(
                f"{_NAME}: per_sample_weights are {factors.dtype} {list(factors.shape)}, wanted {self.dtype} "
                f"{list(indices.shape)}"
            )
        if factors is not None and self.mode != "sum":
            raise InvalidArgument(f"{_NAME}: per_sample_weights are given with mode {self.mode}, wanted mode sum")
        bags = given.view(len(self.shapes), -1)
        if self.bounds == "error":
            self._check_indices(indices, bags)
        return bags

    def _check_indices(self, indices: torch.Tensor, bags: torch.Tensor) -> None:
        rows_of_tables = torch.tensor([rows for rows, _ in self.shapes], device=bags.device)
        limit = torch.repeat_interleave(rows_of_tables, bags.sum(1))
        least = -1 if self.allow_pruned else 0
        bad = ((indices < least) | (indices >= limit)).nonzero()
        if len(bad) == 0:
            return
        at = int(bad[0])
        bag = int(torch.searchsorted(bags.reshape(-1).cumsum(0), at, right=True))
        table, sample = divmod(bag, bags.shape[1])
        position, rows = at - int(bags.reshape(-1)[:bag].sum()), self.shapes[table][0]
        raise InvalidArgument(
            f"{_NAME}: rank {self.rank}, table {table}, bag {sample}, position {position}: index is "
            f"{int(indices[at])}, wanted {least} to {rows - 1}: the table has {rows} rows"
        )

    def extra_repr(self) -> str:
        return f"tables={self.shapes}, ranks={self.owners}, mode='{self.mode}', group='{self.group_name}'"


def _without_pruned(indices: torch.Tensor, bags: torch.Tensor, factors: torch.Tensor | None):
    """Entries whose index is not -1, the lengths of the bags without them, and their factors."""
    kept = indices != -1
    bag_of = torch.repeat_interleave(bags.reshape(-1))
    lengths = torch.zeros_like(bags.reshape(-1)).index_add(0, bag_of, kept.long()).view_as(bags)
    return indices[kept], lengths, None if factors is None else factors[kept]


def _reordered(entries: torch.Tensor, counts: list[int], order: list[int]) -> torch.Tensor:
    parts = entries.split(counts)
    return torch.cat([parts[t] for t in order])


def _by_table(came: torch.Tensor, rows: list[int], tables: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Bags came rank by rank, of each rank table by table; wanted table by table, in rank order of samples. Gives where
    each entry lies among those that came, and the lengths (tables, samples of all ranks)."""

    def turned(t: torch.Tensor) -> torch.Tensor:
        blocks = t.split([tables * n for n in rows])
        return torch.cat([block.view(tables, n) for block, n in zip(blocks, rows, strict=True)], 1).reshape(-1)

    lengths, begins = turned(came), turned(came.cumsum(0) - came)
    place = torch.repeat_interleave(begins - lengths.cumsum(0) + lengths, lengths)
    return place + torch.arange(len(place), device=place.device), lengths
