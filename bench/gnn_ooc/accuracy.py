"""bench/gnn_ooc: test accuracy of training from packs, beside sampling anew in memory and beside training in parts.

    python3 bench/gnn_ooc/accuracy.py --out bench/results/gnn_accuracy_cpu2.jsonl

One graph, generated or (`--graph packages`) the distribution's own package list; each seed draws samples, weights and
sequences of its own, and all ways of a seed begin with the same weights and are tested on the same batches after the
last training epoch. Each line of --out is a record of a model and a way.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import debian_graph
import numpy as np
import ooc
import torch
from overlace import gnn
from overlace.gnn.nn import Model

ORDERS = {"fixed": "belady", "segments": "belady", "shuffle": "static"}
MODELS = ("sage", "gat", "gcn")
GRAPHS = {"dcsbm": "accuracy", "packages": "packages"}  # and what cases begin with
Packs = tuple[gnn.Artefact, str]  # and the name of those of train


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", choices=GRAPHS, default="dcsbm", help="packages: that of debian_graph.py")
    parser.add_argument("--lists", default="/var/lib/apt/lists", help="folder of package lists")
    parser.add_argument("--vertices", type=int, default=2**16, help="of a generated graph")
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--fanouts", default="10,5")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--parts", type=int, default=8, help="of the vertices, for partition_only")
    parser.add_argument("--seed", type=int, default=1, help="of the graph")
    parser.add_argument("--git", help="commit in the records (default: that of this checkout)")
    parser.add_argument("--out", required=True)
    return parser.parse_args(words)


@dataclass
class Graph:
    """In-neighbours, rows and labels in memory."""

    indptr: np.ndarray
    indices: np.ndarray
    x: torch.Tensor
    y: torch.Tensor

    @classmethod
    def of(cls, dataset: gnn.Dataset) -> Graph:
        arrays = (np.array(one) for one in (dataset.indptr, dataset.indices))
        return cls(*arrays, *(torch.from_numpy(np.array(one)) for one in (dataset.features, dataset.labels)))

    def cut(self, parts: int, seed: int) -> Graph:
        """Without the edges between vertices of different parts, which are equally large and drawn at random."""
        count = len(self.indptr) - 1
        part = np.random.default_rng(seed).permutation(count) % parts
        target = np.repeat(np.arange(count), np.diff(self.indptr))
        inside = part[target] == part[self.indices]
        indptr = np.concatenate(([0], np.cumsum(np.bincount(target[inside], minlength=count))))
        return Graph(indptr, self.indices[inside], self.x, self.y)


def sample(graph: Graph, seeds: np.ndarray, fanouts: list[int], rng: np.random.Generator, number: int) -> gnn.Batch:
    """A batch drawn in NumPy, with replacement: not by the library."""
    local = np.full(len(graph.indptr) - 1, -1, np.int64)
    local[seeds] = np.arange(len(seeds))
    n_id, frontier = [seeds], seeds
    edges, nodes, counts = [], [len(seeds)], []
    for fanout in fanouts:
        degree = graph.indptr[frontier + 1] - graph.indptr[frontier]
        some = frontier[degree > 0]
        places = (rng.random((len(some), fanout)) * degree[degree > 0][:, None]).astype(np.int64)
        source = graph.indices[graph.indptr[some][:, None] + places].ravel().astype(np.int64)
        unseen = source[local[source] < 0]
        found, first = np.unique(unseen, return_index=True)
        fresh = found[np.argsort(first)]
        known = sum(nodes)
        local[fresh] = known + np.arange(len(fresh))
        edges.append(np.stack([local[source], np.repeat(local[some], fanout)]))
        nodes.append(len(fresh))
        counts.append(len(source))
        n_id.append(fresh)
        frontier = fresh
    ids = torch.from_numpy(np.concatenate(n_id))
    edge_index = torch.from_numpy(np.concatenate(edges, axis=1))
    y = graph.y[ids[: len(seeds)]].long()
    return gnn.Batch(graph.x[ids], y, ids, edge_index, nodes, counts, number, len(seeds))


def online(
    graph: Graph, seeds: np.ndarray, options: argparse.Namespace, rng: np.random.Generator
) -> Iterator[gnn.Batch]:
    """A training epoch that nobody has seen before."""
    order, fanouts = rng.permutation(seeds), [int(word) for word in options.fanouts.split(",")]
    for number, first in enumerate(range(0, len(order), options.batch_size)):
        yield sample(graph, order[first : first + options.batch_size], fanouts, rng, number)


def fit(model: Model, epoch: Callable[[], Iterator[gnn.Batch]], epochs: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    model.train()
    for _ in range(epochs):
        ooc.train_on(epoch(), most=-1, model=model, optimizer=optimizer)


def right(model: Model, batches: list[gnn.Batch]) -> float:
    """Share of the seeds whose class is right."""
    model.eval()
    with torch.no_grad():
        hits = sum(int((model(batch).argmax(1) == batch.y).sum()) for batch in batches)
    return hits / sum(batch.batch_size for batch in batches)


def pack(dataset: gnn.Dataset, directory: Path, options: argparse.Namespace, seed: int) -> dict[str, Packs]:
    """Packs of each way from packs: one sampled epoch in all orders, and as many as are trained in order fixed."""
    fanouts = [int(word) for word in options.fanouts.split(",")]
    cache = dataset.num_vertices // 10 * dataset.features.strides[0]
    out = {}
    for name, epochs, orders in (("once", 1, ORDERS), ("anew", options.epochs, {"fixed": "belady"})):
        sampler = gnn.OfflineSampler(
            dataset, fanouts, options.batch_size, ("train", "test"), seed=seed, replace=True, epochs=epochs
        )
        run = sampler.run(directory / name)
        for order, policy in orders.items():
            gnn.pack(run, cpu_cache=cache, policy=policy, order=order, segment=8)
            out[order if name == "once" else f"{order}_anew"] = (run, order)
    return out


def accuracies(
    dataset: gnn.Dataset, graph: Graph, packs: dict[str, Packs], kind: str, options: argparse.Namespace, seed: int
) -> dict[str, float]:
    """The accuracy of each way, from the same weights."""
    layers = len(options.fanouts.split(","))
    cut = graph.cut(options.parts, seed)
    train, test = (np.asarray(dataset.split(split)) for split in ("train", "test"))

    def fresh() -> Model:
        torch.manual_seed(seed)
        return Model(kind, dataset.dim, options.hidden, dataset.num_classes, layers)

    with gnn.PackedLoader(packs["fixed"][0], split="test", packs="fixed-test") as loader:
        tested = list(loader)
    out = {}
    for name, source in (("inmem_online", graph), ("partition_only", cut)):
        rng = np.random.default_rng([seed, 1])
        model = fresh()
        fit(model, lambda source=source, rng=rng: online(source, train, options, rng), options.epochs)
        if source is cut:
            out["partition_train"] = right(model, tested)
            tested_in_parts = list(online(cut, test, options, np.random.default_rng([seed, 2])))
            out[name] = right(model, tested_in_parts)
        else:
            out[name] = right(model, tested)
    for name, (run, order) in packs.items():
        model = fresh()
        with gnn.PackedLoader(run, packs=order, order_seed=seed) as loader:
            fit(model, lambda loader=loader: iter(loader), options.epochs)
        out[name] = right(model, tested)
    return out


def dataset_of(options: argparse.Namespace, directory: Path) -> gnn.Dataset:
    if options.graph == "dcsbm":
        return gnn.generate(directory / "g", num_vertices=options.vertices, dim=options.dim, seed=options.seed)
    words = [str(directory / "arrays"), "--lists", options.lists, "--dim", str(options.dim)]
    status = debian_graph.main(words)
    if status != 0:
        raise SystemExit(status)
    ooc.command("import", str(directory / "arrays"), "--out", str(directory / "g"))
    return gnn.Dataset(directory / "g")


def measure(options: argparse.Namespace, directory: Path) -> None:
    dataset = dataset_of(options, directory)
    records = ooc.Records(options, "bench/gnn_ooc/accuracy.py")
    if options.graph == "packages":
        records.data = f"package graph, {dataset.num_vertices} packages, {dataset.dim} fp32"
    graph = Graph.of(dataset)
    found: dict[tuple[str, str], list[float]] = {}
    for seed in range(1, options.seeds + 1):
        packs = pack(dataset, directory / "packs", options, seed)
        for kind in options.models.split(","):
            for way, share in accuracies(dataset, graph, packs, kind, options, seed).items():
                found.setdefault((kind, way), []).append(share)
        shutil.rmtree(directory / "packs")
    what = f"{options.epochs} training epochs, hidden {options.hidden}, fanouts {options.fanouts} with replacement"
    what += f", batches of {options.batch_size}, {options.parts} parts"
    for (kind, way), shares in found.items():
        accuracy = {"mean": statistics.mean(shares), "min": min(shares), "max": max(shares), "samples": shares}
        records.add(f"{GRAPHS[options.graph]}_{kind}", what, way, options.seeds, accuracy=accuracy)


def main(words: list[str] | None = None) -> int:
    options = parse(words)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="overlace_gnn_accuracy_") as directory:
        measure(options, Path(directory))
    return 0


if __name__ == "__main__":
    sys.exit(main())
