"""gemm_a2a, a2a_gemm and uneven all_to_all: values, gradients of both orders, shapes, what is refused."""

import pytest
from ranks import SIZES, overlace, run_ranks, torch
from test_autograd import Join, Split, check_twice, random

K, N = 5, 8


def drawn_splits(size, seed):
    """Blocks of 0 to 4 rows."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 5, (size, size), generator=generator).tolist()


def integers(seed, *sizes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-3, 4, sizes, generator=generator).to(dtype)


def operands(rank, rows, dtype=torch.float32):
    return (
        integers(10 + rank, rows, K, dtype=dtype),
        integers(20 + rank, K, N, dtype=dtype),
        integers(30 + rank, N, dtype=dtype),
    )


def products(splits, dtype=torch.float32):
    """Products of all ranks, cut into their blocks."""
    out = []
    for rank, row in enumerate(splits):
        a, b, bias = operands(rank, sum(row), dtype)
        out.append((a @ b + bias).split(row))
    return out


def check_values(group, family, dtype, is_even):
    rank, size = group.rank(), group.size()
    for seed in range(3):
        splits = [[3] * size] * size if is_even else drawn_splits(size, seed)
        a, b, bias = operands(rank, sum(splits[rank]), dtype)
        want = torch.cat([blocks[rank] for blocks in products(splits, dtype)])
        given = None if is_even else splits if seed % 2 else [n for row in splits for n in row]
        plan = f"family={family},degree={1 + seed}" if family else ""
        for factor in (b, b.t().contiguous().t()):
            got = overlace.ops.gemm_a2a(a, factor, bias=bias, splits=given, group=group, plan=plan)
            torch.testing.assert_close(got, want, rtol=0, atol=0)
        wide = overlace.ops.gemm_a2a(a, b, splits=given, out_dtype=torch.float32, group=group, plan=plan)
        assert wide.dtype == torch.float32 and wide.shape == want.shape


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "family", ["", "library", "serial", "hetero_unfused_1d", "hetero_fused_1d", "uniform_fused_1d"]
)
def test_values(size, family):
    for dtype in (torch.float32, torch.bfloat16):
        for is_even in (True, False):
            run_ranks(size, check_values, family, dtype, is_even)


def received_rows(splits, rank, dtype=torch.float32):
    """This rank's block of each rank's rows."""
    blocks = [operands(r, sum(row), dtype)[0].split(row)[rank] for r, row in enumerate(splits)]
    return torch.cat(blocks)


def check_values_before(group, family, dtype, is_even):
    rank, size = group.rank(), group.size()
    for seed in range(3):
        splits = [[3] * size] * size if is_even else drawn_splits(size, seed)
        a, b, bias = operands(rank, sum(splits[rank]), dtype)
        b, bias = b[:, : N - rank], bias[: N - rank]  # N may differ by rank
        came = received_rows(splits, rank, dtype)
        plan = f"family={family},degree={1 + seed}" if family else ""
        options = {"splits": None if is_even else splits, "group": group, "plan": plan}
        received, got = overlace.ops.a2a_gemm(a, b, bias=bias, return_a=True, **options)
        torch.testing.assert_close(received, came, rtol=0, atol=0)
        torch.testing.assert_close(got, came @ b + bias, rtol=0, atol=0)
        got = overlace.ops.a2a_gemm(a, b, out_dtype=torch.float32, **options)
        torch.testing.assert_close(got, came.float() @ b.float(), rtol=0, atol=0)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "family", ["", "library", "serial", "hetero_unfused_1d", "hetero_fused_1d", "uniform_fused_1d"]
)
def test_values_before(size, family):
    for dtype in (torch.float32, torch.bfloat16):
        for is_even in (True, False):
            run_ranks(size, check_values_before, family, dtype, is_even)


def check_gradients_before(group, is_even):
    """Exact: the gradient of the rows that came goes back to whom they came from."""
    rank, size = group.rank(), group.size()
    splits = [[4] * size] * size if is_even else drawn_splits(size, 5)
    begins = [sum(splits[s][r] for s in range(rank)) for r in range(size)]
    upstream = [integers(40 + r, sum(row[r] for row in splits), N) for r in range(size)]
    own = [integers(50 + r, sum(row[r] for row in splits), K) for r in range(size)]
    factors = [operands(r, 1)[1] for r in range(size)]
    dx = [upstream[r] @ factors[r].t() for r in range(size)]
    came = received_rows(splits, rank)
    for needs_a, needs_b, returns in (
        (True, True, False),
        (True, False, True),
        (False, True, False),
        (True, True, True),
    ):
        a, b, bias = operands(rank, sum(splits[rank]))
        a.requires_grad_(needs_a), b.requires_grad_(needs_b), bias.requires_grad_()
        given = None if is_even else splits
        got = overlace.ops.a2a_gemm(a, b, bias=bias, splits=given, group=group, return_a=returns)
        received, out = got if returns else (None, got)
        out.backward(upstream[rank], retain_graph=returns)
        sums = [dx[r].clone() for r in range(size)]
        if returns:
            received.backward(own[rank])
            sums = [dx[r] + own[r] for r in range(size)]
        da = torch.cat([sums[r][begins[r] : begins[r] + splits[rank][r]] for r in range(size)])
        if needs_a:
            torch.testing.assert_close(a.grad, da, rtol=0, atol=0)
        if needs_b:
            torch.testing.assert_close(b.grad, came.t() @ upstream[rank], rtol=0, atol=0)
        torch.testing.assert_close(bias.grad, upstream[rank].sum(0), rtol=0, atol=0)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("is_even", [True, False])
def test_gradients_before(size, is_even):
    run_ranks(size, check_gradients_before, is_even)


def check_gradients(group, is_even):
    """Exact: rows of the gradient go back to whom they came from."""
    rank, size = group.rank(), group.size()
    splits = [[4] * size] * size if is_even else drawn_splits(size, 5)
    a, b, bias = (t.requires_grad_() for t in operands(rank, sum(splits[rank])))
    out = overlace.ops.gemm_a2a(a, b, bias=bias, splits=None if is_even else splits, group=group)
    upstream = [integers(40 + r, sum(row[r] for row in splits), N) for r in range(size)]
    out.backward(upstream[rank])
    # What rank r got from this one stands behind what it got from the ranks before.
    begins = [sum(splits[s][r] for s in range(rank)) for r in range(size)]
    dp = torch.cat([upstream[r][begins[r] : begins[r] + splits[rank][r]] for r in range(size)])
    for got, want in ((a.grad, dp @ b.detach().t()), (b.grad, a.detach().t() @ dp), (bias.grad, dp.sum(0))):
        torch.testing.assert_close(got, want, rtol=0, atol=0)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("is_even", [True, False])
def test_gradients(size, is_even):
    run_ranks(size, check_gradients, is_even)


def check_second_order(group):
    torch.manual_seed(3)
    size = group.size()

    def layer(x, w, bias):
        mine = overlace.ops.gemm_a2a(
            Split.apply(x, group, 0), Split.apply(w, group, 0), bias=Split.apply(bias, group, 0), group=group
        )
        return Join.apply(torch.tanh(mine), group, 0)

    check_twice(layer, (random(2 * size * size, 3), random(3 * size, 2), random(2 * size)))

    def layer_before(x, w, bias):
        received, mine = overlace.ops.a2a_gemm(
            Split.apply(x, group, 0),
            Split.apply(w, group, 0),
            bias=Split.apply(bias, group, 0),
            group=group,
            return_a=True,
        )
        return Join.apply(torch.cat([torch.tanh(mine), (group.rank() + 1) * received**2], 1), group, 0)

    check_twice(layer_before, (random(2 * size * size, 3), random(3 * size, 2), random(2 * size)))
    rows = [[1, 2, 0], [0, 1, 2], [3, 0, 0]][:size]
    sent, received = [row[:size] for row in rows], [[row[r] for row in rows] for r in range(size)]
    rank = group.rank()

    def exchange(x):
        """All ranks have as many rows, of which each sends as many as it says."""
        mine = Split.apply(x, group, 0)[: sum(sent[rank])]
        got = overlace.ops.all_to_all(mine, group=group, send_splits=sent[rank], recv_splits=received[rank])
        padded = torch.cat([torch.tanh(got), got.new_zeros(9 - len(got), got.shape[1])])
        return Join.apply(padded, group, 0)

    check_twice(exchange, (random(3 * size, 2),))


@pytest.mark.parametrize("size", SIZES)
def test_second_order(size):
    run_ranks(size, check_second_order)


def check_uneven_all_to_all(group):
    rank, size = group.rank(), group.size()
    for seed, dtype in ((1, torch.float64), (2, torch.int16), (3, torch.bool)):
        splits = drawn_splits(size, seed)
        for dim in (0, 1, -1):
            shape = [3, 4, 2]
            parts = []
            for source in range(size):
                sizes = list(shape)
                sizes[dim] = sum(splits[source])
                parts.append(integers(100 + source, *sizes).to(dtype).split(splits[source], dim))
            want = torch.cat([blocks[rank] for blocks in parts], dim)
            got = overlace.ops.all_to_all(
                torch.cat(parts[rank], dim),
                dim=dim,
                group=group,
                send_splits=splits[rank],
                recv_splits=[row[rank] for row in splits],
            )
            assert got.is_contiguous() and got.dtype == dtype
            assert torch.equal(got, want), (seed, dim)


@pytest.mark.parametrize("size", SIZES)
def test_uneven_all_to_all(size):
    run_ranks(size, check_uneven_all_to_all)


def check_schemas(group):
    name, size = overlace.context_of(group).name, group.size()
    splits = [2] * (size * size)
    a, b, bias = (t.double().requires_grad_() for t in operands(group.rank(), 2 * size))
    torch.library.opcheck(torch.ops.overlace.gemm_a2a.default, (a, b, bias, name), {"splits": splits})
    options = {"splits": splits, "return_a": True}
    torch.library.opcheck(torch.ops.overlace.a2a_gemm.default, (a, b, bias, name), options)
    torch.library.opcheck(torch.ops.overlace.a2a_gemm.default, (a.detach(), b.detach(), None, name), {})
    even = {"send_splits": [2] * size, "recv_splits": [2] * size}
    torch.library.opcheck(torch.ops.overlace.all_to_all.default, (a, 0, name), even)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def layer(a, b):
        there = torch.relu(overlace.ops.gemm_a2a(a, b, splits=splits, group=name))
        return overlace.ops.a2a_gemm(there, b.t(), splits=splits, group=name)

    plain = torch.relu(overlace.ops.gemm_a2a(a, b, splits=splits, group=group))
    plain = overlace.ops.a2a_gemm(plain, b.t(), splits=splits, group=group)
    assert torch.equal(layer(a, b), plain)


@pytest.mark.parametrize("size", SIZES)
def test_schemas(size):
    run_ranks(size, check_schemas)


def check_refusals(group):
    rank, size = group.rank(), group.size()
    a, b, bias = operands(rank, 2 * size)
    cases = [
        ({"splits": [1, 2, 3]}, r"gemm_a2a: splits are \[1, 2, 3\], wanted 2 rows of 2 integers, 0 or more"),
        ({"splits": [[1, 2], [3]]}, "wanted 2 rows of 2 integers"),
        ({"splits": [[4, 0], [-4, 8]]}, "wanted 2 rows of 2 integers, 0 or more"),
        ({"splits": [[3, 0], [0, 3]]}, rf"a is \[4, 5\] on rank {rank}, splits give it 3 rows, wanted 4"),
        ({"splits": [[4, 0], [0, 2**62]]}, r"gemm_a2a: splits\[3\] is 4611686018427387904, wanted 0 to 2\^40"),
        ({"bias": bias[:3]}, r"gemm_a2a: bias is \[3\], wanted \[8\]"),
    ]
    for options, text in cases:
        with pytest.raises(overlace.errors.InvalidArgument, match=text):
            overlace.ops.gemm_a2a(a, b, group=group, **options)
    with pytest.raises(overlace.errors.InvalidArgument, match="wanted both or none"):
        overlace.ops.all_to_all(a, group=group, send_splits=[2, 2])
    with pytest.raises(overlace.errors.InvalidArgument, match=r"send_splits are \[4\], wanted 2 numbers, 0 or more"):
        overlace.ops.all_to_all(a, group=group, send_splits=[4], recv_splits=[4])
    with pytest.raises(overlace.errors.InvalidArgument, match="send_splits sum to 3, wanted 4"):
        overlace.ops.all_to_all(a, group=group, send_splits=[1, 2], recv_splits=[2, 2])
    with pytest.raises(
        overlace.errors.InvalidArgument, match=rf"a2a_gemm: a is \[4, 5\] on rank {rank}, splits give it 3"
    ):
        overlace.ops.a2a_gemm(a, b, group=group, splits=[[3, 0], [0, 3]])
    # Ranks that disagree are all told, and go on afterwards.
    mine = [[2, 2], [1, 3]] if rank == 0 else [[1, 3], [2, 2]]
    with pytest.raises(overlace.errors.PlanMismatch, match="splits"):
        overlace.ops.gemm_a2a(a, b, splits=mine, group=group)
    check_values(group, "", torch.float32, False)


def test_refusals():
    run_ranks(2, check_refusals)
