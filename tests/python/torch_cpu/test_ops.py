"""The operators on CPU ranks against the unsharded products, bit for bit."""

import pytest
from ranks import SIZES, assert_same, overlace, run_ranks, torch, whole

dist = torch.distributed

DTYPES = ("float64", "float32", "bfloat16", "float16")
PLANS = ("", "library", "hetero_unfused_1d:2", "uniform_fused_1d")


def shard(full, group, dim=0):
    return full.chunk(group.size(), dim)[group.rank()]


def ag_gemm_of_dtype(group, dtype, is_transposed, plan):
    dtype = getattr(torch, dtype)
    x, w = whole(4 * group.size(), 7, 1, dtype), whole(7, 5, 2, dtype)
    b = w.t().contiguous().t() if is_transposed else w
    y = overlace.ops.ag_gemm(shard(x, group), b, group=group, plan=plan)
    assert_same(y, (x.double() @ w.double()).to(dtype))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_ag_gemm(size, dtype):
    for is_transposed in (True, False):
        run_ranks(size, ag_gemm_of_dtype, dtype, is_transposed, "")


@pytest.mark.parametrize("plan", PLANS)
def test_ag_gemm_by_plan(plan):
    run_ranks(3, ag_gemm_of_dtype, "float32", True, plan)


def ag_gemm_of_several(group):
    x, ws, biases = (
        whole(6 * group.size(), 8, 1),
        [whole(8, n, n) for n in (3, 9, 4)],
        [whole(1, n, n)[0] for n in (3, 9, 4)],
    )
    a, ys = overlace.ops.ag_gemm(shard(x, group), ws, biases=biases, group=group, return_a=True)
    assert_same(a, x)
    for y, w, bias in zip(ys, ws, biases, strict=True):
        assert_same(y, x @ w + bias)
    a, y = overlace.ops.ag_gemm(shard(x, group), ws[0], group=group, return_a=True)
    assert_same(a, x)
    assert_same(y, x @ ws[0])
    low = [t.bfloat16() for t in (x, *ws)]
    for y, w in zip(
        overlace.ops.ag_gemm(shard(low[0], group), low[1:], group=group, out_dtype=torch.float32), ws, strict=True
    ):
        assert_same(y, (x @ w).float())


@pytest.mark.parametrize("size", SIZES)
def test_ag_gemm_of_several_weights(size):
    run_ranks(size, ag_gemm_of_several)


def activated(group, activation, with_gradient):
    size, rank = group.size(), group.rank()
    x, w, bias = whole(4 * size, 8, 1) / 4, whole(8, 6, 2) / 4, whole(1, 6, 3)[0]
    k = slice(rank * 8 // size, (rank + 1) * 8 // size)
    functions = {
        "silu": torch.nn.functional.silu,
        "gelu": torch.nn.functional.gelu,
        "swiglu": lambda t: torch.nn.functional.silu(t[:, [0, 2, 4]]) * t[:, [1, 3, 5]],
    }
    wholes = [x.clone().requires_grad_(), w.clone().requires_grad_()]
    want = functions[activation](wholes[0] @ wholes[1] + bias)
    parts = [shard(x, group).clone(), w.clone(), x[:, k].clone(), w[k].clone()]
    for t in parts if with_gradient else ():
        t.requires_grad_()
    y = overlace.ops.ag_gemm(parts[0], parts[1], biases=bias, group=group, activation=activation)
    z = overlace.ops.gemm_rs(parts[2], parts[3], bias=bias, group=group, activation=activation)
    torch.testing.assert_close(y, want, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(z, shard(want, group), rtol=1e-12, atol=1e-12)
    if with_gradient:
        want.square().sum().backward()
        y.square().sum().backward()
        z.square().sum().backward()
        torch.testing.assert_close(parts[0].grad, size * shard(wholes[0].grad, group))
        torch.testing.assert_close(parts[1].grad, wholes[1].grad)
        torch.testing.assert_close(parts[2].grad, wholes[0].grad[:, k])
        torch.testing.assert_close(parts[3].grad, wholes[1].grad[k])


@pytest.mark.parametrize("activation", ["silu", "gelu", "swiglu"])
@pytest.mark.parametrize("with_gradient", [False, True])
def test_activations(activation, with_gradient):
    for size in (1, 2):
        run_ranks(size, activated, activation, with_gradient)


def swiglu_of_dtype(group, dtype, is_transposed, plan):
    size, dtype = group.size(), getattr(torch, dtype)
    torch.manual_seed(7)
    x = torch.randn(4 * size, 8, dtype=torch.float64).to(dtype)
    gate, up, of_gate, of_up = (torch.randn(*s, dtype=torch.float64).to(dtype) for s in ((6, 8), (6, 8), (6,), (6,)))
    want = torch.nn.functional.silu(x.double() @ gate.double().t() + of_gate.double())
    want = want * (x.double() @ up.double().t() + of_up.double())
    w, bias = overlace.nn.interleave_gate_up(gate, up), overlace.nn.interleave_gate_up(of_gate, of_up)
    b = w.t() if is_transposed else w.t().contiguous()
    before = overlace.context_of(group).stats().calls
    a, y = overlace.ops.ag_gemm(
        shard(x, group)[None], b, biases=bias, group=group, gather_dim=1, activation="swiglu", return_a=True, plan=plan
    )
    assert overlace.context_of(group).stats().calls == before + 1
    assert_same(a, x[None])
    # Where a product is a task of its own, its sums are rounded, too.
    scale = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(y[0].double(), want, rtol=scale, atol=scale * want.abs().max().item())
    assert y.dtype == dtype


@pytest.mark.parametrize("dtype", DTYPES)
def test_swiglu_of_the_operator(dtype):
    for is_transposed in (True, False):
        run_ranks(2, swiglu_of_dtype, dtype, is_transposed, "")


@pytest.mark.parametrize("plan", [*PLANS, "uniform_fused_2d:2"])
def test_swiglu_by_plan(plan):
    run_ranks(3, swiglu_of_dtype, "float32", True, plan)


def ag_gemm_of_shapes(group):
    size, w = group.size(), whole(8, 5, 2)
    for shape, dim in (((4, 2 * size, 8), 1), ((3 * size, 2, 8), 0), ((2, 3, 2 * size, 8), -2)):
        full = whole(4 * size * 6, 8, 3)[: torch.Size(shape[:-1]).numel()].reshape(shape)
        a, y = overlace.ops.ag_gemm(shard(full, group, dim), w, group=group, gather_dim=dim, return_a=True)
        assert_same(a, full)
        assert_same(y, full @ w)
    columns = whole(4 * size, 16, 4)[:, 3:11]  # rows apart
    assert_same(overlace.ops.ag_gemm(shard(columns, group), w, group=group), columns @ w)
    sideways = whole(8, 4 * size, 5).t()  # columns contiguous: copied
    assert_same(overlace.ops.ag_gemm(shard(sideways, group), w[:, ::2], group=group), sideways @ w[:, ::2])
    nothing = overlace.ops.ag_gemm(w.new_empty(0, 8), w, group=group)
    assert nothing.shape == (0, 5)


@pytest.mark.parametrize("size", SIZES)
def test_ag_gemm_of_other_shapes_and_strides(size):
    run_ranks(size, ag_gemm_of_shapes)


def ragged(group):
    offsets = [0, 5, 5, 12]
    mine = slice(offsets[group.rank()], offsets[group.rank() + 1])
    x, w = whole(12, 6, 1), whole(6, 4, 2)
    a, y = overlace.ops.ag_gemm(x[mine], w, group=group, row_offsets=offsets, return_a=True)
    assert_same(a, x)
    assert_same(y, x @ w)
    parts = [whole(12, 6, 10 + r) for r in range(3)]
    z = overlace.ops.gemm_rs(parts[group.rank()], w, group=group, row_offsets=offsets)
    assert_same(z, (sum(parts) @ w)[mine])
    cube = whole(36, 6, 1).reshape(3, 12, 6)
    y = overlace.ops.ag_gemm(cube[:, mine], w, group=group, gather_dim=1, row_offsets=offsets)
    assert_same(y, cube @ w)


def test_rows_split_as_row_offsets_say():
    run_ranks(3, ragged)


def uneven_weights(group):
    x, w = whole(4 * group.size(), 6, 1), whole(6, 3 + group.rank(), 2)
    assert_same(overlace.ops.ag_gemm(shard(x, group), w, group=group, plan="library"), x @ w)
    widths = [4, 7, 5][: group.size()]
    a, b = whole(4 * group.size(), sum(widths), 3), whole(sum(widths), 5, 4)
    mine = slice(sum(widths[: group.rank()]), sum(widths[: group.rank() + 1]))
    assert_same(overlace.ops.gemm_rs(a[:, mine], b[mine], group=group), shard(a @ b, group))
    assert_same(overlace.ops.gemm_ar(a[:, mine], b[mine], group=group), a @ b)


def test_weights_that_are_split_unevenly():
    run_ranks(3, uneven_weights)


def reduced(group, dtype, plan):
    dtype, size, rank = getattr(torch, dtype), group.size(), group.rank()
    a, b, bias = whole(4 * size, 6 * size, 1, dtype), whole(6 * size, 5, 2, dtype), whole(1, 5, 3, dtype)[0]
    mine = slice(6 * rank, 6 * rank + 6)
    want = a.double() @ b.double()
    args = (a[:, mine], b[mine])
    rs = overlace.ops.gemm_rs(*args, group=group, plan=plan)
    assert_same(rs, shard(want, group).to(dtype))
    assert_same(overlace.ops.gemm_rs(*args, group=group, bias=bias, plan=plan), shard(want + bias, group).to(dtype))
    assert_same(overlace.ops.gemm_ar(*args, group=group, plan=plan), want.to(dtype))
    assert_same(overlace.ops.gemm_ar(*args, group=group, bias=bias, plan=plan), (want + bias).to(dtype))
    if dtype != torch.float64:
        wide = overlace.ops.gemm_rs(*args, group=group, out_dtype=torch.float32, plan=plan)
        assert_same(wide, shard(want, group).float())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gemm_rs_and_gemm_ar(size, dtype):
    run_ranks(size, reduced, dtype, "")


@pytest.mark.parametrize("plan", PLANS)
def test_gemm_rs_and_gemm_ar_by_plan(plan):
    run_ranks(3, reduced, "float32", plan)


def averaged(group):
    size, rank = group.size(), group.rank()
    a, b, bias = whole(4 * size, 6 * size, 1), whole(6 * size, 5, 2), whole(1, 5, 3)[0]
    mine = slice(6 * rank, 6 * rank + 6)
    want = a @ b / size + bias
    for got, part in (
        (overlace.ops.gemm_rs(a[:, mine], b[mine], group=group, bias=bias, reduce_op="avg"), shard(want, group)),
        (overlace.ops.gemm_ar(a[:, mine], b[mine], group=group, bias=bias, reduce_op="avg"), want),
    ):
        torch.testing.assert_close(got, part, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("size", SIZES)
def test_average_divides_the_sum_but_not_the_bias(size):
    run_ranks(size, averaged)


def reduced_shapes(group):
    size, w = group.size(), whole(8, 5, 2)
    cube = whole(3 * 4 * size, 8, 3).reshape(3, 4 * size, 8)
    want = size * (cube @ w)
    assert_same(overlace.ops.gemm_rs(cube, w, group=group, scatter_dim=1), shard(want, group, 1))
    assert_same(overlace.ops.gemm_ar(cube, w, group=group), want)
    assert overlace.ops.gemm_rs(w.new_empty(0, 8), w, group=group).shape == (0, 5)


@pytest.mark.parametrize("size", SIZES)
def test_reduced_products_of_other_shapes(size):
    run_ranks(size, reduced_shapes)


def random_bits(group):
    torch.manual_seed(3 + group.rank())
    a, b = torch.randn(32, 24).bfloat16(), torch.randn(24, 40).bfloat16()
    return [overlace.ops.gemm_ar(a, b, group=group, plan=p).view(torch.int16).tolist() for p in PLANS]


def test_gemm_ar_gives_the_same_bits_on_all_ranks():
    first, *others = run_ranks(3, random_bits)
    assert all(other == first for other in others)


GRADIENT_PLANS = ("auto", "library", "serial", "shard_p2p", "hetero_unfused_1d:2")


def gradients_of_weights(group):
    size = group.size()
    x, dys = whole(6 * size, 8, 1), [whole(6 * size, n, n) for n in (3, 5, 1)]
    dys += [whole(9, 6 * size, 4).t(), whole(1, 9, 5).expand(6 * size, 9), whole(6 * size, 0, 6)]
    for plan in (*GRADIENT_PLANS, "uniform_fused_2d:2"):
        for got, dy in zip(overlace.ops.ag_wgrad(shard(x, group), dys, group=group, plan=plan), dys, strict=True):
            assert_same(got, x.t() @ dy)
        for dy in dys:
            assert_same(overlace.ops.ag_wgrad(shard(x, group), dy, group=group, plan=plan), x.t() @ dy)
    cube, dy = whole(6 * size, 8, 2).reshape(3, 2 * size, 8), whole(6 * size, 4, 3).reshape(3, 2 * size, 4)
    want = cube.flatten(0, 1).t() @ dy.flatten(0, 1)
    assert_same(overlace.ops.ag_wgrad(shard(cube, group, 1), dy, group=group, gather_dim=1), want)
    offsets = [0, *(4 * r + 1 for r in range(1, size)), 6 * size]
    mine = x[offsets[group.rank()] : offsets[group.rank() + 1]]
    assert_same(overlace.ops.ag_wgrad(mine, dys[0], group=group, row_offsets=offsets), x.t() @ dys[0])


@pytest.mark.parametrize("size", SIZES)
def test_ag_wgrad(size):
    run_ranks(size, gradients_of_weights)


def inputs_of_collectives(group, dtype):
    """(x, dim): first, middle, last and negative dimensions, one behind ones, strided ones, empty ones; integers that
    differ by rank."""
    size = group.size()
    for shape, dim in (
        ((2 * size, 3), 0),
        ((3, 2 * size), -1),
        ((2, 4 * size, 3, 1), 1),
        ((1, size, 5), -2),
        ((size,), 0),
    ):
        full = whole(24 * size, 1, 3 + group.rank(), dtype)[: torch.Size(shape).numel()]
        yield full.reshape(shape), dim
    yield whole(5, 2 * size, 1 + group.rank(), dtype).t(), 0
    yield whole(6, 4 * size, 2 + group.rank(), dtype)[::2, ::2], 1
    yield whole(6, 2 * size, 2 + group.rank(), dtype)[:0], 1
    yield whole(6, 2 * size, 2 + group.rank(), dtype)[:, :0], 1


def collectives(group, dtype):
    """Against torch's own over gloo, which gather and reduce whole tensors."""
    ops, size, rank = overlace.ops, group.size(), group.rank()
    for x, dim in inputs_of_collectives(group, getattr(torch, dtype)):
        before, parts, total = x.clone(), [torch.empty(x.shape, dtype=x.dtype) for _ in range(size)], x.clone()
        dist.all_gather(parts, x.contiguous(), group=group)
        dist.all_reduce(total, group=group)
        for got, want in (
            (ops.all_gather(x, group=group, dim=dim), torch.cat(parts, dim)),
            (ops.all_to_all(x, group=group, dim=dim), torch.cat([p.chunk(size, dim)[rank] for p in parts], dim)),
            (ops.all_reduce(x, group=group), total),
            (ops.reduce_scatter(x, group=group, dim=dim), total.chunk(size, dim)[rank]),
        ):
            assert got.is_contiguous() and got.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
            assert_same(got, want)
        assert_same(x, before)
        if x.is_floating_point():
            close = {"rtol": 2 * torch.finfo(x.dtype).eps, "atol": 0}
            mean = (total.double() / size).to(x.dtype)
            torch.testing.assert_close(ops.all_reduce(x, group=group, reduce_op="avg"), mean, **close)
            part = ops.reduce_scatter(x, group=group, reduce_op="avg", dim=dim)
            torch.testing.assert_close(part, mean.chunk(size, dim)[rank], **close)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [*DTYPES, "int64", "int32"])
def test_collectives(size, dtype):
    run_ranks(size, collectives, dtype)


def moved(group):
    """What is not added may be of any dtype; a sum needs no dimension."""
    size, rank = group.size(), group.rank()
    for dtype in (torch.bool, torch.uint8, torch.complex64, torch.float8_e4m3fn):
        x = (whole(3, 2 * size, 5) + rank).to(dtype)
        parts = [(whole(3, 2 * size, 5) + r).to(dtype) for r in range(size)]
        same_bits = [(overlace.ops.all_gather(x, group=group, dim=1), torch.cat(parts, 1))]
        theirs = torch.cat([p.chunk(size, 1)[rank] for p in parts], 1)
        same_bits.append((overlace.ops.all_to_all(x, group=group, dim=1), theirs))
        for got, want in same_bits:
            assert got.dtype == dtype
            assert_same(got.view(torch.uint8), want.view(torch.uint8))
    total = overlace.ops.all_reduce(torch.tensor(1.5 + rank), group=group)
    assert_same(total, torch.tensor(1.5 * size + size * (size - 1) / 2))
    turned = torch.empty(2 * size)
    mine = torch.arange(2.0 * size) + 100 * rank
    dist.all_to_all_single(turned, mine, group=group)
    assert_same(overlace.ops.all_to_all(mine, group=group), turned)


@pytest.mark.parametrize("size", SIZES)
def test_collectives_of_other_dtypes(size):
    run_ranks(size, moved)
