"""Device code without a GPU: what ptxas says about each .cu of src/ while it is built."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from results import FAILED, PASSED, SKIPPED, Case
from runner import ROOT, Done, run, step

VERBOSE = "-Xptxas=-v"  # among the flags of the build
# C7504 and C7508: setmaxnreg is ignored, so a warp-specialised kernel would run with the wrong register counts.
IGNORED = re.compile(r"\b(C7504|C7508)\b|setmaxnreg.*ignored")
FUNCTION = re.compile(r"(?:Function properties for|Compiling entry function) '?([\w$]+)")
PROPERTIES = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
EDGE = re.compile(r"^(?:\[\d+/\d+\] Building \w+ object|FAILED:) (\S+)")


# Instances of the GEMM mainloop: 384 threads share 64 K registers, which setmaxnreg then moves between warpgroups.
# CMake writes their units into this folder of the build.
INSTANCES = "instances/"
REGISTERS = "Used 168 registers"
SERIALISED = re.compile(r"\bC75\d\d\b|serializ|warning", re.IGNORECASE)
TILE = re.compile(r"_(\d+)x(\d+)_c\d")
STEPS_OF_K = 4  # in a stage

# The code of a unit, in nvcc's words: PTX for compute_, programs for sm_. Kernels that need Hopper are for it alone.
CODE = {"compute_80", "compute_100", "sm_80", "sm_90a", "sm_100"}
HOPPER_CODE = {"sm_90a"}
HOPPER_FLAG = "-DOVERLACE_HOPPER_UNIT=1"  # what a unit goes by that registers its kernels
HOPPER_FOLDERS = ("src/gemm_core/", "src/ops/fused/", "src/runtime/backend/cuda_peer/hopper/", INSTANCES)
PTX, PROGRAM = 1, 2  # kinds of images in a fatbin
FATBIN = 0xBA55ED50


@dataclasses.dataclass(frozen=True)
class Unit:
    file: str  # below the root, or below the build folder
    output: str  # below the build folder
    command: list[str]


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


def images(data: bytes) -> set[str]:
    """The code in an object (ELF), "sm_90", "compute_80": headers of the images of its sections .nv_fatbin."""
    (table,), (size, count, names_at) = struct.unpack_from("<Q", data, 40), struct.unpack_from("<HHH", data, 58)
    sections = [struct.unpack_from("<IIQQQQ", data, table + i * size) for i in range(count)]
    names = data[sections[names_at][4] :]
    found = set()
    for name, _, _, _, offset, length in sections:
        if not names[name:].startswith(b".nv_fatbin\0"):
            continue
        at, end = offset, offset + length
        while at < end:
            magic, _, header, bytes_of_images = struct.unpack_from("<IHHQ", data, at)
            if magic != FATBIN:
                raise ValueError(f"no fatbin at {at - offset} of .nv_fatbin")
            image, last = at + header, at + header + bytes_of_images
            while image < last:
                kind, _, image_header, image_bytes = struct.unpack_from("<HHIQ", data, image)
                (architecture,) = struct.unpack_from("<I", data, image + 28)
                found.add(f"{'compute' if kind == PTX else 'sm' if kind == PROGRAM else kind}_{architecture}")
                image += image_header + image_bytes
            at = (last + 7) // 8 * 8
    return found


def code_complaints(file: str, arguments: list[str], data: bytes) -> list[str]:
    """Code for other GPUs than those that a unit is for, in its flags (the letter of 90a) or in its object."""
    is_hopper = file.startswith(HOPPER_FOLDERS)
    wanted = HOPPER_CODE if is_hopper else CODE
    asked = set(re.findall(r"(?:sm|compute)_\w+", " ".join(re.findall(r"code=\[([^\]]*)\]", " ".join(arguments)))))
    found = []
    if asked != wanted:
        found.append(f"nvcc is asked for {sorted(asked)}; wanted: {sorted(wanted)}")
    if (HOPPER_FLAG in arguments) != is_hopper:
        found.append(f"{HOPPER_FLAG} is {'missing' if is_hopper else 'there'}; wanted: for Hopper's units alone")
    if (there := images(data)) != {word.removesuffix("a") for word in wanted}:
        found.append(f"the object has {sorted(there)}; wanted: {sorted(wanted)}")
    return found


def outputs(log: str) -> dict[str, str]:
    """What each edge of ninja printed, by the object that it made or failed to make."""
    found: dict[str, str] = {}
    name = ""
    for line in log.splitlines():
        if match := EDGE.match(line):
            name = match[1]
            found[name] = ""
        elif name:
            found[name] += line + "\n"
    return found


def units(folder: Path) -> list[Unit]:
    commands = [
        (Path(c["file"]), shlex.split(c["command"])) for c in json.loads((folder / "compile_commands.json").read_text())
    ]
    found = []
    for file, words in commands:
        for root, below in ((ROOT, ROOT / "src"), (folder, folder / INSTANCES)):
            if file.suffix == ".cu" and file.is_relative_to(below):
                found.append(Unit(str(file.relative_to(root)), words[words.index("-o") + 1], words))
    return found


def instance_complaints(printed: str) -> list[str]:
    """Products that the compiler serialised, and registers other than those that a warpgroup starts with."""
    found = [line.strip() for line in printed.splitlines() if SERIALISED.search(line)]
    if printed.count(REGISTERS) != 1:
        used = re.findall(r"Used \d+ registers", printed)
        found.append(f"{', '.join(used) or 'no registers reported'}; wanted: {REGISTERS}, once")
    return found


def sass_complaints(name: str, sass: str) -> list[str]:
    """An instance wants tensor core products of its tile's width, no local memory, registers moved twice."""
    tile = TILE.search(name)
    if not tile:
        return [f"{name}: no tile in its name"]
    found = []
    products = re.findall(r" HGMMA\.64x(\d+)x16", sass)
    if not products or len(products) % STEPS_OF_K or set(products) != {tile[2]}:
        found.append(f"{len(products)} HGMMA of widths {sorted(set(products))}; wanted: a multiple of 4, {tile[2]}")
    if local := re.findall(r" (?:LDL|STL)\b.*", sass):
        found.append(f"local memory: {local[0].strip()}")
    if (moved := sass.count("USETMAXREG")) != 2:
        found.append(f"{moved} USETMAXREG; wanted: 2")
    return found


def disassembler() -> str | None:
    return shutil.which("cuobjdump") or shutil.which("/usr/local/cuda/bin/cuobjdump")


def complaints_of(unit: Unit, printed: str) -> list[str]:
    """A unit of which ptxas said nothing was not looked at, which must not pass."""
    found = flag_complaints(unit.command)
    if VERBOSE not in unit.command or "ptxas info" not in printed:
        return [*found, f"ptxas did not report:\n{printed[-4000:]}"]
    found += complaints(printed)
    return found + (instance_complaints(printed) if unit.file.startswith(INSTANCES) else [])


def check(folder: Path, build: Callable[[], Done]) -> Iterator[Case]:
    """`build`: makes all that CUDA needs. Objects of device units are removed before, so that it prints what ptxas says
    (ccache says it again); each is compiled once."""
    found = units(folder)
    for unit in found:
        (folder / unit.output).unlink(missing_ok=True)
    built = build()
    yield step("build cuda", built)
    printed = outputs(built.output)
    tool = disassembler()
    if tool is None and any(unit.file.startswith(INSTANCES) for unit in found):
        yield Case("SASS of the GEMM's instances", SKIPPED, "cuobjdump was not found; what ptxas says was looked at")
    for unit in found:
        bad = complaints_of(unit, printed.get(unit.output, ""))
        if tool and unit.file.startswith(INSTANCES):
            bad += sass_complaints(unit.file, run([tool, "-sass", str(folder / unit.output)], 120).output)
        if (folder / unit.output).exists():
            bad += code_complaints(unit.file, unit.command, (folder / unit.output).read_bytes())
        yield Case(f"cubin {unit.file}", FAILED, "\n".join(bad)) if bad else Case(f"cubin {unit.file}", PASSED)
