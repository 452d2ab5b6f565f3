"""overlace.optim.CO2 with parameters on GPUs: as on the CPU, a GPU a rank or both ranks on one, and checkpoints.

By hand: `PYTHONPATH=build/cuda/python python3 -m pytest tests/python/torch_gpu/test_co2_gpu.py`.
"""

import pytest
from gpu_ranks import GPUS, dist, overlace, run_ranks, torch

TAU, STEPS = 4, 18


def model_of(device):
    torch.manual_seed(3)
    with torch.device("cpu"):  # the same values everywhere
        model = torch.nn.Sequential(torch.nn.Linear(64, 130), torch.nn.Tanh(), torch.nn.Linear(130, 16))
    return model.to(device)


def batch_of(rank, step, device):
    generator = torch.Generator("cpu").manual_seed(1000 * rank + step)
    x = torch.randn(32, 64, generator=generator, device="cpu")
    return x.to(device), x[:, :16].sin().to(device)


def train(group, device, first=0, last=STEPS, state=None, **options):
    model = model_of(device)
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    co2 = overlace.optim.CO2(model, inner, outer_group=group, tau=TAU, transport="host", outer_timeout_s=60, **options)
    if state is not None:
        co2.load_state_dict(state)
    for step in range(first, last):
        inner.zero_grad()
        x, y = batch_of(group.rank(), step, device)
        (model(x) - y).square().mean().backward()
        co2.step()
    saved = co2.state_dict()
    co2.flush()
    co2.close()
    return torch.cat([p.detach().flatten().cpu() for p in model.parameters()]), saved


def equal_over_ranks(values):
    everybody = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, values)
    return all(torch.equal(one, everybody[0]) for one in everybody)


def as_on_the_cpu(group, rule):
    phases = {"warmup_sync_steps": 3, "cooldown_sync_steps": 3, "total_steps": STEPS}
    got, _ = train(group, "cuda", rule=rule, **phases)
    assert equal_over_ranks(got)
    again, _ = train(group, "cuda", rule=rule, **phases)
    assert torch.equal(again, got), "two runs differ"
    alone = model_of("cpu")
    start = torch.cat([p.detach().flatten() for p in alone.parameters()])
    assert not torch.allclose(got, start, atol=1e-2), "nothing was learned"
    if dist.get_backend() == "gloo":  # has CPU tensors, too
        wanted, _ = train(group, "cpu", rule=rule, **phases)
        assert torch.allclose(got, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.skipif(GPUS < 2, reason="two GPUs")
@pytest.mark.parametrize("rule", ("co2", "eager", "local_sgd", "diloco"))
def test_a_gpu_a_rank_over_nccl(rule):
    run_ranks(2, as_on_the_cpu, rule)


def resumed(group):
    wanted, _ = train(group, "cuda")
    for stop in (3, 4, 6, 9):
        _, state = train(group, "cuda", 0, stop)
        got, _ = train(group, "cuda", stop, STEPS, state)
        assert torch.equal(got, wanted), stop


@pytest.mark.skipif(GPUS < 2, reason="two GPUs")
def test_a_run_on_gpus_resumes_with_the_same_bits():
    run_ranks(2, resumed)


def on_one_gpu(rank, store, rule):
    torch.cuda.set_device(0)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    as_on_the_cpu(dist.group.WORLD, rule)
    dist.destroy_process_group()


@pytest.mark.parametrize("rule", ("co2", "streaming"))
def test_two_ranks_on_one_gpu_are_as_on_the_cpu(rule, tmp_path):
    torch.multiprocessing.spawn(on_one_gpu, (str(tmp_path / "store"), rule), 2)


def refused(group):
    model = model_of("cuda")
    inner = torch.optim.SGD(model.parameters(), lr=0.05)
    with pytest.raises(overlace.Unsupported, match="whose backend has no CPU tensors"):
        overlace.optim.CO2(model, inner, outer_group=group, tau=2, transport="process_group")


@pytest.mark.skipif(GPUS < 2, reason="two GPUs")
def test_a_group_of_nccl_alone_is_no_transport():
    run_ranks(2, refused)
