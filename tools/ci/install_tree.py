"""The install tree: what a user of the library gets, that it is enough, and that it works wherever it lies."""

from __future__ import annotations

import json
import platform
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from results import FAILED, PASSED, SKIPPED, Case
from runner import ROOT, Done, build, run, step

# Namespaces of the inside; none of their functions may be exported.
INTERNAL = re.compile(r"overlace::(base|exec|model|runtime)::")
# One function of each public class: a class that is declared hidden first exports none.
WANTED = (
    "Runtime::open",
    "Runtime::~Runtime",
    "Team::sub",
    "SymmetricHeap::alloc",
    "Region::pod",
    "StripedRange::parts",
    "Timeline::write",
    "TensorView::rows",
    "spec::Expr::eval",
    "spec::Schedule::from_json",
    "plan::Planner::plan",
    "Context::open",
    "ops::run",
    "ops::StripedMatrix::open",
    "put_signal",
    "environment_bootstrap",
)
CONSUMER_CMAKE = """cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES CXX)
find_package(overlace REQUIRED)
add_executable(consumer main.cc)
target_link_libraries(consumer PRIVATE overlace::overlace)
"""
CONSUMER_CC = """#include <cstdio>

{includes}
int main() {{
  try {{
    throw overlace::InvalidArgument(overlace::Errc::invalid_argument, "consumer");
  }} catch (const overlace::Error& error) {{  // the type's identity crosses the shared library
    std::printf("%s %d\\n", overlace::errc_name(error.code()).data(), overlace::exit_code(error.code()));
  }}
  return 0;
}}
"""


def symbol_complaints(listing: str) -> list[str]:
    """Exported symbols (nm -DC --defined-only) that are not part of include/overlace."""
    bad = []
    for line in listing.splitlines():
        name = line.split(maxsplit=2)[-1]
        plain = re.sub(r"^(typeinfo|typeinfo name|vtable|guard variable|VTT) for ", "", name)
        # A template's symbol starts with its result type, so the namespace may come later in the line.
        if INTERNAL.match(plain) or not re.search(r"\boverlace::|^ovl_", plain):
            bad.append(name)
    return bad


C_CONSUMER_CMAKE = """cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES C)
find_package(overlace REQUIRED)
add_executable(consumer main.c)
target_link_libraries(consumer PRIVATE overlace::overlace)
"""
C_CONSUMER = """#include <overlace/capi.h>
#include <stdio.h>

int main(void) {
  ovl_runtime* runtime = NULL;
  ovl_options options = OVL_INIT(ovl_options);
  options.backend = OVL_BACKEND_CPU;
  const int code = ovl_runtime_open(&options, &runtime);
  printf("%s %d %d\\n", ovl_version(), code, ovl_runtime_close(runtime));
  return code;
}
"""
C_FLAGS = ["-std=c11", "-Wall", "-Wextra", "-pedantic", "-Werror"]
SHORT_RUN = ["run", "-n", "2", "--layers", "1", "--tokens", "64", "--sequence-length", "64", "--repeat", "1"]


def studies_inside(listing: str) -> list[str]:
    """Symbols (nm -C) of what stands beside the library: studies, and the models of `overlace run`."""
    return [line for line in listing.splitlines() if re.search(r"\boverlace::(study|model)::", line)]


def missing_symbols(listing: str) -> list[str]:
    return [f"not exported: overlace::{name}" for name in WANTED if f" overlace::{name}(" not in listing]


def install(build_dir: Path, prefix: Path) -> Done:
    """What was built, into an empty folder."""
    shutil.rmtree(prefix, ignore_errors=True)
    return run(["cmake", "--install", str(build_dir), "--prefix", str(prefix)], 120)


def check(build_dir: Path, out: Path) -> Iterator[Case]:
    built = build(build_dir.name)
    if built.rc != 0:
        yield step("build", built)
        return
    shutil.rmtree(out, ignore_errors=True)
    prefix = out / "tree"
    done = install(build_dir, prefix)
    yield step("install", done)
    if done.rc != 0:
        return
    public = sorted(str(p.relative_to(ROOT / "include")) for p in (ROOT / "include").rglob("*") if p.is_file())
    got = sorted(str(p.relative_to(prefix / "include")) for p in (prefix / "include").rglob("*") if p.is_file())
    headers = [p for p in public if p.endswith(".h")]
    same = public == got
    yield Case("headers", PASSED) if same else Case("headers", FAILED, f"wanted {public}, got {got}")
    yield tile_case(build_dir)
    yield soname_case(prefix / "lib" / "liboverlace.so")
    symbols = run(["nm", "-DC", "--defined-only", str(prefix / "lib" / "liboverlace.so")]).output
    bad = symbol_complaints(symbols) + missing_symbols(symbols)
    yield Case("exported symbols", FAILED, "\n".join(bad[:40])) if bad else Case("exported symbols", PASSED)
    inside = studies_inside(run(["nm", "-C", str(prefix / "lib" / "liboverlace.so")]).output)
    yield Case("no studies inside", FAILED, "\n".join(inside[:40])) if inside else Case("no studies inside", PASSED)
    yield from uses(prefix, out, "")
    yield consumer_case(prefix, out / "consumer", headers)
    moved = out / "moved" / "some where"
    moved.parent.mkdir()
    prefix.rename(moved)
    yield from uses(moved, out / "moved", ", moved")
    yield from archive_cases(build_dir, out / "archive")


def uses(prefix: Path, out: Path, suffix: str) -> Iterator[Case]:
    """The command line, and programs in C by find_package and by pkg-config."""
    program = prefix / "bin" / "overlace"
    if program.exists():
        yield run_case(program, prefix, f"installed command line{suffix}")
        yield pages_case(prefix, f"manual page and schemas{suffix}")
    yield c_consumer_case(prefix, out / "c_consumer", f"C consumer by find_package{suffix}")
    yield pkg_config_case(prefix, out / "pkg_config", f"C consumer by pkg-config{suffix}")


def run_case(program: Path, prefix: Path, name: str) -> Case:
    """The main job ends with 0, on the provider that was installed with it."""
    done = run([str(program), *SHORT_RUN, "--json", "-"], 120)
    if done.rc != 0:
        return Case(name, FAILED, done.why())
    gemm = json.loads(done.output)["gemm"]
    has_onednn = (prefix / "lib" / "overlace" / "liboverlace_onednn.so").exists()
    right = gemm.startswith("onednn" if has_onednn else "reference")
    return Case(name, PASSED) if right else Case(name, FAILED, f"multiplies with {gemm}")


def pages_case(prefix: Path, name: str) -> Case:
    """The manual page of the command line, and the schema of each of its results."""
    reference = ROOT / "docs" / "reference"
    wanted = {f"overlace/schemas/{path.name}": path for path in (reference / "schemas").iterdir()}
    wanted["man/man1/overlace.1"] = reference / "overlace.1"
    share = prefix / "share"
    bad = [n for n, p in wanted.items() if not (share / n).exists() or (share / n).read_bytes() != p.read_bytes()]
    return Case(name, FAILED, f"missing or other: {', '.join(bad)}") if bad else Case(name, PASSED)


def c_consumer_case(prefix: Path, folder: Path, name: str) -> Case:
    folder.mkdir(parents=True)
    (folder / "CMakeLists.txt").write_text(C_CONSUMER_CMAKE)
    (folder / "main.c").write_text(C_CONSUMER)
    where = str(folder / "build")
    commands = [
        ["cmake", "-G", "Ninja", "-S", str(folder), "-B", where, f"-DCMAKE_PREFIX_PATH={prefix}"],
        ["cmake", "--build", where],
        [f"{where}/consumer"],
    ]
    return last_prints(name, commands, rf"{version()}\S* 0 0")


def pkg_config_case(prefix: Path, folder: Path, name: str) -> Case:
    if not shutil.which("pkg-config"):
        return Case(name, SKIPPED, "pkg-config was not found")
    folder.mkdir(parents=True)
    (folder / "main.c").write_text(C_CONSUMER)
    program, lib = folder / "consumer", prefix / "lib"
    # By the shell, which undoes how pkg-config quotes spaces.
    compiled = f"eval cc {' '.join(C_FLAGS)} -o '{program}' '{folder}/main.c' $(pkg-config --cflags --libs overlace)"
    env = {"PKG_CONFIG_PATH": str(lib / "pkgconfig"), "LD_LIBRARY_PATH": str(lib)}
    return last_prints(name, [["sh", "-c", compiled], [str(program)]], rf"{version()}\S* 0 0", env)


def last_prints(name: str, commands: list[list[str]], wanted: str, env: dict[str, str] | None = None) -> Case:
    """`wanted` is a pattern."""
    for command in commands:
        done = run(command, 300, env)
        if done.rc != 0:
            return Case(name, FAILED, done.why())
    right = re.search(wanted, done.output)
    return Case(name, PASSED) if right else Case(name, FAILED, f"printed {done.output!r}; wanted {wanted!r}")


def archive_cases(build_dir: Path, out: Path) -> Iterator[Case]:
    """The archive that cpack writes, unpacked somewhere else."""
    done = run(["cpack", "--config", str(build_dir / "CPackConfig.cmake"), "-B", str(out)], 300)
    archives = list(out.glob(f"overlace-{version()}-*.tar.gz"))
    if done.rc != 0 or len(archives) != 1:
        yield Case("archive", FAILED, f"wrote {[p.name for p in archives]}; {done.why()}")
        return
    (out / "unpacked").mkdir()
    done = run(["tar", "-xzf", str(archives[0]), "-C", str(out / "unpacked")], 120)
    if done.rc != 0:
        yield step("archive", done)
        return
    prefix = out / "unpacked" / archives[0].name.removesuffix(".tar.gz")
    yield from uses(prefix, out, ", from the archive")


def version() -> str:
    found = re.search(r"VERSION (\d+\.\d+\.\d+) ", (ROOT / "CMakeLists.txt").read_text())
    return found[1] if found else "?"


def tile_complaints(listing: str) -> list[str]:
    """What g++ made of the reference GEMM's innermost loops (objdump -dC): unrolled, their 12 sums in registers."""
    found = []
    for isa, register in (("avx512", "zmm"), ("avx2", "ymm")):
        name = f"multiply_tile_{isa}<float>"
        match = re.search(rf"<[^\n]*{re.escape(name)}\([^\n]*>:\n(.*?)(?:\n\n|\Z)", listing, re.DOTALL)
        code = match[1] if match else ""
        products = len(re.findall(rf"\bvfmadd\w+ps\b.*%{register}", code))
        spilled = len(re.findall(r"%[xyz]mm\d+.*\(%r[sb]p|\(%r[sb]p.*%[xyz]mm", code))
        if products != 12 or spilled:
            found.append(
                f"{name} has {products} products of registers, wanted 12, and {spilled} on the stack, wanted 0"
            )
    return found


def tile_case(build_dir: Path) -> Case:
    name = "reference GEMM: unrolled"
    if platform.machine() != "x86_64":
        return Case(name, SKIPPED, f"{platform.machine()}: this loop is of x86_64")
    folder = build_dir / "CMakeFiles/overlace_exec.dir"
    units = [*folder.glob("Unity/unity_src_exec_cxx.cxx.o"), *folder.glob("src/exec/gemm_reference.cc.o")]
    if not units:
        return Case(name, FAILED, f"{folder} has no object of it")
    newest = max(units, key=lambda unit: unit.stat().st_mtime)
    complaints = tile_complaints(run(["objdump", "-dC", "--no-show-raw-insn", str(newest)], 60).output)
    return Case(name, FAILED, "; ".join(complaints)) if complaints else Case(name, PASSED)


def soname_case(library: Path) -> Case:
    wanted = f"liboverlace.so.{version().rpartition('.')[0]}"
    shown = run(["readelf", "-d", str(library)], 30).output
    return (
        Case("soname", PASSED) if f"soname: [{wanted}]" in shown else Case("soname", FAILED, f"not {wanted}:\n{shown}")
    )


def consumer_case(prefix: Path, folder: Path, headers: list[str]) -> Case:
    """A stranger's project: all headers, one call, an exception across the library's edge."""
    folder.mkdir(parents=True)
    includes = "".join(f'#include "{h}"\n' for h in headers)
    (folder / "CMakeLists.txt").write_text(CONSUMER_CMAKE)
    (folder / "main.cc").write_text(CONSUMER_CC.format(includes=includes))
    where = str(folder / "build")
    commands = [
        ["cmake", "-G", "Ninja", "-S", str(folder), "-B", where, f"-DCMAKE_PREFIX_PATH={prefix}"],
        ["cmake", "--build", where],
        [f"{where}/consumer"],
    ]
    return last_prints("find_package consumer", commands, "invalid_argument 2")
