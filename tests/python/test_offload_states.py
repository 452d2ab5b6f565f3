"""Optimizers whose states pass through slots give the bits of those whose states stay."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

import overlace  # noqa: E402
from overlace.offload import StreamedStates, states  # noqa: E402
from torch import nn  # noqa: E402

torch.set_num_threads(1)
MAKERS = {
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.1),
    "adamw_amsgrad_foreach": lambda groups: torch.optim.AdamW(groups, lr=1e-2, amsgrad=True, foreach=True),
    "adam_fused": lambda groups: torch.optim.Adam(groups, lr=1e-2, fused=True),
    "nadam": lambda groups: torch.optim.NAdam(groups, lr=1e-2),
    "asgd": lambda groups: torch.optim.ASGD(groups, lr=1e-2),
    "rprop": lambda groups: torch.optim.Rprop(groups, lr=1e-2),
    "adagrad": lambda groups: torch.optim.Adagrad(groups, lr=1e-2),
    "sgd_momentum": lambda groups: torch.optim.SGD(groups, lr=1e-2, momentum=0.9, nesterov=True),
    "sgd": lambda groups: torch.optim.SGD(groups, lr=1e-2),
}


class Model(nn.Module):
    """Layers of several sizes, a number, and one layer that some steps leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8, bias=i % 2 == 0) for i in range(6))
        self.wide = nn.Linear(8, 40)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
        for i, layer in enumerate(self.layers):
            if i != 4 or step % 3 != 0:
                x = x + self.scale * torch.tanh(layer(x))
        return self.wide(x).square().mean()


def made(kind: str) -> tuple[Model, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Model()
    groups = [{"params": model.layers.parameters()}, {"params": [*model.wide.parameters(), model.scale], "lr": 3e-3}]
    return model, MAKERS[kind](groups)


def train(model: Model, optimizer, steps: range) -> None:
    for step in steps:
        x = torch.randn(5, 8, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(x, step).backward()
        optimizer.step()


def differing(ours: tuple, theirs: tuple) -> list[str]:
    """Parameters and states that have not the same bits."""
    out = [n for n, p in ours[0].named_parameters() if not torch.equal(p, theirs[0].get_parameter(n))]
    mine, other = (optimizer.state_dict() for _, optimizer in (ours, theirs))
    assert mine["param_groups"] == other["param_groups"] and mine["state"].keys() == other["state"].keys()
    for index, of in other["state"].items():
        assert mine["state"][index].keys() == of.keys()
        for key, value in of.items():
            same = (
                torch.equal(mine["state"][index][key], value)
                if isinstance(value, torch.Tensor)
                else (mine["state"][index][key] == value)
            )
            out += [] if same else [f"{index}.{key}"]
    return out


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize(("bucket", "slots"), [(1, 2), ("1KiB", 3), ("64MiB", 2)])
def test_states_that_stream_have_the_bits_of_those_that_stay(kind, bucket, slots):
    ours, theirs = made(kind), made(kind)
    with StreamedStates(ours[1], bucket_bytes=bucket, slots=slots) as streamed:
        train(ours[0], streamed, range(7))
        train(*theirs, range(7))
        assert differing(ours, theirs) == []
        stats = streamed.stats()
        assert (stats["resting_bytes"] > 0) == (kind != "sgd")
        assert (stats["bytes"] > stats["resting_bytes"]) == (kind != "sgd")
        if bucket == 1 and kind == "adamw":  # two states of the largest parameter, in whole lines
            assert stats["memory_bytes"] == 2 * 2 * 40 * 8 * 4
        resting = [v for of in ours[1].state.values() for v in of.values() if torch.is_tensor(v) and v.dim() > 0]
        at = streamed._memory.data_ptr()
        assert all(not at <= v.data_ptr() < at + max(stats["memory_bytes"], 1) for v in resting), "a slot is left"
    train(*ours, range(7, 9))  # by its own step, behind close()
    train(*theirs, range(7, 9))
    assert differing(ours, theirs) == []


@pytest.mark.parametrize("kind", ["adamw", "sgd_momentum", "nadam"])
def test_a_checkpoint_is_that_of_the_optimizer_and_goes_on(kind):
    ours, theirs, resumed, plain = (made(kind) for _ in range(4))
    train(*theirs, range(4))
    with StreamedStates(ours[1], bucket_bytes="1KiB") as first:
        train(ours[0], first, range(4))
        saved = copy.deepcopy((ours[0].state_dict(), ours[1].state_dict()))
    with StreamedStates(resumed[1], bucket_bytes=1) as second:
        for model, optimizer in (resumed, plain):
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(copy.deepcopy(saved[1]))  # it keeps counters as they are
        train(resumed[0], second, range(4, 7))
        train(*plain, range(4, 7))
        train(*theirs, range(4, 7))
        assert differing(resumed, theirs) == [] and differing(plain, theirs) == []


@pytest.mark.parametrize("kind", ["adamw", "adamw_amsgrad_foreach", "sgd_momentum", "sgd"])
@pytest.mark.parametrize("bucket", [1, "1KiB"])
def test_copies_in_fp32_step_in_place_of_16_bit_parameters(kind, bucket):
    ours, theirs, resumed = made(kind), made(kind), made(kind)
    for model, _ in (ours, theirs, resumed):
        model.to(torch.bfloat16)
    by_hand = {p: nn.Parameter(p.detach().float()) for p in theirs[0].parameters()}
    for group in theirs[1].param_groups:
        group["params"] = [by_hand[p] for p in group["params"]]

    def pass_of(model: Model, step: int) -> None:
        x = torch.randn(5, 8, generator=torch.Generator().manual_seed(step)).bfloat16()
        model.zero_grad()
        model(x, step).backward()

    def differing_from_hand(pair) -> list[str]:
        out = []
        for (name, p), q in zip(pair[0].named_parameters(), theirs[0].parameters(), strict=True):
            states, wanted = pair[1].state[p], theirs[1].state[by_hand[q]]
            out += [name] if not torch.equal(p, q) or not torch.equal(states["master"], by_hand[q]) else []
            assert set(states) - {"master"} == set(wanted)
            out += [f"{name}.{key}" for key, value in wanted.items() if not torch.equal(states[key], value)]
        return out

    with (
        StreamedStates(ours[1], bucket_bytes=bucket, masters=True) as streamed,
        StreamedStates(resumed[1], bucket_bytes=bucket, masters=True) as second,
    ):
        for step in range(6):
            if step == 4:
                saved = copy.deepcopy((ours[0].state_dict(), ours[1].state_dict()))
                resumed[0].load_state_dict(saved[0])
                resumed[1].load_state_dict(saved[1])
            for model, stepper in ((ours[0], streamed), (resumed[0], second))[: 1 + (step >= 4)]:
                pass_of(model, step)
                stepper.step()
            pass_of(theirs[0], step)
            with torch.no_grad():
                for p, master in by_hand.items():
                    master.grad = p.grad.float() if p.grad is not None else None
                theirs[1].step()
                for p, master in by_hand.items():
                    p.copy_(master)
        streamed.synchronize()
        second.synchronize()
        assert differing_from_hand(ours) == [] and differing_from_hand(resumed) == []
        assert streamed.stats()["resting_bytes"] >= 4 * sum(p.numel() for p in ours[0].parameters() if p.dim() > 0)


class SlowLane:
    """Copies run when an event behind them is awaited, not before."""

    def __init__(self) -> None:
        self.queue: list = []
        self.done = 0

    def run(self, until: int) -> None:
        while self.done < until:
            self.done += 1
            self.queue[self.done - 1]()

    def copy(self, to, source):
        self.queue.append(lambda: to.copy_(source))

    def copied(self):
        return (self, len(self.queue))

    def used(self):
        return (self, 0)  # computation has run when it was queued

    def copy_after(self, event):
        assert event is not None, "CUDA refuses it"
        self.queue.append(lambda: event[0].run(event[1]))

    def use_after(self, event):
        event[0].run(event[1])

    wait = use_after


class EarlyLane(SlowLane):
    """Copies run at once, but behind what they wait for."""

    def copy(self, to, source):
        super().copy(to, source)
        self.run(len(self.queue))


class ForgetfulLane(EarlyLane):
    """Copies wait for nothing."""

    def copy_after(self, event):
        pass


class RashLane(SlowLane):
    """Computation waits for no copy."""

    def use_after(self, event):
        pass


def train_with(monkeypatch, into, out, kind: str = "adamw") -> list[str]:
    monkeypatch.setattr(states, "lanes_of", lambda device: (into, out))
    ours, theirs = made(kind), made(kind)
    with StreamedStates(ours[1], bucket_bytes=1) as streamed:
        train(ours[0], streamed, range(7))
        train(*theirs, range(7))
        return differing(ours, theirs)


@pytest.mark.parametrize("into", [SlowLane, EarlyLane])
@pytest.mark.parametrize("out", [SlowLane, EarlyLane])
def test_copies_may_be_as_late_and_as_early_as_events_allow(monkeypatch, into, out):
    assert train_with(monkeypatch, into(), out()) == []


@pytest.mark.parametrize(("into", "out"), [(ForgetfulLane, SlowLane), (RashLane, EarlyLane)])
def test_an_event_that_is_forgotten_is_noticed(monkeypatch, into, out):
    assert train_with(monkeypatch, into(), out()) != []


def test_schedulers_closures_and_groups_work_as_before():
    ours, theirs = made("adamw"), made("adamw")
    losses: list[list[float]] = [[], []]
    with StreamedStates(ours[1], bucket_bytes="1KiB") as streamed:
        for at, (model, optimizer), stepper in ((0, ours, streamed), (1, theirs, theirs[1])):
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)

            def closure(model=model, optimizer=optimizer) -> torch.Tensor:
                optimizer.zero_grad()
                loss = model(torch.ones(3, 8), 1)
                loss.backward()
                return loss

            for _ in range(5):
                losses[at].append(stepper.step(closure).item())
                scheduler.step()
    assert losses[0] == losses[1] and differing(ours, theirs) == []


def test_what_cannot_be_is_refused():
    model, optimizer = made("adamw")
    for options, text in (
        ({"slots": 1}, "slots is 1, wanted 2 or more"),
        ({"bucket_bytes": "8GB"}, "bucket_bytes is '8GB', wanted bytes such as 8GiB"),
        ({"bucket_bytes": 0}, "bucket_bytes is 0, wanted 1 or more"),
    ):
        with pytest.raises(overlace.InvalidArgument, match=text):
            StreamedStates(optimizer, **options)
    with pytest.raises(overlace.Unsupported, match=r"optimizer is LBFGS, wanted one of torch.optim: ASGD, Adadelta"):
        StreamedStates(torch.optim.LBFGS(model.parameters()))
    sharded = torch.ones(2).as_subclass(type("Sharded", (torch.Tensor,), {})).requires_grad_()  # as a DTensor is
    with pytest.raises(overlace.Unsupported, match=r"a parameter is Sharded, torch.strided; wanted dense tensors"):
        StreamedStates(torch.optim.AdamW([sharded]))
    parameters = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, device="meta"))]
    with pytest.raises(overlace.InvalidArgument, match="parameters lie on cpu, meta; wanted all on one CPU or CUDA"):
        StreamedStates(torch.optim.AdamW(parameters))
    streamed = StreamedStates(optimizer)
    train(model, streamed, range(1))
    before = copy.deepcopy(model.state_dict())
    optimizer.state[model.wide.weight]["exp_avg"] = torch.zeros_like(model.wide.weight)
    with pytest.raises(overlace.InvalidArgument, match="exp_avg of a parameter was replaced between two steps"):
        streamed.step()
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    with pytest.raises(overlace.InvalidArgument, match="parameters of the optimizer were added or replaced"):
        streamed.step()
    streamed.close()
    with pytest.raises(overlace.InvalidArgument, match="was called behind close"):
        streamed.step()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
