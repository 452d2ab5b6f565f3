"""Batches and gathered rows by DLPack: the same bytes for NumPy and torch, bf16 too, in shared memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import overlace
import pytest
from overlace import gnn


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> gnn.Dataset:
    return gnn.generate(tmp_path_factory.mktemp("gnn") / "data", num_vertices=2**11, dim=6, seed=3)


@pytest.fixture(scope="module")
def bf16(dataset: gnn.Dataset) -> gnn.Dataset:
    """The same graph with rows of 16-bit words."""
    path = dataset.path.parent / "bf16"
    path.mkdir()
    for name in ("indptr", "indices", "labels", "train"):
        shutil.copy(dataset.path / f"{name}.npy", path)
    np.save(path / "features.npy", (np.array(dataset.features).view(np.uint32) >> 16).astype(np.uint16))
    program = os.environ.get("OVERLACE_BIN", "overlace")
    words = [program, "gnn", "import", str(path), "--in-place", "--bf16", "--quiet"]
    subprocess.run(words, check=True, timeout=60, capture_output=True)
    return gnn.Dataset(path)


def packed(dataset: gnn.Dataset) -> gnn.Artefact:
    run = gnn.OfflineSampler(dataset, [4, 3], batch_size=32, seed=7).run(f"{dataset.path}.ovg")
    return gnn.pack(run, cpu_cache="4KiB", order="fixed")


def test_batches_are_those_of_format_numpy(dataset: gnn.Dataset) -> None:
    run = packed(dataset)
    with gnn.PackedLoader(run, format="numpy") as loader:
        known = list(loader)
    for copy in (True, False):
        with gnn.PackedLoader(run, format="dlpack", copy=copy) as loader:
            for wanted, got in zip(known, loader, strict=True):
                assert got.number == wanted.number and got.num_sampled_nodes == wanted.num_sampled_nodes
                for key in ("x", "y", "n_id", "edge_index"):
                    one = getattr(got, key)
                    assert isinstance(one, gnn.DlpackArray) and one.dtype == str(getattr(wanted, key).dtype)
                    np.testing.assert_array_equal(np.from_dlpack(one), getattr(wanted, key))
                assert len(got.x) == len(wanted.n_id) and "float32" in repr(got.x)


def test_the_memory_is_shared(dataset: gnn.Dataset) -> None:
    torch = pytest.importorskip("torch")
    with gnn.PackedLoader(packed(dataset), format="dlpack") as loader:
        batch = next(iter(loader))
    tensor = torch.from_dlpack(batch.x)
    assert tensor.data_ptr() == batch.x.array.ctypes.data
    tensor[0, 0] = 77.5
    assert batch.x.array[0, 0] == 77.5
    assert np.shares_memory(np.from_dlpack(batch.x), batch.x.array)
    assert not np.shares_memory(np.from_dlpack(batch.x, copy=True), batch.x.array)
    with pytest.raises(BufferError, match="wanted on device"):
        batch.x.__dlpack__(dl_device=(2, 0))


def test_bf16_is_bf16(bf16: gnn.Dataset) -> None:
    torch = pytest.importorskip("torch")
    words = np.array(bf16.features)
    with gnn.PackedLoader(packed(bf16), format="dlpack") as loader:
        for batch in loader:
            assert batch.x.dtype == "bf16" and batch.n_id.dtype == "int64"
            rows = torch.from_dlpack(batch.x)
            assert rows.dtype == torch.bfloat16
            np.testing.assert_array_equal(rows.view(torch.int16).numpy().view(np.uint16), words[batch.n_id.array])
    table = torch.from_numpy(words.view(np.int16)).view(torch.bfloat16)
    shared = gnn.DlpackArray(words, is_bf16=True)
    ids = torch.randint(0, len(table), (99,), generator=torch.Generator().manual_seed(2))
    got = gnn.gather_rows(shared, gnn.DlpackArray(ids.numpy()))
    assert got.dtype == "bf16"
    assert torch.equal(torch.from_dlpack(got), table[ids])


class Foreign:
    """Another library's array, of which only DLPack is known."""

    def __init__(self, value: object, device: tuple[int, int] = (1, 0)) -> None:
        self._value, self._device = value, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __dlpack__(self, **wanted: object) -> object:
        return self._value.__dlpack__(**wanted)


def test_tables_of_others_are_taken_in_place() -> None:
    table = np.random.default_rng(1).standard_normal((300, 2, 5)).astype(np.float32)
    ids = np.random.default_rng(2).integers(0, 300, 1000)
    got = gnn.gather_rows(Foreign(table), Foreign(ids), threads=2)
    assert isinstance(got, gnn.DlpackArray) and got.shape == (1000, 2, 5)
    np.testing.assert_array_equal(np.from_dlpack(got), table[ids])
    out = np.empty((1000, 2, 5), np.float32)
    assert gnn.gather_rows(Foreign(table), ids, out).array is out
    np.testing.assert_array_equal(out, table[ids])
    # An array of its own stays an array.
    assert isinstance(gnn.gather_rows(table, Foreign(ids)), np.ndarray)


def test_what_does_not_fit_is_refused(dataset: gnn.Dataset) -> None:
    table = np.zeros((4, 3), np.float32)
    with pytest.raises(overlace.Unsupported, match=r"table lies on DLPack device \(2, 1\), wanted one of the CPU"):
        gnn.gather_rows(Foreign(table, (2, 1)), [0])
    with pytest.raises(overlace.InvalidArgument, match="is not rows one behind the other"):
        gnn.gather_rows(Foreign(np.zeros((8, 6), np.float32)[:, ::2]), [0])
    with pytest.raises(overlace.InvalidArgument, match=r"ids have shape \(4, 3\) and dtype float32"):
        gnn.gather_rows(table, Foreign(table))
    with pytest.raises(overlace.InvalidArgument, match=r"ids\[1\] is 4, wanted"):
        gnn.gather_rows(Foreign(table), [0, 4])
    with pytest.raises(overlace.InvalidArgument, match="device is cuda with format dlpack, wanted cpu"):
        gnn.PackedLoader(packed(dataset), format="dlpack", device="cuda")


def test_numpy_alone_suffices(dataset: gnn.Dataset) -> None:
    run = packed(dataset)
    text = f"""
import sys
sys.modules["torch"] = None
import numpy as np
from overlace import gnn
features = np.load({str(dataset.path / "features.npy")!r})
with gnn.PackedLoader({str(run.path)!r}, format="dlpack") as loader:
    for batch in loader:
        x, ids = np.from_dlpack(batch.x), np.from_dlpack(batch.n_id)
        assert (x == features[ids]).all()
        assert (gnn.gather_rows(gnn.DlpackArray(features), batch.n_id).array == x).all()
print("all")
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "all\n", done.stderr
    assert Path(run.path).is_dir()


def losses(dataset: gnn.Dataset, run: gnn.Artefact, format: str) -> list[float]:
    """Losses of two training epochs through the loop that each format is made for."""
    torch = pytest.importorskip("torch")
    from overlace.gnn.nn import Model, SAGEConv

    torch.manual_seed(1)
    if format == "pyg":
        trim = pytest.importorskip("torch_geometric.utils").trim_to_layer
        first, last = SAGEConv(dataset.dim, 16), SAGEConv(16, dataset.num_classes)
        model = torch.nn.ModuleList([first, last])

        def logits(data: object) -> object:
            h = torch.relu(first(data.x, data.edge_index, data.num_nodes))
            h, edges, _ = trim(1, data.num_sampled_nodes, data.num_sampled_edges, h, data.edge_index)
            return last(h, edges, data.batch_size)
    else:
        model = logits = Model("sage", dataset.dim, 16, dataset.num_classes, 2)
    take = {"numpy": torch.from_numpy, "dlpack": torch.from_dlpack}.get(format, lambda tensor: tensor)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    out = []
    with gnn.PackedLoader(run, packs="fixed", format=format) as loader:
        for _ in range(2):
            for batch in loader:
                if format != "pyg":
                    batch = gnn.Batch(
                        **{
                            **vars(batch),
                            **{key: take(getattr(batch, key)) for key in ("x", "y", "n_id", "edge_index")},
                        }
                    )
                loss = torch.nn.functional.cross_entropy(logits(batch), batch.y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                out.append(loss.item())
    return out


@pytest.mark.parametrize("format", ["numpy", "dlpack", "pyg"])
def test_losses_are_equal_through_every_format(dataset: gnn.Dataset, format: str) -> None:
    run = packed(dataset)
    wanted = losses(dataset, run, "blocks")
    assert len(wanted) > 10 and wanted[-1] < wanted[0]
    np.testing.assert_allclose(losses(dataset, run, format), wanted, rtol=0, atol=1e-6)
