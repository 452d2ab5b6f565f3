"""A graph whose vertices are dealt to ranks: which rows and which partial sums must travel between them."""

from __future__ import annotations

import dataclasses

import numpy as np

from overlace import errors

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: neighbouring numbers get far apart


@dataclasses.dataclass(frozen=True)
class Edges:
    """A sum of rows: row target[i] of (num_targets, ...) gets row source[i] of (num_sources, ...), for each i."""

    source: np.ndarray  # int64
    target: np.ndarray  # int64
    num_sources: int
    num_targets: int

    def transposed(self) -> Edges:
        return Edges(self.target, self.source, self.num_targets, self.num_sources)


@dataclasses.dataclass(frozen=True)
class GraphPart:
    """What one rank has of a graph, and what it exchanges with the others so that sums over in-neighbours are whole.

    An edge between two ranks lies where its end of lower degree is, so the end of higher degree is split: a source is
    sent as it is, once for all its edges to that rank; of a target the sum over its sources here is sent, its partial
    aggregate. Sums over in-neighbours are `local` x + `receive` E(`send` x), where E gives each rank its rows.
    """

    rank: int
    ranks: int
    vertices: np.ndarray  # int64: numbers of the own vertices in the graph, ascending
    in_degrees: np.ndarray  # int64: of the own vertices in the whole graph
    local: Edges  # from own vertices to own vertices
    send: Edges  # from own vertices to rows that are sent, those for rank 0 first
    receive: Edges  # from rows that come, those of rank 0 first, to own vertices
    sent: tuple[int, ...]  # rows for each rank
    received: tuple[int, ...]  # rows of each rank


def hashed_owners(num_vertices: int, ranks: int) -> np.ndarray:
    """A rank for each vertex by a hash of its number, (num_vertices,) int64: parts of nearly equal size."""
    hashed = np.arange(num_vertices, dtype=np.uint64) * _GOLDEN >> np.uint64(32)
    return (hashed % np.uint64(ranks)).astype(np.int64)


@dataclasses.dataclass(frozen=True)
class _Crossing:
    """The rows by which edges from one rank to another travel: `sources` as they are, then sums for `targets`."""

    sources: np.ndarray  # ascending
    targets: np.ndarray  # ascending
    whole: tuple[np.ndarray, np.ndarray]  # edges that read a row of `sources`: from, to
    summed: tuple[np.ndarray, np.ndarray]  # edges that are in a sum for `targets`: from, to

    def __len__(self) -> int:
        return len(self.sources) + len(self.targets)


def _split(source: np.ndarray, target: np.ndarray, at_source: np.ndarray) -> _Crossing:
    """at_source: the edges that read the row of their source."""
    whole = source[at_source], target[at_source]
    summed = source[~at_source], target[~at_source]
    return _Crossing(np.unique(whole[0]), np.unique(summed[1]), whole, summed)


def _cross(source: np.ndarray, target: np.ndarray) -> _Crossing:
    """With the fewest rows of three ways: all sources, all targets, of each edge the end of higher degree."""

    def degrees(ends: np.ndarray) -> np.ndarray:
        _, place, counts = np.unique(ends, return_inverse=True, return_counts=True)
        return counts[place]

    everywhere = np.ones(len(source), dtype=bool)
    ways = (degrees(source) >= degrees(target), everywhere, ~everywhere)
    return min((_split(source, target, way) for way in ways), key=len)


def _joined(pairs: list[tuple[np.ndarray, np.ndarray]], num_sources: int, num_targets: int) -> Edges:
    source, target = (np.concatenate(ends) for ends in zip(*pairs, strict=True))
    return Edges(source, target, num_sources, num_targets)


def _checked(
    indptr: np.ndarray, indices: np.ndarray, rank: int, ranks: int, owners: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """In-neighbours as int64, and the rank of each vertex."""
    if not 0 <= rank < ranks:
        raise errors.InvalidArgument(f"partition: rank is {rank} of {ranks} ranks, wanted 0 to {ranks - 1}")
    indptr, indices = (np.asarray(array).astype(np.int64, copy=False) for array in (indptr, indices))
    if len(indptr) == 0 or indptr[0] != 0 or indptr[-1] != len(indices) or (np.diff(indptr) < 0).any():
        raise errors.InvalidArgument(
            f"partition: indptr has {len(indptr)} entries, wanted ones that ascend from 0 to the {len(indices)} indices"
        )
    count = len(indptr) - 1
    if len(indices) and not 0 <= indices.min() <= indices.max() < count:
        raise errors.InvalidArgument(
            f"partition: indices are {indices.min()} to {indices.max()}, wanted 0 to {count - 1}, the vertices"
        )
    owners = hashed_owners(count, ranks) if owners is None else np.asarray(owners).astype(np.int64, copy=False)
    if owners.shape != (count,):
        raise errors.InvalidArgument(f"partition: owners are {list(owners.shape)}, wanted [{count}], the vertices")
    if count and not 0 <= owners.min() <= owners.max() < ranks:
        raise errors.InvalidArgument(
            f"partition: owners are {owners.min()} to {owners.max()}, wanted 0 to {ranks - 1}, the ranks"
        )
    return indptr, indices, owners


def partition(
    indptr: np.ndarray, indices: np.ndarray, rank: int, ranks: int, owners: np.ndarray | None = None
) -> GraphPart:
    """The part of `rank` of a graph of in-neighbours, such as `Dataset.indptr` and `.indices`; edges may repeat.

    indptr: (num_vertices + 1,) integers; indices: (num_edges,) integers. owners: the rank that has each vertex,
    (num_vertices,), the same on all ranks; None: by a hash. Each rank reads the whole graph once and needs some 50
    bytes of memory for an edge meanwhile. Source: DistGNN (arXiv 2104.06700), vertex cut by degree.
    Raises InvalidArgument.
    """
    indptr, indices, owners = _checked(indptr, indices, rank, ranks, owners)
    in_degrees = np.diff(indptr)
    targets = np.repeat(np.arange(len(owners)), in_degrees)
    owner_from, owner_to = owners[indices], owners[targets]
    vertices = np.flatnonzero(owners == rank)
    place = np.full(len(owners), -1)
    place[vertices] = np.arange(len(vertices))

    def crossing(sender: int, receiver: int) -> _Crossing:
        chosen = (owner_from == sender) & (owner_to == receiver) & (sender != receiver)
        return _cross(indices[chosen], targets[chosen])

    sends: list[tuple[np.ndarray, np.ndarray]] = []
    receives: list[tuple[np.ndarray, np.ndarray]] = []
    sent: list[int] = []
    received: list[int] = []
    for peer in range(ranks):
        out, come = crossing(rank, peer), crossing(peer, rank)
        row = sum(sent) + len(out.sources)
        sends.append((place[out.sources], np.arange(sum(sent), row)))
        sends.append((place[out.summed[0]], row + np.searchsorted(out.targets, out.summed[1])))
        row = sum(received) + len(come.sources)
        receives.append((sum(received) + np.searchsorted(come.sources, come.whole[0]), place[come.whole[1]]))
        receives.append((np.arange(row, row + len(come.targets)), place[come.targets]))
        sent.append(len(out))
        received.append(len(come))
    inside = (owner_from == rank) & (owner_to == rank)
    count = len(vertices)
    return GraphPart(
        rank,
        ranks,
        vertices,
        in_degrees[vertices],
        Edges(place[indices[inside]], place[targets[inside]], count, count),
        _joined(sends, count, sum(sent)),
        _joined(receives, sum(received), count),
        tuple(sent),
        tuple(received),
    )
