"""overlace/capi_offload.h by ctypes."""

from __future__ import annotations

import ctypes as c
import os
import re
from dataclasses import dataclass
from typing import Any

from overlace import errors
from overlace._library import _Sized, call, handle

_UNITS = {"": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}


class Options(_Sized):
    _fields_ = (
        ("struct_size", c.c_size_t),
        ("num_blocks", c.c_int32),
        ("names", c.POINTER(c.c_char_p)),
        ("first_piece", c.POINTER(c.c_int32)),
        ("paths", c.POINTER(c.c_char_p)),
        ("offsets", c.POINTER(c.c_int64)),
        ("bytes", c.POINTER(c.c_int64)),
        ("memory", c.POINTER(c.c_void_p)),
        ("order", c.POINTER(c.c_int32)),
        ("order_length", c.c_int32),
        ("slots", c.c_int32),
        ("slot_bytes", c.c_int64),
        ("engine", c.c_char_p),
        ("timeout_ms", c.c_int64),
    )


class Stats(_Sized):
    _fields_ = (
        ("struct_size", c.c_size_t),
        *((name, c.c_int64) for name in ("blocks", "bytes", "waits", "memory_bytes")),
        ("memory", c.c_void_p),
        *((name, c.c_double) for name in ("waited_s", "filled_s")),
    )


@dataclass(frozen=True)
class Piece:
    """Bytes of a file, or of memory where there is no path."""

    bytes: int
    path: str = ""
    offset: int = 0
    memory: int = 0


class BlockStream:
    """Blocks are (name, pieces). What fails is raised as the class of its code."""

    def __init__(
        self,
        blocks: list[tuple[str, list[Piece]]],
        order: list[int],
        slots: int,
        engine: str | None = None,
        timeout_s: float = 0,
    ) -> None:
        self._handle: c.c_void_p | None = None
        self._pid = os.getpid()
        pieces = [piece for _, listed in blocks for piece in listed]
        ends, first = 0, [0]
        for _, listed in blocks:
            ends += len(listed)
            first.append(ends)
        self._counts = [len(listed) for _, listed in blocks]
        options = Options(
            num_blocks=len(blocks),
            names=_array(c.c_char_p, [name.encode() for name, _ in blocks]),
            first_piece=_array(c.c_int32, first),
            paths=_array(c.c_char_p, [os.fsencode(piece.path) if piece.path else None for piece in pieces]),
            offsets=_array(c.c_int64, [piece.offset for piece in pieces]),
            bytes=_array(c.c_int64, [piece.bytes for piece in pieces]),
            memory=_array(c.c_void_p, [piece.memory or None for piece in pieces]),
            order=_array(c.c_int32, order),
            order_length=len(order),
            slots=slots,
            engine=engine.encode() if engine else None,
            timeout_ms=round(timeout_s * 1000),
        )
        self._handle = handle("ovl_block_stream_open", c.byref(options))

    def acquire(self, block: int) -> list[int]:
        """Addresses of the pieces; they stay until release()."""
        out = (c.c_void_p * self._counts[block])()
        call("ovl_block_stream_acquire", self._mine(), block, out, len(out))
        return [address or 0 for address in out]

    def release(self, block: int) -> None:
        call("ovl_block_stream_release", self._mine(), block)

    def restart(self) -> None:
        call("ovl_block_stream_restart", self._mine())

    def stats(self) -> Stats:
        out = Stats()
        call("ovl_block_stream_stats_of", self._mine(), c.byref(out))
        return out

    def close(self) -> None:
        if self._handle is not None and self._pid == os.getpid():
            call("ovl_block_stream_close", self._handle)
        self._handle = None

    def _mine(self) -> c.c_void_p:
        if self._handle is None:
            raise errors.make("closed", "block stream: it is closed")
        if self._pid != os.getpid():
            text = f"block stream: opened by process {self._pid}, used by its child {os.getpid()}; open it in the child"
            raise errors.make("forked", text)
        return self._handle


def _array(kind: Any, values: list) -> c.Array:
    return (kind * max(len(values), 1))(*values)


def size(name: str, value: int | str) -> int:
    """Bytes of 4096, "8GiB", "512MiB"."""
    match = re.fullmatch(r"(\d+)(KiB|MiB|GiB|TiB|)", str(value))
    if not match:
        raise errors.InvalidArgument(f"{name} is {value!r}, wanted bytes such as 8GiB, 512MiB or 1000000")
    return int(match[1]) << _UNITS[match[2]]
