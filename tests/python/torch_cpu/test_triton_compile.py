"""overlace.triton without a GPU: what its functions, and the examples' kernels, become for Hopper."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
from ranks import overlace, torch

triton = pytest.importorskip("triton", reason="triton is not installed")
if triton.knobs.runtime.interpret:
    pytest.skip("TRITON_INTERPRET is set: nothing is compiled", allow_module_level=True)
import overlace.triton as ot  # noqa: E402
import triton.language as tl  # noqa: E402
from overlace.triton import _layout  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "python" / "examples" / "triton"


def compiled(kernel, signature, constants=None):
    """PTX for an H200, of which ptxas has put nothing into local memory."""
    constants = constants or {}
    kinds = {name: signature.get(name, "constexpr") for name in kernel.arg_names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(kinds.values()) if kind.startswith("*")}
    source = ASTSource(kernel, kinds, constants, aligned)
    out = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    ptx = out.asm["ptx"]
    assert ".local" not in ptx and ".target sm_90a" in ptx
    words = [triton.knobs.nvidia.ptxas.path, "-v", "--gpu-name=sm_90a", "-o", "/dev/null", "-"]
    done = subprocess.run(words, input=ptx, capture_output=True, text=True, check=True)
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in done.stderr, done.stderr
    return ptx


def count(pattern, ptx):
    return len(re.findall(pattern, ptx))


RELEASE_ADD = r"(?:atom|red)\.global\.sys\.release\.add\.u64"
RELAXED_ADD = r"(?:atom|red)\.global\.sys\.relaxed\.add\.u64"
ACQUIRE_LOAD = r"ld\.acquire\.sys\.global\.b64"
FENCE = r"fence\.acq_rel\.sys"
POINTERS = {"x": "*fp32", "h": "*i64"}


@triton.jit
def who(x, h):
    tl.store(x, ot.rank(h) * 8 + ot.size(h))


@triton.jit
def pointer(x, h):
    tl.store(ot.peer_ptr(x, h, 1), 1.0)


@triton.jit
def tile(x, h):
    i = tl.arange(0, 1024)
    ot.put_tile(x + i, tl.load(x + 1024 + i), i < 1000, h, 1)


@triton.jit
def rows(x, h):
    ot.put_rows(x, x + 8192, tl.num_programs(0), 1000, 1024, 1024, h, 1, BLOCK=1024)


@triton.jit
def add(x, h):
    tl.store(x + tl.arange(0, 128), 1.0)
    ot.signal_add(h, 1, 0, 2)


@triton.jit
def add_all(x, h):
    tl.store(x + tl.arange(0, 128), 1.0)
    ot.signal_add_all(h, 0, 1)


@triton.jit
def wait(x, h):
    if ot.wait_ge(h, 1, 0, 1):
        i = tl.arange(0, 128)
        tl.store(x + i, tl.load(x + 128 + i))


@triton.jit
def wait_for_all(x, h):
    if ot.wait_all(h, 0, 1):
        i = tl.arange(0, 128)
        tl.store(x + i, tl.load(x + 128 + i))


@triton.jit
def count_off(x, h):
    ot.consume(h, 1, 0, 1)
    ot.consume_all(h, 1, 2)


@triton.jit
def meet(x, h):
    if ot.barrier(h):
        tl.store(x, 1.0)


@triton.jit
def order(x, h):
    tl.store(x + tl.arange(0, 128), 1.0)
    ot.fence()
    tl.store(x, 2.0)


@triton.jit
def turn(x, h):
    owner, number = ot.tile_order(tl.program_id(0), 8, h, "woven")
    tl.store(x + owner * 8 + number, 1.0)


@triton.jit
def last(x, h):
    before = ot.epoch(h, 4)
    if ot.last_arriver(h, 4):
        tl.store(x, before)


WANTED = {
    who: {},
    pointer: {},
    tile: {r"st\.global\.v4\.b32": 2},
    rows: {r"st\.global\.v4\.b32": 2},
    add: {RELEASE_ADD: 1, r"bar\.sync": 1},
    add_all: {RELAXED_ADD: 1, FENCE: 1, RELEASE_ADD: 0},
    wait: {ACQUIRE_LOAD: 2, r"barrier\.cta\.red\.or\.pred": 2, r"st\.release\.sys\.global\.b32": 2, "%globaltimer": 2},
    wait_for_all: {ACQUIRE_LOAD: 2},
    count_off: {RELEASE_ADD: 0},
    meet: {RELEASE_ADD: 1, ACQUIRE_LOAD: 2},
    order: {FENCE: 1},
    turn: {},
    last: {r"atom\.global\.gpu\.acq_rel\.add\.u64": 1, r"ld\.volatile\.global": 1},
}


@pytest.mark.parametrize("kernel", WANTED, ids=lambda kernel: kernel.__name__)
def test_instructions_of_a_function(kernel):
    ptx = compiled(kernel, POINTERS)
    for pattern, times in WANTED[kernel].items():
        assert count(pattern, ptx) == times, f"{pattern}\n{ptx}"


def test_a_signal_comes_behind_the_stores_of_the_program():
    ptx = compiled(add, POINTERS)
    assert ptx.index("st.global") < ptx.index("bar.sync") < re.search(RELEASE_ADD, ptx).start()
    ptx = compiled(add_all, POINTERS)
    assert ptx.index("st.global") < ptx.index("bar.sync") < re.search(FENCE, ptx).start()
    assert re.search(FENCE, ptx).start() < re.search(RELAXED_ADD, ptx).start()
    ptx = compiled(wait, POINTERS)
    loaded = re.search(r"ld\.global(?:\.v\d)?\.b32", ptx[ptx.rindex("barrier.cta.red") :])
    assert loaded  # behind the last barrier, though it was written far from the poll


def test_every_function_is_looked_at():
    functions = set(ot.__all__) - {"launch"}
    used = " ".join(Path(__file__).read_text().split())
    assert [name for name in functions if f"ot.{name}(" not in used] == []


@pytest.mark.parametrize("name", sorted(set(ot.__all__) - {"launch"}))
def test_a_function_says_what_its_twin_is_and_what_it_orders(name):
    text = getattr(ot, name).__doc__
    assert "Twin:" in text.split() and re.search(r"Orders|Acquire|Release", text), text


MATMUL = {"m": "i32", "n": "i32", "k": "i32", "arrivals": "*i64", "h": "*i64"}
BF16 = dict.fromkeys(("a", "b", "out", "x", "w", "y"), "*bf16")
ROW = {"x": "*fp32", "y": "*fp32", "box": "*fp32", "h": "*i64", "n": "i32"}
KERNELS = {
    "put_and_signal": ("pass_on", ROW, {"BLOCK": 1024}),
    "one_shot_all_reduce": ("all_reduce", ROW | {"arrivals": "*i64"}, {"BLOCK": 256}),
    "gemv_all_reduce": ("matmul_sum", BF16 | MATMUL | {"box": "*fp32"}, {}),
    "matmul_all_to_all": ("matmul_rows", BF16 | MATMUL, {"ORDER": "woven"}),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_of_the_examples(name, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    module = importlib.import_module(name)
    function, signature, constants = KERNELS[name]
    kernel = getattr(module, function)
    constants = constants | getattr(module, "TILE", {})
    ptx = compiled(kernel, {n: signature[n] for n in kernel.arg_names if n not in constants}, constants)
    assert count(rf"{RELEASE_ADD}|{RELAXED_ADD}", ptx) >= 1 and count(ACQUIRE_LOAD, ptx) >= 2
    assert ("wgmma" in ptx or "mma.sync" in ptx) == (name in ("gemv_all_reduce", "matmul_all_to_all"))


def test_all_kernels_of_the_examples_are_compiled():
    assert sorted(KERNELS) == sorted(path.stem for path in EXAMPLES.glob("*.py"))


def test_more_programs_than_run_at_once_are_refused(monkeypatch):
    """Two programs on each of three SMs, as a driver would say; what is asked of the kernel is there."""
    from overlace.triton import _launch

    def occupancy(count, function, threads, shared):
        assert function.value == 77 and threads == 128 and shared.value == kernel.metadata.shared
        count._obj.value = 2
        return 0

    source = ASTSource(who, POINTERS, {}, {})
    kernel = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    monkeypatch.setattr(kernel, "_init_handles", lambda: setattr(kernel, "function", 77))
    driver = types.SimpleNamespace(cuOccupancyMaxActiveBlocksPerMultiprocessor=occupancy)
    monkeypatch.setattr(_launch, "_driver", lambda: driver)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: types.SimpleNamespace(multi_processor_count=3))
    _launch._check_co_resident(kernel, (3, 2), torch.device("cuda", 0))
    text = r"the grid \(7,\) of who has 7 programs, wanted at most 6, which run at once: 2 on each of 3 SMs"
    with pytest.raises(overlace.Unsupported, match=text) as caught:
        _launch._check_co_resident(kernel, (7,), torch.device("cuda", 0))
    assert caught.value.code == "co_residency"


def test_words_and_records_lie_where_the_headers_say(tmp_path):
    """What kernels know of enum ovl_word and TimeoutRecord, told to a compiler that reads the headers."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    values = {name: value.value for name, value in vars(_layout).items() if isinstance(value, tl.constexpr)}
    fields = {name: value for name, value in values.items() if name.startswith("RECORD_")}
    words = set(values) - set(fields) - {"MAGIC", "KIND_SIGNAL", "ALIGNMENT"}
    lines = [f"static_assert(OVL_WORD_{name} == {values[name]});" for name in sorted(words)]
    lines += [
        f"static_assert(offsetof(overlace::TimeoutRecord, {name.removeprefix('RECORD_').lower()}) == {value});"
        for name, value in fields.items()
    ]
    lines.append(f"static_assert(overlace::TimeoutRecord::kMagic == {values['MAGIC']});")
    lines.append(f"static_assert(int(overlace::WaitKind::signal) == {values['KIND_SIGNAL']});")
    lines.append(f"static_assert(OVL_WORD_BASES == {overlace._symmetric._WORDS});")
    source = tmp_path / "layout.cc"
    headers = ["<cstddef>", '"overlace/capi_words.h"', '"overlace/handle_pod.h"']
    source.write_text("\n".join([*(f"#include {header}" for header in headers), *lines]))
    done = subprocess.run(
        [compiler, "-std=c++20", "-fsyntax-only", f"-I{ROOT / 'include'}", str(source)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_without_triton_the_import_says_so():
    script = (
        "import importlib.util, sys\n"
        "found = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *more: None if name == 'triton' else found(name, *more)\n"
        "import overlace\n"
        "try:\n"
        "    overlace.triton\n"
        "except overlace.Unsupported as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    wanted = "overlace.triton: triton is not installed; wanted 3.6 or newer, which torch brings along\n"
    assert done.stdout == wanted
