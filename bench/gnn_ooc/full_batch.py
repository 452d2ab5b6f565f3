"""bench/gnn_ooc: full-batch GCN on CPU ranks with partial sums that are fresh, late or never exchanged.

    python3 bench/gnn_ooc/full_batch.py --out bench/results/full_batch_cpu2.jsonl

Accuracy: a generated graph and the distribution's own package list, dealt to 2 and 4 ranks; all ways of a seed begin
with the same weights, and what they end with is tested by one process on the whole graph. Time: the generated graph on
two ranks over an emulated link on which the rows of an epoch take as long as its computation. Each line of --out is a
record of a case and a way.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import accuracy
import numpy as np
import ooc
import overlace
import torch
import torch.distributed as dist
from overlace import gnn
from overlace.gnn.halo import HEADER_BYTES
from overlace.gnn.nn import FullBatchGCN
from overlace.gnn.parts import hashed_owners
from torch.nn import functional

DELAYS = {"fresh": 0, "late_1": 1, "late_5": 5}
GRAPHS = ("dcsbm", "packages")
WAYS = (*DELAYS, "never")  # never: edges between ranks are left out
SECONDS = 120.0
WIDTH = 4  # bytes of a float32


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lists", default="/var/lib/apt/lists", help="folder of package lists")
    parser.add_argument("--graphs", default=",".join(GRAPHS))
    parser.add_argument("--vertices", type=int, default=2**12, help="of the generated graph")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--rate", type=float, default=0.01, help="of learning")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--timed-epochs", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=7, help="of times; 0: none")
    parser.add_argument("--seed", type=int, default=1, help="of the graph")
    parser.add_argument("--git", help="commit in the records (default: that of this checkout)")
    parser.add_argument("--out", required=True)
    return parser.parse_args(words)


class Task:
    """A graph, what is learned on it, and a fresh model."""

    def __init__(self, path: Path, options: argparse.Namespace) -> None:
        self.dataset, self.hidden = gnn.Dataset(path), options.hidden
        self.graph = accuracy.Graph.of(self.dataset)
        is_train = np.zeros(self.dataset.num_vertices, dtype=bool)
        is_train[self.dataset.split("train")] = True
        self.is_train = torch.from_numpy(is_train) & (self.graph.y >= 0)

    def model(self, seed: int) -> FullBatchGCN:
        torch.manual_seed(seed)
        return FullBatchGCN(self.dataset.dim, self.hidden, self.dataset.num_classes)

    def part(self, way: str, rank: int, ranks: int) -> gnn.GraphPart:
        graph = self.graph
        if way != "never":
            return gnn.partition(graph.indptr, graph.indices, rank, ranks)
        owners = hashed_owners(len(graph.indptr) - 1, ranks)
        target = np.repeat(np.arange(len(owners)), np.diff(graph.indptr))
        inside = owners[target] == owners[graph.indices]
        indptr = np.concatenate(([0], np.cumsum(np.bincount(target[inside], minlength=len(owners)))))
        return gnn.partition(indptr, graph.indices[inside], rank, ranks)

    def test(self, parameters: list[torch.Tensor]) -> float:
        """Share of the test vertices whose class is right, by the layers of `Model` on the whole graph."""
        model, graph = self.model(0), self.graph
        with torch.no_grad():
            for p, value in zip(model.parameters(), parameters, strict=True):
                p.copy_(value)
            target = np.repeat(np.arange(len(graph.indptr) - 1), np.diff(graph.indptr))
            edges = torch.from_numpy(np.stack([graph.indices.astype(np.int64), target]))
            x = functional.relu(model.layers[0](graph.x.float(), edges, len(graph.x)))
            logits = model.layers[1](x, edges, len(graph.x))
        ids = torch.from_numpy(self.dataset.split("test"))
        ids = ids[graph.y[ids] >= 0]
        return float((logits[ids].argmax(1) == graph.y[ids]).float().mean())


def bytes_of_epoch(part: gnn.GraphPart, columns: list[int], delay: int) -> float:
    """What a rank sends in an epoch behind the first, in the mean over `delay` epochs: the closed form."""
    rows = (sum(part.sent) + sum(part.received)) * sum(columns) * WIDTH / max(delay, 1)
    return rows + 2 * len(columns) * (part.ranks - 1) * HEADER_BYTES


class Trainer:
    """One rank's part of a training."""

    def __init__(self, task: Task, way: str, seed: int, rate: float, link: str | None) -> None:
        self.part = task.part(way, dist.get_rank(), dist.get_world_size())
        mine = torch.from_numpy(self.part.vertices)
        self.x, self.y = task.graph.x[mine].float(), task.graph.y[mine].long()
        self.is_train, self.count = task.is_train[mine], int(task.is_train.sum())
        self.model = task.model(seed).train()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=rate)
        self.halo = gnn.SparseHalo(self.part, None, DELAYS.get(way, 0), link=link, timeout_s=SECONDS)

    def epoch(self) -> None:
        logits = self.model(self.x, self.halo)[self.is_train]
        loss = functional.cross_entropy(logits, self.y[self.is_train], reduction="sum") / self.count
        self.optimizer.zero_grad()
        loss.backward()
        grads = [p.grad for p in self.model.parameters()]
        whole = overlace.ops.all_reduce(torch.cat([g.flatten() for g in grads]), group=None)
        for grad, part in zip(grads, whole.split([g.numel() for g in grads]), strict=True):
            grad.copy_(part.view_as(grad))
        self.optimizer.step()


def trained(task: Task, way: str, seed: int, options: argparse.Namespace) -> list[torch.Tensor]:
    trainer = Trainer(task, way, seed, options.rate, None)
    with trainer.halo:
        for _ in range(options.epochs):
            trainer.epoch()
    return [p.detach() for p in trainer.model.parameters()]


def timed(task: Task, way: str, epochs: int, link: str | None) -> dict[str, float]:
    """Microseconds and bytes of this rank, in the mean of epochs behind those that fill the halo."""
    trainer = Trainer(task, way, 1, 0.01, link)
    delay = trainer.halo.delay
    with trainer.halo:
        for _ in range(1 + delay):
            trainer.epoch()
        dist.barrier()
        before, begin, cpu_begin = trainer.halo.stats(), time.perf_counter(), time.process_time()
        for _ in range(epochs):
            trainer.epoch()
        time_us, cpu_us = (
            1e6 / epochs * seconds for seconds in (time.perf_counter() - begin, time.process_time() - cpu_begin)
        )
        after = trainer.halo.stats()
    return {
        "epoch_us": time_us,
        "cpu_us": cpu_us,
        "waited_us": (after.waited_s - before.waited_s) / epochs * 1e6,
        "bytes": (after.bytes_sent - before.bytes_sent) / epochs,
        "planned": bytes_of_epoch(trainer.part, [task.hidden, task.dataset.num_classes], delay),
    }


def rank_main(rank: int, ranks: int, folder: str, options: argparse.Namespace, jobs: list[dict]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    task, out = Task(Path(folder) / "g", options), []
    with overlace.init(timeout_s=SECONDS):
        for job in jobs:
            if job["kind"] == "time":
                out.append(timed(task, job["way"], job["epochs"], job["link"]))
                continue
            parameters = trained(task, job["way"], job["seed"], options)
            out.append(task.test(parameters) if rank == 0 else None)
    dist.destroy_process_group()
    Path(folder, f"out.{rank}").write_text(json.dumps(out))


def on_ranks(ranks: int, folder: Path, options: argparse.Namespace, jobs: list[dict]) -> list[list]:
    """What each rank gave for each job: by job, then rank."""
    (folder / "store").unlink(missing_ok=True)
    torch.multiprocessing.spawn(rank_main, (ranks, str(folder), options, jobs), ranks)
    outs = [json.loads((folder / f"out.{rank}").read_text()) for rank in range(ranks)]
    return [list(answers) for answers in zip(*outs, strict=True)]


def summary(samples: list[float]) -> dict:
    return {"median": statistics.median(samples), "min": min(samples), "max": max(samples), "samples": samples}


def accuracies(records: ooc.Records, folder: Path, options: argparse.Namespace, graph: str) -> None:
    seeds = range(1, options.seeds + 1)
    what = f"{options.epochs} epochs, hidden {options.hidden}, Adam {options.rate:g}"
    task = Task(folder / "g", options)
    for ranks in (1, *(int(word) for word in options.ranks.split(","))):
        ways = ("fresh",) if ranks == 1 else WAYS
        jobs = [{"kind": "train", "way": way, "seed": seed} for way in ways for seed in seeds]
        shares = [answers[0] for answers in on_ranks(ranks, folder, options, jobs)]
        for i, way in enumerate(ways):
            found = shares[i * len(seeds) : (i + 1) * len(seeds)]
            parts = [task.part(way, rank, ranks) for rank in range(ranks)]
            columns = [options.hidden, task.dataset.num_classes]
            sent = sum(bytes_of_epoch(part, columns, DELAYS.get(way, 0)) for part in parts)
            records.add(
                f"full_{graph}_{options.epochs}_{ranks}", what, "alone" if ranks == 1 else way, len(seeds), team=ranks,
                accuracy=summary(found) | {"mean": statistics.mean(found)},
                planned_bytes=0 if way == "never" or ranks == 1 else round(sent),
                boundary_rows=sum(sum(part.sent) for part in parts),
            )  # fmt: skip


def times(records: ooc.Records, folder: Path, options: argparse.Namespace) -> None:
    ranks, epochs = 2, options.timed_epochs
    alone = {"kind": "time", "way": "late_1", "epochs": epochs, "link": "none"}
    answers = on_ranks(ranks, folder, options, [alone] * 3)
    compute_us = statistics.median(max(one["epoch_us"] - one["waited_us"] for one in each) for each in answers)
    per_epoch = max(one["planned"] for one in answers[0])
    rate = per_epoch / compute_us  # bytes in a microsecond
    link = f"{rate:.3f}MB/s,20us"
    ways = list(DELAYS)
    jobs = [
        {"kind": "time", "way": way, "epochs": epochs, "link": link} for _ in range(options.repeats) for way in ways
    ]
    answers = on_ranks(ranks, folder, options, jobs)
    for i, way in enumerate(ways):
        mine = answers[i :: len(ways)]
        slowest = [max(each, key=lambda one: one["epoch_us"]) for each in mine]
        sent = max(one["bytes"] for one in mine[0])
        records.add(
            "full_time", f"{epochs} epochs behind those that fill the halo", way, options.repeats, team=ranks,
            machine=ooc.machine() | {"link": link},
            time_us=summary([one["epoch_us"] for one in slowest]),
            cpu_us=summary([one["cpu_us"] for one in slowest]),
            waited_us=statistics.median(one["waited_us"] for one in slowest),
            link_us=sent / rate,
            bound_us=compute_us,
            bytes=round(sent),
            flags=["emulated"],
            planned_bytes=round(max(one["planned"] for one in mine[0])),
        )  # fmt: skip


def main(words: list[str] | None = None) -> int:
    options = parse(words)
    torch.set_num_threads(1)
    records = ooc.Records(options, "bench/gnn_ooc/full_batch.py")
    for graph in options.graphs.split(","):
        options.graph = graph  # that dataset_of() makes
        with tempfile.TemporaryDirectory(prefix="overlace_full_batch_") as folder:
            dataset = accuracy.dataset_of(options, Path(folder))
            records.data = f"{graph}, {dataset.num_vertices} vertices, {dataset.num_edges} edges"
            records.data += f", {dataset.dim} {dataset.dtype}, {dataset.num_classes} classes"
            accuracies(records, Path(folder), options, graph)
            if options.repeats > 0 and graph == "dcsbm":
                times(records, Path(folder), options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
