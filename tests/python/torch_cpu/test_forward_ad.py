"""Forward-mode AD: operators have none and say so, where torch by itself would give tangents of 0."""

import pytest
from ranks import overlace, run_ranks, torch

ops = overlace.ops
FP8 = torch.float8_e4m3fn
NOT_OPERATORS = {"activation_of", "replicated"}


def calls_of(group):
    """For each operator of overlace.ops a function of one tensor that has a gradient, and that tensor."""
    size = group.size()
    a, b, x = torch.randn(2 * size, 2 * size), torch.randn(2 * size, 2 * size), torch.randn(2 * size, 3)
    table = {"tables": [{"rows": 4, "dim": 2}], "features": [{"table": 0, "rank": 0, "column": 0}]}
    bags = torch.arange(2 * size) % 4 if group.rank() == 0 else torch.zeros(0, dtype=torch.int64)
    starts = torch.arange(len(bags) + 1)
    tables = torch.randn(4, 2) if group.rank() == 0 else torch.randn(0)
    experts = [torch.randn(2, 16, 8), torch.randn(2, 8, 8)]
    tokens, gate = torch.randn(3, 8), torch.randn(2 * size, 8)
    idx, weights = torch.zeros(3, 1, dtype=torch.int32), torch.ones(3, 1)
    a8, b8, scale = torch.ones(2 * size, 16).to(FP8), torch.ones(16, 16).to(FP8).t(), torch.ones(1)
    of_all = {"batch": 2 * size, "placement": table, "group": group}
    return {
        "a2a_gemm": (lambda t: ops.a2a_gemm(a, t, group=group), b),
        "ag_gemm": (lambda t: ops.ag_gemm(t, b, group=group), a),
        "ag_gemm_scaled": (lambda t: ops.ag_gemm_scaled(a8, t, b8, scale, group=group), scale),
        "ag_wgrad": (lambda t: ops.ag_wgrad(t, torch.ones(4 * size * size // 2, 3)[: 2 * size], group=group), x[:2]),
        "all_gather": (lambda t: ops.all_gather(t, group=group), x),
        "all_reduce": (lambda t: ops.all_reduce(t, group=group), x),
        "all_to_all": (lambda t: ops.all_to_all(t, group=group), x),
        "embedding_a2a": (lambda t: ops.embedding_a2a([t], bags, starts, **of_all), tables),
        "gemm_a2a": (lambda t: ops.gemm_a2a(t, b, group=group), a),
        "gemm_ar": (lambda t: ops.gemm_ar(t, b, group=group), a),
        "gemm_ar_norm": (lambda t: ops.gemm_ar_norm(t, b, a, a[0].clone(), group=group)[1], a),
        "gemm_ar_scaled": (lambda t: ops.gemm_ar_scaled(a8, scale, b8, t, group=group), scale),
        "gemm_rs": (lambda t: ops.gemm_rs(t, b, group=group), a),
        "gemm_rs_scaled": (lambda t: ops.gemm_rs_scaled(a8, t, b8, scale, group=group), scale),
        "moe": (lambda t: ops.moe(t, idx, weights, *experts, num_experts=2 * size, group=group), tokens),
        "moe_router": (lambda t: ops.moe_router(t, gate, top_k=1)[1], tokens),
        "reduce_scatter": (lambda t: ops.reduce_scatter(t, group=group), x),
    }


def refused(group):
    torch.manual_seed(3)
    calls = calls_of(group)
    assert set(calls) == set(ops.__all__) - NOT_OPERATORS
    for name, (function, t) in calls.items():
        want = function(t)  # the call itself is right
        with pytest.raises(overlace.Unsupported, match=f"^{name}: .* has a tangent"):
            torch.func.jvp(function, (t,), (torch.ones_like(t),))
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(t, torch.ones_like(t))
            with pytest.raises(overlace.Unsupported, match=f"^{name}: .* has a tangent"):
                function(dual)
            assert torch.equal(function(t), want)  # what has no tangent is computed inside, too


@pytest.mark.parametrize("size", [1, 2])
def test_tangents_are_refused_by_every_operator(size):
    run_ranks(size, refused)


def dual_gradient(group):
    a, b = torch.randn(2 * group.size(), 4, requires_grad=True), torch.randn(4, 3)
    y = ops.gemm_rs(a, b, group=group)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(torch.ones_like(y), torch.ones_like(y))
        with pytest.raises(overlace.Unsupported, match=r"gemm_rs.* has a tangent"):
            torch.autograd.grad(y, a, dual)


def test_a_tangent_of_a_gradient_is_refused():
    run_ranks(2, dual_gradient)
