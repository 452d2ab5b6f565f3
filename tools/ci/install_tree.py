"""The install tree: what a user of the library gets, and that it is enough."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from results import FAILED, PASSED, Case
from runner import ROOT, build, run, step

# Namespaces of the inside; none of their functions may be exported.
INTERNAL = re.compile(r"overlace::(base|exec|model|runtime)::")
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


def check(build_dir: Path, out: Path) -> Iterator[Case]:
    built = build(build_dir.name)
    if built.rc != 0:
        yield step("build", built)
        return
    shutil.rmtree(out, ignore_errors=True)
    prefix = out / "tree"
    done = run(["cmake", "--install", str(build_dir), "--prefix", str(prefix)], 120)
    yield step("install", done)
    if done.rc != 0:
        return
    wanted = sorted(str(p.relative_to(ROOT / "include")) for p in (ROOT / "include").rglob("*.h"))
    got = sorted(str(p.relative_to(prefix / "include")) for p in (prefix / "include").rglob("*"))
    got = [p for p in got if p.endswith(".h")]
    same = wanted == got
    yield Case("headers", PASSED) if same else Case("headers", FAILED, f"wanted {wanted}, got {got}")
    yield soname_case(prefix / "lib" / "liboverlace.so")
    bad = symbol_complaints(run(["nm", "-DC", "--defined-only", str(prefix / "lib" / "liboverlace.so")]).output)
    yield Case("exported symbols", FAILED, "\n".join(bad[:40])) if bad else Case("exported symbols", PASSED)
    if (prefix / "bin" / "overlace").exists():
        yield step("installed command line", run([str(prefix / "bin" / "overlace"), "--help"], 30))
    yield consumer_case(prefix, out / "consumer", wanted)


def soname_case(library: Path) -> Case:
    version = re.search(r"VERSION (\d+\.\d+)\.\d+ ", (ROOT / "CMakeLists.txt").read_text())
    wanted = f"liboverlace.so.{version[1] if version else '?'}"
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
    for command in (
        ["cmake", "-G", "Ninja", "-S", str(folder), "-B", where, f"-DCMAKE_PREFIX_PATH={prefix}"],
        ["cmake", "--build", where],
        [f"{where}/consumer"],
    ):
        done = run(command, 300)
        if done.rc != 0:
            return Case("find_package consumer", FAILED, done.why())
    wanted = "invalid_argument 2"
    if wanted not in done.output:
        return Case("find_package consumer", FAILED, f"printed {done.output!r}; wanted {wanted!r}")
    return Case("find_package consumer", PASSED)
