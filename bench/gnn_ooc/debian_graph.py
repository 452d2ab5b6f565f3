"""The distribution's own package list as a graph: packages, their dependencies, sections as labels, words as features.

usage: debian_graph.py OUT [--lists DIR] [--dim N]

Writes x.npy, edge_index.npy, y.npy, train.npy, valid.npy and test.npy into OUT: `overlace gnn import OUT --out DIR`
reads them.
Status 77, with the reason, where there is no package list.
"""

from __future__ import annotations

import argparse
import math
import re
import struct
import subprocess
import sys
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path

APT_HELPER = Path("/usr/lib/apt/apt-helper")
SKIPPED = 77
SPLITS = {"train": range(6), "valid": range(6, 8), "test": range(8, 10)}  # tenths of the packages


def list_texts(folder: Path) -> Iterator[str]:
    """The package lists of a folder, whatever they are compressed with."""
    for path in sorted(folder.glob("*_Packages*")):
        command = ["cat", path] if path.suffix not in (".lz4", ".gz", ".xz") else [APT_HELPER, "cat-file", path]
        yield subprocess.run(command, check=True, capture_output=True).stdout.decode("utf-8", "replace")


def packages(texts: Iterator[str]) -> dict[str, dict[str, str]]:
    """Name -> fields, of the first stanza of each name, in the order of names."""
    found: dict[str, dict[str, str]] = {}
    for text in texts:
        for stanza in text.split("\n\n"):
            fields = dict(re.findall(r"(?m)^(Package|Depends|Section|Description): (.*)$", stanza))
            if "Package" in fields:
                found.setdefault(fields["Package"], fields)
    return dict(sorted(found.items()))


def dependencies(field: str) -> list[str]:
    """Names in `a (>= 1), b | c:any`, alternatives too, each once."""
    names = (re.split(r"[\s:(]", part.strip(), maxsplit=1)[0] for part in re.split(r"[,|]", field))
    return list(dict.fromkeys(name for name in names if name))


def features(text: str, dim: int) -> list[float]:
    """Counts of hashed words, of length one."""
    counts = [0.0] * dim
    for word in re.findall(r"[a-z0-9]+", text.lower()):
        counts[zlib.crc32(word.encode()) % dim] += 1
    length = math.sqrt(sum(c * c for c in counts)) or 1.0
    return [c / length for c in counts]


def write_npy(path: Path, descr: str, shape: tuple[int, ...], values: array) -> None:
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (-(10 + len(header) + 1) % 64) + "\n"
    if sys.byteorder == "big":
        values.byteswap()
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + values.tobytes())


def write_graph(found: dict[str, dict[str, str]], out: Path, dim: int) -> dict[str, int]:
    """Numbers of packages, dependencies and sections."""
    number = {name: i for i, name in enumerate(found)}
    sections = sorted({f.get("Section", "").rpartition("/")[2] for f in found.values()})
    label = {section: i for i, section in enumerate(sections)}
    sources, targets, rows = array("q"), array("q"), array("f")
    labels = array("q", (label[f.get("Section", "").rpartition("/")[2]] for f in found.values()))
    for name, fields in found.items():
        for wanted in dependencies(fields.get("Depends", "")):
            if wanted in number and wanted != name:
                sources.append(number[name])
                targets.append(number[wanted])
        rows.extend(features(fields.get("Description", ""), dim))
    out.mkdir(parents=True, exist_ok=True)
    write_npy(out / "x.npy", "<f4", (len(found), dim), rows)
    write_npy(out / "edge_index.npy", "<i8", (2, len(sources)), sources + targets)
    write_npy(out / "y.npy", "<i8", (len(found),), labels)
    for split, tenths in SPLITS.items():
        ids = array("q", (i for name, i in number.items() if zlib.crc32(name.encode()) % 10 in tenths))
        write_npy(out / f"{split}.npy", "<i8", (len(ids),), ids)
    return {"packages": len(found), "dependencies": len(sources), "sections": len(sections)}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--lists", type=Path, default=Path("/var/lib/apt/lists"))
    parser.add_argument("--dim", type=int, default=128)
    options = parser.parse_args(arguments)
    if options.dim < 1:
        parser.error(f"--dim is {options.dim}, wanted at least 1")
    try:
        found = packages(list_texts(options.lists))
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"debian_graph: skipped: {error}", file=sys.stderr)
        return SKIPPED
    if not found:
        print(f"debian_graph: skipped: no package list in {options.lists}", file=sys.stderr)
        return SKIPPED
    print(" ".join(f"{n} {what}" for what, n in write_graph(found, options.out, options.dim).items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
