"""Operators in profilers: ranges of NVTX, which a stand-in for one writes down, and names in torch.profiler."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import overlace, run_ranks, torch

RECORDER = Path(os.environ["OVERLACE_LIB"]).parent / "tests/nvtx_recorder.so"

BODY = """
import contextlib, sys
import torch, torch.distributed as dist, overlace
rank, store, how = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
overlace.init()
x, w, group = torch.ones(4, 6), torch.ones(6, 5), dist.group.WORLD
overlace.ops.gemm_rs(x, w, group=group, plan="library")
with overlace.nvtx(how == "on") if how != "environment" else contextlib.nullcontext():
    overlace.ops.ag_gemm(x, w, group=group, plan="hetero_unfused_1d:2")
    if how == "on":
        overlace.ops.all_gather(x, group=group)
        with overlace.nvtx(False):
            overlace.ops.gemm_ar(x, w, group=group)
        w1, w2 = torch.ones(2, 6, 6), torch.ones(2, 6, 3)
        idx = torch.zeros(4, 1, dtype=torch.int32)
        overlace.ops.moe(x, idx, torch.ones(4, 1), w1, w2, num_experts=4)
overlace.ops.gemm_rs(x, w, group=group, plan="library")
"""


def recorded(folder, how, **variables):
    """Ranges of each rank in order: (depth, category, name)."""
    processes = []
    for rank in range(2):
        env = {**os.environ, "OMP_NUM_THREADS": "1", "NVTX_INJECTION64_PATH": str(RECORDER), **variables}
        env["NVTX_RECORDER_FILE"] = str(folder / f"{rank}.txt")
        command = [sys.executable, "-c", BODY, str(rank), str(folder / "store"), how]
        processes.append(subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True))
    errors = [process.communicate(timeout=100)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    return [ranges(folder / f"{rank}.txt") for rank in range(2)]


def ranges(path):
    found, depth = [], 0
    for line in path.read_text().splitlines() if path.exists() else []:
        what, domain, *rest = line.split(" ", 3)
        if domain != "overlace":
            continue
        if what == "push":
            found.append((depth, *rest))
        depth += 1 if what == "push" else -1
        assert depth >= 0, line
    assert depth == 0
    return found


needs_header = pytest.mark.skipif(not RECORDER.exists(), reason="built without nvtx3/nvToolsExt.h")


@needs_header
def test_ranges_of_operators_have_those_of_their_tasks_inside(tmp_path):
    for found in recorded(tmp_path, "on"):
        outer = [name for depth, category, name in found if depth == 0]
        assert outer == ["ag_gemm hetero_unfused_1d", "all_gather", "moe"]
        assert all((category == "operator") == (depth == 0) for depth, category, _ in found)
        first = found[1 : [name for *_, name in found].index("all_gather")]
        assert {category for _, category, _ in first} == {"gemm", "copy"}
        gemms = [name for _, category, name in first if category == "gemm"]
        assert len(gemms) == len(set(gemms)) >= 2, gemms  # a range per piece, called as in a timeline
        inside = [name for depth, _, name in found if depth == 1]
        assert "experts" in inside and "exchange" in inside and "meet" in inside


@needs_header
def test_the_environment_makes_ranges_of_all_operators_and_nobody_does_by_default(tmp_path):
    folders = [tmp_path / name for name in ("on", "off", "never")]
    for folder in folders:
        folder.mkdir()
    for found in recorded(folders[0], "environment", OVERLACE_NVTX="1"):
        outer = [name.split(" ")[0] for depth, _, name in found if depth == 0]
        assert outer == ["gemm_rs", "ag_gemm", "gemm_rs"]
    for found in recorded(folders[1], "off", OVERLACE_NVTX="1"):  # the argument goes before the variable
        assert [name.split(" ")[0] for depth, _, name in found if depth == 0] == ["gemm_rs", "gemm_rs"]
    assert recorded(folders[2], "environment") == [[], []]


def test_what_nvtx_takes():
    with pytest.raises(overlace.InvalidArgument, match=r"overlace\.nvtx: enabled is 1, wanted True or False"):
        overlace.nvtx(1)
    if not RECORDER.exists():
        with pytest.raises(overlace.Unsupported, match=r"built without nvtx3/nvToolsExt\.h"):
            overlace.nvtx()


def profiled(group):
    from torch.profiler import ProfilerActivity, profile

    x = torch.ones(4, 6, requires_grad=True)
    w = torch.ones(6, 6, requires_grad=True)
    tables = [torch.ones(3, 2, requires_grad=True)]
    w1, w2 = torch.ones(1, 6, 6, requires_grad=True), torch.ones(1, 6, 3, requires_grad=True)
    idx, weights = torch.zeros(4, 1, dtype=torch.int32), torch.ones(4, 1, requires_grad=True)
    n = group.size()
    placement = {
        "tables": [{"rows": 3, "dim": 2}] * n,
        "features": [{"table": r, "rank": r, "column": 2 * r} for r in range(n)],
    }
    bags = torch.zeros(2 * n, dtype=torch.int64)
    kinds = {
        "ag_gemm": lambda: overlace.ops.ag_gemm(x, w, group=group),
        "gemm_rs": lambda: overlace.ops.gemm_rs(x.repeat(n, 1), w, group=group),
        "gemm_ar": lambda: overlace.ops.gemm_ar(x, w, group=group),
        "gemm_a2a": lambda: overlace.ops.gemm_a2a(x.repeat(n, 1), w, group=group),
        "a2a_gemm": lambda: overlace.ops.a2a_gemm(x.repeat(n, 1), w, group=group),
        "all_gather": lambda: overlace.ops.all_gather(x, group=group),
        "all_to_all": lambda: overlace.ops.all_to_all(x.repeat(n, 1), group=group),
        "reduce_scatter": lambda: overlace.ops.reduce_scatter(x.repeat(n, 1), group=group),
        "all_reduce": lambda: overlace.ops.all_reduce(x, group=group),
        "embedding_a2a": lambda: overlace.ops.embedding_a2a(
            tables, bags, lengths=torch.ones(2 * n, dtype=torch.int64), batch=2 * n, placement=placement, group=group
        ),
        "moe": lambda: overlace.ops.moe(x, idx, weights, w1, w2, num_experts=n, group=group),
        "moe_router": lambda: overlace.ops.moe_router(x, w, top_k=1)[1],
    }
    names = {}
    for kind, make in kinds.items():
        with profile(activities=[ProfilerActivity.CPU]) as forward:
            out = make()
        with profile(activities=[ProfilerActivity.CPU]) as backward:
            out.sum().backward()
        names[kind] = [sorted({event.key for event in p.key_averages()}) for p in (forward, backward)]
    return names


def test_operators_and_their_gradients_have_names_in_torch_profiler():
    inside = {
        "ag_gemm": {"gemm_rs"},
        "gemm_rs": {"ag_gemm"},
        "gemm_a2a": {"a2a_gemm"},
        "a2a_gemm": {"gemm_a2a"},
        "all_gather": {"reduce_scatter"},
        "reduce_scatter": {"all_gather"},
        "all_to_all": {"all_to_all"},
        "embedding_a2a": {"all_to_all", "embedding_a2a_backward"},
        "moe": {"moe_grad"},
    }
    for names in run_ranks(2, profiled):
        for kind, (forward, backward) in names.items():
            assert f"overlace::{kind}" in forward, (kind, forward)
            assert f"GeneratedBackwardFor_overlace_{kind}_defaultBackward" in backward, (kind, backward)
            found = {name.removeprefix("overlace::") for name in backward if name.startswith("overlace::")}
            assert found == inside.get(kind, set()), kind


def profiled_by_name(group):
    from torch.profiler import ProfilerActivity, profile

    tensors = {"a": torch.ones(4, 6), "b": torch.ones(6, 5), "out": torch.empty(4, 5)}
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        overlace.call("gemm_ar", tensors, group=group)
    return [event.key for event in profiler.key_averages() if event.key.startswith("overlace::")]


def test_an_operator_that_is_called_by_name_has_one_too():
    assert run_ranks(2, profiled_by_name) == [["overlace::gemm_ar"]] * 2
