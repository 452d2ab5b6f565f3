"""Knobs of overlace.optim.CO2 that are functions of the round, and SlowMo's momentum over the learning rate."""

import math

import pytest
from ranks import overlace, run_ranks, torch
from test_co2 import TRANSPORTS, backward, flat, model_of
from test_co2_checkpoint import go_on

dist = torch.distributed
LAST = 13
SCHEDULE = dict(
    tau=lambda i: (1, 4, 2)[i % 3],
    outer_lr=lambda i, rounds: 0.6 + 0.4 * math.cos(math.pi * i / rounds),
    outer_momentum=lambda i, rounds: 0.5 * i / rounds,
    total_steps=LAST,
)
TAUS = (1, 4, 2, 1, 4, 2)  # of 14 steps


def start(group, lr=0.05, **options):
    model = model_of()
    inner = torch.optim.SGD(model.parameters(), lr=lr)
    return model, inner, overlace.optim.CO2(model, inner, outer_group=group, outer_timeout_s=20, **options)


def slow_mo_by_hand(taus, alphas, betas, rates, *, is_over_lr):
    """SlowMo as its paper words it, of two groups in one process; learning rates by round."""
    models = [model_of(), model_of()]
    anchor, momentum, step = flat(models[0]), torch.zeros_like(flat(models[0])), 0
    for tau, alpha, beta, lr in zip(taus, alphas, betas, rates, strict=True):
        for _ in range(tau):
            for rank, model in enumerate(models):
                model.zero_grad()
                backward(model, rank, step)
                with torch.no_grad():
                    for p in model.parameters():
                        p -= lr * p.grad
            step += 1
        increment = anchor - (flat(models[0]) + flat(models[1])) / 2
        scale = lr if is_over_lr else 1.0
        momentum = beta * momentum + increment / scale
        anchor = anchor - alpha * scale * momentum
        for model in models:
            torch.nn.utils.vector_to_parameters(anchor.clone(), model.parameters())
    return anchor


def follows(group):
    asked = []

    def outer_lr(i, rounds):
        asked.append((i, rounds))
        return SCHEDULE["outer_lr"](i, rounds)

    parts = start(group, rule="slow_mo", **{**SCHEDULE, "outer_lr": outer_lr, "total_steps": 14})
    assert asked == [(i, 6) for i in range(6)]  # at the start, once
    taus = []
    for step in range(14):
        taus.append(parts[2].tau)
        go_on(parts, group, step, step + 1)
    assert taus == [tau for tau in TAUS for _ in range(tau)]
    go_on(parts, group, 14, 16)  # a round beyond the last
    assert len(asked) == 6
    knobs = [*range(6), 5]
    alphas = [SCHEDULE["outer_lr"](i, 6) for i in knobs]
    betas = [SCHEDULE["outer_momentum"](i, 6) for i in knobs]
    wanted = slow_mo_by_hand((*TAUS, 2), alphas, betas, [0.05] * 7, is_over_lr=False)
    assert (flat(parts[0]) - wanted).abs().max() < 1e-5
    parts[2].close()
    constant = start(group, rule="slow_mo", tau=2, outer_lr=alphas[0], outer_momentum=betas[0])
    go_on(constant, group, 0, 16)
    assert (flat(constant[0]) - wanted).abs().max() > 1e-3
    constant[2].close()


def test_rounds_follow_functions():
    run_ranks(2, follows)


def over_lr(group):
    rates = [0.1, 0.02, 0.2, 0.05]
    ends = {}
    for is_over_lr in (True, False):
        parts = start(group, rule="slow_mo", tau=3, outer_lr=0.8, outer_momentum=0.5, momentum_over_lr=is_over_lr)
        for i, lr in enumerate(rates):
            parts[1].param_groups[0]["lr"] = lr
            go_on(parts, group, 3 * i, 3 * i + 3)
        ends[is_over_lr] = flat(parts[0])
        parts[2].close()
        wanted = slow_mo_by_hand([3] * 4, [0.8] * 4, [0.5] * 4, rates, is_over_lr=is_over_lr)
        assert (ends[is_over_lr] - wanted).abs().max() < 1e-5
    assert (ends[True] - ends[False]).abs().max() > 1e-3


def test_slow_mo_over_the_learning_rate_is_that_of_its_paper():
    run_ranks(2, over_lr)


def resumed(group, transport, rule, folder):
    options = dict(rule=rule, transport=transport, **SCHEDULE)
    if rule == "slow_mo":
        options["momentum_over_lr"] = True
    whole = start(group, **options)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(whole[1], 0.9)
    states = []
    for step in range(LAST):
        states.append((whole[2].state_dict(), scheduler.state_dict()))
        go_on(whole, group, step, step + 1)
        scheduler.step()
    whole[2].flush()
    whole[2].close()
    for stop, (state, of_scheduler) in enumerate(states):
        later = start(group, **options)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(later[1], 0.9)
        later[2].load_state_dict(state)
        scheduler.load_state_dict(of_scheduler)
        for step in range(stop, LAST):
            go_on(later, group, step, step + 1)
            scheduler.step()
        later[2].flush()
        later[2].close()
        assert torch.equal(flat(later[0]), flat(whole[0])), stop
    for other in ({"outer_lr": 0.5}, {"outer_momentum": lambda i, rounds: 0.4 * i / rounds}):
        parts = start(group, **{**options, **other})
        with pytest.raises(overlace.IoError, match=r"is \S+.*, wanted: ") as told:
            parts[2].load_state_dict(states[3][0])
        assert told.value.code == "stale"
        parts[2].close()


@pytest.mark.parametrize(("transport", "rule"), [("host", "co2"), ("process_group", "co2"), ("host", "slow_mo")])
def test_resumed_after_every_step_with_the_same_bits(transport, rule, tmp_path):
    assert transport in TRANSPORTS
    run_ranks(2, resumed, transport, rule, str(tmp_path))


def consolidated(group):
    options = dict(SCHEDULE, warmup_sync_steps=2, total_steps=16)
    first = start(group, **options)
    go_on(first, group, 0, 8)  # six steps of rounds: within that of two steps
    state = first[2].state_dict(consolidate=True)
    first[2].close()
    later = start(group, **options)
    later[2].load_state_dict(state)
    taus = []
    for step in range(8, 12):
        taus.append(later[2].tau)
        go_on(later, group, step, step + 1)
    later[2].flush()  # else who closes first ends the others' waits
    later[2].close()
    return taus


def test_a_new_beginning_is_at_the_round_of_its_step():
    assert run_ranks(2, consolidated) == [[2, 2, 1, 4]] * 2


def differ(group):
    far = dict(SCHEDULE, total_steps=400)
    for name, other in (
        ("tau", lambda i: SCHEDULE["tau"](i) + (1 if i == 90 else 0)),
        ("outer_lr", lambda i, rounds: 0.5 if i == 90 else SCHEDULE["outer_lr"](i, rounds)),
        ("outer_momentum", 0.25),
    ):
        with pytest.raises(overlace.PlanMismatch, match="differ between groups 0 and 1"):
            start(group, **(far if group.rank() == 0 else {**far, name: other}))


def test_groups_whose_functions_differ_are_told_at_the_start():
    run_ranks(2, differ)


BAD = (
    (dict(total_steps=None), "total_steps is None and a function gives tau and outer_lr and outer_momentum, wanted"),
    (dict(total_steps=6, warmup_sync_steps=6), "total_steps is 6 with 6 of warm-up and 0 of cool-down and a function"),
    (dict(tau="auto"), "tau is 'auto' and a function gives outer_lr and outer_momentum, wanted: a number"),
    (dict(samples=8), "samples is 8 and a function gives tau and outer_lr and outer_momentum, wanted: None"),
    (dict(tau=lambda i: 2 - i), r"tau\(2\) is 0, wanted: an integer of at least 1"),
    (dict(tau=lambda _: 2.5), r"tau\(0\) is 2\.5, wanted: an integer"),
    (dict(tau=0), "tau is 0, wanted: at least 1"),
    (dict(outer_lr=lambda *_: -1), r"outer_lr\(0, 6\) is -1, wanted: a number of at least 0"),
    (dict(outer_lr=lambda i, _: 0 if i == 1 else 1), "outer_lr is 0 in round 1, wanted: more than 0"),
    (dict(outer_momentum=lambda *_: math.nan), r"outer_momentum\(0, 6\) is nan, wanted: a number"),
    (dict(outer_momentum=lambda i, _: i / 4), "outer_momentum is 1 in round 4, wanted: 0 or more and below 1"),
    (dict(rule="streaming", gap=None), "tau is 1 in round 0 with rule streaming, wanted: 2 in all rounds"),
    (dict(momentum_over_lr=True), "momentum_over_lr is set with rule co2, wanted: not, or slow_mo"),
    (dict(momentum_over_lr="yes"), "momentum_over_lr is 'yes', wanted one of True, False"),
)


def refused(group):
    for options, text in BAD:
        model = model_of()
        before = flat(model)
        inner = torch.optim.SGD(model.parameters(), lr=0.05)
        with pytest.raises(overlace.InvalidArgument, match=text):
            overlace.optim.CO2(model, inner, outer_group=group, outer_timeout_s=20, **{**SCHEDULE, **options})
        assert torch.equal(flat(model), before)

    def broken(_):
        raise KeyError("a function's own error")

    with pytest.raises(KeyError, match="a function's own error"):
        start(group, **{**SCHEDULE, "tau": broken})


def test_bad_functions_are_refused_with_what_they_gave():
    run_ranks(2, refused)
