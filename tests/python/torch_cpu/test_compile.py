"""torch.compile: whole graphs, with shapes that change, and the gradients that eager gives."""

from ranks import overlace, run_ranks, torch

ops = overlace.ops


def block(x, w1, w2, group):
    """A column-parallel and a row-parallel layer around an activation."""
    hidden = torch.nn.functional.silu(ops.ag_gemm(x, w1.t(), group=group))
    return ops.gemm_rs(hidden, w2.t(), group=group) + ops.gemm_ar(x, w1.t() @ w2.t(), group=group)


def tensors(group, rows, dtype):
    torch.manual_seed(rows + group.rank())
    sizes = ((rows, 8), (6, 8), (8, 6))
    return [torch.randn(*s, dtype=dtype).requires_grad_() for s in sizes]


def step(function, given, group):
    given = [t.detach().clone().requires_grad_() for t in given]
    y = function(*given, group)
    y.square().sum().backward()
    return [y.detach(), *(t.grad for t in given)]


def same_in_both(group):
    torch._dynamo.reset()
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    for rows in (4, 6, 10):  # the second makes the rows dynamic
        given = tensors(group, rows, torch.float64)
        for got, want in zip(step(compiled, given, group.group_name), step(block, given, group), strict=True):
            torch.testing.assert_close(got, want)
    return torch._dynamo.utils.counters["graph_break"].total()


def test_one_graph_forward_and_backward():
    assert run_ranks(2, same_in_both) == [0, 0]


def shapes(group):
    from torch._subclasses.fake_tensor import FakeTensorMode

    real = tensors(group, 4, torch.bfloat16)
    x, w1 = (t.detach() for t in real[:2])
    calls = overlace.context_of(group).stats().calls
    with FakeTensorMode() as mode:
        fx, f1 = mode.from_tensor(x), mode.from_tensor(w1)
        fakes = [ops.ag_gemm(fx, f1.t(), group=group, out_dtype=torch.float32)]
        fakes += [ops.gemm_rs(fx, f1.t(), group=group), ops.gemm_ar(fx[None], f1.t(), group=group)]
        fakes += list(ops.ag_gemm(fx, f1.t(), group=group, return_a=True, row_offsets=[0, 4, 8]))
    assert overlace.context_of(group).stats().calls == calls  # nothing was called
    reals = [ops.ag_gemm(x, w1.t(), group=group, out_dtype=torch.float32)]
    reals += [ops.gemm_rs(x, w1.t(), group=group), ops.gemm_ar(x[None], w1.t(), group=group)]
    reals += list(ops.ag_gemm(x, w1.t(), group=group, return_a=True, row_offsets=[0, 4, 8]))
    for fake, got in zip(fakes, reals, strict=True):
        assert (fake.shape, fake.dtype, fake.stride()) == (got.shape, got.dtype, got.stride())


def test_shapes_without_running():
    run_ranks(2, shapes)
