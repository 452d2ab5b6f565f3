"""Device code without a GPU: compiles each .cu of src/ alone to a cubin and reads what ptxas says about it."""

from __future__ import annotations

import json
import re
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path

from measure import measure, slowness
from results import FAILED, PASSED, Case
from runner import ROOT

SECONDS = 4 * 1.2  # budget of a device unit, with the tolerance of tools/check_budgets.py
# C7504 and C7508: setmaxnreg is ignored, so a warp-specialised kernel would run with the wrong register counts.
IGNORED = re.compile(r"\b(C7504|C7508)\b|setmaxnreg.*ignored")
FUNCTION = re.compile(r"(?:Function properties for|Compiling entry function) '?([\w$]+)")
PROPERTIES = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


def complaints(output: str) -> list[str]:
    """What in the output of `ptxas -v` must not be: stack frames, spills, ignored register settings."""
    found, function = [], "?"
    for line in output.splitlines():
        if match := FUNCTION.search(line):
            function = match[1]
        if (match := PROPERTIES.search(line)) and any(int(n) for n in match.groups()):
            found.append(f"{function}: {match[0]}")
        if IGNORED.search(line):
            found.append(line.strip())
    return found


def flag_complaints(arguments: list[str]) -> list[str]:
    """Traps in the flags: the language standard goes missing, relocatable code, a plain sm_90 pass beside sm_90a."""
    found, text = [], " ".join(arguments)
    if "-std=c++20" not in arguments:
        found.append("-std=c++20 is missing")
    if re.search(r"-rdc(=|\s+)true|\s-dc\s|--relocatable-device-code", text):
        found.append("relocatable device code")
    if re.search(r"-arch[= ]sm_90a", text):
        found.append("-arch=sm_90a also builds a plain sm_90 pass: use -gencode arch=compute_90a,code=sm_90a")
    return found


def cubin_command(arguments: list[str], out: Path) -> list[str]:
    """The build's own command, but to a cubin, verbose, and not from a cache."""
    if Path(arguments[0]).name == "ccache":
        arguments = arguments[1:]
    kept, skip_next = [], False
    for a in arguments:
        if skip_next or a in ("-c", "-MD", "-x", "cu"):
            skip_next = False
            continue
        if a in ("-MT", "-MF", "-o"):
            skip_next = True
            continue
        kept.append(a)
    return [*kept, "-cubin", "-Xptxas", "-v", "-o", str(out)]


def check(folder: Path) -> Iterator[Case]:
    commands = json.loads((folder / "compile_commands.json").read_text())
    units = [c for c in commands if c["file"].endswith(".cu") and Path(c["file"]).is_relative_to(ROOT / "src")]
    with tempfile.TemporaryDirectory() as scratch:
        for unit in units:
            name = str(Path(unit["file"]).relative_to(ROOT))
            arguments = shlex.split(unit["command"])
            command = cubin_command(arguments, Path(scratch) / "unit.cubin")
            done = measure(command, Path(unit["directory"]), Path(scratch))
            bad = flag_complaints(arguments) + complaints(done.output)
            if done.rc != 0:
                bad.append(f"exit code {done.rc}\n{done.output[-4000:]}")
            elif done.seconds > SECONDS and done.seconds > SECONDS * slowness(Path(scratch)):
                bad.append(f"{done.seconds:.1f} s of processor time to compile; budget: {SECONDS:.1f} s")
            yield Case(f"cubin {name}", FAILED, "\n".join(bad)) if bad else Case(f"cubin {name}", PASSED)
