"""Competitors that read single rows from the disk: what stays in memory is planned by what they know of the future.

Each has a cache of the same number of rows, full at the start with the rows that are used most, and reads the others
past the page cache. After a batch it keeps the rows whose next use, as far as it knows, comes soonest, then those that
were used last.
"""

from __future__ import annotations

import collections
import mmap
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from overlace import gnn
from systems import PAGE, READERS, Trace, with_rows

SUPERBATCH = 128  # batches whose samples `ginex_like` has before it trains on them
WINDOW = 16  # batches that `window_rows` looks ahead, and reads ahead
HOT_SHARE = 0.5  # of its cache that never changes


@dataclass
class Step:
    """What a batch does: places of the rows that are read, and of them those that enter a slot."""

    missed: np.ndarray
    kept: np.ndarray
    slots: np.ndarray


def plan(
    trace: Trace, num_vertices: int, capacity: int, hot: int, known: Callable[[int], int]
) -> tuple[np.ndarray, list[Step]]:
    """The vertices in the cache at the start, by slot, and what each batch does. `hot` of them never change.

    After batch b the uses in batches below known(b) are known.
    """
    never = len(trace.batches)
    counts = np.bincount(np.concatenate([b.n_id for b in trace.batches]), minlength=num_vertices)
    start = np.lexsort((np.arange(num_vertices), -counts))[:capacity]
    following, upcoming = [], np.full(num_vertices, never, np.int64)
    for b in reversed(range(never)):
        ids = trace.batches[b].n_id
        following.append(upcoming[ids])
        upcoming[ids] = b
    following.reverse()
    slot_of = np.full(num_vertices, -1, np.int64)
    slot_of[start] = np.arange(len(start))
    holder, last_use = start.copy(), np.full(num_vertices, -1, np.int64)
    steps = []
    for b, batch in enumerate(trace.batches):
        ids = batch.n_id
        upcoming[ids], last_use[ids] = following[b], b
        missed = np.flatnonzero(slot_of[ids] < 0)
        some = np.concatenate([holder[hot:], ids[missed]])
        uses = upcoming[some]
        uses[uses >= known(b)] = never
        order = np.argsort(uses * (never + 1) - last_use[some], kind="stable")
        is_kept = np.zeros(len(some), bool)
        is_kept[order[: len(holder) - hot]] = True
        slots = hot + np.flatnonzero(~is_kept[: len(holder) - hot])
        kept = missed[np.flatnonzero(is_kept[len(holder) - hot :])]
        slot_of[holder[slots]] = -1
        holder[slots] = ids[kept]
        slot_of[ids[kept]] = slots
        steps.append(Step(missed, kept, slots))
    return start, steps


class PageReader:
    """A request for each row, of the pages that it lies on, by threads; nothing is merged."""

    def __init__(self, dataset: gnn.Dataset) -> None:
        self._row = dataset.dim * dataset.features.dtype.itemsize
        self._offset = dataset.features.offset
        self._file = os.open(dataset.path / "features.npy", os.O_RDONLY | os.O_DIRECT)
        pages = -(-self._row // PAGE) + (PAGE % self._row != 0 or self._offset % PAGE != 0)
        self._memory = [mmap.mmap(-1, pages * PAGE) for _ in range(READERS)]
        self._pool = ThreadPoolExecutor(READERS)
        self.dtype, self.dim = dataset.features.dtype, dataset.dim
        self.bytes_read = 0

    def read(self, ids: np.ndarray) -> np.ndarray:
        out = np.empty((len(ids), self.dim), self.dtype)
        raw = out.view(np.uint8).reshape(len(ids), self._row)
        parts = np.array_split(np.arange(len(ids)), READERS)
        done = [self._pool.submit(self._part, worker, part, ids, raw) for worker, part in enumerate(parts)]
        self.bytes_read += sum(one.result() for one in done)
        return out

    def _part(self, worker: int, places: np.ndarray, ids: np.ndarray, out: np.ndarray) -> int:
        view, total = np.frombuffer(self._memory[worker], np.uint8), 0
        for place, vertex in zip(places.tolist(), ids[places].tolist(), strict=True):
            at = self._offset + vertex * self._row
            first = at // PAGE * PAGE
            wanted = -(-(at + self._row - first) // PAGE) * PAGE
            os.preadv(self._file, [memoryview(self._memory[worker])[:wanted]], first)
            out[place] = view[at - first : at - first + self._row]
            total += wanted
        return total

    def planned(self, ids: np.ndarray) -> int:
        """Bytes of read(ids)."""
        first = (self._offset + ids * self._row) // PAGE
        last = (self._offset + (ids + 1) * self._row - 1) // PAGE
        return int((last - first + 1).sum()) * PAGE

    def close(self) -> None:
        self._pool.shutdown()
        os.close(self._file)


class MergedReader:
    """Requests for the same or neighbouring pages go together: `DiskFeatureStore`, io_uring where there is one."""

    def __init__(self, dataset: gnn.Dataset) -> None:
        self._row = dataset.dim * dataset.features.dtype.itemsize
        self._offset = dataset.features.offset
        self._store = gnn.DiskFeatureStore(dataset, hot=np.empty(0, np.int64))

    @property
    def bytes_read(self) -> int:
        return self._store.stats()["bytes_read"]

    def read(self, ids: np.ndarray) -> np.ndarray:
        return self._store.read(ids)

    def planned(self, ids: np.ndarray) -> int:
        """Bytes of read(ids), for rows that do not cross a page."""
        return len(np.unique((self._offset + ids * self._row) // PAGE)) * PAGE

    def close(self) -> None:
        self._store.close()


class RowWay:
    """A way to get the batches of a trace, as a generator; bytes are counted by whoever reads."""

    def __init__(
        self, name: str, dataset: gnn.Dataset, trace: Trace, cached: int, superbatch: int = SUPERBATCH
    ) -> None:
        self._dataset, self._trace = dataset, trace
        hot, self._ahead, known = {
            "row_reads": (cached, 0, lambda b: b + 1),
            "ginex_like": (0, 0, lambda b: (b // superbatch + 1) * superbatch),
            "window_rows": (round(HOT_SHARE * cached), WINDOW, lambda b: b + 1 + WINDOW),
        }[name]
        self._start, self._steps = plan(trace, dataset.num_vertices, cached, hot, known)
        self._reader = (MergedReader if name == "window_rows" else PageReader)(dataset)

    def __enter__(self) -> RowWay:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()

    @property
    def bytes_read(self) -> int:
        """So far, by all loops."""
        return self._reader.bytes_read

    def planned_bytes(self) -> int:
        """Bytes of a loop over all batches."""
        pairs = zip(self._trace.batches, self._steps, strict=True)
        return sum(self._reader.planned(batch.n_id[step.missed]) for batch, step in pairs)

    def __iter__(self) -> Iterator[gnn.Batch]:
        """The cache is filled here, not at the first batch."""
        return self._batches(np.array(self._dataset.features[self._start]))

    def _batches(self, cache: np.ndarray) -> Iterator[gnn.Batch]:
        slot_of = np.full(self._dataset.num_vertices, -1, np.int64)
        slot_of[self._start] = np.arange(len(self._start))
        holder = self._start.copy()
        with ThreadPoolExecutor(1) as pool:
            reads: collections.deque[Future] = collections.deque()
            asked = 0
            for b, (batch, step) in enumerate(zip(self._trace.batches, self._steps, strict=True)):
                for other in range(asked, min(b + self._ahead, len(self._steps) - 1) + 1):
                    ids = self._trace.batches[other].n_id[self._steps[other].missed]
                    reads.append(pool.submit(self._reader.read, ids))
                    asked = other + 1
                x = np.empty((len(batch.n_id), cache.shape[1]), cache.dtype)
                slots = slot_of[batch.n_id]
                x[slots >= 0] = cache[slots[slots >= 0]]
                x[step.missed] = reads.popleft().result()
                slot_of[holder[step.slots]] = -1
                holder[step.slots] = batch.n_id[step.kept]
                slot_of[batch.n_id[step.kept]] = step.slots
                cache[step.slots] = x[step.kept]
                yield with_rows(batch, torch.from_numpy(x))
