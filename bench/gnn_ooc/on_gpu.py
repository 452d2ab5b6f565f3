"""bench/gnn_ooc: training epochs on a GPU from packs, beside features in memory and ways that read single rows.

    python3 bench/gnn_ooc/on_gpu.py --out bench/results/gnn_ooc_h200.jsonl

At 2^22 vertices, by estimate, some 6 minutes and 30 GB of disk. Each way's rows are compared with the dataset before it
is timed, and ways take turns. The case `gpu_epoch` has whole epochs, `gpu_rows` the first batches, with ways that read
single rows. What a way holds in caches it holds before its time begins, and what it has read ahead when a run ends
early is given up behind it.

`inmem_gpu` has features, ids and edges on the GPU; `inmem_pinned` has them in pinned memory, and a stream of its own
gathers the next batch beside the training. `row_reads` and `mmap_rows` read a batch when it is its turn.

With `--work` on a tmpfs packs take no time to read, so that computing binds; there and on other file systems without
direct reads `row_reads` is left out, and the records say so.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import functools
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "driver")]

import ooc  # noqa: E402
import row_ways  # noqa: E402
import systems  # noqa: E402
from overlace import gnn  # noqa: E402

CHECKED = 8  # batches whose rows are compared
VERIFIED = {"ok": True, "oracle": f"rows of the dataset, the first {CHECKED} batches"}


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vertices", type=int, default=2**22)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--fanouts", default="10,5,5")
    parser.add_argument("--share", type=float, default=0.1, help="of the rows, cached")
    parser.add_argument("--gpu-share", type=float, default=ooc.GPU_SHARE, help="of the cached rows, on the GPU")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--row-batches", type=int, default=8, help="that ways which read single rows are timed on")
    parser.add_argument("--row-repeats", type=int, default=3)
    parser.add_argument("--pack-memory", default="8GiB")
    parser.add_argument("--device", default="cuda", help="cpu: the same without a GPU, to try the bench")
    parser.add_argument("--threads", type=int, default=1, help="of torch on the CPU")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", help="directory on the disk that is measured (default: a new one, removed after)")
    parser.add_argument("--git", help="commit in the records (default: that of this checkout)")
    parser.add_argument("--out", required=True)
    return parser.parse_args(words)


def machine(device: torch.device) -> dict:
    found = ooc.machine()
    if device.type != "cuda":
        return found
    name = torch.cuda.get_device_name(device)
    return {**found, "name": f"{name}, {found['cores']} cores", "gpus": f"1x {name}", "cuda": torch.version.cuda}


def has_direct_reads(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True


class Arrays:
    """Labels, ids and edges of a trace's batches; those of a batch go to the device by one copy from pinned memory.

    `is_there`: they lie on the device.
    """

    def __init__(self, trace: systems.Trace, device: torch.device, is_there: bool = False) -> None:
        self.trace, self._device = trace, device
        parts = [np.concatenate([b.y, b.n_id, b.edge_index.ravel()]) for b in trace.batches]
        self._bounds = np.cumsum([0, *(len(part) for part in parts)]).tolist()
        flat = torch.from_numpy(np.concatenate(parts))
        self._flat = flat.to(device) if is_there else flat.pin_memory() if device.type == "cuda" else flat

    def batch(self, index: int) -> gnn.Batch:
        """Without its rows."""
        known = self.trace.batches[index]
        flat = self._flat[self._bounds[index] : self._bounds[index + 1]].to(self._device, non_blocking=True)
        y, n_id, edges = flat.split([len(known.y), len(known.n_id), known.edge_index.size])
        return gnn.Batch(**{**vars(known), "y": y, "n_id": n_id, "edge_index": edges.view(2, -1)})


class Bench:
    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.device = options, torch.device(options.device)
        fanouts = [int(word) for word in options.fanouts.split(",")]
        with self.Step("a graph"):
            self.dataset = gnn.generate(folder / "g", num_vertices=options.vertices, dim=options.dim, seed=options.seed)
        with self.Step("samples"):
            sampler = gnn.OfflineSampler(self.dataset, fanouts, options.batch_size, seed=options.seed, replace=True)
            self.run = sampler.run(folder / "g.ovg")
        rows = round(options.share * options.vertices)
        self.gpu_rows = round(options.gpu_share * rows)
        self.cached, row = rows, self.dataset.dim * 4
        for policy, order in ooc.WAYS.values():
            with self.Step(f"packs for {policy}, {order}"):
                caches = (self.gpu_rows * row, (rows - self.gpu_rows) * row)
                gnn.pack(self.run, *caches, policy=policy, order=order, memory=options.pack_memory)
        with self.Step("the trace in memory"):
            self.trace = systems.Trace.of(self.run, "fixed")
            self.arrays = Arrays(self.trace, self.device)
            self.arrays_there = Arrays(self.trace, self.device, is_there=True)
        with self.Step("features in memory"):
            self.table = gnn.PinnedTable(self.dataset, device=None if self.device.type == "cpu" else self.device)
            self.features = torch.from_numpy(np.array(self.dataset.features)).to(self.device)
        torch.manual_seed(options.seed)
        self.model = ooc.Model("sage", self.dataset.dim, 128, self.dataset.num_classes, len(fanouts)).to(self.device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-3)
        self.loaders: dict[str, gnn.PackedLoader] = {}
        share = f"{100 * options.share:g} % of the rows cached, {100 * options.gpu_share:g} % of them on the GPU"
        self.is_direct = has_direct_reads(self.dataset.path / "features.npy")
        reads = "direct reads" if self.is_direct else "reads through the page cache, the file system has no direct ones"
        self.shown = f"{share}; {len(self.trace.batches)} batches, {self.trace.rows} input rows; {reads}"

    class Step:
        """A part of the preparation, with its time."""

        def __init__(self, what: str) -> None:
            self._what = what

        def __enter__(self) -> None:
            self._begin = time.perf_counter()

        def __exit__(self, *_: object) -> None:
            print(f"{self._what}: {time.perf_counter() - self._begin:.1f} s", flush=True)

    def packed(self, packs: str) -> Iterator[gnn.Batch]:
        if packs not in self.loaders:
            self.loaders[packs] = gnn.PackedLoader(self.run, packs=packs, device=str(self.device), copy=False)
        return iter(self.loaders[packs])

    def rest(self) -> None:
        """Ends loaders with what they read ahead; the next way to use one finds caches as after opening."""
        for packs in list(self.loaders):
            self.loaders.pop(packs).close()

    def of_gpu(self, index: int) -> gnn.Batch:
        batch = self.arrays_there.batch(index)
        batch.x = self.features.index_select(0, batch.n_id)
        return batch

    def of_pinned(self, index: int) -> gnn.Batch:
        batch = self.arrays.batch(index)
        ids = batch.n_id if self.device.type == "cuda" else self.trace.batches[index].n_id
        batch.x = torch.as_tensor(self.table.gather(ids, check=False))
        return batch

    def in_memory(self, made: Callable[[int], gnn.Batch]) -> Iterator[gnn.Batch]:
        for index in range(len(self.trace.batches)):
            yield made(index)

    def ahead(self, made: Callable[[int], gnn.Batch]) -> Iterator[gnn.Batch]:
        """Each batch is made on a stream of its own beside the computation on the one before."""
        side = torch.cuda.Stream(self.device)
        stream = torch.cuda.current_stream(self.device)
        done: list[torch.cuda.Event] = []  # by batch: the one before is computed

        def queue(index: int) -> tuple[gnn.Batch, torch.cuda.Event]:
            if index > 1:  # two batches at a time
                side.wait_event(done[index - 2])
            with torch.cuda.stream(side):
                batch = made(index)
            for tensor in (batch.x, batch.n_id):  # all arrays are one
                tensor.record_stream(stream)
            return batch, side.record_event()

        upcoming = queue(0)
        for index in range(len(self.trace.batches)):
            batch, is_made = upcoming
            if index + 1 < len(self.trace.batches):
                upcoming = queue(index + 1)
            stream.wait_event(is_made)
            yield batch
            done.append(stream.record_event())

    def mmap_rows(self) -> Iterator[gnn.Batch]:
        """What PyG does with a memory map, without PyG."""
        systems.evict(self.dataset.path / "features.npy")
        features = self.dataset.features
        return self.joined(torch.from_numpy(features[known.n_id]) for known in self.trace.batches)

    def by_rows(self, way: row_ways.RowWay) -> Iterator[gnn.Batch]:
        return self.joined(batch.x for batch in iter(way))

    def joined(self, rows: Iterator[torch.Tensor]) -> Iterator[gnn.Batch]:
        for index, x in enumerate(rows):
            batch = self.arrays.batch(index)
            batch.x = x.to(self.device)
            yield batch

    def check(self, name: str, batches: Iterator[gnn.Batch]) -> None:
        for i, batch in enumerate(batches, 1):
            known = self.trace.batches[batch.number]
            rows = torch.from_numpy(self.dataset.features[known.n_id])
            if not torch.equal(batch.x.cpu(), rows) or not np.array_equal(batch.n_id.cpu(), known.n_id):
                raise SystemExit(f"{name}: batch {batch.number} has other rows than the dataset")
            if i == CHECKED:
                return

    def train(self, batches: Iterator[gnn.Batch], most: int) -> None:
        ooc.train_on(batches, most=most, model=self.model, optimizer=self.optimizer)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def time(self, records: ooc.Records, case: str, what: str, ways: ooc.Ways, repeats: int, most: int) -> None:
        for name, way in ways.items():
            self.check(name, way())
            self.rest()
        samples: dict[str, list[ooc.Sample]] = {name: [] for name in ways}
        names = list(ways)
        for turn in range(repeats + 1):  # the first one warms up
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                batches = ways[name]()
                begin, worked = time.perf_counter(), time.process_time()
                self.train(batches, most)
                if turn > 0:
                    samples[name].append((time.perf_counter() - begin, time.process_time() - worked))
                del batches
                if most >= 0:
                    self.rest()
        for name, seconds in samples.items():
            fields: dict[str, object] = {"machine": machine(self.device), "verify": VERIFIED}
            if name in ooc.WAYS and most < 0:
                fields["bytes_read"] = self.loaders[ooc.WAYS[name][1]].bytes_read
            records.add(case, what, name, repeats, **fields, **ooc.times(seconds))

    def measure(self, records: ooc.Records) -> None:
        packed: ooc.Ways = {name: functools.partial(self.packed, order) for name, (_, order) in ooc.WAYS.items()}
        memory: ooc.Ways = {
            "inmem_gpu": functools.partial(self.in_memory, self.of_gpu),
            "inmem_pinned": functools.partial(
                self.ahead if self.device.type == "cuda" else self.in_memory, self.of_pinned
            ),
        }
        what = f"GraphSAGE, 128 hidden, whole training epochs; {self.shown}"
        self.time(records, "gpu_epoch", what, {**packed, **memory}, self.options.repeats, -1)
        for name, (_, order) in ooc.WAYS.items():
            stats = self.loaders[order].stats()
            print(f"{name}: waited {stats['waited_s']:.2f} s in next(), {stats}", flush=True)
        most = min(self.options.row_batches, len(self.trace.batches))
        what = f"GraphSAGE, 128 hidden, the first {most} batches; {self.shown}"
        self.rest()
        rows: ooc.Ways = {"mmap_rows": self.mmap_rows}
        with contextlib.ExitStack() as stack:
            if self.is_direct:
                way = stack.enter_context(row_ways.RowWay("row_reads", self.dataset, self.trace, self.cached))
                rows["row_reads"] = functools.partial(self.by_rows, way)
            else:
                print("row_reads: left out, the file system has no direct reads", flush=True)
            self.time(records, "gpu_rows", what, {**packed, **rows}, self.options.row_repeats, most)


def main(words: list[str] | None = None) -> int:
    options = parse(words)
    torch.set_num_threads(options.threads)
    records = ooc.Records(options, "bench/gnn_ooc/on_gpu.py")  # what it refuses it refuses at once
    return ooc.run_in_folder(options, lambda folder: Bench(options, folder).measure(records))


if __name__ == "__main__":
    sys.exit(main())
