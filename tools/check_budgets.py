"""Budgets of size and compile time (docs/reference/toolchain.md). A waiver is a line of tools/budget_waivers.txt.

usage: check_budgets.py [--root DIR] [--build BUILD_DIR]
With --build: units that were slow in ninja's log are compiled again, alone, and their processor time and memory count.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import shlex
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from files import CPP, ROOT, finish, listed, read, without_comments
from measure import Measured, measure, slowness

FILE_LINES, HEADER_LINES, FUNCTION_LINES, README_LINES = 600, 400, 80, 80
SMALL_LINES, SMALL_FOLDERS = 50, ("src/", "cli/", "bench/")
TEMPLATE_PARAMETERS, SHARED_LINES = 8, 0.40
UNIT_SECONDS, DEVICE_SECONDS, UNIT_MIB, TOLERANCE = 5.0, 4.0, 700, 1.2
# Seconds of each further file where CMake compiles several as one: the headers, half of a unit's time, are read
# once. The memory is that of one unit, which keeps folders from growing without end.
FURTHER_SECONDS = 2.5
AGAIN = 4  # units compiled again at most: with folders as one each takes up to half a minute
WAIVERS, SMALL_FILES = "tools/budget_waivers.txt", "tools/small_files.txt"
# Contracts between host and device, and the tables of options.
SMALL_ALLOWED = re.compile(r".*_pod\.h|cli/\w+/options\.cc|cli/options\.h")
CEIL_DIV = "src/base/ceil_div_pod.h"
BY_HAND = re.compile(r"\+ *((?:[\w.:\[\]]|->|\(\))+) - 1\) */ *\1(?![\w.(\[]|->|::)")


def waivers(root: Path) -> dict[str, str]:
    """`what: path[:function]` -> reason with date; a line that does not have all of them is refused by check()."""
    found = {}
    if (root / WAIVERS).exists():
        for line in read(root, WAIVERS).splitlines():
            if line.strip() and not line.startswith("#"):
                what, _, reason = line.partition(" -- ")
                found[what.strip()] = reason.strip()
    return found


def cpp_functions(text: str) -> list[tuple[int, int, str]]:
    """(first line, lines, name) of each function body. Bodies nested in a function count as part of it."""
    code = without_comments(text, keep_strings=False)
    code = re.sub(r"(?m)^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: re.sub(r"[^\n]", " ", m[0]), code)
    found, stack, header_start, line = [], [], 0, 1
    start_line = 1
    for i, c in enumerate(code):
        if c == "\n":
            line += 1
        elif c == "{":
            header = code[header_start:i]
            inside = any(kind == "function" for kind, _, _ in stack)
            # A body: a parameter list before it, at namespace or class level, and neither a type nor an initializer.
            is_body = ")" in header and not inside and not re.search(r"=\s*(\w[\w:<>]*)?\s*$", header)
            is_body = is_body and not re.match(
                r"\s*(template\s*<[^{}]*>\s*)?(class|struct|enum|union|namespace)\b", header
            )
            name = re.search(r"([\w~:]+)\s*\(", header)
            stack.append(("function" if is_body else "scope", start_line, name[1] if name else "?"))
            header_start, start_line = i + 1, line
        elif c == "}":
            if stack:
                kind, first, name = stack.pop()
                if kind == "function":
                    found.append((first, line - first + 1, name))
            header_start, start_line = i + 1, line
        elif c == ";":
            header_start, start_line = i + 1, line
        if not code[header_start : i + 1].strip():
            start_line = line
    return found


def python_functions(text: str) -> list[tuple[int, int, str]]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [n for n in ast.walk(ast.parse(text)) if isinstance(n, functions)]
    return [(n.lineno, (n.end_lineno or n.lineno) - n.lineno + 1, n.name) for n in nodes]


def template_problems(path: str, text: str) -> list[str]:
    problems = []
    code = without_comments(text)
    for match in re.finditer(r"\btemplate\s*<([^;{}()]*?)>\s*(?:class|struct|[\w:]+\s)", code):
        n = match[1].count(",") + 1
        if n > TEMPLATE_PARAMETERS:
            line = code.count("\n", 0, match.start()) + 1
            problems.append(f"{path}:{line}: {n} template parameters; at most {TEMPLATE_PARAMETERS}, then a Config")
    return problems


def size_problems(root: Path, path: str, waived: dict[str, str]) -> list[str]:
    problems, text = [], read(root, path)
    lines = text.count("\n")
    is_code = path.endswith((*CPP, ".py", ".sh", ".cmake", ".txt")) and not path.startswith("docs/")
    limit = HEADER_LINES if path.startswith("include/") else FILE_LINES
    if is_code and lines > limit and f"lines: {path}" not in waived:
        problems.append(f"{path}: {lines} lines; at most {limit}")
    if path.endswith("/README.md") and lines > README_LINES and f"lines: {path}" not in waived:
        problems.append(f"{path}: {lines} lines; the README of a directory has at most {README_LINES}")
    functions = cpp_functions(text) if path.endswith(CPP) else python_functions(text) if path.endswith(".py") else []
    for first, length, name in functions:
        if length > FUNCTION_LINES and f"function: {path}:{name}" not in waived:
            problems.append(f"{path}:{first}: {name} has {length} lines; at most {FUNCTION_LINES}")
    if path.endswith(CPP):
        problems += template_problems(path, text)
    return problems


def significant(text: str) -> set[str]:
    """Lines that would be work to write again: no includes, braces or one-word lines."""
    lines = (line.strip() for line in without_comments(text).splitlines())
    return {x for x in lines if len(x) >= 24 and not x.startswith(("#", "namespace", "using ", "}  //"))}


def copy_problems(root: Path, paths: list[str], waived: dict[str, str]) -> list[str]:
    """Pairs of files that share too many lines: pasted code."""
    sets = [(p, s) for p in paths if len(s := significant(read(root, p))) >= 30]
    problems = []
    for i, (a, lines_a) in enumerate(sets):
        for b, lines_b in sets[:i]:
            share = len(lines_a & lines_b) / min(len(lines_a), len(lines_b))
            if share > SHARED_LINES and f"shared: {b} {a}" not in waived:
                problems.append(f"{a}: shares {share:.0%} of its lines with {b}; at most {SHARED_LINES:.0%}")
    return problems


def small_units(root: Path, paths: list[str]) -> dict[str, int]:
    """Path without its ending -> lines, of sources too short to stand alone. A header counts with its source."""
    lines: dict[str, int] = {}
    for path in paths:
        if path.endswith(CPP) and path.startswith(SMALL_FOLDERS) and not SMALL_ALLOWED.fullmatch(path):
            stem = path.rsplit(".", 1)[0]
            lines[stem] = lines.get(stem, 0) + read(root, path).count("\n")
    return {stem: count for stem, count in lines.items() if count < SMALL_LINES}


def small_problems(root: Path, paths: list[str], waived: dict[str, str]) -> list[str]:
    """New fragments, and lines of the list of old ones that have gone: it may only shrink."""
    listed_lines = read(root, SMALL_FILES).splitlines() if (root / SMALL_FILES).exists() else []
    known = {line for line in listed_lines if line and not line.startswith("#")}
    small = small_units(root, paths)
    problems = [
        f"{stem}: {count} lines with its header; below {SMALL_LINES} it joins its neighbour"
        for stem, count in sorted(small.items())
        if stem not in known and f"small: {stem}" not in waived
    ]
    gone = sorted(known - set(small))
    return problems + [f"{SMALL_FILES}: {stem} is no small file any more: its line goes" for stem in gone]


def seconds_of(unit: str) -> float:
    """Budget of a source or its object."""
    return DEVICE_SECONDS if unit.removesuffix(".o").endswith(".cu") else UNIT_SECONDS


def architectures_of(command: str) -> int:
    """For how many kinds of GPUs nvcc makes programs: it compiles a unit once for each."""
    return max(1, len(set(re.findall(r"\bsm_\w+", " ".join(re.findall(r"code=\[?([\w,]+)", command))))))


def files_of(unit: Path) -> list[Path]:
    """The sources that CMake joined into this unit, else the unit itself."""
    if "Unity" not in unit.parts or not unit.exists():
        return [unit]
    return [Path(name) for name in re.findall(r'(?m)^#include "(.+)"$', unit.read_text())] or [unit]


def budget_of(unit: Path) -> float:
    """Seconds for a source for one architecture, or for several as one."""
    return seconds_of(str(unit)) + FURTHER_SECONDS * (len(files_of(unit)) - 1)


def slow_outputs(log: str, budgets: dict[str, float]) -> list[str]:
    """Outputs of ninja's log that took longer than their budget, furthest beyond it first; the last entry counts."""
    seconds = {}
    for line in log.splitlines():
        fields = line.split("\t")
        if len(fields) == 5 and fields[3] in budgets:
            seconds[fields[3]] = (int(fields[1]) - int(fields[0])) / 1000
    slow = [output for output, s in seconds.items() if s > budgets[output] * TOLERANCE]
    return sorted(slow, key=lambda output: -seconds[output] / budgets[output])


def name_of(file: Path, root: Path) -> str:
    """A unit's path; of several as one `folder PATH`, or of one target `target NAME` where they lie in several."""
    target = re.search(r"/(\w+)\.dir/Unity/", str(file))
    if not target:
        return str(file.relative_to(root))
    folders = {joined.parent for joined in files_of(file)}
    in_one = len(folders) == 1 and file.parent not in folders and min(folders).is_relative_to(root)
    return f"folder {min(folders).relative_to(root)}" if in_one else f"target {target[1]}"


def without_launchers(arguments: list[str]) -> list[str]:
    """The compiler's own words: no `cmake -E env NAME=VALUE`, no ccache, which would answer from its cache."""
    while arguments:
        if arguments[1:3] == ["-E", "env"]:
            arguments = arguments[3:]
        elif re.match(r"\w+=", arguments[0]) or Path(arguments[0]).name == "ccache":
            arguments = arguments[1:]
        else:
            break
    return arguments


def compile_alone(command: str, folder: Path) -> Measured:
    """One compilation, without a cache."""
    arguments = without_launchers(shlex.split(command))
    arguments[arguments.index("-o") + 1] = "/dev/null"
    arguments = [a for a in arguments if a != "-MD"]
    for option in ("-MT", "-MF"):
        if option in arguments:
            del arguments[arguments.index(option) : arguments.index(option) + 2]
    with tempfile.TemporaryDirectory() as scratch:
        return measure(arguments, folder, Path(scratch))


def measured(unit: dict, limit: float) -> tuple[Measured, float]:
    """A compilation alone, and the limit here. Once more if it is beyond: other work may have slowed down the first."""
    for _ in range(2):
        used, here = compile_alone(unit["command"], Path(unit["directory"])), limit
        if used.rc == 0 and used.seconds > limit:
            with tempfile.TemporaryDirectory() as scratch:
                here *= slowness(Path(scratch))
        if used.rc != 0 or used.seconds <= here:
            break
    return used, here


def time_problems(root: Path, build: Path, waived: dict[str, str]) -> list[str]:
    """Units beyond their budget; tests are held to it as well, but their device code and that of benches is not."""
    units = {}
    for unit in json.loads((build / "compile_commands.json").read_text()):
        arguments = shlex.split(unit["command"])
        ours = (root / "src", build.resolve() / "instances")
        is_counted = not unit["file"].endswith(".cu") or any(Path(unit["file"]).is_relative_to(o) for o in ours)
        # A precompiled header is no unit, and g++ does not always write one to /dev/null.
        is_counted = is_counted and not Path(unit["file"]).name.startswith("cmake_pch")
        if "-o" in arguments and is_counted:
            units[arguments[arguments.index("-o") + 1]] = unit
    # On a busy machine all are slow; those beyond their budget are among the slowest.
    budgets = {output: budget_of(Path(unit["file"])) for output, unit in units.items()}
    candidates = [units[output] for output in slow_outputs((build / ".ninja_log").read_text(), budgets)]
    problems: list[str] = []
    for unit in candidates[:AGAIN]:
        path = name_of(Path(unit["file"]), root)
        if f"compile: {path}" in waived:
            continue
        budget = budget_of(Path(unit["file"])) * architectures_of(unit["command"])
        used, limit = measured(unit, budget * TOLERANCE)
        if used.rc != 0:
            problems.append(f"{path}: did not compile a second time:\n{used.output[-2000:]}")
        elif used.seconds > limit or used.mib > UNIT_MIB * TOLERANCE:
            problems.append(
                f"{path}: {used.seconds:.1f} s, {used.mib:.0f} MiB; budget: {budget:.0f} s, here "
                f"{limit / TOLERANCE:.1f} s, {UNIT_MIB} MiB"
            )
    return problems


def division_problems(root: Path, sources: list[str]) -> list[str]:
    """(x + y - 1) / y is ceil_div(x, y)."""
    out = []
    for path in sources:
        if path != CEIL_DIV:
            code = without_comments(read(root, path))
            out += [
                f"{path}:{code.count(chr(10), 0, m.start()) + 1}: a division rounded up by hand, wanted base::ceil_div"
                for m in BY_HAND.finditer(code)
            ]
    return out


def check(root: Path) -> tuple[list[str], int]:
    waived = waivers(root)
    problems = [
        f"{WAIVERS}: '{what}' needs ` -- reason, YYYY-MM-DD`"
        for what, reason in waived.items()
        if not re.search(r"\w.*\d{4}-\d{2}-\d{2}", reason)
    ]
    paths = listed(root)
    for path in paths:
        if path.endswith((*CPP, ".py", ".sh", ".cmake", ".md", "CMakeLists.txt")):
            problems += size_problems(root, path, waived)
    sources = [p for p in paths if p.endswith(CPP) and p.startswith(("src/", "cli/", "include/", "bench/"))]
    problems += copy_problems(root, sources, waived) + small_problems(root, paths, waived)
    return problems + division_problems(root, sources), len(paths)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--build", type=Path)
    options = parser.parse_args(arguments)
    if options.build:
        problems = time_problems(options.root, options.build, waivers(options.root))
        return finish("check_budgets", problems, f"compile times of {options.build}")
    problems, n = check(options.root)
    return finish("check_budgets", problems, f"{n} files")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
