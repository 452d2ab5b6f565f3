"""overlace.ops.gemm_ar_norm: values beside its parts, gradients, opcheck, torch.compile, what is refused."""

import pytest
import ranks
from ranks import SIZES, overlace, run_ranks, torch
from test_autograd import Split, check_twice, random

errors = overlace.errors
N = 5
EPS = 1e-5


def draw(seed, *sizes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*sizes, generator=generator, dtype=torch.float64).to(dtype)


def operands(rank, rows=6, dtype=torch.float32, columns=N):
    """a and b of a rank, whose K is its own; residual, weight and bias of all."""
    k = 4 + rank
    own = draw(10 + rank, rows, k, dtype=dtype), draw(20 + rank, k, columns, dtype=dtype)
    return *own, draw(1, rows, columns, dtype=dtype), draw(2, columns, dtype=dtype), draw(3, columns, dtype=dtype)


def norm(x, weight, eps=EPS):
    return torch.nn.functional.rms_norm(x.double(), x.shape[-1:], weight.double(), eps)


PLANS = ("", "library", "serial", "hetero_unfused_1d:2", "grouped_unfused_1d:2", "one_shot")


def check_values(group, dtype):
    """The bits of gemm_ar, then of a sum; the norm of those within half a place of the type."""
    a, b, residual, weight, bias = operands(group.rank(), dtype=dtype)
    bits = []
    for plan in PLANS:
        for given in (None, bias):
            for factor in (b, b.t().contiguous().t()):
                options = {"group": group, "bias": given, "plan": plan}
                out, normed = overlace.ops.gemm_ar_norm(a, factor, residual, weight, eps=EPS, **options)
                wide = torch.promote_types(dtype, torch.float32)
                total = overlace.ops.gemm_ar(a, factor, **options)
                torch.testing.assert_close(out, (total.to(wide) + residual).to(dtype), rtol=0, atol=0)
                eps = torch.finfo(dtype).eps * (0.51 if dtype.itemsize == 2 else 8)
                torch.testing.assert_close(normed.double(), norm(out, weight), rtol=eps, atol=0)
                bits.append((out.double().tolist(), normed.double().tolist()))
    return bits


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_values(size, dtype):
    first, *others = run_ranks(size, check_values, dtype)
    assert all(other == first for other in others)


def check_shapes(group):
    size = group.size()
    a, b, residual, weight, _ = operands(group.rank(), rows=12)
    flat = overlace.ops.gemm_ar_norm(a, b, residual, weight, group=group)
    cube = overlace.ops.gemm_ar_norm(a.view(3, 4, -1), b, residual.view(3, 4, N), weight, group=group)
    for one, other in zip(flat, cube, strict=True):
        assert other.shape == (3, 4, N) and torch.equal(other.view(12, N), one)
    apart = residual.t().contiguous().t()  # its rows are not contiguous
    assert torch.equal(overlace.ops.gemm_ar_norm(a, b, apart, weight, group=group)[1], flat[1])
    for rows, columns in ((0, N), (6, 0)):
        a, b, residual, weight, _ = operands(0, rows=rows, columns=columns)
        results = overlace.ops.gemm_ar_norm(a, b, residual, weight, group=group)
        assert [tuple(t.shape) for t in results] == [(rows, columns)] * 2
    tensors = dict(zip(("a", "b", "residual", "norm_weight"), operands(group.rank(), rows=size)[:4], strict=True))
    tensors |= {"out": torch.empty(size, N), "normed": torch.empty(size, N)}
    overlace.call("gemm_ar_norm", tensors, group=group, eps=EPS)
    want = overlace.ops.gemm_ar_norm(*list(tensors.values())[:4], group=group, eps=EPS)
    assert torch.equal(tensors["out"], want[0]) and torch.equal(tensors["normed"], want[1])


@pytest.mark.parametrize("size", [1, 3])
def test_shapes_and_call_by_name(size):
    run_ranks(size, check_shapes)


def check_gradients(group):
    """All ranks hold everything and perturb the same element, so the function that is checked is the global one."""
    torch.manual_seed(4)
    size = group.size()

    def layer(a, b, residual, weight, bias):
        return overlace.ops.gemm_ar_norm(
            Split.apply(a, group, 1), Split.apply(b, group, 0), residual, weight, bias=bias, eps=0.1, group=group
        )

    check_twice(layer, (random(3, 2 * size), random(2 * size, 4), random(3, 4), random(4), random(4)))


@pytest.mark.parametrize("size", SIZES)
def test_gradcheck(size):
    run_ranks(size, check_gradients)


def check_gradients_of_one_result(group):
    """What is not used has no gradient; those of 16-bit types are near those of fp64."""
    a, b, residual, weight, bias = (t.requires_grad_() for t in operands(group.rank(), dtype=torch.bfloat16))
    given = [a, b, residual, weight, bias]
    wide = [t.detach().double().requires_grad_() for t in given]
    for pick in (0, 1):
        got = overlace.ops.gemm_ar_norm(*given[:4], bias=bias, eps=EPS, group=group)[pick]
        upstream = draw(5, *got.shape)
        grads = torch.autograd.grad(got, given, upstream.to(got.dtype), allow_unused=True)
        want = overlace.ops.gemm_ar_norm(*wide[:4], bias=wide[4], eps=EPS, group=group)[pick]
        wants = torch.autograd.grad(want, wide, upstream.to(torch.bfloat16).double(), allow_unused=True)
        for grad, wanted in zip(grads, wants, strict=True):
            torch.testing.assert_close(grad.double(), wanted, rtol=0.05, atol=0.05)


def test_gradients_of_one_result():
    run_ranks(2, check_gradients_of_one_result)


def opcheck(group):
    def t(*sizes):
        return torch.randn(*sizes, dtype=torch.float64, requires_grad=True)

    torch.manual_seed(6)
    op, name = torch.ops.overlace.gemm_ar_norm.default, group.group_name
    for bias, options in ((None, {}), (t(3), {"plan": "library"})):
        torch.library.opcheck(op, (t(4, 2), t(2, 3), t(4, 3), t(3), bias, EPS, name), options)


@pytest.mark.parametrize("size", [1, 2])
def test_opcheck(size):
    run_ranks(size, opcheck)


def compiled(group):
    a, b, residual, weight, _ = operands(group.rank())

    def layer(x):
        out, normed = overlace.ops.gemm_ar_norm(x, b, residual, weight, group=group.group_name)
        return out + 1, normed * 2

    for got, want in zip(torch.compile(layer, fullgraph=True)(a), layer(a), strict=True):
        torch.testing.assert_close(got, want)


def test_compile():
    run_ranks(2, compiled)


def said(body):
    try:
        body()
    except errors.InvalidArgument as error:
        return str(error)
    return "ok"


def refusals(group):
    a, b, residual, weight, bias = operands(0)
    ops = overlace.ops

    def call(residual=residual, weight=weight, **options):
        return said(lambda: ops.gemm_ar_norm(a, b, residual, weight, group=group, **options))

    def fake(residual=residual, weight=weight, eps=EPS):
        meta = [t.to("meta") for t in (a, b, residual, weight)]
        return said(lambda: torch.ops.overlace.gemm_ar_norm(*meta, None, eps, group.group_name))

    return {
        "rows": call(residual[:5]),
        "columns": call(residual[:, :4]),
        "vector": call(residual[0]),
        "dtype": call(residual.double()),
        "weight": call(weight=weight[:4]),
        "weight of two": call(weight=weight[None]),
        "weight's dtype": call(weight=weight.half()),
        "eps": call(eps=0.0),
        "eps below": call(eps=-1e-6),
        "eps of nan": call(eps=float("nan")),
        "bias": call(bias=bias[:3]),
        "a": said(lambda: ops.gemm_ar_norm(a[0], b, residual, weight, group=group)),
        "cube": said(lambda: ops.gemm_ar_norm(a.view(2, 3, 4), b, residual, weight, group=group)),
        "fake rows": fake(residual[:5]),
        "fake weight": fake(weight=weight.half()),
        "fake eps": fake(eps=0.0),
        "good": call(),
    }


def test_refusals():
    for rank, got in enumerate(run_ranks(2, refusals)):
        wanted = {
            "rows": f"residual is [5, 5] on rank {rank}, wanted [6, 5] as the sum",
            "columns": f"residual is [6, 4] on rank {rank}, wanted [6, 5] as the sum",
            "vector": f"residual is [5] on rank {rank}, wanted [6, 5] as the sum",
            "dtype": f"a is [6, 4] on rank {rank}, residual is [6, 5]: dtypes float32 and float64, wanted one",
            "weight": "norm_weight is [4], wanted [5]",
            "weight of two": "norm_weight is [1, 5], wanted [5]",
            "weight's dtype": f"a is [6, 4] on rank {rank}, norm_weight is [5]: dtypes float32 and float16, wanted one",
            "eps": "eps is 0, wanted a finite number above 0",
            "eps below": "eps is -1e-06, wanted a finite number above 0",
            "eps of nan": "eps is nan, wanted a finite number above 0",
            "bias": "bias is [3], wanted [5]",
            "a": "a is [4], wanted two dimensions or more",
            "cube": "residual is [6, 5], wanted [2, 3, 5] as the sum",
            "fake rows": f"residual is [5, 5] on rank {rank}, wanted [6, 5]",
            "fake weight": f"norm_weight is torch.float16 on rank {rank}, wanted torch.float32 as a",
            "fake eps": "eps is 0.0, wanted a finite number above 0",
        }
        for name, text in wanted.items():
            assert text in got[name], (name, got[name])
            assert got[name].startswith("gemm_ar_norm: "), got[name]
        assert got["good"] == "ok"


def differ(group):
    rank, call = group.rank(), overlace.ops.gemm_ar_norm
    a, b, residual, weight, _ = operands(rank)
    empty = (a, b[:, :0], residual[:, :0], weight[:0])
    for arguments, options in (
        ((a, b, residual, weight), {"eps": 1e-5 * (rank + 1)}),
        ((a, b, residual, weight) if rank else empty, {}),
    ):
        with overlace.init(ranks.spare), pytest.raises(overlace.PlanMismatch):  # their first call
            call(*arguments, group=ranks.spare, **options)
    for arguments, eps in ((empty, 0.0), ((a, b, residual, weight), 1e-60)):
        with pytest.raises(overlace.InvalidArgument, match=f"eps is {eps:g}, wanted a finite number above 0"):
            call(*arguments, group=group, eps=eps)
    out, normed = call(*empty, group=group)
    assert out.shape == normed.shape == (6, 0)


def test_calls_that_differ_are_told_on_both_ranks():
    run_ranks(2, differ)
