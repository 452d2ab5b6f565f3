"""Names that are local to a file of src, cli or tests/unit, where files are compiled as one (OVERLACE_UNITY).

What one file has in an unnamed namespace, or static, the files behind it see, too. So a local name belongs to one file
of its folder, of tests/unit to one of its program; and it is not that of a header's declaration which a neighbour
means: it would get the local one, without a word of the compiler.

usage: check_names.py [--root DIR]
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from files import ROOT, finish, listed, read, without_comments

JOINED, HEADERS = ("src/", "cli/", "tests/unit/"), ("src/", "cli/", "include/", "tests/")
# Not joined (cmake/overlace_module.cmake): CUDA folders, shared objects of their own, tables of options.
APART = re.compile(r"/(cuda|cuda_peer|nccl|onednn)/|/engine/mpi/plugin\.cc$|^cli/main\.cc$|/options\.cc$")


@dataclasses.dataclass(frozen=True)
class Declared:
    """A name at the level of a namespace. `text`: of an alias or a using declaration, which may be repeated."""

    namespace: str
    name: str
    is_local: bool
    line: int
    text: str = ""


def names_of(statement: str) -> list[str]:
    """What a declaration declares, up to its body or semicolon. Members, operators, specialisations and what macros
    (TEST) write are nobody's."""
    text = re.sub(r"\[\[[^\]]*\]\]|\balignas\s*\([^)]*\)", " ", statement)
    while (shorter := re.sub(r"<[^<>()]*>", " ", text)) != text:
        text = shorter
    text = re.sub(r"^\s*template\b", " ", text).strip()
    if not text or re.match(r"(namespace|friend|static_assert|extern\s*$|return)\b", text) or "operator" in text:
        return []
    if re.match(r"[A-Z][A-Z0-9_]+\s*\(", text):
        return []
    if match := re.match(r"using\s+(?!namespace)(\w+)\s*=", text):
        return [match[1]]
    if match := re.match(r"(?:struct|class|union|enum(?:\s+(?:class|struct))?)\s+([\w:]+)", text):
        return [] if "::" in match[1] else [match[1]]
    if text.startswith(("using", "typedef")):
        return []
    before = re.split(r"=(?!=)", text, maxsplit=1)[0]
    if match := re.search(r"([\w:~]+)\s*\(", before):
        return [] if "::" in match[1] or "~" in match[1] else [match[1]]
    flat = re.sub(r"\([^()]*\)|\{[^{}]*\}", " ", text)
    found = re.findall(r"(\w+)\s*(?:\[[^\]]*\]\s*)*(?=[=,{]|$)", re.sub(r"=[^,]*", "=", flat))
    return [name for name in found if not name.isdigit()]


def declarations(text: str) -> list[Declared]:
    """All of one file at the level of namespaces, enumerators among them."""
    code = without_comments(text, keep_strings=False)
    code = re.sub(r"(?m)^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: re.sub(r"[^\n]", " ", m[0]), code)
    found: list[Declared] = []
    scopes: list[str | None] = []  # names of namespaces, "" without one; None: a body
    start, enum_start, line, statement_line = 0, None, 1, 1

    def add(statement: str) -> None:
        path = "::".join(s for s in scopes if s)
        is_local = "" in scopes or bool(re.match(r"\s*(template\s*<.*>\s*)?static\b", statement, re.DOTALL))
        alias = " ".join(statement.split()) if re.match(r"\s*using\b", statement) else ""
        for name in names_of(statement):
            found.append(Declared(path, name, is_local, statement_line, alias))

    for i, c in enumerate(code):
        if not code[start:i].strip():
            statement_line = line
        line += c == "\n"
        is_open = all(s is not None for s in scopes)
        if c == "{":
            head = code[start:i]
            if match := re.match(r"\s*(?:inline\s+)?namespace\s*([\w:]*)\s*$", head) if is_open else None:
                scopes.append(match[1])
                start = i + 1
                continue
            if is_open:
                add(head)
                enum_start = i + 1 if re.match(r"\s*enum\s+(?!class|struct)\w*[\s:\w]*$", head) else None
            scopes.append(None)
        elif c == "}" and scopes:
            scopes.pop()
            if all(s is not None for s in scopes):
                if enum_start is not None:
                    for entry in code[enum_start:i].split(","):
                        if match := re.match(r"\s*(\w+)", entry):
                            path = "::".join(s for s in scopes if s)
                            found.append(Declared(path, match[1], "" in scopes, line))
                    enum_start = None
                start = i + 1
        elif c == ";" and is_open:
            add(code[start:i])
            start = i + 1
    return found


def is_within(namespace: str, outer: str) -> bool:
    return outer != "" and (namespace + "::").startswith(outer + "::")


def joined(path: str) -> str:
    """The files that may be of one unit: those of a folder; in tests/unit of a program, with the folders below."""
    parts = path.split("/")
    return "/".join(parts[:3] if path.startswith("tests/unit/") else parts[:-1])


def check(root: Path) -> tuple[list[str], int]:
    paths = listed(root)
    in_headers: dict[str, list[tuple[str, str]]] = collections.defaultdict(list)  # name -> namespaces and headers
    for path in paths:
        if path.startswith(HEADERS) and path.endswith(".h"):
            for d in declarations(read(root, path)):
                in_headers[d.name].append((d.namespace, path))
    folders: dict[str, dict[str, list[Declared]]] = collections.defaultdict(dict)
    words: dict[str, set[str]] = {}
    for path in paths:
        if path.startswith(JOINED) and path.endswith(".cc") and not APART.search(path):
            text = read(root, path)
            folders[joined(path)][path] = [d for d in declarations(text) if d.is_local]
            words[path] = set(re.findall(r"(?<![.\w>])\w+", without_comments(text, keep_strings=False)))
    problems = []
    for files in folders.values():
        first: dict[str, tuple[str, Declared]] = {}
        for path, found in files.items():
            for d in found:
                other, twin = first.setdefault(d.name, (path, d))
                if other != path and not (d.text and d.text == twin.text):
                    problems.append(f"{path}:{d.line}: {d.name} is local to {other}, too")
                for namespace, header in in_headers[d.name]:
                    means = [p for p in files if p != path and d.name in words[p]]
                    if means and is_within(d.namespace, namespace):
                        problems.append(f"{path}:{d.line}: {d.name} hides that of {header} from {means[0]}")
    return sorted(set(problems)), len(words)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT)
    problems, n = check(parser.parse_args(arguments).root)
    return finish("check_names", problems, f"{n} files")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
