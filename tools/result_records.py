"""Committed records of benches, and what the generators of docs/results and README.md derive from them."""

from __future__ import annotations

import math
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "bench" / "driver")]

import baselines  # noqa: E402
import records as bench_records  # noqa: E402

RESULTS = ROOT / "bench" / "results"
DENSE = bench_records.OPERATORS
REDUCED = [name for name, operator in bench_records.DENSE_OPERATORS.items() if operator.rows == "reduced"]


def records(name: str) -> list[dict]:
    path = RESULTS / f"{name}.jsonl"
    return bench_records.read(path) if path.exists() else []


def newest(rows: list[dict]) -> dict[tuple, dict[str, dict]]:
    """(name, m, n, k) -> competitor -> record, in order of first appearance."""
    cases: dict[tuple, dict[str, dict]] = {}
    for row in rows:
        case = row["case"]
        group = cases.setdefault((case["name"], case["m"], case["n"], case["k"]), {})
        old = group.get(row["competitor"])
        if old is None or row["run"] >= old["run"]:
            group[row["competitor"]] = row
    return cases


def median(group: dict[str, dict], competitor: str) -> float:
    return group.get(competitor, {}).get("time_us", {}).get("median", math.nan)


def changes() -> list[baselines.Change]:
    return baselines.read(RESULTS)


def is_void(group: dict[str, dict], *competitors: str) -> bool:
    """Whether one of these times is too old to be compared with."""
    return any(baselines.is_void(group[x], changes()) for x in competitors if x in group)


def ratio(value: float, group: dict[str, dict], *competitors: str) -> str:
    """A ratio of times of these competitors; `void` where one of them may not be compared with."""
    return "-" if math.isnan(value) else "void" if is_void(group, *competitors) else f"{value:.2f}"


def derived(group: dict[str, dict]) -> dict[str, float]:
    """Few rows are measured against `library` alone: what is not there is NaN, and so is what follows from it."""
    names = ("compute", "comm", "library", "serial", "limit")
    b = bench_records.bounds({name: median(group, name) for name in names})
    auto, own = median(group, "auto"), median(group, "serial")
    return {
        "compute": b.compute,
        "library": b.library,
        "serial": own,
        "limit": b.limit,
        "auto": auto,
        "rho": auto / b.limit,
        "gain": b.library / auto,
    }


def microseconds(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(math.log(x) for x in values) / len(values))


def forced_name(competitor: str) -> str:
    """Heading of a schedule that was asked for, so that nobody takes it for what `auto` gave."""
    return f"forced `{competitor}`"


def of_commit(rows: list[dict]) -> str:
    """Which commit and day records are of: every table says it."""
    commits, days = (sorted({row[key][:size] for row in rows}) for key, size in (("git", 12), ("run", 10)))
    return f"Commit{'s' if len(commits) > 1 else ''} {', '.join(commits)}, {' and '.join(days)}."
