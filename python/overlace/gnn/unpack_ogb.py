"""Unpacks a node-property dataset of OGB's layout into arrays that `overlace gnn import` takes, in bounded memory.

    python3 -m overlace.gnn.unpack_ogb FROM TO

`overlace gnn import` and `overlace.gnn.import_dataset` do it themselves.

Small sets: raw/{edge,node-feat,node-label}.csv.gz; large ones: raw/data.npz (edge_index, node_feat) and
raw/node-label.npz (node_label); both: split/<any>/{train,valid,test}.csv.gz. A label that is no number is -1.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import shutil
import sys
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from overlace import errors

_HEADER_BYTES = 4096
_CHUNK_BYTES = 1 << 22


class _Writer:
    """A .npy file of rows that come one chunk after the other; their number stands in the header in the end."""

    def __init__(self, path: Path, dtype: type) -> None:
        self._file = open(path, "wb")  # noqa: SIM115
        self._file.write(b" " * _HEADER_BYTES)
        self._dtype = np.dtype(dtype)
        self.rows, self._width = 0, None

    def append(self, rows: np.ndarray, source: Path) -> None:
        if self._width not in (None, rows.shape[1]):
            raise errors.InvalidArgument(f"{source}: row {self.rows} has {rows.shape[1]} numbers, wanted {self._width}")
        self._width = rows.shape[1]
        self.rows += len(rows)
        self._file.write(np.ascontiguousarray(rows, self._dtype).tobytes())

    def finish(self, flat: bool) -> None:
        shape = (self.rows * (self._width or 1),) if flat else (self.rows, self._width or 0)
        text = repr({"descr": self._dtype.str, "fortran_order": False, "shape": shape})
        head = b"\x93NUMPY\x01\x00" + (_HEADER_BYTES - 10).to_bytes(2, "little")
        self._file.seek(0)
        self._file.write(head + text.encode().ljust(_HEADER_BYTES - 11) + b"\n")
        self._file.close()


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """What is missing, cut or damaged is named with its file."""
    try:
        yield
    except (gzip.BadGzipFile, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise errors.InvalidArgument(f"{path}: {error}") from None
    except FileNotFoundError as error:
        raise errors.InvalidArgument(f"{error.filename}: {error.strerror}") from None


def _chunks(path: Path) -> Iterator[np.ndarray]:
    """Rows of a compressed table of numbers."""
    with gzip.open(path, "rt") as lines:
        row = 0
        while chunk := lines.readlines(_CHUNK_BYTES):
            width = chunk[0].count(",") + 1
            try:
                numbers = np.array(",".join(line.strip() for line in chunk).split(","), dtype=np.float64)
                yield numbers.reshape(len(chunk), width)
            except ValueError as error:
                raise errors.InvalidArgument(f"{path}: rows {row} to {row + len(chunk)}: {error}") from None
            row += len(chunk)


def _table(source: Path, target: Path, dtype: type, flat: bool = False) -> None:
    writer = _Writer(target, dtype)
    with _reading(source):
        for rows in _chunks(source):
            writer.append(_whole(rows, source, writer.rows) if dtype is np.int64 else rows, source)
    writer.finish(flat)


def _whole(rows: np.ndarray, source: Path, first: int) -> np.ndarray:
    """Ids or classes, -1 where there is no number."""
    rows = np.where(np.isnan(rows), -1, rows)
    wrong = np.flatnonzero((np.trunc(rows) != rows) | (np.abs(rows) > 2**53))
    if len(wrong) > 0:
        raise errors.InvalidArgument(
            f"{source}: row {first + wrong[0] // rows.shape[1]} has {rows.flat[wrong[0]]}, wanted a whole number"
        )
    return rows


def _member(archive: Path, name: str, target: Path) -> None:
    """An array of an .npz as a file of its own, copied as a stream."""
    with _reading(archive), zipfile.ZipFile(archive) as pack:
        if f"{name}.npy" not in pack.namelist():
            raise errors.InvalidArgument(f"{archive}: holds {', '.join(pack.namelist())}, wanted {name}.npy")
        with pack.open(f"{name}.npy") as source, open(target, "wb") as out:
            shutil.copyfileobj(source, out, _CHUNK_BYTES)


def _labels_of_archive(archive: Path, target: Path) -> None:
    with _reading(archive), np.load(archive) as arrays:
        if "node_label" not in arrays:
            raise errors.InvalidArgument(f"{archive}: holds {', '.join(arrays)}, wanted node_label")
        labels = arrays["node_label"].reshape(-1)
    np.save(target, np.where(np.isnan(labels), -1, labels).astype(np.int64))


def is_ogb(source: str | Path) -> bool:
    """Whether a directory has a node-property dataset of OGB's layout."""
    raw = Path(source) / "raw"
    return (raw / "data.npz").exists() or (raw / "edge.csv.gz").exists()


def unpack(source: str | Path, target: str | Path) -> None:
    """Writes edge_index.npy, x.npy, y.npy and the splits that there are. InvalidArgument names file and row."""
    source, target = Path(source), Path(target)
    raw = source / "raw"
    is_large = (raw / "data.npz").exists()
    if not is_ogb(source):
        raise errors.InvalidArgument(f"{source}: has neither raw/data.npz nor raw/edge.csv.gz")
    target.mkdir(parents=True, exist_ok=True)
    if is_large:
        _member(raw / "data.npz", "edge_index", target / "edge_index.npy")
        _member(raw / "data.npz", "node_feat", target / "x.npy")
        if (raw / "node-label.npz").exists():
            _labels_of_archive(raw / "node-label.npz", target / "y.npy")
    else:
        _table(raw / "edge.csv.gz", target / "edge_index.npy", np.int64)
        _table(raw / "node-feat.csv.gz", target / "x.npy", np.float32)
        if (raw / "node-label.csv.gz").exists():
            _table(raw / "node-label.csv.gz", target / "y.npy", np.int64, flat=True)
    for split in ("train", "valid", "test"):
        found = sorted(source.glob(f"split/*/{split}.csv.gz"))
        if len(found) > 1:
            raise errors.InvalidArgument(f"{source}: {len(found)} splits, such as {found[0]}, wanted one folder")
        if found:
            _table(found[0], target / f"{split}.npy", np.int64, flat=True)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="overlace.gnn.unpack_ogb", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("source", help="directory with raw/ and split/")
    parser.add_argument("target", help="directory for the arrays")
    options = parser.parse_args(words)
    try:
        unpack(options.source, options.target)
    except (errors.Error, OSError) as error:
        print(f"overlace: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
