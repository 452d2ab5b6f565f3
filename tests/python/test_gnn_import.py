"""Datasets of OGB's layouts, made here, become arrays and then datasets."""

from __future__ import annotations

import gzip
import itertools
import os
import subprocess
from pathlib import Path

import numpy as np
import overlace
import pytest
from overlace import gnn
from overlace.gnn import unpack_ogb

EDGES = np.array([[0, 1], [1, 2], [4, 2], [3, 0], [2, 0]])
FEATURES = (np.arange(15, dtype=np.float32).reshape(5, 3) - 4.5) / 7
LABELS = np.array([2.0, np.nan, 0.0, 1.0, 2.0])
SPLITS = {"train": [0, 3], "valid": [2], "test": [4]}


def write_table(path: Path, rows: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as out:
        for row in np.atleast_2d(rows):
            out.write(",".join(f"{x:.9g}" for x in row) + "\n")


def make(folder: Path, layout: str) -> Path:
    raw = folder / "raw"
    raw.mkdir(parents=True)
    for name, ids in SPLITS.items():
        write_table(folder / "split" / "time" / f"{name}.csv.gz", np.array(ids)[:, None])
    if layout == "large":
        np.savez(raw / "data.npz", edge_index=EDGES.T.copy(), node_feat=FEATURES)
        np.savez_compressed(raw / "node-label.npz", node_label=LABELS[:, None])
    else:
        write_table(raw / "edge.csv.gz", EDGES)
        write_table(raw / "node-feat.csv.gz", FEATURES)
        write_table(raw / "node-label.csv.gz", LABELS[:, None])
    return folder


@pytest.mark.parametrize("layout", ["small", "large"])
def test_a_layout_becomes_a_dataset(tmp_path: Path, layout: str) -> None:
    arrays = tmp_path / "arrays"
    assert unpack_ogb.main([str(make(tmp_path / "ogb", layout)), str(arrays)]) == 0
    np.testing.assert_array_equal(np.load(arrays / "x.npy"), FEATURES)
    np.testing.assert_array_equal(np.load(arrays / "y.npy"), [2, -1, 0, 1, 2])
    if "OVERLACE_BIN" not in os.environ:
        pytest.skip("OVERLACE_BIN does not name the command line")
    words = [os.environ["OVERLACE_BIN"], "gnn", "import", str(arrays), "--out", str(tmp_path / "data")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    dataset = gnn.Dataset(tmp_path / "data")
    np.testing.assert_array_equal(dataset.features, FEATURES)
    sources = [sorted(EDGES[EDGES[:, 1] == v, 0].tolist()) for v in range(5)]
    assert [sorted(dataset.indices[a:b].tolist()) for a, b in itertools.pairwise(dataset.indptr)] == sources
    for name, ids in SPLITS.items():
        assert dataset.split(name).tolist() == ids


def test_what_is_no_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(overlace.InvalidArgument, match=r"has neither raw/data.npz nor raw/edge.csv.gz"):
        unpack_ogb.unpack(tmp_path, tmp_path / "out")
    folder = make(tmp_path / "ogb", "small")
    with gzip.open(folder / "raw" / "node-feat.csv.gz", "wt") as out:
        out.write("1,2,3\n4,five,6\n")
    with pytest.raises(overlace.InvalidArgument, match=r"node-feat.csv.gz: rows 0 to 2: .*five"):
        unpack_ogb.unpack(folder, tmp_path / "out")
    np.savez(folder / "raw" / "data.npz", edges=EDGES)
    with pytest.raises(overlace.InvalidArgument, match=r"data.npz: holds edges.npy, wanted edge_index.npy"):
        unpack_ogb.unpack(folder, tmp_path / "out")
