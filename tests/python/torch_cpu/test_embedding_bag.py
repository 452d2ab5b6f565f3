"""overlace.nn.ShardedEmbeddingBag against the list of nn.EmbeddingBag: results, training, state, refusals."""

import copy
import weakref

import pytest
from ranks import overlace, run_ranks, torch

nn, F = torch.nn, torch.nn.functional
TABLES = [(7, 4), (30, 8), (5, 1), (12, 6)]
PADDINGS = [1, None, None, None]
STEPS = 20


def bags_of(rank, step):
    """Each rank has as many samples as it likes, one of them none in the first step; rows repeat, bags may be empty."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    batch = 0 if step == 0 and rank == 1 else 3 + (rank + step) % 3
    lengths = torch.randint(0, 4, (len(TABLES), batch), generator=generator)
    parts = [
        torch.randint(0, rows, (int(n),), generator=generator)
        for (rows, _), n in zip(TABLES, lengths.sum(1), strict=True)
    ]
    indices = torch.cat(parts)
    return indices, lengths, torch.rand(len(indices), generator=generator, dtype=torch.float64)


def unsharded(mode, dtype):
    torch.manual_seed(11)
    listed = (
        nn.EmbeddingBag(*shape, mode=mode, padding_idx=padding) for shape, padding in zip(TABLES, PADDINGS, strict=True)
    )
    return nn.ModuleList(listed).to(dtype)


def whole(model, indices, lengths, factors, mode):
    counts = lengths.sum(1).tolist()
    parts = zip(model, indices.split(counts), lengths, factors.split(counts), strict=True)
    pooled = [
        F.embedding_bag(
            own,
            bag.weight,
            F.pad(n.cumsum(0), (1, 0)),
            mode=mode,
            include_last_offset=True,
            padding_idx=bag.padding_idx,
            per_sample_weights=f.to(bag.weight.dtype) if mode == "sum" else None,
        )
        for bag, own, n, f in parts
    ]
    return torch.cat(pooled, 1)


def step_of(model, optimizer, pool, ranks, step, dtype):
    """The loss of the samples of these ranks, and a step."""
    loss = 0
    for rank in ranks:
        indices, lengths, factors = bags_of(rank, step)
        out = pool(model, indices, lengths, factors)
        loss = loss + torch.tanh(out).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return out.detach()


def check_training(group, mode, ranks, sparse):
    """Errors in fp32, against fp64, at most twice those of the unsharded model in fp32, and 1e-6."""
    from overlace.nn import ShardedEmbeddingBag

    rank, size = group.rank(), group.size()
    models = {dtype: unsharded(mode, dtype) for dtype in (torch.float32, torch.float64)}
    torch.manual_seed(11)
    layer = ShardedEmbeddingBag(TABLES, group=group, ranks=ranks, mode=mode, padding_idx=PADDINGS, sparse=sparse)
    for name, table in layer.full_state_dict().items():
        assert torch.equal(table, models[torch.float32].state_dict()[name])

    def sharded(model, indices, lengths, factors):
        return model(indices, lengths=lengths, per_sample_weights=factors.float() if mode == "sum" else None)

    def listed(model, indices, lengths, factors):
        return whole(model, indices, lengths, factors, mode)

    mine = torch.optim.SGD(layer.parameters(), lr=0.05)
    others = {dtype: torch.optim.SGD(model.parameters(), lr=0.05) for dtype, model in models.items()}
    for step in range(STEPS):
        got = step_of(layer, mine, sharded, [rank], step, torch.float32)
        order = [r for r in range(size) if r != rank] + [rank]
        plain, exact = (step_of(models[d], others[d], listed, order, step, d) for d in models)
        bound = 2 * (plain - exact).abs().max() + 1e-6 if got.numel() else 0
        assert got.shape == exact.shape and (got.numel() == 0 or (got - exact).abs().max() <= bound)
    assert all(p.grad.is_sparse == sparse for p in layer.parameters() if p.dim() == 2)
    for name, table in layer.full_state_dict().items():
        plain, exact = (models[d].state_dict()[name] for d in models)
        assert (table - exact).abs().max() <= 2 * (plain - exact).abs().max() + 1e-6, name


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    ("mode", "ranks", "sparse"), [("sum", None, False), ("mean", [0, 0, 0, 0], False), ("max", [1, 0, 1, 0], True)]
)
def test_training(size, mode, ranks, sparse):
    run_ranks(size, check_training, mode, ranks, sparse)


def check_state(group):
    """The union of the ranks' states is that of the list, which loads; and so it stays in another dtype."""
    from overlace.nn import ShardedEmbeddingBag

    model = unsharded("sum", torch.float32)
    layer = ShardedEmbeddingBag(TABLES, group=group, ranks=[1, 0, 1, 1])
    layer.load_state_dict(model.state_dict())
    own = layer.state_dict()
    assert sorted(own) == (
        [] if group.rank() > 1 else ["1.weight"] if group.rank() == 0 else ["0.weight", "2.weight", "3.weight"]
    )
    assert all(torch.equal(own[name], model.state_dict()[name]) for name in own)
    layer.load_state_dict(own)
    taken = ShardedEmbeddingBag.from_modules(list(model), group=group, ranks=[1, 0, 1, 1]).double()
    assert all(torch.equal(table, model.state_dict()[name].double()) for name, table in taken.full_state_dict().items())
    ends = [p.data_ptr() + p.nbytes for p in taken.parameters()]
    assert [p.data_ptr() for p in taken.parameters()][1:] == ends[:-1]  # read in place
    indices, lengths, _ = bags_of(group.rank(), 1)
    want = taken(indices, lengths=lengths)
    offsets = F.pad(lengths.reshape(-1).cumsum(0), (1, 0))
    assert want.dtype == torch.float64 and torch.equal(taken(indices, offsets), want)
    assert torch.equal(copy.deepcopy(taken)(indices, offsets), want)
    for strange in ("nonsense", "9.weight", "0.bias", "1.bias"):  # on all ranks, whoever has tables 0 and 1
        with pytest.raises(RuntimeError, match=strange):
            layer.load_state_dict(own | {strange: torch.zeros(1)})


@pytest.mark.parametrize("size", [2, 3])
def test_state(size):
    run_ranks(size, check_state)


def check_pruned(group):
    """As if entries of -1 were not there: results, gradients of factors; in and beside bounds that look at indices."""
    from overlace.nn import ShardedEmbeddingBag

    rank = group.rank()
    model = unsharded("sum", torch.float64)
    indices, lengths, factors = bags_of(rank, 1)
    kept = torch.arange(len(indices)) % 3 != rank
    ends = lengths.reshape(-1).cumsum(0)
    left = torch.stack([part.sum() for part in kept.tensor_split(ends)[:-1]]).view_as(lengths)
    assert 0 < int(left.sum()) < len(indices)
    pruned = torch.where(kept, indices, -1)
    for mode in ("sum", "mean", "max"):
        for bounds in ("error", "clamp", "zero_row"):
            layer = ShardedEmbeddingBag(
                TABLES, group=group, mode=mode, padding_idx=PADDINGS, bounds=bounds, allow_pruned=True
            ).double()
            layer.load_state_dict(model.state_dict())
            given, own = (factors.clone().requires_grad_() if mode == "sum" else None for _ in range(2))
            got = layer(pruned, lengths=lengths, per_sample_weights=given)
            plain = factors[kept] if own is None else own[kept]
            want = whole(model, indices[kept], left, plain, mode)
            torch.testing.assert_close(got, want)
            got.square().sum().backward()
            if own is not None:
                torch.testing.assert_close(given.grad, torch.autograd.grad(want.square().sum(), own)[0])
                assert not given.grad[~kept].any()
    strict = ShardedEmbeddingBag(TABLES, group=group)
    with pytest.raises(overlace.InvalidArgument, match="index is -1, wanted 0 to"):
        strict(pruned, lengths=lengths)
    loose = ShardedEmbeddingBag(TABLES, group=group, allow_pruned=True)
    with pytest.raises(overlace.InvalidArgument, match="index is -2, wanted -1 to"):
        loose(torch.where(kept, indices, -2), lengths=lengths)


@pytest.mark.parametrize("size", [2, 3])
def test_pruned_entries_are_left_out(size):
    run_ranks(size, check_pruned)


def check_memory(group):
    """Tables are drawn one after the other; what is another rank's does not stay."""
    from overlace.nn import ShardedEmbeddingBag

    plain, drawn, most = nn.EmbeddingBag, [], []

    def counted(*arguments, **options):
        bag = plain(*arguments, **options)
        drawn.append(weakref.ref(bag))
        most.append(sum(one() is not None for one in drawn))
        return bag

    nn.EmbeddingBag = counted
    try:
        layer = ShardedEmbeddingBag([(50, 4)] * 9, group=group)
    finally:
        nn.EmbeddingBag = plain
    assert len(drawn) == 9 and max(most) <= 2
    assert sum(p.numel() for p in layer.parameters()) == layer.owners.count(group.rank()) * 200


def test_a_rank_keeps_its_own_tables_alone():
    run_ranks(2, check_memory)


def check_refusals(group):
    """All ranks raise, also in calls of shapes that ran before, and go on."""
    from overlace.nn import ShardedEmbeddingBag

    rank = group.rank()
    layer = ShardedEmbeddingBag(TABLES, group=group, ranks=[0, 1, 0, 1])
    indices, lengths, _ = bags_of(rank, 1)
    want = layer(indices, lengths=lengths)
    beyond, negative = indices.clone(), lengths.clone()
    at = int(lengths[0].sum())
    bag = int((lengths[1] > 0).nonzero()[0])
    beyond[at], negative[0, 0] = 30, -1
    place = rf"rank 1, table 1, bag {bag}, position 0: index is 30, wanted 0 to 29: the table has 30 rows"
    for bad, options, text in (
        (beyond, {"lengths": lengths}, place),
        (indices.double(), {"lengths": lengths}, "indices are torch.float64"),
        (indices, {"lengths": negative}, "the shortest has -1 entries"),
        (indices, {}, "got no offsets and lengths, wanted one"),
        (indices, {"lengths": lengths.reshape(-1)[1:]}, "wanted some for each of 4"),
        (indices, {"lengths": lengths, "per_sample_weights": torch.ones(1)}, r"wanted torch.float32 \[\d+\]"),
    ):
        given = (bad, options) if rank == 1 else (indices, {"lengths": lengths})
        with pytest.raises(overlace.InvalidArgument, match=text if rank == 1 else "rank 1 has bad bags"):
            layer(given[0], **given[1])
    factors = torch.ones(len(indices)) if rank == 0 else None
    with pytest.raises(overlace.InvalidArgument, match="wanted all or none"):
        layer(indices, lengths=lengths, per_sample_weights=factors)
    assert torch.equal(layer(indices, lengths=lengths), want)
    with pytest.raises(overlace.InvalidArgument, match=r"ranks are \[0, 7\], wanted one from 0 to 1 for each of 4"):
        ShardedEmbeddingBag(TABLES, group=group, ranks=[0, 7])


def test_refusals():
    run_ranks(2, check_refusals)
