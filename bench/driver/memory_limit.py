"""Runs a command in a memory cgroup of its own, version 1 or 2; pages that the kernel caches for it count, too."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
LIMITS = ("memory.max", "memory.limit_in_bytes")  # of version 2 and 1
PEAKS = ("memory.peak", "memory.max_usage_in_bytes")
EMPTIED_WITHIN_S = 10


class Unavailable(Exception):
    """No cgroup can be made here; the text says why."""


def parents(membership: str, root: Path = ROOT) -> list[Path]:
    """Folders in which this process may make a group, by /proc/self/cgroup: of version 1 with memory, of version 2."""
    out = []
    for line in membership.splitlines():
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            out.append(root / "memory" / path.lstrip("/"))
        elif number == "0" and not controllers:
            out += [root / path.lstrip("/"), root / "unified" / path.lstrip("/")]
    return out


@dataclass
class Limit:
    """A group that is there."""

    folder: Path
    limit_bytes: int

    def run(self, words: list[str], timeout_s: float) -> subprocess.CompletedProcess:
        """The command and all that it starts, inside."""
        enter = ["/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.folder / "cgroup.procs")]
        return subprocess.run([*enter, *words], capture_output=True, text=True, timeout=timeout_s, check=False)

    def peak_bytes(self) -> int | None:
        """The most that was in use, where this kernel tells."""
        peak = next((self.folder / name for name in PEAKS if (self.folder / name).exists()), None)
        return None if peak is None else int(peak.read_text())


def _make(parent: Path, limit_bytes: int) -> Limit:
    folder = parent / f"overlace_{os.getpid()}_{time.monotonic_ns()}"
    folder.mkdir()
    try:
        file = next((folder / name for name in LIMITS if (folder / name).exists()), None)
        if file is None:
            raise OSError(f"{folder} has neither {' nor '.join(LIMITS)}")
        file.write_text(str(limit_bytes))
        swap = folder / "memory.swap.max"
        if swap.exists():
            swap.write_text("0")
        if int(file.read_text()) > limit_bytes:
            raise OSError(f"{file} is {file.read_text().strip()}, wanted {limit_bytes}")
    except OSError:
        folder.rmdir()
        raise
    return Limit(folder, limit_bytes)


@contextlib.contextmanager
def limited(limit_bytes: int) -> Iterator[Limit]:
    """A group of so many bytes below that of this process; removed at the end. Unavailable where none can be made."""
    whys = []
    made = None
    for parent in parents(Path("/proc/self/cgroup").read_text()):
        try:
            made = _make(parent, limit_bytes)
            break
        except OSError as why:
            whys.append(str(why))
    if made is None:
        raise Unavailable("; ".join(whys) or "this process is in no cgroup with memory")
    try:
        yield made
    finally:
        deadline = time.monotonic() + EMPTIED_WITHIN_S
        while True:
            try:
                made.folder.rmdir()
                break
            except OSError:  # its processes are still ending
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
