"""The examples and the commands of the guides, on an install tree."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import install_tree
from results import FAILED, PASSED, SKIPPED, Case
from runner import ROOT, build, configure, jobs, run, step

FOLDER = ROOT / "examples"
MAX_LINES, MAX_SECONDS = 100, 10
RANKS = "2"
NO_GPU = 77  # exit status of an example that wants one
MORE_RANKS = {"10_halo": ("1", "3", "4")}


def tree_problem(folder: Path) -> str:
    """The README's table, numbers and sizes; empty where they are right."""
    names = sorted(p.parent.name for p in folder.glob("*/main.c*"))
    table = re.findall(r"(?m)^\| \[(\w+)\]", (folder / "README.md").read_text())
    if names != table:
        return f"README.md lists {table}, the folders are {names}"
    if [name[:2] for name in names] != [f"{i + 1:02}" for i in range(len(names))]:
        return f"not numbered from 01 without gaps: {names}"
    long = [str(p) for p in folder.glob("*/main.c*") if len(p.read_text().splitlines()) > MAX_LINES]
    return f"more than {MAX_LINES} lines: {long}" if long else ""


def prepared(out: Path, *options: str) -> tuple[Path, Case]:
    """An install tree of the build for CPU ranks."""
    done = configure("cpu", "-DOVERLACE_TESTS=ON", *options)
    if done.rc == 0:
        done = build("cpu")
    if done.rc == 0:
        done = install_tree.install(ROOT / "build" / "cpu", out / "tree")
    return out / "tree", step("install tree", done)


def check_examples(out: Path) -> Iterator[Case]:
    problem = tree_problem(FOLDER)
    yield Case("examples/README.md", FAILED if problem else PASSED, problem)
    prefix, case = prepared(out)
    yield case
    if case.outcome == FAILED:
        return
    where = out / "build"
    command = ["cmake", "-G", "Ninja", "-S", str(FOLDER), "-B", str(where), f"-DCMAKE_PREFIX_PATH={prefix}"]
    done = run([*command, "-DCMAKE_C_FLAGS=-Werror", "-DCMAKE_CXX_FLAGS=-Werror"], 120)
    if done.rc == 0:
        done = run(["ninja", "-C", str(where), "-j", str(jobs())], 600)
    yield step("build examples", done)
    if done.rc != 0:
        return
    for source in sorted(FOLDER.glob("*/main.c*")):
        name = source.parent.name
        if source.suffix == ".cu" and not (where / name).exists():
            yield Case(f"example {name}", SKIPPED, "nvcc was not found: not even compiled")
            continue
        for ranks in (RANKS, *MORE_RANKS.get(name, ())):
            words = [str(prefix / "bin" / "overlace"), "run", "-n", ranks, "--", str(where / name)]
            title = f"example {name}" if ranks == RANKS else f"example {name}, {ranks} ranks"
            done = run(words, MAX_SECONDS, {"CUDA_VISIBLE_DEVICES": ""}, cwd=where)
            wants_gpu = source.suffix == ".cu" and done.rc == NO_GPU
            yield Case(title, SKIPPED, "no GPU: compiled only") if wants_gpu else step(title, done)


def check_docs(out: Path) -> Iterator[Case]:
    prefix, case = prepared(out, "-DOVERLACE_BENCH=ON")
    yield case
    if case.outcome == FAILED:
        return
    python = sys.executable
    overlace = str(ROOT / "build/cpu/overlace")
    for name in ("gen_reference", "gen_co2_scale"):
        yield step(name, run([python, f"tools/{name}.py", "--check", "--program", overlace], 120))
    for page in [*sorted(p.relative_to(ROOT) for p in (ROOT / "docs" / "guides").glob("*.md")), Path("README.md")]:
        done = run([python, "tools/run_docs.py", "--prefix", str(prefix), str(page)], 600, {"CUDA_VISIBLE_DEVICES": ""})
        yield step(f"run {page}", done)
