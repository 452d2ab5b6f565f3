"""Main program of a script that writes a page in docs from records; with `--check` it fails where they differ."""

from __future__ import annotations

import sys
from pathlib import Path


def main(page: Path, wanted: str) -> int:
    if "--check" not in sys.argv[1:]:
        page.write_text(wanted)
    elif page.read_text() != wanted:
        print(f"{page} is not what the records say: run bench/driver/{Path(sys.argv[0]).name}", file=sys.stderr)
        return 1
    return 0
