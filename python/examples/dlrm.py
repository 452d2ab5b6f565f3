"""A small recommendation model (DLRM, arXiv 1906.00091) learns from a synthetic log of clicks. Every rank has both MLPs
and its samples of a batch; each embedding table lies whole on one rank, which pools it for the samples of all. Beside
it the same model learns on one rank from whole batches: losses, parameters and tables must stay equal within rounding.

usage: dlrm.py [--ranks 2] [--device cpu]
"""

from __future__ import annotations

import overlace
import torch
import torch.distributed as dist
from launch import launch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

ROWS = [1000, 40, 300, 7, 120]  # of the tables
WIDTH, DENSE, BATCH, STEPS = 16, 13, 251, 200
RATE, TABLE_RATE = 0.1, 0.1  # of SGD for the MLPs, of row-wise AdaGrad for the tables
TOLERANCE = 2e-5  # of a loss, in fp32


class Tables(nn.ModuleList):
    """What overlace.nn.ShardedEmbeddingBag is, on one rank."""

    def __init__(self, shapes: list[tuple[int, int]], sparse: bool) -> None:
        super().__init__(
            nn.EmbeddingBag(*shape, mode="sum", sparse=sparse, include_last_offset=True) for shape in shapes
        )

    def forward(self, indices: torch.Tensor, *, lengths: torch.Tensor) -> torch.Tensor:
        offsets = F.pad(lengths.cumsum(1), (1, 0))
        entries = indices.split(lengths.sum(1).tolist())
        return torch.cat([bag(*of_bag) for bag, *of_bag in zip(self, entries, offsets, strict=True)], 1)


class Model(nn.Module):
    """`tables` makes the embedding tables. Features, dense and pooled, meet as scalar products of all pairs."""

    def __init__(self, tables) -> None:
        super().__init__()
        features = 1 + len(ROWS)
        self.tables = tables([(rows, WIDTH) for rows in ROWS], sparse=True)
        self.bottom = nn.Sequential(nn.Linear(DENSE, 32), nn.ReLU(), nn.Linear(32, WIDTH), nn.ReLU())
        pairs = features * (features - 1) // 2
        self.top = nn.Sequential(nn.Linear(WIDTH + pairs, 32), nn.ReLU(), nn.Linear(32, 1))
        self.pairs = torch.tril_indices(features, features, -1)

    def forward(self, dense: torch.Tensor, indices: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        pooled = self.tables(indices, lengths=lengths)  # (batch, tables * width)
        below = self.bottom(dense)
        features = torch.cat((below, pooled), 1).view(len(dense), -1, WIDTH)
        products = features @ features.mT
        return self.top(torch.cat((below, products[:, self.pairs[0], self.pairs[1]]), 1)).squeeze(1)

    def mlps(self) -> list[nn.Parameter]:
        return [*self.bottom.parameters(), *self.top.parameters()]


class Clicks:
    """Users who click more or less often after each row of a table and each dense feature; few rows are popular."""

    def __init__(self) -> None:
        random = torch.Generator().manual_seed(7)
        self.likes = [torch.randn(rows, generator=random) for rows in ROWS]
        self.slope = torch.randn(DENSE, generator=random) / DENSE**0.5

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """dense (batch, features), indices (entries), lengths (tables, batch): 0 to 3 entries; clicks (batch)."""
        random = torch.Generator().manual_seed(1000 + step)
        dense = torch.randn(BATCH, DENSE, generator=random)
        lengths = torch.randint(0, 4, (len(ROWS), BATCH), generator=random)
        parts, score = [], dense @ self.slope
        for n, likes in zip(lengths, self.likes, strict=True):
            own = (torch.rand(int(n.sum()), generator=random) ** 3 * len(likes)).long()
            score = score.index_add(0, torch.arange(BATCH).repeat_interleave(n), likes[own])
            parts.append(own)
        clicks = torch.rand(BATCH, generator=random) < torch.sigmoid(2 * score)
        return dense, torch.cat(parts), lengths, clicks.float()


def samples_of(rank: int, ranks: int, dense, indices, lengths, clicks) -> tuple[torch.Tensor, ...]:
    """A rank's part of a batch, whose size the number of ranks need not divide."""
    mine = torch.zeros(BATCH, dtype=torch.bool)
    mine[torch.arange(BATCH).tensor_split(ranks)[rank]] = True
    entries = mine.repeat(len(ROWS)).repeat_interleave(lengths.flatten())
    return dense[mine], indices[entries], lengths[:, mine], clicks[mine]


def loss_of(model: Model, dense, indices, lengths, clicks) -> torch.Tensor:
    """Divided by the samples of all ranks, so that sums over ranks are the loss and gradients of the whole batch."""
    return F.binary_cross_entropy_with_logits(model(dense, indices, lengths), clicks, reduction="sum") / BATCH


def optimizers_of(model: Model) -> tuple[torch.optim.Optimizer, ...]:
    tables = overlace.optim.RowwiseAdagrad(model.tables.parameters(), lr=TABLE_RATE)  # each rank those that it has
    return torch.optim.SGD(model.mlps(), lr=RATE), tables


def train(group: dist.ProcessGroup) -> None:
    torch.manual_seed(0)
    plain = Model(Tables)
    torch.manual_seed(0)
    sharded = Model(lambda *shapes, **options: overlace.nn.ShardedEmbeddingBag(*shapes, group=group, **options))
    optimizers = [*optimizers_of(plain), *optimizers_of(sharded)]
    clicks, history = Clicks(), []
    for step in range(STEPS):
        batch = clicks.batch(step)
        for optimizer in optimizers:
            optimizer.zero_grad()
        whole = loss_of(plain, *batch)
        whole.backward()
        part = loss_of(sharded, *samples_of(group.rank(), group.size(), *batch))
        part.backward()
        # One sum of what each rank has of its own samples. Gradients of the tables are those of all ranks' already.
        own = [part.detach().view(1), *(parameter.grad for parameter in sharded.mlps())]
        vector_to_parameters(overlace.ops.all_reduce(parameters_to_vector(own), group=group), own)
        for optimizer in optimizers:
            optimizer.step()
        total = own[0].item()
        if group.rank() == 0 and step % 25 == 0:
            print(f"step {step:3}   unsharded {whole.item():.6f}   {group.size()} ranks {total:.6f}")
        assert abs(total - whole.item()) <= TOLERANCE * whole.item(), (step, total, whole.item())
        history.append(total)
    first, last = sum(history[:5]), sum(history[-5:])
    assert last < 0.75 * first, f"the model learned too little: {first / 5} to {last / 5}"

    for mine, want in zip(sharded.mlps(), plain.mlps(), strict=True):
        torch.testing.assert_close(mine, want, rtol=1e-4, atol=1e-4)
    for name, table in sharded.tables.full_state_dict().items():
        torch.testing.assert_close(table, plain.tables.state_dict()[name], rtol=1e-4, atol=1e-4)


def run(group: dist.ProcessGroup, _device: str) -> None:
    with overlace.init(group):
        train(group)


if __name__ == "__main__":
    launch(run, __doc__)
