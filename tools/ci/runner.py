"""Commands and test programs, each under a deadline, in its own process group, without a terminal."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import math
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

from results import FAILED, PASSED, SKIPPED, Case, read_xml

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "build" / "ci"


# What says most comes first: ninja names the target, and its long command, before the compiler's words.
FIRST_ERROR = (re.compile(r"\berror: |\bfatal: |undefined reference|No space left", re.I), re.compile("^FAILED: "))


@dataclasses.dataclass
class Done:
    rc: int
    output: str
    seconds: float
    timed_out: bool = False

    def why(self, lines: int = 40) -> str:
        """How it ended, the first error with what follows it, and the last lines where those lie behind that."""
        cause = f"stopped after {self.seconds:.0f} s" if self.timed_out else f"exit code {self.rc}"
        printed = self.output.splitlines()
        errors = (n for pattern in FIRST_ERROR for n, line in enumerate(printed) if pattern.search(line))
        first = next(errors, None)
        shown = [] if first is None else printed[first : first + 10]
        end = max(len(printed) - lines, 0 if first is None else first + len(shown))
        return "\n".join([cause, *shown, *printed[end:]])


# Each command has a session, and with it a share of the cores of its own (autogroups of Linux), so that the niceness of
# a process says nothing to others.
PATIENCE = 8  # times as long as a command may take that has the cores
PATIENT = ("sh", "-c", '{ echo 10 > /proc/self/autogroup; } 2> /dev/null; exec nice -n 10 "$@"', "sh")
prefix: tuple[str, ...] = ()


def be_patient() -> None:
    """What this process runs from now on leaves the cores to others."""
    global prefix
    prefix = PATIENT


OVER = "not begun: the time of this run was over (OVERLACE_CI_UNTIL)"
TO_END_S = 16 * 60  # for what runs when the time is over; what takes longer is stopped, and has failed


def left_s() -> float:
    """Seconds until nothing more may begin."""
    until = os.environ.get("OVERLACE_CI_UNTIL")  # seconds since the epoch; .ci/run says it
    return float(until) - time.time() if until else math.inf


def is_over() -> bool:
    """Whether jobs and test programs that have not begun are to be skipped, and named."""
    return left_s() <= 0


def run(command: list[str], timeout_s: float = 1200, env: dict[str, str] | None = None, cwd: Path = ROOT) -> Done:
    """Runs to the end or the deadline; whatever the command started ends with it."""
    start = time.monotonic()
    timeout_s *= PATIENCE if prefix else 1
    timeout_s = min(timeout_s, max(1.0, left_s() + TO_END_S))
    whole_env = {**os.environ, "CCACHE_NOHASHDIR": "1", "CCACHE_BASEDIR": str(ROOT), **(env or {})}
    try:
        process = subprocess.Popen(
            [*prefix, *command],
            cwd=cwd,
            env=whole_env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return Done(127, f"{command[0]}: {error}", 0.0)
    timed_out = False
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        timed_out = True
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
    return Done(process.returncode, output, time.monotonic() - start, timed_out)


def step(name: str, done: Done) -> Case:
    """A command as one case: passed if it returned 0."""
    return Case(name, PASSED) if done.rc == 0 else Case(name, FAILED, done.why())


def memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def jobs() -> int:
    """Parallel compilations: one per core, each with 1 GiB of memory."""
    return max(1, min(len(os.sched_getaffinity(0)), int(memory_gib())))


def configure(preset: str, *options: str) -> Done:
    """CMake, from scratch where the folder belongs to another checkout."""
    cache = ROOT / "build" / preset / "CMakeCache.txt"
    if cache.exists() and f"CMAKE_HOME_DIRECTORY:INTERNAL={ROOT}\n" not in cache.read_text(errors="replace"):
        subprocess.run(["rm", "-rf", str(cache.parent)], check=True)
    return run(["cmake", "--preset", preset, *options], 300)


# They compile much of the same, which ccache sees once it has preprocessed it. For others that is a twentieth of the
# time spent for nothing: there it goes by the files that the compiler says it read.
ALIKE = ("cpu", "cuda")


def build(preset: str, *targets: str) -> Done:
    env = {} if preset in ALIKE else {"CCACHE_DEPEND": "1"}
    return run(["ninja", "-C", f"build/{preset}", "-j", str(jobs()), *targets], 3600, env)


# Build folders that one job alone uses, and how much space the largest of them and what follows it take.
OF_ONE_JOB = ("tsan", "asan-gcc", "cpu-clang", "coverage", "mutants", "cuda")
ROOM_GIB = 10


def has_room_for_all(wanted_gib: float = 3 * ROOM_GIB) -> bool:
    """Whether no build folder has to go before all jobs have ended, and two may compile at a time."""
    return shutil.disk_usage(ROOT).free >= wanted_gib * 2**30 and memory_gib() >= 4 * len(os.sched_getaffinity(0))


def make_room(wanted_gib: float = ROOM_GIB) -> list[Path]:
    """Removes what finished jobs leave where less than that is free; says what."""
    if shutil.disk_usage(ROOT).free >= wanted_gib * 2**30:
        return []
    folders = [ROOT / "build" / name for name in OF_ONE_JOB if (ROOT / "build" / name).exists()]
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    return folders


@dataclasses.dataclass(frozen=True)
class Program:
    """A test of CTest."""

    name: str
    command: tuple[str, ...]
    labels: tuple[str, ...]
    timeout_s: float
    cwd: Path
    env: dict[str, str] = dataclasses.field(default_factory=dict)


def programs(preset: str, root: Path = ROOT) -> list[Program]:
    """What CTest knows in this build folder."""
    shown = run(["ctest", "--test-dir", f"build/{preset}", "--show-only=json-v1"], 60, cwd=root)
    if shown.rc != 0:
        raise RuntimeError(shown.why())
    found = []
    for test in json.loads(shown.output)["tests"]:
        values = {p["name"]: p["value"] for p in test.get("properties", [])}
        cwd = Path(values.get("WORKING_DIRECTORY", ROOT))
        found.append(
            Program(
                test["name"],
                tuple(test.get("command", ())),
                tuple(values.get("LABELS", ())),
                float(values.get("TIMEOUT", 600)),
                cwd,
            )
        )
    return found


# The leak checker's tracer crashes now and then on threads that end under it (GCC 12, "Tracer caught signal 11").
LEAK_CHECK_CRASHED = "LeakSanitizer has encountered a fatal error"


def without_leak_check(env: dict[str, str]) -> dict[str, str]:
    options = env.get("ASAN_OPTIONS", "")
    return {**env, "ASAN_OPTIONS": options.replace("detect_leaks=1", "detect_leaks=0")} if options else env


def run_program(program: Program, folder: Path, prefix: list[str], env: dict[str, str]) -> list[Case]:
    """One test program; GoogleTest programs give their cases, others are one case."""
    if not program.command:
        return [Case(program.name, FAILED, "was not built")]
    if is_over():
        return [Case(program.name, SKIPPED, OVER)]
    folder.mkdir(parents=True, exist_ok=True)
    report = folder / f"{program.name}.xml"
    is_gtest = "gtest" in program.labels
    extra = [f"--gtest_output=xml:{report}"] if is_gtest else []
    command, env = [*prefix, *program.command, *extra], {**env, **program.env}

    def outcome(env: dict[str, str]) -> tuple[Done, list[Case]]:
        report.unlink(missing_ok=True)
        done = run(command, program.timeout_s, env, program.cwd)
        if is_gtest:
            return done, cases_of(program.name, done, report)
        return done, [step(program.name, done)]

    done, cases = outcome(env)
    if done.rc != 0 and LEAK_CHECK_CRASHED in done.output:
        crashed = ", ".join(c.name for c in cases if c.outcome == FAILED)
        done, cases = outcome(without_leak_check(env))
        why = f"the leak checker crashed, run again without it; failed in the first run: {crashed}"
        cases.append(Case(f"{program.name}: leak check", SKIPPED, why))
    (folder / f"{program.name}.log").write_text(done.output)
    return cases


def cases_of(name: str, done: Done, report: Path) -> list[Case]:
    """Cases of a report; a program that ended badly without a failed case is a failed case itself."""
    try:
        cases = [dataclasses.replace(c, name=f"{name}: {c.name}") for c in read_xml(report)]
    except (OSError, SyntaxError) as error:
        return [Case(name, FAILED, f"no report ({error}); {done.why()}")]
    if done.rc != 0 and not any(c.outcome == FAILED for c in cases):
        cases.append(Case(name, FAILED, done.why()))
    if not cases:
        cases.append(Case(name, FAILED, "contains no test case"))
    return cases


# By the reports of a run, the longest first: 17 s and more by the clock, or half a minute under a sanitizer.
LONGEST = (
    *("cli_offload", "ranks_net", "unit_gnn", "cli_mpirun", "ranks_fault", "ranks_async_collective", "unit_spec"),
    *("cli_end", "unit_gnn_crash", "ranks_fault_operator", "cli_run", "ranks_fault_open", "cli_calibrate"),
    *("ranks_ag_gemm", "unit_io", "unit_cli", "ranks_traffic", "ranks_exec_memory", "ranks_model", "ranks_mutation"),
    *("unit_plan", "unit_sim"),
)


def run_programs(
    chosen: list[Program],
    folder: Path,
    parallel: int,
    prefix: list[str] | None = None,
    env: dict[str, str] | None = None,
) -> list[Case]:
    """The longest first, so that no core waits for one that begins last. Cases in the order of `chosen`."""
    with concurrent.futures.ThreadPoolExecutor(parallel) as pool:
        order = sorted(chosen, key=lambda p: LONGEST.index(p.name) if p.name in LONGEST else len(LONGEST))
        begun = {p.name: pool.submit(run_program, p, folder, prefix or [], env or {}) for p in order}
        return [case for p in chosen for case in begun[p.name].result()]


def run_unittest(
    folder: str, timeout_s: float = 300, env: dict[str, str] | None = None, pattern: str = "*_test.py"
) -> list[Case]:
    """Python's own test runner; its verbose output names each case."""
    done = run(["python3", "-m", "unittest", "discover", "-v", "-s", folder, "-p", pattern], timeout_s, env)
    cases = []
    for line in done.output.splitlines():
        match = re.match(r"^(\w+) \(([\w.]+)\).* \.\.\. (ok|FAIL|ERROR|skipped .*)$", line)
        if match:
            name, verdict = f"{match[2]}.{match[1]}", match[3]
            if verdict == "ok":
                cases.append(Case(name, PASSED))
            elif verdict.startswith("skipped"):
                cases.append(Case(name, SKIPPED, verdict.removeprefix("skipped ").strip("'\"")))
            else:
                cases.append(Case(name, FAILED, done.why()))
    if done.rc != 0 and not any(c.outcome == FAILED for c in cases):
        cases.append(Case(folder, FAILED, done.why()))
    if not cases:
        cases.append(Case(folder, FAILED, "no test ran\n" + done.why()))
    return cases
