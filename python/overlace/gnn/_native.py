"""overlace/capi_gnn.h by ctypes."""

from __future__ import annotations

import ctypes as c
import re
from collections.abc import Callable
from typing import Any

from overlace import errors
from overlace._library import LIBRARY, _Sized

PROGRESS = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_char_p, c.c_double)
SPLITS = ("train", "valid", "test")
POLICIES = ("none", "static", "lru", "belady")
ORDERS = ("auto", "fixed", "segments", "shuffle")
_UNITS = {"": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}


class Generate(_Sized):
    _fields_ = (
        ("struct_size", c.c_size_t),
        ("directory", c.c_char_p),
        ("like", c.c_char_p),
        ("num_vertices", c.c_int64),
        ("dim", c.c_int64),
        ("seed", c.c_uint64),
        ("threads", c.c_int32),
    )


class Import(_Sized):
    _fields_ = (
        ("struct_size", c.c_size_t),
        ("source", c.c_char_p),
        ("directory", c.c_char_p),
        ("layout", c.c_char_p),
        ("num_classes", c.c_int64),
        ("memory_bytes", c.c_int64),
        ("both_directions", c.c_int32),
        ("bf16", c.c_int32),
        ("threads", c.c_int32),
        ("progress", PROGRESS),
        ("user", c.c_void_p),
    )


class Imported(_Sized):
    _fields_ = (
        ("struct_size", c.c_size_t),
        *((name, c.c_int64) for name in ("isolated", "unlabelled", "nan_rows")),
    )


class Sample(_Sized):
    _fields_ = (
        ("struct_size", c.c_size_t),
        ("dataset", c.c_char_p),
        ("artefact", c.c_char_p),
        ("fanouts", c.POINTER(c.c_int32)),
        ("num_fanouts", c.c_int32),
        ("replace", c.c_int32),
        ("batch_size", c.c_int64),
        ("seed", c.c_uint64),
        ("splits", c.c_int32),
        ("threads", c.c_int32),
        ("epochs", c.c_int32),
        ("progress", PROGRESS),
        ("user", c.c_void_p),
    )


class Pack(_Sized):
    _fields_ = (
        ("struct_size", c.c_size_t),
        ("dataset", c.c_char_p),
        ("artefact", c.c_char_p),
        ("gpu_bytes", c.c_int64),
        ("cpu_bytes", c.c_int64),
        ("disk_bytes", c.c_int64),
        ("memory_bytes", c.c_int64),
        ("segment_batches", c.c_int64),
        ("policy", c.c_int32),
        ("order", c.c_int32),
        ("depth", c.c_int32),
        ("page_bytes", c.c_int32),
        ("ranks", c.c_int32),
        ("progress", PROGRESS),
        ("user", c.c_void_p),
    )


class Gather(_Sized):
    _fields_ = (
        ("struct_size", c.c_size_t),
        ("table", c.c_void_p),
        ("num_rows", c.c_int64),
        ("row_bytes", c.c_int64),
        ("ids", c.c_void_p),
        ("num_ids", c.c_int64),
        ("id_bytes", c.c_int32),
        ("threads", c.c_int32),
        ("out", c.c_void_p),
    )


class RowSource(c.Structure):
    _fields_ = (("rows", c.c_void_p), ("num_rows", c.c_int64))


class DeviceGather(_Sized):
    _fields_ = (
        ("struct_size", c.c_size_t),
        ("sources", c.c_void_p),
        ("num_sources", c.c_int64),
        ("row_bytes", c.c_int64),
        ("ids", c.c_void_p),
        ("num_ids", c.c_int64),
        ("id_bytes", c.c_int32),
        ("device", c.c_int32),
        ("ctas", c.c_int32),
        ("out", c.c_void_p),
        ("first_bad", c.c_void_p),
        ("stream", c.c_void_p),
    )


class RowsOptions(_Sized):
    _fields_ = (
        ("struct_size", c.c_size_t),
        ("dataset", c.c_char_p),
        ("cached", c.c_void_p),
        ("num_cached", c.c_int64),
        ("engine", c.c_char_p),
    )


class RowsStats(_Sized):
    _fields_ = (
        ("struct_size", c.c_size_t),
        *((name, c.c_int64) for name in ("rows", "cached_rows", "reads", "bytes_read")),
    )


class LoaderOptions(_Sized):
    _fields_ = (
        ("struct_size", c.c_size_t),
        ("artefact", c.c_char_p),
        ("packs", c.c_char_p),
        ("split", c.c_int32),
        ("engine", c.c_char_p),
        ("order_seed", c.c_uint64),
        ("memory_bytes", c.c_int64),
        ("pace_bytes_per_s", c.c_int64),
        ("rank", c.c_int32),
        ("ranks", c.c_int32),
        ("on_gpu", c.c_int32),
        ("device", c.c_int32),
        ("gather_ctas", c.c_int32),
        ("unchecked", c.c_int32),
        ("source", c.c_char_p),
    )


class LoaderInfo(_Sized):
    _fields_ = (
        ("struct_size", c.c_size_t),
        ("num_batches", c.c_int64),
        ("num_vertices", c.c_int64),
        ("num_classes", c.c_int64),
        ("dim", c.c_int64),
        ("row_bytes", c.c_int64),
        ("memory_bytes", c.c_int64),
        ("bytes_read", c.c_int64),
        ("feature_bytes", c.c_int64),
        ("sampled_epochs", c.c_int64),
        ("device_bytes", c.c_int64),
        ("outputs", c.c_void_p),
        ("outputs_bytes", c.c_int64),
        ("dtype", c.c_char * 8),
        ("packs", c.c_char * 32),
    )


class BatchStruct(_Sized):
    _fields_ = (
        ("struct_size", c.c_size_t),
        ("number", c.c_int64),
        ("position", c.c_int64),
        ("sampled_epoch", c.c_int64),
        ("is_repeated", c.c_int64),
        ("num_inputs", c.c_int64),
        ("num_seeds", c.c_int64),
        ("hops", c.c_int64),
        ("num_edges", c.c_int64),
        ("bytes", c.c_int64),
        ("rows", c.c_void_p),
        ("ids", c.c_void_p),
        ("edges", c.c_void_p),
        ("classes", c.c_void_p),
        ("inputs", c.c_void_p),
        ("reached", c.c_void_p),
        ("indptr", c.c_void_p),
        ("indices", c.c_void_p),
        ("labels", c.c_void_p),
    )


class StatsStruct(_Sized):
    _fields_ = (
        ("struct_size", c.c_size_t),
        *((name, c.c_int64) for name in ("batches", "bytes_read", "requests", "read_again")),
        *((name, c.c_int64) for name in ("gpu_rows", "cpu_rows", "ring_rows", "admitted")),
        *((name, c.c_double) for name in ("verify_s", "gather_s", "admit_s", "waited_s", "read_s")),
        ("mended_rows", c.c_int64),
    )


def call(name: str, *arguments: object) -> None:
    """A function of overlace/capi_gnn.h; what it says becomes an exception. Other threads of Python go on meanwhile."""
    code = getattr(LIBRARY, name)(*arguments)
    if code != 0:
        raise errors.make(LIBRARY.ovl_error_name(code).decode(), LIBRARY.ovl_error_text().decode())


def call_with_progress(
    name: str, request: _Sized, progress: Callable[[str, float], None] | None, *more: object
) -> None:
    """A call of a long step; what `progress` raises ends it and is raised again."""
    raised: list[BaseException] = []

    def report(_user: object, what: bytes, share: float) -> int:
        try:
            if progress is not None:
                progress(what.decode(), share)
        except BaseException as error:
            raised.append(error)
            return 1
        return 0

    if progress is not None:
        request.progress = PROGRESS(report)
    try:
        call(name, c.byref(request), *more)
    except errors.Error:
        if raised:
            raise raised[0] from None
        raise


def size(name: str, value: int | str | None) -> int:
    """Bytes of 4096, "8GiB", "512MiB"; None is 0."""
    if value is None:
        return 0
    match = re.fullmatch(r"(\d+)(KiB|MiB|GiB|TiB|)", str(value))
    if not match:
        raise errors.InvalidArgument(f"{name} is {value!r}, wanted bytes such as 8GiB, 512MiB or 1000000")
    return int(match[1]) << _UNITS[match[2]]


def word(name: str, value: str, known: tuple[str, ...]) -> int:
    if value not in known:
        raise errors.InvalidArgument(f"{name} is {value!r}, wanted one of {', '.join(known)}")
    return known.index(value)


class Handle:
    """What the library has opened for an object, until `close()`, the end of its `with` block or its last reference."""

    _kind: str  # ovl_gnn_<kind>_open and ovl_gnn_<kind>_close
    _handle: c.c_void_p | None = None

    def _open(self, options: _Sized) -> c.c_void_p:
        handle = c.c_void_p()
        call(f"ovl_gnn_{self._kind}_open", c.byref(options), c.byref(handle))
        self._handle = handle
        return handle

    def _check_open(self) -> None:
        if self._handle is None:
            raise errors.make("closed", f"{type(self).__name__}: it is closed")

    def close(self) -> None:
        """Ends what is under way and gives the memory back; more than once is fine."""
        handle, self._handle = self._handle, None
        if handle is not None:
            call(f"ovl_gnn_{self._kind}_close", handle)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self._handle is not None:
            self.close()
