"""Parts of a document that a tool writes, between `<!-- generated: NAME -->` and `<!-- end of NAME -->`."""

from __future__ import annotations

import re

BLOCK = re.compile(r"(?s)<!-- generated: (?P<name>[\w ]+) -->\n(?P<text>.*?)<!-- end of (?P=name) -->\n")


def found(text: str) -> dict[str, str]:
    """Name -> what is between the marks."""
    return {m["name"]: m["text"] for m in BLOCK.finditer(text)}


def replaced(text: str, contents: dict[str, str]) -> str:
    """With other contents; ValueError names a block that is not there or that nobody writes."""
    missing = set(contents) ^ set(found(text))
    if missing:
        raise ValueError(f"generated blocks that are on one side only: {', '.join(sorted(missing))}")

    def whole(match: re.Match[str]) -> str:
        name = match["name"]
        return f"<!-- generated: {name} -->\n{contents[name].strip()}\n<!-- end of {name} -->\n"

    return BLOCK.sub(whole, text)


def outside(text: str) -> str:
    """The text with its blocks blanked; line numbers stay."""
    return BLOCK.sub(lambda m: "\n" * m[0].count("\n"), text)
