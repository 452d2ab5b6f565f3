"""overlace.gnn.SparseHalo on CPU ranks: full-batch GCN with fresh partial sums and with late ones; what goes wrong."""

from __future__ import annotations

import contextlib
import os

import numpy as np
import pytest
from overlace import errors, gnn
from overlace.gnn.halo import HEADER_BYTES
from overlace.gnn.nn import FullBatchGCN, Model
from ranks import overlace, run_ranks, torch
from torch.nn import functional

VERTICES, DIM, HIDDEN, CLASSES, EPOCHS = 157, 11, 7, 5, 9
TIMEOUT_S = 60


def graph(seed: int = 4):
    """Indptr, sources and targets, with hubs, repeated edges and edges to themselves."""
    rng = np.random.default_rng(seed)
    target = np.sort((rng.random(1100) ** 2 * VERTICES).astype(np.int64))
    source = (rng.random(1100) ** 3 * VERTICES).astype(np.int64)
    return np.concatenate([[0], np.cumsum(np.bincount(target, minlength=VERTICES))]), source, target


def part_of(rank: int, size: int) -> gnn.GraphPart:
    indptr, source, _ = graph()
    return gnn.partition(indptr, source, rank, size)


def data(dtype):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(VERTICES, DIM, dtype=torch.float64, generator=generator).to(dtype)
    return x, torch.randint(0, CLASSES, (VERTICES,), generator=generator)


def model_of(kind, dtype, *more):
    torch.manual_seed(3)
    return kind(*more, DIM, HIDDEN, CLASSES, 2).to(dtype)


def train(model, logits_of, y, add_up):
    """Losses of the whole graph, gradients of the first epoch, and parameters at the end."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses, first = [], []
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        loss = functional.cross_entropy(logits_of(model), y, reduction="sum") / VERTICES
        loss.backward()
        for p in model.parameters():
            p.grad = add_up(p.grad)
        first = first or [p.grad.tolist() for p in model.parameters()]
        optimizer.step()
        losses.append(add_up(loss.detach()).item())
    return losses, first, [p.tolist() for p in model.parameters()]


def train_alone(dtype):
    """By the layers of `Model` on the whole graph, without a halo."""
    _, source, target = graph()
    edges = torch.from_numpy(np.stack([source, target]))
    x, y = data(dtype)

    def logits_of(model):
        h = functional.relu(model.layers[0](x, edges, VERTICES))
        return model.layers[1](h, edges, VERTICES)

    return train(model_of(Model, dtype, "gcn"), logits_of, y, lambda t: t)


def train_rank(group, delay, dtype, link=None):
    part = part_of(group.rank(), group.size())
    x, y = data(dtype)
    mine = torch.from_numpy(part.vertices)
    model = model_of(FullBatchGCN, dtype)
    with gnn.SparseHalo(part, group, delay, link=link, timeout_s=TIMEOUT_S) as halo:
        out = train(model, lambda m: m(x[mine], halo), y[mine], lambda t: overlace.ops.all_reduce(t, group=group))
        model.eval()
        with torch.no_grad():
            logits = model(x[mine], halo)
        return (*out, part.vertices.tolist(), logits.tolist(), vars(halo.stats()))


@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_fresh_sums_train_as_one_process(size, dtype, error):
    alone = train_alone(dtype)
    assert alone[0][-1] < 0.99 * alone[0][0]
    for losses, gradients, parameters, *_ in run_ranks(size, train_rank, 0, dtype):
        np.testing.assert_allclose(losses, alone[0], rtol=0, atol=error)
        for got, want in zip(gradients + parameters, alone[1] + alone[2], strict=True):
            np.testing.assert_allclose(got, want, rtol=0, atol=error)


# ---- late sums, beside their definition ----


def matrix(edges):
    out = torch.zeros(edges.num_targets, edges.num_sources, dtype=torch.float64)
    ones = torch.ones(len(edges.source), dtype=torch.float64)
    return out.index_put_((torch.from_numpy(edges.target), torch.from_numpy(edges.source)), ones, accumulate=True)


def epoch_used(epoch: int, row: int, rows: int, delay: int) -> int:
    """The epoch whose row `row` of `rows` is in use: the last of its turns that is `delay` epochs ago, or the first."""
    turn = next(s for s in range(delay) if rows * s // delay <= row < rows * (s + 1) // delay)
    return max((e for e in range(1, epoch - delay + 1) if e % delay == turn), default=0)


class LateSums:
    """The sums of all ranks in one process, from all that was ever summed."""

    def __init__(self, parts, delay):
        self.parts, self.delay = parts, delay
        self.past: dict = {}

    def __call__(self, xs, site, is_back):
        past = self.past.setdefault((site, is_back), [])
        past.append([x.detach() for x in xs])
        epoch = len(past) - 1
        out = []
        for part in self.parts:
            local, unpack = matrix(part.local), matrix(part.send if is_back else part.receive)
            rows = [
                self.row(past[epoch_used(epoch, i, n, self.delay)], part.rank, peer, i, is_back)
                for peer, n in enumerate(part.sent if is_back else part.received)
                for i in range(n)
            ]
            come = torch.stack(rows) if rows else torch.zeros(0, xs[0].shape[1], dtype=torch.float64)
            x = xs[part.rank]
            out.append(local.t() @ x + unpack.t() @ come if is_back else local @ x + unpack @ come)
        return out

    def row(self, xs, rank, peer, i, is_back):
        """Row i of what `peer` sends to `rank` when it has xs[peer]."""
        part = self.parts[peer]
        pack, counts = (matrix(part.receive).t(), part.received) if is_back else (matrix(part.send), part.sent)
        return pack[sum(counts[:rank]) + i] @ xs[peer]


class LateAggregate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, sums, site, *xs):
        ctx.sums, ctx.site = sums, site
        return tuple(sums(xs, site, False))

    @staticmethod
    def backward(ctx, *grads):
        return None, None, *ctx.sums(grads, ctx.site, True)


def train_late_alone(size, delay):
    parts = [part_of(rank, size) for rank in range(size)]
    sums = LateSums(parts, delay)
    x, y = data(torch.float64)
    order = np.concatenate([part.vertices for part in parts])

    def logits_of(model):
        xs = [x[part.vertices] for part in parts]
        scales = [(torch.from_numpy(part.in_degrees) + 1.0).double().rsqrt()[:, None] for part in parts]
        for site, layer in enumerate(model.layers):
            hs = [layer.lin(one) * scale for one, scale in zip(xs, scales, strict=True)]
            totals = LateAggregate.apply(sums, site, *hs)
            xs = [(t + h) * scale + layer.bias for t, h, scale in zip(totals, hs, scales, strict=True)]
            xs = [functional.relu(one) for one in xs] if site == 0 else xs
        return torch.cat(xs)

    return train(model_of(Model, torch.float64, "gcn"), logits_of, y[order], lambda t: t)


@pytest.mark.parametrize(("size", "delay"), [(2, 1), (2, 3), (3, 2), (3, 5)])
def test_late_sums_are_those_of_their_definition(size, delay):
    alone = train_late_alone(size, delay)
    fresh = train_alone(torch.float64)
    assert abs(alone[0][-1] - fresh[0][-1]) > 1e-6, "late sums must differ, or nothing is compared"
    for losses, gradients, parameters, *_ in run_ranks(size, train_rank, delay, torch.float64):
        np.testing.assert_allclose(losses, alone[0], rtol=0, atol=1e-12)
        for got, want in zip(gradients + parameters, alone[1] + alone[2], strict=True):
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-12)
        np.testing.assert_allclose(gradients[0], fresh[1][0], rtol=0, atol=1e-12)  # the first epoch is fresh


def test_evaluation_has_fresh_sums_whatever_the_delay():
    _, source, target = graph()
    edges = torch.from_numpy(np.stack([source, target]))
    x, _ = data(torch.float64)
    for _, _, parameters, vertices, logits, _ in run_ranks(2, train_rank, 3, torch.float64):
        model = model_of(Model, torch.float64, "gcn")
        with torch.no_grad():
            for p, value in zip(model.parameters(), parameters, strict=True):
                p.copy_(torch.tensor(value, dtype=torch.float64))
            h = functional.relu(model.layers[0](x, edges, VERTICES))
            want = model.layers[1](h, edges, VERTICES)
        np.testing.assert_allclose(logits, want[vertices], rtol=0, atol=1e-12)


@pytest.mark.parametrize("delay", [0, 1, 4])
def test_bytes_are_those_of_the_closed_form(delay):
    size, width = 3, 4  # bytes of a float32
    outs = run_ranks(size, train_rank, delay, torch.float32)
    for rank, out in enumerate(outs):
        part, stats = part_of(rank, size), out[-1]
        want, exchanges = 0, 0
        for columns in (HIDDEN, CLASSES):
            for counts in (part.sent, part.received):  # what goes back is as much as what came
                for epoch in range(EPOCHS):
                    turn, of = (epoch % delay, delay) if epoch > 0 and delay > 0 else (0, 1)
                    rows = sum(n * (turn + 1) // of - n * turn // of for n in counts)
                    want += rows * columns * width + (size - 1) * HEADER_BYTES
                    exchanges += 1
            want += sum(part.sent) * columns * width + (size - 1) * HEADER_BYTES  # the evaluation
            exchanges += 1
        assert (stats["bytes_sent"], stats["exchanges"]) == (want, exchanges)


def test_the_same_bits_whatever_comes_when(monkeypatch):
    calm = run_ranks(3, train_rank, 2, torch.float32)
    monkeypatch.setenv("OVERLACE_ADVERSARY", "seed=5,delay_us=300")
    wild = run_ranks(3, train_rank, 2, torch.float32, "50MB/s,300us", fresh=True)
    for one, other in zip(calm, wild, strict=True):
        assert one[:5] == other[:5]


# ---- what waits, and what does not ----


def run_ahead(group, delay):
    """Rank 0 computes `delay` epochs behind the first while rank 1 waits for it to have done so."""
    rank = group.rank()
    part = part_of(rank, 2)
    x = torch.ones(len(part.vertices), 3, dtype=torch.float64)
    with gnn.SparseHalo(part, group, delay, timeout_s=TIMEOUT_S) as halo:
        halo.aggregate(x, site=0)
        if rank == 1:
            torch.distributed.barrier(group)
        sums = [halo.aggregate(x * epoch, site=0) for epoch in range(1, delay + 1)]
        if rank == 0:
            torch.distributed.barrier(group)
        sums += [halo.aggregate(x * epoch, site=0) for epoch in range(delay + 1, 2 * delay + 1)]
    return [s.tolist() for s in sums]


@pytest.mark.parametrize("delay", [1, 3])
def test_a_rank_that_is_late_by_the_delay_holds_nobody_up(delay):
    outs = run_ranks(2, run_ahead, delay)  # would end by a deadline if rank 0 waited for rows of rank 1
    sums = LateSums([part_of(rank, 2) for rank in range(2)], delay)
    ones = [torch.ones(len(part.vertices), 3, dtype=torch.float64) for part in sums.parts]
    for epoch in range(2 * delay + 1):
        want = sums([one * max(epoch, 1) for one in ones], 0, False)
        for rank in range(2):
            if epoch > 0:
                assert outs[rank][epoch - 1] == want[rank].tolist()


def order_of_work(group):
    part = part_of(group.rank(), 2)
    seen = []
    with gnn.SparseHalo(part, group, 0, timeout_s=TIMEOUT_S) as halo:
        post, local, take = halo._post, halo._there.local, halo._take
        halo._post = lambda *a: seen.append("sent") or post(*a)
        halo._there.local = lambda x: seen.append("local") or local(x)
        halo._take = lambda *a: seen.append("taken") or take(*a)
        halo.aggregate(torch.ones(len(part.vertices), 2))
    return seen


def test_fresh_rows_travel_behind_the_local_sum():
    assert run_ranks(2, order_of_work) == [["sent", "local", "taken"]] * 2


# ---- bad input and faults ----


def said(group, kind, act):
    """What `act` raises as `kind`."""
    try:
        act()
    except kind as error:
        return type(error).__name__, error.code, str(error)
    raise AssertionError(f"rank {group.rank()}: nothing was raised")


def refused(group):
    part = part_of(group.rank(), 2)
    count = len(part.vertices)
    bad = errors.InvalidArgument
    out = [
        said(group, bad, lambda: gnn.SparseHalo(part, group, -1)),
        said(group, bad, lambda: gnn.SparseHalo(part, group, 1.5)),
        said(group, bad, lambda: gnn.SparseHalo(part, group, timeout_s=0)),
        said(group, bad, lambda: gnn.SparseHalo(part_of(0, 3), group)),
    ]
    halo = gnn.SparseHalo(part, group, 2, timeout_s=TIMEOUT_S)
    halo.aggregate(torch.ones(count, 3), site=4)
    for x, site in (
        (torch.ones(count + 1, 3), None),
        (torch.ones(count), None),
        (torch.ones(count, 3, dtype=torch.int32), None),
        (torch.ones(count, 3, device="meta"), None),
        (torch.ones(count, 3), -2),
        (torch.ones(count, 3), "a"),
        (torch.ones(count, 2), 4),
        (torch.ones(count, 3).double(), 4),
    ):
        out.append(said(group, bad, lambda x=x, site=site: halo.aggregate(x, site)))
    halo.aggregate(torch.ones(count, 3), site=4)  # nothing moved
    halo.close()
    halo.close()
    return [*out, said(group, bad, lambda: halo.aggregate(torch.ones(count, 3)))]


def test_bad_arguments_are_refused_before_anything_moves():
    for rank, out in enumerate(run_ranks(2, refused)):
        count = len(part_of(rank, 2).vertices)
        wanted = (
            "delay is -1, wanted 0 or more epochs",
            "delay is 1.5, wanted",
            "timeout_s is 0, wanted 0.001 to 86400",
            f"part is of rank 0 of 3, wanted {rank} of 2",
            f"x is [{count + 1}, 3], wanted {count} rows",
            f"x is [{count}], wanted {count} rows",
            "x is torch.int32 on cpu, wanted floating point on cpu",
            "x is torch.float32 on meta, wanted floating point on cpu",
            "site is -2, wanted None, or 0 or more",
            "site is 'a', wanted None",
            "x has 2 columns of torch.float32 at site 4, wanted 3 of torch.float32",
            "x has 3 columns of torch.float64 at site 4, wanted 3 of torch.float32",
            "closed",
        )
        for (_, code, text), want in zip(out, wanted, strict=True):
            assert want in text
            assert code == ("closed" if want == "closed" else "invalid_argument")


def unlike(group, what):
    rank = group.rank()
    indptr, source, _ = graph()
    if what == "graph" and rank == 1:
        indptr, source, _ = graph(seed=5)
    part = gnn.partition(indptr, source, rank, 2)
    delay = 2 + rank if what == "delay" else 2
    return said(group, errors.PlanMismatch, lambda: gnn.SparseHalo(part, group, delay, timeout_s=TIMEOUT_S))[2]


def test_ranks_that_differ_are_told_so_when_they_open():
    texts = run_ranks(2, unlike, "delay")
    assert texts == ["SparseHalo: delay is 2 on rank 0, 3 on rank 1, wanted the same"] * 2
    texts = run_ranks(2, unlike, "graph")
    assert texts[0] == texts[1]
    assert "rows for rank 1, which wants" in texts[0]
    assert "not of one graph" in texts[0]


def other_sites(group):
    """Ranks that are at different sums of an epoch: one of them says so, the other is told, by itself or by it."""
    part = part_of(group.rank(), 2)
    halo = gnn.SparseHalo(part, group, 0, timeout_s=TIMEOUT_S)
    x = torch.ones(len(part.vertices), 3)
    out = said(group, errors.Error, lambda: halo.aggregate(x, site=group.rank()))
    with contextlib.suppress(errors.Error):  # of the rank that has not raised the cause yet
        halo.close()
    return out


def test_ranks_at_different_sites_are_desync():
    outs = run_ranks(2, other_sites)
    assert {name for name, _, _ in outs} <= {"Desync", "PeerLost"}
    found = [(rank, text) for rank, (name, _, text) in enumerate(outs) if name == "Desync"]
    assert found
    for rank, text in found:
        peer = 1 - rank
        assert text == (
            f"aggregate: rank {peer} sent sums of site {peer}, epoch 0, rows of 12 B, "
            f"rank {rank} wanted sums of site {rank}, epoch 0, rows of 12 B"
        )


def never_comes(group):
    """Rank 1 does nothing until rank 0 has seen its deadline."""
    part = part_of(group.rank(), 2)
    halo = gnn.SparseHalo(part, group, 0, timeout_s=1)
    out = None
    if group.rank() == 0:
        out = said(group, errors.Timeout, lambda: halo.aggregate(torch.ones(len(part.vertices), 3)))[2]
    torch.distributed.barrier(group)
    with contextlib.suppress(errors.Error):  # of the rank that has not raised the cause yet
        halo.close()
    return out


def test_a_deadline_names_rank_and_peer():
    text = run_ranks(2, never_comes)[0]
    assert "rank 0" in text
    assert "rank 1" in text


def leaves(group):
    part = part_of(group.rank(), 2)
    x = torch.ones(len(part.vertices), 3)

    def act():
        with gnn.SparseHalo(part, group, 1, timeout_s=TIMEOUT_S) as halo:
            halo.aggregate(x, site=0)
            if group.rank() == 1:
                raise ValueError("it was enough")
            for _ in range(3):
                halo.aggregate(x, site=0)

    return said_by(act)


def said_by(act):
    try:
        act()
    except Exception as error:
        return type(error).__name__, str(error)
    return None


def test_a_rank_that_leaves_by_an_exception_tells_the_others():
    outs = run_ranks(2, leaves)
    assert outs[1] == ("ValueError", "it was enough")
    assert outs[0][0] == "PeerLost"
    assert "rank 1 left with ValueError: it was enough" in outs[0][1]


def forks(group):
    part = part_of(group.rank(), 2)
    with gnn.SparseHalo(part, group, timeout_s=TIMEOUT_S) as halo:
        child = os.fork()
        if child == 0:
            try:
                _, code, _ = said(
                    group, errors.InvalidArgument, lambda: halo.aggregate(torch.ones(len(part.vertices), 3))
                )
                os._exit(0 if code == "forked" else 1)
            finally:
                os._exit(2)
        _, status = os.waitpid(child, 0)
        halo.aggregate(torch.ones(len(part.vertices), 3))
    return os.waitstatus_to_exitcode(status)


def test_a_child_is_told_so():
    assert run_ranks(2, forks) == [0, 0]
