"""overlace.optim.CO2 with parameters on GPUs: as on the CPU, a GPU a rank or both ranks on one, groups of two GPUs,
checkpoints, and what the host waits for.

By hand: `PYTHONPATH=build/cuda/python python3 -m pytest tests/python/torch_gpu/test_co2_gpu.py`.
"""

import statistics
import time

import pytest
from gpu_ranks import GPUS, dist, overlace, run_ranks, torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

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


def train(group, device, first=0, last=STEPS, state=None, transport="host", dtype=torch.float32, **options):
    model = model_of(device).to(dtype)
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    way = {"transport": transport if device == "cuda" else "host", "outer_timeout_s": 60}
    co2 = overlace.optim.CO2(model, inner, outer_group=group, tau=TAU, **way, **options)
    assert co2.transport == way["transport"]
    if state is not None:
        co2.load_state_dict(state)
    for step in range(first, last):
        inner.zero_grad()
        x, y = (t.to(dtype) for t in batch_of(group.rank(), step, device))
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


def as_on_the_cpu(group, rule, transport="host"):
    phases = {"warmup_sync_steps": 3, "cooldown_sync_steps": 3, "total_steps": STEPS}
    got, _ = train(group, "cuda", rule=rule, transport=transport, **phases)
    assert equal_over_ranks(got)
    again, _ = train(group, "cuda", rule=rule, transport=transport, **phases)
    assert torch.equal(again, got), "two runs differ"
    alone = model_of("cpu")
    start = torch.cat([p.detach().flatten() for p in alone.parameters()])
    assert not torch.allclose(got, start, atol=1e-2), "nothing was learned"
    if dist.get_backend() == "gloo":  # has CPU tensors, too
        wanted, _ = train(group, "cpu", rule=rule, **phases)
        assert torch.allclose(got, wanted, rtol=1e-3, atol=1e-4)


two_gpus = pytest.mark.skipif(GPUS < 2, reason="two GPUs")
over_both = pytest.mark.parametrize("transport", ("host", "nccl"))


@two_gpus
@over_both
@pytest.mark.parametrize("rule", ("co2", "eager", "streaming", "local_sgd", "diloco"))
def test_a_gpu_a_rank(rule, transport):
    run_ranks(2, as_on_the_cpu, rule, transport)


def transports_alike(group):
    for options in ({}, {"dtype": torch.bfloat16}, {"dtype": torch.float16}, {"wire_dtype": torch.bfloat16}):
        over_host, _ = train(group, "cuda", transport="host", **options)
        over_nccl, _ = train(group, "cuda", transport="nccl", **options)
        assert torch.equal(over_host, over_nccl), options
        assert equal_over_ranks(over_host)
    got, _ = train(group, "cuda", transport="host", wire_dtype=torch.int8)
    assert equal_over_ranks(got)
    model = model_of("cuda")
    inner = torch.optim.SGD(model.parameters(), lr=0.05)
    for refused, options in (("int8", {"wire_dtype": torch.int8}), ("drop_group", {"on_failure": "drop_group"})):
        with pytest.raises(overlace.Unsupported, match=refused):
            overlace.optim.CO2(model, inner, outer_group=group, tau=2, transport="nccl", **options)


@two_gpus
def test_both_transports_have_the_same_bits_in_every_dtype():
    run_ranks(2, transports_alike)


def state_on_the_host(group):
    wanted, _ = train(group, "cuda")
    model = model_of("cuda")
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    way = {"transport": "host", "state": "host", "outer_timeout_s": 60}
    with overlace.optim.CO2(model, inner, outer_group=group, tau=TAU, **way) as co2:
        for step in range(STEPS):
            inner.zero_grad()
            x, y = batch_of(group.rank(), step, "cuda")
            (model(x) - y).square().mean().backward()
            inner.step()
        assert not co2._is_direct
    got = torch.cat([p.detach().flatten().cpu() for p in model.parameters()])
    assert equal_over_ranks(got)
    # Sums of squares, which the clip looks at, are taken in another order.
    assert torch.allclose(got, wanted, rtol=1e-4, atol=1e-5)


@two_gpus
def test_the_state_may_lie_on_the_host():
    run_ranks(2, state_on_the_host)


def resumed(group, transport):
    wanted, _ = train(group, "cuda", transport=transport)
    for stop in (3, 4, 6, 9):
        _, state = train(group, "cuda", 0, stop, transport=transport)
        got, _ = train(group, "cuda", stop, STEPS, state, transport=transport)
        assert torch.equal(got, wanted), stop


@two_gpus
@over_both
def test_a_run_on_gpus_resumes_with_the_same_bits(transport):
    run_ranks(2, resumed, transport)


def opened(group, transport, rounds):
    """Model, inner optimizer, CO2, and the batches of so many rounds."""
    model = model_of("cuda")
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    co2 = overlace.optim.CO2(model, inner, outer_group=group, tau=TAU, transport=transport, outer_timeout_s=60)
    return model, inner, co2, [batch_of(group.rank(), step, "cuda") for step in range(rounds * TAU)]


def no_synchronisation(group, transport):
    model, inner, co2, batches = opened(group, transport, 4)
    torch.cuda.synchronize()
    took = []
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step, (x, y) in enumerate(batches):
            inner.zero_grad()
            (model(x) - y).square().mean().backward()
            begin = time.perf_counter_ns()
            co2._before()
            ready = time.perf_counter_ns()
            inner.step()
            stepped = time.perf_counter_ns()
            co2._after()
            if (step + 1) % TAU != 0:
                took.append(time.perf_counter_ns() - stepped + ready - begin)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert statistics.median(took) <= 20_000, took
    stats = co2.stats()
    assert stats["rounds"] == 2, "the boundary before the last one is known"
    assert stats["pass_ms"] > 0
    assert stats["is_dropped"] == 0
    co2.flush()
    assert co2.stats()["rounds"] == 4
    co2.close()


@two_gpus
@over_both
def test_no_synchronisation_between_boundaries(transport):
    run_ranks(2, no_synchronisation, transport)


def late_rank(group, transport):
    model, inner, co2, batches = opened(group, transport, 5)
    took_ms = []
    for step, (x, y) in enumerate(batches):
        if step == 2 * TAU:  # nothing is on its way, both ranks are here
            torch.cuda.synchronize()
            dist.barrier()
            torch.cuda.synchronize()
        is_boundary = (step + 1) % TAU == 0
        inner.zero_grad()
        (model(x) - y).square().mean().backward()
        if group.rank() == 1 and step + 1 == 3 * TAU:
            time.sleep(1)
        begin = time.perf_counter_ns()
        co2.step()
        if is_boundary:
            took_ms.append((time.perf_counter_ns() - begin) / 1e6)
    if group.rank() == 0:
        # The third boundary sends what rank 1 sends a second later; the stream waits for it in the fourth.
        assert max(took_ms[2:4]) < 100, took_ms
        assert co2.stats()["exposed_ms"] > 500, co2.stats()
    co2.flush()
    co2.close()


@two_gpus
@over_both
def test_a_boundary_does_not_hold_the_host_while_another_rank_is_late(transport):
    run_ranks(2, late_rank, transport)


def bad_values(group, transport):
    model = model_of("cuda")
    inner = torch.optim.SGD(model.parameters(), lr=0.0)
    co2 = overlace.optim.CO2(model, inner, outer_group=group, tau=1, transport=transport, outer_timeout_s=60)

    def step(is_bad):
        inner.zero_grad()
        model(torch.ones(1, 64, device="cuda")).sum().backward()
        if is_bad and group.rank() == 1:
            with torch.no_grad():
                model[0].weight[3, 5] = float("nan")
        co2.step()

    start = co2._anchor().clone()
    for is_bad in (False, False, True, False, False):
        step(is_bad)
    assert torch.equal(co2._anchor(), start), "nothing was learned, and what was bad is dropped on all ranks"
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    with pytest.raises(overlace.NonFinite, match="3 rounds in a row"):
        for _ in range(6):
            step(True)
    assert torch.equal(co2._anchor(), start)
    dist.barrier()  # closing with increments on their way aborts the other rank, which might not have come so far
    co2.close()


@two_gpus
@over_both
def test_bad_values_are_dropped_on_all_ranks_alike(transport):
    run_ranks(2, bad_values, transport)


def chosen(group):
    model = model_of("cuda")
    inner = torch.optim.SGD(model.parameters(), lr=0.05)
    co2 = overlace.optim.CO2(model, inner, outer_group=group, tau=2, outer_timeout_s=60)
    # The pool's ranks have a team of overlace, whose fused kernels must not wait for NCCL's.
    assert co2.transport == "host"
    co2.close()


@two_gpus
def test_auto_leaves_the_multiprocessors_to_teams():
    run_ranks(2, chosen)


def on_one_gpu(rank, store, rule):
    torch.cuda.set_device(0)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    as_on_the_cpu(dist.group.WORLD, rule)
    dist.destroy_process_group()


@pytest.mark.parametrize("rule", ("co2", "streaming"))
def test_two_ranks_on_one_gpu_are_as_on_the_cpu(rule, tmp_path):
    torch.multiprocessing.spawn(on_one_gpu, (str(tmp_path / "store"), rule), 2)


def two_groups_of_two(rank, store, kind):
    device = torch.device("cuda", rank % 2)
    torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl", init_method=f"file://{store}", rank=rank, world_size=4)
    groups = overlace.optim.make_groups(ranks_per_group=2)
    model = model_of(device)
    start = torch.cat([p.detach().flatten().cpu() for p in model.parameters()])
    if kind == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model, process_group=groups.inner)
    else:
        fully_shard(model, mesh=DeviceMesh.from_group(groups.inner, "cuda"))
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    outer = {"outer_group": groups.outer, "inner_group": groups.inner, "transport": "host", "outer_timeout_s": 120}
    co2 = overlace.optim.CO2(model, inner, tau=TAU, **outer)
    for step in range(STEPS):
        inner.zero_grad()
        x, y = batch_of(rank, step, device)
        (model(x) - y).square().mean().backward()
        co2.step()
    co2.flush()
    assert co2.stats()["rounds"] == STEPS // TAU + 1
    co2.close()
    whole = [getattr(p, "full_tensor", lambda p=p: p)().detach().flatten().cpu() for p in model.parameters()]
    got = torch.cat(whole)
    assert not torch.allclose(got, start, atol=1e-2), "nothing was learned"
    assert equal_over_ranks(got)
    dist.destroy_process_group()


@two_gpus
@pytest.mark.parametrize("kind", ("ddp", "fsdp"))
def test_two_groups_of_two_as_four_processes_on_two_gpus(kind, tmp_path):
    torch.multiprocessing.spawn(two_groups_of_two, (str(tmp_path / "store"), kind), 4)


def refused(group):
    model = model_of("cuda")
    inner = torch.optim.SGD(model.parameters(), lr=0.05)
    with pytest.raises(overlace.Unsupported, match="whose backend has no CPU tensors"):
        overlace.optim.CO2(model, inner, outer_group=group, tau=2, transport="process_group")


@two_gpus
def test_a_group_of_nccl_alone_is_no_transport():
    run_ranks(2, refused)
