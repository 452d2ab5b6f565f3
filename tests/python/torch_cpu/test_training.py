"""With what training programs bring: activation checkpoints, FSDP2 on the other dimension of the mesh, the profiler."""

from ranks import RANKS, overlace, run_ranks, torch, whole

nn = torch.nn


def two_layers(group):
    from overlace.nn import ColumnParallelLinear, RowParallelLinear

    torch.manual_seed(5)
    column = ColumnParallelLinear(6, 12, group=group, dtype=torch.float64)
    row = RowParallelLinear(12, 6, group=group, dtype=torch.float64)
    return nn.Sequential(column, nn.Tanh(), row)


def local_gradients(model):
    return [p.grad.to_local() for p in model.parameters()]


def checkpointed(group):
    from torch.utils.checkpoint import checkpoint

    x = whole(4, 6, 1 + group.rank()) / 8
    wanted = two_layers(group)
    wanted(x).square().sum().backward()
    stats = overlace.context_of(group).stats
    for is_reentrant in (False, True):
        model, mine, before = two_layers(group), x.clone().requires_grad_(is_reentrant), stats().calls
        checkpoint(model, mine, use_reentrant=is_reentrant).square().sum().backward()
        # Forward twice. Backward: of both; the gradient of x is a call of its own.
        assert stats().calls - before == 4 + 1 + is_reentrant
        for got, want in zip(local_gradients(model), local_gradients(wanted), strict=True):
            assert torch.equal(got, want)


def test_activation_checkpoints():
    run_ranks(2, checkpointed)


def in_two_dimensions(_world):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    torch.manual_seed(6)
    batches, rate = torch.randn(3, 2, 4, 6, dtype=torch.float64), 0.05  # step, data rank, rows of both tensor ranks
    torch.manual_seed(5)
    plain = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 6)).double()
    with overlace.init(mesh["tensor"]) as context:
        model = two_layers(mesh["tensor"])
        for layer, of in zip((model[0], model[2]), (plain[0], plain[2]), strict=True):
            of.load_state_dict({name: t.full_tensor() for name, t in layer.state_dict().items()})
        fully_shard(model, mesh=mesh["data"])
        optimizers = [torch.optim.SGD(m.parameters(), lr=rate, foreach=False) for m in (plain, model)]
        for batch in batches:
            mine = batch[mesh["data"].get_local_rank()].chunk(2)[mesh["tensor"].get_local_rank()]
            for module, x in ((plain, batch), (model, mine)):
                # FSDP averages over its ranks: the sum of both parts is twice that.
                loss = module(x).square().sum() / (1 if module is model else 2)
                loss.backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        assert context.stats().calls == 3 * 3
        for layer, of in zip((model[0], model[2]), (plain[0], plain[2]), strict=True):
            for name, t in layer.state_dict().items():
                torch.testing.assert_close(t.full_tensor(), of.state_dict()[name])


def test_fsdp_on_the_other_dimension():
    run_ranks(RANKS, in_two_dimensions)


def profiled(group):
    a, b = whole(4, 6, 1), whole(6, 5, 2)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        overlace.ops.ag_gemm(a, b, group=group)
        overlace.ops.gemm_rs(a, b.requires_grad_(), group=group).sum().backward()
    names = {event.key for event in profile.key_averages()}
    assert {"overlace::ag_gemm", "overlace::gemm_rs"} <= names, names


def test_the_profiler_names_the_operators():
    run_ranks(1, profiled)
