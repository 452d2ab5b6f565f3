"""DiskFeatureStore, PinnedFeatureStore and CscGraphStore: rows as PyG asks for them, and without PyG."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import overlace
import pytest
from overlace import gnn


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> gnn.Dataset:
    return gnn.generate(tmp_path_factory.mktemp("gnn") / "data", num_vertices=2**11, dim=33, seed=3)


@pytest.mark.parametrize("engine", ["auto", "pread", "buffered"])
def test_rows_are_those_of_the_dataset(dataset: gnn.Dataset, engine: str) -> None:
    features = np.array(dataset.features)
    ids = np.random.default_rng(1).integers(0, 2**11, 700)
    with gnn.DiskFeatureStore(dataset, cache="16KiB", engine=engine) as store:
        assert store.cached_rows == 16 * 1024 // (33 * 4)
        np.testing.assert_array_equal(store.read(ids), features[ids])
        np.testing.assert_array_equal(store.read(ids[:5].astype(np.int32)), features[ids[:5]])
        first = store.stats()
        assert first["rows"] == 705 and 0 < first["cached_rows"] < 705 and first["bytes_read"] % 4 == 0
        # The vertices that most edges come from are in memory.
        degree = np.bincount(dataset.indices, minlength=2**11)
        store.read(np.argsort(-degree, kind="stable")[: store.cached_rows])
        assert store.stats()["bytes_read"] == first["bytes_read"]
        futures = [store.read_async(ids[i::7]) for i in range(7)]
        for i, future in enumerate(futures):
            np.testing.assert_array_equal(future.result(timeout=60), features[ids[i::7]])
    with gnn.DiskFeatureStore(dataset, cache="1MiB", hot=[7, 9], engine=engine) as store:
        assert store.cached_rows == 2
        np.testing.assert_array_equal(store.read([9, 7, 8]), features[[9, 7, 8]])
        assert store.stats()["cached_rows"] == 2


def test_pyg_reads_features_and_graph(dataset: gnn.Dataset) -> None:
    torch = pytest.importorskip("torch")
    data = pytest.importorskip("torch_geometric.data")
    features, labels = torch.from_numpy(np.array(dataset.features)), torch.from_numpy(np.array(dataset.labels))
    with gnn.DiskFeatureStore(dataset) as store:
        assert isinstance(store, data.FeatureStore)
        assert [a.attr_name for a in store.get_all_tensor_attrs()] == ["x", "y"]
        ids = torch.tensor([5, 2047, 0, 5])
        mask = torch.zeros(2**11, dtype=torch.bool)
        mask[[3, 700]] = True
        for index in (ids, slice(10, 40, 3), None, mask):
            key = slice(None) if index is None else index
            for name, wanted in (("x", features), ("y", labels)):
                attr = data.TensorAttr(None, name, index)
                assert torch.equal(store.get_tensor(attr), wanted[key])
                assert torch.equal(store.get_tensor_async(attr).result(timeout=60), wanted[key])
        assert store.get_tensor_size(None, "x") == (2**11, 33) and store.get_tensor_size(None, "y") == (2**11,)
        for group, name in ((None, "z"), ("paper", "x")):
            with pytest.raises(
                overlace.InvalidArgument, match=f"group {group!r} and attribute '{name}', wanted None and x"
            ):
                store.get_tensor(data.TensorAttr(group, name, ids))
        with pytest.raises(overlace.InvalidArgument, match=r"a mask of shape \(3,\), wanted \(2048,\)"):
            store.get_tensor(data.TensorAttr(None, "x", mask[:3]))
        with pytest.raises(overlace.Unsupported, match="read-only: x cannot be put"):
            store.put_tensor(features, data.TensorAttr(None, "x", None))
        with pytest.raises(overlace.Unsupported, match="read-only: x cannot be removed"):
            store.remove_tensor(data.TensorAttr(None, "x", None))
    graph = gnn.CscGraphStore(dataset)
    row, colptr = graph.get_edge_index(graph.get_all_edge_attrs()[0])
    assert row.dtype == colptr.dtype == torch.int64
    np.testing.assert_array_equal(row, dataset.indices)
    np.testing.assert_array_equal(colptr, dataset.indptr)
    with pytest.raises(overlace.Unsupported, match="edges cannot be removed"):
        graph.remove_edge_index(graph.get_all_edge_attrs()[0])


@pytest.mark.parametrize("where", ["disk", "memory"])
def test_pyg_s_loader_takes_both_stores(dataset: gnn.Dataset, where: str) -> None:
    torch = pytest.importorskip("torch")
    loader = pytest.importorskip("torch_geometric.loader")
    sampler = pytest.importorskip("torch_geometric.sampler")

    class InNeighbours(sampler.BaseSampler):
        """All in-neighbours of the seeds."""

        def sample_from_nodes(self, index: object, **_: object) -> object:
            seeds = index.node
            edges = [
                (int(u), i) for i, v in enumerate(seeds) for u in dataset.indices[slice(*dataset.indptr[v : v + 2])]
            ]
            known = {int(v): i for i, v in enumerate(seeds)}
            row = [known.setdefault(u, len(known)) for u, _ in edges]
            ids = torch.tensor(list(known))
            return sampler.SamplerOutput(
                ids, torch.tensor(row), torch.tensor([i for _, i in edges]), None, metadata=(index.input_id, None)
            )

        def sample_from_edges(self, index: object, **_: object) -> object:
            raise NotImplementedError

        @property
        def edge_permutation(self) -> None:
            return None

    seeds = torch.from_numpy(dataset.split("valid"))[:40]
    tables = {"x": gnn.PinnedTable(dataset), "y": gnn.PinnedTable(np.array(dataset.labels))}
    with contextlib.ExitStack() as stack:
        store: Any = gnn.PinnedFeatureStore(tables)
        if where == "disk":
            store = stack.enter_context(gnn.DiskFeatureStore(dataset, cache="8KiB"))
        made = loader.NodeLoader((store, gnn.CscGraphStore(dataset)), InNeighbours(), input_nodes=seeds, batch_size=16)
        seen = []
        for batch in made:
            np.testing.assert_array_equal(batch.x, dataset.features[batch.n_id])
            np.testing.assert_array_equal(batch.y, dataset.labels[batch.n_id])
            seen += batch.n_id[: batch.batch_size].tolist()
    assert seen == seeds.tolist()


def test_pyg_reads_tables_in_memory(dataset: gnn.Dataset) -> None:
    torch = pytest.importorskip("torch")
    data = pytest.importorskip("torch_geometric.data")
    features, labels = torch.from_numpy(np.array(dataset.features)), torch.from_numpy(np.array(dataset.labels))
    tables = {
        "x": gnn.PinnedTable(dataset),
        "y": gnn.PinnedTable(labels),
        ("paper", "x"): gnn.PinnedTable(features[:9]),
    }
    store = gnn.PinnedFeatureStore(tables)
    assert isinstance(store, data.FeatureStore)
    known = [(a.group_name, a.attr_name) for a in store.get_all_tensor_attrs()]
    assert known == [(None, "x"), (None, "y"), ("paper", "x")]
    mask = torch.zeros(2**11, dtype=torch.bool)
    mask[[3, 700]] = True
    for index in (torch.tensor([5, 2047, 0, 5]), slice(10, 40, 3), None, mask):
        key = slice(None) if index is None else index
        assert torch.equal(store.get_tensor(data.TensorAttr(None, "x", index)), features[key])
        assert torch.equal(store.get_tensor(data.TensorAttr(None, "y", index)), labels[key])
    assert torch.equal(store.get_tensor(data.TensorAttr("paper", "x", torch.tensor([8]))), features[[8]])
    assert store.get_tensor_size(None, "x") == (2**11, 33) and store.get_tensor_size("paper", "x") == (9, 33)
    for group, name in ((None, "z"), ("author", "x")):
        with pytest.raises(overlace.InvalidArgument, match=f"group {group!r} and attribute {name!r}, wanted one of"):
            store.get_tensor(data.TensorAttr(group, name, slice(None)))
    with pytest.raises(overlace.InvalidArgument, match="9"):
        store.get_tensor(data.TensorAttr("paper", "x", torch.tensor([9])))
    with pytest.raises(overlace.Unsupported, match="z cannot be put, wanted in tables"):
        store.put_tensor(features, group_name=None, attr_name="z", index=None)
    with pytest.raises(overlace.InvalidArgument, match="is a Tensor, wanted a PinnedTable"):
        gnn.PinnedFeatureStore({"x": features})


def test_ids_of_a_request_that_waits_are_its_own(dataset: gnn.Dataset) -> None:
    with gnn.DiskFeatureStore(dataset) as store:
        ids, wanted, futures = np.zeros(500, np.int64), [], []
        for first in range(40):
            ids[:] = np.arange(first, first + 500)
            wanted.append(ids.copy())
            futures.append(store.read_async(ids))
        ids[:] = 7
        for future, rows in zip(futures, wanted, strict=True):
            assert (future.result() == dataset.features[rows]).all()
    with pytest.raises(overlace.Error, match="closed"):
        store.read_async([0])
    assert store._worker is None


@pytest.mark.parametrize("name", ["x", "y"])
def test_pyg_gets_no_row_for_an_id_out_of_range(dataset: gnn.Dataset, name: str) -> None:
    torch = pytest.importorskip("torch")
    attributes = pytest.importorskip("torch_geometric.data")
    store = gnn.DiskFeatureStore(dataset)
    for index in (torch.tensor([3, -1]), torch.tensor([0, 2048]), torch.tensor([5, 2**40])):
        with pytest.raises(overlace.InvalidArgument, match=r"ids\[1\] is -?\d+, wanted 0 to 2047"):
            store.get_tensor(attributes.TensorAttr(group_name=None, attr_name=name, index=index))
    index = torch.arange(100)
    futures = []
    for _ in range(20):
        futures.append(store.get_tensor_async(attributes.TensorAttr(group_name=None, attr_name=name, index=index)))
        index += 1
    wanted = dataset.features if name == "x" else dataset.labels
    for i, future in enumerate(futures):
        assert (future.result().numpy() == wanted[i : i + 100]).all()


def test_stores_need_neither_torch_nor_pyg(dataset: gnn.Dataset) -> None:
    text = f"""
import sys
sys.modules["torch"] = sys.modules["torch_geometric"] = None
import overlace
from overlace import gnn
ds = gnn.Dataset({str(dataset.path)!r})
with gnn.DiskFeatureStore(ds, cache=4096) as store:
    print((store.read([3, 1]) == ds.features[[3, 1]]).all())
    try:
        store.get_all_tensor_attrs()
    except overlace.Unsupported as error:
        print(error)
print(len(gnn.CscGraphStore(ds).arrays()[1]) == ds.num_edges)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[0] == said[2] == "True" and "torch_geometric is not installed" in said[1]


def test_what_does_not_fit_is_refused(dataset: gnn.Dataset, tmp_path: Path) -> None:
    store = gnn.DiskFeatureStore(dataset)
    with pytest.raises(overlace.InvalidArgument, match=r"ids\[1\] is 2048, wanted 0 to 2047"):
        store.read([0, 2048])
    with pytest.raises(overlace.InvalidArgument, match="wanted a row of integers"):
        store.read([[0]])
    with pytest.raises(overlace.InvalidArgument, match=r"cached\[1\] is 7, wanted each once"):
        gnn.DiskFeatureStore(dataset, cache="1MiB", hot=[7, 7])
    with pytest.raises(overlace.InvalidArgument, match="cache is 'much', wanted bytes such as 8GiB"):
        gnn.DiskFeatureStore(dataset, cache="much")
    store.close()
    store.close()
    with pytest.raises(overlace.Error, match="closed"):
        store.read([0])
