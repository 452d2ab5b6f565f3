"""`overlace.trace` and OVERLACE_TRACE: what ran when, on all ranks, in a file."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import overlace, run_ranks, torch


def spans(path):
    return [event for event in json.loads(Path(path).read_text())["traceEvents"] if event["ph"] == "X"]


def traced(group, path):
    x, w = torch.ones(4, 6) + group.rank(), torch.ones(6, 5)
    overlace.ops.ag_gemm(x, w, group=group)  # not in it
    with overlace.trace(path, group=group, label="first") as trace:
        overlace.ops.ag_gemm(x, w, group=group)
        trace.label("second")
        overlace.ops.gemm_rs(x.repeat(group.size(), 1), w, group=group)
        try:
            with overlace.trace(path, group=group):
                pass
        except overlace.InvalidArgument as error:
            nested = str(error)
        trace.label("")
    overlace.ops.ag_gemm(x, w, group=group)  # nor this
    return nested


def test_spans_of_all_ranks_and_of_the_block_alone(tmp_path):
    path = str(tmp_path / "block.json")
    nested = run_ranks(3, traced, path)
    assert all("has a timeline, which overlace.trace has begun; wanted none" in text for text in nested)
    for rank in range(3):
        names = [s["name"] for s in spans(path) if s["pid"] == rank + 1]
        assert any(name.startswith("first ") for name in names), names
        assert any(name.startswith("second ") for name in names), names
        assert all(name.startswith(("first ", "second ")) for name in names), names


def refusals(group, folder):
    texts = []
    for path in (f"{folder}/x.txt", 3, b"x.json"):
        with pytest.raises(overlace.InvalidArgument) as caught, overlace.trace(path, group=group):
            pass
        texts.append(str(caught.value))
    with pytest.raises(ZeroDivisionError), overlace.trace(f"{folder}/never.json", group=group):
        overlace.ops.ag_gemm(torch.ones(4, 6), torch.ones(6, 5), group=group)
        1 / 0  # noqa: B018
    with (
        pytest.raises(overlace.InvalidArgument, match="label is 3"),
        overlace.trace(f"{folder}/never.json", group=group, label=3),
    ):
        pass
    with overlace.trace(f"{folder}/after.json", group=group):
        overlace.ops.ag_gemm(torch.ones(4, 6), torch.ones(6, 5), group=group)
    return texts


def test_bad_names_are_refused_and_a_block_that_raises_writes_nothing(tmp_path):
    for texts in run_ranks(2, refusals, str(tmp_path)):
        assert texts[0].endswith("x.txt', wanted a name that ends in .json, .pftrace, .perfetto-trace")
        assert texts[1].startswith("overlace.trace: path is 3, wanted a name")
        assert texts[2].startswith("overlace.trace: path is b'x.json', wanted a name")
    assert not (tmp_path / "never.json").exists()
    assert spans(tmp_path / "after.json")


BODY = """
import sys
import torch, torch.distributed as dist, overlace
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=int(sys.argv[1]), world_size=2)
overlace.init()
overlace.ops.ag_gemm(torch.ones(4, 6), torch.ones(6, 5), group=dist.group.WORLD)
try:
    with overlace.trace("other.json"):
        pass
except overlace.InvalidArgument as error:
    assert "OVERLACE_TRACE=" in str(error), error
else:
    raise AssertionError("two timelines at a time")
"""


@pytest.mark.parametrize("ending", ["json", "txt"])
def test_the_environment_asks_for_the_whole_life_of_a_team(tmp_path, ending):
    path = tmp_path / f"life.{ending}"
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OVERLACE_TRACE": str(path)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", BODY, str(rank), str(tmp_path / "store")], env=env, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    errors = [process.communicate(timeout=100)[1] for process in processes]
    if ending == "json":
        assert [process.returncode for process in processes] == [0, 0], errors
        assert {s["pid"] for s in spans(path)} == {1, 2}  # of rank 0 and 1
    else:
        assert all("overlace.init: OVERLACE_TRACE is" in text for text in errors), errors
