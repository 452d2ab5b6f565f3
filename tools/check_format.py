"""clang-format 14, ASCII, line ends, tabs, shell scripts, Python syntax.

usage: check_format.py [--root DIR]
"""

from __future__ import annotations

import argparse
import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from files import BINARY, CPP, ROOT, finish, listed, read

CLANG_FORMAT_MAJOR = 14
LINE = 120


def text_problems(path: str, data: bytes) -> list[str]:
    problems = []
    if not data:
        return [] if path.endswith("__init__.py") else [f"{path}: is empty"]
    if b"\r" in data:
        problems.append(f"{path}: CR; lines end in LF")
    if not data.endswith(b"\n"):
        problems.append(f"{path}: no newline at the end")
    if data.endswith(b"\n\n"):
        problems.append(f"{path}: empty lines at the end")
    is_makefile = Path(path).name == "Makefile"
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.isascii():
            problems.append(f"{path}:{number}: not ASCII: {line.decode(errors='replace')[:60]}")
        if b"\t" in line and not is_makefile:
            problems.append(f"{path}:{number}: tab")
        if line.endswith(b" ") and not path.endswith(".md"):
            problems.append(f"{path}:{number}: space at the end of the line")
        if len(line) > LINE and path.endswith((*CPP, ".py", ".sh", ".cmake", "CMakeLists.txt")):
            problems.append(f"{path}:{number}: {len(line)} characters; at most {LINE}")
    return problems


def clang_format_problems(root: Path, paths: list[str]) -> list[str]:
    program = next((p for p in (f"clang-format-{CLANG_FORMAT_MAJOR}", "clang-format") if shutil.which(p)), None)
    if program is None:
        return [f"clang-format {CLANG_FORMAT_MAJOR} was not found"]
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    if f"version {CLANG_FORMAT_MAJOR}." not in version:
        return [f"{program}: wanted version {CLANG_FORMAT_MAJOR}, got {version.strip()}"]
    if not paths:
        return []
    command = [program, "--dry-run", "-Werror", "--ferror-limit=1", "--style=file", *paths]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return []
    return re.findall(r"(?m)^\S+:\d+:\d+: error: .*$", done.stderr) or [done.stderr]


def shell_problems(root: Path, paths: list[str]) -> list[str]:
    problems = []
    for command in (["bash", "-n"], ["shellcheck"]):
        if not shutil.which(command[0]):
            problems.append(f"{command[0]} was not found")
            continue
        for path in paths:
            done = subprocess.run([*command, path], cwd=root, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                problems.append(f"{path}: {command[0]}:\n{done.stdout}{done.stderr}")
    return problems


def python_problems(path: str, text: str) -> list[str]:
    try:
        ast.parse(text)
    except SyntaxError as error:
        return [f"{path}:{error.lineno}: {error.msg}"]
    return []


def check(root: Path) -> tuple[list[str], int]:
    paths = [p for p in listed(root) if not p.endswith(BINARY)]
    problems, shell = [], []
    for path in paths:
        data = (root / path).read_bytes()
        if path != "LICENSE":
            problems += text_problems(path, data)
        if path.endswith(".py"):
            problems += python_problems(path, read(root, path))
        if path.endswith(".sh") or re.match(rb"#!.*\b(ba)?sh\b", data):
            shell.append(path)
    problems += clang_format_problems(root, [p for p in paths if p.endswith(CPP)])
    return problems + shell_problems(root, shell), len(paths)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT)
    problems, n = check(parser.parse_args(arguments).root)
    return finish("check_format", problems, f"{n} files")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
