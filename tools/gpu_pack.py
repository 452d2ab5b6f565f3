"""GPU programs in one small archive, for a machine that cannot build them (tools/gpu_check.py --pack, --binaries)."""

from __future__ import annotations

import lzma
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

PACKAGES = "python"
# Programs share most of their kernels: a window that sees several of them makes one megabyte of sixteen.
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 3, "dict_size": 128 << 20}]


def is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def stripped(source: Path, to: Path) -> None:
    """A copy without symbols of debuggers, where there is `strip`."""
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, to)
    if is_elf(to) and shutil.which("strip"):
        subprocess.run(["strip", "--strip-debug", str(to)], check=False, capture_output=True)


def pack(programs: list[Path], packages: Path, out: Path) -> list[str]:
    """Writes the archive; the names in it."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for program in programs:
            stripped(program, place / program.name)
        # Folders of the package may be links into the sources: rglob() would not enter them.
        for part, _, files in os.walk(packages, followlinks=True):
            for source in (Path(part) / name for name in files):
                if "__pycache__" not in source.parts:
                    stripped(source, place / PACKAGES / source.relative_to(packages))
        names = sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())
        with lzma.open(out, "wb", filters=FILTERS) as file, tarfile.open(fileobj=file, mode="w") as archive:
            for name in names:
                archive.add(place / name, arcname=name)
    return names


def unpack(archive: Path, folder: Path) -> Path:
    """Into a folder that holds nothing else; returns it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tarfile.open(archive) as file:
        for member in file.getmembers():
            if not member.isfile() or member.name.startswith("/") or ".." in Path(member.name).parts:
                raise SystemExit(f"gpu_check: {archive.name} holds {member.name}; wanted plain files below it")
            file.extract(member, folder)
    return folder
