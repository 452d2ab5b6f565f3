"""Graphs that are dealt to ranks: sums over in-neighbours from parts are those of the whole graph, in few rows."""

from __future__ import annotations

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("overlace", reason="PYTHONPATH does not name the package that the build makes")

from overlace import errors  # noqa: E402
from overlace.gnn import GraphPart, partition  # noqa: E402
from overlace.gnn.parts import Edges, hashed_owners  # noqa: E402

Graph = tuple[np.ndarray, np.ndarray, np.ndarray]


def drawn(vertices: int, edges: int, seed: int) -> Graph:
    """Indptr, sources and targets of a graph with hubs, repeated edges and edges to themselves."""
    rng = np.random.default_rng(seed)
    target = np.sort((rng.random(edges) ** 3 * vertices).astype(np.int64))
    source = (rng.random(edges) ** 2 * vertices).astype(np.int64)
    return np.concatenate([[0], np.cumsum(np.bincount(target, minlength=vertices))]), source, target


def matrix(edges: Edges) -> np.ndarray:
    out = np.zeros((edges.num_targets, edges.num_sources))
    np.add.at(out, (edges.target, edges.source), 1)
    return out


def parts_of(graph: Graph, ranks: int, owners: np.ndarray | None = None) -> list[GraphPart]:
    return [partition(graph[0], graph[1], rank, ranks, owners) for rank in range(ranks)]


def exchanged(parts: list[GraphPart], rows: list[np.ndarray]) -> list[np.ndarray]:
    """What comes to each rank of what all send."""
    blocks = [np.split(sent, np.cumsum(part.sent)[:-1]) for part, sent in zip(parts, rows, strict=True)]
    return [np.concatenate([blocks[peer][part.rank] for peer in range(len(parts))]) for part in parts]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("dealt", ["hashed", "skewed"])
def test_sums_of_parts_are_those_of_the_graph(ranks: int, dealt: str) -> None:
    graph = drawn(61, 700, seed=ranks)
    # Skewed: the last rank has nothing, the first nearly all.
    owners = None if dealt == "hashed" else (np.arange(61) % 7 == 3).astype(np.int64) * (max(ranks - 2, 0))
    parts = parts_of(graph, ranks, owners)
    x = np.random.default_rng(9).integers(-9, 9, (61, 3)).astype(float)
    want = np.zeros_like(x)
    np.add.at(want, graph[2], x[graph[1]])
    come = exchanged(parts, [matrix(part.send) @ x[part.vertices] for part in parts])
    for part, rows in zip(parts, come, strict=True):
        got = matrix(part.local) @ x[part.vertices] + matrix(part.receive) @ rows
        assert (got == want[part.vertices]).all()
        assert (part.in_degrees == np.bincount(graph[2], minlength=61)[part.vertices]).all()
        assert part.sent[part.rank] == part.received[part.rank] == 0
    assert (np.sort(np.concatenate([part.vertices for part in parts])) == np.arange(61)).all()
    assert [part.received for part in parts] == [tuple(column) for column in zip(*(p.sent for p in parts), strict=True)]


def test_the_end_of_higher_degree_is_split() -> None:
    # Vertices 0 to 4 on rank 0, 5 to 9 on rank 1. 0 leads to all of rank 1; all of rank 0 but 0 lead to 9.
    source, target = np.array([0, 0, 0, 0, 0, 1, 2, 3, 4]), np.array([5, 6, 7, 8, 9, 9, 9, 9, 9])
    indptr = np.concatenate([[0], np.cumsum(np.bincount(target, minlength=10))])
    owners = np.repeat([0, 1], 5)
    parts = parts_of((indptr, source, target), 2, owners)
    assert parts[0].sent == (0, 2), "one row is vertex 0's, one the sum for vertex 9; by sources alone 5, targets 5"
    assert (matrix(parts[0].send) == [[1, 0, 0, 0, 0], [0, 1, 1, 1, 1]]).all()
    assert parts[1].sent == (0, 0)


@pytest.mark.parametrize("seed", range(6))
def test_no_more_rows_than_by_sources_or_by_targets(seed: int) -> None:
    graph = drawn(200, 900, seed)
    owners = hashed_owners(200, 3)
    for part in parts_of(graph, 3):
        for peer in set(range(3)) - {part.rank}:
            crosses = (owners[graph[1]] == part.rank) & (owners[graph[2]] == peer)
            ends = [len(np.unique(side[crosses])) for side in graph[1:]]
            assert 0 < part.sent[peer] <= min(ends)


def test_hashed_parts_are_of_one_size() -> None:
    counts = np.bincount(hashed_owners(100_000, 7), minlength=7)
    assert counts.sum() == 100_000
    assert counts.min() > 0.99 * counts.max()


def test_a_graph_without_edges_and_one_without_vertices() -> None:
    for vertices in (0, 5):
        for part in parts_of((np.zeros(vertices + 1, np.int64), np.empty(0, np.int64), np.empty(0)), 2):
            assert part.sent == part.received == (0, 0)
            assert matrix(part.local).sum() == 0


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"rank": 2}, "rank is 2 of 2 ranks, wanted 0 to 1"),
        ({"rank": -1}, "rank is -1 of 2 ranks"),
        ({"indptr": [0, 2, 1, 3]}, "indptr has 4 entries, wanted ones that ascend from 0 to the 3 indices"),
        ({"indptr": [0, 1, 2, 4]}, "indptr has 4 entries"),
        ({"indptr": []}, "indptr has 0 entries"),
        ({"indices": [0, 1, 3]}, "indices are 0 to 3, wanted 0 to 2"),
        ({"indices": [0, 1, -1]}, "indices are -1 to 1, wanted 0 to 2"),
        ({"owners": [0, 1]}, r"owners are \[2\], wanted \[3\]"),
        ({"owners": [0, 1, 2]}, "owners are 0 to 2, wanted 0 to 1"),
    ],
)
def test_arguments(change: dict, text: str) -> None:
    given = {"indptr": [0, 1, 2, 3], "indices": [1, 2, 0], "rank": 0, "ranks": 2} | change
    with pytest.raises(errors.InvalidArgument, match=text):
        partition(**given)
