"""Which files the checks look at, and small helpers they share."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CPP = (".h", ".cc", ".cuh", ".cu")
BINARY = (".png", ".npy", ".npz", ".bin", ".safetensors", ".pftrace", ".gz", ".whl")


def listed(root: Path) -> list[str]:
    """Files of the repository, new ones too, without what git ignores; without git: all but build folders."""
    if (root / ".git").exists():
        command = ["git", "-C", str(root), "-c", "safe.directory=*", "ls-files", "-co", "--exclude-standard", "-z"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return sorted({p for p in done.stdout.split("\0") if p and (root / p).is_file()})
    found = []
    for folder, dirs, names in os.walk(root):
        dirs[:] = [d for d in dirs if d not in ("build", "__pycache__", ".git", ".cache", ".venv")]
        found += [str((Path(folder) / n).relative_to(root)) for n in names if not n.endswith(".pyc")]
    return sorted(found)


def read(root: Path, path: str) -> str:
    return (root / path).read_text(encoding="utf-8", errors="replace")


def without_comments(text: str, keep_strings: bool = True) -> str:
    """C++ text with comments (and, if asked, the contents of strings) blanked; line numbers stay."""
    pattern = (
        r'R"(\w*)\((?:.|\n)*?\)\1"|"(?:\\.|[^"\\\n])*"|'
        + r"(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'|//[^\n]*|/\*(?:.|\n)*?\*/"
    )

    def blank(match: re.Match[str]) -> str:
        piece = match[0]
        if piece.startswith(("//", "/*")) or not keep_strings:
            inside = re.sub(r"[^\n]", " ", piece)
            return inside if piece.startswith(("//", "/*")) else '"' + inside[1:-1] + '"'
        return piece

    return re.sub(pattern, blank, text)


def count_problems(root: Path, counts_file: str, found: dict[str, int], what: str, cure: str) -> list[str]:
    """`found` against the counts by file that `counts_file` allows: they may only shrink, and the file with them."""
    allowed: dict[str, int] = {}
    if (root / counts_file).exists():
        for line in read(root, counts_file).splitlines():
            count, _, path = line.partition(" ")
            allowed[path] = int(count)
    out = []
    for path in sorted(found.keys() | allowed.keys()):
        now, before = found.get(path, 0), allowed.get(path, 0)
        if now > before:
            out.append(f"{path}: {now} {what}, {counts_file} has {before}; {cure}")
        elif now < before:
            out.append(f"{path}: {now} {what}, {counts_file} still has {before}: --write")
    return out


def write_counts(root: Path, counts_file: str, found: dict[str, int]) -> None:
    """Writes the counts by file; without one there is no file."""
    if found:
        (root / counts_file).write_text("".join(f"{count} {path}\n" for path, count in sorted(found.items())))
    else:
        (root / counts_file).unlink(missing_ok=True)


def finish(name: str, problems: list[str], looked_at: str) -> int:
    """Prints the problems or what was checked; the exit code."""
    for problem in problems:
        print(problem)
    print(f"{name}: {len(problems)} problems" if problems else f"{name}: ok ({looked_at})")
    return 1 if problems else 0
