"""The layers against the unsharded ones: results, gradients, state."""

import pytest
from ranks import SIZES, overlace, run_ranks, torch, whole

nn = torch.nn


def unsharded(bias):
    torch.manual_seed(7)
    return nn.Linear(12, 24, bias, dtype=torch.float64), nn.Linear(24, 12, bias, dtype=torch.float64)


def pair(group, bias, sequence_parallel, sequence_dim, by):
    """Both layers, built by their constructors or from those of nn."""
    from overlace.nn import ColumnParallelLinear, RowParallelLinear

    given = {"group": group, "sequence_parallel": sequence_parallel, "sequence_dim": sequence_dim}
    if by == "from_module":
        first, second = unsharded(bias)
        return ColumnParallelLinear.from_module(first, **given), RowParallelLinear.from_module(second, **given)
    torch.manual_seed(7)
    given["dtype"] = torch.float64
    return ColumnParallelLinear(12, 24, bias, **given), RowParallelLinear(24, 12, bias, **given)


def part(t, group, dim):
    return t.chunk(group.size(), dim)[group.rank()]


def layers(group, bias, sequence_parallel, by):
    first, second = unsharded(bias)
    dim = 1 if by == "from_module" else 0
    shape = (2, 2 * group.size(), 12) if dim == 1 else (2 * group.size(), 3, 12)
    x = torch.randn(shape, dtype=torch.float64).requires_grad_()
    want = second(torch.tanh(first(x)))
    weights = torch.randn_like(want)
    (want * weights).sum().backward()

    column, row = pair(group, bias, sequence_parallel, dim, by)
    column.keep_gathered = bias
    mine = (part(x, group, dim) if sequence_parallel else x).detach().clone().requires_grad_()
    y = row(torch.tanh(column(mine)))

    def my(t):
        return part(t, group, dim) if sequence_parallel else t

    torch.testing.assert_close(y, my(want))
    (y * my(weights)).sum().backward()
    torch.testing.assert_close(mine.grad, my(x.grad))
    for layer, plain in ((column, first), (row, second)):
        for name, parameter in layer.named_parameters():
            torch.testing.assert_close(parameter.full_tensor(), getattr(plain, name))
            torch.testing.assert_close(parameter.grad.full_tensor(), getattr(plain, name).grad)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("sequence_parallel", [True, False])
@pytest.mark.parametrize("by", ["constructor", "from_module"])
def test_layers_are_the_unsharded_ones(size, sequence_parallel, by):
    for bias in (True, False):
        run_ranks(size, layers, bias, sequence_parallel, by)


def swiglu(group, sequence_parallel, with_gradient):
    """The first half of a Llama MLP as one layer."""
    from overlace.nn import ColumnParallelLinear, interleave_gate_up

    gate, up = unsharded(True)[0], unsharded(True)[0]
    up.weight.data.neg_()
    both = nn.Linear(12, 48, dtype=torch.float64)
    both.weight.data = interleave_gate_up(gate.weight.data, up.weight.data)
    both.bias.data = interleave_gate_up(gate.bias.data, up.bias.data)
    layer = ColumnParallelLinear.from_module(both, group=group, sequence_parallel=sequence_parallel)
    layer.activation = "swiglu"
    x = torch.randn(2 * group.size(), 12, dtype=torch.float64)
    mine = (part(x, group, 0) if sequence_parallel else x).clone().requires_grad_(with_gradient)
    with torch.set_grad_enabled(with_gradient):
        y = layer(mine)
        want = part(nn.functional.silu(gate(x)) * up(x), group, 1)
    torch.testing.assert_close(y, want)
    if with_gradient:
        y.square().sum().backward()
        want.square().sum().backward()
        of_gate, of_up = (part(p.weight.grad, group, 0) for p in (gate, up))
        torch.testing.assert_close(layer.weight.grad.to_local(), interleave_gate_up(of_gate, of_up))


@pytest.mark.parametrize("sequence_parallel", [True, False])
@pytest.mark.parametrize("with_gradient", [True, False])
def test_gate_and_up_are_one_layer(sequence_parallel, with_gradient):
    for size in (1, 2):
        run_ranks(size, swiglu, sequence_parallel, with_gradient)


def state(group):
    column, row = pair(group, True, True, 0, "constructor")
    full = {name: t.full_tensor() for name, t in (column.state_dict() | {"row": row.weight.detach()}).items()}
    first, second = unsharded(True)
    assert set(full) == {"weight", "bias", "row"}
    assert torch.equal(full["row"], second.weight) and torch.equal(full["weight"], first.weight)
    # Back from an unsharded state, by torch's own loader.
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    changed = {"weight": whole(24, 12, 1), "bias": whole(1, 24, 2)[0]}
    set_model_state_dict(column, dict(changed), options=StateDictOptions(full_state_dict=True))
    assert torch.equal(column.weight.full_tensor(), changed["weight"])
    assert torch.equal(column.weight.to_local(), part(changed["weight"], group, 0))
    assert torch.equal(column.bias.full_tensor(), changed["bias"])


@pytest.mark.parametrize("size", SIZES)
def test_state_is_that_of_the_unsharded_model(size):
    run_ranks(size, state)


def refused(group):
    from overlace.nn import ColumnParallelLinear

    with pytest.raises(overlace.InvalidArgument) as caught:
        ColumnParallelLinear(4, 5, group=group)
    return str(caught.value)


def test_a_size_that_does_not_split_is_refused():
    assert run_ranks(2, refused)[0] == "ColumnParallelLinear: out_features is 5, wanted a multiple of 2 ranks"
