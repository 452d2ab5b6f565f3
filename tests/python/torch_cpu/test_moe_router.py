"""overlace.ops.moe_router, on one process: its choice and weights, and their gradients, against float64 by torch."""

import itertools

import pytest
from overlace.ops._moe_router import _check_options, _choose_by_torch
from ranks import overlace, torch

TOKENS, HIDDEN, EXPERTS = 9, 10, 12
NAMES = ("score", "renormalize", "has_bias", "kept_groups", "top_k", "route_scale", "dtype")
CASES = [
    ("softmax", False, False, 1, 3, 1.0, torch.float32),
    ("softmax", True, False, 2, 4, 2.5, torch.float32),
    ("sigmoid", True, True, 2, 3, 2.5, torch.float32),
    ("sigmoid", False, True, 1, 1, 1.0, torch.float32),
    ("softmax", True, False, 1, 12, 1.0, torch.bfloat16),
    ("sigmoid", True, False, 1, 5, 0.5, torch.float16),
]


def keys_of(scores, bias, num_groups, kept_groups):
    """What the choice is made by."""
    keys = scores if bias is None else scores + bias
    grouped = keys.unflatten(1, (num_groups, -1))
    best = grouped.topk(2, 2)[0].sum(2).topk(kept_groups, 1)[1]
    allowed = torch.zeros(len(keys), num_groups, dtype=torch.bool).scatter(1, best, True)
    return torch.where(allowed[:, :, None], grouped, -torch.inf).flatten(1)


def scores_of(x, w_gate, score):
    logits = x @ w_gate.t()
    return torch.softmax(logits, 1) if score == "softmax" else torch.sigmoid(logits)


def weights_of(scores, idx, renormalize, route_scale):
    picked = scores.gather(1, idx.long())
    return route_scale * (picked / picked.sum(1, keepdim=True) if renormalize else picked)


def operands(case, seed=4):
    generator = torch.Generator().manual_seed(seed)
    x, w_gate = (torch.randn(n, HIDDEN, generator=generator) / 2 for n in (TOKENS, EXPERTS))
    bias = torch.randn(EXPERTS, generator=generator) / 9 if case["has_bias"] else None
    upstream = torch.randn(TOKENS, case["top_k"], generator=generator)
    return x.to(case["dtype"]), w_gate.to(case["dtype"]), bias, upstream


def options_of(case):
    names = ("top_k", "score", "renormalize", "kept_groups", "route_scale")
    return {name: case[name] for name in names} | {"num_groups": 3 if case["kept_groups"] > 1 else 1}


@pytest.mark.parametrize("values", CASES, ids=range(len(CASES)))
def test_same_as_in_float64(values):
    case = dict(zip(NAMES, values, strict=True))
    x, w_gate, bias, upstream = operands(case)
    options = options_of(case)
    got = [t.clone().requires_grad_() for t in (x, w_gate)]
    idx, weights = overlace.ops.moe_router(*got, bias, **options)
    assert (idx.dtype, weights.dtype, idx.shape) == (torch.int32, torch.float32, weights.shape)
    weights.backward(upstream)

    exact = [t.double().requires_grad_() for t in (x, w_gate)]
    scores = scores_of(*exact, case["score"])
    keys = keys_of(scores.detach(), bias, options["num_groups"], case["kept_groups"])
    chosen, best = keys.gather(1, idx.long()), keys.topk(case["top_k"], 1)[0]
    torch.testing.assert_close(chosen, best, rtol=0, atol=1e-6)  # another where keys tie but for rounding
    assert all(len(set(row)) == case["top_k"] for row in idx.tolist())
    want = weights_of(scores, idx, case["renormalize"], case["route_scale"])
    want.backward(upstream.double())
    torch.testing.assert_close(weights.detach().double(), want.detach(), rtol=1e-5, atol=1e-6)
    bound = max(1e-5, torch.finfo(case["dtype"]).eps)
    for mine, other in zip(got, exact, strict=True):
        assert other.grad.abs().max() > 0.01
        torch.testing.assert_close(mine.grad.double(), other.grad, rtol=bound, atol=2e-6)


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
@pytest.mark.parametrize("renormalize", [False, True])
def test_gradients_are_differences(score, renormalize):
    case = dict(zip(NAMES, (score, renormalize, False, 1, 3, 1.5, torch.float32), strict=True))
    x, w_gate, _, upstream = operands(case, seed=7)
    choice, _ = overlace.ops.moe_router(x, w_gate, **options_of(case))

    def loss(x, w_gate):
        idx, weights = overlace.ops.moe_router(x, w_gate, **options_of(case))
        assert torch.equal(idx, choice)  # else there is no derivative between the two
        return (weights.double() * upstream).sum()

    given = [t.clone().requires_grad_() for t in (x, w_gate)]
    loss(*given).backward()
    generator, step = torch.Generator().manual_seed(1), 2e-3
    for i in range(2):
        direction = torch.randn(given[i].shape, generator=generator)
        ends = [[t + sign * step * direction if i == n else t for n, t in enumerate((x, w_gate))] for sign in (1, -1)]
        difference = (loss(*ends[0]) - loss(*ends[1])) / (2 * step)
        derivative = (given[i].grad * direction).sum()
        assert derivative.abs() > 0.05
        torch.testing.assert_close(derivative.double(), difference, rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize(("score", "renormalize"), [*itertools.product(["softmax", "sigmoid"], [False, True])])
def test_second_derivatives(score, renormalize):
    """Second derivatives by x, w_gate and what comes from behind, against float64 by torch, on the chosen experts."""
    case = dict(zip(NAMES, (score, renormalize, False, 1, 3, 1.5, torch.float32), strict=True))
    x, w_gate, _, upstream = operands(case, seed=8)

    def second(function, dtype):
        given = [t.to(dtype).requires_grad_() for t in (x, w_gate, upstream)]
        first = torch.autograd.grad(function(*given[:2]), given[:2], given[2], create_graph=True)
        return torch.autograd.grad(sum(grad.pow(3).sum() for grad in first), given)

    idx, _ = overlace.ops.moe_router(x, w_gate, **options_of(case))
    got = second(lambda *given: overlace.ops.moe_router(*given, **options_of(case))[1], torch.float32)
    want = second(lambda *given: weights_of(scores_of(*given, score), idx, renormalize, 1.5), torch.float64)
    for mine, exact in zip(got, want, strict=True):
        assert exact.abs().max() > 0.01
        torch.testing.assert_close(mine.double(), exact, rtol=1e-3, atol=1e-5)


def test_equal_scores_go_to_the_lower_expert():
    x, w_gate = torch.ones(2, 3), torch.ones(5, 3)
    idx, weights = overlace.ops.moe_router(x, w_gate, top_k=3)
    assert idx.tolist() == [[0, 1, 2]] * 2
    torch.testing.assert_close(weights, torch.full((2, 3), 0.2))


@pytest.mark.parametrize(("score", "renormalize"), [*itertools.product(["softmax", "sigmoid"], [False, True])])
def test_what_is_not_finite_has_no_part(score, renormalize):
    """A token and an expert with values that are not finite: entries -1, weight 0, and no gradient from or to them."""
    generator = torch.Generator().manual_seed(3)
    x, w_gate = torch.randn(4, HIDDEN, generator=generator), torch.randn(3, HIDDEN, generator=generator)
    x[1, 2], w_gate[1, 0] = torch.nan, torch.inf
    options = {"top_k": 3, "score": score, "renormalize": renormalize}
    given = [t.clone().requires_grad_() for t in (x, w_gate)]
    idx, weights = overlace.ops.moe_router(*given, **options)
    assert idx[1].tolist() == [-1] * 3 and weights[1].tolist() == [0] * 3
    assert all(sorted(row) == [-1, 0, 2] and row[2] == -1 for row in idx[[0, 2, 3]].tolist())
    assert (weights[:, 2] == 0).all()
    upstream = torch.randn(4, 3, generator=generator)
    upstream[0, 2] = torch.nan  # of an entry -1
    weights.backward(upstream)
    others = [x[[0, 2, 3]].requires_grad_(), w_gate[[0, 2]].requires_grad_()]
    wanted, of_others = overlace.ops.moe_router(*others, **options | {"top_k": 2})
    assert torch.equal(wanted, idx[[0, 2, 3], :2].clamp(max=1))
    of_others.backward(upstream[[0, 2, 3], :2])
    torch.testing.assert_close(given[0].grad[[0, 2, 3]], others[0].grad)
    torch.testing.assert_close(given[1].grad[[0, 2]], others[1].grad)
    assert (given[0].grad[1] == 0).all() and (given[1].grad[1] == 0).all()


def test_no_tokens_and_more_dimensions():
    x, w_gate = torch.randn(2, 3, HIDDEN), torch.randn(EXPERTS, HIDDEN, requires_grad=True)
    idx, weights = overlace.ops.moe_router(x, w_gate, top_k=2)
    flat = overlace.ops.moe_router(x.flatten(0, 1), w_gate, top_k=2)
    assert idx.shape == weights.shape == (2, 3, 2)
    assert torch.equal(idx.flatten(0, 1), flat[0]) and torch.equal(weights.flatten(0, 1), flat[1])
    strided = [t.detach().t().contiguous().t() for t in (x.flatten(0, 1), w_gate)]
    assert all(torch.equal(*two) for two in zip(overlace.ops.moe_router(*strided, top_k=2), flat, strict=True))
    none = x[:0].flatten(0, 1)
    idx, weights = overlace.ops.moe_router(none.requires_grad_(), w_gate, top_k=2)
    weights.sum().backward()
    assert idx.shape == (0, 2) and none.grad.shape == (0, HIDDEN) and (w_gate.grad == 0).all()


def test_in_graphs():
    case = dict(zip(NAMES, CASES[2], strict=True))
    x, w_gate, bias, upstream = operands(case)
    options = options_of(case)
    given = [t.clone().requires_grad_() for t in (x, w_gate)]
    others = {n: v for n, v in options.items() if n != "top_k"}
    torch.library.opcheck(torch.ops.overlace.moe_router.default, (*given, bias, case["top_k"]), others)
    results = []

    def routed(x, w_gate):
        return overlace.ops.moe_router(x, w_gate, bias, **options)

    torch._dynamo.reset()
    for function in (routed, torch.compile(routed, fullgraph=True, backend="aot_eager")):
        for t in given:
            t.grad = None
        idx, weights = function(*given)
        weights.backward(upstream)
        results.append([idx, weights.detach(), *(t.grad for t in given)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("values", CASES[:4], ids=range(4))
def test_autocast_changes_nothing(values):
    """Around both passes, around the forward alone, and around the forward of one graph: the bits without it."""
    case = dict(zip(NAMES, values, strict=True))
    x, w_gate, bias, upstream = operands(case)
    given = [t.clone().requires_grad_() for t in (x, w_gate)]

    def routed(x, w_gate):
        return overlace.ops.moe_router(x, w_gate, bias, **options_of(case))[1]

    torch._dynamo.reset()
    compiled, results = torch.compile(routed, fullgraph=True, backend="aot_eager"), []
    for function, in_forward, in_backward in (
        (routed, False, False),
        (routed, True, False),
        (routed, True, True),
        (compiled, True, False),
    ):
        for t in given:
            t.grad = None
        with torch.autocast("cpu", torch.bfloat16, enabled=in_forward):
            weights = function(*given)
        with torch.autocast("cpu", torch.bfloat16, enabled=in_backward):
            weights.backward(upstream)
        results.append([weights.detach(), *(t.grad for t in given)])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_refusals():
    x, w_gate = torch.randn(4, 6), torch.randn(8, 6)
    for bad, text in (
        ({"x": x[0]}, r"x is \[6\], top_k is 2, wanted two dimensions"),
        ({"top_k": 0}, "top_k is 0, wanted two dimensions and 1 to 32"),
        ({"top_k": 9}, "top_k is 9, wanted 1 to 8"),
        ({"x": x.double()}, r"x is fp64 \(4, 6\) and w_gate fp32"),
        ({"w_gate": w_gate[:, 1:]}, r"w_gate fp32 \(8, 5\), wanted \(T, H\) and \(E, H\)"),
        ({"bias": torch.zeros(7)}, r"bias is fp32 \(7\), wanted fp32 \(8\)"),
        ({"score": "tanh"}, 'score is "tanh", wanted softmax or sigmoid'),
        ({"num_groups": 3}, "num_groups is 3, wanted a divisor of the 8 experts"),
        ({"num_groups": 2, "kept_groups": 3}, "kept_groups is 3, wanted 1 to the 2 groups"),
    ):
        with pytest.raises(overlace.InvalidArgument, match=text):
            overlace.ops.moe_router(**{"x": x, "w_gate": w_gate, "top_k": 2} | bad)


def test_shapes_on_a_gpu():
    with torch._subclasses.fake_tensor.FakeTensorMode():
        x, w_gate = torch.empty(4, 6, device="cuda"), torch.empty(8, 6, device="cuda")
        weights, idx = torch.ops.overlace.moe_router(x, w_gate, None, 2)
    assert (weights.device, idx.device) == (x.device, x.device)
    assert (weights.shape, weights.dtype, idx.dtype) == ((4, 2), torch.float32, torch.int32)


@pytest.mark.parametrize("kept", [1, 2, 4])
@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_torch_chooses_as_the_library(score, kept):
    """What GPUs take; equal and infinite scores, biases that rule out, tokens without a finite logit."""
    generator = torch.Generator().manual_seed(kept)
    x, w_gate = (torch.randint(-2, 3, (n, HIDDEN), generator=generator).float() for n in (200, EXPERTS))
    w_gate[5], w_gate[7, 0] = w_gate[4], torch.inf
    x[3], x[9, 2], x[11, 0] = 0, torch.nan, 0  # 0 times infinity
    bias = torch.randint(-1, 2, (EXPERTS,), generator=generator) / 4
    bias[8], bias[2] = -torch.inf, torch.nan
    top_k = min(5, EXPERTS // 4 * kept)
    for given, renormalize in itertools.product((None, bias), (False, True)):
        options = {"score": score, "renormalize": renormalize, "num_groups": 4, "kept_groups": kept}
        options["route_scale"] = 1.5
        idx, weights = overlace.ops.moe_router(x, w_gate, given, top_k=top_k, **options)
        of_torch = _choose_by_torch(x, w_gate, given, top_k, **options)
        assert torch.equal(of_torch[1], idx)
        torch.testing.assert_close(of_torch[0], weights, rtol=1e-5, atol=1e-7)
        assert -1 in idx


def test_options_are_checked_as_by_the_library():
    x, w_gate = torch.randn(4, 6), torch.randn(8, 6)
    good = {"score": "softmax", "renormalize": False, "num_groups": 1, "kept_groups": 1, "route_scale": 1.0}
    _check_options(x, w_gate, torch.zeros(8), 2, good)
    for top_k, bias, bad, text in (
        (9, None, {}, "top_k is 9, wanted 1 to 8"),
        (2, torch.zeros(7), {}, r"bias is fp32 \(7\), wanted fp32 \(8\)"),
        (2, None, {"score": "tanh"}, 'score is "tanh", wanted softmax or sigmoid'),
        (2, None, {"num_groups": 3}, "num_groups is 3, wanted a divisor of the 8 experts"),
    ):
        with pytest.raises(overlace.InvalidArgument, match=text):
            _check_options(x, w_gate, bias, top_k, good | bad)
    for other in (w_gate[:, 1:], w_gate.bfloat16(), w_gate[0]):
        with pytest.raises(overlace.InvalidArgument, match=r"w_gate .*, wanted \(T, H\) and \(E, H\)"):
            _check_options(x, other, None, 2, good)
