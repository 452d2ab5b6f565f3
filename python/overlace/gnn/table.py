"""Rows of a table in memory by their numbers, on CPUs and CUDA devices, for those who train without packs."""

from __future__ import annotations

import ctypes as c
import mmap
import resource
import sys
from typing import Any

import numpy as np

from overlace import errors
from overlace.gnn import _device, _native
from overlace.gnn._device import is_tensor as _is_tensor
from overlace.gnn.dataset import Dataset
from overlace.gnn.dlpack import DlpackArray, array_of

_COPY_BYTES = 64 << 20  # at a time, of a source that may lie on a disk


def _is_foreign(value: Any) -> bool:
    """Neither an array nor a tensor, but something that shares its memory by DLPack."""
    return not isinstance(value, np.ndarray) and not _is_tensor(value) and hasattr(value, "__dlpack__")


def _address(value: Any) -> int:
    return value.data_ptr() if _is_tensor(value) else value.ctypes.data


def _check_rows(name: str, value: Any) -> int:
    """Bytes of a row."""
    if _is_tensor(value):
        if value.device.type != "cpu":
            raise errors.Unsupported(f"{name} lies on {value.device}, wanted one on the CPU or a CUDA device")
        is_dense, item = value.is_contiguous(), value.element_size()
    elif isinstance(value, np.ndarray):
        is_dense, item = value.flags.c_contiguous, value.itemsize
        if value.dtype.hasobject:
            raise errors.InvalidArgument(f"{name} has dtype {value.dtype}, wanted numbers")
    else:
        raise errors.InvalidArgument(f"{name} is {type(value).__name__}, wanted an array or a tensor")
    return _device.row_bytes(name, value.shape, is_dense, item)


def _ids(ids: Any) -> np.ndarray:
    """The ids as an array of 32 or 64-bit integers."""
    if _is_tensor(ids):
        if ids.device.type != "cpu":
            raise errors.Unsupported(f"ids lie on {ids.device}, wanted them on the CPU or a CUDA device")
        ids = ids.detach().numpy()
    array = array_of("ids", ids)[0] if _is_foreign(ids) else np.asarray(ids)
    if array.size == 0 and not isinstance(ids, np.ndarray):
        array = array.astype(np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise errors.InvalidArgument(f"ids have shape {array.shape} and dtype {array.dtype}, wanted a row of integers")
    if array.dtype == np.uint64 and array.size > 0 and array.max() > np.iinfo(np.int64).max:
        raise errors.InvalidArgument(f"ids has {array.max()}, wanted at most {np.iinfo(np.int64).max}")
    wanted = np.int32 if array.dtype == np.int32 else np.int64
    return np.ascontiguousarray(array, wanted)


def _device_ids(ids: Any) -> Any:
    """What is on a CUDA device stays there."""
    return ids if _device.device_among(ids) is not None else _ids(ids)


def _parts(table: Any) -> list[Any]:
    return list(table) if isinstance(table, (tuple, list)) else [table]


def gather_rows(table: Any, ids: Any, out: Any = None, threads: int = 0, check: bool = True) -> Any:
    """Row i of the result is row ids[i] of `table`, an array or a tensor of any dtype.

    (len(ids), *table.shape[1:]), of the table's kind and dtype; `out` takes it where it is given.

    On CPUs `threads` threads copy (0: the cores). What is no array or tensor but has `__dlpack__` is taken in place, as
    table and as ids; rows of such a table are a `DlpackArray` around `out` or a new array.

    Where `out`, `ids` or the table lies on a CUDA device the result does (the first of these that does says which), and
    a kernel on its current stream copies. The table is then a tensor on that device, on one that it can read, or in
    pinned memory; or a sequence of such tensors and of PinnedTables, whose rows are numbered one behind the other. Ids
    on the device are checked there: this waits for it unless `check` is False, which wants ids in range and leaves the
    rows of others as they are. What is pinned must stay until the stream is past it. Capturable with ids on the device
    and without `check`.

    InvalidArgument, and nothing written, where an id is out of range (the first one is named), the table is not
    contiguous, or `out` does not fit.
    """
    parts = [part.rows if isinstance(part, PinnedTable) else part for part in _parts(table)]
    device = _device.device_among(out, ids, *parts)
    if device is not None:
        return _device.gather(parts, _device_ids(ids), out, device, check)
    if _is_foreign(table):
        shared, is_bf16 = array_of("table", table)
        return DlpackArray(gather_rows(shared, ids, out, threads), is_bf16)
    width = _check_rows("table", table)
    array = _ids(ids)
    shape = (len(array), *table.shape[1:])
    if out is None:
        out = table.new_empty(shape) if _is_tensor(table) else np.empty(shape, table.dtype)
    else:
        _check_rows("out", out)
        if type(out) is not type(table) and _is_tensor(out) != _is_tensor(table):
            raise errors.InvalidArgument(f"out is {type(out).__name__}, wanted one like the table")
        if tuple(out.shape) != shape or out.dtype != table.dtype:
            raise errors.InvalidArgument(
                f"out has shape {tuple(out.shape)} and dtype {out.dtype}, wanted {shape} and {table.dtype}"
            )
        if not _is_tensor(out) and not out.flags.writeable:
            raise errors.InvalidArgument("out may not be written, wanted one that may")
    request = _native.Gather(
        table=_address(table),
        num_rows=table.shape[0],
        row_bytes=width,
        ids=array.ctypes.data,
        num_ids=len(array),
        id_bytes=array.itemsize,
        threads=threads,
        out=_address(out),
    )
    _native.call("ovl_gnn_gather_rows", c.byref(request))
    return out


class PinnedTable:
    """A copy of rows in memory of its own, page-aligned, from which `table[ids]` gathers.

    `source`: an array, which may be a memory map and is then read in sequence; a CPU tensor; or a `Dataset`, whose
    features are taken. `lock`: the memory may not be swapped out; Unsupported, with the limit, where the system does
    not allow as much. `device`: a CUDA device of torch; the memory is pinned, `rows` is a tensor, and `table[ids]` is a
    tensor on this device, whose kernel reads the rows over the link; Unsupported where the memory cannot be pinned.
    """

    def __init__(self, source: Any, lock: bool = False, threads: int = 0, device: Any = None) -> None:
        if isinstance(source, Dataset):
            source = source.features
        width = _check_rows("source", source)
        if threads < 0:
            raise errors.InvalidArgument(f"threads is {threads}, wanted at least 0")
        self._threads = threads
        self.device = None if device is None else _device.checked("device", device)
        count = len(source)
        self.nbytes = count * width
        self._memory = mmap.mmap(-1, max(self.nbytes, 1))
        raw = np.frombuffer(self._memory, np.uint8)
        if lock:
            self._lock(raw)
        rows = raw[: self.nbytes].reshape(count, width)
        if _is_tensor(source):
            torch = sys.modules["torch"]
            self.rows = torch.from_numpy(rows).view(-1).view(source.dtype).view(source.shape)
        else:
            self.rows = rows.reshape(-1).view(source.dtype).reshape(source.shape)
        step = max(1, _COPY_BYTES // width)
        for first in range(0, count, step):
            self.rows[first : first + step] = source[first : first + step]
        if self.device is not None:
            self.rows = _device.tensor_of("source", self.rows)
            _device.pin(self, raw)

    def _lock(self, raw: np.ndarray) -> None:
        library = c.CDLL(None, use_errno=True)
        if library.mlock(c.c_void_p(raw.ctypes.data), c.c_size_t(len(raw))) != 0:
            limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
            raise errors.Unsupported(
                f"{len(raw)} bytes cannot be locked (errno {c.get_errno()}); this process may lock {limit}: raise"
                " `ulimit -l`, or pass lock=False"
            )

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.rows.shape)

    @property
    def dtype(self) -> Any:
        return self.rows.dtype

    def gather(self, ids: Any, out: Any = None, check: bool = True) -> Any:
        """Gathers as `gather_rows` does, on the table's device if it has one."""
        if self.device is None:
            return gather_rows(self.rows, ids, out, self._threads, check)
        return _device.gather((self.rows,), _device_ids(ids), out, self.device, check)

    def __getitem__(self, ids: Any) -> Any:
        return self.gather(ids)

    def __repr__(self) -> str:
        return f"PinnedTable({self.shape}, {self.dtype}, {self.nbytes} bytes)"
