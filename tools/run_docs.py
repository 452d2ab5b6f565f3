"""Runs the commands of the guides, and compares the code that they show with the files it was taken from.

A fenced block says in its first line what it is; a block without such a word is only shown:
    ```sh run              run by `sh -eu`, in one empty folder per guide, in order
    ```text shows          each of these lines is in what the block before printed, in this order; `...`: anything
    ```cpp file=main.cc    written to that file in the guide's folder
    ```cpp from=src/a.cc   these lines are in that file of the repository
Commands find PREFIX (an installed overlace), SOURCE (the repository) and PREFIX/bin in PATH.

usage: run_docs.py [--root DIR] [--prefix DIR] [--keep DIR] [GUIDE.md ...]
Without --prefix nothing is run: only `from=` and the words are checked.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from files import ROOT, finish, listed

TIMEOUT_S = 300
LANGUAGES = ("", "sh", "text", "cpp", "c", "cmake", "json", "python", "cuda")


@dataclasses.dataclass(frozen=True)
class Block:
    line: int  # of its fence
    language: str
    word: str  # "run", "shows", "file", "from" or ""
    value: str  # of file= and from=
    text: str


def blocks(text: str) -> list[Block]:
    found, lines, i = [], text.splitlines(), 0
    while i < len(lines):
        if fence := re.match(r"^(```+)(\S*)\s*(.*)$", lines[i]):
            end = next((j for j in range(i + 1, len(lines)) if lines[j].strip() == fence[1]), len(lines))
            word, _, value = fence[3].strip().partition("=")
            found.append(Block(i + 1, fence[2], word, value, "\n".join(lines[i + 1 : end])))
            i = end
        i += 1
    return found


def stripped(text: str) -> list[str]:
    """Lines without their indentation, which a page may leave out."""
    return [line.strip() for line in text.splitlines()]


def static_problems(root: Path, path: str, text: str) -> list[str]:
    problems = []
    for block in blocks(text):
        where = f"{path}:{block.line}"
        known = {"": "", "run": "sh", "shows": "text"}
        if block.language not in LANGUAGES:
            problems.append(f"{where}: unknown language {block.language}; wanted one of {', '.join(LANGUAGES)}")
        if block.word in known:
            if block.value or (known[block.word] and block.language != known[block.word]):
                problems.append(f"{where}: `{block.word}` belongs to a block of {known[block.word]}")
        elif block.word == "from":
            source = root / block.value
            if not source.is_file():
                problems.append(f"{where}: no such file: {block.value}")
            elif "\n".join(stripped(block.text)) not in "\n".join(stripped(source.read_text())):
                problems.append(f"{where}: these lines are not in {block.value}")
        elif block.word != "file" or not block.value or ".." in block.value or block.value.startswith("/"):
            problems.append(f"{where}: `{block.word}` is unknown; wanted run, shows, file=NAME or from=PATH")
    return problems


def missing_line(wanted: str, output: str) -> str | None:
    """The first wanted line that is not in the output behind the ones before it."""
    rest = [" ".join(line.split()) for line in output.splitlines()]
    for line in wanted.splitlines():
        plain = " ".join(line.split())
        pattern = re.compile(".*".join(re.escape(part) for part in plain.split("...")))
        at = next((i for i, got in enumerate(rest) if pattern.search(got)), None)
        if at is None:
            return line
        rest = rest[at + 1 :]
    return None


def run(command: str, folder: Path, env: dict[str, str]) -> tuple[int, str]:
    """Exit code and output; what it started ends with it."""
    process = subprocess.Popen(
        ["sh", "-eu", "-c", command],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return 124, output + f"\nstopped after {TIMEOUT_S} s"
    return process.returncode, output


def run_guide(path: str, text: str, folder: Path, env: dict[str, str]) -> tuple[list[str], int]:
    """Problems, and how many commands were run."""
    output, count = "", 0
    for block in blocks(text):
        where = f"{path}:{block.line}"
        if block.word == "file":
            (folder / block.value).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.value).write_text(block.text + "\n")
        elif block.word == "run":
            count += 1
            code, output = run(block.text, folder, env)
            if code != 0:
                return [f"{where}: ended with {code}:\n{output}"], count
        elif block.word == "shows":
            line = missing_line(block.text, output)
            if line is not None:
                return [f"{where}: {line!r} is not in what was printed:\n{output}"], count
    return [], count


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--prefix", type=Path)
    parser.add_argument("--keep", type=Path, help="leave the guides' folders here")
    parser.add_argument("guides", nargs="*")
    options = parser.parse_args(arguments)
    pages = options.guides or [p for p in listed(options.root) if re.fullmatch(r"docs/guides/.*\.md|README\.md", p)]
    problems, count = [], 0
    for page in pages:
        text = (options.root / page).read_text()
        problems += static_problems(options.root, page, text)
        if options.prefix is None:
            continue
        prefix = options.prefix.resolve()
        env = {**os.environ, "PREFIX": str(prefix), "SOURCE": str(options.root.resolve())}
        env["PATH"] = f"{prefix / 'bin'}:{env['PATH']}"
        with tempfile.TemporaryDirectory() as temporary:
            folder = options.keep / Path(page).stem if options.keep else Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            found, ran = run_guide(page, text, folder, env)
        problems += found
        count += ran
        print(f"{page}: {ran} blocks run, {'failed' if found else 'ok'}", flush=True)
    return finish("run_docs", problems, f"{len(pages)} pages, {count} blocks run")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
