"""Which changed conditions no test notices: hundreds of mutants in one build, each tried with the tests that come past
it until one fails. Weekly; by hand: tools/ci/mutate.py --help.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import mutants
from mutants import Mutant
from results import FAILED, PASSED, Case
from runner import OUT, ROOT, Program, jobs, programs, run, step

FOLDERS = ("src/base", "src/spec", "src/ops", "src/exec", "src/runtime")
# Not in a build for CPUs, or a library of its own.
APART = re.compile(r"/cuda/|/cuda_peer/|/nccl/|/onednn/|/mpi/plugin\.cc$")
# They need mpirun, or start themselves again with other seeds.
WITHOUT = re.compile(r"^ranks_(net|seeds)$")
EQUIVALENT = Path("tools/ci/mutants_equivalent.txt")
WEEKLY_MUTANTS, WEEKLY_MINUTES, LEAST_PERCENT = 300, 60.0, 80.0
CASE_S = 20.0  # cases that take longer are left out
MUTANT_S = 60.0  # of tests for one mutant
BUILD_ROUNDS = 8
# A mutant may allocate without end; 4 GiB of data, no core.
LIMITED = ("bash", "-c", 'ulimit -d 4194304 -c 0; exec "$@"', "limited")
KILLED, SURVIVED, UNSEEN, UNTRIED = "killed", "survived", "not executed", "not tried"


@dataclasses.dataclass(frozen=True)
class Test:
    """One case of a program, as it went without a mutant; `seen`: numbers of the mutants that it came past."""

    program: Program
    name: str
    seconds: float
    seen: frozenset[int]


@dataclasses.dataclass(frozen=True)
class Verdict:
    mutant: Mutant
    outcome: str
    by: str = ""  # the test that failed; of survivors how many passed


@dataclasses.dataclass
class Plan:
    """What is wanted of a run."""

    count: int = WEEKLY_MUTANTS
    seed: int = 1
    folders: tuple[str, ...] = FOLDERS
    tests: str = r"unit_(base|spec|ops|exec|runtime|plan|sim|bad_input)|ranks_.*"
    minutes: float = WEEKLY_MINUTES
    at_once: int = dataclasses.field(default_factory=jobs)


def sources(root: Path, folders: tuple[str, ...]) -> list[str]:
    found = [str(p.relative_to(root)) for f in folders for p in sorted((root / f).rglob("*.cc"))]
    return [p for p in found if not APART.search(p)]


def all_mutants(root: Path, folders: tuple[str, ...]) -> list[Mutant]:
    return [m for path in sources(root, folders) for m in mutants.mutants_of(path, (root / path).read_text())]


def equivalents(root: Path, known: list[Mutant]) -> tuple[set[tuple[str, str, str]], list[str]]:
    """Mutants that change nothing, named as `path | condition | change | reason`; and lines that fit no mutant."""
    path = root / EQUIVALENT
    lines = path.read_text().splitlines() if path.exists() else []
    keys, problems = set(), []
    there = {m.key for m in known}
    for n, line in enumerate(lines, 1):
        if not line or line.startswith("#"):
            continue
        # Conditions hold " || ": the fields are split at bars that stand alone.
        fields = [f.strip() for f in re.split(r"(?<!\|)\|(?!\|)", line)]
        if len(fields) == 4 and all(fields) and tuple(fields[:3]) in there:
            keys.add((fields[0], fields[1], fields[2]))
        else:
            problems.append(f"{EQUIVALENT}:{n}: no such mutant, or no reason: {line}")
    return keys, problems


def copy_tree(tree: Path) -> None:
    """All files of the working tree but those that write_mutants writes; what is the same is not built again."""
    listed = run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], 60)
    if listed.rc != 0:
        raise RuntimeError(listed.why())
    wanted = {name for name in listed.output.split("\0") if name and (ROOT / name).is_file()}
    own = {*sources(ROOT, FOLDERS), mutants.HEADER, mutants.SOURCE}
    for name in wanted - own:
        put(tree / name, (ROOT / name).read_bytes(), (ROOT / name).stat().st_mode)
    for path in tree.rglob("*"):
        name = str(path.relative_to(tree))
        if path.is_file() and not name.startswith("build/") and name not in wanted | {mutants.HEADER, mutants.SOURCE}:
            path.unlink()


def put(path: Path, content: bytes, mode: int = 0o644) -> None:
    if path.exists() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)


def write_mutants(tree: Path, numbered: dict[int, Mutant]) -> None:
    put(tree / mutants.HEADER, mutants.HEADER_TEXT.encode())
    put(tree / mutants.SOURCE, mutants.SOURCE_TEXT.encode())
    of_path: dict[str, list[tuple[int, Mutant]]] = {}
    for number, mutant in numbered.items():
        of_path.setdefault(mutant.path, []).append((number, mutant))
    for path in sources(ROOT, FOLDERS):
        text = (ROOT / path).read_text()
        changed = mutants.rewritten(text, of_path[path]) if path in of_path else text
        put(tree / path, changed.encode())


def broken_by(output: str, numbered: dict[int, Mutant]) -> set[int]:
    """Mutants that stand in lines where the compiler found errors."""
    found = set()
    for path, line in re.findall(r"(?m)(src/[\w/]+\.cc):(\d+):(?:\d+:)? (?:fatal )?error", output):
        for number, m in numbered.items():
            last = m.line + m.text.strip().count("\n")
            if m.path == path and m.line <= int(line) <= last:
                found.add(number)
    return found


def build_mutants(tree: Path, numbered: dict[int, Mutant], targets: str) -> Iterator[Case]:
    """Leaves those out of `numbered` that do not compile."""
    env = {"CCACHE_BASEDIR": str(tree)}
    yield step("configure mutants", run(["cmake", "--preset", "cpu", "-DOVERLACE_TESTS=ON"], 300, env, cwd=tree))
    known = run(["ninja", "-C", "build/cpu", "-t", "targets", "all"], 60, cwd=tree).output
    names = [n for n in sorted(set(re.findall(r"(?m)^(\w+): phony", known))) if re.fullmatch(targets, n)]
    names = [n for n in names if n.startswith(("unit_", "ranks_")) and not WITHOUT.match(n)]
    dropped = 0
    for _ in range(BUILD_ROUNDS):
        write_mutants(tree, numbered)
        done = run(["ninja", "-k", "0", "-C", "build/cpu", "-j", str(jobs()), *names], 3000, env, cwd=tree)
        broken = broken_by(done.output, numbered) if done.rc != 0 else set()
        if not broken:
            break
        dropped += len(broken)
        for number in broken:
            del numbered[number]
    yield step(f"build {len(numbered)} mutants, {dropped} do not compile", done)


def case_names(program: Program) -> list[str]:
    done = run([*program.command, "--gtest_list_tests"], 60, cwd=program.cwd)
    names, suite = [], ""
    for line in done.output.splitlines() if done.rc == 0 else []:
        if re.match(r"\S+\.\s*(#.*)?$", line):
            suite = line.split()[0]
        elif line.startswith("  ") and suite and "DISABLED_" not in suite + line:
            names.append(suite + line.split()[0])
    return names


def run_case(program: Program, name: str, env: dict[str, str], timeout_s: float) -> tuple[int, float]:
    env = {**program.env, "OVERLACE_TEST_SEEDS": "1@1", **env}
    done = run([*LIMITED, *program.command, f"--gtest_filter={name}"], timeout_s, env, program.cwd)
    return done.rc, done.seconds


def baseline(found: list[Program], numbers: int, at_once: int) -> tuple[list[Test], list[str]]:
    """Each case alone and without a mutant; and what is left out, as it fails so or takes long."""

    def one(program: Program, name: str) -> Test | str:
        with tempfile.NamedTemporaryFile() as seen:
            seen.write(bytes(numbers + 1))
            seen.flush()
            rc, seconds = run_case(program, name, {"MUTANTS_SEEN": seen.name}, 2 * CASE_S)
            marks = Path(seen.name).read_bytes()
        if rc != 0 or seconds > CASE_S:
            return f"{program.name}: {name} ({seconds:.1f} s, exit code {rc})"
        return Test(program, name, seconds, frozenset(i for i, mark in enumerate(marks) if mark))

    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        got = list(pool.map(lambda pair: one(*pair), [(p, n) for p in found for n in case_names(p)]))
    return [t for t in got if isinstance(t, Test)], [t for t in got if isinstance(t, str)]


def order_of(mutant: Mutant) -> Callable[[Test], tuple[int, float]]:
    """The unit tests of its folder, other unit tests, tests of ranks; the fast ones first."""
    own = f"unit_{mutant.path.split('/')[1]}"
    return lambda t: (0 if t.program.name == own else 1 if t.program.name.startswith("unit_") else 2, t.seconds)


def verdict_of(number: int, mutant: Mutant, tests: list[Test]) -> Verdict:
    fitting = sorted((t for t in tests if number in t.seen), key=order_of(mutant))
    if not fitting:
        return Verdict(mutant, UNSEEN)
    spent = 0.0
    for n, test in enumerate(fitting):
        if spent > MUTANT_S:
            return Verdict(mutant, SURVIVED, f"{n} of {len(fitting)} tests, then {MUTANT_S:.0f} s were over")
        rc, seconds = run_case(test.program, test.name, {"MUTANT": str(number)}, 3 * test.seconds + 10)
        spent += seconds
        if rc != 0:
            return Verdict(mutant, KILLED, f"{test.program.name}: {test.name}")
    return Verdict(mutant, SURVIVED, f"all {len(fitting)} tests")


def verdicts_of(numbered: dict[int, Mutant], tests: list[Test], at_once: int, end: float) -> list[Verdict]:
    """In a drawn order, until `end` on the monotonic clock; the rest is not tried."""
    lock, left = threading.Lock(), sorted(numbered)
    # Neighbours are alike; where time runs out all folders shall have had their share.
    left.sort(key=lambda n: n * 2654435761 % 2**32)
    found: list[Verdict] = []

    def work() -> None:
        while True:
            with lock:
                if not left:
                    return
                number = left.pop()
            late = time.monotonic() > end
            one = Verdict(numbered[number], UNTRIED) if late else verdict_of(number, numbered[number], tests)
            with lock:
                found.append(one)

    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        for worker in [pool.submit(work) for _ in range(at_once)]:
            worker.result()
    return sorted(found, key=lambda v: (v.mutant.path, v.mutant.line, v.mutant.what))


def summary(verdicts: list[Verdict], same: set[tuple[str, str, str]]) -> tuple[Case, list[str]]:
    """Passed or not, and a line for each mutant that no test notices."""
    counted = [v for v in verdicts if v.outcome != UNTRIED and v.mutant.key not in same]
    killed = sum(v.outcome == KILLED for v in counted)
    lines = []
    for v in counted:
        if v.outcome == KILLED:
            continue
        passed = f", {v.by}" if v.by else ""
        m = v.mutant
        lines.append(f"{m.path}:{m.line}: `{m.condition}`: {m.what}: {v.outcome}{passed}")
    percent = 100.0 * killed / len(counted) if counted else 0.0
    untried = sum(v.outcome == UNTRIED for v in verdicts)
    name = f"{killed} of {len(counted)} mutants are killed ({percent:.0f} %), {untried} were not tried"
    if percent >= LEAST_PERCENT:
        return Case(name, PASSED), lines
    return Case(name, FAILED, f"wanted at least {LEAST_PERCENT:.0f} %; which live is printed above"), lines


def check(plan: Plan) -> Iterator[Case]:
    start = time.monotonic()
    known = all_mutants(ROOT, FOLDERS)
    same, problems = equivalents(ROOT, known)
    yield Case("equivalent mutants exist", FAILED if problems else PASSED, "\n".join(problems))
    inside = [m for m in known if m.path.startswith(tuple(f"{f}/" for f in plan.folders))]
    drawn = mutants.draw([m for m in inside if m.key not in same], plan.count, plan.seed)
    numbered = dict(enumerate(drawn, 1))
    tree = ROOT / "build" / "mutants"
    copy_tree(tree)
    for case in build_mutants(tree, numbered, plan.tests):
        yield case
        if case.outcome == FAILED:
            return
    found = [p for p in programs("cpu", tree) if p.command and re.fullmatch(plan.tests, p.name)]
    tests, without = baseline([p for p in found if not WITHOUT.match(p.name)], len(drawn), plan.at_once)
    took = sum(t.seconds for t in tests)
    print(f"{len(tests)} tests take {took:.0f} s, {len(without)} are left out: they fail or take long", flush=True)
    print("".join(f"  {line}\n" for line in without), end="", flush=True)
    verdicts = verdicts_of(numbered, tests, plan.at_once, start + 60 * plan.minutes)
    case, lines = summary(verdicts, same)
    shutil.rmtree(OUT / "mutants", ignore_errors=True)
    (OUT / "mutants").mkdir(parents=True)
    (OUT / "mutants" / "survivors.txt").write_text("".join(line + "\n" for line in lines))
    print(
        f"{case.name}, seed {plan.seed}, {(time.monotonic() - start) / 60:.0f} minutes:", *lines, sep="\n  ", flush=True
    )
    yield case


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=WEEKLY_MUTANTS, help="of mutants")
    parser.add_argument("--seed", type=int, default=1, help="of the draw")
    parser.add_argument("--folders", nargs="+", default=FOLDERS, help="whose conditions are changed")
    parser.add_argument("--tests", default=Plan.tests, help="a regular expression of test programs")
    parser.add_argument("--minutes", type=float, default=WEEKLY_MINUTES, help="in all; the rest is not tried")
    given = parser.parse_args()
    os.nice(10)
    plan = Plan(given.count, given.seed, tuple(given.folders), given.tests, given.minutes)
    failed = 0
    for case in check(plan):
        print(f"{case.outcome}: {case.name}\n{case.detail}".rstrip(), flush=True)
        failed += case.outcome == FAILED
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
