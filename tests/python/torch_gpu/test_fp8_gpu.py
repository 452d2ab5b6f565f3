"""ag_gemm, gemm_rs and gemm_ar of fp8 with scales on GPUs, beside torch._scaled_mm and fp64: eager, captured,
compiled. Errors are at most twice those of torch's products. Skipped without GPUs.

By hand: `PYTHONPATH=build/cuda/python python3 -m pytest tests/python/torch_gpu/test_fp8_gpu.py`.
"""

import pytest
from gpu_ranks import FEW, SIZES, dist, overlace, run_ranks, torch

FP8, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
KINDS = ("tensor", "rows")
PLANS = (
    "",
    "library",
    "serial",
    "uniform_fused_1d:2",
    "hetero_fused_1d:2",
    "hetero_unfused_1d:2",
    "uniform_fused_2d:4",
)
if torch.cuda.get_device_capability() < (8, 9):
    pytest.skip("fp8 wants compute capability 8.9", allow_module_level=True)


def quantised(t, kind, dim, dtype):
    """fp8 and its scales: of the whole, or of each slice along `dim`, as torch._scaled_mm wants them."""
    largest = t.abs().amax() if kind == "tensor" else t.abs().amax(1 - dim, keepdim=True)
    scale = (largest / torch.finfo(dtype).max).float()
    scale = scale.reshape(1) if kind == "tensor" else scale
    return (t / scale).to(dtype), scale


def drawn(rows, columns, seed):
    return torch.randn(
        rows, columns, generator=torch.Generator(f"cuda:{torch.cuda.current_device()}").manual_seed(seed)
    )


def operands(m, n, k, kind, rank, of_a=FP8, of_b=FP8):
    a, a_scale = quantised(drawn(m, k, 1 + rank), kind, 0, of_a)
    b, b_scale = quantised(drawn(n, k, 50 + rank), kind, 0, of_b)
    return a, a_scale, b.t(), b_scale if kind == "tensor" else b_scale.t()


def exact(a, a_scale, b, b_scale):
    return (a.double() * a_scale.double()) @ (b.double() * b_scale.double())


def error(got, want):
    return ((got.double() - want).square().mean().sqrt() / want.square().mean().sqrt()).item()


def theirs(a, a_scale, b, b_scale):
    return torch._scaled_mm(a, b, scale_a=a_scale, scale_b=b_scale, out_dtype=torch.bfloat16)


def gathered(t, group):
    parts = [torch.empty_like(t) for _ in range(group.size())]
    dist.all_gather([p.view(torch.uint8) for p in parts], t.contiguous().view(torch.uint8))
    return torch.cat(parts)


def results(group, m, n, k, kind, plan, *dtypes):
    size, rank = group.size(), group.rank()
    a, a_scale, b, b_scale = operands(m // size, n, k, kind, rank, *dtypes)
    if kind == "tensor":
        dist.all_reduce(a_scale, op=dist.ReduceOp.MAX)  # the same on all ranks
    rows, scales = gathered(a, group), a_scale if kind == "tensor" else gathered(a_scale, group)
    full, out = overlace.ops.ag_gemm_scaled(a, a_scale, b, b_scale, group=group, return_a=True, plan=plan)
    assert torch.equal(full.view(torch.uint8), rows.view(torch.uint8))
    want, other = exact(rows, scales, b, b_scale), theirs(rows, scales, b, b_scale)
    assert error(out, want) <= 2 * error(other, want)
    assert (out.float() - other.float()).abs().max() <= 2**-6 * want.abs().max()

    a, a_scale, b, b_scale = operands(m, n, k, kind, rank, *dtypes)
    want, other = exact(a, a_scale, b, b_scale), theirs(a, a_scale, b, b_scale)
    dist.all_reduce(want)
    dist.all_reduce(other)
    total = overlace.ops.gemm_ar_scaled(a, a_scale, b, b_scale, group=group, plan=plan)
    part = overlace.ops.gemm_rs_scaled(a, a_scale, b, b_scale, group=group, plan=plan)
    assert error(total, want) <= 2 * error(other, want)
    assert error(part, want.chunk(size)[rank]) <= 2 * error(other, want)
    wide = overlace.ops.gemm_rs_scaled(a, a_scale, b, b_scale, group=group, plan=plan, out_dtype=torch.float32)
    assert error(wide, want.chunk(size)[rank]) <= 2 * error(other, want)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("plan", PLANS)
def test_results_are_as_near_as_those_of_torch(size, kind, plan):
    run_ranks(size, results, 1024, 512, 2048, kind, plan)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(4096, 14336, 8192), (2048, 8192, 7168), (64, 1024, 1024)])
def test_layers_as_the_planner_decides(size, kind, shape):
    run_ranks(size, results, *shape, kind, "")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("of_a", "of_b"), [(E5M2, FP8), (FP8, E5M2)])
def test_e5m2_beside_e4m3(size, of_a, of_b):
    run_ranks(size, results, 1024, 512, 2048, "tensor", "", of_a, of_b)


def same_bits(group, kind):
    """One rank, one product: the bits of torch's where both take cuBLASLt's first algorithm."""
    a, a_scale, b, b_scale = operands(512, 1024, 2048, kind, 0)
    out = overlace.ops.gemm_ar_scaled(a, a_scale, b, b_scale, group=group, plan="library")
    again = overlace.ops.gemm_ar_scaled(a, a_scale, b, b_scale, group=group, plan="library")
    assert torch.equal(out, again)
    other = theirs(a, a_scale, b, b_scale)
    assert (out.float() - other.float()).abs().max() <= 2**-7 * other.float().abs().max()


@pytest.mark.parametrize("kind", KINDS)
def test_one_rank_is_torch(kind):
    run_ranks(1, same_bits, kind)


def ragged(group, kind):
    """Chunks of odd lengths, whose scales lie at any multiple of 4 bytes."""
    size, rank = group.size(), group.rank()
    offsets = [0, *(97 * r + 3 for r in range(1, size)), 97 * size + 10]
    mine = slice(offsets[rank], offsets[rank + 1])
    a, a_scale, b, b_scale = operands(offsets[-1], 256, 512, kind, 0)
    for plan in ("serial", "hetero_unfused_1d:3", "uniform_fused_2d:2"):
        scale = a_scale if kind == "tensor" else a_scale[mine].contiguous()
        out = overlace.ops.ag_gemm_scaled(a[mine], scale, b, b_scale, group=group, row_offsets=offsets, plan=plan)
        want = exact(a, a_scale, b, b_scale)
        assert error(out, want) <= 2 * error(theirs(a, a_scale, b, b_scale), want)


@pytest.mark.parametrize("kind", KINDS)
def test_ragged_rows(kind):
    run_ranks(FEW, ragged, kind)


def captured(group, kind, plan):
    a, a_scale, b, b_scale = operands(512, 512, 1024, kind, group.rank())
    if kind == "tensor":
        dist.all_reduce(a_scale, op=dist.ReduceOp.MAX)
    calls = (
        lambda: overlace.ops.ag_gemm_scaled(a, a_scale, b, b_scale, group=group, plan=plan),
        lambda: overlace.ops.gemm_rs_scaled(a, a_scale, b, b_scale, group=group, plan=plan),
        lambda: overlace.ops.gemm_ar_scaled(a, a_scale, b, b_scale, group=group, plan=plan),
    )
    eager = [call() for call in calls]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = [call() for call in calls]
    for turn in range(10):
        if turn == 5:  # other operands in the same memory
            a.copy_((drawn(512, 1024, 99) / 100).to(FP8))
        for out in outs:
            out.zero_()
        graph.replay()
        torch.cuda.synchronize()
        if turn == 5:
            eager = [call() for call in calls]
        for out, want in zip(outs, eager, strict=True):
            assert torch.equal(out, want), turn


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("plan", ["serial", "hetero_unfused_1d:2", "uniform_fused_2d:2"])
def test_captured_calls_have_the_bits_of_eager_ones(kind, plan):
    run_ranks(FEW, captured, kind, plan)


def refused(group):
    a, a_scale, b, b_scale = operands(64, 72, 512, "tensor", 0)
    with pytest.raises(
        overlace.errors.Unsupported, match="N is 72 with operands of e4m3, wanted a multiple of 16 on GPUs"
    ):
        overlace.ops.gemm_ar_scaled(a, a_scale, b, b_scale, group=group)
    with pytest.raises(overlace.errors.Unsupported, match="family k_slab is one kernel, which multiplies no e4m3"):
        overlace.ops.ag_gemm_scaled(a, a_scale, b[:, :64], b_scale, group=group, plan="k_slab:4")


def test_refusals():
    run_ranks(1, refused)
