"""overlace.optim.CO2 where a program does what it must not, or what few programs do: nothing trains apart unseen."""

import time
import warnings

import pytest
from ranks import overlace, run_ranks, torch

nn = torch.nn


def model_of(seed: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def loss_of(model: nn.Module, rank: int, step: int, rows: slice = slice(None)) -> "torch.Tensor":
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(1000 * rank + step))[rows]
    y = torch.stack([x[:, 0] * x[:, 1], x.sum(1), x[:, 2].sin()], 1)
    return (model(x) - y).square().sum() / 24


def flat(model: nn.Module) -> "torch.Tensor":
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def start(group, model=None, **options):
    model = model or model_of()
    inner = torch.optim.SGD(model.parameters(), lr=0.05)
    return model, inner, overlace.optim.CO2(model, inner, outer_group=group, outer_timeout_s=20, **options)


def go_on(group, parts, steps):
    model, inner, co2 = parts
    for step in steps:
        inner.zero_grad()
        loss_of(model, group.rank(), step).backward()
        co2.step()


def anchored(group):
    parts, whole = start(group, tau=3), start(group, tau=3)
    go_on(group, whole, range(9))
    go_on(group, parts, range(4))
    own = flat(parts[0])
    with parts[2].anchor_parameters():
        anchor = flat(parts[0])
        for call in (parts[2].step, parts[2].flush, parts[2].state_dict):
            with pytest.raises(overlace.InvalidArgument, match="inside `with anchor_parameters"):
                for p in parts[0].parameters():
                    p.grad = None
                call()
        with parts[2].anchor_parameters():
            assert torch.equal(flat(parts[0]), anchor)
        assert torch.equal(flat(parts[0]), anchor)
    assert torch.equal(flat(parts[0]), own)
    go_on(group, parts, range(4, 9))  # nothing has changed
    for _, _, co2 in (parts, whole):
        co2.flush()
        co2.close()
    assert torch.equal(flat(parts[0]), flat(whole[0]))


def test_nothing_is_counted_or_saved_while_the_model_has_the_anchor():
    run_ranks(2, anchored)


def remade(group):
    def expect(text, change):
        parts = start(group, tau=2)
        go_on(group, parts, range(1))
        change(parts[0])
        with pytest.raises(overlace.InvalidArgument, match=text):
            go_on(group, parts, range(1, 2))
        parts[2].close()

    def freeze(model):
        model[0].bias.requires_grad_(False)

    def replace(model):
        model[2].weight = nn.Parameter(model[2].weight.detach().clone())

    expect(r"parameter 2\.weight is another object than when CO2 was made", replace)
    expect(r"parameter 3\.weight was not there", lambda model: model.append(nn.Linear(3, 3)))
    expect(r"parameter 0\.bias is gone or frozen", freeze)


def test_parameters_added_replaced_or_frozen_later_are_named():
    run_ranks(2, remade)


class Branches(nn.Module):
    """Two parts of one shape, of which a step uses one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.left, self.right, self.never = nn.Linear(6, 3), nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: "torch.Tensor") -> "torch.Tensor":
        return (self.left if self.use_left else self.right)(x)


def branches(group):
    model, inner, co2 = start(group, Branches(), tau=2, warmup_sync_steps=4)
    plain = Branches()
    plain_inner = torch.optim.SGD(plain.parameters(), lr=0.05)
    for step in range(4):
        inner.zero_grad()
        model.use_left = (step + group.rank()) % 2 == 0
        loss_of(model, group.rank(), step).backward()
        co2.step()
        plain_inner.zero_grad()
        for rank in range(2):
            plain.use_left = (step + rank) % 2 == 0
            (loss_of(plain, rank, step) / 2).backward()
        plain_inner.step()
    assert model.never.weight.grad is None  # nobody used it
    assert (flat(model) - flat(plain)).abs().max() < 1e-6
    co2.close()
    return flat(model).tolist()


def test_warm_up_takes_a_gradient_that_one_group_lacks_as_zero():
    first, second = run_ranks(2, branches)
    assert first == second


def cools_down(group):
    """A group that has never used `right` gets the other one's state of it, and both end alike."""
    torch.manual_seed(1)
    model = Branches()
    inner = torch.optim.AdamW(model.parameters(), lr=0.05)
    options = dict(tau=2, cooldown_sync_steps=3, total_steps=7, outer_timeout_s=20)
    with overlace.optim.CO2(model, inner, outer_group=group, **options):
        for step in range(7):
            model.use_left = group.rank() == 0 or step == 2
            inner.zero_grad()
            loss_of(model, group.rank(), step).backward()
            inner.step()
            states = [inner.state[p]["exp_avg"] for p in (model.left.weight, model.right.weight) if p in inner.state]
            if step == 2:
                assert len(states) == (1 if group.rank() == 0 else 2)
    assert model.never.weight not in inner.state
    return flat(model).tolist(), [s.tolist() for s in states]


def test_cool_down_averages_a_state_that_one_group_lacks():
    first, second = run_ranks(2, cools_down)
    assert first == second


def leaves(group):
    begin = time.monotonic()
    rank = group.rank()
    with pytest.raises((ValueError, overlace.PeerLost)) as told:
        model = model_of()
        inner = torch.optim.SGD(model.parameters(), lr=0.05)
        options = dict(tau=2, rule="local_sgd", transport="host", outer_timeout_s=100)
        with overlace.optim.CO2(model, inner, outer_group=group, **options):
            for step in range(6):
                if rank == 1 and step == 3:
                    raise ValueError("no such file")
                inner.zero_grad()
                loss_of(model, rank, step).backward()
                inner.step()
    assert time.monotonic() - begin < 50
    return str(told.value)


def test_a_rank_that_leaves_by_an_exception_ends_the_others_with_its_text():
    first, second = run_ranks(2, leaves)
    assert second == "no such file"
    assert "rank 1 of 2: ValueError: no such file" in first


def of_two_dtypes(world):
    groups = overlace.optim.make_groups(world, ranks_per_group=2)

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(2)
            self.first, self.second = nn.Linear(6, 5).bfloat16(), nn.Linear(5, 3)

        def forward(self, x):
            return self.second(self.first(x.bfloat16()).float())

    model = nn.parallel.DistributedDataParallel(Mixed(), process_group=groups.inner)
    inner = torch.optim.SGD(model.parameters(), lr=0.05)
    options = dict(outer_group=groups.outer, inner_group=groups.inner, outer_timeout_s=20)
    with overlace.optim.CO2(model, inner, tau=2, **options):
        for step in range(5):
            inner.zero_grad()
            loss_of(model, world.rank(), step).backward()
            inner.step()
    return [values.float().tolist() for values in model.parameters()]


def test_slices_of_a_model_of_two_dtypes_are_spread_right():
    ends = run_ranks(4, of_two_dtypes)
    assert all(end == ends[0] for end in ends)


def absent_group(world):
    groups = overlace.optim.make_groups(world, ranks_per_group=2)
    model = nn.parallel.DistributedDataParallel(model_of(), process_group=groups.inner)
    inner = torch.optim.SGD(model.parameters(), lr=0.05)
    options = dict(outer_group=groups.outer, inner_group=groups.inner, transport="host", outer_timeout_s=3)
    co2 = overlace.optim.CO2(model, inner, tau=1, **options)
    text = ""
    for step in range(2 if groups.group == 0 else 0):
        inner.zero_grad()
        loss_of(model, world.rank(), step).backward()
        if step == 0:
            co2.step()
            continue
        with pytest.raises((overlace.Timeout, overlace.PeerLost)) as told:
            co2.step()
        text = str(told.value)
    torch.distributed.barrier(group=world)
    co2.close()
    return text


def test_ranks_in_errors_are_told_as_those_of_the_program_too():
    texts = run_ranks(4, absent_group)
    assert "not seen: rank 1" in texts[0]
    assert texts[0].endswith("ranks 0 to 1 of the outer group are ranks 0, 2")
    assert texts[1].endswith("ranks 0 to 1 of the outer group are ranks 1, 3")


def bad_values(group):
    def expect(kind, text, **options):
        model = model_of()
        with pytest.raises(kind, match=text):
            overlace.optim.CO2(
                model, torch.optim.SGD(model.parameters(), lr=0.1), outer_group=group, **{"tau": 2, **options}
            )

    for seconds in (0, 1e-4, -3, float("nan"), float("inf"), "5"):
        expect(overlace.InvalidArgument, "outer_timeout_s is .*wanted: 0.001 to", outer_timeout_s=seconds)
    expect(overlace.InvalidArgument, "tau is 2.5, wanted: an integer", tau=2.5)
    expect(overlace.InvalidArgument, "tau is True, wanted: an integer", tau=True)
    expect(overlace.InvalidArgument, "total_steps is 9223372036854775808, wanted", total_steps=2**63)
    expect(
        overlace.Unsupported,
        "wire_dtype is torch.int8 with transport 'process_group'; supported: 'host'",
        wire_dtype=torch.int8,
        transport="process_group",
    )
    expect(
        overlace.Unsupported, "'nccl' with parameters that are not all on one GPU; supported: 'host'", transport="nccl"
    )
    expect(overlace.InvalidArgument, "link is '1GB/s' with transport 'nccl', wanted", transport="nccl", link="1GB/s")
    expect(overlace.InvalidArgument, "transport is 'mpi', wanted one of 'auto', 'host',", transport="mpi")
    expect(overlace.Unsupported, "on_failure is 'drop_group' with tau 'auto'", on_failure="drop_group", tau="auto")


def test_bad_values_are_refused_with_their_text():
    run_ranks(2, bad_values)


def by_what_was_waited(group, transport):
    ends = []
    for seconds in (20, "auto"):
        model = model_of()
        inner = torch.optim.SGD(model.parameters(), lr=0.05)
        with overlace.optim.CO2(
            model, inner, outer_group=group, tau=1, transport=transport, outer_timeout_s=seconds
        ) as co2:
            for step in range(20):  # from 16 rounds on the deadline is one of its own
                inner.zero_grad()
                loss_of(model, group.rank(), step).backward()
                inner.step()
            co2.flush()
            assert co2.stats()["rounds"] == 20
        ends.append(flat(model))
    assert torch.equal(*ends)


@pytest.mark.parametrize("transport", ("host", "process_group"))
def test_a_deadline_by_what_rounds_were_waited_for(transport):
    run_ranks(2, by_what_was_waited, transport)


# ---- what training loops do beside steps ----


def accumulates(group):
    """Two halves of a batch and a clipped norm, as hooks of the inner optimizer see one step."""
    ends = []
    for halves in ([slice(None)], [slice(0, 4), slice(4, 8)]):
        model = model_of()
        inner = torch.optim.SGD(model.parameters(), lr=0.05)
        norms = []
        with overlace.optim.CO2(model, inner, outer_group=group, tau=2, outer_timeout_s=20) as co2:
            for step in range(8):
                inner.zero_grad()
                for rows in halves:
                    loss_of(model, group.rank(), step, rows).backward()
                norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.05)))
                inner.step()
            co2.flush()
            assert co2.stats()["rounds"] == 4
        assert max(norms) > 0.05  # it was clipped
        ends.append(flat(model))
    assert (ends[0] - ends[1]).abs().max() < 1e-6
    return ends[0].tolist()


def test_accumulated_and_clipped_gradients_are_one_inner_step():
    first, second = run_ranks(2, accumulates)
    assert first == second


def scaled(group):
    """One group's scaler leaves a step out: both count it, so that they come to the boundary together."""
    model, inner, co2 = start(group, tau=3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    left_out = 0
    for step in range(9):
        inner.zero_grad()
        scaler.scale(loss_of(model, group.rank(), step)).backward()
        if group.rank() == 0 and step == 4:
            model[0].weight.grad[2, 3] = float("inf")
        before, own = scaler.get_scale(), flat(model)
        scaler.step(inner)
        scaler.update()
        if scaler.get_scale() < before:
            assert torch.equal(flat(model), own)
            left_out += 1
        co2.skipped_step()  # counts what the scaler attempted
        assert all(bool(p.isfinite().all()) for p in model.parameters())
    co2.flush()
    assert co2.stats()["rounds"] == 3
    assert not co2.stats()["is_dropped"]
    co2.close()
    assert left_out == (1 if group.rank() == 0 else 0)
    return flat(model).tolist()


def test_a_step_that_a_scaler_leaves_out_is_counted():
    first, second = run_ranks(2, scaled)
    assert first == second


# ---- what is taken, and said ----


def warned(group):
    def texts(dtype, **options):
        model = model_of().to(dtype)
        inner = torch.optim.SGD(model.parameters(), lr=0.05)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            co2 = overlace.optim.CO2(model, inner, outer_group=group, tau=2, outer_timeout_s=20, **options)
        assert all(warning.filename == __file__ for warning in told)  # where the program made it
        return [str(warning.message) for warning in told], model, co2

    # A group that keeps all that it did, and bounds none of it, trains as without CO2.
    said, model, co2 = texts(torch.float32, keep=1.0, clip=None)
    plain = model_of()
    plain_inner = torch.optim.SGD(plain.parameters(), lr=0.05)
    for step in range(5):
        co2.zero_grad()
        loss_of(model, group.rank(), step).backward()
        co2.step()
        plain_inner.zero_grad()
        loss_of(plain, group.rank(), step).backward()
        plain_inner.step()
    co2.flush()
    co2.close()
    if group.size() == 1:
        assert (flat(model) - flat(plain)).abs().max() < 1e-6
    said_of_bf16, _, co2 = texts(torch.bfloat16)
    co2.close()
    return said, said_of_bf16


def test_one_group_trains_alone_and_low_precision_is_kept_in_fp32_with_a_warning():
    rounded = "CO2: parameter 0.weight is torch.bfloat16; anchors are float32, and it is rounded from them at each"
    alone = "CO2: outer_group has one rank, so this group trains alone and nothing is exchanged"
    ((said, of_bf16),) = run_ranks(1, warned)
    assert said == [alone]
    assert of_bf16[0] == alone
    assert len(of_bf16) == 2  # one for all parameters
    assert of_bf16[1].startswith(rounded)
    for said, of_bf16 in run_ranks(2, warned):
        assert said == []
        assert len(of_bf16) == 1


def where_state_lies(group):
    """`state` with a GPU that is played: which transport is taken, and whether it takes memory of the GPU."""
    from overlace.optim import _collective

    asked, gpu = _collective._device_transports, torch.device("cuda", 0)
    _collective._device_transports = lambda: {"host": True, "nccl": True}
    try:
        for state in ("device", "host"):
            where = group, None, overlace.optim.co2.Co2Options(), gpu, None
            way = _collective.transport_of("host", *where, is_auto=False, state=state)
            assert way == ("host", state == "device")
            assert _collective.transport_of("process_group", *where, is_auto=False, state=state)[1] is False
        with pytest.raises(overlace.Unsupported, match="state is 'host' with transport 'nccl'; supported"):
            _collective.transport_of("nccl", *where, is_auto=False, state="host")
    finally:
        _collective._device_transports = asked
    with pytest.raises(overlace.InvalidArgument, match="state is 'disk', wanted one of 'device', 'host'"):
        start(group, tau=2, state="disk")
    ends = []
    for state in ("device", "host"):
        parts = start(group, tau=2, state=state)
        go_on(group, parts, range(5))
        parts[2].flush()
        parts[2].close()
        ends.append(flat(parts[0]))
    assert torch.equal(*ends)  # CPU tensors have no other place


def test_the_state_may_lie_on_the_host():
    run_ranks(2, where_state_lies)


class Tied(nn.Module):
    """One weight at both ends, and a layer that does not learn."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(9)
        self.symbols, self.fixed, self.head = nn.Embedding(10, 6), nn.Linear(6, 6), nn.Linear(6, 10, bias=False)
        self.head.weight = self.symbols.weight
        self.fixed.requires_grad_(False)

    def forward(self, x: "torch.Tensor") -> "torch.Tensor":
        return self.head(torch.tanh(self.fixed(self.symbols(x))))


def half_of(model: nn.Module, rank: int, step: int, rows: slice) -> "torch.Tensor":
    x = torch.randint(10, (8,), generator=torch.Generator().manual_seed(1000 * rank + step))
    with torch.autocast("cpu", torch.bfloat16):
        return nn.functional.cross_entropy(model(x[rows]).float(), (3 * x[rows] + 1) % 10, reduction="sum") / 8


def like_a_loop(group):
    """Tied and frozen parameters, autocast, no_sync, a scheduler: with one step a round as data parallel training."""
    model = nn.parallel.DistributedDataParallel(Tied(), process_group=group)
    model.register_comm_hook(None, overlace.optim.co2_hook)
    plain, inner = Tied(), torch.optim.SGD(model.parameters(), lr=0.5)
    plain_inner = torch.optim.SGD(plain.parameters(), lr=0.5)
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(o, 0.9) for o in (inner, plain_inner)]
    begin, halves = Tied(), (slice(0, 4), slice(4, 8))
    with overlace.optim.CO2(model, inner, outer_group=group, tau=1, rule="local_sgd", outer_timeout_s=20) as co2:
        for step in range(20):
            inner.zero_grad()
            with model.no_sync():
                half_of(model, group.rank(), step, halves[0]).backward()
            half_of(model, group.rank(), step, halves[1]).backward()
            inner.step()
            plain_inner.zero_grad()
            for rank in range(2):
                for rows in halves:
                    (half_of(plain, rank, step, rows) / 2).backward()
            plain_inner.step()
            for scheduler in schedulers:
                scheduler.step()
        co2.flush()
        assert co2.stats()["bytes"] == 4 * 10 * 6  # once, and nothing of what is frozen
    own = model.module
    assert own.head.weight is own.symbols.weight
    assert torch.equal(own.fixed.weight, begin.fixed.weight)
    assert (own.head.weight - begin.head.weight).abs().max() > 0.1
    assert inner.param_groups[0]["lr"] < 0.1
    # Sums of gradients are rounded in another order, and autocast rounds what follows.
    assert (flat(model) - flat(plain)).abs().max() < 1e-3


def test_tied_and_frozen_parameters_autocast_no_sync_and_schedulers():
    run_ranks(2, like_a_loop)
