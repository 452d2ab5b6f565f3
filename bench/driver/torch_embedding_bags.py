"""Tables and bags of this rank, the oracle, and embedding and All-to-All as users of PyTorch write it."""

from __future__ import annotations

import embedding_cases
import torch
import torch.distributed as dist
from torch.nn import functional
from torch_entrants import ROTATED_BYTES, relative
from torch_rank import Rank

SAMPLED = 32  # samples of a rank of the check against fp64
MOST_SETS = 16
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
# Streams of random numbers; tables and bags have those of their rank from there on.
TABLES, BAGS, SAMPLES = 1 << 10, 2 << 10, 3 << 10


class Bags:
    """Operands of one case: one set of tables, and so many sets of bags that twice the L2 lies between two uses."""

    oracle = f"fp64, {SAMPLED} samples of each rank, and every element against the first competitor's"

    def __init__(self, case: embedding_cases.Case, rank: Rank, seed: int) -> None:
        self.case, self.rank, self.seed = case, rank, seed
        self.team = None  # of overlace, closed with the case
        self.dtype = DTYPES[case.dtype]
        self.table = torch.randn(  # all tables of the rank, one behind the other
            case.tables * case.rows, case.dim, generator=self._random(TABLES + rank.rank), device=rank.device
        ).to(self.dtype)
        wanted = 1 if case.gathered() >= ROTATED_BYTES else -(-ROTATED_BYTES // case.gathered()) + 1
        self.sets = min(wanted, MOST_SETS)
        self.bytes_rotated = self.sets * case.gathered()
        # Mean lengths are what the case says; single bags differ, and some are empty where they are long enough.
        random = self._random(BAGS + rank.rank)
        self.bags = [self._drawn(random) for _ in range(self.sets)]
        self.counts = [s.numel() for s in torch.arange(case.samples).tensor_split(rank.size)]
        self.sample, self.wanted, self.wanted_own = self._sampled()

    def _random(self, stream: int) -> torch.Generator:
        return torch.Generator(self.rank.device).manual_seed((self.seed << 20) + stream)

    def _drawn(self, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of tables, each from 0, and the offsets of bags, feature by feature."""
        c, device = self.case, self.rank.device
        bags = c.tables * c.samples
        lengths = torch.full((bags,), c.length, device=device)
        if c.length > 1:
            change = torch.randint(0, c.length, (bags // 2,), generator=random, device=device)
            lengths[: bags // 2] += change
            lengths[bags // 2 : bags // 2 * 2] -= change
            lengths = lengths[torch.randperm(bags, generator=random, device=device)]
        count = int(lengths.sum())
        if c.distribution == "uniform":
            rows = torch.randint(0, c.rows, (count,), generator=random, device=device)
        else:
            ends = torch.arange(1, c.rows + 1, device=device, dtype=torch.float64).pow(-embedding_cases.ZIPF).cumsum(0)
            at = torch.rand(count, generator=random, device=device, dtype=torch.float64) * ends[-1]
            order = torch.randperm(c.rows, generator=random, device=device)
            rows = order[torch.searchsorted(ends, at).clamp_(max=c.rows - 1)]
        return rows, functional.pad(lengths.cumsum(0), (1, 0))

    def operands(self) -> list[torch.Tensor]:
        return [self.table]

    def facts(self) -> dict:
        return {"bytes": float(self.case.gathered())}

    def slices(self) -> list[torch.Tensor]:
        return [*self.table.split(self.case.rows)]

    def placement(self) -> dict:
        """All tables of all ranks, those of rank 0 first."""
        c, tables = self.case, self.case.tables * self.rank.size
        features = [{"table": t, "rank": t // c.tables, "column": t * c.dim} for t in range(tables)]
        return {"tables": [{"rows": c.rows, "dim": c.dim}] * tables, "features": features, "entries": c.length}

    # -- the oracle --

    def _pooled(self, samples: torch.Tensor) -> torch.Tensor:
        """(samples, columns of this rank) of the first set, in fp64."""
        c = self.case
        rows, offsets = self.bags[0]
        out = torch.zeros(len(samples), c.tables, c.dim, dtype=torch.float64, device=self.rank.device)
        for t in range(c.tables):
            for at, sample in enumerate(samples.tolist()):
                bag = t * c.samples + sample
                begin, end = offsets[bag : bag + 2].tolist()
                out[at, t] = self.table[t * c.rows + rows[begin:end]].double().sum(0)
        return out.flatten(1)

    def _sampled(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Places of the samples among this rank's, what is wanted of them, and of this rank's tables for them."""
        size, mine = self.rank.size, self.counts[self.rank.rank]
        count = min(SAMPLED, *self.counts)
        random = self._random(SAMPLES + self.rank.rank)
        sample = torch.randperm(mine, generator=random, device=self.rank.device)[:count]
        first = sum(self.counts[: self.rank.rank])
        drawn = sample.new_empty(size * count)
        dist.all_gather_into_tensor(drawn, sample + first)
        own = self._pooled(drawn)  # of all ranks' samples, this rank's columns
        came = torch.empty_like(own)
        dist.all_to_all_single(came, own)
        wanted = came.unflatten(0, (size, count)).transpose(0, 1).flatten(1)
        return sample, wanted, own[self.rank.rank * count : (self.rank.rank + 1) * count]

    def errors(self, out: torch.Tensor, name: str) -> tuple[float, float]:
        if name != embedding_cases.COMPUTE:
            return relative(out[self.sample], self.wanted)
        first = sum(self.counts[: self.rank.rank])
        c = self.case
        found = out.unflatten(0, (c.tables, c.samples))[:, first + self.sample].transpose(0, 1).flatten(1)
        return relative(found, self.wanted_own)

    # -- as users of PyTorch write it --

    def whole_rows(self) -> list[torch.Tensor]:
        """Rows of the tables as one, for each set."""
        c, found = self.case, []
        first = torch.arange(c.tables, device=self.rank.device).repeat_interleave(c.samples) * c.rows
        for rows, offsets in self.bags:
            found.append(rows + first.repeat_interleave(offsets.diff()))
        return found

    def pooled(self, i: int, whole: list[torch.Tensor]) -> torch.Tensor:
        """(tables x samples of all ranks, D), feature by feature."""
        offsets = self.bags[i][1]
        return functional.embedding_bag(whole[i], self.table, offsets, mode="sum", include_last_offset=True)

    def by_torch(self, i: int, whole: list[torch.Tensor]) -> torch.Tensor:
        """One embedding_bag over all tables, blocks of samples to their ranks, columns into their places."""
        c, size = self.case, self.rank.size
        pooled = self.pooled(i, whole).unflatten(0, (c.tables, c.samples))
        sent = torch.cat([block.reshape(-1) for block in pooled.split(self.counts, 1)])
        width, mine = c.tables * c.dim, self.counts[self.rank.rank]
        came = sent.new_empty(size * mine * width)
        dist.all_to_all_single(came, sent, [mine * width] * size, [n * width for n in self.counts])
        return came.view(size, c.tables, mine, c.dim).permute(2, 0, 1, 3).reshape(mine, size * width)
