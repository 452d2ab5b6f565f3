"""Where tensors lie in safetensors files: headers are read and checked, data are not."""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from overlace import errors

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_MAX_HEADER = 100 << 20  # of the format
_LENGTH = 8  # bytes of the header's length, before it


@dataclass(frozen=True)
class Stored:
    """A tensor in a file."""

    path: str
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    bytes: int


def _corrupt(text: str) -> BaseException:
    return errors.make("corrupt", text)


def _io(path: object, error: OSError) -> BaseException:
    return errors.make("io", f"{path}: {error.strerror or error}")


def _parsed(entry: Any) -> tuple[torch.dtype, tuple[int, ...], int, int] | None:
    """dtype, shape, first and last offset; None where something is missing or of another kind."""
    try:
        dtype, shape, (first, last) = DTYPES[entry["dtype"]], tuple(entry["shape"]), entry["data_offsets"]
    except (KeyError, TypeError, ValueError):
        return None
    is_whole = all(isinstance(x, int) and x >= 0 for x in (*shape, first, last))
    return (dtype, shape, first, last) if is_whole else None


def _stored(path: str, name: str, entry: Any, begin: int, end: int) -> Stored:
    parsed = _parsed(entry)
    if parsed is None:
        raise _corrupt(f"{path}: tensor {name!r} is {entry!r}, wanted dtype, shape and data_offsets of safetensors")
    dtype, shape, first, last = parsed
    bytes_wanted = math.prod(shape) * dtype.itemsize
    if last - first != bytes_wanted:
        raise _corrupt(f"{path}: tensor {name!r} has {last - first} bytes, wanted {bytes_wanted} of {entry['shape']}")
    if begin + last > end:
        raise _corrupt(f"{path}: {end} bytes, wanted {begin + last} for tensor {name!r}; the file is cut")
    return Stored(path, name, dtype, shape, begin + first, bytes_wanted)


def read_header(path: str) -> dict[str, Stored]:
    """By name, what the file holds."""
    try:
        with open(path, "rb") as file:
            end = os.fstat(file.fileno()).st_size
            head = file.read(_LENGTH)
            length = struct.unpack("<Q", head)[0] if len(head) == _LENGTH else _MAX_HEADER + 1
            if length > min(_MAX_HEADER, end):
                raise _corrupt(f"{path}: {end} bytes that do not begin as safetensors do")
            entries = json.loads(file.read(length))
    except OSError as error:
        raise _io(path, error) from None
    except ValueError as error:
        raise _corrupt(f"{path}: its header is no JSON: {error}") from None
    if not isinstance(entries, dict):
        raise _corrupt(f"{path}: its header is {type(entries).__name__}, wanted an object")
    begin = _LENGTH + length
    return {name: _stored(path, name, entry, begin, end) for name, entry in entries.items() if name != "__metadata__"}


def _of_directory(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return [folder / "model.safetensors"]
    try:
        names = set(json.loads(index.read_text())["weight_map"].values())
        if not all(isinstance(name, str) and Path(name).name == name for name in names):
            raise ValueError("a file of it has another folder")
        return [folder / name for name in sorted(names)]
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise _corrupt(f"{index}: no map of tensors and files: {error}") from None
    except OSError as error:
        raise _io(index, error) from None


class Files:
    """Tensors of a file, several, or a directory with model.safetensors or its index."""

    def __init__(self, source: str | os.PathLike | list) -> None:
        listed = source if isinstance(source, (list, tuple)) else [source]
        paths: list[Path] = []
        for path in map(Path, listed):
            paths += _of_directory(path) if path.is_dir() else [path]
        self.text = ", ".join(map(str, listed))
        self.tensors: dict[str, Stored] = {}
        for path in paths:
            self.tensors |= read_header(str(path.resolve() if path.exists() else path))
        self._maps: dict[str, mmap.mmap] = {}

    def prefix_of(self, name: str, prefix: str | None) -> str:
        """What stands before the names of blocks' tensors: given, or the only one that fits `name`."""
        if prefix is not None:
            return prefix
        found = sorted(t[: -len(name)] for t in self.tensors if t == name or t.endswith("." + name))
        if len(found) != 1:
            fitting = "none" if not found else " and ".join(map(repr, found))
            text = f"{self.text}: tensor {name!r} with anything before it: {fitting}; wanted one, or prefix="
            raise _corrupt(text) if not found else errors.InvalidArgument(text)
        return found[0]

    def mapped(self, stored: Stored) -> torch.Tensor:
        """The tensor where it lies: pages are read when they are touched, and what is written stays in this process."""
        if stored.bytes == 0:
            return torch.empty(stored.shape, dtype=stored.dtype)
        if stored.path not in self._maps:
            with open(stored.path, "rb") as file:
                self._maps[stored.path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        count = math.prod(stored.shape)
        flat = torch.frombuffer(self._maps[stored.path], dtype=stored.dtype, count=count, offset=stored.offset)
        return flat.view(stored.shape)
