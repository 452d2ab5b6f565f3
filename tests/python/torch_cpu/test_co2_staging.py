"""CO2 with parameters that go through other host memory, as those of GPUs do: the same bits as without."""

import contextlib

import pytest
from overlace.optim import _staging
from ranks import overlace, run_ranks, torch
from test_co2 import TRANSPORTS, resumed, train
from test_co2_groups import KINDS, STEPS, TAU, consolidated, groups_of, inside, resume_inside, train_inside


@contextlib.contextmanager
def staged(copies: list):
    """Every part has host memory of its own; `copies` has a word for each copy of all of them."""
    was, fetch, store = _staging._is_staged, _staging.Staging.fetch, _staging.Staging.store

    def told(word, copy):
        def told_copy(self):
            copies.append(word)
            assert all(host is not part for part, host in self._pairs) and self._pairs
            copy(self)

        return told_copy

    _staging._is_staged = lambda _values: True
    _staging.Staging.fetch, _staging.Staging.store = told("fetch", fetch), told("store", store)
    try:
        yield
    finally:
        _staging._is_staged, _staging.Staging.fetch, _staging.Staging.store = was, fetch, store


def alike(group, kind):
    wanted = train_inside(group, kind, "host", {})
    copies: list = []
    with staged(copies):
        got = train_inside(group, kind, "host", {})
    assert got == wanted
    rounds = STEPS // TAU
    # At opening, once a round, and for flush(), which leaving the context calls again.
    assert copies.count("fetch") == 1 + rounds + 2
    assert copies.count("store") <= copies.count("fetch")


@pytest.mark.parametrize("kind", KINDS)
def test_every_layout_has_the_same_bits(kind):
    run_ranks(4, alike, kind)


RULES = ("co2", "eager", "streaming", "local_sgd", "slow_mo", "diloco")


def rules_alike(group, transport):
    for rule in RULES:
        more = {"fragments": 2} if rule == "streaming" else {}
        phases = {"warmup_sync_steps": 2, "cooldown_sync_steps": 2, "total_steps": 16}
        options = {"tau": 4, "rule": rule, "transport": transport, **more, **phases}
        wanted, _ = train(group, 16, **options)
        with staged([]):
            got, _ = train(group, 16, **options)
        assert torch.equal(got, wanted), rule


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_rule_has_the_same_bits(transport):
    run_ranks(2, rules_alike, transport)


def in_stages(group, body, *arguments):
    with staged([]):
        return body(group, *arguments)


def test_a_run_resumes_with_the_same_bits():
    run_ranks(2, in_stages, resumed, "host")
    run_ranks(4, in_stages, resume_inside, "zero3")


def test_a_consolidated_state(tmp_path):
    run_ranks(4, in_stages, consolidated, "slices", str(tmp_path))


def on_another_device(group):
    model = torch.nn.Linear(3, 2, device="meta")
    with pytest.raises(overlace.Unsupported, match="parameter weight is on meta; supported: CPU and CUDA tensors"):
        overlace.optim.CO2(model, torch.optim.SGD(model.parameters(), lr=0.1), tau=2, outer_group=group)


def test_other_devices_are_refused():
    run_ranks(2, on_another_device)


def untouched(_group):
    """Between boundaries nothing is copied."""
    groups = groups_of(2)
    copies: list = []
    with staged(copies):
        model, inner = inside("slices", groups)
        co2 = overlace.optim.CO2(model, inner, tau=5, outer_group=groups.outer, inner_group=groups.inner)
        assert copies == ["fetch"]
        for step in range(4):
            co2.skipped_step()
            assert copies == ["fetch"], step
        co2.skipped_step()
        assert copies == ["fetch", "fetch", "store"]
        co2.close()


def test_steps_between_boundaries_copy_nothing():
    run_ranks(4, untouched)
