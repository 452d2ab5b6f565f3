"""Knobs of the outer rule that are functions of the round, as a table of all rounds of a run."""

from __future__ import annotations

import ctypes as c
import dataclasses
import math
import zlib
from collections.abc import Callable
from typing import Any

from overlace.errors import InvalidArgument
from overlace.optim._means import check_count
from overlace.optim._structs import OF_RULE, Co2Options, Knobs


def _table(rounds: list[tuple[int, float, float]]) -> c.Array[Knobs]:
    return (Knobs * len(rounds))(*(Knobs(*knobs) for knobs in rounds))


@dataclasses.dataclass(frozen=True)
class Schedule:
    """`rounds`: tau, outer learning rate and outer momentum of each, empty where no knob is a function; `rest`: of all
    later ones, as given."""

    rounds: list[tuple[int, float, float]]
    rest: tuple[Any, float, float]

    def put(self, options: Co2Options, steps: int) -> None:
        """Into the options of a run that begins behind so many steps of rounds: with the round that the next step
        belongs to."""
        begin, passed = 0, 0
        while begin < len(self.rounds) and passed + self.rounds[begin][0] <= steps:
            passed += self.rounds[begin][0]
            begin += 1
        left = _table(self.rounds[begin:])
        options.schedule, options.num_scheduled = left, len(left)

    def __str__(self) -> str:
        """What runs that go on from each other have alike beside `rest`."""
        checksum = zlib.crc32(bytes(_table(self.rounds)))
        return f"{len(self.rounds)} rounds, checksum {checksum}" if self.rounds else "none"


def _steps_of_rounds(warmup: int, cooldown: int, total: int, functions: str) -> int:
    for name, value in (("warmup_sync_steps", warmup), ("cooldown_sync_steps", cooldown), ("total_steps", total)):
        check_count(name, value)
    if total == 0:
        raise InvalidArgument(f"CO2: total_steps is None and a function gives {functions}, wanted: their number")
    left = total - warmup - cooldown
    if left < 1:
        raise InvalidArgument(
            f"CO2: total_steps is {total} with {warmup} of warm-up and {cooldown} of cool-down and a function gives "
            f"{functions}, wanted: more than these, which are of no round"
        )
    return left


def _tau_of(function: Callable[[int], Any], i: int) -> int:
    tau = function(i)
    if isinstance(tau, bool) or not isinstance(tau, int) or not 1 <= tau < 2**63:
        raise InvalidArgument(f"CO2: tau({i}) is {tau!r}, wanted: an integer of at least 1")
    return tau


def _rate_of(name: str, given: Any, i: int, rounds: int) -> float:
    if not callable(given):
        return OF_RULE if given is None else given
    rate = given(i, rounds)
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not math.isfinite(rate) or rate < 0:
        raise InvalidArgument(f"CO2: {name}({i}, {rounds}) is {rate!r}, wanted: a number of at least 0")
    return float(rate)


def schedule_of(tau: Any, outer_lr: Any, outer_momentum: Any, steps: tuple[int, int, int], samples: object) -> Schedule:
    """`steps`: those of warm-up, of cool-down, and all of them, 0 where that is not known. Calls each function once a
    round, in order. Raises InvalidArgument for what a function gives and where its rounds cannot be counted."""
    knobs = {"tau": tau, "outer_lr": outer_lr, "outer_momentum": outer_momentum}
    functions = " and ".join(name for name, given in knobs.items() if callable(given))
    if not functions:
        lr, momentum = (OF_RULE if given is None else given for given in (outer_lr, outer_momentum))
        return Schedule([], (tau, lr, momentum))
    if tau == "auto":
        raise InvalidArgument(f"CO2: tau is 'auto' and a function gives {functions}, wanted: a number or a function")
    if samples is not None:
        raise InvalidArgument(f"CO2: samples is {samples!r} and a function gives {functions}, wanted: None")
    left = _steps_of_rounds(*steps, functions)
    taus: list[int] = []
    if callable(tau):
        while left > 0:
            taus.append(_tau_of(tau, len(taus)))
            left -= taus[-1]
    else:
        check_count("tau", tau)
        if tau < 1:
            raise InvalidArgument(f"CO2: tau is {tau}, wanted: at least 1")
        taus = [tau] * math.ceil(left / tau)
    rates = (
        [_rate_of(name, knobs[name], i, len(taus)) for i in range(len(taus))] for name in ("outer_lr", "outer_momentum")
    )
    rounds = list(zip(taus, *rates, strict=True))
    return Schedule(rounds, rounds[-1])
