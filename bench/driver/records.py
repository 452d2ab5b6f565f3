"""Records of benches: reading them, and what follows from them (docs/reference/benchmarks.md)."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import protocol


@dataclasses.dataclass(frozen=True)
class Operator:
    """A dense operator as benches and their pages speak of it: a row of bench/dense/operators.json."""

    name: str
    what: str  # that it measures
    title: str
    rows: str  # of all ranks: gathered, scattered, reduced or exchanged
    is_default: bool


DENSE_OPERATORS = {
    row["name"]: Operator(**row)
    for row in json.loads((Path(__file__).resolve().parents[1] / "dense" / "operators.json").read_text())
}
OPERATORS = tuple(o.name for o in DENSE_OPERATORS.values() if o.is_default)
DENSE = (*OPERATORS, *(o.name for o in DENSE_OPERATORS.values() if not o.is_default))  # by default: OPERATORS
LIBRARY, SERIAL = PLAIN = ("library", "serial")  # the families of every operator, which hide nothing
COMPUTE, COMM, LIMIT = PARTS = ("compute", "comm", "limit")  # that have no result of their own
NAN = math.nan
NO_ROOM = 0.04  # of T_serial: a smaller distance to the limit says nothing about overlap
REGIME = 0.98  # a limit below this share of the GEMM alone is no limit


def read(path: Path | str) -> list[dict]:
    rows = []
    for number, line in enumerate(Path(path).read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except ValueError as why:
            raise ValueError(f"{path}:{number}: {why}") from None
    return rows


def machine_name(row: dict) -> str:
    machine = row["machine"]
    return machine.get("name") or machine.get("gpus") or f"{machine.get('cpu')}, {machine.get('cores')} cores"


# Workloads of which one case has competitors that are launched in different ways.
MIXED_LAUNCHES = ("moe", "embedding", "striped")


def case_key(row: dict) -> tuple:
    """What two records must share to be about the same work."""
    case = tuple(sorted((k, v) for k, v in row["case"].items()))
    launch = None if row["workload"] in MIXED_LAUNCHES else row.get("launch")
    return (row["workload"], case, row.get("dtype"), row.get("team"), launch, row["machine"].get("link"))


@dataclasses.dataclass
class Group:
    """The competitors of one case, in order of appearance; of each the newest run counts."""

    key: tuple
    rows: dict[str, dict]

    @property
    def first(self) -> dict:
        return next(iter(self.rows.values()))

    @property
    def workload(self) -> str:
        return self.first["workload"]

    def size(self) -> str:
        case = self.first["case"]
        size = "  ".join(f"{k.upper()} {case[k]}" for k in ("m", "n", "k") if k in case)
        launch = self.first.get("launch", "stream").replace("stream", "")
        return "  ".join(x for x in (case.get("what", ""), size, self.first.get("dtype", ""), launch) if x)

    def title(self) -> str:
        return f"{self.first['case']['name']}  {self.size()}".rstrip()

    def us(self, competitor: str) -> float:
        return self.rows.get(competitor, {}).get("time_us", {}).get("median", NAN)


def groups(rows: list[dict], run: str | None = None) -> list[Group]:
    found: dict[tuple, Group] = {}
    for row in rows:
        if run is not None and row["run"] != run:
            continue
        group = found.setdefault(case_key(row), Group(case_key(row), {}))
        old = group.rows.get(row["competitor"])
        if old is None or row["run"] >= old["run"]:
            group.rows[row["competitor"]] = row
    return list(found.values())


def runs(rows: list[dict]) -> list[str]:
    return sorted({row["run"] for row in rows})


def least(*values: float) -> float:
    """The least of those that were measured."""
    known = [v for v in values if not math.isnan(v)]
    return min(known) if known else NAN


@dataclasses.dataclass(frozen=True)
class Bounds:
    """What a competitor is measured against, in us."""

    compute: float
    comm: float
    library: float
    serial: float
    limit: float
    regime: bool  # the limit was below the GEMM alone and is replaced by it


def bounds(us: dict[str, float]) -> Bounds:
    get = lambda name: us.get(name, NAN)  # noqa: E731
    compute, library = get(COMPUTE), get(LIBRARY)
    serial = least(library, *(v for k, v in us.items() if k.split(" ")[0].split("/")[0] == SERIAL))
    limits = [v for k, v in us.items() if k.split(" ")[0] == LIMIT]
    # Where no limit was measured there is none, however fast the rest.
    limit = least(*limits, serial) if limits and not math.isnan(least(*limits)) else NAN
    regime = limit < REGIME * compute
    return Bounds(compute, get(COMM), library, serial, compute if regime else limit, regime)


def bounds_of(group: Group) -> Bounds:
    return bounds({name: group.us(name) for name in group.rows})


@dataclasses.dataclass(frozen=True)
class Derived:
    us: float
    p10: float
    p90: float
    gain: float  # T_library / T
    over_serial: float  # T_serial / T
    rho: float  # T / T_limit
    exposed: float  # T - T_compute
    hidden: float  # (T_serial - T) / min(T_compute, T_comm)
    efficiency: float  # (T_serial - T) / (T_serial - T_limit); NaN where there is no room
    tflops: float


def derive(row: dict, b: Bounds) -> Derived:
    time = row.get("time_us", {})
    us = time.get("median", NAN)
    room = b.serial - b.limit
    has_room = room >= NO_ROOM * b.serial
    return Derived(
        us,
        time.get("p10", NAN),
        time.get("p90", NAN),
        b.library / us,
        b.serial / us,
        us / b.limit,
        us - b.compute,
        (b.serial - us) / least(b.compute, b.comm),
        (b.serial - us) / room if has_room else NAN,
        row.get("flops", NAN) / us * 1e-6,
    )


def ratio(row: dict, other: dict) -> tuple[float, float, float]:
    """Median, p10, p90 of T / T(other): repetition by repetition, which cancels drift, where both have the same."""
    mine, theirs = (x.get("time_us", {}) for x in (row, other))
    a, b = mine.get("samples", []), theirs.get("samples", [])
    if a and len(a) == len(b) and row["run"] == other["run"]:
        quotients = [x / y for x, y in zip(a, b, strict=True)]
        return tuple(protocol.percentile(quotients, p) for p in (50, 10, 90))  # type: ignore[return-value]
    one = mine.get("median", NAN) / theirs.get("median", NAN)
    return one, one, one


def geomean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else NAN
