"""The styles for parallelize_module against torch's own and against the unsharded model, over steps of training."""

import pytest
from ranks import SIZES, run_ranks, torch

nn = torch.nn
STEPS = 5


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(12, dtype=torch.float64)
        self.up, self.down = nn.Linear(12, 24, dtype=torch.float64), nn.Linear(24, 12, dtype=torch.float64)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


def model_of_seed():
    torch.manual_seed(11)
    return nn.Sequential(Mlp(), Mlp())


def plan_of(styles, is_sequence_parallel):
    from torch.distributed.tensor import Replicate, Shard

    if not is_sequence_parallel:
        column, row = styles.ColwiseParallel(), styles.RowwiseParallel(output_layouts=Replicate())
        return {f"{i}.{name}": style for i in range(2) for name, style in (("up", column), ("down", row))}
    column = styles.ColwiseParallel(input_layouts=Shard(1))
    row = styles.RowwiseParallel(output_layouts=Shard(1), use_local_output=False)
    parts = (("norm", styles.SequenceParallel()), ("up", column), ("down", row))
    return {f"{i}.{name}": style for i in range(2) for name, style in parts}


def trained(model, inputs):
    """Loss after loss, and the parameters at the end; inputs may be DTensors."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    losses = []
    for x, target in inputs:
        loss = (model(x) - target).square().sum() / 100
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.full_tensor() if hasattr(loss, "full_tensor") else loss)
    whole = {k: t.full_tensor() if hasattr(t, "full_tensor") else t for k, t in model.state_dict().items()}
    return torch.stack(losses).detach(), whole


def styles_agree(group, is_sequence_parallel):
    import overlace.parallel
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.distributed.tensor import parallel as torch_styles

    mesh = DeviceMesh.from_group(group, "cpu")
    torch.manual_seed(12)
    inputs = [torch.randn(2, 2, 4 * group.size(), 12, dtype=torch.float64).unbind()] * STEPS
    losses, state = trained(model_of_seed(), inputs)
    assert losses[-1] < losses[0]
    given = inputs
    if is_sequence_parallel:
        given = [tuple(distribute_tensor(t, mesh, [Shard(1)]) for t in pair) for pair in inputs]
    for styles in (torch_styles, overlace.parallel):
        model = torch_styles.parallelize_module(model_of_seed(), mesh, plan_of(styles, is_sequence_parallel))
        calls = overlace.context_of(group).stats().calls
        got_losses, got_state = trained(model, given)
        torch.testing.assert_close(got_losses, losses)
        assert got_state.keys() == state.keys()
        for name, value in state.items():
            torch.testing.assert_close(got_state[name], value)
        assert (overlace.context_of(group).stats().calls > calls) == (styles is overlace.parallel)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("is_sequence_parallel", [True, False])
def test_styles_train_as_those_of_torch_and_the_unsharded_model(size, is_sequence_parallel):
    run_ranks(size, styles_agree, is_sequence_parallel)


def without_team(group):
    import overlace.parallel
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import parallel as torch_styles

    fresh = torch.distributed.new_group([group.rank()], use_local_synchronization=True)
    mesh = DeviceMesh.from_group(fresh, "cpu")
    with pytest.raises(overlace.InvalidArgument, match="has no overlace team"):
        torch_styles.parallelize_module(model_of_seed(), mesh, plan_of(overlace.parallel, True))


def test_a_mesh_without_a_team_is_refused():
    run_ranks(1, without_team)
