"""Datasets of OGB's layouts, made here, become arrays and then datasets."""

from __future__ import annotations

import gzip
import itertools
import os
import subprocess
import sys
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


def check(dataset: gnn.Dataset) -> None:
    np.testing.assert_array_equal(dataset.features, FEATURES)
    np.testing.assert_array_equal(dataset.labels, [2, -1, 0, 1, 2])
    sources = [sorted(EDGES[EDGES[:, 1] == v, 0].tolist()) for v in range(5)]
    assert [sorted(dataset.indices[a:b].tolist()) for a, b in itertools.pairwise(dataset.indptr)] == sources
    for name, ids in SPLITS.items():
        assert dataset.split(name).tolist() == ids


@pytest.mark.parametrize("layout", ["small", "large"])
@pytest.mark.parametrize("said", ["auto", "ogb"])
def test_a_compressed_layout_is_imported_by_one_call(tmp_path: Path, layout: str, said: str) -> None:
    source = make(tmp_path / "ogb", layout)
    check(gnn.import_dataset(source, tmp_path / "data", layout=said, num_classes=3))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "ogb"]


@pytest.mark.skipif("OVERLACE_BIN" not in os.environ, reason="OVERLACE_BIN does not name the command line")
def test_a_compressed_layout_is_imported_by_one_command(tmp_path: Path) -> None:
    source = make(tmp_path / "ogb", "small")
    folder = Path(sys.executable).parent  # whose python3 has this package
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(sys.path)}
    (tmp_path / "data.unpacked-ogb").mkdir()  # what a killed run has left
    np.save(tmp_path / "data.unpacked-ogb" / "val_mask.npy", np.ones(5, bool))

    def run(*words: str) -> subprocess.CompletedProcess:
        words = (os.environ["OVERLACE_BIN"], "gnn", "import", str(source), "--out", str(tmp_path / "data"), *words)
        return subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=False)

    done = run("--classes", "3")
    assert done.returncode == 0, done.stderr
    check(gnn.Dataset(tmp_path / "data"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "ogb"]
    (source / "raw" / "node-feat.csv.gz").unlink()
    again = run("--layout", "ogb")
    assert again.returncode == 2
    assert again.stderr == f"overlace: error: {source}/raw/node-feat.csv.gz: No such file or directory\n"


def test_arrays_of_others_are_imported(tmp_path: Path) -> None:
    folder = tmp_path / "arrays"
    folder.mkdir()
    for name, array in {"x": FEATURES, "edge_index": EDGES.T, "y": LABELS}.items():
        np.save(folder / f"{name}.npy", np.ascontiguousarray(array))
    for name, ids in SPLITS.items():
        np.save(folder / f"{name}.npy", np.array(ids))
    steps: list[str] = []
    check(gnn.import_dataset(folder, tmp_path / "data", progress=lambda what, share: steps.append(what)))
    assert {"edges", "features", "check"} <= set(steps)
    # Its own arrays, where they are.
    (tmp_path / "data" / "dataset.json").unlink()
    check(gnn.import_dataset(tmp_path / "data"))
    both = gnn.import_dataset(folder, tmp_path / "both", both_directions=True)
    assert both.num_edges == 2 * len(EDGES)
    np.save(folder / "x.npy", np.where(FEATURES > 1, np.nan, FEATURES))
    with pytest.warns(UserWarning, match=r"nan: 1 rows of features have a NaN or an infinity"):
        gnn.import_dataset(folder, tmp_path / "nan")

    def stop(what: str, share: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gnn.import_dataset(folder, tmp_path / "stopped", progress=stop)
    assert not (tmp_path / "stopped" / "dataset.json").exists()


def test_a_data_of_pyg_is_imported(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    Data = pytest.importorskip("torch_geometric.data").Data
    mask = torch.tensor([True, False, False, True, False])
    edges = torch.from_numpy(EDGES.T.copy())
    labels = torch.tensor([2, -1, 0, 1, 2])
    data = Data(x=torch.from_numpy(FEATURES), edge_index=edges, y=labels, train_mask=mask)
    dataset = gnn.import_dataset(data, tmp_path / "data")
    np.testing.assert_array_equal(dataset.features, FEATURES)
    np.testing.assert_array_equal(dataset.labels, labels)
    assert dataset.split("train").tolist() == [0, 3] and dataset.split("test").tolist() == []
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    data.x = data.x.bfloat16()
    narrow = gnn.import_dataset(data, tmp_path / "bf16")
    assert narrow.dtype == "bf16"
    np.testing.assert_array_equal(narrow.features, data.x.view(torch.int16).numpy().view(np.uint16))
    for wrong, text in (
        ({"x": data.x.double()}, r"^Data: features|dtype is fp64, wanted fp32, fp16, i8"),
        ({"x": data.x.to_sparse()}, r"^source.x is sparse, wanted a dense tensor"),
        ({"x": None}, r"^source is a Data, wanted a path, or a Data with x and edge_index"),
        ({"y": labels[:3]}, r"^Data: y.npy: shape is \(3,\), wanted \(5,\)"),
        ({"edge_index": edges + 3}, r"wanted vertices in \[0, 5\)"),
    ):
        bad = Data(**{**{"x": torch.from_numpy(FEATURES), "edge_index": edges, "y": labels}, **wrong})
        with pytest.raises(overlace.InvalidArgument, match=text):
            gnn.import_dataset(bad, tmp_path / "bad")
    with pytest.raises(overlace.InvalidArgument, match="out is None, wanted a directory"):
        gnn.import_dataset(data)
    with pytest.raises(overlace.InvalidArgument, match="layout is 'csv', wanted one of auto, pyg, igb, ogb"):
        gnn.import_dataset(tmp_path, tmp_path / "bad", layout="csv")


def test_files_that_are_cut_or_missing_are_named(tmp_path: Path) -> None:
    for layout, name in (("small", "raw/edge.csv.gz"), ("large", "raw/data.npz"), ("large", "raw/node-label.npz")):
        source = make(tmp_path / name.replace("/", "-"), layout)
        whole = (source / name).read_bytes()
        (source / name).write_bytes(whole[: len(whole) * 2 // 3])
        with pytest.raises(overlace.InvalidArgument, match=f"{name}: "):
            gnn.import_dataset(source, tmp_path / "data", layout="ogb")
    write_table(source / "raw" / "edge.csv.gz", np.array([[0, 1], [1.5, 2]]))
    (source / "raw" / "data.npz").unlink()
    with pytest.raises(overlace.InvalidArgument, match=r"edge.csv.gz: row 1 has 1.5, wanted a whole number"):
        gnn.import_dataset(source, tmp_path / "data")
    assert not (tmp_path / "data").exists()


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
