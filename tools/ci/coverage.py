"""Line coverage of src/ by unit and rank tests, as gcov counted it. Device code and the hosts of GPUs are apart."""

from __future__ import annotations

import collections
import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from results import FAILED, PASSED, Case
from runner import ROOT, build, configure, run, step

LEAST_PERCENT = 90.0
APART = re.compile(r"/(cuda|cuda_peer|nccl)/|\.cuh?$|^(src|include/overlace)/device/")

Lines = dict[int, int]  # line -> how often it ran


def documents(text: str) -> Iterator[dict]:
    """JSON documents one behind the other, with what else gcov says between them."""
    at = text.find("{")
    while at >= 0:
        document, end = json.JSONDecoder().raw_decode(text, at)
        yield document
        at = text.find("{", end)


def read(reports: Iterable[dict]) -> dict[str, Lines]:
    """Files of src/ in reports of `gcov --json-format`; of several objects that have a line the one that ran most."""
    found: dict[str, Lines] = collections.defaultdict(dict)
    for report in reports:
        folder = Path(report["current_working_directory"])
        for file in report["files"]:
            path = (folder / file["file"]).resolve()
            name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else ""
            if not name.startswith("src/") or APART.search(name):
                continue
            lines = found[name]
            for line in file["lines"]:
                number = line["line_number"]
                lines[number] = max(lines.get(number, 0), line["count"])
    return {name: lines for name, lines in found.items() if lines}


def percent(lines: Iterable[int]) -> float:
    counts = list(lines)
    return 100.0 * sum(1 for n in counts if n > 0) / len(counts) if counts else 100.0


def ranges(numbers: list[int]) -> str:
    """ "3 7-9" of [3, 7, 8, 9]."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and runs[-1][1] == n - 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def verdict(files: dict[str, Lines]) -> tuple[Case, list[str]]:
    """Passed or not, and a line for each file below the limit, the one with most to do first."""
    total = percent(n for lines in files.values() for n in lines.values())
    below = []
    for name, lines in files.items():
        missed = [number for number, count in sorted(lines.items()) if count == 0]
        if percent(lines.values()) < LEAST_PERCENT:
            below.append((len(missed), f"{percent(lines.values()):5.1f} %  {name}: {ranges(missed)}"))
    texts = [text for _, text in sorted(below, reverse=True)]
    name = f"line coverage of src/ is {total:.1f} % of {sum(len(x) for x in files.values())} lines"
    if total >= LEAST_PERCENT and files:
        return Case(name, PASSED), texts
    return Case(name, FAILED, f"wanted at least {LEAST_PERCENT:.0f} %\n" + "\n".join(texts)), texts


def gcov(folder: Path) -> Iterator[dict]:
    """One report per object of the library; those that never ran count too."""
    notes = sorted(str(p) for p in folder.glob("CMakeFiles/overlace_*.dir/**/*.gcno"))
    for i in range(0, len(notes), 20):
        done = run(["gcov", "--json-format", "--stdout", *notes[i : i + 20]], 300, cwd=folder)
        yield from documents(done.output)


def check(tests: Callable[[str], Iterator[Case]]) -> Iterator[Case]:
    """`tests`: runs those of a preset."""
    configured = configure("coverage", "-DOVERLACE_TESTS=ON")
    built = build("coverage") if configured.rc == 0 else configured
    yield step("build coverage", built)
    if built.rc != 0:
        return
    folder = ROOT / "build" / "coverage"
    for old in folder.rglob("*.gcda"):
        old.unlink()
    yield from tests("coverage")
    case, below = verdict(read(gcov(folder)))
    print(f"{case.name}; files below {LEAST_PERCENT:.0f} %, and what did not run:", *below, sep="\n  ", flush=True)
    yield case
