"""The wheel of the Python package: built, what is in it, and that it works where it is installed."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import python_env
from results import FAILED, PASSED, SKIPPED, Case
from runner import run, step

# Undefined symbols that would tie the operators to one Python, or to a library of linear algebra.
FOREIGN = re.compile(r"\bU (Py\w+|_Py\w+|cblas_\w+|[sdcz]gemm_\w*|dnnl_\w+)")
MOST_BYTES = 40_000_000
PROGRAM = "import overlace; print(overlace.__version__, overlace.{name} is not None)"


def wheel_cases(builder: Path, torch: Path | None, out: Path) -> Iterator[Case]:
    """Built with and without torch's headers; installed where the other is."""
    name = "wheel with torch" if torch else "wheel without torch"
    shutil.rmtree(out, ignore_errors=True)
    # The flags of the preset `cpu`, so that little is compiled again.
    options = [
        "build-dir=build/wheel",
        "cmake.build-type=RelWithDebInfo",
        "cmake.define.CMAKE_CXX_FLAGS_RELWITHDEBINFO=-O2 -g1 -DNDEBUG",
        "install.strip=true",
        "cmake.define.OVERLACE_CUDA=OFF",
        f"cmake.define.OVERLACE_TORCH={'ON' if torch else 'OFF'}",
        f"cmake.define.OVERLACE_TORCH_DIR={torch or ''}",
        f"cmake.define.CMAKE_CXX_COMPILER={shutil.which('c++')}",
        f"cmake.define.CMAKE_C_COMPILER={shutil.which('cc')}",
    ]
    words = [str(builder), "-m", "pip", "wheel", ".", "--quiet", "--no-build-isolation", "--no-deps", "-w", str(out)]
    built = run([*words, *(x for option in options for x in ("-C", option))], 1200)
    yield step(f"{name}: build", built)
    if built.rc != 0:
        return
    wheels = list(out.glob("*.whl"))
    right = len(wheels) == 1 and re.fullmatch(r"overlace-[\d.]+-py3-none-\w+\.whl", wheels[0].name)
    names = ", ".join(w.name for w in wheels)
    yield Case(f"{name}: tag", PASSED) if right else Case(f"{name}: tag", FAILED, f"{names}; wanted ...-py3-none-...")
    if right:
        yield size_case(name, wheels[0].stat().st_size)
        yield from installed_cases(name, wheels[0], torch, out / "installed")


def size_case(name: str, num_bytes: int) -> Case:
    """PyPI takes 100 MB; what comes in 40 is no burden beside torch."""
    if num_bytes <= MOST_BYTES:
        return Case(f"{name}: size", PASSED)
    return Case(f"{name}: size", FAILED, f"{num_bytes / 1e6:.1f} MB, wanted at most {MOST_BYTES / 1e6:.0f} MB")


def installed_cases(name: str, wheel: Path, torch: Path | None, folder: Path) -> Iterator[Case]:
    made = run([sys.executable, "-m", "venv", str(folder)], 300)
    if made.rc == 0:
        made = run([str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--no-index", str(wheel)], 300)
    yield step(f"{name}: install", made)
    if made.rc != 0:
        return
    package = next(folder.glob("lib/python*/site-packages/overlace"))
    operators = package / "lib" / "liboverlace_torch.so"
    if operators.exists() != (torch is not None):
        yield Case(f"{name}: operators", FAILED, f"{operators} is {'there' if operators.exists() else 'not there'}")
        return
    if torch is not None:
        foreign = FOREIGN.findall(run(["nm", "-u", str(operators)], 60).output)
        yield Case(f"{name}: symbols", FAILED, ", ".join(foreign)) if foreign else Case(f"{name}: symbols", PASSED)
    python = folder / "bin" / "python"
    env = {"CUDA_VISIBLE_DEVICES": ""}
    if torch is not None:  # that of another environment, found behind the own packages
        env["PYTHONPATH"] = str(torch.parent)
        yield step(f"{name}: import", run([str(python), "-c", PROGRAM.format(name="ops")], 120, env, cwd=folder))
    else:
        yield step(f"{name}: import", run([str(python), "-c", PROGRAM.format(name="Error")], 60, env, cwd=folder))
        refused = run([str(python), "-c", PROGRAM.format(name="ops")], 60, env, cwd=folder)
        said = "overlace was built without torch" in refused.output and refused.rc == 1
        yield Case(f"{name}: says why", PASSED) if said else Case(f"{name}: says why", FAILED, refused.why())
    yield step(f"{name}: command line", run([str(folder / "bin" / "overlace"), "--version"], 60, cwd=folder))


def check(out: Path) -> Iterator[Case]:
    try:
        builder = python_env.environment("wheel", ["wheel.txt"])
    except python_env.Unavailable as why:
        yield Case("wheel", SKIPPED, str(why))
        return
    yield from wheel_cases(builder, None, out / "without")
    try:
        python = python_env.environment("test", ["test.txt"])
    except python_env.Unavailable as why:
        yield Case("wheel with torch", SKIPPED, str(why))
        return
    torch = next(python.parent.parent.glob("lib/python*/site-packages/torch"))
    yield from wheel_cases(builder, torch, out / "with")
