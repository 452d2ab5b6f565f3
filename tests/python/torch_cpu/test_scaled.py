"""ag_gemm, gemm_rs and gemm_ar of fp8 with scales, beside fp64 of the quantised operands."""

import overlace
import pytest
from overlace import errors, ops
from ranks import SIZES, run_ranks, torch, whole
from torch._subclasses.fake_tensor import FakeTensorMode

FP8, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
FACTORS = ((FP8, FP8), (E5M2, FP8), (FP8, E5M2))
K, N = 32, 24
# How far results may be: each partial sum and the last one are rounded; sums are float32.
TOLERANCES = {torch.bfloat16: 2**-7, torch.float16: 2**-10, torch.float32: 1e-5}
FAMILIES = ("library", "serial", "shard_p2p", "uniform_fused_1d:2", "hetero_fused_1d:2", "hetero_unfused_1d:2")
SLABS = "uniform_fused_2d:2"


def quantised(rows, columns, seed, dtype=FP8):
    return (whole(rows, columns, seed).float() * 0.37).to(dtype)


def scales_of(kind, rows, columns, seed):
    if kind == "tensor":
        return torch.tensor(0.8), torch.tensor([1.3])
    return whole(rows, 1, seed).abs().float() / 4 + 0.5, whole(1, columns, seed + 1).abs().float() / 8 + 0.25


def wide(t, scale):
    return t.double() * scale.double()


def assert_near(out, want, terms):
    allowed = TOLERANCES[out.dtype] * (terms + want.abs()) + 1e-6
    assert bool(((out.double() - want).abs() <= allowed).all()), (out, want)


def gathered(t, group):
    parts = [torch.empty_like(t) for _ in range(group.size())]
    torch.distributed.all_gather(parts, t.contiguous(), group=group)
    return torch.cat(parts)


def products(group):
    rank, size = group.rank(), group.size()
    for turn, plan in enumerate(("", *FAMILIES, SLABS)):
        for kind in ("tensor", "rows"):
            dtype = list(TOLERANCES)[turn % 3]
            bias = whole(1, N, 9)[0].to(dtype) if turn % 2 else None
            of_a, of_b = FACTORS[(turn + (kind == "rows")) % 3]
            a, b = quantised(6, K, 1 + rank, of_a), quantised(N, K, 20 + rank, of_b).t()
            a_scale, b_scale = scales_of(kind, 6, N, 3 + rank)
            mine, weights = wide(a, a_scale), wide(b, b_scale)
            rows = gathered(mine, group)
            out = ops.ag_gemm_scaled(a, a_scale, b, b_scale, group=group, bias=bias, out_dtype=dtype, plan=plan)
            added = 0 if bias is None else bias.double()
            assert out.dtype == dtype
            assert_near(out, rows @ weights + added, rows.abs() @ weights.abs())

            a = quantised(4 * size, K, 1 + rank, of_a)
            a_scale, b_scale = scales_of(kind, 4 * size, N, 5 + rank)
            total, terms = (wide(a, a_scale) @ wide(b, b_scale)), wide(a, a_scale).abs() @ wide(b, b_scale).abs()
            for t in (total, terms):
                torch.distributed.all_reduce(t, group=group)
            out = ops.gemm_ar_scaled(a, a_scale, b, b_scale, group=group, bias=bias, out_dtype=dtype, plan=plan)
            assert_near(out, total + added, terms)
            part = ops.gemm_rs_scaled(a, a_scale, b, b_scale, group=group, bias=bias, out_dtype=dtype, plan=plan)
            assert_near(part, (total + added).chunk(size)[rank], terms.chunk(size)[rank])


@pytest.mark.parametrize("size", SIZES)
def test_results_of_all_families_are_near_fp64_of_the_quantised_operands(size):
    run_ranks(size, products)


def beside_torch(group):
    """Whole numbers, whose sums are exact."""
    for of_a, of_b in FACTORS:
        a, b = (whole(n, K, n).remainder(9).sub(4).to(dtype) for n, dtype in ((6, of_a), (N, of_b)))
        a_scale, b_scale = torch.tensor([0.5]), torch.tensor([4.0])
        for op in (ops.ag_gemm_scaled, ops.gemm_rs_scaled, ops.gemm_ar_scaled):
            for dtype in (torch.bfloat16, torch.float32):
                out = op(a, a_scale, b.t(), b_scale, group=group, out_dtype=dtype)
                assert torch.equal(out, torch._scaled_mm(a, b.t(), a_scale, b_scale, out_dtype=dtype))


def test_alone_they_are_scaled_mm():
    run_ranks(1, beside_torch)


def shapes(group):
    """More dimensions, other gather and scatter dimensions, row offsets, averages."""
    rank, size = group.rank(), group.size()
    a, b = quantised(2 * 3, K, 1 + rank, E5M2).reshape(2, 3, K), quantised(N, K, 7).t()
    a_scale, b_scale = scales_of("rows", 6, N, 3 + rank)
    a_scale = a_scale.reshape(2, 3, 1)
    full, out = ops.ag_gemm_scaled(a, a_scale, b, b_scale, group=group, gather_dim=1, return_a=True)
    parts = [torch.empty(2, 3, K, dtype=torch.float64) for _ in range(size)]
    torch.distributed.all_gather(parts, wide(a, a_scale), group=group)
    assert out.shape == (2, 3 * size, N) and out.dtype == torch.bfloat16
    assert full.dtype == E5M2 and torch.equal(full[:, 3 * rank : 3 * rank + 3].float(), a.float())
    want = torch.cat(parts, 1) @ wide(b, b_scale)
    assert_near(out, want, torch.cat(parts, 1).abs() @ wide(b, b_scale).abs())

    rows = [0, *range(2, size + 1), 2 * size + 1] if size > 1 else [0, 3]
    a = quantised(rows[-1], K, 1 + rank)
    a_scale, b_scale = scales_of("rows", rows[-1], N, 3 + rank)
    total, terms = wide(a, a_scale) @ wide(b, b_scale), wide(a, a_scale).abs() @ wide(b, b_scale).abs()
    for t in (total, terms):
        torch.distributed.all_reduce(t, group=group)
    part = ops.gemm_rs_scaled(a, a_scale, b, b_scale, group=group, row_offsets=rows, reduce_op="avg")
    mine = slice(rows[rank], rows[rank + 1])
    assert_near(part, total[mine] / size, terms[mine] / size)
    begin, end = rows[rank], rows[rank + 1]
    out = ops.ag_gemm_scaled(a[begin:end], a_scale[begin:end], b, b_scale, group=group, row_offsets=rows)
    assert out.shape == (rows[-1], N)


@pytest.mark.parametrize("size", SIZES)
def test_shapes_and_offsets(size):
    run_ranks(size, shapes)


def exactness(group):
    """NaN stays in its row, zero scales give zeros, large ones infinities."""
    a, b = quantised(4, K, 1), quantised(N, K, 2).t()
    a_scale, b_scale = scales_of("rows", 4, N, 3)
    a.view(torch.uint8)[1, 5] = 0x7F
    a_scale[2] = 0
    a_scale[3] = 3e38
    size, rank = group.size(), group.rank()
    out = ops.ag_gemm_scaled(a, a_scale, b, b_scale, group=group).reshape(size, 4, N)
    for part in out:
        assert part[1].isnan().all() and not part[0].isnan().any()
        assert (part[2] == 0).all()
        big = wide(a, a_scale)[3] @ wide(b, b_scale)
        assert (part[3].isinf() == (big.abs() > torch.finfo(torch.bfloat16).max)).all() and part[3].isinf().any()
    assert torch.equal(out[rank].isnan(), out[0].isnan())


def test_nan_zero_and_large_scales():
    run_ranks(2, exactness)


def on_fakes(op, *tensors, **options):
    with FakeTensorMode() as mode:
        return op(*map(mode.from_tensor, tensors), **options)


def bad_calls(group):
    a, b = quantised(4, K, 1), quantised(N, K, 2).t()
    one, rows, columns = torch.ones(1), torch.ones(4, 1), torch.ones(1, N)
    two = quantised(4, K, 1, E5M2), quantised(N, K, 2, E5M2).t()
    return {
        "both of e5m2": (
            lambda: ops.gemm_ar_scaled(two[0], one, two[1], one, group=group),
            "gemm_ar: b must be e4m3, as a is e5m2, got e5m2",
        ),
        "both of e5m2, without memory": (
            lambda: on_fakes(ops.gemm_ar_scaled, two[0], one, two[1], one, group=group),
            "gemm_ar_scaled: b is torch.float8_e5m2, wanted torch.float8_e4m3fn",
        ),
        "a is not fp8": (
            lambda: ops.ag_gemm_scaled(a.float(), one, b, one, group=group),
            "a is float32, wanted float8_",
        ),
        "b is not fp8": (
            lambda: ops.gemm_rs_scaled(a, one, b.half(), one, group=group),
            "b is float16, wanted float8_",
        ),
        "scale of half": (
            lambda: ops.gemm_ar_scaled(a, one.half(), b, one, group=group),
            "a_scale is float16, wanted float32",
        ),
        "scale of other rows": (
            lambda: ops.ag_gemm_scaled(a, torch.ones(3, 1), b, columns, group=group),
            r"a_scale is \[3, 1\], wanted \[4, 1\]",
        ),
        "mixed scales": (
            lambda: ops.ag_gemm_scaled(a, rows, b, one, group=group),
            r"b_scale must have 2 dimensions, got 1 \(1\)",
        ),
        "columns of others": (
            lambda: ops.gemm_ar_scaled(a, rows, b, torch.ones(1, N + 1), group=group),
            r"b_scale must be \(1, 24\) as b's columns, got \(1, 25\)",
        ),
        "K": (
            lambda: ops.gemm_ar_scaled(a[:, :24].contiguous(), one, b[:24], one, group=group),
            "has K = 24, wanted a multiple of 16",
        ),
        "rows of b": (
            lambda: ops.gemm_ar_scaled(a, one, b.contiguous(), one, group=group),
            r"must be contiguous in K \(strides 1, >= 32\)",
        ),
        "one kernel": (
            lambda: ops.ag_gemm_scaled(a, one, b, one, group=group, plan="k_slab:4"),
            "family k_slab is one kernel, which multiplies no e4m3; wanted a family of library GEMMs",
        ),
        "wide result": (
            lambda: ops.gemm_ar_scaled(a, one, b, one, group=group, out_dtype=torch.float64),
            "out must be bf16, fp16 or fp32, as a is e4m3, got fp64",
        ),
    }


def refusals(group):
    for name, (call, text) in bad_calls(group).items():
        with pytest.raises((errors.InvalidArgument, errors.Unsupported), match=text):
            call()
        assert name
    a = quantised(4, K, 1)
    ops.gemm_ar_scaled(a, torch.ones(1), quantised(N, K, 2).t(), torch.ones(1), group=group)  # the next call is right


@pytest.mark.parametrize("size", [1, 2])
def test_refusals_name_both_values(size):
    run_ranks(size, refusals)


def unlike(group):
    """Ranks whose operands have other types."""
    is_first, one = group.rank() == 0, torch.ones(1)
    for of_a, of_b in (((FP8, E5M2)[is_first], FP8), (FP8, (FP8, E5M2)[is_first])):
        a, b = quantised(4, K, 1, of_a), quantised(N, K, 2, of_b).t()
        with pytest.raises(errors.PlanMismatch, match=r"G 2 e5m2 x e4m3|G 2 e4m3 x e5m2"):
            ops.ag_gemm_scaled(a, one, b, one, group=group)
    ops.ag_gemm_scaled(quantised(4, K, 1), one, quantised(N, K, 2).t(), one, group=group)


def test_ranks_agree_on_types():
    run_ranks(2, unlike)


def compiled(group):
    a, b = quantised(4, K, 1 + group.rank()), quantised(N, K, 2).t()
    name = overlace.context_of(group).name
    for a_scale, b_scale in ((torch.ones(1), torch.ones(1)), (torch.rand(4, 1) + 0.5, torch.rand(1, N) + 0.5)):
        cases = [
            (torch.ops.overlace.ag_gemm_scaled.default, (a, a_scale, b, b_scale, None, 0, name)),
            (torch.ops.overlace.gemm_ar_scaled.default, (a, a_scale, b, b_scale, None, "sum", name)),
            (torch.ops.overlace.gemm_rs_scaled.default, (a, a_scale, b, b_scale, None, "sum", 0, name)),
        ]
        for op, arguments in cases:
            before = [x.view(torch.uint8).clone() for x in arguments[:4]]
            options = {"out_dtype": torch.float32}
            # "test_schema" compares operands by allclose, which fp8 has not.
            torch.library.opcheck(op, arguments, options, test_utils=("test_autograd_registration", "test_faketensor"))
            assert all(torch.equal(x.view(torch.uint8), y) for x, y in zip(arguments[:4], before, strict=True))
    step = torch.compile(
        lambda x, y: ops.gemm_ar_scaled(x, torch.ones(1), y, torch.ones(1), group=group),
        backend="aot_eager",
        fullgraph=True,
    )
    assert torch.equal(step(a, b), ops.gemm_ar_scaled(a, torch.ones(1), b, torch.ones(1), group=group))


def test_opcheck_and_compile():
    run_ranks(2, compiled)


def backwards(group):
    a, b = quantised(4, K, 1), quantised(N, K, 2).t()
    bias = torch.zeros(N, dtype=torch.bfloat16, requires_grad=True)
    out = ops.gemm_ar_scaled(a, torch.ones(1), b, torch.ones(1), group=group, bias=bias)
    with pytest.raises(errors.Unsupported, match="gemm_ar_scaled: its gradient is wanted, and it has none"):
        out.float().sum().backward()
    with torch.no_grad():
        ops.gemm_ar_scaled(a, torch.ones(1), b, torch.ones(1), group=group, bias=bias)


def test_backward_says_that_there_is_none():
    run_ranks(1, backwards)


def planned(group):
    plan = overlace.plan("ag_gemm", 4096, 4096, 4096, dtype=FP8, scales="rows", group=group)
    assert "e4m3" in plan.schedule and '"scales":"rows"' in plan.schedule
    mixed = overlace.plan("ag_gemm", 4096, 4096, 4096, dtype=E5M2, b_dtype=FP8, scales="tensor", group=group)
    assert '"dtype":"e5m2"' in mixed.schedule and '"b_dtype":"e4m3"' in mixed.schedule
    with pytest.raises(errors.InvalidArgument, match="operands are e5m2 x e5m2, wanted e4m3 x e4m3, e4m3 x e5m2 or"):
        overlace.plan("ag_gemm", 64, 64, 64, dtype=E5M2, scales="tensor", group=group)
    with pytest.raises(errors.InvalidArgument, match="scales are none, wanted tensor or rows with operands of e4m3"):
        overlace.plan("ag_gemm", 64, 64, 64, dtype=FP8, group=group)


def test_plans():
    run_ranks(2, planned)
