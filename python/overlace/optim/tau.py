"""How many inner steps a round must have."""

from __future__ import annotations

import ctypes as c
import dataclasses
import math
import re
import statistics

from overlace._library import _Sized, call
from overlace.errors import InvalidArgument

FIRST_TAU, MEASURED_ROUNDS, LONGEST_TAU = 4, 3, 1024


def first_tau(tau: object, rule: str, samples: object) -> tuple[object, bool]:
    """With what rounds begin, and whether their length is to be measured."""
    if tau != "auto":
        return tau, False
    if rule not in ("co2", "eager"):
        raise InvalidArgument(f"CO2: tau is 'auto' with rule {rule!r}, wanted: 'co2' or 'eager', or a number")
    if samples is not None:
        raise InvalidArgument(f"CO2: tau is 'auto' with samples {samples!r}, wanted: a number for each group")
    return FIRST_TAU, True


def chosen_tau(measured: list[list[tuple[float, float]]]) -> int:
    """By rank and round: ms of an exchange and of a step. The rank that comes last to an exchange sees how long that
    takes, the others wait for it too; the slowest steps are those that all have in the end."""
    exchange = min(statistics.median(comm for comm, _ in rounds) for rounds in measured)
    step = max(statistics.median(step for _, step in rounds) for rounds in measured)
    return min(max(1, math.ceil(1.1 * exchange / max(step, 1e-3))), LONGEST_TAU)


class _Plan(_Sized):
    _fields_ = (
        ("struct_size", c.c_size_t),
        ("parameters", c.c_double),
        ("shard_degree", c.c_int32),
        ("groups", c.c_int32),
        ("wire_bytes", c.c_double),
        ("step_ms", c.c_double),
        ("link_bytes_per_s", c.c_double),
        ("link_latency_us", c.c_double),
        ("tau_min", c.c_int64),
        ("all_reduce_ms", c.c_double),
        ("taus", c.c_int64 * 5),
        ("exposed", c.c_double * 5),
        ("tau", c.c_int64),
        ("exposed_of_tau", c.c_double),
    )


@dataclasses.dataclass(frozen=True)
class TauPlan:
    """`tau_min`: the shortest round that hides the all-reduce with a tenth to spare. `exposed`: by tau, the share of a
    round that the all-reduce shows."""

    tau_min: int
    all_reduce_ms: float
    exposed: dict[int, float]


_BYTES = {"B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9}
_MICROSECONDS = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}


def _link(text: str) -> tuple[float, float]:
    number = r"(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)"
    match = re.fullmatch(rf"{number}(B|KB|MB|GB)/s(?:,{number}(ns|us|ms|s))?", text)
    if match is None:
        raise InvalidArgument(f"plan_tau: link is '{text}', wanted such as '1GB/s' or '20MB/s,50us'")
    latency = float(match[3]) * _MICROSECONDS[match[4]] if match[3] else 0.0
    return float(match[1]) * _BYTES[match[2]], latency


def plan_tau(
    parameters: float,
    *,
    shard_degree: int = 1,
    groups: int,
    wire_bytes: float = 4,
    step_ms: float,
    link: str,
    tau: int = 0,
) -> TauPlan:
    """In closed form, over a link of its own between every two groups and each shard. `tau`: one more to look at."""
    rate, latency = _link(link)
    plan = _Plan(
        parameters=parameters,
        shard_degree=shard_degree,
        groups=groups,
        wire_bytes=wire_bytes,
        step_ms=step_ms,
        link_bytes_per_s=rate,
        link_latency_us=latency,
        tau=tau,
    )
    call("ovl_co2_plan_tau", c.byref(plan))
    exposed = dict(zip(plan.taus, plan.exposed, strict=True))
    if tau > 0:
        exposed[tau] = plan.exposed_of_tau
    return TauPlan(plan.tau_min, plan.all_reduce_ms, dict(sorted(exposed.items())))
