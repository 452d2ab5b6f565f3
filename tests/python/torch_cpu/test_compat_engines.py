"""overlace.compat.engines: layers as those of vLLM and SGLang in eager mode, with collectives of their own."""

import ctypes

import pytest
import test_compile_engines as engines
from overlace.compat.engines import enable
from ranks import assert_same, overlace, run_ranks, torch, whole

nn, linear = torch.nn, torch.nn.functional.linear
NAME = engines.NAME


def layer(name, function, weight, bias=None):
    """A layer of a class of that name, whose forward is function(layer, x)."""
    module = type(name, (nn.Module,), {"forward": function})()
    module.weight = nn.Parameter(weight, requires_grad=False)
    module.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
    return module


def row(self, x):
    """Row-parallel as in vLLM: it asks for sizes and devices in between."""
    y = linear(x, self.weight)
    assert y.dim() == x.dim() and y.shape[-1] == self.weight.shape[0] and y.size(0) == x.size(0) and not y.is_cuda
    assert y.dtype == x.dtype and y.device == x.device and y.is_contiguous()
    return torch.ops.vllm.all_reduce(y, group_name=NAME), None


def in_place(self, x):
    y = linear(x, self.weight)
    torch.ops.sglang.inplace_all_reduce(y, group_name=NAME)
    return y


def read(self, x):
    return torch.ops.vllm.all_reduce(linear(x, self.weight) * 2, NAME)


def changed(self, x):
    y = linear(x, self.weight)
    x.add_(1)
    return torch.ops.vllm.all_reduce(y, NAME)


def changed_by_address(self, x):
    """As a kernel in Triton, which asks for addresses when it is launched."""
    y = linear(x, self.weight)
    ctypes.memset(x.data_ptr(), 0, x.nbytes)
    return torch.ops.vllm.all_reduce(y, NAME)


def kept(self, x):
    self.kept = linear(x, self.weight)  # never reduced
    return torch.ops.vllm.all_reduce(linear(x, self.weight), NAME), self.kept


def biased(self, x):
    return torch.ops.vllm.all_reduce(linear(x, self.weight, self.bias), NAME)


def tensors(tree):
    return [t for t in (tree if isinstance(tree, tuple) else (tree,)) if t is not None]


def one_call_or_two(group):
    engines.define(group)
    engines.define.groups[NAME] = group
    n, vllm, sglang = group.size(), torch.ops.vllm, torch.ops.sglang
    rows, part, w = whole(4 * n, 6, 3 + group.rank()), whole(4, 8, 1 + group.rank()), whole(6, 8, 2)
    b, wide = whole(5, 6, 4 + group.rank()), whole(3, 8 * n, 1)
    into = lambda s, x: engines.scattered_into(linear(x, s.weight), n)  # noqa: E731
    cases = {  # forward, input, weight, operator that runs; "": the engine's own
        "sum": (row, rows, b, "gemm_ar"),
        "sum of a batch": (row, rows.unflatten(0, (n, 4)), b, "gemm_ar"),
        "sglang": (lambda s, x: sglang.outplace_all_reduce(linear(x, s.weight), NAME, "ca"), rows, b, "gemm_ar"),
        "sglang in place": (in_place, rows, b, "gemm_ar"),
        "scatter": (lambda s, x: vllm.reduce_scatter(linear(x, s.weight), 0, n, NAME), rows, b, "gemm_rs"),
        "sglang's scatter": (into, rows, b, "gemm_rs"),
        "gather": (lambda s, x: linear(vllm.all_gather(x, 0, n, NAME), s.weight), part, w, "ag_gemm"),
        "one of two": (kept, rows, b, "gemm_ar"),
        "read before": (read, rows, b, ""),
        "input changed": (changed, rows, b, ""),
        "input changed by address": (changed_by_address, rows, b, ""),
        "columns": (lambda s, x: vllm.all_gather(linear(x, s.weight), -1, n, NAME), rows, b, ""),
        "columns scattered": (lambda s, x: vllm.reduce_scatter(linear(x, s.weight), 1, n, NAME), rows, rows, ""),
        "gathered alone": (lambda s, x: vllm.all_gather(x, 0, n, NAME) + 1, part, w, ""),
        "gathered columns": (lambda s, x: linear(vllm.all_gather(x, 1, n, NAME), s.weight), part, wide, ""),
        "no rows": (row, rows[:0], b, ""),
        "dtypes": (lambda s, x: vllm.all_reduce(linear(x.float(), s.weight.float()).double(), NAME), rows, b, ""),
    }
    for name, (function, x, weight, wanted) in cases.items():
        module = layer("RowParallelLinear", function, weight)
        with torch.inference_mode():
            plain = module(x.clone())
            adapter = enable(module, {NAME: group}, when="always")
            given = x.clone()
            got = module(given)
            assert dict(adapter.calls) == ({wanted: 1} if wanted else {}), (name, adapter.calls)
            for one, other in zip(tensors(got), tensors(plain), strict=True):
                assert type(one) is torch.Tensor, name
                assert_same(one, other)
            if "changed" not in name:
                assert_same(given, x)
            adapter.disable()
            module(x.clone())
        assert sum(adapter.calls.values()) == (1 if wanted else 0), name


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_product_and_its_collective_are_one_call_or_stay_the_engines(ranks):
    run_ranks(ranks, one_call_or_two)


def what_stays(group):
    engines.define(group)
    engines.define.groups[NAME] = group
    x, b = whole(4, 6, 3 + group.rank()), whole(5, 6, 4 + group.rank())
    bias = whole(1, 5, 9)[0] * (group.rank() == 0)  # as engines give it
    model = nn.Sequential(
        layer("RowParallelLinear", biased, b, bias), layer("Linear", lambda s, x: row(s, x)[0], whole(6, 5, 7))
    )
    with torch.inference_mode():
        plain = model(x)
        adapter = enable(model, {NAME: group}, when="always")
        assert_same(model(x), plain)
        assert adapter.calls.total() == 0
        adapter.disable()
        adapter = enable(model, {NAME: group}, when="always", kinds=["Linear"])
        assert_same(model(x), plain)
        assert dict(adapter.calls) == {"gemm_ar": 1}
        with pytest.raises(overlace.InvalidArgument, match="forward of a Linear is replaced, wanted that of its class"):
            enable(model, {NAME: group}, kinds=["Linear"])
        adapter.disable()
        adapter = enable(model, {NAME: group}, kinds=["Linear"])  # nothing to gain on CPU ranks
        assert_same(model(x), plain)
        adapter.disable()
        adapter = enable(model, {"other": group}, when="always", kinds=["Linear"])
        assert_same(model(x), plain)
        assert adapter.calls.total() == 0
        adapter.disable()
    adapter = enable(model, {NAME: group}, when="always", kinds=["Linear"])
    assert_same(model(x), plain)  # with gradients
    assert adapter.calls.total() == 0
    adapter.disable()


def test_biases_gradients_other_groups_and_what_gains_nothing_stay_the_engines():
    run_ranks(2, what_stays)


def compiled(group):
    """The pass has the layer then, in one graph."""
    engines.define(group)
    engines.define.groups[NAME] = group
    torch._dynamo.reset()
    x, module = whole(4, 6, 3 + group.rank()), layer("RowParallelLinear", row, whole(5, 6, 4 + group.rank()))
    with torch.inference_mode():
        plain = module(x)[0]
        adapter = enable(module, {NAME: group}, when="always")
        overlace.compile.report(clear=True)
        with overlace.compile.enable(group, when="always", names={NAME: group}):
            compiled = torch.compile(module, backend=overlace.compile.aot_eager, fullgraph=True)
            assert_same(compiled(x)[0], plain)
    assert [c.became for c in overlace.compile.report().candidates] == ["gemm_ar"]
    assert adapter.calls.total() == 0


def test_a_layer_that_is_compiled_is_left_to_the_pass():
    run_ranks(2, compiled)


def refused(group):
    model = layer("RowParallelLinear", row, whole(5, 6, 4))
    texts = []
    for given, options in (
        ((3, {NAME: group}), {}),
        ((model, {}), {}),
        ((model, [group]), {}),
        ((model, {NAME: "nobody"}), {}),
        ((model, {NAME: group}), {"when": "often"}),
    ):
        with pytest.raises(overlace.InvalidArgument) as caught:
            enable(*given, **options)
        texts.append(str(caught.value))
    return texts


def test_bad_arguments_are_named():
    for texts in run_ranks(2, refused):
        assert texts[0].endswith("model is int, wanted a torch.nn.Module")
        assert texts[1].endswith("names is {}, wanted groups by the engine's names, as {'tp:0': group}")
        assert "wanted groups by the engine's names" in texts[2]
        assert "group 'nobody' has no overlace team" in texts[3]
        assert texts[4].endswith("when is 'often', wanted one of gain, always")
