"""overlace.optim.CO2(tau="auto") on two CPU ranks: what it chooses, from what, and how it goes on."""

import math

import pytest
from ranks import overlace, run_ranks, torch
from test_co2 import backward, flat, model_of

dist = torch.distributed


def start(group, **options):
    model = model_of()
    inner = torch.optim.SGD(model.parameters(), lr=0.05)
    options = {"tau": "auto", "outer_timeout_s": 20, "check_every": 1, **options}
    return model, overlace.optim.CO2(model, inner, outer_group=group, **options)


def go_on(group, model, co2, first, last):
    for step in range(first, last):
        co2.zero_grad()
        backward(model, group.rank(), step)
        co2.step()


def played(group, co2):
    """Statistics by hand instead of times. Rank 1 comes last to each exchange and computes slowly; the first round is
    longer, as one that began before the first step."""
    rank, real = group.rank(), co2.stats

    def stats():
        out = real()
        if out["rounds"] == 0:
            return out
        step = (3.0, 7.0)[rank] + (100 if out["rounds"] == 1 else 0)
        waited, passed = (11.0, 0.5)[rank], 2.0
        out |= {"comm_ms": (90.0, 61.0)[rank], "exposed_ms": waited, "pass_ms": passed}
        return out | {"round_ms": out["steps"] * step + waited + passed}

    co2.stats = stats


def chosen(group):
    model, co2 = start(group)
    played(group, co2)
    taus = []
    for step in range(40):
        go_on(group, model, co2, step, step + 1)
        taus.append(co2.tau)
    # Rounds of 4 come in after 8, 12 and 16 steps.
    assert taus == [4] * 15 + [math.ceil(1.1 * 61 / 7)] * 25
    co2.flush()
    co2.close()
    return flat(model).tolist()


def test_tau_is_chosen_after_three_rounds_by_who_comes_last_and_who_is_slowest():
    first, second = run_ranks(2, chosen)
    assert first == second


def by_hand(group):
    """A run by hand of rounds of 4, a flush, and rounds of the chosen length."""
    model, co2 = start(group)
    played(group, co2)
    go_on(group, model, co2, 0, 40)
    co2.flush()
    co2.close()
    other, first = start(group, tau=4)
    go_on(group, other, first, 0, 16)
    first.flush()
    first.close()
    second = overlace.optim.CO2(other, first.inner_optimizer, outer_group=group, tau=10, outer_timeout_s=20)
    go_on(group, other, second, 16, 40)
    second.flush()
    second.close()
    assert torch.equal(flat(model), flat(other))


def test_it_goes_on_as_a_run_with_that_tau():
    run_ranks(2, by_hand)


def measured(group):
    """Over an emulated link: an exchange of some 650 bytes takes at least the 30 ms of its latency."""
    model, co2 = start(group, link="1MB/s,30ms")
    go_on(group, model, co2, 0, 16)
    assert co2.tau > 4
    go_on(group, model, co2, 16, 16 + 2 * co2.tau)
    assert co2.stats()["steps"] == co2.tau
    co2.flush()
    co2.close()
    return co2.tau, flat(model).tolist()


def test_a_slow_link_gets_longer_rounds():
    first, second = run_ranks(2, measured)
    assert first == second


def resumed(group, folder):
    def go(stop):
        model, co2 = start(group)
        played(group, co2)
        go_on(group, model, co2, 0, stop)
        return model, co2

    whole, co2 = go(50)
    co2.flush()
    co2.close()
    for stop in (18, 27):  # after it was chosen
        _, co2 = go(stop)
        co2.save(folder)
        co2.close()
        for before in (0, 5, 30):  # a later run that has begun otherwise, before its own choice and after it
            model, co2 = go(before)
            co2.load(folder)
            assert co2.tau == 10
            go_on(group, model, co2, stop, 50)
            co2.flush()
            co2.close()
            assert torch.equal(flat(model), flat(whole)), (stop, before)
    # Before it was chosen: measured again.
    _, co2 = go(6)
    co2.save(folder)
    co2.close()
    model, co2 = go(30)
    co2.load(folder)
    assert co2.tau == 4
    go_on(group, model, co2, 6, 30)
    assert co2.tau == 10
    co2.flush()
    co2.close()
    # A run with a number is another one.
    _, co2 = start(group, tau=4)
    with pytest.raises(overlace.Error, match="tau is auto, wanted: 4"):
        co2.load(folder)
    co2.close()
    return flat(model).tolist()


def test_a_chosen_tau_is_part_of_a_checkpoint(tmp_path):
    first, second = run_ranks(2, resumed, str(tmp_path))
    assert first == second


def misused(group):
    def expect(kind, text, **options):
        with pytest.raises(kind, match=text):
            start(group, **options)

    expect(overlace.InvalidArgument, "tau is 'auto' with rule 'local_sgd', wanted: 'co2' or 'eager'", rule="local_sgd")
    expect(overlace.InvalidArgument, "tau is 'auto' with samples 8", samples=8)
    expect(overlace.Unsupported, "tau is 'auto' with transport 'process_group'", transport="process_group")
    expect(overlace.InvalidArgument, "tau is 'long', wanted: an integer", tau="long")


def test_where_it_cannot_be_measured_is_refused():
    run_ranks(2, misused)
