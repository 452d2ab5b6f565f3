"""gemm_a2a and a2a_gemm of columns: values, gradients of both orders, shapes, what is refused."""

import pytest
from ranks import SIZES, overlace, run_ranks, torch
from test_autograd import Join, Split, check_twice, random
from test_exchange import integers

FAMILIES = ["", "library", "serial", "hetero_unfused_1d", "hetero_fused_1d", "uniform_fused_1d"]
K, N = 5, 7  # of what does not travel
WIDTHS = [[2], [3, 1], [1, 2, 1]]  # of the blocks at each rank
ROWS = [[3, 3, 3], [4, 0, 2], [0, 5, 1]]


def drawn(size, turn):
    """Rows of each rank and blocks; None where they are as even as it goes, or one."""
    rows, widths = ROWS[turn % 3][:size], WIDTHS[turn % len(WIDTHS)]
    blocks = [size * width for width in widths]
    return rows, blocks, rows if len(set(rows)) > 1 else None, blocks if len(blocks) > 1 else None


def dealt(whole, blocks, size):
    """The columns of each rank, block by block."""
    parts = [block.unflatten(1, (size, -1)) for block in whole.split(blocks, 1)]
    return [torch.cat([part[:, rank] for part in parts], 1) for rank in range(size)]


def operands(rank, rows, k, n, dtype=torch.float32):
    return (
        integers(10 + rank, rows, k, dtype=dtype),
        integers(20 + rank, k, n, dtype=dtype),
        integers(30 + rank, n, dtype=dtype),
    )


def products(rows, blocks, dtype=torch.float32):
    out = []
    for rank, mine in enumerate(rows):
        a, b, bias = operands(rank, mine, K, sum(blocks), dtype)
        out.append(a @ b + bias)
    return out


def check_values(group, family, dtype):
    rank, size = group.rank(), group.size()
    for turn in range(3):
        rows, blocks, splits, given = drawn(size, turn)
        options = {"exchange": "cols", "splits": splits, "blocks": given, "group": group}
        options["plan"] = f"family={family},degree={1 + turn}" if family else ""
        a, b, bias = operands(rank, rows[rank], K, sum(blocks), dtype)
        want = torch.cat([dealt(product, blocks, size)[rank] for product in products(rows, blocks, dtype)])
        for factor in (b, b.t().contiguous().t()):
            got = overlace.ops.gemm_a2a(a, factor, bias=bias, **options)
            torch.testing.assert_close(got, want, rtol=0, atol=0)
        # K may differ by rank.
        longer = operands(rank, rows[rank], K + rank, sum(blocks), dtype)
        wide = overlace.ops.gemm_a2a(*longer[:2], out_dtype=torch.float32, **options)
        assert wide.dtype == torch.float32 and wide.shape == want.shape

        whole = integers(60, sum(rows), sum(blocks), dtype=dtype)
        mine = whole.split(rows)[rank]
        _, b, bias = operands(rank, 1, sum(blocks), N + rank, dtype)  # N may differ by rank
        part = dealt(whole, blocks, size)[rank]
        received, got = overlace.ops.a2a_gemm(part, b, bias=bias, return_a=True, **options)
        torch.testing.assert_close(received, mine, rtol=0, atol=0)
        torch.testing.assert_close(got, mine @ b + bias, rtol=0, atol=0)
        got = overlace.ops.a2a_gemm(part, b, out_dtype=torch.float32, **options)
        torch.testing.assert_close(got, mine.float() @ b.float(), rtol=0, atol=0)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("family", FAMILIES)
def test_values(size, family):
    for dtype in (torch.float32, torch.bfloat16):
        run_ranks(size, check_values, family, dtype)


def check_gradients(group, turn):
    """Exact: columns of the gradient go back to whom they came from."""
    rank, size = group.rank(), group.size()
    rows, blocks, splits, given = drawn(size, turn)
    options = {"exchange": "cols", "splits": splits, "blocks": given, "group": group}
    whole = integers(40, sum(rows), sum(blocks))
    for needs in ((True, True, True), (False, True, False), (True, False, False), (False, False, True)):
        a, b, bias = (
            t.requires_grad_(need) for t, need in zip(operands(rank, rows[rank], K, sum(blocks)), needs, strict=True)
        )
        overlace.ops.gemm_a2a(a, b, bias=bias, **options).backward(dealt(whole, blocks, size)[rank])
        dp = whole.split(rows)[rank]
        wanted = (dp @ b.detach().t(), a.detach().t() @ dp, dp.sum(0))
        for t, want in zip((a, b, bias), wanted, strict=True):
            if t.requires_grad:
                torch.testing.assert_close(t.grad, want, rtol=0, atol=0)


@pytest.mark.parametrize("size", SIZES)
def test_gradients(size):
    for turn in range(3):
        run_ranks(size, check_gradients, turn)


def check_gradients_before(group, turn):
    rank, size = group.rank(), group.size()
    rows, blocks, splits, given = drawn(size, turn)
    options = {"exchange": "cols", "splits": splits, "blocks": given, "group": group}
    whole = integers(60, sum(rows), sum(blocks))
    factors = [operands(r, 1, sum(blocks), N)[1] for r in range(size)]
    upstream = [integers(40 + r, rows[r], N) for r in range(size)]
    own = [integers(50 + r, rows[r], sum(blocks)) for r in range(size)]
    for needs_a, needs_b, returns in (
        (True, True, False),
        (True, False, True),
        (False, True, False),
        (True, True, True),
    ):
        a = dealt(whole, blocks, size)[rank].requires_grad_(needs_a)
        _, b, bias = operands(rank, 1, sum(blocks), N)
        b.requires_grad_(needs_b), bias.requires_grad_()
        got = overlace.ops.a2a_gemm(a, b, bias=bias, return_a=returns, **options)
        received, out = got if returns else (None, got)
        out.backward(upstream[rank], retain_graph=returns)
        dx = [upstream[r] @ factors[r].t() for r in range(size)]
        if returns:
            received.backward(own[rank])
            dx = [dx[r] + own[r] for r in range(size)]
        if needs_a:
            torch.testing.assert_close(a.grad, dealt(torch.cat(dx), blocks, size)[rank], rtol=0, atol=0)
        if needs_b:
            torch.testing.assert_close(b.grad, whole.split(rows)[rank].t() @ upstream[rank], rtol=0, atol=0)
        torch.testing.assert_close(bias.grad, upstream[rank].sum(0), rtol=0, atol=0)
    # Where what came was not kept, it is exchanged again.
    _, b, _ = operands(rank, 1, sum(blocks), N)
    name = overlace.context_of(group).name
    kept = {"exchange": "cols", "splits": splits or [], "blocks": given or []}
    a = dealt(whole, blocks, size)[rank]
    torch.ops.overlace.a2a_gemm(a, b.requires_grad_(), None, name, **kept)[1].backward(upstream[rank])
    torch.testing.assert_close(b.grad, whole.split(rows)[rank].t() @ upstream[rank], rtol=0, atol=0)


@pytest.mark.parametrize("size", SIZES)
def test_gradients_before(size):
    for turn in range(3):
        run_ranks(size, check_gradients_before, turn)


def check_second_order(group):
    size = group.size()
    torch.manual_seed(3)
    blocks = [2 * size, size]
    columns = sum(blocks)

    def layer(x, w, bias):
        mine = overlace.ops.gemm_a2a(
            Split.apply(x, group, 0),
            Split.apply(w, group, 0),
            bias=Split.apply(bias, group, 0),
            group=group,
            exchange="cols",
            blocks=blocks,
        )
        return Join.apply(torch.tanh(mine), group, 0)

    check_twice(layer, (random(2 * size, 3), random(3 * size, columns), random(columns * size)))

    def layer_before(x, w, bias):
        received, mine = overlace.ops.a2a_gemm(
            Split.apply(x, group, 0),
            Split.apply(w, group, 0),
            bias=Split.apply(bias, group, 0),
            group=group,
            exchange="cols",
            blocks=blocks,
            return_a=True,
        )
        return Join.apply(torch.cat([torch.tanh(mine), (group.rank() + 1) * received**2], 1), group, 0)

    check_twice(layer_before, (random(2 * size * size, 3), random(columns * size, 2), random(2 * size)))


@pytest.mark.parametrize("size", SIZES)
def test_second_order(size):
    run_ranks(size, check_second_order)


def check_schemas(group):
    name, size, rank = overlace.context_of(group).name, group.size(), group.rank()
    options = {"exchange": "cols", "blocks": [2 * size, size]}
    a, b, bias = (t.double().requires_grad_() for t in operands(rank, 2, K, 3 * size))
    torch.library.opcheck(torch.ops.overlace.gemm_a2a.default, (a, b, bias, name), options)
    a, b, bias = (t.double().requires_grad_() for t in operands(rank, 2 * size, 3 * size, N))
    a = a[:, :3].detach().contiguous().requires_grad_()
    torch.library.opcheck(torch.ops.overlace.a2a_gemm.default, (a, b, bias, name), options | {"return_a": True})
    torch.library.opcheck(torch.ops.overlace.a2a_gemm.default, (a, b, None, name), options)

    def layer(a, b):
        there = torch.relu(overlace.ops.gemm_a2a(a, b, group=name, **options))
        return overlace.ops.a2a_gemm(there, b.t(), group=name, **options)

    a, b, _ = operands(rank, 2, K, 3 * size)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(a, b), layer(a, b))


@pytest.mark.parametrize("size", SIZES)
def test_schemas(size):
    run_ranks(size, check_schemas)


def check_planned(group):
    """What is planned for these blocks can be given back, and for no others."""
    rank, size = group.rank(), group.size()
    blocks = [2 * size, size]
    a, b, _ = operands(rank, 2, K, 3 * size)
    shape = {"dtype": a.dtype, "group": group, "b_layout": "kn", "exchange": "cols"}
    plan = overlace.plan("gemm_a2a", 2 * size, 3 * size, K, blocks=blocks, **shape)
    got = overlace.ops.gemm_a2a(a, b, group=group, exchange="cols", blocks=blocks, plan=plan.schedule)
    assert torch.equal(got, overlace.ops.gemm_a2a(a, b, group=group, exchange="cols", blocks=blocks))
    with pytest.raises(overlace.errors.PlanMismatch, match=rf"was made for blocks from 0 {2 * size} {3 * size}, "):
        overlace.ops.gemm_a2a(a, b, group=group, exchange="cols", plan=plan.schedule)
    with pytest.raises(overlace.errors.PlanMismatch, match="was made for exchange cols, the call has rows"):
        overlace.ops.gemm_a2a(a, b, group=group, plan=plan.schedule)
    with pytest.raises(overlace.errors.InvalidArgument, match=rf"op.blocks\[0\] is 1, wanted a multiple of {size}"):
        overlace.plan("a2a_gemm", 2 * size, K, 3 * size, blocks=[1], **shape)
    with pytest.raises(overlace.errors.InvalidArgument, match="exchange is 'both', wanted one of rows, cols"):
        overlace.plan("a2a_gemm", 2 * size, K, 3 * size, **shape | {"exchange": "both"})


def test_planned():
    run_ranks(2, check_planned)
    run_ranks(3, check_planned)


def check_refusals(group):
    rank = group.rank()
    a, b, _ = operands(rank, 4, K, 8)
    each = r"a multiple of 2( above 0)?: as many columns for each rank"
    cases = [
        ({"blocks": [4, 3, 1]}, rf"gemm_a2a: blocks\[1\] is 3, wanted {each}"),
        ({"blocks": [8, 0]}, rf"gemm_a2a: blocks\[1\] is 0, wanted {each}"),
        ({"blocks": [4, 2]}, "gemm_a2a: blocks sum to 6, wanted N = 8"),
        ({"splits": [4]}, r"gemm_a2a: splits are \[4\], wanted 2 integers, 0 or more: rows of each rank"),
        ({"splits": [[4, 0], [0, 4]]}, "wanted 2 integers, 0 or more: rows of each rank"),
        ({"splits": [3, 3]}, rf"a is \[4, 5\] on rank {rank}, splits give it 3 rows, wanted 4"),
        ({"exchange": "rows", "blocks": [8]}, "gemm_a2a: blocks are given, wanted none: no columns travel"),
        ({"exchange": "columns"}, "gemm_a2a: exchange is 'columns', wanted 'rows' or 'cols'"),
    ]
    fake = torch.device("meta")
    for options, text in cases:
        options = {"exchange": "cols"} | options
        with pytest.raises(overlace.errors.InvalidArgument, match=text):
            overlace.ops.gemm_a2a(a, b, group=group, **options)
        if "splits" not in options:
            with pytest.raises(overlace.errors.InvalidArgument, match=text):
                overlace.ops.gemm_a2a(a.to(fake), b.to(fake), group=group, **options)
    odd = b[:, :7]
    for device in ("cpu", fake):
        with pytest.raises(overlace.errors.InvalidArgument, match=f"gemm_a2a: N is 7, wanted {each}"):
            overlace.ops.gemm_a2a(a.to(device), odd.to(device), group=group, exchange="cols")
        with pytest.raises(overlace.errors.InvalidArgument, match="K 2 x 5 != 5"):
            overlace.ops.a2a_gemm(a.to(device), b.to(device), group=group, exchange="cols")
    # Ranks that disagree are all told, and go on afterwards.
    with pytest.raises(overlace.errors.PlanMismatch, match="blocks"):
        overlace.ops.gemm_a2a(a, b, exchange="cols", blocks=[6, 2] if rank == 0 else [2, 6], group=group)
    check_values(group, "", torch.float32)


def test_refusals():
    run_ranks(2, check_refusals)
