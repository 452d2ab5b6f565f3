"""Datasets: a graph, features, labels and splits as .npy files in a directory."""

from __future__ import annotations

import ctypes as c
import json
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from overlace import errors
from overlace.gnn import _native

LAYOUTS = ("auto", "pyg", "igb", "ogb")
# Attributes of PyG's Data, in the file that the layout "pyg" wants.
_ATTRIBUTES = ("x", "edge_index", "y", "train_mask", "val_mask", "test_mask")


class Dataset:
    """A directory with `dataset.json`, as `overlace gnn import` and `generate` write it.

    Arrays are mapped, never read whole: `features` (num_vertices, dim), bf16 as 16-bit words; `indptr` int64
    (num_vertices + 1); `indices` (num_edges), in-neighbours; `labels` int64 (num_vertices), -1 for none, or None.
    InvalidArgument where there is no dataset.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self._json = json.loads((self.path / "dataset.json").read_text())
        except (OSError, ValueError) as error:
            raise errors.InvalidArgument(f"{path}: no dataset: {error}") from None
        self.num_vertices: int = self._json["num_vertices"]
        self.num_edges: int = self._json["num_edges"]
        self.num_classes: int = self._json["num_classes"]
        self.dim: int = self._json["features"]["dim"]
        self.dtype: str = self._json["features"]["dtype"]
        self.id: str = self._json["id"]

    def _map(self, name: str) -> np.ndarray:
        return np.load(self.path / name, mmap_mode="r")

    @property
    def features(self) -> np.ndarray:
        return self._map(self._json["features"]["file"])

    @property
    def indptr(self) -> np.ndarray:
        return self._map(self._json["graph"]["indptr"])

    @property
    def indices(self) -> np.ndarray:
        return self._map(self._json["graph"]["indices"])

    @property
    def labels(self) -> np.ndarray | None:
        return self._map("labels.npy") if (self.path / "labels.npy").exists() else None

    def split(self, name: str) -> np.ndarray:
        """Vertices of "train", "valid" or "test"; empty where the dataset has no such split."""
        _native.word("split", name, _native.SPLITS)
        path = self.path / f"{name}.npy"
        return np.load(path) if path.exists() else np.empty(0, dtype=np.int64)

    def __repr__(self) -> str:
        return f"Dataset({str(self.path)!r}: {self.num_vertices} vertices, {self.num_edges} edges, dim {self.dim})"


def generate(
    out: str | Path,
    like: str | None = None,
    num_vertices: int = 0,
    dim: int = 0,
    seed: int = 1,
    threads: int = 0,
) -> Dataset:
    """A graph with features, labels and splits from a seed, the same for any number of threads (0: the cores).

    `like`: sizes and skew of "papers", "mag", "friendster", "igb" or "products". 0 of `num_vertices` or `dim`: of the
    model. InvalidArgument before anything is written.
    """
    request = _native.Generate(
        directory=str(out).encode(),
        like=None if like is None else like.encode(),
        num_vertices=num_vertices,
        dim=dim,
        seed=seed,
        threads=threads,
    )
    _native.call("ovl_gnn_make_dataset", c.byref(request))
    return Dataset(out)


def _saved(data: Any, folder: Path) -> bool:
    """The attributes of a PyG `Data` as the files of the layout "pyg"; whether its features are bf16."""
    is_bf16 = False
    for name in _ATTRIBUTES:
        value = getattr(data, name, None)
        if value is None:
            continue
        if getattr(value, "is_sparse", False) or getattr(value, "is_sparse_csr", False):
            raise errors.InvalidArgument(f"source.{name} is sparse, wanted a dense tensor")
        if hasattr(value, "detach"):
            value = value.detach().cpu()
            if str(value.dtype) == "torch.bfloat16":
                is_bf16 |= name == "x"
                value = value.view(sys.modules["torch"].int16).numpy().view(np.uint16)
        np.save(folder / f"{name}.npy", np.ascontiguousarray(value))
    return is_bf16


def import_dataset(
    source: Any,
    out: str | Path | None = None,
    layout: str = "auto",
    both_directions: bool = False,
    bf16: bool = False,
    num_classes: int = 0,
    memory: int | str = "1GiB",
    threads: int = 0,
    progress: Callable[[str, float], None] | None = None,
) -> Dataset:
    """A dataset of what others wrote, in the directory `out`.

    `source`: a `torch_geometric.data.Data` (x, edge_index; y; train_mask, val_mask, test_mask), or a directory with its
    attributes as .npy ("pyg": x.npy and so on), of IGB's layout ("igb") or of OGB's node properties ("ogb", also
    compressed; unpacked beside `out` meanwhile). "auto" looks which it is. Without `out` a directory with features.npy,
    indptr.npy and indices.npy becomes the dataset where it is. `both_directions`: each edge as its reverse, too.
    `bf16`: features of 16-bit words are bf16. `memory`: of edges that are held. Features are copied as a stream.

    InvalidArgument with file, position and value, before anything is written. A warning counts rows of features that
    have a NaN or an infinity.
    """
    from overlace.gnn.unpack_ogb import is_ogb, unpack  # here, as it is a program of its own, too

    _native.word("layout", layout, LAYOUTS)
    is_data = not isinstance(source, (str, Path))
    if is_data and (getattr(source, "x", None) is None or getattr(source, "edge_index", None) is None):
        raise errors.InvalidArgument(
            f"source is a {type(source).__name__}, wanted a path, or a Data with x and edge_index"
        )
    if out is None and is_data:
        raise errors.InvalidArgument("out is None, wanted a directory for what is made of a Data")
    target = Path(source if out is None else out)
    request = _native.Import(
        source=None if is_data else str(source).encode(),
        directory=None if out is None else str(out).encode(),
        layout=layout.encode(),
        num_classes=num_classes,
        memory_bytes=_native.size("memory", memory),
        both_directions=int(both_directions),
        bf16=int(bf16),
        threads=threads,
    )
    if not is_data and (out is None or not (layout == "ogb" or (layout == "auto" and is_ogb(source)))):
        return _imported(request, progress, target)
    parent = target.absolute().parent  # as much room as the dataset needs
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".import-", dir=parent) as folder:
        if is_data:
            request.bf16 |= int(_saved(source, Path(folder)))
        else:
            unpack(source, folder)
        request.source, request.layout = folder.encode(), b"pyg"
        try:
            return _imported(request, progress, target)
        except errors.InvalidArgument as error:
            shown = type(source).__name__ if is_data else source
            raise errors.InvalidArgument(str(error).replace(f"{folder}/", f"{shown}: ")) from None


def _imported(request: _native.Import, progress: Callable[[str, float], None] | None, out: Path) -> Dataset:
    found = _native.Imported()
    _native.call_with_progress("ovl_gnn_import_dataset", request, progress, c.byref(found))
    if found.nan_rows > 0:
        warnings.warn(f"{out}: {found.nan_rows} rows of features have a NaN or an infinity", stacklevel=3)
    return Dataset(out)
