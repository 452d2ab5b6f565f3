"""The disk cache counted a second time, in NumPy: what the planner has no switch for, and whether it counts the same.

DiskGNN's third level: rows that several batches of a segment miss are stored once, on pages; rows that one batch misses
lie in its pack.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from systems import PAGE

WORD = (1 << 64) - 1


def random_word(key: int, number: int) -> int:
    """splitmix64 of a counter, as `src/gnn/sample/random.h` has it."""
    x = key + (number + 1) * 0x9E3779B97F4A7C15 & WORD
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & WORD
    x = (x ^ x >> 27) * 0x94D049BB133111EB & WORD
    return x ^ x >> 31


def ranks(count: int, key: int) -> np.ndarray:
    """Rank of each batch of a segment in a random permutation."""
    batches = list(range(count))
    for i in range(count, 1, -1):
        other = random_word(key, i) * i >> 64
        batches[i - 1], batches[other] = batches[other], batches[i - 1]
    out = np.empty(count, np.int64)
    out[batches] = np.arange(count)
    return out


@dataclass
class Stored:
    """Rows in packs and on pages, and bytes of features that a training epoch reads."""

    rows: int
    feature_bytes: int


class Misses:
    """Rows that each batch does not find in caches whose content does not change."""

    def __init__(self, missed: list[np.ndarray], row_bytes: int) -> None:
        batch = np.repeat(np.arange(len(missed)), [len(ids) for ids in missed])
        ids = np.concatenate(missed)
        order = np.argsort(ids, kind="stable")
        self._vertex, self._batch = ids[order].astype(np.int64), batch[order]
        self.count, self._batches, self._row = len(missed), missed, row_bytes

    @property
    def num_rows(self) -> int:
        """All of them: rows that packs have where nothing is stored once for several batches."""
        return len(self._vertex)

    def bytes_by_row(self) -> int:
        """A request for each row, of the whole pages that it lies on; its width divides a page or is a whole number."""
        return self.num_rows * -(-self._row // PAGE) * PAGE

    def bytes_by_page(self) -> int:
        """The same, but the rows of a batch that share a page are one request."""
        rows = max(1, PAGE // self._row)
        return sum(len(np.unique(ids // rows)) for ids in self._batches) * -(-self._row // PAGE) * PAGE

    def _begins(self, length: int) -> np.ndarray:
        """Where a row of a segment has its first miss."""
        segment = self._batch // length
        is_other = (np.diff(self._vertex) != 0) | (np.diff(segment) != 0)
        return np.concatenate(([0], 1 + np.flatnonzero(is_other)))

    def rows_of(self, length: int) -> int:
        """Stored if segments have `length` batches."""
        return len(self._begins(length))

    def search(self, most: int) -> int:
        """Length of segments that store at most so many rows: DiskGNN's estimate from the first, then made exact."""
        is_first = np.concatenate(([True], np.diff(self._vertex) != 0))
        seen = np.cumsum(np.bincount(self._batch[is_first], minlength=self.count))
        if seen[-1] > most:
            raise ValueError(f"at most {most} rows, wanted at least {seen[-1]}")
        fits = np.flatnonzero(seen * self.count <= most * np.arange(1, self.count + 1))
        length = int(fits[0]) + 1 if len(fits) else self.count
        if self.rows_of(length) <= most:
            while length > 1 and self.rows_of(length - 1) <= most:
                length -= 1
            return length
        while length < self.count and self.rows_of(length) > most:
            length = min(self.count, length + length // 64 + 1)
        return length

    def _smallest(self, hashes: int, length: int, begins: np.ndarray) -> np.ndarray:
        """The least of the random numbers of the batches that miss it, by row of a segment."""
        last = self.count - (self.count - 1) // length * length
        number = ranks(min(length, self.count), random_word(0, hashes))[self._batch % length]
        in_last = self._batch // length == (self.count - 1) // length
        number[in_last] = ranks(last, random_word(0, hashes))[self._batch[in_last] % length]
        return np.minimum.reduceat(number, begins)

    def stored(self, length: int, min_hash: bool = True) -> Stored:
        """Pages in the order of min-hash, or by vertex."""
        begins = self._begins(length)
        uses = np.diff(np.concatenate((begins, [self.num_rows])))
        is_paged = uses > 1
        vertex, segment = self._vertex[begins], self._batch[begins] // length
        keys = [vertex, segment]
        if min_hash:
            keys[1:1] = [self._smallest(1, length, begins), self._smallest(0, length, begins)]
        order = np.lexsort([key[is_paged] for key in keys])
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        # A segment begins with a page of its own.
        starts = np.searchsorted(np.sort(segment[is_paged]), segment[is_paged])
        page_of = np.full(len(begins), -1)
        page_of[is_paged] = (place - starts) // max(1, PAGE // self._row)
        page = np.repeat(page_of, uses)
        read = np.unique((self._batch * (page.max() + 1) + page)[page >= 0])
        packed = int(np.count_nonzero(~is_paged))
        pages = len(read) * -(-self._row // PAGE) * PAGE
        return Stored(len(begins), packed * self._row + pages)


def missed_by(batches: list[np.ndarray], num_vertices: int, cached: int) -> list[np.ndarray]:
    """Rows of each batch, ascending, but for the `cached` ones that most batches use (of equal ones the first)."""
    counts = np.bincount(np.concatenate(batches), minlength=num_vertices)
    is_cached = np.zeros(num_vertices, bool)
    is_cached[np.lexsort((np.arange(num_vertices), -counts))[:cached]] = True
    return [np.sort(ids[~is_cached[ids]]) for ids in batches]
