"""Layers of serving engines in eager mode, with operators of overlace inside of their own forward."""

import pytest
import test_compile_engines as engines
from overlace.compat.engines import enable
from ranks import assert_same, overlace, run_ranks, torch, whole
from test_compile_engines import NAME, define

nn, linear = torch.nn, torch.nn.functional.linear


class RowParallel(nn.Module):
    """In the style of vLLM: its input may be whole, rank 0 adds the bias, the result is a tuple if it is asked for."""

    def __init__(self, group, k, n, bias=False, skip_bias_add=False, input_is_parallel=True, return_bias=True):
        super().__init__()
        self.tp_rank, self.tp_size = group.rank(), group.size()
        self.weight = nn.Parameter(whole(n, k, 3).chunk(self.tp_size, 1)[self.tp_rank].contiguous())
        self.bias = nn.Parameter(whole(1, n, 5)[0]) if bias else None
        self.skip_bias_add, self.input_is_parallel, self.return_bias = skip_bias_add, input_is_parallel, return_bias

    def reduce(self, output):
        return torch.ops.vllm.all_reduce(output, group_name=NAME)

    def forward(self, x):
        if not self.input_is_parallel:
            x = x.chunk(self.tp_size, -1)[self.tp_rank].contiguous()
        output = linear(x, self.weight, None if self.tp_rank > 0 or self.skip_bias_add else self.bias)
        output = self.reduce(output)
        return (output, self.bias if self.skip_bias_add else None) if self.return_bias else output


class InPlace(RowParallel):
    """In the style of SGLang: the sum takes the place of the product."""

    def reduce(self, output):
        return engines.reduced_in_place(output)


class Scattered(RowParallel):
    def reduce(self, output):
        return torch.ops.vllm.reduce_scatter(output, 0, self.tp_size, NAME)


class ScatteredInto(RowParallel):
    def reduce(self, output):
        return engines.scattered_into(output, self.tp_size)


class ColumnParallel(nn.Module):
    """Of a part of the tokens: gathers them first."""

    def __init__(self, group, k, n, bias=False):
        super().__init__()
        self.tp_rank, self.tp_size = group.rank(), group.size()
        self.weight = nn.Parameter(whole(n, k, 4).chunk(self.tp_size, 0)[self.tp_rank].contiguous())
        self.bias = nn.Parameter(whole(1, n, 6)[0].chunk(self.tp_size)[self.tp_rank].contiguous()) if bias else None

    def gather(self, x):
        return torch.ops.vllm.all_gather(x, 0, self.tp_size, NAME)

    def forward(self, x):
        return linear(self.gather(x), self.weight, self.bias), None


class ColumnInto(ColumnParallel):
    def gather(self, x):
        self.rows = torch.empty((self.tp_size * x.shape[0], *x.shape[1:]), dtype=x.dtype)
        torch.ops.sglang.reg_all_gather_into_tensor(self.rows, x, group_name=NAME)
        return self.rows


class Reading(RowParallel):
    """Something reads the product before the sum, and before and behind a gather."""

    def reduce(self, output):
        total = torch.ops.vllm.all_reduce(output + 1, group_name=NAME)
        return total + torch.ops.vllm.all_gather(output, 0, self.tp_size, NAME).sum(0)


class Unreduced(RowParallel):
    def reduce(self, output):
        return output


class Kept(RowParallel):
    """The product is a result too."""

    def reduce(self, output):
        return output, super().reduce(output)


class Everywhere(RowParallel):
    """Every rank adds its bias."""

    def forward(self, x):
        return self.reduce(linear(x, self.weight, self.bias))


def leaves(result):
    return [t for t in torch.utils._pytree.tree_leaves(result) if t is not None]


def start(group):
    define(group)
    engines.define.groups[NAME] = group
    return group.size()


def replaced(group):
    n = start(group)
    calls = overlace.context_of(group).stats
    cases = {  # layer, features of its input on this rank, how many calls of overlace
        "row": (RowParallel(group, 4 * n, 5), 4, 1),
        "row with bias": (RowParallel(group, 4 * n, 5, bias=True), 4, 1),
        "its bias is a result": (RowParallel(group, 4 * n, 5, bias=True, skip_bias_add=True), 4, 1),
        "no tuple": (RowParallel(group, 4 * n, 5, bias=True, return_bias=False), 4, 1),
        "its input is whole": (RowParallel(group, 4 * n, 5, input_is_parallel=False), 4 * n, 1),
        "in place": (InPlace(group, 4 * n, 5), 4, 1),
        "in place with bias": (InPlace(group, 4 * n, 5, bias=True), 4, 1),
        "scattered": (Scattered(group, 4 * n, 5, bias=True), 4, 1),
        "scattered into": (ScatteredInto(group, 4 * n, 5), 4, 1),
        "column": (ColumnParallel(group, 4, 3 * n), 4, 1),
        "column with bias": (ColumnParallel(group, 4, 3 * n, bias=True), 4, 1),
        "column into": (ColumnInto(group, 4, 3 * n, bias=True), 4, 1),
        "the product is read": (Reading(group, 4 * n, 5, bias=True), 4, 0),
        "no sum": (Unreduced(group, 4 * n, 5, bias=True), 4, 0),
        "the product is a result": (Kept(group, 4 * n, 5), 4, 1),
    }
    for name, (layer, features, wanted) in cases.items():
        for tokens in (1, 3, 8, 16):  # of a batch; engines pad it to a few sizes
            rows = -(-tokens // n) * n
            x = torch.nn.functional.pad(whole(tokens, features, 7 + group.rank()), (0, 0, 0, rows - tokens))
            for given in (x, x.unflatten(0, (rows // n, n)).movedim(1, 0)) if tokens > 1 else (x,):
                with torch.no_grad():
                    plain = leaves(layer(given))
                    before = calls().calls
                    with enable(layer, type(layer), names={NAME: group}) as enabled:
                        got = leaves(layer(given))
                    assert enabled.layers == (type(layer).__name__,)
                    assert calls().calls - before == wanted, name
                    again = leaves(layer(given))
                assert calls().calls - before == wanted, name
                assert len(plain) == len(got) == len(again)
                for ours, theirs, after in zip(got, plain, again, strict=True):
                    assert_same(ours, theirs)
                    assert_same(after, theirs)
        if isinstance(layer, ColumnInto):
            with torch.no_grad(), enable(layer, ColumnInto, names={NAME: group}):
                layer(x)
            assert_same(layer.rows, torch.ops.vllm.all_gather(x, 0, n, NAME))


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_layers_give_what_they_gave_before(ranks):
    run_ranks(ranks, replaced)


class Model(nn.Module):
    def __init__(self, group):
        super().__init__()
        n = group.size()
        self.up, self.down = ColumnParallel(group, 4, 3 * n), Scattered(group, 3 * n, 4)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)[0]))[0]


def of_model(group):
    start(group)
    calls, model, x = overlace.context_of(group).stats, Model(group), whole(4, 4, 1)
    enabled = enable(model, (ColumnParallel, RowParallel), names={NAME: group}, plan="hetero_unfused_1d:2")
    assert enabled.layers == ("up", "down")
    before = calls().calls
    wanted = None
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            got = model(x)
        wanted = got if wanted is None else wanted
        assert_same(got.clone(), wanted)
    assert calls().calls - before == 4
    model(x)  # gradients are on: the layers' own
    assert calls().calls - before == 4
    enabled.remove()
    enabled.remove()
    with torch.no_grad():
        assert_same(model(x), wanted)
    assert calls().calls - before == 4
    assert "forward" not in vars(model.up) and "forward" not in vars(model.down)


def test_the_layers_of_a_model_and_their_own_forward_again():
    run_ranks(2, of_model)


def refused(group):
    n = start(group)
    names, x = {NAME: group}, whole(4, 4, 1)
    layer = RowParallel(group, 4 * n, 5)
    with pytest.raises(overlace.InvalidArgument, match="model has no layer of ColumnParallel, wanted one or more"):
        enable(layer, ColumnParallel, names=names)
    with pytest.raises(overlace.InvalidArgument, match=r"names is \{\}, wanted groups"):
        enable(layer, RowParallel, names={})
    with pytest.raises(overlace.InvalidArgument, match="group 'nobody' has no overlace team"):
        enable(layer, RowParallel, names={NAME: "nobody"})
    layer.tp_size = 7
    with pytest.raises(
        overlace.InvalidArgument, match=rf"RowParallel: it is of rank . of 7, wanted . of {n}, of names"
    ):
        enable(layer, RowParallel, names=names)
    layer.tp_size = n
    layer.weight = nn.Parameter(layer.weight.to(torch.int8), requires_grad=False)
    with pytest.raises(
        overlace.Unsupported, match=r"RowParallel: weight is \[5, 4\] of torch.int8, wanted .* quantised"
    ):
        enable(layer, RowParallel, names=names)
    layer.weight = None
    with pytest.raises(overlace.Unsupported, match="RowParallel: weight is None, wanted"):
        enable(layer, RowParallel, names=names)
    assert "forward" not in vars(layer)

    before = overlace.context_of(group).stats().calls
    other = RowParallel(group, 4 * n, 5)
    text = "collective is of group 'tp:0', wanted one of names: 'pp:0'"
    raises_in(other, x, {"pp:0": group}, text)
    everywhere = Everywhere(group, 4 * n, 5, bias=True)
    raises_in(everywhere, x, names, "rank 1 adds its bias before the sum, wanted rank 0 alone")
    alone = RowParallel(group, 4 * n, 5, bias=group.rank() == 0)
    raises_in(alone, x, names, "rank 1 has no bias, wanted that of rank 0, which adds one")
    assert overlace.context_of(group).stats().calls == before
    first = RowParallel(group, 4 * n, 5, bias=True)
    enabled = enable(first, RowParallel, names=names)
    with torch.no_grad():
        first(x)
    first.skip_bias_add = True
    if group.rank() == 0:
        raises_in(first, x, None, "rank 0 gives no bias, wanted what it gave at its first")
    enabled.remove()


def raises_in(layer, x, names, text):
    enabled = enable(layer, RowParallel, names=names) if names else None
    with torch.no_grad(), pytest.raises(overlace.InvalidArgument, match=text):
        layer(x)
    if enabled:
        enabled.remove()


def test_layers_that_cannot_be_taken_are_refused():
    run_ranks(2, refused)
