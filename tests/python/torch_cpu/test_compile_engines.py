"""The pass of overlace.compile and collectives of serving engines: operators with the schemas of vLLM and SGLang."""

import pytest
from ranks import assert_same, overlace, run_ranks, torch, whole

compile_ = overlace.compile
NAME = "tp:0"  # what the engine calls the group
_libraries = []


def define(group):
    """Their schemas, as parallel_state.py of vLLM and of SGLang registers them."""
    if _libraries:
        return
    dist = torch.distributed
    groups = {}

    def all_reduce(tensor, group_name, *_):
        out = tensor.clone()
        dist.all_reduce(out, group=groups[group_name])
        return out

    def reduce_scatter(tensor, dim, world_size, group_name):
        rows = all_reduce(tensor, group_name).chunk(world_size, dim)
        return rows[groups[group_name].rank()].contiguous()

    def all_gather(tensor, dim, world_size, group_name):
        parts = [torch.empty_like(tensor) for _ in range(world_size)]
        dist.all_gather(parts, tensor.contiguous(), group=groups[group_name])
        return torch.cat(parts, dim)

    def scattered(tensor, dim, world_size, group_name):
        return torch.cat([tensor.chunk(world_size, dim)[0]])

    def gathered(tensor, dim, world_size, group_name):
        return torch.cat([tensor] * world_size, dim)

    def inplace_all_reduce(tensor, group_name):
        dist.all_reduce(tensor, group=groups[group_name])

    def all_gather_into_tensor(output, input, group_name):
        output.copy_(all_gather(input, 0, groups[group_name].size(), group_name))

    def reduce_scatter_tensor(output, input, group_name):
        output.copy_(reduce_scatter(input, 0, groups[group_name].size(), group_name))

    into = "(Tensor(a!) output, Tensor input, str group_name) -> ()"
    nothing = lambda *_: None  # noqa: E731
    for namespace, schema, function, fake in (
        ("vllm", "all_reduce(Tensor tensor, str group_name) -> Tensor", all_reduce, lambda t, *_: torch.empty_like(t)),
        (
            "vllm",
            "reduce_scatter(Tensor tensor, int dim, int world_size, str group_name) -> Tensor",
            reduce_scatter,
            scattered,
        ),
        ("vllm", "all_gather(Tensor tensor, int dim, int world_size, str group_name) -> Tensor", all_gather, gathered),
        (
            "sglang",
            "outplace_all_reduce(Tensor tensor, str group_name, str outplace_all_reduce_method) -> Tensor",
            all_reduce,
            lambda t, *_: torch.empty_like(t),
        ),
        ("sglang", "inplace_all_reduce(Tensor(a!) tensor, str group_name) -> ()", inplace_all_reduce, nothing),
        ("sglang", f"reg_all_gather_into_tensor{into}", all_gather_into_tensor, nothing),
        ("sglang", f"reg_reduce_scatter_tensor{into}", reduce_scatter_tensor, nothing),
    ):
        library = torch.library.Library(namespace, "FRAGMENT")
        library.define(schema)
        name = schema.split("(")[0]
        library.impl(name, function, "CPU")
        torch.library.register_fake(f"{namespace}::{name}", fake, lib=library)
        _libraries.append(library)
    define.groups = groups


def targets(graph):
    return [str(n.target) for n in graph.nodes if n.op == "call_function"]


def rewritten(group):
    from torch.fx.experimental.proxy_tensor import make_fx

    define(group)
    define.groups[NAME] = group
    n, vllm, sglang = group.size(), torch.ops.vllm, torch.ops.sglang
    a, b, shard, w = whole(4 * n, 6, 3), whole(5, 6, 4), whole(4, 8, 1), whole(6, 8, 2)
    cases = {  # function, inputs, what it becomes; "": left as it is
        "sum": (lambda a, b: vllm.all_reduce(a @ b.t(), NAME), (a, b), "gemm_ar"),
        "sum by keyword": (lambda a, b: vllm.all_reduce(a @ b.t(), group_name=NAME), (a, b), "gemm_ar"),
        "scatter": (lambda a, b: vllm.reduce_scatter(a @ b.t(), 0, n, NAME), (a, b), "gemm_rs"),
        "gather": (lambda x, w: vllm.all_gather(x, 0, n, NAME) @ w.t(), (shard, w), "ag_gemm"),
        "sglang": (lambda a, b: sglang.outplace_all_reduce(a @ b.t(), NAME, "ca"), (a, b), "gemm_ar"),
        "no product": (lambda a, b: vllm.all_reduce(a + 1, NAME) @ b.t(), (a, b), ""),
        "columns": (lambda a, b: vllm.all_gather(a @ b.t(), -1, n, NAME), (a, b), ""),
        "columns scattered": (lambda a, b: vllm.reduce_scatter(a @ b.t(), 1, n, NAME), (a, whole(4 * n, 6, 5)), ""),
    }
    for name, (function, inputs, wanted) in cases.items():
        module = make_fx(function, tracing_mode="fake")(*inputs)
        before = targets(module.graph)
        compile_.report(clear=True)
        compile_.Pass(group, when="always", names={NAME: group})(module.graph)
        module.graph.lint()
        module.recompile()
        if wanted:
            assert any(f"overlace.{wanted}" in t for t in targets(module.graph)), (name, targets(module.graph))
            assert not any(t.startswith(("vllm", "sglang")) for t in targets(module.graph)), name
            assert [c.became for c in compile_.report().candidates] == [wanted], name
        else:
            assert targets(module.graph) == before, name
        assert_same(module(*inputs), function(*inputs))


@pytest.mark.parametrize("ranks", [2, 3])
def test_collectives_of_engines_are_rewritten_or_stay_their_own(ranks):
    run_ranks(ranks, rewritten)


def reduced_in_place(y):
    torch.ops.sglang.inplace_all_reduce(y, group_name=NAME)
    return y


def gathered_into(x, n, dim=0):
    """What GroupCoordinator.all_gather of SGLang does."""
    output = torch.empty((n * x.shape[0], *x.shape[1:]), dtype=x.dtype)
    torch.ops.sglang.reg_all_gather_into_tensor(output, x, group_name=NAME)
    sizes = (*x.shape[:dim], n * x.shape[dim], *x.shape[dim + 1 :])
    return output.reshape((n, *x.shape)).movedim(0, dim).reshape(sizes)


def scattered_into(y, n):
    output = torch.empty((y.shape[0] // n, *y.shape[1:]), dtype=y.dtype)
    torch.ops.sglang.reg_reduce_scatter_tensor(output, y, group_name=NAME)
    return output


def rewritten_in_place(group, dynamic):
    define(group)
    define.groups[NAME] = group
    n, linear = group.size(), torch.nn.functional.linear
    a, b, shard, w = whole(4 * n, 6, 3), whole(5, 6, 4), whole(4, 8, 1), whole(6, 8, 2)
    cases = {  # function, inputs, what it becomes; "": left as it is
        "sum": (lambda a, b: reduced_in_place(linear(a, b)).relu(), (a, b), "gemm_ar"),
        "sum of a batch": (lambda a, b: reduced_in_place(linear(a, b)), (a.unflatten(0, (n, 4)), b), "gemm_ar"),
        "scatter": (lambda a, b: scattered_into(linear(a, b), n), (a, b), "gemm_rs"),
        "gather": (lambda x, w: linear(gathered_into(x, n), w), (shard, w), "ag_gemm"),
        "no product": (lambda a, b: linear(reduced_in_place(a + 1), b), (a, b), ""),
        "a part": (lambda a, b: torch.cat([reduced_in_place(linear(a, b)[:2]), a[:, :5]]), (a, b), ""),
        "columns": (lambda x, w: linear(gathered_into(x, n, 1), w), (shard, whole(6, 8 * n, 2)), ""),
        "no rows": (lambda x, w: linear(gathered_into(x, n), w), (shard[:0], w), ""),
    }
    for name, (function, inputs, wanted) in cases.items():
        torch._dynamo.reset()
        compile_.report(clear=True)
        before = [x.clone() for x in inputs]
        with torch.no_grad(), compile_.enable(group, when="always", names={NAME: group}):
            compiled = torch.compile(function, backend=compile_.aot_eager, dynamic=dynamic, fullgraph=True)
            got = compiled(*inputs)
        assert_same(got, function(*inputs))
        for x, was in zip(inputs, before, strict=True):
            assert_same(x, was)
        became = [c.became for c in compile_.report().candidates]
        assert became == [wanted] or (wanted == "" and became == []), (name, became)


@pytest.mark.parametrize("dynamic", [False, True])
def test_collectives_that_write_what_they_are_given_are_rewritten_or_stay_their_own(dynamic):
    run_ranks(2, rewritten_in_place, dynamic)


def chained(group):
    """The second one reads what takes the place of the first, and comes back itself."""
    from torch.fx.experimental.proxy_tensor import make_fx

    define(group)
    define.groups[NAME] = group
    n, vllm = group.size(), torch.ops.vllm

    def function(a, b):
        return vllm.all_gather(vllm.reduce_scatter(a @ b.t(), 0, n, NAME), dim=0, world_size=n, group_name=NAME)

    inputs = whole(4 * n, 6, 3), whole(5, 6, 4)
    module = make_fx(function, tracing_mode="fake")(*inputs)
    compile_.Pass(group, when="always", names={NAME: group})(module.graph)
    module.graph.lint()
    module.recompile()
    kept = [t for t in targets(module.graph) if t.startswith(("overlace", "vllm"))]
    assert kept == ["overlace.gemm_rs.default", "vllm.all_gather.default"]
    assert_same(module(*inputs), function(*inputs))


def test_one_that_stays_reads_the_result_of_one_that_was_rewritten():
    run_ranks(2, chained)


def unknown(group):
    from torch.fx.experimental.proxy_tensor import make_fx

    define(group)
    define.groups[NAME] = group
    module = make_fx(lambda a, b: torch.ops.vllm.all_reduce(a @ b.t(), NAME), tracing_mode="fake")(
        whole(4, 6, 3), whole(5, 6, 4)
    )
    compile_.report(clear=True)
    compile_.Pass(when="always")(module.graph)  # nobody has said what "tp:0" is
    assert any(t.startswith("vllm") for t in targets(module.graph))
    (candidate,) = compile_.report().candidates
    assert candidate.reason == f"group '{NAME}' has no overlace team"
    with pytest.raises(overlace.InvalidArgument, match="group 'nobody' has no overlace team"):
        compile_.Pass(names={NAME: "nobody"})
    assert compile_.Pass(names={NAME: group}).uuid() != compile_.Pass().uuid()


def test_a_name_that_nobody_explained_is_left_and_told():
    run_ranks(2, unknown)
