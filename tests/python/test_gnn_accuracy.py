"""bench/gnn_ooc/accuracy.py on a small graph: its sampler, its cut, and that training in parts is seen to lose."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("bench/gnn_ooc", "bench/driver", "tools")]
accuracy, records, gen_gnn = (importlib.import_module(name) for name in ("accuracy", "records", "gen_gnn"))


def ring(count: int, degree: int) -> accuracy.Graph:
    """In-neighbours v + 1, v + 2, and so on; the last vertex has none."""
    indptr = np.minimum(np.arange(count + 1), count - 1) * degree
    indices = (np.arange(count - 1)[:, None] + np.arange(1, degree + 1)).ravel() % count
    return accuracy.Graph(indptr, indices, torch.arange(count)[:, None].float(), torch.arange(count) % 3)


def test_samples_are_edges_of_the_graph() -> None:
    graph, rng = ring(50, 4), np.random.default_rng(1)
    seeds = np.array([7, 49, 8])
    drawn = set()
    for number in range(200):
        batch = accuracy.sample(graph, seeds, [3, 2], rng, number)
        ids = batch.n_id.numpy()
        assert ids[:3].tolist() == seeds.tolist() and len(set(ids.tolist())) == len(ids)
        assert sum(batch.num_sampled_nodes) == len(ids) and batch.num_sampled_nodes[0] == 3
        assert batch.num_sampled_edges[0] == 2 * 3  # vertex 49 has no neighbours
        assert sum(batch.num_sampled_edges) == batch.edge_index.shape[1]
        source, target = ids[batch.edge_index.numpy()]
        assert set(((source - target) % 50).tolist()) <= {1, 2, 3, 4} and 49 not in target
        torch.testing.assert_close(batch.x[:, 0], batch.n_id.float())
        assert batch.y.tolist() == (seeds % 3).tolist()
        # The second hop is that of the vertices which the first one reached, each once.
        reached = set(range(3, 3 + batch.num_sampled_nodes[1]))
        second = batch.edge_index[1, batch.num_sampled_edges[0] :].tolist()
        assert set(second) == reached - {int(np.flatnonzero(ids == 49)[0])}
        drawn |= set(source[: batch.num_sampled_edges[0]].tolist())
    assert drawn == {8, 9, 10, 11, 12}


def test_an_epoch_has_every_seed_once_in_another_sequence() -> None:
    options = accuracy.parse(["--out", "", "--batch-size", "4", "--fanouts", "2"])
    seeds, rng = np.arange(10), np.random.default_rng(2)
    epochs = [
        [batch.n_id[: batch.batch_size].tolist() for batch in accuracy.online(ring(50, 4), seeds, options, rng)]
        for _ in range(2)
    ]
    for epoch in epochs:
        assert [len(batch) for batch in epoch] == [4, 4, 2] and sorted(np.concatenate(epoch)) == seeds.tolist()
    assert epochs[0] != epochs[1]


def test_a_cut_keeps_the_edges_inside_of_parts() -> None:
    graph = ring(60, 5)
    cut = graph.cut(3, 1)
    part = np.random.default_rng(1).permutation(60) % 3
    kept = 0
    for v in range(60):
        wanted = [u for u in graph.indices[graph.indptr[v] : graph.indptr[v + 1]] if part[u] == part[v]]
        assert cut.indices[cut.indptr[v] : cut.indptr[v + 1]].tolist() == wanted
        kept += len(wanted)
    assert 0 < kept == cut.indptr[-1] < len(graph.indices) / 2


def test_the_record_sees_a_loss(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    words = ["--vertices", "8192", "--dim", "64", "--batch-size", "64", "--epochs", "3", "--seeds", "2"]
    assert accuracy.main([*words, "--models", "sage", "--git", "test", "--out", str(out)]) == 0
    rows = records.read(out)
    mean = {row["competitor"]: row["accuracy"]["mean"] for row in rows}
    assert set(mean) == set(gen_gnn.WAYS)
    assert all(len(row["accuracy"]["samples"]) == 2 for row in rows)
    for way in ("fixed", "segments", "shuffle", "fixed_anew"):
        assert mean[way] > mean["inmem_online"] - 0.05 and mean[way] > mean["partition_only"] + 0.05, way
    section = "\n".join(gen_gnn.accuracy_section(gen_gnn.cases_of(rows)))
    for way in gen_gnn.WAYS:
        assert f"| `{way}`: " in section
    assert f"{100 * (mean['fixed'] - mean['inmem_online']):+.2f}" in section


def test_packages_are_a_graph_to_train_on(tmp_path: Path) -> None:
    rng, sections = np.random.default_rng(3), ("admin", "libs", "math")
    stanzas = []
    for i in range(1500):
        wanted = ", ".join(f"p{j}" for j in rng.integers(0, 1500, 4) // 3 * 3 + i % 3)
        stanzas.append(f"Package: p{i}\nSection: {sections[i % 3]}\nDepends: {wanted}\nDescription: word{i % 3} {i}")
    (tmp_path / "x_Packages").write_text("\n\n".join(stanzas))
    out = tmp_path / "out.jsonl"
    words = ["--graph", "packages", "--lists", str(tmp_path), "--dim", "16", "--epochs", "2", "--seeds", "1"]
    assert accuracy.main([*words, "--models", "sage", "--git", "test", "--out", str(out)]) == 0
    rows = records.read(out)
    assert {row["competitor"] for row in rows} == set(gen_gnn.WAYS)
    assert all(row["data"] == "package graph, 1500 packages, 16 fp32" for row in rows)
    shares = {row["competitor"]: row["accuracy"]["mean"] for row in rows}
    assert shares["fixed"] > 0.6  # of three sections that follow from words
    section = gen_gnn.accuracy_section(gen_gnn.cases_of(rows), "packages_", "Accuracy on packages")
    assert "## Accuracy on packages" in section and not gen_gnn.accuracy_section(gen_gnn.cases_of(rows))


def test_no_package_list_is_a_skip(tmp_path: Path) -> None:
    words = ["--graph", "packages", "--lists", str(tmp_path), "--out", str(tmp_path / "out.jsonl"), "--git", "test"]
    with pytest.raises(SystemExit) as end:
        accuracy.main(words)
    assert end.value.code == 77
