"""Who may include whom (docs/design/layers.md), where CUDA and third-party headers and getenv may be, no multicast.

usage: check_layers.py [--root DIR] [--no-compile] [--objects BUILD_DIR]
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from files import CPP, ROOT, finish, listed, read, without_comments

# Layer -> what it may include besides itself.
MAY = {
    "base": set(),
    "spec": {"base"},
    "plan": {"base", "spec"},
    "sim": {"base", "spec"},
    "io": {"base"},
    "device": set(),
    "runtime": {"base", "spec"},
    "exec": {"base", "spec", "runtime"},
    "gemm_core": {"base", "spec"},
    "ops": {"base", "spec", "gemm_core", "runtime", "exec"},
    "model": {"base", "spec", "io", "runtime", "exec", "ops", "offload"},
    "train": {"base", "spec", "runtime", "exec", "ops"},
    "gnn": {"base", "spec", "io", "runtime"},
    "context": {"base", "spec", "plan", "runtime"},
    "tuning": {"base", "spec", "plan", "sim", "runtime", "exec", "ops", "context"},
    "offload": {"base", "io"},
    "study": {"base", "spec", "sim"},
}
# Static libraries beside the library: the command line, benches and tests alone see them.
BESIDE = {"study", "model"}
EVERYTHING = set(MAY)
MAY |= {"capi": EVERYTHING - BESIDE, "cli": EVERYTHING | {"capi"}, "bench": EVERYTHING | {"capi"}}
# Single headers of a layer that another one may include though it may not include the layer: pure functions.
SHARED = {("study", "src/train/co2/timing.h")}
# Tests across layers see everything; tests/unit/<dir> obeys the row of <dir> (see layer_of).
MAY |= {"tests": EVERYTHING | {"capi", "cli", "bench"}, "examples": set(), "python": set()}

# A public header has the layer of what implements it. include/overlace/ops/*: ops.
PUBLIC = {
    "dtype_pod.h": "base",
    "errc_pod.h": "base",
    "handle_pod.h": "base",
    "error.h": "base",
    "tensor.h": "base",
    "machine.h": "spec",
    "schedule.h": "spec",
    "operator.h": "spec",
    "cost_model.h": "spec",
    "plan.h": "plan",
    "sim.h": "sim",
    "bootstrap.h": "runtime",
    "channel.h": "runtime",
    "context.h": "context",
    "net_engine.h": "runtime",
    "runtime.h": "runtime",
    "signal.h": "runtime",
    "stream.h": "runtime",
    "symmetric.h": "runtime",
    "team.h": "runtime",
    "timeline.h": "exec",
    "tune.h": "tuning",
    "async_collective.h": "runtime",
    "co2.h": "train",
    "gnn.h": "gnn",
    "offload.h": "offload",
    "capi.h": "capi",
    "capi_co2.h": "capi",
    "capi_gnn.h": "capi",
    "capi_moe.h": "capi",
    "capi_offload.h": "capi",
    "capi_striped.h": "capi",
    "capi_tune.h": "capi",
    "capi_words.h": "capi",
}
# Who touches the environment: one reads it, the launcher hands it on to its children.
ENVIRONMENT = ("src/base/env.cc", "src/runtime/bootstrap/launcher.cc")
# Folders of src/ops that any operator may use.
OPS_SHARED = ("fused", "reduce", "common", "call")

# Third-party header -> the only places that may include it. Nothing else with a third-party header is known.
THIRD_PARTY = [
    (r"fmt/", r"(src/base|cli)/.*\.cc"),
    (r"nlohmann/", r"src/base/json\.cc"),
    (r"CLI/", r"cli/(main|\w+/options)\.cc"),
    (r"(gtest|gmock)/", r"tests/.*\.(cc|h|cu)"),
    (r"benchmark/", r"bench/.*\.cc"),
    (r"(oneapi/dnnl/)?dnnl\w*\.h(pp)?", r"src/exec/onednn/.*\.cc"),
    (r"mpi\.h", r"src/runtime/engine/mpi/.*"),
    (r"nccl\w*\.h", r"src/runtime/engine/nccl/.*|tests/gpu/.*|tests/ranks/nccl/.*"),
    (r"cublas\w*\.h", r"src/exec/cuda/.*|bench/gemm_core/library\.cc|tests/gpu/.*"),
    (r"cudnn\w*\.h", r"src/model/cuda/.*|tests/gpu/.*"),
    (r"(cutlass|cute)/", r"bench/.*/cutlass\w*\.cu"),
    (r"liburing\.h", r"src/io/.*"),
    (r"nvtx3/", r"src/base/nvtx\.cc|tests/support/nvtx_recorder\.cc"),
    (r"(torch|ATen|c10)/", r"python/csrc/.*"),
]
CUDA_HEADER = re.compile(r"(cuda|cooperative_groups|nvrtc|cupti|curand|driver_types|vector_types|mma\.h|nv/)")
CUDA_PLACES = re.compile(
    r"(src|include/overlace)/device/.*|src/.*/cuda/.*|src/runtime/backend/cuda_peer/.*|src/runtime/engine/nccl/.*|"
    r"(src|bench|tests|examples)/.*\.cuh?|cli/calibrate/.*\.cu|tests/gpu/.*|tests/ranks/nccl/.*"
)
POSIX = re.compile(
    r"(sys|linux|netinet|arpa|asm|net)/\w+\.h|(unistd|fcntl|dlfcn|pthread|sched|signal|poll|errno|spawn|time|limits|"
    r"immintrin|x86intrin|cpuid|semaphore|termios|netdb|ifaddrs|link|elf|dirent|malloc|execinfo|glob|getopt|stdlib|"
    r"string|stdio|math|stdint|grp|pwd|libgen|ucontext|setjmp|ftw|fenv)\.h"
)
MULTICAST = re.compile(r"\bcuMulticast\w*|\bmultimem\b|\bCU_DEVICE_ATTRIBUTE_MULTICAST\w*|\bCUmulticast\w*")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def layer_of(path: str) -> str | None:
    """The layer of a file, None where no rule holds."""
    parts = path.split("/")
    if parts[:2] == ["include", "overlace"]:
        return parts[2] if parts[2] in ("device", "ops") else PUBLIC.get(parts[2])
    if parts[0] == "src" and len(parts) > 2:
        return parts[1]
    if parts[:2] == ["tests", "unit"] and len(parts) > 3:
        return parts[2] if parts[2] in MAY else "tests"
    return parts[0] if parts[0] in MAY else None


def operator_of(path: str) -> str | None:
    """The operator a file belongs to: src/ops/<op>/..., include/overlace/ops/<op>.h."""
    match = re.match(r"(?:src/ops|tests/unit/ops)/(\w+)/|include/overlace/ops/(\w+)\.h", path)
    return (match[1] or match[2]) if match else None


def quoted_problem(path: str, target: str) -> str | None:
    layer = layer_of(path)
    if target.startswith("overlace/"):
        target_path = "include/" + target
    elif re.match(r"(src|cli|bench|tests|python/csrc)/", target):
        target_path = target
    elif path.startswith("examples/") and "/" not in target:
        return None  # a header beside it: examples are a project of their own, which has no root
    else:
        return f'"{target}" must be spelled from the root ("src/..." or "overlace/...")'
    if path.startswith("python/csrc/") and target.startswith("python/csrc/"):
        return None
    if path.startswith(("include/", "examples/", "python/")) and not target.startswith("overlace/"):
        return f'"{target}": only include/overlace may be used here'
    wanted = layer_of(target_path)
    if wanted is None:
        return f'"{target}" has no layer; add it to PUBLIC in tools/check_layers.py'
    if layer in (None, "examples", "python"):
        return None
    is_pod = target.endswith("_pod.h")
    if layer == "device" and wanted != "device":
        return (
            None
            if is_pod and wanted in ("base", "spec")
            else f'device code sees *_pod.h of base and spec, not "{target}"'
        )
    if wanted == "device":
        return None if CUDA_PLACES.fullmatch(path) else f'"{target}": device headers are for CUDA folders'
    if wanted != layer and wanted not in MAY.get(layer or "", set()) and (layer, target) not in SHARED:
        return f'{layer} must not include {wanted} ("{target}")'
    if layer == "ops" and wanted == "ops":
        own, other = operator_of(path), operator_of(target_path)
        if own and other and own != other and other not in OPS_SHARED and own != "common":
            return f'operator {own} must not include operator {other} ("{target}")'
    return None


def angle_problem(path: str, target: str) -> str | None:
    if CUDA_HEADER.match(target) and not re.match(r"(cute|cutlass)/", target):
        return None if CUDA_PLACES.fullmatch(path) else f"<{target}>: CUDA headers only in CUDA folders"
    for header, places in THIRD_PARTY:
        if re.match(header, target):
            if not re.fullmatch(places, path):
                return f"<{target}> may be included by {places} only"
            # Some third-party headers do not compile in nvcc at C++20; vendor headers of CUDA do.
            vendor = re.match(r"nccl|cublas|cudnn|cutlass|cute", target)
            if path.endswith((".cu", ".cuh", "_pod.h")) and not vendor and not path.startswith("tests/gpu/"):
                return f"<{target}>: no third-party header in .cu, .cuh, *_pod.h"
            return None
    if re.fullmatch(r"\w+", target):
        return None
    if re.fullmatch(r"include/overlace/capi(_\w+)?\.h", path) and target in (
        "stddef.h",
        "stdint.h",
    ):  # C has no <cstdint>
        return None
    if not POSIX.fullmatch(target):
        return f"<{target}> is not known; add it to tools/check_layers.py and docs/reference/toolchain.md"
    return (
        "a public header includes the standard library and its own kind only" if path.startswith("include/") else None
    )


def check_file(path: str, text: str) -> list[str]:
    """All problems of one file, as `path:line: text`."""
    problems = []
    code = without_comments(text)
    for number, line in enumerate(code.splitlines(), 1):
        if match := INCLUDE.match(line):
            problem = (quoted_problem if match[1] == '"' else angle_problem)(path, match[2])
            if problem:
                problems.append(f"{path}:{number}: {problem}")
        reads_env = re.search(r"\b(secure_)?getenv\b|\benviron\b", line)
        if reads_env and path not in ENVIRONMENT and not path.startswith("tests/"):
            problems.append(f"{path}:{number}: the environment is read in src/base/env.cc only")
        if match := MULTICAST.search(line):
            problems.append(f"{path}:{number}: multicast symbol {match[0]}")
        if re.search(r"\busing (overlace::)?base::format\b", line):
            problems.append(f"{path}:{number}: base::format is always qualified: C++20 has a std::format")
    if path.endswith((".h", ".cuh")) and "#pragma once" not in text:
        problems.append(f"{path}:1: #pragma once is missing")
    return problems


def check_sources(root: Path) -> tuple[list[str], int]:
    paths = [p for p in listed(root) if p.endswith(CPP)]
    return [problem for p in paths for problem in check_file(p, read(root, p))], len(paths)


def check_headers_alone(root: Path) -> list[str]:
    """Compiles each public header alone, with include/ as the only folder."""
    headers = [p for p in listed(root) if p.startswith("include/") and p.endswith(".h")]
    flags = ["-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-Iinclude", "-x", "c++", "-"]

    def compile_one(header: str) -> list[str]:
        unit = f'#include "{header.removeprefix("include/")}"\n'
        done = subprocess.run(["c++", *flags], cwd=root, input=unit, capture_output=True, text=True, check=False)
        return [] if done.returncode == 0 else [f"{header}:1: does not compile alone:\n{done.stderr[:2000]}"]

    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return [problem for problems in pool.map(compile_one, headers) for problem in problems]


def check_objects(folder: Path) -> list[str]:
    """Our own objects must not contain a multicast symbol, not even as the text of a symbol to look up."""
    objects = list(folder.rglob("*.o"))
    if not objects:
        return [f"{folder}: no objects found"]
    bad = re.compile(rb"cuMulticast|multimem\.")
    return [f"{o}: multicast symbol {m[0].decode()}" for o in objects if (m := bad.search(o.read_bytes()))]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--objects", type=Path)
    options = parser.parse_args(arguments)
    if options.objects:
        return finish("check_layers", check_objects(options.objects), f"objects of {options.objects}")
    problems, n = check_sources(options.root)
    if not options.no_compile:
        problems += check_headers_alone(options.root)
    return finish("check_layers", problems, f"{n} files")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
