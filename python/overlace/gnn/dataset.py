"""Datasets: a graph, features, labels and splits as .npy files in a directory."""

from __future__ import annotations

import ctypes as c
import json
from pathlib import Path

import numpy as np

from overlace import errors
from overlace.gnn import _native


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
