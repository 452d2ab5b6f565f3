"""A mixture-of-experts layer on this rank: its operands, the oracle, and the layer as users of PyTorch write it."""

from __future__ import annotations

import dataclasses
import math

import moe_cases
import torch
import torch.distributed as dist
from torch.nn import functional
from torch_entrants import ROTATED_BYTES, Missing, relative
from torch_rank import Rank

SAMPLED = 64  # tokens of a rank, and rows of its experts, of the check against fp64
MOST_SETS, MOST_BYTES = 24, 1 << 35
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
# Streams of random numbers; experts have those from the last one on.
ORDER, TOKENS, CHOICES, SAMPLES, EXPERTS = 0, 1 << 10, 2 << 10, 3 << 10, 4 << 10


def choose(case: moe_cases.Case, order: torch.Tensor, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Experts (tokens, k) int64, no expert twice for one token, and their weights, of sum 1, in fp32."""
    odds = torch.zeros(case.experts)
    if case.routing == "zipf":
        odds[order] = -moe_cases.ZIPF * torch.arange(1, case.experts + 1).log()
    # The k largest of odds + Gumbel noise are k draws without replacement (Kool, van Hoof, Welling, ICML 2019).
    noise = torch.empty(case.tokens, case.experts).exponential_(generator=random).log()
    experts = (odds - noise).topk(case.top_k).indices
    weights = torch.rand(case.tokens, case.top_k, generator=random) + 0.1
    return experts, weights / weights.sum(1, keepdim=True)


@dataclasses.dataclass(frozen=True)
class Splits:
    """Copies that this rank sends to each rank and gets from each, and where those rows lie by expert."""

    sent: list[int]
    received: list[int]
    by_expert: torch.Tensor  # row that was received, for each row of the experts
    by_source: torch.Tensor  # the reverse
    ends: torch.Tensor  # of each expert's rows


class Layer:
    """Operands of one case in so many sets that twice the L2 lies between two uses; all sets hold the same values."""

    oracle = f"fp64, {SAMPLED} tokens of each rank, and every element against the first competitor's"

    def __init__(self, case: moe_cases.Case, rank: Rank, seed: int) -> None:
        self.case, self.rank, self.seed = case, rank, seed
        self.team = None  # of overlace, closed with the case: what its calls took on all ranks stays until then
        self.begin = [r * case.experts // rank.size for r in range(rank.size + 1)]
        self.mine = range(*self.begin[rank.rank : rank.rank + 2])
        order = torch.randperm(case.experts, generator=self._random(ORDER, "cpu"))
        experts, weights = choose(case, order, self._random(CHOICES + rank.rank, "cpu"))
        self.experts, self.weights = experts.to(rank.device), weights.to(rank.device)
        x = self._normal(TOKENS + rank.rank, case.tokens, case.hidden)
        sizes = ((2 * case.intermediate, case.hidden), (case.hidden, case.intermediate))
        w1, w2 = (self._stack(part, *size) for part, size in enumerate(sizes))
        self.counts = self.exchanged_counts()
        self.sets, self.bytes_rotated = self._sets(x, w1, w2)
        self.x, self.w1, self.w2 = ([t.clone() for _ in range(self.sets)] for t in (x, w1, w2))
        self.sample, self.wanted = self._sampled()
        self.wanted_rows = (self.sample[:0], self.wanted[:0])  # those of the experts that sample_rows drew

    def _random(self, stream: int, device: torch.device | str | None = None) -> torch.Generator:
        return torch.Generator(device or self.rank.device).manual_seed((self.seed << 20) + stream)

    def _normal(self, stream: int, rows: int, cols: int, scale: float = 1.0) -> torch.Tensor:
        values = torch.randn(rows, cols, generator=self._random(stream), device=self.rank.device)
        return (values * scale).to(DTYPES[self.case.dtype])

    def _stack(self, part: int, rows: int, cols: int) -> torch.Tensor:
        """(E of this rank, rows, cols), the same expert on any number of ranks."""
        stack = torch.empty(len(self.mine), rows, cols, dtype=DTYPES[self.case.dtype], device=self.rank.device)
        for at, expert in enumerate(self.mine):
            stack[at] = self._normal(EXPERTS + 2 * expert + part, rows, cols, 1 / math.sqrt(cols))
        return stack

    def _sets(self, x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor) -> tuple[int, int]:
        """Their number and their bytes that calls touch, those of the rank that has the fewest."""
        whole = sum(t.numel() * t.element_size() for t in (x, w1, w2))
        of_expert = 3 * self.case.hidden * self.case.intermediate * x.element_size()
        used = int((self.counts[:, self.mine.start : self.mine.stop].sum(0) > 0).sum())
        one = x.numel() * x.element_size() + used * of_expert
        most = min(MOST_SETS, max(MOST_BYTES // whole, 1))
        sets = 1 if one >= ROTATED_BYTES else min(-(-ROTATED_BYTES // one) + 1, most)
        sets = -int(self.rank.worst(-float(sets))[0])
        return sets, sets * one

    def operands(self) -> list[torch.Tensor]:
        return [t for t in (self.x[0], self.w1[0], self.w2[0]) if t.numel()]

    def facts(self) -> dict:
        c = self.case
        copies = [int(self.counts[:, a:b].sum()) for a, b in zip(self.begin, self.begin[1:], strict=False)]
        flops = 6.0 * c.tokens * c.top_k * c.hidden * c.intermediate
        return {"flops": flops, "load": max(copies) * self.rank.size / sum(copies)}

    # -- the oracle --

    def _expert(self, at: int, rows: torch.Tensor) -> torch.Tensor:
        """Rows through this rank's expert `at`, in fp64."""
        gate, up = (rows.double() @ self.w1[0][at].double().t()).chunk(2, 1)
        return (functional.silu(gate) * up) @ self.w2[0][at].double().t()

    def _sampled(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens, and what is wanted of them: every rank adds what its experts make of the drawn tokens of all."""
        random = self._random(SAMPLES + self.rank.rank, "cpu")
        sample = torch.randperm(self.case.tokens, generator=random)[:SAMPLED].to(self.rank.device)
        drawn = [self._gathered(t[sample]) for t in (self.x[0], self.experts, self.weights)]
        x, experts, weights = (t.flatten(0, 1) for t in drawn)
        wanted = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
        for at, expert in enumerate(self.mine):
            weight = (weights.double() * (experts == expert)).sum(1, keepdim=True)
            rows = weight[:, 0].nonzero()[:, 0]
            wanted[rows] += weight[rows] * self._expert(at, x[rows])
        dist.all_reduce(wanted)
        return sample, wanted.unflatten(0, (self.rank.size, -1))[self.rank.rank]

    def _gathered(self, mine: torch.Tensor) -> torch.Tensor:
        """(ranks, ...): those of all."""
        found = mine.new_empty(self.rank.size, *mine.shape)
        dist.all_gather_into_tensor(found.flatten(0, 1), mine.contiguous())
        return found

    def errors(self, out: torch.Tensor, name: str) -> tuple[float, float]:
        rows, wanted = self.wanted_rows if name == moe_cases.COMPUTE else (self.sample, self.wanted)
        return relative(out[rows], wanted)

    # -- as users of PyTorch write it --

    def exchanged_counts(self) -> torch.Tensor:
        """(ranks, E): the copies of each rank for each expert; collective, without a wait on the host."""
        flat = self.experts.flatten()
        counts = flat.new_zeros(self.case.experts).scatter_add_(0, flat, torch.ones_like(flat))
        return self._gathered(counts)

    def splits(self, counts: torch.Tensor) -> Splits:
        """Waits for `counts` on the host."""
        pairs = torch.stack([counts[:, a:b].sum(1) for a, b in zip(self.begin, self.begin[1:], strict=False)], 1)
        table = pairs.tolist()
        received = [row[self.rank.rank] for row in table]
        mine = counts[:, self.mine.start : self.mine.stop]
        experts = torch.arange(len(self.mine), device=mine.device).repeat(self.rank.size)
        of_row = experts.repeat_interleave(mine.flatten(), output_size=sum(received))
        by_expert = of_row.argsort(stable=True)
        ends = mine.sum(0).cumsum(0).int()
        return Splits(table[self.rank.rank], received, by_expert, by_expert.argsort(), ends)

    def dispatched(self, i: int, order: torch.Tensor, s: Splits) -> torch.Tensor:
        """The rows of this rank's experts, by expert: those of a token as often as it chose an expert here."""
        sent = self.x[i][order // self.case.top_k]
        received = sent.new_empty(sum(s.received), self.case.hidden)
        dist.all_to_all_single(received, sent, s.received, s.sent)
        return received[s.by_expert]

    def through_experts(self, i: int, rows: torch.Tensor, s: Splits) -> torch.Tensor:
        """By grouped GEMMs; rows by expert."""
        if rows.shape[0] == 0:
            return rows
        grouped_mm = grouped()
        gate, up = grouped_mm(rows, self.w1[i].transpose(1, 2), offs=s.ends).chunk(2, 1)
        return grouped_mm(functional.silu(gate) * up, self.w2[i].transpose(1, 2), offs=s.ends)

    def order(self) -> torch.Tensor:
        return self.experts.flatten().argsort(stable=True)

    def by_torch(self, i: int, s: Splits) -> torch.Tensor:
        """The layer on operand set i."""
        order = self.order()
        rows = self.through_experts(i, self.dispatched(i, order, s), s)
        back = rows.new_empty(order.shape[0], self.case.hidden)
        dist.all_to_all_single(back, rows[s.by_source], s.sent, s.received)
        copies = torch.empty_like(back)
        copies[order] = back
        weighted = copies.unflatten(0, self.weights.shape) * self.weights.to(copies.dtype).unsqueeze(2)
        return weighted.sum(1)

    def sample_rows(self, rows: torch.Tensor, s: Splits) -> None:
        """Draws some of the experts' rows, for the check of `compute`."""
        some = torch.randperm(rows.shape[0], generator=self._random(SAMPLES + self.rank.rank, "cpu"))[:SAMPLED]
        some = some.to(rows.device)
        wanted = torch.zeros(len(some), self.case.hidden, dtype=torch.float64, device=rows.device)
        of_row = torch.searchsorted(s.ends.long(), some, right=True)
        for at in of_row.unique().tolist():
            here = of_row == at
            wanted[here] = self._expert(at, rows[some[here]])
        self.wanted_rows = (some, wanted)


def grouped() -> object:
    """PyTorch's grouped GEMM, under the name that this version has for it."""
    found = getattr(functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
    if found is None:
        raise Missing(f"torch {torch.__version__} has no grouped_mm")
    return found
