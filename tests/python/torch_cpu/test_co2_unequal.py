"""overlace.optim.CO2 with groups of unequal speed: two CPU ranks with rounds and batches of their own."""

import pytest
from ranks import overlace, run_ranks, torch
from test_co2 import flat, model_of

TAUS, SAMPLES = (5, 2), (4, 12)
TRANSPORTS = ("host", "process_group")


def batch_of(rank: int, step: int) -> tuple:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    x = torch.randn(SAMPLES[rank], 6, generator=generator)
    return x, torch.stack([x[:, 0] * x[:, 1], x.sum(1), x[:, 2].sin()], 1)


def step_of(model, inner, rank, step):
    inner.zero_grad()
    x, y = batch_of(rank, step)
    (model(x) - y).square().mean().backward()
    inner.step()


def start(group, **options):
    rank = group.rank()
    model = model_of()
    inner = torch.optim.SGD(model.parameters(), lr=0.05)
    options = {"tau": TAUS[rank], "samples": SAMPLES[rank], "outer_timeout_s": 20, "check_every": 1, **options}
    return model, inner, overlace.optim.CO2(model, inner, outer_group=group, **options)


def train(parts, group, first, last):
    """Rounds [first, last)."""
    model, inner, co2 = parts
    tau = TAUS[group.rank()]
    with co2:
        for step in range(first * tau, last * tau):
            step_of(model, inner, group.rank(), step)
        co2.flush()
    return flat(model)


def weighted_by_hand(rounds):
    models = [model_of(), model_of()]  # both groups here
    inners = [torch.optim.SGD(m.parameters(), lr=0.05) for m in models]
    weights = [tau * samples / 44 for tau, samples in zip(TAUS, SAMPLES, strict=True)]
    for one in range(rounds):
        for rank in range(2):
            for step in range(one * TAUS[rank], (one + 1) * TAUS[rank]):
                step_of(models[rank], inners[rank], rank, step)
        with torch.no_grad():
            for pair in zip(*(m.parameters() for m in models), strict=True):
                mean = sum(w * p for w, p in zip(weights, pair, strict=True))
                for p in pair:
                    p.copy_(mean)
    return flat(models[0])


def weighted_means(group, transport):
    parts = start(group, rule="local_sgd", transport=transport)
    got = train(parts, group, 0, 6)
    assert torch.allclose(got, weighted_by_hand(6), rtol=1e-5, atol=1e-6)
    return got.tolist()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_means_are_weighted_by_the_samples_of_each_group(transport):
    first, second = run_ranks(2, weighted_means, transport)
    assert first == second


def of_two_ranks(_group):
    """Groups of two ranks, each with a slice of the parameters; a rank sees half of its group's samples."""
    groups = overlace.optim.make_groups(ranks_per_group=2)
    mine, half = groups.group, groups.shard
    model = torch.nn.parallel.DistributedDataParallel(model_of(), process_group=groups.inner)
    inner = torch.optim.SGD(model.parameters(), lr=0.05)
    options = dict(rule="local_sgd", tau=TAUS[mine], samples=SAMPLES[mine], check_every=1, outer_timeout_s=20)
    with overlace.optim.CO2(model, inner, outer_group=groups.outer, inner_group=groups.inner, **options) as co2:
        for step in range(4 * TAUS[mine]):
            inner.zero_grad()
            x, y = (t.chunk(2)[half] for t in batch_of(mine, step))
            (model(x) - y).square().mean().backward()
            inner.step()
        co2.flush()
    whole = weighted_by_hand(4)
    assert torch.allclose(flat(model), whole, rtol=1e-5, atol=2e-6)
    return flat(model).tolist()


def test_groups_of_two_ranks_are_weighted_as_a_whole():
    ends = run_ranks(4, of_two_ranks)
    assert all(end == ends[0] for end in ends)


def resumed(group, folder):
    x, y = batch_of(1, 77)
    wanted_model, _, _ = whole = start(group, wire_dtype=torch.int8, transport="host")
    before = float((wanted_model(x) - y).square().mean())
    wanted = train(whole, group, 0, 20)
    assert float((wanted_model(x) - y).square().mean()) < before / 2

    tau = TAUS[group.rank()]
    model, inner, co2 = start(group, wire_dtype=torch.int8, transport="host")
    for step in range(3 * tau + 1):  # in the middle of the fourth round
        step_of(model, co2, group.rank(), step)
    assert co2.stats()["steps"] == tau
    co2.save(folder)
    co2.close()
    model, inner, co2 = start(group, wire_dtype=torch.int8, transport="host")
    co2.load(folder)
    with co2:
        for step in range(3 * tau + 1, 20 * tau):
            step_of(model, inner, group.rank(), step)
        co2.flush()
    assert torch.equal(flat(model), wanted)

    # Another number of steps in a round is refused, on all ranks, and nothing changes.
    other, _, later = start(group, wire_dtype=torch.int8, transport="host", tau=tau + 1)
    before = flat(other)
    with pytest.raises(overlace.Error, match="of a run with other options or parameters"):
        later.load(folder)
    assert torch.equal(flat(other), before)
    later.close()
    return wanted.tolist()


def test_unequal_groups_learn_and_go_on_from_a_folder_with_the_same_bits(tmp_path):
    first, second = run_ranks(2, resumed, str(tmp_path))
    assert first == second


def misused(group):
    def expect(kind, text, **options):
        with pytest.raises(kind, match=text):
            start(group, **options)

    for samples in (0, -1, float("nan"), True, "8"):
        expect(overlace.InvalidArgument, "samples is .*, wanted: None where groups are equal", samples=samples)
    expect(overlace.InvalidArgument, "samples is .* with rule eager", rule="eager")
    expect(overlace.InvalidArgument, "samples is .* with gap adaptive", gap="adaptive")
    expect(overlace.InvalidArgument, "samples is .* with warmup_sync_steps 2", warmup_sync_steps=2)
    # Each of equal groups has the same tau.
    expect(overlace.PlanMismatch, "options and parameters' shapes differ", samples=None)
    expect(overlace.PlanMismatch, "differ", samples=None if group.rank() == 0 else 8)


def test_what_unequal_groups_cannot_have_is_refused():
    run_ranks(2, misused)
