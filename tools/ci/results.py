"""Outcomes of test cases and checks, and the report at the end of a CI run."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ElementTree
from pathlib import Path

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


@dataclasses.dataclass(frozen=True)
class Case:
    """One test case or check: `detail` says why it failed or was skipped."""

    name: str
    outcome: str
    detail: str = ""


def read_xml(path: Path) -> list[Case]:
    """Cases of a report by GoogleTest (--gtest_output=xml) or pytest (--junitxml); raises on a damaged file."""
    cases = []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = f"{case.get('classname', '')}.{case.get('name', '')}"
        bad = [x for x in case if x.tag in ("failure", "error")]
        skip = case.find("skipped")
        if bad:
            cases.append(Case(name, FAILED, "\n".join(x.get("message") or x.text or "" for x in bad)))
        elif skip is not None:
            cases.append(Case(name, SKIPPED, one_line(skip.get("message") or skip.text or "no reason given")))
        elif case.get("status") == "notrun":
            cases.append(Case(name, SKIPPED, "disabled in the source"))
        else:
            cases.append(Case(name, PASSED))
    return cases


def one_line(text: str) -> str:
    """The text without the place in the source that GoogleTest puts in its first line."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].rpartition(":")[2].isdigit():
        lines = lines[1:]
    return " ".join(lines)


@dataclasses.dataclass
class Ran:
    """A job that has ended, with the time that it took: on the clock, and of processors."""

    job: str
    cases: list[Case]
    clock_s: float = 0
    processor_s: float = 0

    def of(self, outcome: str) -> list[Case]:
        return [c for c in self.cases if c.outcome == outcome]

    def counts(self) -> str:
        return ", ".join(f"{len(self.of(outcome))} {outcome}" for outcome in (PASSED, FAILED, SKIPPED))


class Results:
    """All jobs of a run, and how long it took by the clock: less than its jobs where some ran beside others."""

    def __init__(self, jobs: list[Ran], clock_s: float = 0) -> None:
        self.jobs, self.clock_s = [*jobs], clock_s

    def of(self, outcome: str) -> list[tuple[str, Case]]:
        return [(ran.job, case) for ran in self.jobs for case in ran.of(outcome)]

    def counts(self) -> str:
        return Ran("", [case for ran in self.jobs for case in ran.cases]).counts()

    def report(self) -> tuple[str, str]:
        """What to print, and the last line. A run in which nothing ran has failed."""
        if not self.of(PASSED) and not self.of(FAILED):
            self.jobs.append(Ran("run", [Case("at least one test", FAILED, "no test ran")]))
        lines = ["", "job          seconds  processor  cases"]
        lines += [f"{r.job:<12} {r.clock_s:7.1f}  {r.processor_s:9.1f}  {r.counts()}" for r in self.jobs]
        lines.append(f"{'all':<12} {self.clock_s:7.1f}  {sum(ran.processor_s for ran in self.jobs):9.1f}")
        over = [ran.job for ran in self.jobs if any(c.detail.startswith("not begun") for c in ran.cases)]
        if over:
            lines += ["", f"NOT WHOLE: the time of this run was over before all of {', '.join(over)} had begun"]
        for title, outcome in (("Skipped:", SKIPPED), ("Failed:", FAILED)):
            if self.of(outcome):
                lines += ["", title]
                lines += [f"  {job}: {c.name}: {one_line(c.detail)[:400]}" for job, c in self.of(outcome)]
        return "\n".join(lines) + "\n", self.counts()

    def ok(self) -> bool:
        return bool(self.of(PASSED)) and not self.of(FAILED)
