"""The pass of overlace.compile over products of fp8: torch._scaled_mm beside collectives."""

import itertools
import math

import pytest
from ranks import SIZES, run_ranks, torch, whole
from test_compile_pass import gathered as gathered_in_graph
from test_compile_pass import passed, scattered, skeleton, summed
from torch._subclasses.fake_tensor import FakeTensor

FP8, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
K, N = 32, 24
mm = torch._scaled_mm


def fp8(rows, columns, seed, most=4, dtype=FP8):
    """Whole numbers from -most to most: products with scales of powers of two and their sums are exact."""
    return whole(rows, columns, seed).remainder(2 * most + 1).sub(most).to(dtype)


def gathered(x, dim, group):
    """Gloo gathers no fp8: outside of graphs its bytes."""
    is_bytes = x.dtype in (FP8, E5M2) and not isinstance(x, FakeTensor)
    return (
        gathered_in_graph(x.view(torch.uint8), dim, group).view(x.dtype)
        if is_bytes
        else gathered_in_graph(x, dim, group)
    )


def of_tensors(group, of_a, of_b):
    """name: function, operands, how many operators of the graph are products. CPUs have these scales alone."""
    size, rank = group.size(), group.rank()
    x, w, v = fp8(4, K, 1 + rank, dtype=of_a), fp8(N, K, 20, dtype=of_b).t(), fp8(48, K, 21).t()
    cube, rows = fp8(3 * 4, K, 5 + rank, dtype=of_a).reshape(3, 4, K), fp8(3 * 4 * size, K, 7 + rank, dtype=of_a)
    s, t, bias = torch.tensor(0.5), torch.tensor([4.0]), whole(1, N, 9)[0].float()
    a, small = fp8(4 * size, K, 30 + rank, dtype=of_a), fp8(4 * size, K, 40 + rank, most=1, dtype=of_a)

    def gather(x, w, s, t, dtype=torch.float32, dim=0, bias=None):
        return mm(gathered(x, dim, group).flatten(0, -2), w, s, t, bias=bias, out_dtype=dtype)

    def product(a, w, s, t, dtype=torch.float32, bias=None):
        return mm(a, w, s, t, bias=bias, out_dtype=dtype, use_fast_accum=True)

    def two(x, w, v, s, t):
        full = gathered(x, 0, group)
        return mm(full, w, s, t, out_dtype=torch.float32), mm(full, v, t, s, out_dtype=torch.float32)

    def cube_of(matrix):
        return matrix.reshape(3, 4 * size, N)

    return {
        "gathered": (lambda *given: gather(*given), (x, w, s, t), 1),
        "gathered, bf16": (lambda *given: gather(*given, torch.bfloat16), (x, w, s, t), 1),
        "gathered, a bias": (lambda x, w, s, t, b: gather(x, w, s, t, bias=b), (x, w, s, t, bias), 1),
        "gathered cube": (lambda *given: gather(*given), (cube, w, s, t), 1),
        "gathered cube along 1": (lambda *given: gather(*given, dim=1), (cube, w, t, s), 1),
        "two products": (two, (x, w, v, s, t), 2),
        "scattered": (lambda *given: scattered(product(*given), 0, group), (a, w, s, t), 1),
        "scattered along 1": (lambda *given: scattered(cube_of(product(*given)), 1, group), (rows, w, s, t), 1),
        "average": (lambda *given: scattered(product(*given), 0, group, "avg") * size, (a, w, s, t), 1),
        "summed": (lambda *given: summed(product(*given, torch.bfloat16), group), (small, w, s, t), 1),
        "summed cube, a bias": (
            lambda a, w, s, t, b: summed(cube_of(product(a, w, s, t, bias=b / size)), group),
            (rows, w, s, t, bias * size),
            1,
        ),
    }


def rewritten(group, of_a, of_b):
    for name, (function, operands, wanted) in of_tensors(group, of_a, of_b).items():
        module, candidates = passed(function, operands)
        assert candidates and all(c.became.endswith("_scaled") for c in candidates), (name, candidates)
        lines = skeleton(module.graph, {"_scaled_mm"})
        assert len(lines) == wanted and sum("_scaled(" in line for line in lines) == 1, (name, lines)
        got, want = (torch.utils._pytree.tree_leaves(f(*operands)) for f in (module, function))
        for mine, its in zip(got, want, strict=True):
            assert mine.dtype == its.dtype and mine.stride() == its.stride(), name
            torch.testing.assert_close(mine, its, rtol=1e-6 if name == "average" else 0, atol=0)


@pytest.mark.parametrize(("size", "of_a", "of_b"), [*((n, FP8, FP8) for n in SIZES), (2, E5M2, FP8), (2, FP8, E5M2)])
def test_products_with_scales_of_tensors_compute_the_same(size, of_a, of_b):
    run_ranks(size, rewritten, of_a, of_b)


def gather_of(group, dim, scales_first):
    def gather(x, sx, w, sw):
        order = -1 if scales_first else 1
        x, sx = [gathered(t, dim, group).flatten(0, -2) for t in (x, sx)[::order]][::order]
        return mm(x, w, sx, sw, out_dtype=torch.float32)

    return gather


def scatter_of(group, shape, dim):
    return lambda a, sa, w, sw: scattered(mm(a, w, sa, sw, out_dtype=torch.float32).reshape(shape), dim, group)


def of_rows(group):
    """Scales of rows are gathered beside them, and go with them; torch multiplies such on GPUs alone."""
    size, rank = group.size(), group.rank()
    w, sw = fp8(N, K, 20).t(), 2.0 ** torch.arange(N).remainder(4).reshape(1, N)
    for shape, dim, scales_first in itertools.product(((4, K), (3, 4, K)), (0, 1), (False, True)):
        if dim == len(shape) - 1:
            continue
        x = fp8(math.prod(shape[:-1]), K, 1 + rank)
        sx = 2.0 ** whole(len(x), 1, 3 + rank).remainder(3).float()
        x, sx = x.reshape(shape), sx.reshape(*shape[:-1], 1)
        module, candidates = passed(gather_of(group, dim, scales_first), (x, sx, w, sw))
        assert [c.became for c in candidates] == ["ag_gemm_scaled"] * 2, candidates
        assert candidates[not scales_first].reason == "these scales travel with their rows"
        assert len(skeleton(module.graph, {"_scaled_mm"})) == 1
        parts = [torch.empty(shape, dtype=torch.float64) for _ in range(size)]
        torch.distributed.all_gather(parts, x.double() * sx.double(), group=group)
        want = torch.cat(parts, dim).flatten(0, -2) @ (w.double() * sw.double())
        assert torch.equal(module(x, sx, w, sw).double(), want)

    a, sa = fp8(3 * 4 * size, K, 7 + rank), 2.0 ** whole(3 * 4 * size, 1, 3 + rank).remainder(3).float()
    total = (a.double() * sa.double()) @ (w.double() * sw.double())
    torch.distributed.all_reduce(total, group=group)
    for shape, dim in (((12 * size, N), 0), ((3, 4 * size, N), 1)):
        module, (candidate,) = passed(scatter_of(group, shape, dim), (a, sa, w, sw))
        assert candidate.became == "gemm_rs_scaled"
        assert torch.equal(module(a, sa, w, sw).double(), total.reshape(shape).chunk(size, dim)[rank])


@pytest.mark.parametrize("size", [1, 2])
def test_scales_of_rows_travel_with_them(size):
    run_ranks(size, of_rows)


def left_alone(group):
    size = group.size()
    x, w = fp8(4, K, 1), fp8(N, K, 2).t()
    one, of_x, of_w = torch.ones(1), torch.ones(4, 1), torch.ones(1, N)
    wide = torch.bfloat16

    def product(a, w, s):
        return mm(a, w, s, s, out_dtype=wide)

    def sum_of_two(a, w, s):
        return summed(product(a, w, s) + product(a, w, s), group)

    def mixed(a, w, s):
        return summed(product(a, w, s) + a.to(wide) @ w.to(wide), group)

    cases = {
        "added before the sum": (sum_of_two, (x, w, one), "are added up before the sum over ranks"),
        "added to a product without": (mixed, (x, w, one), "are added up before the sum over ranks"),
        "scales that are not gathered": (
            lambda x, w, s, t: mm(gathered(x, 0, group), w, s, t, out_dtype=wide),
            (x, w, torch.ones(4 * size, 1), of_w),
            "the scales of its rows are not gathered beside them",
        ),
        "K": (
            lambda *given: summed(product(*given), group),
            (x[:, :24].contiguous(), w[:24], one),
            "K is 24, and operators of fp8 want a multiple of 16",
        ),
        "rows of the weight": (
            lambda *given: summed(product(*given), group),
            (x, w.contiguous(), one),
            "the columns of its weight are not contiguous",
        ),
        "result": (
            lambda x, w, s: mm(gathered(x, 0, group), w, s, s),
            (x, w, one),
            "its result is torch.float8_e4m3fn",
        ),
        "two of e5m2": (
            lambda *given: summed(product(*given), group),
            (x.to(wide).to(E5M2), w.t().to(wide).to(E5M2).t(), one),
            "both its operands are torch.float8_e5m2",
        ),
        "no product": (lambda x: gathered(x, 0, group), (x,), "it gathers torch.float8_e4m3fn"),
    }
    for name, (function, operands, words) in cases.items():
        module, candidates = passed(function, operands)
        assert any(not c.became and words in c.reason for c in candidates), (name, candidates)
        assert not any("_scaled(" in line for line in skeleton(module.graph)), name
    # The planner decides as for other products.
    _, (candidate,) = passed(lambda *given: summed(product(*given), group), (x, w, one), when="gain")
    assert not candidate.became and "nothing to gain" in candidate.reason
    _, (candidate,) = passed(
        lambda x, w, s, t: summed(mm(x, w, s, t, out_dtype=wide), group), (x, w, of_x, of_w), plan="family=library"
    )
    assert candidate.became == "gemm_ar_scaled" and candidate.reason == "as asked for"


def test_what_is_left_says_why():
    run_ranks(2, left_alone)
