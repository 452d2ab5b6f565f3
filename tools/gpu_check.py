#!/usr/bin/env python3
"""Runs every test that needs GPUs, prints a table and writes docs/results/gpu_tests.json.

usage: tools/gpu_check.py [--minutes N] [--preset cuda | --binaries DIR | --binaries ARCHIVE] [--git COMMIT]
                          [--python PYTHON] [--out FILE] [--continue] [--part GPUS]
       tools/gpu_check.py --pack ARCHIVE [--preset cuda] [--packages DIR]

Programs are those of tests/gpu, built by a preset or lying in DIR (then DIR/python, if there is one, holds the package
overlace) or in an archive that --pack wrote where they were built, and the pytest files of tests/python/torch_gpu.
--packages DIR packs the package overlace from there, as `pip install --target DIR` of a wheel left it; the record then
names the wheel.
With --git, which names the commit, no .git is needed. Programs that keep GPUs busy for a part of their time run side
by side. Others that need all GPUs run alone, longest first, then what needs one GPU side by side; a program whose
cases mostly wait runs as several shards. What fails beside others or shards runs again alone. With --part 2 a machine
of four GPUs runs two programs that need all at a time, each on two. What does not fit is listed; --continue runs what
the last run at this commit on this machine did not, and the record is of both.
Exit code: 0 all ran and passed, 1 something failed, 2 something was not run.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import datetime
import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent / "ci"))

import gpu_pack
import gpu_tests
import results
import runner
from gpu_tests import FAILED, NOT_RUN, PASSED, SKIPPED, Row, Unit

ROOT = Path(__file__).resolve().parents[1]
RESERVE_S = 5  # of the minutes, for what comes behind the last program


def machine() -> dict:
    """What nvidia-smi says of the GPUs that this process may use: {"gpus": "2 x NVIDIA H200", "driver", "count"}."""
    query = ["nvidia-smi", "--query-gpu=index,uuid,name,driver_version", "--format=csv,noheader"]
    done = runner.run(query, 60)
    if done.rc != 0:
        return {"gpus": "none", "driver": "none", "count": 0, "ids": []}
    found = [[cell.strip() for cell in line.split(",")] for line in done.output.splitlines() if line.count(",") == 3]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        wanted = [x.strip() for x in visible.split(",") if x.strip()]
        found = [row for row in found if row[0] in wanted or row[1] in wanted]
    names = [row[2] for row in found]
    text = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or "none"
    driver = found[0][3] if found else "none"
    return {"gpus": text, "driver": driver, "count": len(found), "ids": [row[0] for row in found]}


def commit_of(root: Path, given: str) -> str:
    """The commit that was tested; with "+" behind it if files but the record differ from it. Without git it must be
    given."""
    if given:
        return given
    git = ["git", "-C", str(root), "-c", "safe.directory=*"]
    done = runner.run([*git, "rev-parse", "--short=12", "HEAD"], 60)
    if not (root / ".git").exists() or done.rc != 0:
        raise SystemExit("gpu_check: this tree has no .git: name the commit with --git")
    but_record = ["--", ".", f":(exclude){gpu_tests.RECORD}"]
    changed = runner.run([*git, "status", "--porcelain", "--untracked-files=no", *but_record], 60).output.strip()
    return done.output.strip() + ("+" if changed else "")


def has_package(packages: Path) -> bool:
    """Whether the package is whole: the build makes its folder before the library is in it."""
    return any((packages / "overlace" / "lib").glob("liboverlace.so*"))


def python_unit(name: str, python: str, packages: Path, seconds: float | None, report: Path) -> Unit:
    """A pytest file; missing where the interpreter has no pytest or torch, or nothing was built for it."""
    file = gpu_tests.pytest_file(name)
    words = [python, "-m", "pytest", "-v", "-p", "no:cacheprovider", f"--junitxml={report}", file]
    modules = runner.run([python, "-c", "import pytest, torch"], 120)
    missing = ""
    if not has_package(packages):
        missing = f"{packages.name} holds no package overlace: build target overlace_python, or carry it along"
    elif modules.rc != 0:
        missing = modules.output.strip().splitlines()[-1] if modules.output.strip() else "no pytest or torch"
    return Unit(name, tuple(words), is_shared=name not in gpu_tests.ALONE, seconds=seconds, missing=missing)


def units_of(root: Path, options: argparse.Namespace, folder: Path, known: dict[str, float]) -> list[Unit]:
    """Every expected unit, and programs of that kind that lie beside them."""
    built = {} if options.binaries else {p.name: p for p in runner.programs(options.preset) if "gpu" in p.labels}
    place = options.binaries or root / "build" / options.preset
    names = gpu_tests.expected_names(root)
    if options.binaries:
        programs = [p for p in place.glob("gpu_*") if p.is_file() and os.access(p, os.X_OK) and not p.suffix]
        names += sorted({p.name for p in programs} - set(names))
    else:
        names += sorted(set(built) - set(names))
    units = []
    for name in names:
        if gpu_tests.is_python(name):
            report = folder / f"{name}.xml"
            units.append(python_unit(name, options.python, place / "python", known.get(name), report))
            continue
        program = built.get(name)
        found = tuple(program.command) if program else ()
        if options.binaries and os.access(place / name, os.X_OK):
            found = (str(place / name),)
        is_there = bool(found) and Path(found[0]).exists()
        unit = Unit(
            name,
            found,
            is_wide=name not in gpu_tests.ONE_GPU,
            is_shared=name in gpu_tests.SHARED,
            seconds=known.get(name),
            timeout_s=program.timeout_s if program else 600,
            missing="" if is_there else "was not built" if not options.binaries else f"not in {place.name}",
        )
        for part in gpu_tests.shards_of(unit):
            report = f"--gtest_output=xml:{folder / f'{part.name}.xml'}"
            units.append(dataclasses.replace(part, command=(*found, report)))
    return units


def row_of(unit: Unit, done: runner.Done, report: Path, is_cut: bool) -> Row:
    """Counts of the report; of a stopped unit what it printed. `is_cut`: it was stopped as the minutes were over."""
    row = Row(unit.name, PASSED, seconds=done.seconds)
    if done.timed_out:
        row.passed, names, row.skipped, running = gpu_tests.counts_of_output(done.output)
        row.failures = [*names]
        where = f"stopped after {done.seconds:.0f} s" + (f" in {running}" if running else "")
        if is_cut:
            row.outcome, row.detail = NOT_RUN, where + ", the minutes were over; it never ended"
        else:
            row.outcome, row.cut_short = FAILED, True
            row.failures.append(where)
        row.failed = len(row.failures)
        return row
    try:
        cases = results.read_xml(report)
    except (OSError, SyntaxError) as error:
        row.outcome, row.failed, row.failures = FAILED, 1, [f"no report ({error}); {results.one_line(done.why(8))}"]
        return row
    for case in cases:
        if case.outcome == SKIPPED:
            row.skipped += 1
            row.reasons[case.detail] = row.reasons.get(case.detail, 0) + 1
        elif case.outcome == PASSED:
            row.passed += 1
        else:
            said = gpu_tests.said_in(done.output, case.name)
            row.failures.append(
                f"{case.name}: {results.one_line(case.detail)[:300]}" + (f" | {said[:700]}" if said else "")
            )
    nothing_ran = done.rc == 5 and gpu_tests.is_python(unit.name)  # pytest: every file was skipped as a whole
    if done.rc != 0 and not row.failures and not nothing_ran:
        row.cut_short = True
        row.failures.append(results.one_line(done.why(8)))
    row.failed = len(row.failures)
    row.outcome = FAILED if row.failed else PASSED if row.passed else SKIPPED
    if not cases:
        row.outcome, row.failed, row.failures = FAILED, 1, ["contains no test case"]
    return row


def run_unit(unit: Unit, gpus: tuple[int, ...], ids: list[str], limit_s: float, folder: Path, packages: Path) -> Row:
    env = {}
    if len(gpus) < len(ids):  # nvidia-smi counts GPUs by their place on the bus
        env = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(ids[gpu] for gpu in gpus)}
    if unit.shards > 1:
        env |= {"GTEST_TOTAL_SHARDS": str(unit.shards), "GTEST_SHARD_INDEX": str(unit.shard)}
    if gpu_tests.is_python(unit.name):
        env["PYTHONPATH"] = os.pathsep.join(x for x in (str(packages), os.environ.get("PYTHONPATH", "")) if x)
    report = folder / f"{unit.name}.xml"
    report.unlink(missing_ok=True)
    done = runner.run(list(unit.command), limit_s, env, ROOT)
    (folder / f"{unit.name}.log").write_text(done.output)
    return row_of(unit, done, report, is_cut=limit_s < unit.timeout_s)


def run_all(units: list[Unit], about: dict, budget_s: float, folder: Path, packages: Path) -> list[Row]:
    """All that fits, each line printed as it ends."""
    begin = time.monotonic()
    plan = gpu_tests.Scheduler(units, about["count"], budget_s, about["part"])
    rows: list[Row] = []
    beside: dict[str, Row] = {}  # what failed beside others
    most = sum(max(gpu_tests.AT_ONCE, len(part)) for part in plan.parts)
    with concurrent.futures.ThreadPoolExecutor(max(most, 1)) as pool:
        running: dict[concurrent.futures.Future[Row], Unit] = {}
        while not plan.is_done():
            for unit, gpus, limit_s in plan.start(time.monotonic() - begin):
                running[pool.submit(run_unit, unit, gpus, about["ids"], limit_s, folder, packages)] = unit
            ended, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in ended:
                row, unit = future.result(), running.pop(future)
                plan.ended(unit)
                if unit.name not in beside and unit.runs_again(row, has_neighbours=len(plan.parts) > 1):
                    beside[unit.name] = row
                    plan.again(gpu_tests.alone(unit, row))
                    (folder / f"{unit.name}.log").rename(folder / f"{unit.name}.beside.log")
                    print(f"{row.name}: failed beside others in {row.seconds:.1f} s", flush=True)
                    continue
                if row.name in beside:
                    row = gpu_tests.joined(beside.pop(row.name), row)
                rows.append(row)
                print(f"{row.name}: {row.outcome} in {row.seconds:.1f} s", flush=True)
    rows += [gpu_tests.joined(beside[row.name], row) if row.name in beside else row for row in plan.not_run]
    return gpu_tests.merged(rows)


def package_of(packages: Path) -> str:
    """Where the package overlace comes from: the wheel that was installed there, else the build."""
    found = [path.parent.name.removesuffix(".dist-info") for path in packages.glob("overlace-*.dist-info/WHEEL")]
    return f"wheel {found[0]}" if found else "build"


def pack(archive: Path, build: Path, packages: Path) -> int:
    """What is built of the expected programs, and says what is not; 2 if something is missing."""
    names = [name for name in gpu_tests.expected_names(ROOT) if not gpu_tests.is_python(name)]
    missing = [name for name in names if not (build / "tests" / name).exists()]
    missing += [] if has_package(packages) else ["python/overlace (target overlace_python)"]
    found = [build / "tests" / name for name in names if (build / "tests" / name).exists()]
    packed = gpu_pack.pack(found, packages, archive)
    print(f"{archive.name}: {len(packed)} files, {archive.stat().st_size / 2**20:.1f} MiB")
    print("".join(f"not built: {name}\n" for name in missing), end="")
    return 2 if missing else 0


def command_line(arguments: list[str]) -> str:
    """The command line as it was typed, without paths of this machine that lie in the tree."""
    shown = [re.sub(rf"(?<![\w/]){re.escape(str(ROOT))}/?", "", word) or "." for word in arguments]
    return shlex.join(["tools/gpu_check.py", *shown])


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--preset", default="cuda")
    parser.add_argument("--binaries", type=lambda text: Path(text).resolve())
    parser.add_argument("--pack", type=lambda text: Path(text).resolve(), metavar="ARCHIVE")
    parser.add_argument("--packages", type=lambda text: Path(text).resolve(), metavar="DIR")
    parser.add_argument("--git", default="", metavar="COMMIT")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--part", type=int, default=0, metavar="GPUS")
    parser.add_argument("--continue", dest="is_continued", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / gpu_tests.RECORD)
    options = parser.parse_args(arguments)
    if options.part < 0:
        parser.error(f"--part is {options.part}, wanted the GPUs of a part, or 0 for all")
    os.chdir(ROOT)
    if options.pack:
        build = ROOT / "build" / options.preset
        return pack(options.pack, build, options.packages or build / gpu_pack.PACKAGES)
    begin = time.monotonic()
    commit, about = commit_of(ROOT, options.git), machine()
    folder = ROOT / "build" / "gpu_check"
    folder.mkdir(parents=True, exist_ok=True)
    if options.binaries and options.binaries.is_file():
        options.binaries = gpu_pack.unpack(options.binaries, folder / "binaries")
    old = json.loads(options.out.read_text()) if options.out.exists() else None
    try:
        units = units_of(ROOT, options, folder, gpu_tests.known_seconds(old))
    except (RuntimeError, subprocess.SubprocessError) as error:
        raise SystemExit(f"gpu_check: build/{options.preset} knows no tests: {error}") from error
    about["part"] = options.part
    used = about["count"] // options.part * options.part if options.part > 0 else about["count"]
    parts = f", {options.part} at a time, {used} used" if 0 < options.part < about["count"] else ""
    shown = {"gpus": about["gpus"] + parts, "driver": about["driver"]}
    done, commands, minutes = [], [], options.minutes
    if options.is_continued:
        try:
            done = gpu_tests.carried(old, commit, shown)
        except ValueError as error:
            raise SystemExit(f"gpu_check: --continue: {error}") from error
        commands, minutes = [old["last"]["command"]], minutes + old["last"]["minutes"]
        units = [unit for unit in units if unit.program not in {row.name for row in done}]
    packages = (options.binaries or ROOT / "build" / options.preset) / "python"
    print(f"{len(units)} units, {about['gpus']}, {options.minutes:g} minutes, commit {commit}", flush=True)
    budget_s = options.minutes * 60 - RESERVE_S - (time.monotonic() - begin)
    rows = run_all(units, about, budget_s, folder, packages)
    print(gpu_tests.table(done + rows))
    if all(row.outcome == NOT_RUN and not row.seconds for row in rows):
        print(f"nothing ran: {options.out.name} stays as it is")
        return gpu_tests.exit_code(done + rows)
    told = {
        "commit": commit,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "command": " && ".join([*commands, command_line(arguments)]),
        "machine": shown,
        "package": package_of(packages),
        "minutes": minutes,
    }
    options.out.write_text(json.dumps(gpu_tests.record(done + rows, told, old), indent=1) + "\n")
    print(f"wrote {options.out.name}; tools/gen_results.py puts it into the documents")
    return gpu_tests.exit_code(done + rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
