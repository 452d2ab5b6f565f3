"""Processor time and memory of one command, whatever else the machine does meanwhile."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

# A process of its own, so that the maximum of the memory is the one of this command.
MEASURE = """import resource, subprocess, sys
rc = subprocess.run(sys.argv[2:], stdin=subprocess.DEVNULL).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
open(sys.argv[1], "w").write(f"{used.ru_utime + used.ru_stime} {used.ru_maxrss / 1024}")
sys.exit(rc if rc >= 0 else 128 - rc)
"""


@dataclasses.dataclass(frozen=True)
class Measured:
    rc: int
    output: str
    seconds: float  # user and system
    mib: float


def measure(command: list[str], folder: Path, scratch: Path, timeout_s: float = 300) -> Measured:
    """Runs the command in `folder`; `scratch` is a folder for the result."""
    result = scratch / "measured"
    result.unlink(missing_ok=True)
    whole = [sys.executable, "-c", MEASURE, str(result), *command]
    done = subprocess.run(
        whole, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s, check=False
    )
    seconds, mib = result.read_text().split() if result.exists() else (0.0, 0.0)
    return Measured(done.returncode, done.stdout, float(seconds), float(mib))


# A unit of the standard library alone, and what it takes where the budgets of compile times were set.
YARDSTICK = """#include <functional>
#include <map>
#include <regex>
#include <string>
int count(const std::string& text) {
  std::map<std::string, std::function<bool()>> known;
  return static_cast<int>(std::regex_match(text, std::regex("a*b"))) + static_cast<int>(known.size());
}
"""
YARDSTICK_SECONDS = 4.0


def slowness(scratch: Path) -> float:
    """How much longer than there a compilation takes now, at least 1: processors differ, and share their cores."""
    source = scratch / "yardstick.cc"
    source.write_text(YARDSTICK)
    words = ["g++", "-std=c++20", "-O2", "-g", "-c", str(source), "-o", "/dev/null"]
    return max(1.0, measure(words, scratch, scratch).seconds / YARDSTICK_SECONDS)
