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


def twice(group):
    """What the second derivative of a compiled function of each operator says."""
    name, size = group.group_name, group.size()
    torch.manual_seed(12)
    w = torch.randn(4, 4, dtype=torch.float64)
    functions = {
        "ag_gemm": lambda x: ops.ag_gemm(x, w, group=name),
        "ag_wgrad": lambda x: ops.ag_wgrad(x, torch.cat([x] * size), group=name),
        "gemm_rs": lambda x: ops.gemm_rs(x, w, group=name),
        "gemm_ar": lambda x: ops.gemm_ar(x, w, group=name),
        "all_gather": lambda x: ops.all_gather(x, group=name),
        "reduce_scatter": lambda x: ops.reduce_scatter(x, group=name),
        "all_reduce": lambda x: ops.all_reduce(x, group=name),
        "all_to_all": lambda x: ops.all_to_all(x, group=name),
    }
    said = {}
    for key, function in functions.items():
        torch._dynamo.reset()
        x = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
        grads = []
        for f in (function, torch.compile(function, fullgraph=True, backend="aot_eager")):
            (grad,) = torch.autograd.grad(f(x).pow(3).sum(), x, create_graph=True)
            grads.append(grad)
        torch.testing.assert_close(*grads)
        (second,) = torch.autograd.grad(grads[0].sum(), x)
        assert second.abs().max() > 0, key
        try:
            torch.autograd.grad(grads[1].sum(), x)
        except RuntimeError as error:
            said[key] = str(error)
    return said


def test_second_derivatives_are_eager_only():
    said = run_ranks(2, twice)[0]
    assert len(said) == 8, said.keys()
    assert all("does not currently support double backward" in text for text in said.values()), said


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
