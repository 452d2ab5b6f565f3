"""What must not compile: each file of tests/compile_fail fails with the error that its first line wants, and compiles
with -DFIXED, so that it fails for that reason."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from results import FAILED, PASSED, SKIPPED, Case
from runner import ROOT, run

FLAGS = ["-Wall", "-Wextra", "-Werror", "-Iinclude", "-I.", "-fsyntax-only"]


def complaint(source: Path, root: Path = ROOT) -> str:
    """Empty where the file behaves."""
    wanted = re.match(r"// wanted: (.+)\n", source.read_text())
    if not wanted:
        return "its first line is not `// wanted: REGEX`"
    command = ["gcc", "-std=c11"] if source.suffix == ".c" else ["g++", "-std=c++20"]
    fixed = run([*command, *FLAGS, "-DFIXED", str(source)], 60, cwd=root)
    if fixed.rc != 0:
        return f"does not compile with -DFIXED: {fixed.why()}"
    broken = run([*command, *FLAGS, str(source)], 60, cwd=root)
    if broken.rc == 0:
        return "compiles"
    if not re.search(wanted[1], broken.output):
        return f"fails, but not with /{wanted[1]}/: {broken.why()}"
    return ""


def check() -> Iterator[Case]:
    if not shutil.which("g++") or not shutil.which("gcc"):
        yield Case("compile-fail", SKIPPED, "g++ or gcc was not found")
        return
    for source in sorted((ROOT / "tests" / "compile_fail").glob("*.c*")):
        why = complaint(source)
        yield Case(f"compile-fail {source.stem}", FAILED if why else PASSED, why)
