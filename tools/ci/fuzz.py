"""tests/fuzz: the committed inputs of every parser, then new ones, two parsers at a time."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from results import FAILED, PASSED, SKIPPED, Case
from runner import OUT, OVER, ROOT, build, configure, is_over, run, step

AT_ONCE = 2
CHANGED_S, UNCHANGED_S, LAST_COMMITS = 15, 5, 10
INPUT_S, MEMORY_MIB = 60, 2048  # of one input; a schedule as large as S1 allows takes some seconds on a busy machine
WEEKLY_RUNS, WEEKLY_S = 1_000_000, 7200


@dataclasses.dataclass(frozen=True)
class Target:
    name: str
    sources: tuple[str, ...]  # beginnings of paths: what it tests


def targets(folder: Path) -> list[Target]:
    """Each says in a line `// Sources: ...` what it tests; one that does not is an error of ours."""
    found = []
    for path in sorted(folder.glob("*_fuzz.cc")):
        line = re.search(r"(?m)^// Sources: (.+)$", path.read_text())
        if not line:
            raise RuntimeError(f"{path.name} has no line `// Sources: beginnings of paths`")
        found.append(Target(path.name.removesuffix("_fuzz.cc"), tuple(line[1].split())))
    return found


def changed_files() -> list[str]:
    """Files of the last commits and of the working tree; everything where Git cannot tell."""
    log = run(["git", "log", f"-{LAST_COMMITS}", "--name-only", "--format="], 60)
    tree = run(["git", "diff", "--name-only", "HEAD"], 60)
    if log.rc != 0 or tree.rc != 0:
        return [""]
    return [line for line in (log.output + tree.output).splitlines() if line]


def is_changed(target: Target, files: list[str]) -> bool:
    own = f"tests/fuzz/{target.name}_fuzz.cc"
    return any(f == "" or f == own or f.startswith(target.sources) for f in files)


def fuzz(folder: Path, target: Target, limits: list[str], timeout_s: float) -> Case:
    """The committed inputs, then new ones up to the limits. What breaks it is kept and its output shown."""
    if is_over():
        return Case(target.name, SKIPPED, OVER)
    program, inputs = folder / f"fuzz_{target.name}", ROOT / "tests/fuzz/corpus" / target.name
    out = OUT / "fuzz" / target.name
    shutil.rmtree(out, ignore_errors=True)
    (out / "inputs").mkdir(parents=True)
    options = [f"-timeout={INPUT_S}", f"-rss_limit_mb={MEMORY_MIB}", f"-artifact_prefix={out}/", "-print_final_stats=1"]
    if not any(inputs.iterdir()):
        return Case(target.name, FAILED, f"{inputs} holds no inputs")
    # What the parsers print would be most of the output.
    done = run([str(program), *options, *limits, "-close_fd_mask=3", str(out / "inputs"), str(inputs)], timeout_s)
    runs = re.search(r"stat::number_of_executed_units: (\d+)", done.output)
    if done.rc == 0 and runs:
        return Case(f"{target.name} ({runs[1]} runs)", PASSED)
    # libFuzzer keeps inputs that only were slow as well.
    broken = sorted(p for p in out.iterdir() if p.is_file() and not p.name.startswith("slow-unit-"))
    if not broken:
        return Case(target.name, FAILED, done.why())
    again = run([str(program), *options, str(broken[0])], 120)
    return Case(target.name, FAILED, f"input {broken[0].relative_to(ROOT)}\n{again.why(60)}")


def check(is_weekly: bool) -> Iterator[Case]:
    if not shutil.which("clang++-14"):
        yield Case("fuzz", SKIPPED, "clang++-14 was not found")
        return
    configured = configure("asan", "-DOVERLACE_TESTS=ON")
    done = build("asan", "fuzz") if configured.rc == 0 else configured
    if done.rc != 0 and "clang_rt.fuzzer" in done.output:
        yield Case("fuzz", SKIPPED, "libFuzzer was not found: package libclang-rt-14-dev")
        return
    yield step("build fuzz", done)
    if done.rc != 0:
        return
    files = changed_files()

    def one(target: Target) -> Case:
        seconds = CHANGED_S if is_changed(target, files) else UNCHANGED_S
        limits = [f"-runs={WEEKLY_RUNS}"] if is_weekly else [f"-max_total_time={seconds}"]
        return fuzz(ROOT / "build/asan/tests/fuzz", target, limits, WEEKLY_S if is_weekly else seconds + 120)

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        yield from pool.map(one, targets(ROOT / "tests/fuzz"))
