"""Writes the generated parts of docs/reference, or (--check) fails where they differ from what would be written.

A part lies between `<!-- generated: NAME -->` and `<!-- end -->`:
    cli.md            the help of the program and of its own subcommands (--program; else the part is left alone)
    schedule-json.md  keys, forms and words, from src/spec/read_json.cc and src/spec/names.h
    operators.md      arguments and families of the operators, as liboverlace.so beside the program states them

usage: gen_reference.py [--root DIR] [--program build/overlace] [--check]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from files import ROOT, finish


def help_of(program: Path, *words: str) -> str:
    done = subprocess.run(
        [str(program), *words, "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    text = "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())
    return text.replace(str(program), "overlace")


def subcommands(text: str) -> list[str]:
    _, _, listing = text.partition("Subcommands:\n")
    return re.findall(r"(?m)^  (\w+)", listing)


def cli_part(program: Path) -> str:
    """Help texts, depth first."""
    parts = []

    def add(words: list[str]) -> None:
        text = help_of(program, *words)
        if text.startswith("usage: "):  # argparse words it by its own version; `overlace bench` has a guide
            return
        parts.append(f"```text\n$ overlace {' '.join([*words, '--help'])}\n{text}\n```")
        for name in subcommands(text):
            add([*words, name])

    add([])
    return "\n\n".join(parts)


def words_of(text: str, name: str) -> list[str]:
    match = re.search(name + r"\s*(?:=\s*)?\{([^}]*)\}", text)
    if not match:
        raise ValueError(f"src/spec/names.h: no {name}")
    return re.findall(r'"(\w+)"', match[1])


def schedule_part(root: Path) -> str:
    reader = (root / "src/spec/read_json.cc").read_text()
    names = (root / "src/spec/names.h").read_text()
    lines = ["| value | form |", "|---|---|"]
    objects = re.findall(r"\.object\(\{([^}]*)\},\s*\{([^}]*)\}\)", reader)
    for known, required in objects:
        keys, must = re.findall(r'"(\w+)"', known), re.findall(r'"(\w+)"', required)
        if len(keys) < 3:
            continue
        title = "the schedule" if "overlace_schedule" in keys else "a task"
        shown = ", ".join(f"`{k}`" + (" (needed)" if k in must else "") for k in keys)
        lines.append(f"| {title} | an object with {shown} |")
    for function, form in re.findall(r'(\w+)_of\(const Place& place\) \{\s*place\.array\(\d+, \d+, "(.*)"\);', reader):
        form = form.replace('\\"', '"')
        lines.append(f"| a {function} | `{form}` |")
    lines += ["", "| where | words |", "|---|---|"]
    tables = [
        ("space of a buffer", "kSpaceNames"),
        ("scope of a signal", "kScopeNames"),
        ("`kind`", "kKindNames"),
        ("`engine`", "kEngineNames"),
        ("`combine`", "kCombineNames"),
        ("`wait_by`", "kWaitByNames"),
    ]
    for title, name in tables:
        lines.append(f"| {title} | {', '.join(f'`{w}`' for w in words_of(names, name))} |")
    return "\n".join(lines)


def operators_part(library: Path) -> str:
    """Of each operator what ovl_operators_json says."""
    text = ctypes.c_char_p()
    if ctypes.CDLL(str(library)).ovl_operators_json(ctypes.byref(text)) != 0 or text.value is None:
        raise ValueError(f"{library}: no operators")
    parts = []
    for op in json.loads(text.value):
        lines = [f"## {op['name']}", "", op["summary"] + ".", "", "| argument | | shape | |", "|---|---|---|---|"]
        for a in op["args"]:
            kind = "optional" if a["role"] in ("bias", "gathered") else a["role"]
            layout = "; stored either way round" if a["has_layout"] else ""
            shape = f"({', '.join(a['shape'])})"
            if "shape_of_cols" in a:
                shape += f"; cols: ({', '.join(a['shape_of_cols'])})"
            lines.append(f"| `{a['name']}` | {kind} | {shape} | {a['doc']}{layout} |")
        families = [
            f"`{f['name']}`" + (" q" if f["has_degree"] else "") for f in op["families"] if f["purpose"] == "plan"
        ]
        bounds = [f"`{f['name']}`" for f in op["families"] if f["purpose"] != "plan"]
        lines += ["", f"Ranks need not agree on {op['local']}. Families (q: with a degree): {', '.join(families)}."]
        lines += [f"Bounds, which give no result: {', '.join(bounds)}."]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def with_parts(text: str, parts: dict[str, str]) -> str:
    for name, part in parts.items():
        begin, end = f"<!-- generated: {name} -->\n", "\n<!-- end -->"
        head, mark, rest = text.partition(begin)
        _, closing, tail = rest.partition(end)
        if not mark or not closing:
            raise ValueError(f"no part {name}")
        text = head + begin + part + closing + tail
    return text


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--program", type=Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    pages = {"schedule-json.md": {"schedule": schedule_part(options.root)}}
    if options.program:
        pages["cli.md"] = {"help": cli_part(options.program)}
        pages["operators.md"] = {"operators": operators_part(options.program.resolve().parent / "liboverlace.so")}
    problems = []
    for page, parts in pages.items():
        path = options.root / "docs" / "reference" / page
        old = path.read_text()
        new = with_parts(old, parts)
        if old == new:
            continue
        if options.check:
            problems.append(
                f"docs/reference/{page}: is not current; run tools/gen_reference.py --program build/overlace"
            )
        else:
            path.write_text(new)
            print(f"wrote docs/reference/{page}")
    return finish("gen_reference", problems, f"{len(pages)} pages")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
