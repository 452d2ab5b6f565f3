"""gather_rows and PinnedTable: every width and dtype, arrays and tensors, and what is refused."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import overlace
import pytest
from overlace import gnn

DTYPES = ("b1", "i1", "u1", "i2", "f2", "i4", "f4", "u8", "f8", "c8", "c16", "S3", "f4,i2")


def table_of(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Bytes that differ from row to row."""
    item = np.dtype(dtype).itemsize
    raw = np.random.default_rng(3).integers(0, 2 if dtype == "b1" else 256, (*shape, item), np.uint8)
    return raw.view(dtype).reshape(shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_arrays_of_any_dtype(dtype: str) -> None:
    for shape in ((50,), (50, 1), (50, 7), (50, 3, 5)):
        table = table_of(dtype, shape)
        ids = np.random.default_rng(4).integers(0, 50, 301)
        got = gnn.gather_rows(table, ids, threads=2)
        assert got.dtype == table.dtype and got.shape == (301, *shape[1:])
        assert got.tobytes() == table[ids].tobytes()


@pytest.mark.parametrize("width", [1, 2, 3, 13, 64, 512, 1000, 4096, 6144])
def test_rows_from_one_byte_to_six_kilobytes(width: int) -> None:
    table = table_of("u1", (777, width))
    for kind in (np.int32, np.int64, np.uint8, np.uint32, np.uint64):
        ids = np.random.default_rng(5).integers(0, min(777, np.iinfo(kind).max), 2000).astype(kind)
        for threads in (0, 1, 3):
            np.testing.assert_array_equal(gnn.gather_rows(table, ids, threads=threads), table[ids])
    out = np.zeros((3, width), np.uint8)
    assert gnn.gather_rows(table, [5, 5, 776], out) is out
    np.testing.assert_array_equal(out, table[[5, 5, 776]])
    assert gnn.gather_rows(table, []).shape == (0, width)
    np.testing.assert_array_equal(gnn.gather_rows(table, np.arange(700)[::7]), table[np.arange(700)[::7]])


def test_tensors_of_any_dtype() -> None:
    torch = pytest.importorskip("torch")
    ids = torch.randint(0, 40, (333,), generator=torch.Generator().manual_seed(1))
    raw = torch.from_numpy(table_of("u1", (40, 96)))
    for dtype in (torch.uint8, torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64):
        table = (raw % 2).view(dtype) if dtype == torch.bool else raw.view(dtype)
        got = gnn.gather_rows(table, ids)
        assert got.dtype == dtype and torch.equal(got.view(torch.uint8), table[ids].view(torch.uint8))
    pinned = gnn.PinnedTable(raw.view(torch.bfloat16))
    assert torch.equal(pinned[ids].view(torch.uint8), raw[ids]) and pinned.dtype == torch.bfloat16
    with pytest.raises(overlace.Unsupported, match="table lies on meta, wanted one on the CPU"):
        gnn.gather_rows(raw.to("meta"), ids)
    with pytest.raises(overlace.InvalidArgument, match="not rows one behind the other"):
        gnn.gather_rows(raw.T, ids)


def test_a_device_that_is_not_there_is_refused() -> None:
    torch = pytest.importorskip("torch")
    for device in ("cpu", "meta") if torch.cuda.is_available() else ("cpu", "meta", "cuda", 0):
        with pytest.raises(overlace.Unsupported, match=r"device is .*, wanted one of the \d+ CUDA devices"):
            gnn.PinnedTable(np.zeros((4, 4)), device=device)


def test_ids_out_of_range_are_named_and_nothing_is_written() -> None:
    table = table_of("f4", (100, 16))
    ids = np.random.default_rng(6).integers(0, 100, 40000)
    out = np.full((40000, 16), 7, np.float32)
    for at, wrong in ((39999, 100), (20000, -1), (5, 2**40)):
        ids[at] = wrong
        with pytest.raises(overlace.InvalidArgument, match=rf"ids\[{at}\] is {wrong}, wanted 0 to 99"):
            gnn.gather_rows(table, ids, out)
    assert (out == 7).all()
    with pytest.raises(overlace.InvalidArgument, match="wanted none: the table is empty"):
        gnn.gather_rows(table[:0], [0])


def test_what_does_not_fit_is_refused() -> None:
    table = table_of("f4", (100, 16))
    frozen = np.zeros((1, 16), np.float32)
    frozen.flags.writeable = False
    for text, arguments in {
        "ids have shape \\(1, 1\\) and dtype int64, wanted a row of integers": (table, [[1]]),
        "dtype float64, wanted a row of integers": (table, [1.0]),
        "dtype bool, wanted a row of integers": (table, [True]),
        "ids has 18446744073709551615, wanted at most": (table, np.array([2**64 - 1], np.uint64)),
        "table of shape \\(100, 8\\) is not rows one behind the other": (table[:, :8], [1]),
        "table of shape \\(\\) is not rows": (np.array(1.0), [0]),
        "table of shape \\(100, 0\\) has rows of 0 bytes": (table[:, :0].copy(), [0]),
        "table has dtype object, wanted numbers": (np.array([None]), [0]),
        "table is list, wanted an array or a tensor": ([1], [0]),
        "out has shape \\(2, 16\\) and dtype float32, wanted \\(1, 16\\)": (table, [1], np.zeros((2, 16), np.float32)),
        "out has shape \\(1, 16\\) and dtype float64": (table, [1], np.zeros((1, 16))),
        "out may not be written": (table, [1], frozen),
        "out lies in the table": (table, [1], table[3:4]),
        "threads is -1, wanted at least 0": (table, [1], None, -1),
    }.items():
        with pytest.raises(overlace.InvalidArgument, match=text):
            gnn.gather_rows(*arguments)


def test_a_table_is_a_copy_of_its_source(tmp_path: Path) -> None:
    dataset = gnn.generate(tmp_path / "g", num_vertices=2048, dim=33)
    table = gnn.PinnedTable(dataset, threads=2)
    features = np.array(dataset.features)
    assert len(table) == 2048 and table.shape == (2048, 33) and table.nbytes == features.nbytes
    assert table.rows.ctypes.data % 4096 == 0
    ids = np.random.default_rng(7).integers(0, 2048, 500)
    np.testing.assert_array_equal(table[ids], features[ids])
    features[:] = 0
    assert np.abs(table[ids]).sum() > 0
    out = np.empty((500, 33), np.float32)
    assert table.gather(ids, out) is out and np.array_equal(out, dataset.features[ids])
    assert len(gnn.PinnedTable(features[:0])) == 0


def test_locked_memory_has_a_limit() -> None:
    if resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] < 65536:
        pytest.skip("this process may lock less than 64 KiB")
    table = gnn.PinnedTable(np.arange(1024), lock=True)
    np.testing.assert_array_equal(table[[3, 1023]], [3, 1023])
    # Whoever is root has no limit, so the other process gives that up.
    text = """
import os, resource
import numpy, overlace
from overlace import gnn
resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
if os.getuid() == 0:
    os.setuid(65534)
try:
    gnn.PinnedTable(numpy.zeros(1 << 20), lock=True)
except overlace.Unsupported as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("8388608 bytes cannot be locked (errno "), done
    assert "may lock 65536: raise `ulimit -l`" in done.stdout
