"""A dataset on its disk, or tables in memory, as PyG's stores; without PyG the same objects, which read arrays."""

from __future__ import annotations

import copy
import ctypes as c
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from overlace import errors
from overlace._library import names_of
from overlace.gnn import _native
from overlace.gnn.dataset import Dataset
from overlace.gnn.table import PinnedTable, _ids

try:
    from torch_geometric.data import FeatureStore, GraphStore, TensorAttr
    from torch_geometric.data.graph_store import EdgeAttr, EdgeLayout

    HAS_PYG = True
except ImportError:
    FeatureStore = GraphStore = object
    HAS_PYG = False
_Features: Any = FeatureStore
_Graphs: Any = GraphStore

_EDGES_AT_ONCE = 1 << 24


def most_used(dataset: Dataset, count: int) -> np.ndarray:
    """The vertices that most edges come from, which samplers of in-neighbours meet most often."""
    uses = np.zeros(dataset.num_vertices, np.int64)
    indices = dataset.indices
    for first in range(0, len(indices), _EDGES_AT_ONCE):
        uses += np.bincount(indices[first : first + _EDGES_AT_ONCE], minlength=dataset.num_vertices)
    return np.argsort(-uses, kind="stable")[:count].astype(np.int64)


def _rows_of(index: Any, count: int) -> np.ndarray:
    """The rows of `count` that PyG's index means: None, a slice, a number, a mask or ids."""
    if index is None:
        index = slice(None)
    if isinstance(index, slice):
        return np.arange(*index.indices(count))
    if isinstance(index, int):
        return np.array([index])
    if str(getattr(index, "dtype", "")) in ("bool", "torch.bool"):
        if tuple(index.shape) != (count,):
            raise errors.InvalidArgument(f"a mask of shape {tuple(index.shape)}, wanted ({count},)")
        return np.flatnonzero(np.asarray(index))
    return _ids(index)


class DiskFeatureStore(_native.Handle, _Features):
    """Features (`x`) and labels (`y`) of a dataset by vertex, read from the disk: for evaluation, for other samplers.

    Rows are read past the page cache, neighbouring pages together. `cache`: bytes of rows that stay in memory, those of
    `hot` or, without it, of the vertices that most edges come from. A PyG `FeatureStore` where PyG is installed; the
    group's name is None. Any thread may read. InvalidArgument for ids out of range and other attributes, IoError with
    file and offset.
    """

    _kind = "rows"

    def __init__(
        self,
        dataset: Dataset,
        cache: int | str = 0,
        hot: Any = None,
        engine: str | None = None,
    ) -> None:
        super().__init__()
        features = dataset.features
        self._dataset, self._dim, self._dtype = dataset, features.shape[1], features.dtype
        rows = min(_native.size("cache", cache) // (self._dim * features.dtype.itemsize), dataset.num_vertices)
        cached = most_used(dataset, rows) if hot is None else np.ascontiguousarray(_ids(hot)[:rows], np.int64)
        options = _native.RowsOptions(
            dataset=str(dataset.path).encode(),
            cached=cached.ctypes.data if len(cached) else None,
            num_cached=len(cached),
            engine=None if engine is None else engine.encode(),
        )
        self._worker: ThreadPoolExecutor | None = None
        self._open(options)
        self.cached_rows = len(cached)

    def __len__(self) -> int:
        return self._dataset.num_vertices

    def read(self, ids: Any) -> np.ndarray:
        """Rows of features, (len(ids), dim); bf16 as 16-bit words."""
        self._check_open()
        array = np.ascontiguousarray(_ids(ids), np.int64)
        out = np.empty((len(array), self._dim), self._dtype)
        _native.call(
            "ovl_gnn_rows_read",
            self._handle,
            c.c_void_p(array.ctypes.data),
            c.c_int64(len(array)),
            c.c_void_p(out.ctypes.data),
            c.c_int64(out.nbytes),
        )
        return out

    def read_async(self, ids: Any) -> Future:
        """Reads while others work: a future of the rows. Requests are served in their order.

        The ids are copied: the caller may change them while the request waits for its turn.
        """
        return self._submit(self.read, np.array(_ids(ids), np.int64))

    def get_tensor_async(self, attr: Any) -> Future:
        """A future of what PyG's `get_tensor(attr)` gives, for the index that it has now."""
        attr = copy.copy(attr)
        if hasattr(attr.index, "dtype"):
            attr.index = copy.deepcopy(attr.index)
        return self._submit(self.get_tensor, attr)

    def _submit(self, work: Any, argument: Any) -> Future:
        self._check_open()
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, "overlace-rows")
        return self._worker.submit(work, argument)

    def stats(self) -> dict[str, int]:
        """Rows asked for, those of them from memory, reads, bytes of pages."""
        out = _native.RowsStats()
        _native.call("ovl_gnn_rows_stats_of", self._handle, c.byref(out))
        return {name: getattr(out, name) for name in names_of(type(out))}

    def close(self) -> None:
        """Waits for what is under way and gives the memory back; more than once is fine."""
        if self._worker is not None:
            self._worker.shutdown()
            self._worker = None
        super().close()

    def _get_tensor(self, attr: Any) -> Any:
        import torch

        labels = self._dataset.labels
        if attr.group_name is not None or self._get_tensor_size(attr) is None:
            known = [name for name in ("x", "y") if name == "x" or labels is not None]
            raise errors.InvalidArgument(
                f"group {attr.group_name!r} and attribute {attr.attr_name!r}, wanted None and {' or '.join(known)}"
            )
        if attr.attr_name == "x":
            rows = torch.from_numpy(self.read(_rows_of(attr.index, len(self))))
            return rows.view(torch.bfloat16) if self._dataset.dtype == "bf16" else rows
        vertices = _rows_of(attr.index, len(self))
        wrong = np.flatnonzero((vertices < 0) | (vertices >= len(self)))
        if len(wrong) > 0:
            raise errors.InvalidArgument(f"ids[{wrong[0]}] is {vertices[wrong[0]]}, wanted 0 to {len(self) - 1}")
        assert labels is not None  # as y has a size
        return torch.from_numpy(labels[vertices])

    def _get_tensor_size(self, attr: Any) -> tuple[int, ...] | None:
        sizes: dict[str, tuple[int, ...]] = {"x": (len(self), self._dim)}
        if self._dataset.labels is not None:
            sizes["y"] = (len(self),)
        return sizes.get(attr.attr_name)

    def _put_tensor(self, tensor: Any, attr: Any) -> bool:
        raise errors.Unsupported(f"DiskFeatureStore is read-only: {attr.attr_name} cannot be put")

    def _remove_tensor(self, attr: Any) -> bool:
        raise errors.Unsupported(f"DiskFeatureStore is read-only: {attr.attr_name} cannot be removed")

    def get_all_tensor_attrs(self) -> list[Any]:
        _need_pyg()
        names = ["x"] if self._dataset.labels is None else ["x", "y"]
        return [TensorAttr(group_name=None, attr_name=name) for name in names]


class PinnedFeatureStore(_Features):
    """Features in memory by vertex, for PyG's loaders: each attribute is a `PinnedTable`, from which a GPU reads the
    rows that are asked for by itself, over the link, where the table has a device; else threads gather them.

    `tables`: by attribute, such as {"x": table}, whose group is None, or by (group, attribute) of graphs of several
    types. Rows are tensors where the table gathers them: on its GPU, so loaders want no worker processes then.
    InvalidArgument for ids out of range, other groups and other attributes; tables are not put, changed or removed.
    """

    def __init__(self, tables: Mapping[Any, PinnedTable]) -> None:
        super().__init__()
        for key, table in tables.items():
            if not isinstance(table, PinnedTable):
                raise errors.InvalidArgument(f"tables[{key!r}] is a {type(table).__name__}, wanted a PinnedTable")
        self._tables = {key if isinstance(key, tuple) else (None, key): table for key, table in tables.items()}

    def _table(self, attr: Any) -> PinnedTable | None:
        return self._tables.get((attr.group_name, attr.attr_name))

    def _get_tensor(self, attr: Any) -> Any:
        import torch

        table = self._table(attr)
        if table is None:
            known = ", ".join(f"{group!r} and {name!r}" for group, name in self._tables)
            raise errors.InvalidArgument(
                f"group {attr.group_name!r} and attribute {attr.attr_name!r}, wanted one of {known or 'none'}"
            )
        index = attr.index
        if table.device is None or not isinstance(index, torch.Tensor) or index.dtype == torch.bool:
            index = _rows_of(index, len(table))
        rows = table[index]
        return rows if isinstance(rows, torch.Tensor) else torch.from_numpy(rows)

    def _get_tensor_size(self, attr: Any) -> tuple[int, ...] | None:
        table = self._table(attr)
        return None if table is None else table.shape

    def _put_tensor(self, tensor: Any, attr: Any) -> bool:
        raise errors.Unsupported(
            f"PinnedFeatureStore: {attr.attr_name} cannot be put, wanted in tables when the store is made"
        )

    def _remove_tensor(self, attr: Any) -> bool:
        raise errors.Unsupported(
            f"PinnedFeatureStore: {attr.attr_name} cannot be removed, wanted out of tables when the store is made"
        )

    def get_all_tensor_attrs(self) -> list[Any]:
        _need_pyg()
        return [TensorAttr(group_name=group, attr_name=name) for group, name in self._tables]


class CscGraphStore(_Graphs):
    """The graph of a dataset as PyG's `GraphStore`: one edge type, None, in the layout csc, mapped from its files.

    Ids of 4 bytes are copied to those of 8 that PyG takes, once, when they are asked for.
    """

    def __init__(self, dataset: Dataset) -> None:
        super().__init__()
        self._dataset = dataset
        self._csc: tuple[Any, Any] | None = None

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """indptr (num_vertices + 1) and indices (num_edges): in-neighbours, mapped."""
        return self._dataset.indptr, self._dataset.indices

    def _get_edge_index(self, edge_attr: Any) -> tuple[Any, Any] | None:
        import torch

        if edge_attr.edge_type is not None or edge_attr.layout != EdgeLayout.CSC:
            return None
        if self._csc is None:
            path = self._dataset.path
            # NOTE: private mappings, which torch takes as memory that may be written.
            indptr, indices = (np.load(path / f"{name}.npy", mmap_mode="c") for name in ("indptr", "indices"))
            self._csc = torch.from_numpy(indices.astype(np.int64, copy=False)), torch.from_numpy(indptr)
        return self._csc

    def _put_edge_index(self, edge_index: Any, edge_attr: Any) -> bool:
        raise errors.Unsupported("CscGraphStore is read-only: edges cannot be put")

    def _remove_edge_index(self, edge_attr: Any) -> bool:
        raise errors.Unsupported("CscGraphStore is read-only: edges cannot be removed")

    def get_all_edge_attrs(self) -> list[Any]:
        _need_pyg()
        count = self._dataset.num_vertices
        only: Any = None  # PyG's annotation leaves it out, which its loaders take for a graph of one type
        return [EdgeAttr(edge_type=only, layout=EdgeLayout.CSC, is_sorted=True, size=(count, count))]


def _need_pyg() -> None:
    if not HAS_PYG:
        raise errors.Unsupported("torch_geometric is not installed; wanted it, or the arrays of read() and arrays()")
