"""embedding_a2a and ShardedEmbeddingBag on GPUs: against embedding_bag of all tables in float64, gradients, bad bags.

By hand: `PYTHONPATH=build/cuda/python python3 -m pytest tests/python/torch_gpu/test_embedding_gpu.py`.
"""

import json

import pytest
from gpu_ranks import FEW, GPUS, overlace, run_ranks, torch

nn, F = torch.nn, torch.nn.functional
ROWS, WIDTHS, BATCH = [200, 5, 33], [64, 3, 8], 37
TABLE_OF, COLUMN_OF = [0, 1, 2, 1], [3, 0, 67, 75]  # the fourth feature looks up the second table, too
PADDING = [2, -1, -1]


def placement(size):
    """The first of two ranks has two features of one table."""
    ranks = [size // 2, 0, size // 2, 0]
    tables = [{"rows": r, "dim": d, "padding": p} for r, d, p in zip(ROWS, WIDTHS, PADDING, strict=True)]
    features = [{"table": t, "rank": r, "column": c} for t, r, c in zip(TABLE_OF, ranks, COLUMN_OF, strict=True)]
    return {"tables": tables, "features": features}


def bags(feature, bounds):
    """On the host: lengths 0 to 11, so empty bags and rows that repeat; lengths, rows and factors."""
    generator = torch.Generator("cpu").manual_seed(100 + feature)
    with torch.device("cpu"):
        lengths = torch.randint(0, 12, (BATCH,), generator=generator)
        rows = ROWS[TABLE_OF[feature]]
        low, high = (0, rows) if bounds == "error" else (-2, rows + 2)
        indices = torch.randint(low, high, (int(lengths.sum()),), generator=generator)
        return indices, lengths, torch.rand(len(indices), generator=generator, dtype=torch.float64) - 0.5


def table(t, dtype):
    generator = torch.Generator("cpu").manual_seed(t)
    return torch.randn(ROWS[t], WIDTHS[t], generator=generator, dtype=torch.float64, device="cpu").to(dtype)


def operands(size, rank, dtype, bounds="error"):
    """On this rank's GPU: tables by number, then the arguments of the operator, and the numbers of its features."""
    features = [i for i, f in enumerate(placement(size)["features"]) if f["rank"] == rank]
    tables = {t: table(t, dtype).cuda().requires_grad_() for t in dict.fromkeys(TABLE_OF[i] for i in features)}
    parts = [bags(i, bounds) for i in features]
    indices, lengths, factors = (torch.cat(part).cuda() for part in zip(*parts, strict=True))
    return tables, list(tables.values()), indices, lengths, factors.to(dtype).requires_grad_(), features


def unsharded(size, mode, dtype, has_factors, bounds):
    """The whole result, the tables and each feature's factors, by torch on the host in float64."""
    with torch.device("cpu"):
        tables = [table(t, dtype).double().requires_grad_() for t in range(3)]
        factors, out = [], torch.empty(BATCH, 78, dtype=torch.float64)
        for i, f in enumerate(placement(size)["features"]):
            indices, lengths, own = bags(i, bounds)
            rows, padding = ROWS[f["table"]], PADDING[f["table"]]
            bag, keep = torch.repeat_interleave(lengths), torch.ones_like(indices, dtype=torch.bool)
            if bounds == "ignore":
                keep = (indices >= 0) & (indices < rows)
            indices = indices.clamp(0, rows - 1) if bounds == "clamp" else indices
            indices = torch.where((indices < 0) | (indices >= rows), 0, indices) if bounds == "zero_row" else indices
            factors.append(own.to(dtype).double().requires_grad_())
            pooled = F.embedding_bag(
                indices[keep],
                tables[f["table"]],
                F.pad(torch.bincount(bag[keep], minlength=BATCH).cumsum(0), (1, 0)),
                mode=mode,
                include_last_offset=True,
                padding_idx=None if padding < 0 else padding,
                per_sample_weights=factors[-1][keep] if has_factors else None,
            )
            out[:, f["column"] : f["column"] + pooled.shape[1]] = pooled
        return out, tables, factors


def part(t, size, rank):
    return t.tensor_split(size)[rank].cuda()


def same_as_torch(group, mode, dtype, has_factors, bounds, index):
    rank, size = group.rank(), group.size()
    want, whole, factors_of = unsharded(size, mode, dtype, has_factors, bounds)
    generator = torch.Generator("cpu").manual_seed(5)
    upstream = torch.randn(want.shape, generator=generator, dtype=torch.float64, device="cpu").to(dtype)
    want.backward(upstream.double())
    tables, weights, indices, lengths, factors, features = operands(size, rank, dtype, bounds)
    given = {"group": group, "batch": BATCH, "placement": placement(size), "mode": mode, "bounds": bounds}
    bound = 2 * torch.finfo(dtype).eps if dtype.itemsize == 2 else 20 * torch.finfo(dtype).eps
    bounded = {"rtol": bound, "atol": 4 * bound}
    for sparse in (False, True):
        got = overlace.ops.embedding_a2a(
            weights, indices.to(index), None, factors if has_factors else None, lengths=lengths, sparse=sparse, **given
        )
        assert got.is_cuda and got.dtype == dtype
        torch.testing.assert_close(got.double(), part(want.detach(), size, rank), **bounded)
        again = []
        for _ in range(2):
            for t in (*weights, factors):
                t.grad = None
            got.backward(part(upstream, size, rank), retain_graph=True)
            again.append([w.grad.to_dense() if sparse else w.grad for w in weights])
            assert all(w.grad.is_sparse == sparse for w in weights)
        for t, grad, same in zip(tables, *again, strict=True):
            torch.testing.assert_close(grad.double(), whole[t].grad.cuda(), **bounded)
            assert torch.equal(grad, same)
        if has_factors:
            own = torch.cat([factors_of[i].grad for i in features]).cuda()
            torch.testing.assert_close(factors.grad.double(), own, rtol=bound, atol=64 * bound)


@pytest.mark.parametrize("size", sorted({1, FEW}))
@pytest.mark.parametrize(
    ("mode", "dtype", "has_factors", "bounds", "index"),
    [
        ("sum", torch.float32, False, "error", torch.int64),
        ("sum", torch.float32, True, "error", torch.int32),
        ("mean", torch.float32, False, "ignore", torch.int64),
        ("max", torch.float32, False, "clamp", torch.int64),
        ("sum", torch.float64, True, "zero_row", torch.int64),
        ("mean", torch.bfloat16, False, "error", torch.int32),
        ("sum", torch.float16, False, "error", torch.int64),
    ],
)
def test_results_and_gradients_are_those_of_torch(size, mode, dtype, has_factors, bounds, index):
    run_ranks(size, same_as_torch, mode, dtype, has_factors, bounds, index)


def check_schemas(group):
    rank, size = group.rank(), group.size()
    _, weights, indices, lengths, factors, _ = operands(size, rank, torch.float64)
    offsets = F.pad(lengths.cumsum(0), (1, 0))
    name, text = overlace.context_of(group).name, json.dumps(placement(size))
    for given, options in ((factors, {}), (None, {"mode": "max"})):
        arguments = (weights, indices, offsets, given, BATCH, text, name)
        torch.library.opcheck(torch.ops.overlace.embedding_a2a.default, arguments, options)


def test_schemas():
    run_ranks(FEW, check_schemas)


def tells_bad_bags(group):
    """Rank 0 has them; the team goes on, and gradients leave them out."""
    rank, size, context = group.rank(), group.size(), overlace.context_of(group)
    _, weights, indices, lengths, _, features = operands(size, rank, torch.float32)
    given = {"lengths": lengths, "group": group, "batch": BATCH, "placement": placement(size)}
    good = overlace.ops.embedding_a2a(weights, indices, **given).detach()
    at = int(lengths.nonzero()[0])
    wrong = indices.clone()
    if rank == 0:
        wrong[0] = 10**6
    out = overlace.ops.embedding_a2a(weights, wrong, **given)
    out.sum().backward()
    torch.cuda.synchronize()
    text = f"rank 0, feature 0, bag {at}, position 0: index is 1000000, wanted 0 to"
    if rank == 0:
        with pytest.raises(overlace.InvalidArgument, match=text):
            context.check()
    context.check()
    assert all(w.grad.isfinite().all() for w in weights)
    # One that nobody asks for is told by the next call, which is made.
    overlace.ops.embedding_a2a(weights, wrong, **given)
    torch.cuda.synchronize()
    if rank == 0:
        with pytest.raises(overlace.InvalidArgument, match=text):
            overlace.ops.embedding_a2a(weights, indices, **given)
    else:
        assert torch.equal(overlace.ops.embedding_a2a(weights, indices, **given), good)
    assert torch.equal(overlace.ops.embedding_a2a(weights, indices, **given), good)
    with pytest.raises(overlace.InvalidArgument, match="indices is on cpu, wanted cuda"):
        overlace.ops.embedding_a2a([w.detach() for w in weights], indices.cpu(), **given)
    assert features


def test_bad_bags_are_told_and_left_out():
    run_ranks(FEW, tells_bad_bags)


def replays(group):
    rank, size = group.rank(), group.size()
    _, weights, indices, lengths, _, _ = operands(size, rank, torch.bfloat16)
    weights = [w.detach() for w in weights]
    offsets = F.pad(lengths.cumsum(0), (1, 0))
    given = {"group": group, "batch": BATCH, "placement": placement(size), "mode": "mean"}
    overlace.ops.embedding_a2a(weights, indices, offsets, **given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = overlace.ops.embedding_a2a(weights, indices, offsets, **given)
    for factor in (2, -1, 3):
        for w in weights:
            w.mul_(factor)
        graph.replay()
        assert torch.equal(out, overlace.ops.embedding_a2a(weights, indices, offsets, **given))


def test_a_graph_pools_again():
    run_ranks(FEW, replays)


TABLES = [(70, 16), (300, 64), (5, 1), (12, 6)]
PADDINGS = [1, None, None, None]


def samples_of(rank, step):
    """Each rank has as many samples as it likes, one of them none in the first step."""
    generator = torch.Generator("cpu").manual_seed(1000 * rank + step)
    batch = 0 if step == 0 and rank == 1 else 5 + (rank + step) % 3
    with torch.device("cpu"):
        lengths = torch.randint(0, 4, (len(TABLES), batch), generator=generator)
        counts = zip(TABLES, lengths.sum(1).tolist(), strict=True)
        indices = [torch.randint(0, rows, (n,), generator=generator) for (rows, _), n in counts]
    return torch.cat(indices), lengths


def listed(model, indices, lengths):
    parts = zip(model, indices.split(lengths.sum(1).tolist()), lengths, strict=True)
    return torch.cat([bag(own, F.pad(n.cumsum(0), (1, 0))[:-1]) for bag, own, n in parts], 1)


def trains(group, mode, sparse):
    from overlace.nn import ShardedEmbeddingBag

    rank, size = group.rank(), group.size()
    with torch.device("cpu"):
        torch.manual_seed(11)
        plain = nn.ModuleList(
            nn.EmbeddingBag(*shape, mode=mode, padding_idx=padding, sparse=sparse)
            for shape, padding in zip(TABLES, PADDINGS, strict=True)
        )
        layer = ShardedEmbeddingBag.from_modules(plain, group=group).cuda()
    mine, other = (torch.optim.SGD(model.parameters(), lr=0.05) for model in (layer, plain))
    for step in range(5):
        indices, lengths = samples_of(rank, step)
        got = layer(indices.cuda(), lengths=lengths.cuda())
        want = listed(plain, indices, lengths) if lengths.shape[1] else got.new_empty(got.shape, device="cpu")
        torch.testing.assert_close(got.cpu(), want, rtol=1e-5, atol=1e-5)
        mine.zero_grad()
        torch.tanh(got).square().sum().backward()
        mine.step()
        other.zero_grad()
        for r in range(size):
            samples = samples_of(r, step)
            if samples[1].shape[1]:
                torch.tanh(listed(plain, *samples)).square().sum().backward()
        other.step()
    for name, whole in layer.full_state_dict().items():
        torch.testing.assert_close(whole.cpu(), plain.state_dict()[name], rtol=1e-4, atol=1e-5)
    bad = indices.clone()
    bad[:1] = -1
    with pytest.raises(overlace.InvalidArgument, match=r"index is -1, wanted 0 to 69|has bad bags"):
        layer((bad if rank == 0 else indices).cuda(), lengths=lengths.cuda())


@pytest.mark.skipif(GPUS < 2, reason="wants two GPUs")
@pytest.mark.parametrize(("mode", "sparse"), [("sum", False), ("mean", True), ("max", False)])
def test_the_layer_trains_as_unsharded_tables_do(mode, sparse):
    run_ranks(2, trains, mode, sparse)
