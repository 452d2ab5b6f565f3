"""Refusals say what is wanted (CONTRIBUTING.md, Style in brief).

A message that comes with invalid_argument, bad_schedule or not_supported, a refuse() of the operators of PyTorch and an
exception of the same name in Python has to say, beside the value got, the value wanted, with one of the words "wanted",
"at most", "at least", "must", "supported:", "known:" or "there are:". tools/messages.txt holds how many do not by file;
none may be added, and one that goes leaves the list too. What is made elsewhere (a variable, a frame as in "{}: {}") is
looked at there.

usage: check_messages.py [--root DIR] [--write] [--list]
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from files import CPP, ROOT, count_problems, finish, listed, read, without_comments, write_counts

LIST = "tools/messages.txt"
FOLDERS = ("src/", "cli/", "include/", "python/csrc/", "python/overlace/")
WORDS = re.compile(r"\b(wanted|wants|at most|at least|must)\b|\b(there are|known|supported|supported so far):")
CODES = r"\bErrc::(?:invalid_argument|bad_schedule|not_supported)\s*,|\binvalid_argument\("
CALLS, CALLS_OF_TORCH = re.compile(CODES), re.compile(CODES + r"|\brefuse\(")
EXCEPTIONS = ("InvalidArgument", "ScheduleError", "Unsupported")
PIECE = re.compile(r'"((?:\\.|[^"\\\n])*)"|[({\[]|[)}\]]')
# What a frame puts around a text that another function wrote.
FRAME = re.compile(r"\{[^{}]*\}|\b(rank|schedule|task|operator|import|simulation|sim|op|CO2|overlace|S[0-9])\b")


def says_nothing(text: str) -> bool:
    return not re.search(r"[A-Za-z]{2}", FRAME.sub(" ", text))


def literals(text: str, begin: int) -> str:
    """The literals of an argument list from `begin` to the bracket that ends it."""
    depth, found = 1, []
    for piece in PIECE.finditer(text, begin):
        if piece[1] is not None:
            found.append(piece[1])
            continue
        depth += 1 if piece[0] in "({[" else -1
        if depth == 0:
            break
    return "".join(found)


def messages_of_cpp(text: str, calls: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    text = without_comments(text)
    for call in calls.finditer(text):
        yield text.count("\n", 0, call.start()) + 1, literals(text, call.end())


def messages_of_python(text: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name in EXCEPTIONS:
            pieces = [x.value for argument in node.args for x in ast.walk(argument) if isinstance(x, ast.Constant)]
            yield node.lineno, "".join(x for x in pieces if isinstance(x, str))


def silent(root: Path) -> dict[str, list[tuple[int, str]]]:
    """By file, line and text of each message that does not say what is wanted."""
    found = {}
    for path in listed(root):
        if not path.startswith(FOLDERS) or not path.endswith((*CPP, ".py")):
            continue
        text, calls = read(root, path), CALLS_OF_TORCH if path.startswith("python/csrc/") else CALLS
        messages = messages_of_python(text) if path.endswith(".py") else messages_of_cpp(text, calls)
        lines = [x for x in messages if not says_nothing(x[1]) and not WORDS.search(x[1])]
        if lines:
            found[path] = lines
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--write", action="store_true", help="write the counts of now")
    parser.add_argument("--list", action="store_true", help="print the messages that are counted")
    options = parser.parse_args(arguments)
    found = silent(options.root)
    if options.list:
        for path, lines in found.items():
            print("\n".join(f"{path}:{line}: {text}" for line, text in lines))
    counts = {path: len(lines) for path, lines in found.items()}
    if options.write:
        write_counts(options.root, LIST, counts)
    problems = count_problems(options.root, LIST, counts, "messages without the value wanted", "say it, or --list")
    return finish("check_messages", problems, f"{sum(counts.values())} messages in {len(counts)} files")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
