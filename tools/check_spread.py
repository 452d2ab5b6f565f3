"""Names of operators and schedule families belong into their tables (docs/design/decisions/006).

Elsewhere a string that is such a name is a place that the next operator will be forgotten in. tools/spread.txt holds
how many there are by file; none may be added, and one that goes leaves the list too. Words that mean something else
as well (library, serial, compute, comm, limit) do not count; nor do operators with their bindings, tests, examples and
documents.

usage: check_spread.py [--root DIR] [--write]
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from files import CPP, ROOT, count_problems, finish, listed, read, without_comments, write_counts

TABLES = "src/spec/families/"
LIST = "tools/spread.txt"
COMMON = {"library", "serial", "compute", "comm", "limit"}
ALLOWED = re.compile(
    r"src/ops/|src/spec/families/|python/overlace/ops/|python/csrc/(ag_gemm|ag_wgrad|exchange|gemm_reduce)\.cc"
    r"|(python/)?examples/|tests/|docs/"
)
# A folder and a name that is something else there: an algorithm of all-reduce.
OTHERWISE = ("src/study/network/ hierarchical",)


def names(root: Path) -> set[str]:
    found: set[str] = set()
    for path in listed(root):
        if path.startswith(TABLES) and path.endswith(".cc"):
            text = read(root, path)
            found |= set(re.findall(r'\b(?:whole|cut|bound)\("(\w+)",', text))
            found |= set(re.findall(r'OperatorDef \w+ = \{\s*\.name = "(\w+)"', text))
    return found - COMMON


def counted(root: Path) -> dict[str, int]:
    """By file, the strings that are a name, or begin with one and a suffix of a schedule."""
    known = sorted(names(root))
    if not known:
        return {}
    pattern = re.compile(rf"""["']({"|".join(known)})["']""")
    found = {}
    for path in listed(root):
        if not path.endswith((*CPP, ".py")) or ALLOWED.match(path):
            continue
        text = read(root, path)
        other = next((name for folder, name in map(str.split, OTHERWISE) if path.startswith(folder)), "")
        count = sum(name != other for name in pattern.findall(without_comments(text) if path.endswith(CPP) else text))
        if count:
            found[path] = count
    return found


def problems(root: Path, found: dict[str, int]) -> list[str]:
    return count_problems(root, LIST, found, "names of operators or families", "ask the operator's table")


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
