"""Competitors through PyTorch beside each other: verified, timed in turn, verified again, written down.

The twin of bench/common/protocol.cc for programs of which every rank is a process of PyTorch. Without PyTorch it can be
imported, too, to write rows that say so.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import programs
import protocol
import records
import schema

if TYPE_CHECKING:
    import torch
    from torch_rank import Rank

Call = Callable[[int], "torch.Tensor"]  # of one call on operand set i
ROTATED_BYTES = 2 * 60_000_000  # twice the L2 of an H200
ULP = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp32": 2.0**-23, "e4m3": 2.0**-8}  # of results; those of e4m3 are bf16
LARGEST_RMS_ERROR = 0.01


class Missing(Exception):
    """Why a competitor cannot run here; `status` as in records."""

    def __init__(self, why: str, status: str = "unsupported") -> None:
        super().__init__(why)
        self.status = status


class Case(Protocol):
    """What is measured; known without PyTorch."""

    dtype: str

    def fields(self) -> dict:
        """workload, case and dtype of its records, and flags that all have."""
        ...

    def title(self) -> str: ...


class Workload(Protocol):
    """Operands of one case in so many sets that twice the L2 lies between two uses."""

    case: Case
    sets: int
    bytes_rotated: int
    oracle: str  # in words

    def operands(self) -> list[torch.Tensor]:
        """Tensors of which samples must not have low entropy."""
        ...

    def errors(self, out: torch.Tensor, name: str) -> tuple[float, float]:
        """Largest and root-mean-square error of what `name` gave, of the rms of what is wanted."""
        ...

    def facts(self) -> dict:
        """Other fields of its records."""
        ...


@dataclasses.dataclass
class Entrant:
    name: str
    call: Call | None = None
    status: str = "ok"
    reason: str = ""
    launch: str = "stream"
    max_error: float = 0.0
    rms_error: float = 0.0
    rms_error_after: float = 0.0
    calls: int = 20
    samples: list[float] = dataclasses.field(default_factory=list)
    host: list[float] = dataclasses.field(default_factory=list)
    clocks: list[dict | None] = dataclasses.field(default_factory=list)


def parsed(p: argparse.ArgumentParser, names: tuple[str, ...], known: Mapping[str, object]) -> argparse.Namespace:
    """With the arguments that every such program takes; competitors are some of `known`, by default `names`."""
    add = p.add_argument
    add("--set", default="")
    add("--filter", default="")
    add("--competitors", default=",".join(names))
    add("--repetitions", type=int, default=15)
    add("--burst-ms", type=float, default=50)
    add("--warm-s", type=float, default=1)
    add("--settle-s", type=float, default=5)
    add("--seed", type=int, default=1)
    add("--verify-only", action="store_true")
    add("--git", default="unknown")
    add("--run", default=programs.now())
    add("--out", type=Path)
    o = p.parse_args()
    for name in o.competitors.split(","):
        if name not in known:
            p.error(f"there is no competitor {name}; wanted some of {', '.join(known)}")
    return o


def head(o: argparse.Namespace, case: Case, x: Entrant, machine: dict, size: int) -> dict:
    command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
    return {**programs.torch_head(o, x, machine, size, command), "launch": x.launch, **case.fields()}


def write(o: argparse.Namespace, rows: list[dict]) -> None:
    if o.out:
        with o.out.open("a") as file:
            file.writelines(schema.with_id(row) + "\n" for row in rows)


def without_torch(o: argparse.Namespace, cases: list[Any]) -> int:
    """Rows that say why nothing was measured."""
    if int(os.environ.get("RANK", 0)) == 0:
        size = int(os.environ.get("WORLD_SIZE", 1))
        entrants = [Entrant(name, None, "absent", "PyTorch is not installed") for name in o.competitors.split(",")]
        write(o, [head(o, case, x, {"name": "unknown"}, size) for case in cases for x in entrants])
        print("PyTorch is not installed: its competitors are absent")
    return 0


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


def spoiled(right: Call) -> Call:
    """One element changed, so that it must be refused."""

    def wrong(i: int) -> torch.Tensor:
        out = right(i)
        out[-1, -1] += 50
        return out

    return wrong


def package() -> ModuleType:
    """The package overlace, with its operators for PyTorch."""
    try:
        import overlace
    except ImportError as why:
        raise Missing(one_line(why), "absent") from None
    if overlace._WHY_NO_TORCH:
        raise Missing(overlace._WHY_NO_TORCH, "absent")
    return overlace


def enter(name: str, ways: Mapping[str, Callable[[Any], Call]], workload: Any) -> Entrant:
    """The competitor, prepared; or why it cannot run."""
    try:
        return Entrant(name, ways[name](workload))
    except Missing as why:
        return Entrant(name, None, why.status, str(why))
    # What a version of PyTorch or of another package lacks is no fault of the run: a record says it.
    except (RuntimeError, AttributeError, NotImplementedError, ImportError) as why:
        return Entrant(name, None, "unsupported", one_line(why))


def refusal(operands: list[torch.Tensor]) -> str:
    """Why their values must not be timed."""
    import torch

    for operand in operands:
        values = operand.reshape(-1)[:4096].float().cpu()
        bits = [x.view(torch.int32).bitwise_right_shift(16).tolist() for x in (values, values.diff())]
        if why := protocol.low_entropy(*bits):
            return why
    return ""


def relative(got: torch.Tensor, want: torch.Tensor) -> tuple[float, float]:
    """Largest and root-mean-square error, of the rms of what is wanted in fp64; infinite where one is not finite."""
    if want.numel() == 0:
        return 0.0, 0.0
    error = got.double() - want
    rms = want.square().mean().sqrt()
    largest = error.abs().max() / rms
    if not bool(largest.isfinite()):
        return math.inf, math.inf
    return float(largest), float(error.square().mean().sqrt() / rms)


class Bench:
    """All competitors of one case after another, by the protocol of docs/reference/benchmarks.md."""

    def __init__(self, o: argparse.Namespace, rank: Rank) -> None:
        from torch_rank import Bursts

        self.o, self.rank, self.bursts = o, rank, Bursts(rank)
        self.least_calls = 20 if rank.on_gpus else 3
        self.unsettled = False

    def run(self, workload: Workload, entrants: list[Entrant]) -> int:
        """How many competitors are wrong."""
        if not self.o.verify_only:
            why = refusal(workload.operands())
            if self.rank.worst(float(bool(why)))[0] > 0:
                raise SystemExit(f"refused for timing: {why or 'the data of another rank'}")
        self.verify(entrants, workload, is_after=False)
        if not self.o.verify_only:
            self.warm_up(entrants, workload)
            self.measure(entrants, workload)
            self.verify(entrants, workload, is_after=True)
        self.report(workload, entrants)
        return sum(x.status == "wrong" for x in entrants)

    def verify(self, entrants: list[Entrant], w: Workload, is_after: bool) -> None:
        """Twice: what the first call left is overwritten, so that the second cannot pass with old results."""
        base: Entrant | None = None
        reference = None
        for x in entrants:
            if self.rank.worst(float(x.status != "ok"))[0] > 0:
                if x.status == "ok":
                    x.status, x.reason = "unsupported", "another rank could not run it"
                continue
            assert x.call is not None
            why, out = "", None
            try:
                x.call(0).fill_(math.nan)
                self.rank.synchronize()
                out = x.call(0)
                self.rank.synchronize()
            except (RuntimeError, NotImplementedError) as error:
                why = one_line(error)  # the reason in the record of all ranks, which do not measure it
            if self.rank.worst(float(bool(why)))[0] > 0:
                x.status, x.reason = "unsupported", why or "another rank could not run it"
                continue
            assert out is not None
            largest, rms = self.rank.worst(*w.errors(out, x.name))
            is_part = x.name in records.PARTS  # has a result of its own, to be compared with the oracle alone
            if base is None and not is_part:
                base, reference = x, out.clone()
            of = x if is_part or base is None else base
            of_rms, of_largest = (rms, largest) if of is x else (of.rms_error, of.max_error)
            ulp = ULP[w.case.dtype]
            good = rms <= 2 * of_rms + ulp / 16 and largest <= 2 * of_largest + 4 * ulp and rms < LARGEST_RMS_ERROR
            difference = 0.0
            if of is not x and out.numel():
                assert reference is not None
                scale = reference.float().square().mean().sqrt().item()
                difference = (out.float() - reference.float()).abs().max().item()
                # NaN fails every comparison, so a good difference is asked for.
                good = good and difference <= max(16 * ulp, 8 * of_largest) * scale
            if not is_after:
                x.max_error, x.rms_error = largest, rms
            x.rms_error_after = rms if is_after else 0.0
            if self.rank.worst(float(not good))[0] > 0:
                x.status, x.samples = "wrong", []
                x.reason = f"rms error {rms:.3g}, that of {of.name} {of_rms:.3g}; differs by {difference:.3g}"

    def burst(self, x: Entrant, w: Workload, calls: int) -> tuple[float, float]:
        assert x.call is not None
        call = x.call
        return self.bursts.burst(lambda i: call(i % w.sets), calls)

    def warm_up(self, entrants: list[Entrant], w: Workload) -> None:
        begin = time.monotonic()
        mhz: list[float] = []
        while True:
            for x in entrants:
                if x.status == "ok":
                    sample, _ = self.burst(x, w, self.least_calls)
                    x.calls = protocol.burst_calls(self.o.burst_ms * 1e3, sample, self.least_calls, 2000)
            clocks = self.sample()
            mhz.append(clocks["sm_mhz"] if clocks else 0.0)
            settled = clocks is None or protocol.is_settled(mhz)
            spent = time.monotonic() - begin
            is_late = spent > self.o.warm_s + self.o.settle_s
            more, unsettled = self.rank.worst(
                float(spent < self.o.warm_s or (not settled and not is_late)), float(not settled)
            )
            if not more:
                self.unsettled = bool(unsettled)
                return

    def measure(self, entrants: list[Entrant], w: Workload) -> None:
        for _, x in protocol.interleaved(entrants, self.o.repetitions, self.o.seed):
            if x.status != "ok":
                continue
            sample, host = self.burst(x, w, x.calls)
            x.samples.append(sample)
            x.host.append(host)
            x.clocks.append(self.sample())

    def sample(self) -> dict | None:
        return self.rank.nvml.sample() if self.rank.nvml else None

    def report(self, w: Workload, entrants: list[Entrant]) -> None:
        from torch_rank import clocks_of

        machine = self.rank.machine()
        rows = []
        for x in entrants:
            clocks = self.rank.gather(clocks_of(x.clocks)) if x.samples else []
            rows.append(self.record(w, x, machine, clocks))
        if self.rank.rank != 0:
            return
        write(self.o, rows)
        print(f"{w.case.title()}  {w.case.dtype}  {self.rank.size} ranks")
        for x in entrants:
            us = f"{protocol.median(x.samples):.1f} us" if x.samples else ""
            print(f"  {x.name:<26} {us or ('verified' if x.status == 'ok' else x.status)}  {x.reason}", flush=True)

    def record(self, w: Workload, x: Entrant, machine: dict, clocks: list[dict]) -> dict:
        row = head(self.o, w.case, x, machine, self.rank.size)
        row["method"].update(n=x.calls, bytes_rotated=w.bytes_rotated)
        row |= w.facts()
        if x.rms_error > 0:
            row["verify"] = {
                "ok": x.status == "ok",
                "oracle": w.oracle,
                "rms_error": x.rms_error,
                "max_error": x.max_error,
                "rms_error_after": x.rms_error_after,
            }
        if x.samples:
            row["time_us"] = protocol.time_fields(x.samples)
            row["host_us"] = protocol.median(x.host)
            row["clocks"] = clocks
            row["flags"] += [] if all(clocks) else ["unattested"]
            row["flags"] += ["unsettled"] if self.unsettled else []
            is_host_bound = self.rank.on_gpus and row["host_us"] > 0.9 * row["time_us"]["median"]
            row["flags"] += ["host_bound"] if is_host_bound else []
        return row
