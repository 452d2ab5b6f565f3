"""The jobs of CI, cheap checks first. Each yields cases; a job whose part of the machine is missing yields skips."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import functools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import compile_fail
import coverage
import device_units
import docs_site
import fuzz
import install_tree
import mutate
import python_env
import wheel
from results import FAILED, PASSED, SKIPPED, Case
from runner import (
    OUT,
    ROOT,
    Program,
    build,
    cases_of,
    configure,
    jobs,
    programs,
    run,
    run_program,
    run_programs,
    run_unittest,
    step,
    without_leak_check,
)
from sanitizers import COMMIT_SANITIZER_ENV, NOT_SANITIZED, SANITIZER_ENV, THREADED_UNITS, UNDER_TSAN

import examples

Cases = Iterator[Case]


def tool(name: str, *arguments: str) -> Case:
    """One of tools/check_*.py as a case."""
    return step(name, run([sys.executable, f"tools/{name}.py", *arguments], 300))


def job_format() -> Cases:
    """clang-format 14, ASCII, LF, tabs, shellcheck; ruff for Python."""
    yield tool("check_format")
    try:
        python = python_env.environment("lint", ["lint.txt"])
    except python_env.Unavailable as why:
        yield Case("ruff", SKIPPED, str(why))
        return
    sources = [p for p in ("tools", "tests", "bench", "python", "examples") if (ROOT / p).exists()]
    yield step("ruff check", run([str(python), "-m", "ruff", "check", *sources], 120))
    yield step("ruff format", run([str(python), "-m", "ruff", "format", "--check", *sources], 120))


def job_layers() -> Cases:
    """Who may include whom, budgets, documentation."""
    yield tool("check_layers")
    yield tool("check_budgets")
    yield tool("check_names")
    yield tool("check_spread")
    yield tool("check_messages")
    yield tool("check_docs")
    yield tool("gen_results", "--check")
    yield tool("gen_reference", "--check")
    yield tool("gen_images", "--check")
    yield tool("run_docs")


def job_tools() -> Cases:
    """The tests of tools/, of CI itself among them."""
    yield from run_unittest("tests/unit/tools")


def build_cases(preset: str, options: list[str], *targets: str) -> Cases:
    configured = configure(preset, *options)
    if configured.rc != 0:
        yield Case(f"configure {preset}", FAILED, configured.why())
        return
    print("\n".join(x for x in configured.output.splitlines() if x.startswith("--   ")))
    yield step(f"build {preset}", build(preset, *targets))


def job_cpu() -> Cases:
    """Library, command line and tests for CPU ranks; warnings are errors; compile budgets of what was compiled."""
    yield from build_cases("cpu", ["-DOVERLACE_TESTS=ON"])
    link = ROOT / "build" / "overlace"
    if (ROOT / "build/cpu/overlace").exists() and not link.exists():
        link.unlink(missing_ok=True)
        link.symlink_to("cpu/overlace")
    yield tool("check_budgets", "--build", "build/cpu")
    yield tool("check_layers", "--objects", "build/cpu")


def labelled(
    preset: str, label: str, env: dict[str, str], only: tuple[str, ...] = (), without: tuple[str, ...] = ()
) -> list[Program]:
    named = [p for p in programs(preset) if label in p.labels and (not only or p.name in only)]
    return [dataclasses.replace(p, env=env) for p in named if p.name not in without]


def run_label(preset: str, label: str, parallel: int, env: dict[str, str], only: tuple[str, ...] = ()) -> Cases:
    yield from run_programs(labelled(preset, label, env, only), OUT / preset, parallel)


# How often each adversary case of the rank tests runs, with another seed each time: in short programs, in those that
# take seconds per seed, and in the others, which go through many shapes, teams and schedules with each seed. The random
# test draws 25 calls with each seed: 2,000 at every commit, 100,000 weekly.
SHORT = ("ranks_barrier", "ranks_counters", "ranks_litmus", "ranks_put", "ranks_team")
MEDIUM = ("ranks_inbox", "ranks_signal")
RANDOM = ("ranks_random",)
SeedCounts = tuple[int, int, int, int]
ONE_SEED, COMMIT_SEEDS = (1, 1, 8, 1), (20, 5, 80, 1)
SANITIZER_SEEDS, WEEKLY_SEEDS = (5, 1, 8, 1), (1000, 250, 4000, 50)


def seeds_of(program: str, counts: SeedCounts) -> int:
    kinds = zip((SHORT, MEDIUM, RANDOM), counts, strict=False)
    return next((count for kind, count in kinds if program in kind), counts[-1])


# Their processes end amid threads, or are programs of their own, which is where the leak checker crashes (runner.py).
# What they run is looked at by the other tests, inside processes that end in order.
ENDS_AMID_THREADS = ("ranks_net", "ranks_fault")


# Half of the time of all tests: ranks that die, stop or leave, launchers, traffic for a while.
LONG = (
    *("ranks_fault", "ranks_fault_open", "ranks_fault_operator", "ranks_nccl", "ranks_net", "ranks_traffic"),
    *("cli_end", "cli_mpirun"),
)


def seeded(
    preset: str,
    counts: SeedCounts,
    env: dict[str, str],
    first: int | None = None,
    only: tuple[str, ...] = (),
    without: tuple[str, ...] = (),
) -> list[Program]:
    """The rank tests. `first`: of the seeds; None: drawn, and printed with each failure."""

    def prepared(program: Program) -> Program:
        seeds = str(seeds_of(program.name, counts)) + (f"@{first}" if first is not None else "")
        own = without_leak_check(env) if program.name.startswith(ENDS_AMID_THREADS) else env
        return dataclasses.replace(program, env={**own, "OVERLACE_TEST_SEEDS": seeds})

    return [prepared(p) for p in labelled(preset, "ranks", env, only, without)]


def rank_tests(preset: str, counts: SeedCounts, env: dict[str, str], first: int, timeout_s: float) -> Cases:
    """As many at a time as there are cores, longer than at each commit."""
    found = seeded(preset, counts, env, first)
    longer = [dataclasses.replace(p, timeout_s=max(p.timeout_s, timeout_s)) for p in found]
    yield from run_programs(longer, OUT / preset, jobs())


def all_tests(
    preset: str,
    seeds: SeedCounts,
    prefix: list[str] | None = None,
    env: dict[str, str] | None = None,
    units: tuple[str, ...] = (),
    ranks: tuple[str, ...] = (),
    without: tuple[str, ...] = (),
    parallel: int = 0,
) -> Cases:
    """unit and ranks (all, or those named) and cli side by side; no kind waits for the last program of another."""
    env = {"OVERLACE_BIN": str(ROOT / "build" / preset / "overlace"), **(env or {})}
    found = labelled(preset, "unit", env, units) + seeded(preset, seeds, env, only=ranks, without=without)
    # NOTE: the command line starts ranks as processes, which the thread sanitizer does not look into.
    if preset != "tsan":
        found += labelled(preset, "cli", without_leak_check(env), without=without)
    yield from run_programs(found, OUT / preset, parallel or jobs(), prefix)


def test_slots() -> int:
    """Programs at a time, uninstrumented: they wait for each other's ranks and for deadlines a fifth of the time."""
    return jobs() + (jobs() + 1) // 2


def job_test() -> Cases:
    """Unit and rank tests (threads, adversary with one seed, processes), and the command line as a user runs it."""
    yield from all_tests("cpu", ONE_SEED, without=LONG, parallel=test_slots())


def job_long() -> Cases:
    """The tests that take long, faults, launchers, traffic; and those where more of the adversary's seeds are drawn."""
    yield from build_cases("cpu", ["-DOVERLACE_TESTS=ON"])
    env = {"OVERLACE_BIN": str(ROOT / "build/cpu/overlace")}
    found = seeded("cpu", COMMIT_SEEDS, env, only=(*LONG, *SHORT, *MEDIUM, *RANDOM))
    yield from run_programs(found + labelled("cpu", "cli", env, LONG), OUT / "cpu", test_slots())


@functools.cache
def clang_sanitizes() -> bool:
    """Whether clang-14 links what preset asan does: its runtimes come in a package of their own."""
    if not shutil.which("clang++-14"):
        return False
    words = ["clang++-14", "-fsanitize=fuzzer,address,undefined", "-x", "c++", "-", "-o", "/dev/null"]
    program = b'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }'
    return subprocess.run(words, input=program, capture_output=True, check=False).returncode == 0


def job_cpu_clang() -> Cases:
    """A second compiler builds library and command line, with the sanitizers of jobs asan and fuzz if it has them."""
    if not shutil.which("clang++-14"):
        yield Case("build asan", SKIPPED, "clang++-14 was not found")
        return
    targets = ["overlace_core", "overlace_shared"] + (["overlace"] if list((ROOT / "cli").glob("*.cc")) else [])
    yield from build_cases("asan" if clang_sanitizes() else "cpu-clang", ["-DOVERLACE_TESTS=ON"], *targets)


def asan_preset() -> str:
    return "asan" if clang_sanitizes() else "asan-gcc"


def job_asan() -> Cases:
    """The same tests under address and undefined behaviour sanitizers; by g++ where clang has none."""
    yield from build_cases(asan_preset(), ["-DOVERLACE_TESTS=ON"])
    yield from all_tests(asan_preset(), SANITIZER_SEEDS, env=COMMIT_SANITIZER_ENV, without=NOT_SANITIZED)


def job_asan_gcc() -> Cases:
    """Weekly: the same tests under the sanitizers of g++."""
    yield from build_cases("asan-gcc", ["-DOVERLACE_TESTS=ON"])
    yield from all_tests("asan-gcc", SANITIZER_SEEDS, env=SANITIZER_ENV)


def build_tsan(only: tuple[str, ...]) -> Case:
    configured = configure("tsan", "-DOVERLACE_TESTS=ON")
    if configured.rc != 0:
        return Case("configure tsan", FAILED, configured.why())
    known = run(["ninja", "-C", "build/tsan", "-t", "targets", "all"]).output
    ranks = re.findall(r"(?m)^((?:ranks|toy)_\w+): phony", known)
    return step("build tsan", build("tsan", *(only or (*ranks, *THREADED_UNITS))))


def tsan(env: dict[str, str], only: tuple[str, ...] = ()) -> Cases:
    """These programs; none named: all that start threads."""
    built = build_tsan(only)
    yield built
    if built.outcome == FAILED:
        return
    # NOTE: with more than 28 random bits in addresses its shadow memory does not fit; then without randomisation.
    bits = Path("/proc/sys/vm/mmap_rnd_bits")
    prefix = ["setarch", os.uname().machine, "-R"] if bits.exists() and int(bits.read_text()) > 28 else []
    if prefix and run([*prefix, "true"], 10).rc != 0:
        yield Case("tests under tsan", SKIPPED, "vm.mmap_rnd_bits > 28, and setarch -R is not permitted here")
        return
    units = tuple(name for name in THREADED_UNITS if not only or name in only)
    yield from all_tests("tsan", SANITIZER_SEEDS, prefix, env, units, ranks=only)


def job_sanitizers() -> Cases:
    """What jobs asan and tsan compile."""
    yield from build_cases(asan_preset(), ["-DOVERLACE_TESTS=ON"])
    yield build_tsan(UNDER_TSAN)


def job_tsan() -> Cases:
    """Signals, memory and the executor, and an operator of each kind of exchange, under the thread sanitizer."""
    yield from tsan(COMMIT_SANITIZER_ENV, UNDER_TSAN)


def job_tsan_all() -> Cases:
    """Weekly: all tests that start threads, and what is left out at each commit."""
    yield from tsan(SANITIZER_ENV)


def job_cubin() -> Cases:
    """Device units: no spills, no stack, no ignored setmaxnreg, code for each GPU; all that needs CUDA builds."""
    if not (shutil.which("nvcc") or Path("/usr/local/cuda/bin/nvcc").exists()):
        yield Case("CUDA", SKIPPED, "nvcc was not found")
        return
    frontend = []
    try:
        python = python_env.environment("build", ["build.txt"], "--no-deps")
        headers = next(python.parent.parent.glob("lib/python*/site-packages/include"), None)
        frontend = [f"-DOVERLACE_CUDNN_FRONTEND_DIR={headers}"] if headers else []
    except python_env.Unavailable as why:
        yield Case("cuDNN attention", SKIPPED, str(why))
    # The library has the architectures of a release, not those of the preset; programs for GPUs are for Hopper.
    whole = ["-DOVERLACE_TESTS=ON", "-DCMAKE_CUDA_ARCHITECTURES=", f"-DCMAKE_CUDA_FLAGS={device_units.VERBOSE}"]
    configured = configure("cuda", *whole, *frontend)
    if configured.rc != 0:
        yield Case("configure cuda", FAILED, configured.why())
        return
    # Unit and rank tests are those of job cpu; here only what needs CUDA.
    names = re.findall(
        r"(?m)^((?:gpu|bench)_\w+): phony", run(["ninja", "-C", "build/cuda", "-t", "targets", "all"]).output
    )
    targets = ["overlace", "overlace_shared", "device_headers", *names]
    yield from device_units.check(ROOT / "build" / "cuda", lambda: build("cuda", *targets))
    yield tool("check_budgets", "--build", "build/cuda")
    yield tool("check_layers", "--objects", "build/cuda")


def job_c_api() -> Cases:
    """The C API by ctypes, without any package."""
    configured = configure("cpu", "-DOVERLACE_TESTS=ON")
    built = build("cpu", "overlace_shared") if configured.rc == 0 else configured
    yield step("build cpu", built)
    if built.rc == 0:
        env = {"OVERLACE_LIB": str(ROOT / "build/cpu/liboverlace.so")}
        yield from run_unittest("tests/python", env=env, pattern="test_c_api.py")


def python_tests(name: str, tests: Path, timeout_s: float, more: dict[str, str] | None = None) -> Cases:
    """A folder or file of tests/python with the libraries and programs that it needs."""
    configured = configure("cpu", "-DOVERLACE_TESTS=ON")
    parts = ("overlace", "overlace_shared", "python_test_plugins")
    built = build("cpu", *parts) if configured.rc == 0 else configured
    if built.rc != 0:
        yield step("build cpu", built)
        return
    env = {"OVERLACE_BIN": str(ROOT / "build/cpu/overlace"), "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    env["OVERLACE_LIB"] = str(ROOT / "build/cpu/liboverlace.so")
    env |= more or {}
    try:
        python = python_env.environment("test", ["test.txt"])
    except python_env.Unavailable as why:
        yield step("C API by ctypes", run([sys.executable, str(ROOT / "tests/python/test_c_api.py")], 120, env))
        yield Case(str(tests.relative_to(ROOT)), SKIPPED, str(why))
        return
    torch = next(python.parent.parent.glob("lib/python*/site-packages/torch"))
    configured = configure("cpu", f"-DOVERLACE_TORCH_DIR={torch}")
    built = build("cpu", "overlace_python") if configured.rc == 0 else configured
    yield step("build overlace_python", built)
    env["PYTHONPATH"] = str(ROOT / "build/cpu/python")
    report = OUT / f"{name}.xml"
    report.unlink(missing_ok=True)
    words = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", str(tests)]
    yield from cases_of(name, run(words, timeout_s, env), report)


def types() -> Cases:
    """The package's types, and what programs write of them, with torch as the tests have it: by mypy and by pyright."""
    try:
        lint, tests = python_env.environment("lint", ["lint.txt"]), python_env.environment("test", ["test.txt"])
    except python_env.Unavailable as why:
        yield Case("types", SKIPPED, str(why))
        return
    yield step("mypy", run([str(lint), "-m", "mypy", "--python-executable", str(tests)], 600))
    yield step("pyright", run([str(lint.with_name("basedpyright")), "--pythonpath", str(tests)], 600))


def job_python() -> Cases:
    """tests/python: the C API by ctypes; the operators of PyTorch over gloo; PyTorch and transformers as oracles;
    types."""
    yield from types()
    yield from python_tests("python", ROOT / "tests" / "python", 1800)


# How often packers are killed, at how many changes of a file the disk is full, how many requests a bad disk gets.
GNN_DISKS = {"OVERLACE_TEST_KILLS": "1000", "OVERLACE_TEST_FULL_DISKS": "all", "OVERLACE_TEST_FAULTY_READS": "1000000"}
GNN_DISKS |= {"OVERLACE_TEST_CHAINS": "500"}


def job_gnn_large() -> Cases:
    """Weekly: 2^22 vertices from arrays to batches under a limit that the kernel enforces; kills and bad disks."""
    tests = ROOT / "tests" / "python" / "test_gnn_limit.py"
    yield from python_tests("gnn-large", tests, 3600, {"OVERLACE_TEST_LARGE": "1"})
    yield from build_cases("cpu", ["-DOVERLACE_TESTS=ON"], "unit_io", "unit_gnn", "unit_gnn_crash")
    yield from run_label("cpu", "unit", 1, GNN_DISKS, only=("unit_io", "unit_gnn", "unit_gnn_crash"))


def job_install() -> Cases:
    """The install tree: headers, soname, exported symbols, consumers in C++ and C; moved, in an archive; the wheel."""
    yield from install_tree.check(ROOT / "build" / "cpu", OUT / "install")
    yield from wheel.check(OUT / "wheel")


def job_examples() -> Cases:
    """The examples, built against an install tree and run on two ranks."""
    yield from examples.check_examples(OUT / "examples")


def job_docs() -> Cases:
    """The commands of the guides are run; the code that they show and the generated references are current."""
    yield from examples.check_docs(OUT / "docs")


def job_site() -> Cases:
    """The site of the documents: a strict build, a page of each document, the search, nothing from elsewhere."""
    yield from docs_site.check()


def job_compile_fail() -> Cases:
    """tests/compile_fail: what must not compile."""
    yield from compile_fail.check()


def job_fuzz() -> Cases:
    """Foreign bytes for every parser: the committed ones, then new ones for some seconds."""
    yield from fuzz.check(is_weekly=False)


def job_fuzz_long() -> Cases:
    """Weekly: a million new inputs for every parser."""
    yield from fuzz.check(is_weekly=True)


def job_bench() -> Cases:
    """All benches build; those of CPU ranks: every competitor verified, none timed; the driver's tests."""
    built = configure("cpu", "-DOVERLACE_TESTS=ON", "-DOVERLACE_BENCH=ON")
    if built.rc == 0:
        built = build("cpu")
    yield step("build cpu", built)
    if built.rc != 0:
        return
    yield from run_label("cpu", "unit", jobs(), {}, ("unit_bench",))
    overlace = ROOT / "build/cpu/overlace"
    words = [str(overlace), "bench", "--verify-only", "--git", "ci", "--out", str(OUT / "bench.jsonl")]
    (OUT / "bench.jsonl").unlink(missing_ok=True)
    operators = [row["name"] for row in json.loads((ROOT / "bench/dense/operators.json").read_text())]
    yield step(
        "overlace bench --verify-only", run([*words, *operators, "cpu", "run"], 300, {"CUDA_VISIBLE_DEVICES": ""})
    )
    yield from run_unittest("tests/bench", env={"OVERLACE_BIN": str(overlace), "CUDA_VISIBLE_DEVICES": ""})


def job_clang_test() -> Cases:
    """Weekly: the tests built by the second compiler, each file of the library by itself."""
    yield from build_cases("cpu-clang", ["-DOVERLACE_TESTS=ON"])
    yield from all_tests("cpu-clang", COMMIT_SEEDS)


def job_seeds() -> Cases:
    """Weekly: the rank tests with 1000 seeds (fewer where a seed takes long), always the same ones."""
    yield from build_cases("cpu", ["-DOVERLACE_TESTS=ON"])
    yield from rank_tests("cpu", WEEKLY_SEEDS, {"OVERLACE_TEST_TRAFFIC_S": "600"}, first=1, timeout_s=3600)


FAULT_RUNS = 100


def repeated(program: Program, times: int, folder: Path) -> Cases:
    """Each case once, with how often it passed; what failed says why."""
    passed: collections.Counter[str] = collections.Counter()
    for n in range(1, times + 1):
        for case in run_program(program, folder, [], {}):
            passed[case.name] += case.outcome == PASSED
            if case.outcome == SKIPPED and n == 1:
                yield case
            elif case.outcome == FAILED:
                yield Case(f"{case.name}, run {n} of {times}", FAILED, case.detail)
    yield from (Case(f"{name}, {n} of {times}", PASSED) for name, n in passed.items() if n == times)


def job_faults() -> Cases:
    """Weekly: ranks that die, stop, leave or fail in each phase of open and of an operator, 100 times."""
    yield from build_cases("cpu", ["-DOVERLACE_TESTS=ON"])
    for program in programs("cpu"):
        if program.name.startswith("ranks_fault"):
            yield from repeated(program, FAULT_RUNS, OUT / "faults")


def job_coverage() -> Cases:
    """Weekly: line coverage of src/ by unit and rank tests; fails under 90 %."""

    def tests(preset: str) -> Cases:
        yield from run_label(preset, "unit", jobs(), {})
        yield from rank_tests(preset, SANITIZER_SEEDS, {}, first=1, timeout_s=1800)

    yield from coverage.check(tests)


def job_mutate() -> Cases:
    """Weekly: conditions of the library are changed at random, which tests must notice; survivors are listed."""
    today = datetime.datetime.now(tz=datetime.timezone.utc).date().isocalendar()
    yield from mutate.check(mutate.Plan(seed=100 * today.year + today.week))


JOBS: dict[str, Callable[[], Cases]] = {
    "format": job_format,
    "layers": job_layers,
    "cpu": job_cpu,
    "test": job_test,
    "c-api": job_c_api,
    "examples": job_examples,
    "tools": job_tools,
    "python": job_python,
    "long": job_long,
    "cubin": job_cubin,
    "cpu-clang": job_cpu_clang,
    "sanitizers": job_sanitizers,
    "asan": job_asan,
    "tsan": job_tsan,
    "install": job_install,
    "docs": job_docs,
    "site": job_site,
    "compile-fail": job_compile_fail,
    "bench": job_bench,
    "fuzz": job_fuzz,
    "clang-test": job_clang_test,
    "asan-gcc": job_asan_gcc,
    "tsan-all": job_tsan_all,
    "seeds": job_seeds,
    "fuzz-long": job_fuzz_long,
    "faults": job_faults,
    "gnn-large": job_gnn_large,
    "coverage": job_coverage,
    "mutate": job_mutate,
}
# `make test`: what somebody waits for who wants to know whether a checkout works here. The others: `make check`.
QUICK = ("format", "layers", "cpu", "test", "c-api", "examples")
WEEKLY_ONLY = ("clang-test", "asan-gcc", "tsan-all", "seeds", "fuzz-long", "faults", "gnn-large", "coverage", "mutate")


@dataclasses.dataclass(frozen=True)
class Lane:
    """Jobs that run one after the other."""

    names: tuple[str, ...]
    may_make_room: bool = True  # removes build folders of jobs that have ended
    is_patient: bool = False  # takes what the other lanes leave of the cores


NO_FOLDER = ("format", "layers")  # they build nothing
# They compile for long, each in a folder of its own, and run nothing that has a deadline.
COMPILE_ALONE = ("cubin", "cpu-clang", "sanitizers")
AHEAD = ("sanitizers",)  # does a part of what others do
# Their tests have deadlines, and what they run was compiled by those.
BEHIND = ("asan", "tsan", "fuzz")


def lanes(names: list[str], has_room: bool = True) -> list[list[Lane]]:
    """Parts of a run, one after the other. The lanes of a part run side by side, so that no core is idle: beside those
    that test, what the next part tests is compiled, if `has_room`. Weekly jobs are alone, with more time."""
    left = [n for n in names if n not in WEEKLY_ONLY and (has_room or n not in AHEAD or len(names) == 1)]

    def taken(wanted: Callable[[str], bool]) -> tuple[str, ...]:
        found = tuple(n for n in left if wanted(n))
        left[:] = [n for n in left if n not in found]
        return found

    free = taken(lambda n: n in NO_FOLDER)
    alone = taken(lambda n: has_room and n in COMPILE_ALONE)
    behind, tests = taken(lambda n: bool(alone) and n in BEHIND), tuple(left)
    first = [names for names in (tests, alone, free) if names]
    parts = [[Lane(n, n == first[0] and not (tests and alone), n == alone and len(first) > 1) for n in first]]
    weekly = tuple(n for n in names if n in WEEKLY_ONLY)
    parts += [[Lane(names)] for names in (behind, weekly) if names]
    return [part for part in parts if part]


__all__ = ["JOBS", "PASSED", "QUICK", "WEEKLY_ONLY"]
