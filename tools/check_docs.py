"""Documentation: links and anchors, paths and variables that are named must exist, words and beginnings of
sentences that must not be there, and numbers of README.md that no record is behind.

usage: check_docs.py [--root DIR]
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import blocks
from files import BINARY, CPP, ROOT, finish, listed, read

LINK = re.compile(r"\[[^\]]*\]\(<?([^)>\s]+)>?(?:\s+\"[^\"]*\")?\)")
# What looks like a path of this repository, in backticks.
FOLDERS = r"(?:include|src|cli|bench|tests|tools|docs|cmake|requirements|examples|python|machine|\.ci)"
PATH = re.compile(rf"`({FOLDERS}/[\w./+-]*[\w/])(?::\d+)?`")
VARIABLE = re.compile(r"\bOVERLACE_[A-Z0-9_]*[A-Z0-9]\b")
# Left-overs: unfinished text, and paths of somebody's own machine.
FORBIDDEN = [
    (re.compile(r"\b(TODO|FIXME|XXX|TBD)\b"), "unfinished"),
    (re.compile(r"lorem ipsum", re.IGNORECASE), "filler"),
    (re.compile(r"(?<![\w.$}])/(?:work|home|Users|root)/[\w.-]+"), "a path of somebody's own machine"),
]
# A time, a gain, a share or a count of cases; "4x H200" is a machine.
NUMBER = re.compile(
    r"(?<![\w.`])\d[\d.,]*(?: ?(?:us|ms|ns|s|GB/s|TFLOP/s)\b|x\b(?! [A-Z])| ?%| times\b| cases\b| shapes\b)"
)
FRAGMENT = re.compile(r"^\s*(?:///?|/\*)\s*(Of|As|The same|Same|Idem|Whether)\b")
# What no comment may begin with, nor a later sentence in a line of it.
UNTOLD = re.compile(
    r"^\s*(?:///?<?|//!|/\*+|#|\"{3})\s*(?:.*\. )?(Of\b|The same of\b|As [\w:]+\([\w:]*\)(?=[.,:;]|\s*$))"
)
COMMENTED = ("src/", "cli/", "bench/", "tests/", "python/", "examples/", "tools/")
# A comment behind code that begins so leans on the line before.
TRAILING = re.compile(r"^(?!\s*(?://|/?\*)).*\S\s*(?://|/\*)\s*(of|idem|the same|that of|those of)\b")
# What a header names must be there for those who read it alone.
NAMED = re.compile(rf"(?<![\w/.-])({FOLDERS}/[\w./+-]*\w)")
# A sentence that begins so leans on the one before. Across a line's end, and its comment mark, too.
LEANING = re.compile(r"\b(Of|The(?:[ \n]|///?|\*)+same)\b")
SENTENCES = ("include/overlace/", "docs/guides/")
# Help of an option, which says what its value is.
HELP = re.compile(r"^  (?:-\S+|\w+)(?: [A-Z]+\S*| \.\.\.)* +(Of|The same|As|They|Their|Its|What they)\b")
# Words of our own, and those of the field.
PRIVATE = {
    "by turns": "in turn, interleaved or ping-pong",
    "few tokens": "small M",
    "one-kernel": "fused-kernel",
    "woven": "interleaved",
    "own shard": "local shard",
    "others' rows": "remote rows",
}
PRIVATE_WORD = re.compile(rf"\b({'|'.join(PRIVATE)})\b", re.IGNORECASE)
CELL = re.compile(r"\|\s*[<>=~]*\s*\d[\d.,]*\s*(?=\|)")
# Files that must spell these words.
EXEMPT = ("tools/check_docs.py", "tests/unit/tools/", "LICENSE")


def anchors(text: str) -> set[str]:
    """Anchors of the headings, spelled as GitHub does."""
    found = set()
    for heading in re.findall(r"(?m)^#+\s+(.*)$", re.sub(r"(?s)```.*?```", "", text)):
        plain = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found


def link_problems(root: Path, path: str, text: str) -> list[str]:
    problems = []
    for number, line in enumerate(text.splitlines(), 1):
        for target in LINK.findall(line):
            if re.match(r"[a-z]+:", target):
                continue
            file, _, anchor = target.partition("#")
            place = os.path.normpath(os.path.join(os.path.dirname(path), file)) if file else path
            if place.startswith("..") or not (root / place).exists():
                problems.append(f"{path}:{number}: dead link {target}")
            elif anchor and place.endswith(".md") and anchor not in anchors(read(root, place)):
                problems.append(f"{path}:{number}: no heading for #{anchor} in {place}")
    return problems


def name_problems(root: Path, path: str, text: str, known: set[str]) -> list[str]:
    problems = []
    for number, line in enumerate(text.splitlines(), 1):
        problems += [f"{path}:{number}: no such path: {p}" for p in PATH.findall(line) if not (root / p).exists()]
        problems += [
            f"{path}:{number}: no such option or variable: {v}" for v in VARIABLE.findall(line) if v not in known
        ]
    return problems


def word_problems(path: str, text: str) -> list[str]:
    problems = []
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, what in FORBIDDEN:
            if match := pattern.search(line):
                problems.append(f"{path}:{number}: {what}: {match[0]}")
    return problems


def prose(text: str) -> str:
    """A document without its code; lines keep their numbers."""
    return re.sub(r"(?s)```.*?```|`[^`\n]*`", lambda m: "\n" * m[0].count("\n"), text)


def help_problems(path: str, text: str) -> list[str]:
    """Help of the command line, as the reference has it."""
    return [
        f"{path}:{number}: help begins with '{match[1]}': say what the value is"
        for number, line in enumerate(text.splitlines(), 1)
        if (match := HELP.search(line))
    ]


def vocabulary_problems(path: str, text: str) -> list[str]:
    """Words of our own in documents and public headers; the changelog keeps what was said then."""
    return [
        f"{path}:{number}: '{match[1]}': say {PRIVATE[match[1].lower()]}"
        for number, line in enumerate((prose(text) if path.endswith(".md") else text).splitlines(), 1)
        for match in PRIVATE_WORD.finditer(line)
    ]


def comment_problems(path: str, text: str) -> list[str]:
    """Comments of public headers are read alone: they begin with what the thing is or returns."""
    problems = []
    for number, line in enumerate(text.splitlines(), 1):
        if match := FRAGMENT.search(line) or TRAILING.search(line):
            problems.append(f"{path}:{number}: a comment begins with '{match[1]}': say what it is or returns")
    return problems


def untold_problems(path: str, text: str) -> list[str]:
    """Sentences of comments that name whose a thing is, or what it is like, and not the thing."""
    return [
        f"{path}:{number}: a sentence of a comment begins with '{match[1]}': say what it is"
        for number, line in enumerate(text.splitlines(), 1)
        if (match := UNTOLD.search(line))
    ]


def header_path_problems(root: Path, path: str, text: str) -> list[str]:
    """Paths that comments of public headers name, with or without backticks."""
    return [
        f"{path}:{number}: no such path: {name}"
        for number, line in enumerate(text.splitlines(), 1)
        for name in NAMED.findall(line)
        if not (root / name).exists()
    ]


def sentence_problems(path: str, text: str) -> list[str]:
    """Sentences of public headers and guides that begin with "Of" or "The same"; code and its output are left out."""
    plain = prose(text) if path.endswith(".md") else text
    return [
        f"{path}:{plain.count(chr(10), 0, match.start()) + 1}: a sentence begins with "
        f"'{'Of' if match[1] == 'Of' else 'The same'}': say what it is about"
        for match in LEANING.finditer(plain)
    ]


def number_problems(path: str, text: str) -> list[str]:
    """Numbers outside of what tools/gen_results.py writes from records and compares with them, and outside of code."""
    plain = prose(blocks.outside(text))
    problems = []
    for number, line in enumerate(plain.splitlines(), 1):
        for match in [*NUMBER.finditer(line), *CELL.finditer(line)]:
            shown = match[0].strip("| ")
            problems.append(f"{path}:{number}: {shown}: a number that no generated block has (tools/gen_readme.py)")
    return problems


def check(root: Path) -> tuple[list[str], int]:
    paths = [p for p in listed(root) if not p.endswith(BINARY)]
    texts = {p: read(root, p) for p in paths}
    known = {v for p, text in texts.items() if not p.endswith(".md") for v in VARIABLE.findall(text)}
    problems = []
    for path, text in texts.items():
        if not path.startswith(EXEMPT):
            problems += word_problems(path, text)
            if path.startswith(COMMENTED) and path.endswith((*CPP, ".c", ".py")):
                problems += untold_problems(path, text)
        if path.startswith("include/overlace/"):
            problems += comment_problems(path, text) + header_path_problems(root, path, text)
        if (path.endswith(".md") and path != "CHANGELOG.md") or path.startswith("include/overlace/"):
            problems += vocabulary_problems(path, text)
        if path.startswith(SENTENCES):
            problems += sentence_problems(path, text)
        if path.endswith(".md"):
            problems += link_problems(root, path, text) + name_problems(root, path, text, known)
    problems += number_problems("README.md", texts.get("README.md", ""))
    problems += help_problems("docs/reference/cli.md", texts.get("docs/reference/cli.md", ""))
    index = texts.get("docs/README.md", "")
    for path in (p for p in texts if p.startswith("docs/") and p.endswith(".md") and p != "docs/README.md"):
        if f"]({path.removeprefix('docs/')})" not in index:
            problems.append(f"docs/README.md: does not link {path}")
    return problems, len(paths)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT)
    problems, n = check(parser.parse_args(arguments).root)
    return finish("check_docs", problems, f"{n} files")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
