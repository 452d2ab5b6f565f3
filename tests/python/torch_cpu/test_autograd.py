"""Gradients: gradcheck in fp64 of the whole computation, and opcheck of each operator."""

import pytest
from ranks import SIZES, overlace, run_ranks, torch

dist = torch.distributed


class Split(torch.autograd.Function):
    """My part of what all ranks hold; its gradient is that of all parts."""

    @staticmethod
    def forward(ctx, full, group, dim):
        ctx.group, ctx.dim = group, dim
        return full.chunk(group.size(), dim)[group.rank()].clone()

    @staticmethod
    def backward(ctx, grad):
        return Join.apply(grad, ctx.group, ctx.dim), None, None


class Join(torch.autograd.Function):
    """All parts on all ranks; the gradient is the same on all of them, each takes that of its part."""

    @staticmethod
    def forward(ctx, part, group, dim):
        ctx.group, ctx.dim = group, dim
        parts = [torch.empty_like(part) for _ in range(group.size())]
        dist.all_gather(parts, part.contiguous(), group=group)
        return torch.cat(parts, dim)

    @staticmethod
    def backward(ctx, grad):
        return Split.apply(grad, ctx.group, ctx.dim), None, None


def check_twice(function, inputs):
    """First and second derivatives of what all ranks compute together."""
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs, fast_mode=True)


def random(*sizes):
    return torch.randn(*sizes, dtype=torch.float64).requires_grad_()


def check_ag_gemm(group):
    """All ranks hold everything and perturb the same element, so the function that is checked is the global one."""
    torch.manual_seed(1)
    size = group.size()

    def layer(x, w1, w2, bias):
        a, (y1, y2) = overlace.ops.ag_gemm(
            Split.apply(x, group, 0),
            [Split.apply(w1, group, 1), Split.apply(w2, group, 1)],
            biases=[Split.apply(bias, group, 0), torch.zeros(2, dtype=torch.float64)],
            group=group,
            return_a=True,
        )
        # The gathered activation is each rank's own: weighed, so that each rank's gradient of it is another.
        return Join.apply(y1, group, 1), Join.apply(y2, group, 1), Join.apply(a * (group.rank() + 1), group, 1)

    check_twice(layer, (random(2 * size, 3), random(3, 2 * size), random(3, 2 * size), random(2 * size)))


@pytest.mark.parametrize("size", SIZES)
def test_gradcheck_of_ag_gemm(size):
    run_ranks(size, check_ag_gemm)


def layouts_of_gradients(group):
    """Autograd adds a gradient without a copy where it lies in memory as the parameter does."""
    torch.manual_seed(8)
    size = group.size()
    for stored in (lambda k, n: random(k, n), lambda k, n: random(n, k)):
        w = stored(4, 6)
        b = w if w.shape[0] == 4 else w.t()
        x, full = random(2, 4), random(2 * size, 4)
        for y in (
            overlace.ops.ag_gemm(x, b, group=group, keep_gathered=True),
            overlace.ops.ag_gemm(x, b, group=group, keep_gathered=False),
            overlace.ops.gemm_rs(full, b, group=group),
            overlace.ops.gemm_ar(full, b, group=group),
        ):
            (grad,) = torch.autograd.grad(y.sum(), w)
            assert grad.stride() == w.stride(), (grad.stride(), w.stride())


def test_gradients_of_weights_lie_as_the_weights_do():
    run_ranks(2, layouts_of_gradients)


def check_gathered_again(group):
    """With nothing kept for the weights, their gradients are those of ag_wgrad."""
    torch.manual_seed(7)
    size = group.size()

    def layer(x, w1, w2):
        mine, ws = Split.apply(x, group, 0), [Split.apply(w, group, 1) for w in (w1, w2)]
        y1, y2 = overlace.ops.ag_gemm(mine, ws, group=group, keep_gathered=False)
        return Join.apply(y1, group, 1), Join.apply(y2, group, 1)

    check_twice(layer, (random(2 * size, 3), random(3, 2 * size), random(3, size)))


@pytest.mark.parametrize("size", SIZES)
def test_gradcheck_of_ag_gemm_that_gathers_again(size):
    run_ranks(size, check_gathered_again)


def check_ag_wgrad(group):
    torch.manual_seed(10)
    size = group.size()

    def layer(x, dy1, dy2):
        dys = [Split.apply(dy, group, 1) for dy in (dy1, dy2)]
        dw1, dw2 = overlace.ops.ag_wgrad(Split.apply(x, group, 0), dys, group=group)
        return Join.apply(dw1, group, 1), Join.apply(dw2, group, 1)

    check_twice(layer, (random(2 * size, 3), random(2 * size, 2 * size), random(2 * size, size)))


@pytest.mark.parametrize("size", SIZES)
def test_gradcheck_of_ag_wgrad(size):
    run_ranks(size, check_ag_wgrad)


def check_shared_input(group):
    """A column-parallel layer on rows that all ranks hold."""
    torch.manual_seed(11)
    size = group.size()

    def layer(x, weight, bias):
        mine = Split.apply(weight, group, 0), Split.apply(bias, group, 0)
        return Join.apply(overlace.nn.linear._SharedInput.apply(x, *mine, group.group_name), group, 1)

    check_twice(layer, (random(3, 2), random(2 * size, 2), random(2 * size)))


@pytest.mark.parametrize("size", SIZES)
def test_gradcheck_of_a_layer_on_a_shared_input(size):
    run_ranks(size, check_shared_input)


def grad_through_gathered(group):
    x = torch.arange(6, dtype=torch.float64).reshape(2, 3).requires_grad_()
    a, _ = overlace.ops.ag_gemm(x, torch.ones(3, 1, dtype=torch.float64), group=group, return_a=True)
    (a * (1 + group.rank())).sum().backward()  # all ranks' losses count
    want = sum(1.0 + r for r in range(group.size()))
    assert torch.equal(x.grad, torch.full_like(x, want))


def test_gradient_of_the_gathered_activation():
    run_ranks(3, grad_through_gathered)


def check_gemm_rs(group, reduce_op):
    torch.manual_seed(2)
    size = group.size()

    def layer(a, b, bias):
        y = overlace.ops.gemm_rs(
            Split.apply(a, group, 1), Split.apply(b, group, 0), group=group, bias=bias, reduce_op=reduce_op
        )
        return Join.apply(y, group, 0)

    check_twice(layer, (random(2 * size, 2 * size), random(2 * size, 3), random(3)))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("reduce_op", ["sum", "avg"])
def test_gradcheck_of_gemm_rs(size, reduce_op):
    run_ranks(size, check_gemm_rs, reduce_op)


def check_gemm_ar(group, reduce_op):
    torch.manual_seed(3)
    size = group.size()

    def layer(a, b, bias):
        return overlace.ops.gemm_ar(
            Split.apply(a, group, 1), Split.apply(b, group, 0), group=group, bias=bias, reduce_op=reduce_op
        )

    check_twice(layer, (random(3, 2 * size), random(2 * size, 3), random(3)))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("reduce_op", ["sum", "avg"])
def test_gradcheck_of_gemm_ar(size, reduce_op):
    run_ranks(size, check_gemm_ar, reduce_op)


def check_collectives(group, dim, reduce_op):
    """Each rank's part of one tensor goes in; what ranks get of their own is joined, and weighed by rank, so that one
    who takes another's gradient is found out."""
    torch.manual_seed(9)
    ops, size = overlace.ops, group.size()

    def mine_of(x):
        return Split.apply(x, group, 1 - dim)

    def gathered(x):
        return Join.apply(ops.all_gather(mine_of(x), group=group, dim=dim) * (group.rank() + 1), group, 1 - dim)

    def turned(x):
        return Join.apply(ops.all_to_all(mine_of(x), group=group, dim=dim), group, 1 - dim)

    def scattered(x):
        return Join.apply(ops.reduce_scatter(mine_of(x), group=group, dim=dim, reduce_op=reduce_op), group, dim)

    def reduced(x):
        return ops.all_reduce(mine_of(x), group=group, reduce_op=reduce_op)

    for function in (gathered, turned, scattered, reduced):
        check_twice(function, (random(2 * size, 2 * size),))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dim", [0, 1])
def test_gradcheck_of_collectives(size, dim):
    for reduce_op in ("sum", "avg"):
        run_ranks(size, check_collectives, dim, reduce_op)


def only_needed(group):
    """What needs no gradient costs nothing and gets none; a frozen weight keeps no gathered activation."""
    torch.manual_seed(4)
    x, w = torch.randn(2, 3, dtype=torch.float64), torch.randn(3, 2, dtype=torch.float64)
    calls = overlace.context_of(group).stats().calls
    y = overlace.ops.ag_gemm(x.requires_grad_(), w, group=group)
    y.sum().backward()
    assert x.grad is not None and w.grad is None
    assert overlace.context_of(group).stats().calls == calls + 2  # forward, gemm_rs
    x = x.detach()
    overlace.ops.ag_gemm(x, w.requires_grad_(), group=group).sum().backward()
    assert overlace.context_of(group).stats().calls == calls + 3  # forward alone: dW is of the kept activation
    full = [torch.empty_like(x) for _ in range(group.size())]
    dist.all_gather(full, x, group=group)
    torch.testing.assert_close(w.grad, torch.cat(full).sum(0)[:, None].expand(3, 2))
    # Nothing kept, by choice: gathered once more.
    w.grad = None
    overlace.ops.ag_gemm(x, w, group=group, keep_gathered=False).sum().backward()
    assert overlace.context_of(group).stats().calls == calls + 5
    torch.testing.assert_close(w.grad, torch.cat(full).sum(0)[:, None].expand(3, 2))


@pytest.mark.parametrize("size", SIZES)
def test_only_needed_gradients_are_computed(size):
    run_ranks(size, only_needed)


def error_of_bf16(group):
    """Error of the weight's gradient against fp64, and that of the unfused computation in bf16."""
    torch.manual_seed(5)
    size, rank = group.size(), group.rank()
    x, w, g = (torch.randn(*s, dtype=torch.float64) for s in ((16 * size, 32), (32, 24), (16 * size, 24)))
    x, w, g = (t.bfloat16() for t in (x, w, g))
    mine, weight = x.chunk(size)[rank].clone().requires_grad_(), w.clone().requires_grad_()
    (overlace.ops.ag_gemm(mine, weight, group=group) * g).sum().backward()
    grads = []
    for dtype in (torch.float64, torch.bfloat16):
        full, plain = x.to(dtype).clone().requires_grad_(), w.to(dtype).clone().requires_grad_()
        ((full @ plain) * g.to(dtype)).sum().backward()
        grads.append((full.grad.chunk(size)[rank] * size, plain.grad))
    for got, true, unfused in zip((mine.grad, weight.grad), *grads, strict=True):
        error, bar = (got.double() - true).abs().max(), (unfused.double() - true).abs().max()
        ulp = true.abs().max() * 2**-8
        assert error <= 2 * bar + ulp, (error, bar)


def test_gradients_of_bf16_are_as_good_as_the_unfused_ones():
    run_ranks(2, error_of_bf16)


def error_of_ag_wgrad(group):
    """The error of each schedule, in bf16: sums grow in fp32 and are rounded once, as those of one product are."""
    torch.manual_seed(8)
    size = group.size()
    x, dy = torch.randn(64 * size, 32).bfloat16(), torch.randn(64 * size, 24).bfloat16()
    true, unfused = x.double().t() @ dy.double(), x.t() @ dy
    bar = (unfused.double() - true).abs().max()
    for plan in ("library", "shard_p2p", "hetero_unfused_1d,degree=4", "uniform_fused_2d,degree=2"):
        shard = x.chunk(size)[group.rank()]
        again = [overlace.ops.ag_wgrad(shard, dy, group=group, plan=f"family={plan}") for _ in range(2)]
        assert torch.equal(*again), plan
        assert (again[0].double() - true).abs().max() <= 2 * bar, plan


def test_ag_wgrad_in_bf16_is_as_good_as_the_unfused_product():
    run_ranks(3, error_of_ag_wgrad)


def opcheck(group):
    name, size = group.group_name, group.size()
    torch.manual_seed(6)

    def t(*sizes):
        return torch.randn(*sizes, dtype=torch.float64, requires_grad=True)

    ops = torch.ops.overlace
    a, b = t(2 * size, 4), t(4, 3)
    for op, args, kwargs in (
        (ops.ag_gemm.default, (t(2, 4), [b, t(4, 2)], [], 0, name), {"return_a": True}),
        (ops.ag_gemm.default, (t(2, 4), [b], [t(3)], 0, name), {"plan": "family=library"}),
        (
            ops.ag_gemm.default,
            (t(2, 4).detach(), [t(4, 6).detach()], [t(6).detach()], 0, name),
            {"activation": "swiglu", "return_a": True},
        ),
        (ops.ag_wgrad.default, (t(2, 4), [a, t(2 * size, 3)], 0, name), {}),
        (ops.ag_wgrad.default, (t(2, 4).detach(), [a.detach()], 0, name), {"plan": "family=shard_p2p"}),
        (ops.gemm_rs.default, (a, b, None, "sum", 0, name), {}),
        (ops.gemm_rs.default, (a, b, t(3), "avg", 0, name), {}),
        (ops.gemm_ar.default, (a, b, None, "sum", name), {}),
        *((ops.all_gather.default, (t(2, 4, 3), dim, name), {}) for dim in (0, -1)),
        *((ops.all_to_all.default, (t(2 * size, 3, 2 * size), dim, name), {}) for dim in (0, 2)),
        *((ops.reduce_scatter.default, (t(2 * size, 3, 2 * size), "avg", dim, name), {}) for dim in (0, 2)),
        (ops.reduce_scatter.default, (t(2 * size, 3).detach().long(), "sum", 0, name), {}),
        (ops.all_reduce.default, (t(3, 2).t(), "avg", name), {}),
    ):
        torch.library.opcheck(op, args, kwargs)


@pytest.mark.parametrize("size", [1, 2])
def test_opcheck(size):
    run_ranks(size, opcheck)
