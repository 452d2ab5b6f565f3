"""From arrays to training under a memory limit that the kernel enforces: everything is larger than the memory.

OVERLACE_TEST_LARGE=1: 2^22 vertices, 2.1 GB of features, under 1.5 GiB; minutes, weekly. Else a twin of 2^16 vertices.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from overlace import gnn

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench/driver")]
import memory_limit  # noqa: E402

MIB = 1 << 20


@dataclass(frozen=True)
class Size:
    vertices: int
    batch_size: int
    limit: int  # of the group
    memory: str  # --memory of each step
    cpu_cache: str
    timeout_s: float  # of a step


TWIN = Size(2**16, 256, 48 * MIB, "16MiB", "4MiB", 60)
LARGE = Size(2**22, 1024, 1536 * MIB, "1GiB", "256MiB", 420)
IS_LARGE = os.environ.get("OVERLACE_TEST_LARGE") == "1"
LOAD = """
import sys, zlib
sys.modules["torch"] = None  # NumPy is enough, and small
from overlace import gnn
with gnn.PackedLoader(sys.argv[1], format="numpy", copy=False) as loader:
    sums = {batch.number: zlib.crc32(batch.x.tobytes()) for batch in loader}
    stats = loader.stats()
print(len(sums), stats["bytes_read"], sum(sums.values()))
"""


@pytest.fixture
def limit() -> memory_limit.Limit:
    try:
        with memory_limit.limited((LARGE if IS_LARGE else TWIN).limit) as made:
            yield made
    except memory_limit.Unavailable as why:
        pytest.skip(f"no memory cgroup: {why}")


def arrays_of(dataset: gnn.Dataset, folder: Path) -> None:
    """What `import` reads: the dataset's own rows and labels, its edges one by one."""
    folder.mkdir()
    (folder / "x.npy").symlink_to(dataset.path / "features.npy")
    (folder / "y.npy").symlink_to(dataset.path / "labels.npy")
    (folder / "train.npy").symlink_to(dataset.path / "train.npy")
    indptr, indices = dataset.indptr, dataset.indices
    edges = np.lib.format.open_memmap(folder / "edge_index.npy", "w+", np.int32, (2, len(indices)))
    step = 1 << 18
    for first in range(0, dataset.num_vertices, step):
        bounds = np.asarray(indptr[first : first + step + 1])
        edges[0, bounds[0] : bounds[-1]] = indices[bounds[0] : bounds[-1]]
        edges[1, bounds[0] : bounds[-1]] = np.repeat(np.arange(first, first + len(bounds) - 1), np.diff(bounds))
    edges.flush()


def crc_sum(dataset: gnn.Dataset, run: Path) -> int:
    """What LOAD prints last, of rows read from the dataset."""
    import zlib

    total = 0
    with gnn.PackedLoader(run, format="numpy", copy=False) as loader:
        for batch in loader:
            total += zlib.crc32(np.ascontiguousarray(dataset.features[batch.n_id]).tobytes())
    return total


def test_everything_is_larger_than_memory(limit: memory_limit.Limit, tmp_path: Path) -> None:
    size = LARGE if IS_LARGE else TWIN
    program = os.environ.get("OVERLACE_BIN", "overlace")

    def step(*words: str) -> str:
        done = limit.run([program, "gnn", *words, "--json", str(tmp_path / "out.json")], size.timeout_s)
        assert done.returncode == 0, f"{words}: exit {done.returncode}, {done.stderr}"
        return (tmp_path / "out.json").read_text()

    g, raw, d, run = (str(tmp_path / name) for name in ("g", "raw", "d", "d.ovg"))
    step("generate", "--out", g, "--vertices", str(size.vertices), "--dim", "128", "--memory", size.memory, "--quiet")
    made = gnn.Dataset(g)
    features = made.num_vertices * made.dim * 4
    assert features > (1.3 if IS_LARGE else 0.6) * size.limit
    arrays_of(made, Path(raw))
    step("import", raw, "--out", d, "--memory", size.memory, "--quiet")
    dataset = gnn.Dataset(d)
    np.testing.assert_array_equal(dataset.indptr, made.indptr)
    step("sample", d, "--out", run, "--fanouts", "10,5", "--batch-size", str(size.batch_size), "--quiet")
    plans = json.loads(step("plan", run, "--cpu-cache", "1GiB", "--gpu-cache", "1GiB"))
    assert any("refused" not in plan for plan in plans)
    packed = json.loads(
        step("pack", run, "--cpu-cache", size.cpu_cache, "--order", "fixed", "--memory", size.memory, "--quiet")
    )["packs"][0]
    assert packed["packs_bytes"] > (1.3 if IS_LARGE else 0.5) * size.limit
    step("verify", run, "--quiet")
    loaded = limit.run([sys.executable, "-c", LOAD, run], size.timeout_s)
    assert loaded.returncode == 0, loaded.stderr
    batches, read, total = (int(word) for word in loaded.stdout.split())
    assert batches > 1 and read == packed["bytes_read"]
    if not IS_LARGE:
        assert total == crc_sum(dataset, Path(run))
    peak = limit.peak_bytes()
    assert peak is None or peak <= size.limit


def test_the_limit_is_one(limit: memory_limit.Limit) -> None:
    text = f"print(len(bytearray({limit.limit_bytes} + (64 << 20))))"
    assert limit.run([sys.executable, "-c", text], 60).returncode != 0


def test_groups_are_made_below_this_process() -> None:
    one = "4:memory:/a/b\n3:cpuset:/\n0::/\n"
    assert memory_limit.parents(one) == [
        memory_limit.ROOT / "memory/a/b",
        memory_limit.ROOT,
        memory_limit.ROOT / "unified",
    ]
    assert memory_limit.parents("0::/user.slice\n")[0] == memory_limit.ROOT / "user.slice"
    assert memory_limit.parents("2:cpu,memory:/x\n") == [memory_limit.ROOT / "memory/x"]


def test_where_no_group_can_be_made_the_reason_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory_limit, "parents", lambda _: [tmp_path / "none", tmp_path])
    why = "has neither memory.max nor memory.limit_in_bytes"
    with pytest.raises(memory_limit.Unavailable, match=why), memory_limit.limited(1 << 20):
        pass
    assert not list(tmp_path.iterdir())
