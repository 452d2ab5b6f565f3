"""Comparison of two records of the same machine: what became slower, and whether two runs agree."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable

import records
from records import Group

SHORT_US = 100  # shorter calls move more from run to run
SLOWER, SLOWER_SHORT = 0.03, 0.06
AA, AA_SHORT = 0.01, 0.03
AA_CPU = 0.15  # CPU ranks share their cores with all else that runs
AGREE, AGREE_SHORT = 0.02, 0.06
OTHERS = ("torch", "quack", "plain")  # competitors that are not overlace's begin so
MACHINE_MOVED = 0.05  # of T_serial: then nothing is said


def spread(old: dict, new: dict) -> float:
    """Half the distance of p10 and p90 relative to the median, of both in quadrature."""

    def one(row: dict) -> float:
        t = row["time_us"]
        return (t["p90"] - t["p10"]) / 2 / t["median"] if "p90" in t else 0.0

    return math.hypot(one(old), one(new))


@dataclasses.dataclass(frozen=True)
class Finding:
    group: Group
    competitor: str
    verdict: str  # same, faster, slower, machine differs
    moved: float  # of T / T_serial: 0.04 is 4 % slower
    band: float

    def line(self) -> str:
        return (
            f"{self.verdict:<15} {self.group.workload}  {self.group.title()}  {self.competitor}:"
            f" {100 * self.moved:+.1f} % (band {100 * self.band:.1f} %)"
        )


def pairs(old: list[dict], new: list[dict]) -> list[tuple[Group, Group]]:
    """Cases that both have, on machines of the same name."""

    def keyed(rows: list[dict]) -> dict[tuple, Group]:
        return {(records.machine_name(g.first), *g.key): g for g in records.groups(rows)}

    before = keyed(old)
    return [(before[key], group) for key, group in keyed(new).items() if key in before]


def findings(old: list[dict], new: list[dict]) -> list[Finding]:
    found = []
    for before, after in pairs(old, new):
        a, b = records.bounds_of(before), records.bounds_of(after)
        for name in after.rows:
            was, now = before.us(name), after.us(name)
            if name in records.PARTS or math.isnan(was) or math.isnan(now) or name == "plain":
                continue
            band = max(SLOWER_SHORT if was < SHORT_US else SLOWER, 2 * spread(before.rows[name], after.rows[name]))
            plain_before, plain_after = before.us("plain"), after.us("plain")
            anchors = [(a.serial, b.serial), (a.limit, b.limit), (plain_before, plain_after)]
            anchors.append((before.us("torch"), after.us("torch")))
            moves = [(now / y) / (was / x) - 1 for x, y in anchors if not math.isnan(x) and not math.isnan(y)]
            if not moves:
                continue
            moved = min(moves, key=abs) if min(moves) * max(moves) > 0 else 0.0
            if not math.isnan(a.serial) and abs(b.serial / a.serial - 1) > MACHINE_MOVED:
                verdict = "machine differs"
            elif moved > band:
                verdict = "slower"
            else:
                verdict = "faster" if moved < -band else "same"
            found.append(Finding(after, name, verdict, moved, band))
    return found


def regressions(old: list[dict], new: list[dict]) -> tuple[list[str], bool]:
    """Lines, and whether something is slower in every run of `new`, of which a verdict needs two."""
    ids = records.runs(new)
    by_run = [findings(old, [r for r in new if r["run"] == one]) for one in ids]
    everywhere: dict[tuple, int] = {}
    lines = []
    for found in by_run:
        for f in found:
            if f.verdict != "same":
                lines.append(f.line())
            if f.verdict == "slower":
                key = (f.group.key, f.competitor)
                everywhere[key] = everywhere.get(key, 0) + 1
    compared = sum(map(len, by_run))
    if compared == 0:
        return ["nothing to compare: no case of the same machine is in both"], False
    certain = [k for k, n in everywhere.items() if n >= 2 and n == len(ids)]
    lines.append(
        f"{compared} compared in {len(ids)} run{'s' if len(ids) > 1 else ''}:"
        f" {sum(f.verdict == 'slower' for x in by_run for f in x)} slower, {len(certain)} of them in two agreeing runs"
    )
    if everywhere and len(ids) < 2:
        lines.append("one run gives no verdict: repeat with --runs 2")
    return lines, bool(certain)


def agreement(old: list[dict], new: list[dict]) -> tuple[list[str], bool]:
    """Whether T_serial / T_limit of two runs agree, case by case."""
    lines, good = [], True
    for before, after in pairs(old, new):
        a, b = records.bounds_of(before), records.bounds_of(after)
        one, two = a.serial / a.limit, b.serial / b.limit
        if math.isnan(one) or math.isnan(two):
            continue
        band = AGREE_SHORT if a.limit < SHORT_US else AGREE
        moved = two / one - 1
        good = good and abs(moved) <= band
        lines.append(
            f"{'agree' if abs(moved) <= band else 'DIFFER':<7} {after.workload}  {after.title()}: serial/limit"
            f" {one:.3f} and {two:.3f} ({100 * moved:+.1f} %, band {100 * band:.0f} %);"
            f" serial {a.serial:.0f} and {b.serial:.0f} us"
        )
    if not lines:
        return ["nothing to compare: no case with serial and limit is in both, on a machine of the same name"], False
    return lines, good


def medians(rows: list[dict]) -> dict[tuple, dict[str, float]]:
    """Machine and case -> competitor -> the median over all runs of what each run took, in us; without bounds."""
    times: dict[tuple, dict[str, list[float]]] = {}
    for row in rows:
        us = row.get("time_us", {}).get("median", math.nan)
        if math.isnan(us) or row["competitor"] in records.PARTS:
            continue
        key = (records.machine_name(row), *records.case_key(row))
        times.setdefault(key, {}).setdefault(row["competitor"], []).append(us)
    return {key: {name: statistics.median(us) for name, us in found.items()} for key, found in times.items()}


def against(old: list[dict], new: list[dict], worst: float) -> tuple[list[str], bool]:
    """The ratio of new to old times, case by case, and whether none of overlace's schedules is above `worst`. Those of
    the library and of others are shown without a verdict: they say whether the machine moved."""
    before, after = medians(old), medians(new)
    titles = {
        (records.machine_name(row), *records.case_key(row)): f"{row['workload']}  {Group((), {'': row}).title()}"
        for row in old + new
    }
    lines, judged = [], []
    for key in (key for key in after if key in before):
        for name in (name for name in after[key] if name in before[key]):
            ratio = after[key][name] / before[key][name]
            is_judged = name != records.LIBRARY and not name.startswith(OTHERS)
            verdict = "-" if not is_judged else "ABOVE" if ratio > worst else "ok"
            text = f"{titles[key]}  {name}"
            lines.append(f"{verdict:<5} {ratio:.4f}  {text}: {after[key][name]:.2f} us, was {before[key][name]:.2f}")
            if is_judged:
                judged.append((ratio, text))
    if not judged:
        return [*lines, "nothing to compare: no case of the same machine has a schedule's times in both"], False
    most, where = max(judged)
    mean = statistics.geometric_mean(ratio for ratio, _ in judged)
    lost = [titles[key] for key in before if key not in after]
    if lost:
        lines.append(f"{len(lost)} of {len(before)} cases were not measured again, the first {lost[0]}")
    lines.append(
        f"{len(judged)} ratios: geometric mean {mean:.4f}, worst {most:.4f} ({where}), wanted at most {worst:g}"
    )
    return lines, most <= worst


def stale(path: str, rows: list[dict], changed: Callable[[str], list[str]]) -> list[str]:
    """Workloads of a file, and whether their newest record is older than what it measured. `changed`: the sources that
    differ from a commit; LookupError where it is unknown."""
    newest: dict[str, dict] = {}
    for row in rows:
        if row["workload"] not in newest or row["run"] >= newest[row["workload"]]["run"]:
            newest[row["workload"]] = row
    lines = []
    for workload, row in newest.items():
        try:
            files = changed(row["git"])
        except LookupError as why:
            lines.append(f"unknown  {path}  {workload}: {why}")
            continue
        place = f"{path}  {workload}"
        differ = f"stale    {place}: {len(files)} sources differ from {row['git']}"
        lines.append(differ if files else f"current  {place}: {row['git']}")
    return lines


def same_twice(rows: list[dict]) -> tuple[list[str], bool]:
    """A against A: `NAME` and `NAME@2` of one run."""
    lines, good = [], True
    for group in records.groups(rows):
        for name in group.rows:
            twin = f"{name}@2"
            if twin not in group.rows or math.isnan(group.us(name)) or math.isnan(group.us(twin)):
                continue
            middle, low, high = records.ratio(group.rows[twin], group.rows[name])
            band = AA_SHORT if group.us(name) < SHORT_US else AA
            if "gpus" not in group.first["machine"]:
                band = AA_CPU
            good = good and abs(middle - 1) <= band
            lines.append(
                f"{'agree' if abs(middle - 1) <= band else 'VOID':<6} {group.workload}  {group.title()}  {twin} /"
                f" {name}: {middle:.3f} ({low:.3f}..{high:.3f}, band {100 * band:.0f} %)"
            )
    return (lines, good) if lines else (["no competitor was measured twice"], False)
