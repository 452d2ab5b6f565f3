"""overlace.ops.embedding_a2a against torch.nn.functional.embedding_bag of all tables: results, gradients, refusals."""

import importlib
import json

import pytest
from ranks import overlace, run_ranks, torch
from test_autograd import Join, check_twice

F = torch.nn.functional
ROWS, WIDTHS, COLUMNS, BATCH = [11, 5, 8], [4, 6, 1], [7, 1, 0], 9
TABLE_OF = [0, 1, 2, 1]  # the fourth feature looks up the second table, too
PADDING = [2, -1, -1]


def placement(size):
    """The last of three ranks has no tables; the first of several has two features of one table."""
    columns, ranks = [7, 1, 0, 11], [size // 2 if size > 1 else 0, 0, 0, 0]
    tables = [{"rows": r, "dim": d, "padding": p} for r, d, p in zip(ROWS, WIDTHS, PADDING, strict=True)]
    features = [{"table": t, "rank": r, "column": c} for t, r, c in zip(TABLE_OF, ranks, columns, strict=True)]
    return {"tables": tables, "features": features}


def bags(feature, bounds="error"):
    """Lengths 0 to 4, so empty bags and rows that repeat."""
    generator = torch.Generator().manual_seed(100 + feature)
    lengths = torch.randint(0, 5, (BATCH,), generator=generator)
    rows = ROWS[TABLE_OF[feature]]
    low, high = (0, rows) if bounds == "error" else (-2, rows + 2)
    indices = torch.randint(low, high, (int(lengths.sum()),), generator=generator)
    return indices, lengths, torch.rand(len(indices), generator=generator, dtype=torch.float64) - 0.5


def table(t, dtype=torch.float64):
    generator = torch.Generator().manual_seed(t)
    return torch.randn(ROWS[t], WIDTHS[t], generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def my_features(size, rank):
    listed = enumerate(placement(size)["features"])
    return sorted((f["rank"], i) for i, f in listed if f["rank"] == rank)


def operands(size, rank, dtype, bounds="error"):
    """Tables by number, then the arguments of the operator."""
    features = [i for _, i in my_features(size, rank)]
    tables = {t: table(t, dtype) for t in dict.fromkeys(TABLE_OF[i] for i in features)}
    parts = [bags(i, bounds) for i in features]
    indices = torch.cat([torch.empty(0, dtype=torch.int64), *(p[0] for p in parts)])
    lengths = torch.cat([torch.empty(0, dtype=torch.int64), *(p[1] for p in parts)])
    factors = torch.cat([torch.empty(0, dtype=dtype), *(p[2].to(dtype) for p in parts)]).requires_grad_()
    weights = list(tables.values()) or [torch.empty(0, dtype=dtype, requires_grad=True)]
    return tables, weights, indices, lengths, factors


def unsharded(size, mode, dtype, has_factors, bounds="error"):
    """The whole result, the tables and each feature's factors, by torch; of 16-bit tables in float64."""
    precise = torch.float64 if dtype.itemsize == 2 else dtype
    tables = [table(t, dtype).detach().to(precise).requires_grad_() for t in range(3)]
    factors, out = [], torch.empty(BATCH, 17, dtype=precise)
    for i, f in enumerate(placement(size)["features"]):
        indices, lengths, own = bags(i, bounds)
        rows, padding = ROWS[f["table"]], PADDING[f["table"]]
        bag = torch.repeat_interleave(lengths)
        keep = torch.ones_like(indices, dtype=torch.bool)
        if bounds == "ignore":
            keep = (indices >= 0) & (indices < rows)
        indices = indices.clamp(0, rows - 1) if bounds == "clamp" else indices
        indices = torch.where((indices < 0) | (indices >= rows), 0, indices) if bounds == "zero_row" else indices
        lengths = torch.bincount(bag[keep], minlength=BATCH)
        factors.append(own.to(dtype).requires_grad_())
        pooled = F.embedding_bag(
            indices[keep],
            tables[f["table"]],
            F.pad(lengths.cumsum(0), (1, 0)),
            mode=mode,
            include_last_offset=True,
            padding_idx=None if padding < 0 else padding,
            per_sample_weights=factors[-1][keep] if has_factors else None,
        )
        out[:, f["column"] : f["column"] + pooled.shape[1]] = pooled
    return out, tables, factors


def part(t, size, rank):
    return t.tensor_split(size)[rank]


def same_as_torch(group, mode, dtype, has_factors, bounds):
    rank, size = group.rank(), group.size()
    want, whole, factors_of = unsharded(size, mode, dtype, has_factors, bounds)
    upstream = torch.randn(want.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64).to(dtype)
    want.backward(upstream.to(want.dtype))
    tables, weights, indices, lengths, factors = operands(size, rank, dtype, bounds)
    given = {"group": group, "batch": BATCH, "placement": placement(size), "mode": mode, "bounds": bounds}
    bound = max(1e-12, 10 * torch.finfo(dtype).eps)
    if dtype.itemsize == 2:
        bound = torch.finfo(dtype).eps  # rounded once
    bounded = {"rtol": bound, "atol": max(bound / 10, 1e-5 if dtype != torch.float64 else bound)}
    for sparse in (False, True):
        got = overlace.ops.embedding_a2a(
            weights, indices, None, factors if has_factors else None, lengths=lengths, sparse=sparse, **given
        )
        torch.testing.assert_close(got.to(want.dtype), part(want, size, rank), **bounded)
        again = []
        for _ in range(2):
            for t in (*weights, factors):
                t.grad = None
            got.backward(part(upstream, size, rank), retain_graph=True)
            again.append([w.grad.to_dense() if sparse else w.grad for w in weights])
            assert all(w.grad.is_sparse == sparse for w in weights if w.dim() == 2)
        for t, grad, same in zip(tables, *again, strict=False):
            torch.testing.assert_close(grad.to(want.dtype), whole[t].grad, **bounded)
            assert torch.equal(grad, same)
        if has_factors:
            own = [factors_of[i].grad for _, i in my_features(size, rank)]
            torch.testing.assert_close(factors.grad, torch.cat([factors[:0].detach(), *own]), **bounded)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize(
    ("mode", "dtype", "has_factors", "bounds"),
    [
        ("sum", torch.float32, False, "error"),
        ("sum", torch.float64, True, "error"),
        ("mean", torch.float64, False, "error"),
        ("max", torch.float32, False, "error"),
        ("mean", torch.bfloat16, False, "error"),
        ("sum", torch.float16, False, "error"),
        ("sum", torch.float64, True, "ignore"),
        ("mean", torch.float64, False, "clamp"),
        ("max", torch.float64, False, "zero_row"),
    ],
)
def test_same_as_torch(size, mode, dtype, has_factors, bounds):
    run_ranks(size, same_as_torch, mode, dtype, has_factors, bounds)


class Mine(torch.autograd.Function):
    """My elements of what all ranks hold; the gradient is that of all ranks."""

    @staticmethod
    def forward(ctx, full, group, begin, end):
        ctx.given = (group, begin, end, len(full))
        return full[begin:end].clone()

    @staticmethod
    def backward(ctx, grad):
        return Whole.apply(grad, *ctx.given), None, None, None


class Whole(torch.autograd.Function):
    """Its inverse."""

    @staticmethod
    def forward(ctx, mine, group, begin, end, count):
        ctx.given = (group, begin, end)
        full = mine.new_zeros(count)
        full[begin:end] = mine
        torch.distributed.all_reduce(full, group=group)
        return full

    @staticmethod
    def backward(ctx, grad):
        return Mine.apply(grad, *ctx.given), None, None, None, None


def check_derivatives(group, mode):
    """All ranks perturb the same element, so the function that is checked is the global one. Rank 0 has two tables,
    rank 1 one, a third rank none."""
    rank, size = group.rank(), group.size()
    owners, rows, dims, batch = [0, min(1, size - 1), 0], [3, 2, 4], [2, 1, 1], 2 * size
    place = {
        "tables": [{"rows": r, "dim": d} for r, d in zip(rows, dims, strict=True)],
        "features": [{"table": t, "rank": owners[t], "column": sum(dims[:t])} for t in range(3)],
    }
    order = sorted(range(3), key=lambda t: owners[t])  # tables and their entries, rank by rank
    mine = [t for t in order if owners[t] == rank]
    lengths = {t: torch.tensor([(t + b) % 3 for b in range(batch)]) for t in order}
    indices = {t: torch.arange(int(lengths[t].sum())) * 5 % rows[t] for t in order}

    def bounds_of(sizes):
        ahead = sum(sizes[t] for t in order if owners[t] < rank)
        return ahead, ahead + sum(sizes[t] for t in mine)

    def layer(full, factors):
        flat = Mine.apply(full, group, *bounds_of([r * d for r, d in zip(rows, dims, strict=True)]))
        parts = flat.split([rows[t] * dims[t] for t in mine]) if mine else []
        own = Mine.apply(factors, group, *bounds_of([len(indices[t]) for t in range(3)]))
        got = overlace.ops.embedding_a2a(
            [p.view(rows[t], dims[t]) for t, p in zip(mine, parts, strict=True)] or [flat],
            torch.cat([torch.empty(0, dtype=torch.int64), *(indices[t] for t in mine)]),
            None,
            own if mode == "sum" else None,
            lengths=torch.cat([torch.empty(0, dtype=torch.int64), *(lengths[t] for t in mine)]),
            group=group,
            batch=batch,
            placement=place,
            mode=mode,
        )
        return Join.apply(torch.tanh(got), group, 0)

    generator = torch.Generator().manual_seed(3)
    total = sum(len(indices[t]) for t in range(3))
    full = torch.randn(12, generator=generator, dtype=torch.float64).requires_grad_()
    check_twice(layer, (full, torch.randn(total, generator=generator, dtype=torch.float64).requires_grad_()))


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_derivatives(size, mode):
    run_ranks(size, check_derivatives, mode)


def check_schemas(group):
    rank, size = group.rank(), group.size()
    _, weights, indices, lengths, factors = operands(size, rank, torch.float64)
    offsets = F.pad(lengths.cumsum(0), (1, 0))
    name, text = overlace.context_of(group).name, json.dumps(placement(size))
    for given, options in ((factors, {}), (None, {"mode": "max"}), (None, {"mode": "mean"})):
        arguments = (weights, indices, offsets, given, BATCH, text, name)
        torch.library.opcheck(torch.ops.overlace.embedding_a2a.default, arguments, options)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def pooled(weights, indices, offsets):
        return torch.tanh(
            overlace.ops.embedding_a2a(weights, indices, offsets, group=name, batch=BATCH, placement=text)
        )

    results = []
    for function in (pooled, pooled._torchdynamo_orig_callable):
        for w in weights:
            w.grad = None
        out = function(weights, indices, offsets)
        out.square().sum().backward()
        results.append([out.detach(), *(w.grad for w in weights)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("size", [2, 3])
def test_schemas(size):
    run_ranks(size, check_schemas)


def check_memory(group):
    """Slices that lie one behind the other are read where they are; others give the same."""
    _, weights, indices, lengths, _ = operands(1, 0, torch.float32)
    given = {"lengths": lengths, "group": group, "batch": BATCH, "placement": placement(1)}
    flat = torch.cat([w.detach().flatten() for w in weights])
    views = [v.view_as(w) for v, w in zip(flat.split([w.numel() for w in weights]), weights, strict=True)]
    with torch.no_grad():
        want = overlace.ops.embedding_a2a(weights, indices, **given)
        for others in (views, [w.t().contiguous().t() for w in weights]):
            assert torch.equal(overlace.ops.embedding_a2a(others, indices, **given), want)
    turned = [w.detach().t() for w in weights]
    refused(r"weights are \[\[4, 11\], .*wanted \[\[11, 4\]", overlace.ops.embedding_a2a, turned, indices, **given)
    joined = importlib.import_module("overlace.ops._embedding_a2a")._flat(views)
    assert joined.data_ptr() == flat.data_ptr() and joined.shape == flat.shape


def test_memory():
    run_ranks(1, check_memory)


def refused(text, function, *arguments, **options):
    with pytest.raises(overlace.InvalidArgument, match=text):
        function(*arguments, **options)


def check_refusals(group):
    """On all ranks, as none has made such a call before; the team goes on."""
    rank, size = group.rank(), group.size()
    _, weights, indices, lengths, factors = operands(size, rank, torch.float64)
    given = {"group": group, "batch": BATCH, "placement": placement(size) | {"entries": 7}}
    offsets = F.pad(lengths.cumsum(0), (1, 0))
    op, owner = overlace.ops.embedding_a2a, rank == 0
    beyond, falling = indices.clone(), offsets.clone()
    if owner:
        beyond[int(offsets[BATCH + 3]) + 1], falling[3] = 99, falling[2] - 1
    place = r"rank 0, feature 1, bag 3, position 1: index is 99, wanted 0 to 7: the table has 8 rows"
    refused(place, op, weights, beyond, offsets, **given)
    refused(r"offsets\[3\] is \d+, wanted \d+ to \d+", op, weights, indices, falling, **given)
    refused(r"offsets has \d+ elements, wanted", op, weights, indices, offsets[:-1], **given)
    refused("indices is fp64, wanted i32 or i64", op, weights, indices.double(), offsets, **given)
    refused("mode is 'mode', wanted sum, mean or max", op, weights, indices, offsets, **given, mode="mode")
    refused("bounds is 'b', wanted error", op, weights, indices, offsets, **given, bounds="b")
    refused("with mode mean, wanted mode sum", op, weights, indices, offsets, factors, **given, mode="mean")
    refused("placement: tables is missing", op, weights, indices, offsets, **given | {"placement": "{}"})
    refused("wanted one of them", op, weights, indices, **given)
    refused("wanted one of them", op, weights, indices, offsets, lengths=lengths, **given)
    refused("weights are empty, wanted one tensor or more", op, [], indices, offsets, **given)
    refused(r"row_offsets are \[0, 9\], wanted 4 numbers", op, weights, indices, offsets, row_offsets=[0, 9], **given)
    refused(r"weights has 1 elements, wanted \d+", op, [factors.new_zeros(1)], indices, offsets, **given)
    mixed = [*weights, torch.zeros(1)]
    refused(rf"weights\[{len(weights)}\] is torch.float32, wanted torch.float64", op, mixed, indices, offsets, **given)
    out = op(weights, indices, offsets, **given)
    assert out.shape == (BATCH // size + (rank < BATCH % size), 17)


def test_refusals():
    run_ranks(3, check_refusals)
