"""Units, plan and record of a run of the GPU tests (tools/gpu_check.py runs them). Pure: nothing here starts a program.

A unit is a program of tests/gpu or a pytest file. It needs one GPU or all there are, or all of a part, where the
machine is used as several that know nothing of each other. Of those that need all, the ones that mostly open, compile
and compute on hosts run first, a few side by side; then the others alone, then those of one GPU side by side, one on
each GPU; longest first each time. A program whose cases mostly wait is several units, its shards, which run side by
side and are one row. What fails beside others, shards too, runs again alone, and that counts.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

SCHEMA = "overlace.gpu_tests/1"
RECORD = "docs/results/gpu_tests.json"
PYTEST_FOLDER = "tests/python/torch_gpu"
PYTHON = "torch_"  # units of pytest begin so: test_program.py is torch_program
# Programs none of whose cases does more if there is a second GPU, or whose ranks have to share one. All others use
# every GPU that they see.
ONE_GPU = frozenset({"gpu_co_residency", "gpu_starved"})
# They keep GPUs busy for a small part of their time; no case asks how long a GPU takes or how much memory is free.
SHARED = frozenset(
    {
        "gpu_adopt",
        "gpu_ag_wgrad",
        "gpu_capi",
        "gpu_cublaslt",
        "gpu_exchange",
        "gpu_fp8",
        "gpu_gather_one_shot",
        "gpu_gather_rows",
        "gpu_gemm_ar_norm",
        "gpu_inbox",
        "gpu_grouped_gemm",
        "gpu_memory_processes",
        "gpu_moe",
        "gpu_moe_grad",
        "gpu_nccl",
        "gpu_net",
        "gpu_offload",
        "gpu_operand_places",
        "gpu_ops",
        "gpu_packed_loader",
        "gpu_runtime_processes",
        "gpu_striped",
        "gpu_trace",
        "gpu_tracked",
        "gpu_tune",
    }
)  # and all pytest files but these, which ask how much memory of a device is taken, or how long the host was held
ALONE = frozenset({"torch_co2_gpu", "torch_packed_loader", "torch_program"})
AT_ONCE = 4
# Programs that run alone, in so many shards side by side: their cases wait for CUDA to open and to close, and for
# deadlines. Cases come in fours (kill, exit, stop, fail), of which one takes a deadline: three shards get as many each.
# NOTE: beside other programs gpu_fault holds all of them up, as a rank that is stopped keeps its turns on the GPU.
SHARDS = {"gpu_fault": 3}
PASSED, FAILED, SKIPPED, NOT_RUN = "passed", "failed", "skipped", "not run"


@dataclasses.dataclass(frozen=True)
class Unit:
    """`seconds`: of its last run, None if it never ended. `missing`: why it cannot be started at all."""

    name: str
    command: tuple[str, ...] = ()
    is_wide: bool = True
    is_shared: bool = False  # may run beside others of its kind, on the same GPUs
    seconds: float | None = None
    timeout_s: float = 600
    missing: str = ""
    shard: int = 0  # of `shards`
    shards: int = 1

    @property
    def program(self) -> str:
        return program_of(self.name)

    def runs_again(self, row: Row, has_neighbours: bool = False) -> bool:
        """Whether something else may be why it failed. All cases of a shard cannot be named. `has_neighbours`: in other
        parts of the machine."""
        may_share = self.is_shared or ((self.shards > 1 or has_neighbours) and not row.cut_short)
        return row.outcome == FAILED and row.passed > 0 and may_share


@dataclasses.dataclass
class Row:
    """What came of a unit. `detail`: why it was not run; `reasons`: of skipped cases, with how many there were."""

    name: str
    outcome: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    detail: str = ""
    reasons: dict[str, int] = dataclasses.field(default_factory=dict)
    failures: list[str] = dataclasses.field(default_factory=list)
    cut_short: bool = False  # it was stopped, or ended with a status, so its cases do not say all


def expected_names(root: Path) -> list[str]:
    """Every program of tests/gpu by its source, and the pytest files; what was not built is missing, not forgotten."""
    stems = {path.name.split("_test.")[0] for path in (root / "tests" / "gpu").glob("*_test.c*")}
    files = sorted(path.stem.removeprefix("test_") for path in (root / PYTEST_FOLDER).glob("test_*.py"))
    return [*(f"gpu_{stem}" for stem in sorted(stems)), *(PYTHON + stem for stem in files)]


def shards_of(unit: Unit) -> list[Unit]:
    """The units that a program is run as: NAME, or NAME.1of3 to NAME.3of3."""
    count = SHARDS.get(unit.name, 1)
    if count == 1:
        return [unit]
    names = [f"{unit.name}.{i + 1}of{count}" for i in range(count)]
    return [dataclasses.replace(unit, name=name, shard=i, shards=count) for i, name in enumerate(names)]


def program_of(name: str) -> str:
    """The program of a unit."""
    return name.split(".")[0]


def is_python(name: str) -> bool:
    return name.startswith(PYTHON)


def pytest_file(name: str) -> str:
    """The file of a unit of pytest."""
    return f"{PYTEST_FOLDER}/test_{name.removeprefix(PYTHON)}.py"


def longest_first(units: list[Unit]) -> list[Unit]:
    """Those of unknown length come last: one that takes all the minutes would keep the others from running."""
    return sorted(units, key=lambda u: (-(u.seconds or 0), u.name))


class Scheduler:
    """Says what to start when. The caller tells the time, in seconds since the run began, and what has ended.
    `part`: of how many GPUs a part is; 0: all are one."""

    def __init__(self, units: list[Unit], gpus: int, budget_s: float, part: int = 0) -> None:
        self.budget_s, size = budget_s, part or max(gpus, 1)
        self.parts = [tuple(range(first, first + size)) for first in range(0, gpus - size + 1, size)]
        self.not_run = [Row(u.name, NOT_RUN, detail=u.missing) for u in units if u.missing]
        self.waiting = longest_first([u for u in units if not u.missing])
        self.repeats: list[Unit] = []  # what failed beside others
        self.busy: dict[Unit, tuple[int, ...]] = {}
        if not self.parts:
            lacks = "this machine has no GPU" if gpus < 1 else f"this machine has {gpus} GPUs, no part of {part}"
            self.not_run += [Row(u.name, NOT_RUN, detail=lacks) for u in self.waiting]
            self.waiting = []

    def start(self, now_s: float) -> list[tuple[Unit, tuple[int, ...], float]]:
        """(unit, GPUs, seconds it may take) of what starts now; what no longer fits is put to `not_run`."""
        left = self.budget_s - now_s
        for unit in [u for u in self.waiting + self.repeats if left <= 0 or (u.seconds or 0) > left]:
            (self.waiting if unit in self.waiting else self.repeats).remove(unit)
            took = "it never ended before" if unit.seconds is None else f"it took {unit.seconds:.0f} s last time"
            self.not_run.append(Row(unit.name, NOT_RUN, detail=f"{max(0, left):.0f} s were left, {took}"))
        started = []
        for part in self.parts:
            while unit := self._next(part):
                taken = {gpu for gpus in self.busy.values() for gpu in gpus}
                gpus = part if unit.is_wide else (next(gpu for gpu in part if gpu not in taken),)
                self.waiting.remove(unit)
                self.busy[unit] = gpus
                started.append((unit, gpus, min(unit.timeout_s, left)))
        if self.repeats and not self.waiting and not self.busy:
            unit = self.repeats.pop(0)
            self.busy[unit] = self.parts[0] if unit.is_wide else self.parts[0][:1]
            started.append((unit, self.busy[unit], min(unit.timeout_s, left)))
        return started

    def _next(self, part: tuple[int, ...]) -> Unit | None:
        busy = {unit: gpus for unit, gpus in self.busy.items() if gpus[0] in part}
        shared = [u for u in self.waiting if u.is_shared]
        if shared:
            return shared[0] if len(busy) < AT_ONCE else None
        wide = [u for u in self.waiting if u.is_wide]
        if wide:
            are_shards = all(u.shards > 1 and u.program == wide[0].program for u in (wide[0], *busy))
            return wide[0] if not busy or are_shards else None
        in_use = sum(len(gpus) for gpus in busy.values())
        return self.waiting[0] if self.waiting and in_use < len(part) else None

    def ended(self, unit: Unit) -> None:
        del self.busy[unit]

    def again(self, unit: Unit) -> None:
        """What failed beside others, when all else has ended."""
        self.repeats = longest_first([*self.repeats, unit])

    def is_done(self) -> bool:
        return not self.waiting and not self.repeats and not self.busy


def alone(unit: Unit, row: Row) -> Unit:
    """The cases that have failed, to be run with nothing beside them; all where the unit was cut short."""
    if row.cut_short:
        return dataclasses.replace(unit, is_shared=False, seconds=None)
    names = [failure.split(": ")[0] for failure in row.failures]
    command = [word for word in unit.command if not word.startswith(PYTEST_FOLDER)]
    if is_python(unit.name):
        for name in names:
            module, _, rest = name.partition(".test_")
            file, _, case = rest.partition(".")
            command.append(f"{module.replace('.', '/')}/test_{file}.py::{case}")
    else:
        command.append("--gtest_filter=" + ":".join(names))
    return dataclasses.replace(unit, command=tuple(command), is_shared=False, seconds=None, shard=0, shards=1)


def joined(beside: Row, repeated: Row) -> Row:
    """One row of a unit whose failed cases ran again alone; those that then passed are named."""
    if beside.cut_short and repeated.outcome != NOT_RUN:
        seen = "beside others: " + "; ".join(beside.failures)[:300]
        return dataclasses.replace(repeated, seconds=beside.seconds + repeated.seconds, detail=seen)
    out = dataclasses.replace(repeated, passed=beside.passed + repeated.passed, skipped=beside.skipped)
    out.reasons = beside.reasons
    out.seconds = beside.seconds + repeated.seconds
    mended = beside.failed - repeated.failed
    if repeated.outcome == NOT_RUN:
        return dataclasses.replace(beside, detail="failed beside others; no time was left to run it alone")
    if mended > 0:
        out.detail = f"{mended} failed beside others and passed alone: " + "; ".join(beside.failures)[:300]
    return out


def merged(rows: list[Row]) -> list[Row]:
    """One row per program: the sums of its shards, and the seconds of the longest."""
    out: dict[str, Row] = {}
    for row in rows:
        name = program_of(row.name)
        row = dataclasses.replace(row, name=name)
        so_far = out.setdefault(name, row)
        if so_far is row:
            continue
        outcomes = {so_far.outcome, row.outcome}
        out[name] = Row(
            name,
            next(outcome for outcome in (NOT_RUN, FAILED, PASSED, SKIPPED) if outcome in outcomes),
            so_far.passed + row.passed,
            so_far.failed + row.failed,
            so_far.skipped + row.skipped,
            max(so_far.seconds, row.seconds),
            "; ".join(dict.fromkeys(x.detail for x in (so_far, row) if x.detail)),
            {key: so_far.reasons.get(key, 0) + row.reasons.get(key, 0) for key in {**so_far.reasons, **row.reasons}},
            so_far.failures + row.failures,
            so_far.cut_short or row.cut_short,
        )
    return list(out.values())


GTEST_LINE = re.compile(r"(?m)^\[ *(RUN|OK|FAILED|SKIPPED) *\] ([\w/.]+)(?:, where .*)?(?: \(\d+ ms\))?$")
PYTEST_LINE = re.compile(r"(?m)^(\S+::\S+) (PASSED|FAILED|ERROR|SKIPPED)\b")


def counts_of_output(output: str) -> tuple[int, list[str], int, str]:
    """A unit that was stopped, so that it left no report: passed, names of failed, skipped, what ran at the end."""
    seen: dict[str, str] = {}
    for verdict, name in GTEST_LINE.findall(output):
        seen[name] = verdict
    for name, verdict in PYTEST_LINE.findall(output):
        seen[name] = {"PASSED": "OK", "ERROR": "FAILED"}.get(verdict, verdict)
    running = next((name for name, verdict in seen.items() if verdict == "RUN"), "")
    failed = [name for name, verdict in seen.items() if verdict == "FAILED"]
    return (
        sum(v == "OK" for v in seen.values()),
        failed,
        sum(v == "SKIPPED" for v in seen.values()),
        running,
    )


def said_in(output: str, case: str) -> str:
    """What a GoogleTest program printed while the case ran: ranks that are processes of their own say there what they
    expected, and the report has but their status."""
    lines = output.splitlines()
    begin = next((at for at, line in enumerate(lines) if re.fullmatch(rf"\[ RUN +\] {re.escape(case)}", line)), None)
    if begin is None:
        return ""
    end = next((at for at in range(begin + 1, len(lines)) if re.match(r"\[ +(OK|FAILED|SKIPPED) +\]", lines[at])), None)
    return " ".join(" ".join(lines[begin + 1 : end]).split())


def whole(rows: list[Row]) -> bool:
    """Every unit ran, with at least one case that was not skipped."""
    return bool(rows) and all(row.outcome in (PASSED, FAILED) for row in rows)


def exit_code(rows: list[Row]) -> int:
    """1: something failed; 2: something was not run; a unit that skipped all its cases was not run either."""
    if any(row.failed for row in rows):
        return 1
    return 0 if whole(rows) else 2


def table(rows: list[Row]) -> str:
    """One line per unit, longest first, what was not run at the end; then why cases were skipped and which failed."""
    ordered = sorted(rows, key=lambda r: (r.outcome == NOT_RUN, -r.seconds, r.name))
    width = max([len(row.name) for row in rows] + [4])
    lines = [f"{'name':<{width}}  passed  failed  skipped  seconds"]
    for row in ordered:
        counts = f"{row.name:<{width}}  {row.passed:6}  {row.failed:6}  {row.skipped:7}  {row.seconds:7.1f}"
        lines.append(counts + (f"  {row.outcome}: {row.detail}" if row.detail else ""))
    total = [sum(getattr(row, key) for row in rows) for key in ("passed", "failed", "skipped")]
    lines.append(f"{'all':<{width}}  {total[0]:6}  {total[1]:6}  {total[2]:7}")
    for row in ordered:
        lines += [f"skipped: {row.name}: {count} x {reason}" for reason, count in row.reasons.items()]
    for row in ordered:
        lines += [f"failed: {row.name}: {failure}" for failure in row.failures]
    return "\n".join(lines)


def record(rows: list[Row], about: dict, old: dict | None) -> dict:
    """What is written: the last run, with how long each unit took at its last end, and a summary of the last whole run.
    `about`: commit, date, command, machine, budget_s."""
    known = {p["name"]: p.get("known_s") for p in (old or {}).get("last", {}).get("programs", [])}
    programs = []
    for row in sorted(rows, key=lambda r: r.name):
        ended = row.outcome in (PASSED, FAILED)  # what skipped all its cases says nothing of how long they take
        entry = dataclasses.asdict(row)
        entry["seconds"] = round(row.seconds, 1)
        entry["known_s"] = round(row.seconds, 1) if ended else known.get(row.name)
        programs.append(entry)
    totals = {key: sum(getattr(row, key) for row in rows) for key in ("passed", "failed", "skipped")}
    totals["not_run"] = sum(row.outcome == NOT_RUN for row in rows)
    last = {**about, "whole": whole(rows), **totals, "programs": programs}
    summary = {key: last[key] for key in ("commit", "date", "command", "machine", *totals)}
    return {
        "schema": SCHEMA,
        "last": last,
        "last_whole": summary if last["whole"] else (old or {}).get("last_whole"),
    }


def carried(old: dict | None, commit: str, machine: dict) -> list[Row]:
    """Rows of the last run that need not be run again: of the same commit, unchanged, and the same machine. ValueError
    says why there are none."""
    last = (old or {}).get("last")
    if last is None:
        raise ValueError("there is no record to continue")
    for what, was, now in (("commit", last["commit"], commit), ("machine", last["machine"], machine)):
        if was != now:
            raise ValueError(f"the record is of {what} {was}, this run of {now}")
    if commit.endswith("+"):
        raise ValueError(f"files differ from commit {commit[:-1]}: nobody knows whether the record is of the same ones")
    rows = [Row(**{key: p[key] for key in p if key != "known_s"}) for p in last["programs"]]
    return [row for row in rows if row.outcome in (PASSED, FAILED)]


def known_seconds(old: dict | None) -> dict[str, float]:
    """How long each unit took when it last ended."""
    programs = (old or {}).get("last", {}).get("programs", [])
    return {p["name"]: float(p["known_s"]) for p in programs if p.get("known_s") is not None}
