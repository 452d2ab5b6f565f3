"""Names of operators and schedule families belong into their tables (docs/design/decisions/006).

Elsewhere a string that is such a name is a place that the next operator will be forgotten in. tools/spread.txt holds
how many there are by file; none may be added, and one that goes leaves the list too. There are none now, and no list.
The words library, serial, compute, comm and limit, which are keys of records and lanes of traces too, count where they
are compared, in operators and their bindings as well. Other names do not count there, nor in tests, examples and
documents. Operators that tests add at run time (tests/toy) are named in tests alone.

usage: check_spread.py [--root DIR] [--write]
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from files import BINARY, CPP, ROOT, count_problems, finish, listed, read, without_comments, write_counts

TABLES = "src/spec/families/"
TOYS = "tests/toy/"
DEFINED = re.compile(r'OperatorDef \w+ = \{\s*\.name = "(\w+)"')
LIST = "tools/spread.txt"
COMMON = {"library", "serial", "compute", "comm", "limit"}
WORD = rf'"(?:{"|".join(sorted(COMMON))})"'
COMPARED = re.compile(rf"[=!]= *{WORD}|{WORD} *[=!]=|(?:starts_with|ends_with|compare|find)\({WORD}[,)]")
METHODS = {"startswith", "endswith", "removeprefix", "removesuffix"}
ALLOWED = re.compile(
    r"src/ops/|src/spec/families/|python/overlace/ops/|python/csrc/(ag_gemm|ag_wgrad|exchange|gemm_reduce|scaled)\.cc"
    r"|(python/)?examples/|tests/|docs/"
)
UNCOUNTED = re.compile(r"(python/)?examples/|tests/|docs/")
# A folder and a name that is something else there: an algorithm of all-reduce.
OTHERWISE = ("src/study/network/ hierarchical",)


def names(root: Path) -> set[str]:
    found: set[str] = set()
    for path in listed(root):
        if path.startswith(TABLES) and path.endswith(".cc"):
            text = read(root, path)
            found |= set(re.findall(r'\b(?:whole|cut|bound)\("(\w+)",', text))
            found |= set(DEFINED.findall(text))
    return found - COMMON


def compared(text: str) -> int:
    """Common words that a Python file compares with."""
    count = 0
    for node in ast.walk(ast.parse(text)):
        sides: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            for side in (node.left, *node.comparators):
                sides += side.elts if isinstance(side, (ast.Tuple, ast.List, ast.Set)) else [side]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
            sides += node.args
        count += sum(isinstance(side, ast.Constant) and side.value in COMMON for side in sides)
    return count


def counted(root: Path) -> dict[str, int]:
    """By file, the strings that are a name, or begin with one and a suffix of a schedule."""
    known = sorted(names(root))
    if not known:
        return {}
    pattern = re.compile(rf"""["']({"|".join(known)})["']""")
    found = {}
    for path in listed(root):
        if not path.endswith((*CPP, ".py")) or UNCOUNTED.match(path):
            continue
        text = without_comments(read(root, path)) if path.endswith(CPP) else read(root, path)
        other = next((name for folder, name in map(str.split, OTHERWISE) if path.startswith(folder)), "")
        count = 0 if ALLOWED.match(path) else sum(name != other for name in pattern.findall(text))
        count += len(COMPARED.findall(text)) if path.endswith(CPP) else compared(text)
        if count:
            found[path] = count
    return found


def toys(root: Path) -> list[str]:
    """Places outside of tests where an operator that tests add at run time is named."""
    paths = listed(root)
    names = sorted(
        {n for p in paths if p.startswith(TOYS) and p.endswith(".cc") for n in DEFINED.findall(read(root, p))}
    )
    if not names:
        return []
    pattern = re.compile(rf"(?<![A-Za-z0-9])({'|'.join(names)})(?![A-Za-z0-9])")
    out = []
    for path in paths:
        if path.startswith(("tests/", "bench/results/")) or path.endswith(BINARY):
            continue
        for number, line in enumerate(read(root, path).splitlines(), 1):
            out += [f"{path}:{number}: names {name}, which tests add at run time" for name in pattern.findall(line)]
    return out


def problems(root: Path, found: dict[str, int]) -> list[str]:
    counts = count_problems(root, LIST, found, "names of operators or families", "ask the operator's table")
    return counts + toys(root)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--write", action="store_true", help="write the counts of now")
    options = parser.parse_args(arguments)
    found = counted(options.root)
    if options.write:
        write_counts(options.root, LIST, found)
    return finish("check_spread", problems(options.root, found), f"{sum(found.values())} strings in {len(found)} files")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
