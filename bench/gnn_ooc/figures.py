"""bench/gnn_ooc: the figures of DiskGNN's paper as tables of ours, those of ooc.py and accuracy.py aside.

    python3 bench/gnn_ooc/figures.py --out bench/results/gnn_figures_cpu2.jsonl

Bytes are exact: from the planner, and where it has no switch for a step from a second walk through the trace, which has
to count what the planner counts wherever both can. Times are of packing, and of epochs from a disk that is played.
"""

from __future__ import annotations

import argparse
import functools
import os
import resource
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import accuracy
import disk_cache
import numpy as np
import ooc
import schema
import systems
import torch
from overlace import gnn
from overlace.gnn import _native
from overlace.gnn.nn import Model

CASES = ("ladder", "search", "blow_up", "packing", "pace", "time_to")
RATES = (0.5, 0.25)  # of the disk that is there


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vertices", type=int, default=2**18)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--fanouts", default="10,5,5")
    parser.add_argument("--share", type=float, default=0.1, help="of the rows, cached")
    parser.add_argument("--blow-up", type=float, default=2, help="rows that packs and disk cache may have, of all")
    parser.add_argument("--caps", default="3,2,1.5", help="the same, for the search of a segment's length")
    parser.add_argument("--shares", default="0.05,0.1,0.2,0.3,0.5", help="of the rows, cached: for the blow-up")
    parser.add_argument("--more-fanouts", default="5,5;10,5;5,5,5;10,5,5;15,10,5", help="for the blow-up")
    parser.add_argument("--batch-sizes", default="32,64,128,256,512", help="for the blow-up")
    parser.add_argument("--pack-memory", default="64MiB", help="for features, while they are packed in passes")
    parser.add_argument("--pack-repeats", type=int, default=3)
    parser.add_argument("--pace-repeats", type=int, default=3)
    parser.add_argument("--disk", help="bytes per second of the disk (default: as diskbench reads)")
    parser.add_argument(
        "--small-vertices", type=int, default=2**16, help="of search, and of time_to with fanouts 10, 5"
    )
    parser.add_argument("--epochs", type=int, default=6, help="that are trained there")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--target", type=float, default=0.64, help="accuracy to reach")
    parser.add_argument("--compute-ms", type=float, default=2, help="assumed of a batch there")
    parser.add_argument("--time-pace", default="256MiB", help="per second, of the disk that is assumed there")
    return ooc.parsed(parser, words, CASES)


def sampled(options: argparse.Namespace, dataset: gnn.Dataset, path: Path, fanouts: str, size: int) -> gnn.Artefact:
    words = [int(word) for word in fanouts.split(",")]
    return gnn.OfflineSampler(dataset, words, batch_size=size, replace=True, seed=options.seed).run(path)


class Counts:
    """Bytes of one trace by the planner and by the walk, which have to be the same."""

    verified: ClassVar[dict] = {"ok": True, "oracle": "planner and a walk through the trace count the same"}

    def __init__(self, options: argparse.Namespace, run: gnn.Artefact, trace: systems.Trace) -> None:
        self._options, self._run = options, run
        self._batches = [batch.n_id for batch in trace.batches]
        self.row = run.manifest["dataset"]["row_bytes"]
        self.cached = round(options.share * options.vertices)
        self.gpu = round(ooc.GPU_SHARE * self.cached)

    def misses(self, cached: int) -> disk_cache.Misses:
        """What caches with the rows that are used most leave to the disk."""
        missed = disk_cache.missed_by(self._batches, self._options.vertices, cached)
        out = disk_cache.Misses(missed, self.row)
        self.same(f"{cached} rows cached", out.num_rows * self.row, self.planned(cached, 0, "static")["feature_bytes"])
        return out

    def planned(self, gpu: int, cpu: int, policy: str, order: str = "fixed", cap: float = 0) -> dict:
        """What the planner says of caches of so many rows, and of at most `cap` stored rows a vertex; 0: no limit."""
        words = ["--gpu-cache", str(gpu * self.row), "--cpu-cache", str(cpu * self.row)]
        words += ["--disk", str(self.cap(cap) * self.row), "--policy", policy, "--order", order, "--dry-run"]
        return next(p for p in ooc.command("pack", str(self._run.path), *words)["packs"] if p["name"] == order)

    def cap(self, blow_up: float) -> int:
        return round(blow_up * self._options.vertices)

    @staticmethod
    def same(what: str, walked: int, planned: int) -> None:
        if walked != planned:
            raise SystemExit(f"{what}: {walked} bytes by the walk, {planned} by the planner")


def ladder(records: ooc.Records, options: argparse.Namespace, counts: Counts) -> None:
    """Bytes of a training epoch, a level more each time: from single rows, and from packs without a limit."""
    n, gpu, all_cached = options.vertices, counts.gpu, counts.cached
    what = f"{100 * options.share:g} % of the rows cached, {100 * ooc.GPU_SHARE:g} % of them on the GPU;"
    what += f" with a disk cache at most {options.blow_up:g} stored rows a vertex"

    def add(name: str, feature_bytes: int, stored: int) -> None:
        fields: dict = {"feature_bytes": feature_bytes, "stored_rows": stored, "blow_up": stored / n}
        if "belady" not in name and name != "disk_cache":  # which one of the two does not know
            fields["verify"] = counts.verified
        records.add("ladder", what, name, **fields)

    none, cpu, both = (counts.misses(cached) for cached in (0, all_cached - gpu, all_cached))
    for name, misses in (("rows", none), ("rows_cpu", cpu), ("rows_cpu_gpu", both)):
        add(name, misses.bytes_by_row(), n)
    length = both.search(counts.cap(options.blow_up))
    one, hashed, found = both.stored(both.count, False), both.stored(both.count), both.stored(length)
    for stored, cap in ((hashed, hashed.rows / n), (found, options.blow_up)):
        planned = counts.planned(gpu, all_cached - gpu, "static", cap=cap)
        counts.same("the disk cache", stored.feature_bytes, planned["feature_bytes"])
        counts.same("stored rows", stored.rows, round(planned["blow_up"] * n))
    for name, stored in (("disk_cache", one), ("min_hash", hashed), ("segments", found)):
        add(name, stored.feature_bytes, stored.rows)
    belady = counts.planned(gpu, all_cached - gpu, "belady", cap=options.blow_up)
    add("belady", belady["feature_bytes"], round(belady["blow_up"] * n))
    counts.misses(gpu)
    for name, caches in (("packs", (0, 0)), ("packs_gpu", (gpu, 0)), ("packs_gpu_cpu", (gpu, all_cached - gpu))):
        packs = counts.planned(*caches, "static")
        add(name, packs["feature_bytes"], round(packs["blow_up"] * n))
    packs = counts.planned(gpu, all_cached - gpu, "belady")
    add("packs_belady", packs["feature_bytes"], round(packs["blow_up"] * n))


def search(options: argparse.Namespace, directory: Path) -> None:
    """The length of segments that the search finds beside the best of all, and pages by vertex instead of min-hash."""
    options = argparse.Namespace(**{**vars(options), "vertices": options.small_vertices})
    records = ooc.Records(options, "bench/gnn_ooc/figures.py")
    folder = directory / "search"
    dataset = gnn.generate(folder / "g", num_vertices=options.vertices, dim=options.dim, seed=options.seed)
    run = sampled(options, dataset, folder / "g.ovg", options.fanouts, options.batch_size)
    words = ooc.levels(options.share, run.manifest["dataset"]["row_bytes"], options.vertices)
    ooc.command("pack", str(run.path), *words, "--policy", "static", "--order", "fixed")
    counts = Counts(options, run, systems.Trace.of(run, "fixed"))
    misses = counts.misses(counts.cached)
    begin = time.process_time()
    every = {length: misses.stored(length) for length in range(1, misses.count + 1)}
    trying = time.process_time() - begin
    for cap in (float(word) for word in options.caps.split(",")):
        begin = time.process_time()
        length = misses.search(counts.cap(cap))
        searching = time.process_time() - begin
        planned = counts.planned(counts.gpu, counts.cached - counts.gpu, "static", cap=cap)
        counts.same(f"at most {cap:g} rows a vertex", every[length].feature_bytes, planned["feature_bytes"])
        fitting = {n: one for n, one in every.items() if one.rows <= counts.cap(cap)}
        best = min(fitting, key=lambda n: fitting[n].feature_bytes)
        for name, number, min_hash, seconds in (
            ("found", length, True, searching),
            ("best", best, True, trying),
            ("by_vertex", length, False, None),
        ):
            stored = misses.stored(number, min_hash)
            fields: dict = {"feature_bytes": stored.feature_bytes, "stored_rows": stored.rows}
            fields |= {"blow_up": stored.rows / options.vertices, "segment_batches": number}
            if seconds is not None:
                fields["verify"] = counts.verified
                us = round(1e6 * seconds)
                fields["cpu_us"] = {"median": us, "min": us, "samples": [us]}
            what = f"policy static, {100 * options.share:g} % of the rows cached, {misses.count} batches;"
            what += f" at most {cap:g} stored rows a vertex"
            records.add(f"search_{cap:g}", what, name, **fields)


def blow_up(records: ooc.Records, options: argparse.Namespace, dataset: gnn.Dataset, run: gnn.Artefact) -> None:
    """What packs take on the disk, by caches, by fanouts and by the size of a batch; there is no limit."""

    def add(case: str, what: str, of: gnn.Artefact, share: float) -> None:
        for way, words in ooc.WAYS.items():
            packs = ooc.counted(of, share, *words)
            stored = sum(packs[key] for key in ("packs_bytes", "disk_cache_bytes", "hot_bytes"))
            rows = round(packs["blow_up"] * options.vertices)
            fields = {"blow_up": packs["blow_up"], "stored_rows": rows, "stored_bytes": stored}
            records.add(case, what, way, feature_bytes=packs["feature_bytes"], **fields)

    share = f"{100 * options.share:g} % of the rows cached"
    for word in options.shares.split(","):
        what = f"batches of {options.batch_size}, fanouts {options.fanouts}"
        add(f"blow_up_cache_{float(word):g}", what, run, float(word))
    folder = run.path.parent / "other.ovg"
    for fanouts in options.more_fanouts.split(";"):
        other = sampled(options, dataset, folder, fanouts, options.batch_size)
        add(f"blow_up_fanouts_{fanouts}", f"batches of {options.batch_size}, {share}", other, options.share)
        shutil.rmtree(folder)
    for size in options.batch_sizes.split(","):
        other = sampled(options, dataset, folder, options.fanouts, int(size))
        add(f"blow_up_batch_{size}", f"fanouts {options.fanouts}, {share}", other, options.share)
        shutil.rmtree(folder)


class Packing:
    """Packs of policy static, in passes over the features by `gnn.pack`, and batch by batch from rows read for each."""

    def __init__(self, options: argparse.Namespace, run: gnn.Artefact, work: ooc.Work) -> None:
        self._options, self._work, self._run = options, work, run
        cached = round(options.share * options.vertices)
        ids = [batch.n_id for batch in work.trace.batches]
        self.missed = disk_cache.missed_by(ids, options.vertices, cached)
        self.row = run.manifest["dataset"]["row_bytes"]
        self.levels = ooc.levels(options.share, self.row, options.vertices)
        self._folder = run.path.parent / "packing.ovg"
        self._rows = run.path.parent / "rows"

    def prepare(self) -> None:
        """The samples alone, and no features in the page cache."""
        for path in (self._folder, self._rows):
            if path.is_dir():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)
        shutil.copytree(self._run.path, self._folder, ignore=lambda _, names: [n for n in names if "shuffle" in n])
        systems.evict(self._work.dataset.path / "features.npy")

    def passes(self) -> None:
        gpu, cpu = self.levels[1], self.levels[3]
        memory = self._options.pack_memory
        gnn.pack(self._folder, gpu, cpu, policy="static", order="shuffle", memory=memory)

    def by_batch(self) -> None:
        """Requests of a batch for the same page are one: the library's engine."""
        with gnn.DiskFeatureStore(self._work.dataset, hot=np.empty(0, np.int64)) as store, self._rows.open("wb") as out:
            for ids in self.missed:
                out.write(store.read(ids).data)
            out.flush()
            os.fsync(out.fileno())

    def check_passes(self) -> None:
        with gnn.PackedLoader(self._folder, packs="shuffle", format="numpy") as loader:
            ooc.check_rows(iter(loader), self._work.features.numpy(), self._work.trace)

    def check_by_batch(self) -> None:
        features, at = self._work.features.numpy(), 0
        rows = np.memmap(self._rows, features.dtype, "r").reshape(-1, features.shape[1])
        for b, ids in enumerate(self.missed):
            if not np.array_equal(rows[at : at + len(ids)], features[ids]):
                raise SystemExit(f"batch {b}, packed alone, has other rows than the dataset")
            at += len(ids)


def kernel_bytes() -> dict[str, int]:
    """Read and written by this process, by the kernel's count of its storage."""
    words = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return {"kernel_bytes": int(words["read_bytes"]), "kernel_written": int(words["write_bytes"])}


def packing(records: ooc.Records, options: argparse.Namespace, run: gnn.Artefact, work: ooc.Work) -> None:
    """Each way once with its rows compared, then timed in turns; bytes exact, and as the kernel counts them."""
    one = Packing(options, run, work)
    misses = disk_cache.Misses(one.missed, one.row)
    planned = ooc.counted(run, options.share, *ooc.WAYS["static_packs"])
    Counts.same("packing", misses.num_rows * one.row, planned["feature_bytes"])
    written = planned["packs_bytes"] + planned["hot_bytes"]
    bytes_of = {
        "passes": {"bytes_read": options.vertices * one.row, "bytes_written": written},
        "by_batch": {"bytes_read": misses.bytes_by_page(), "bytes_written": misses.num_rows * one.row},
        "by_row": {"bytes_read": misses.bytes_by_row(), "bytes_written": misses.num_rows * one.row},
    }
    ways: dict[str, tuple[Callable, Callable]] = {
        "passes": (one.passes, one.check_passes),
        "by_batch": (one.by_batch, one.check_by_batch),
    }
    samples: dict[str, list[ooc.Sample]] = {name: [] for name in ways}
    for turn in range(options.pack_repeats + 1):
        for name, (pack, check) in ways.items():
            one.prepare()
            before, begin, worked = kernel_bytes(), time.perf_counter(), time.process_time()
            pack()
            if turn > 0:
                samples[name].append((time.perf_counter() - begin, time.process_time() - worked))
            else:
                bytes_of[name] |= {key: value - before[key] for key, value in kernel_bytes().items()}
                check()
    one.prepare()
    what = f"policy static, {100 * options.share:g} % of the rows cached; {options.pack_memory} for features in passes"
    verified = {"ok": True, "oracle": "rows of the dataset, every batch"}
    for name, fields in bytes_of.items():
        more = {"verify": verified, **ooc.times(samples[name])} if name in ways else {"verify": Counts.verified}
        records.add("packing", what, name, options.pack_repeats if name in ways else 1, **fields, **more)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    ooc.counted(run, options.share, *ooc.WAYS["static_packs"])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    worked = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    records.add("packing", what, "planning", **ooc.times([(time.perf_counter() - begin, worked)]))


def pace(records: ooc.Records, options: argparse.Namespace, run: gnn.Artefact, work: ooc.Work) -> None:
    """Epochs without a model from the disk that is there, played at a half and a quarter of its rate."""
    if options.disk is None:
        disk = ooc.command("diskbench", str(run.path.parent), "--size", "256MiB", "--seconds", "0.5")
        storage = schema.storage_of(disk)
        records.add("disk", "overlace gnn diskbench in the same directory", "disk", storage=storage)
        rate = storage["read_GBps"]["1048576"] * 1e9
    else:
        rate = _native.size("disk", options.disk)
    for _, order in ooc.WAYS.values():
        with gnn.PackedLoader(run, packs=order, format="numpy") as loader:
            ooc.check_rows(iter(loader), work.features.numpy(), work.trace)
    for share in RATES:
        paced = argparse.Namespace(**{**vars(options), "pace": str(round(rate * share))})
        ooc.slow_disk(records, paced, run, work, f"pace_{share:g}")


def by_epoch(model: Model, epoch: Callable, tested: list[gnn.Batch], epochs: int) -> list[float]:
    """Test accuracy after each training epoch."""
    optimizer, out = torch.optim.Adam(model.parameters(), lr=3e-3), []
    for _ in range(epochs):
        model.train()
        ooc.train_on(epoch(), most=-1, model=model, optimizer=optimizer)
        out.append(accuracy.right(model, tested))
    return out


def curves(
    dataset: gnn.Dataset, graph: accuracy.Graph, packs: dict[str, accuracy.Packs], own: argparse.Namespace, seed: int
) -> dict[str, list[float]]:
    """GraphSAGE by each way, from the same weights."""

    def fresh() -> Model:
        torch.manual_seed(seed)
        return Model("sage", dataset.dim, own.hidden, dataset.num_classes, len(own.fanouts.split(",")))

    with gnn.PackedLoader(packs["fixed"][0], split="test", packs="fixed-test") as loader:
        tested = list(loader)
    rng, train = np.random.default_rng([seed, 1]), np.asarray(dataset.split("train"))
    anew = functools.partial(accuracy.online, graph, train, own, rng)
    out = {"inmem_online": by_epoch(fresh(), anew, tested, own.epochs)}
    for name in ("fixed_anew", "fixed", "shuffle"):
        run, order = packs[name]
        with gnn.PackedLoader(run, packs=order, order_seed=seed) as loader:
            out[name] = by_epoch(fresh(), functools.partial(iter, loader), tested, own.epochs)
    return out


def costs(packs: dict[str, accuracy.Packs], own: argparse.Namespace, pace: int) -> dict[str, dict]:
    """What a training epoch takes with an assumed trainer and disk, and what packing writes."""
    out: dict[str, dict] = {}
    for name in ("fixed_anew", "fixed", "shuffle"):
        run, order = packs[name]
        made = next(p for p in run.manifest["packs"] if p["name"] == order)
        predicted = ooc.predicted_us(run, order, pace, own.compute_ms)
        written = made["packs_bytes"] + made["disk_cache_bytes"] + made["hot_bytes"]
        out[name] = {"predicted_us": predicted, "bytes_read": made["bytes_read"] // made["epochs"]}
        out[name]["bytes_written"] = written
    run, order = packs["shuffle"]
    made = next(p for p in run.manifest["packs"] if p["name"] == order)
    dataset = run.manifest["dataset"]
    batches = next(t for t in run.manifest["traces"] if t["split"] == "train")["batches"]
    pages = made["feature_bytes"] // dataset["row_bytes"] * -(-dataset["row_bytes"] // systems.PAGE) * systems.PAGE
    alone = batches * own.compute_ms * 1e3
    out["inmem_online"] = {"bound_us": alone}
    out["row_reads"] = {"bound_us": max(alone, 1e6 * pages / pace), "feature_bytes": pages}
    return out


def time_to(options: argparse.Namespace, directory: Path) -> None:
    """Epochs to an accuracy, trained, and what they take, predicted: nothing is timed."""
    own = argparse.Namespace(**{**vars(options), "vertices": options.small_vertices, "fanouts": "10,5"})
    own.hidden, pace = 64, _native.size("time-pace", options.time_pace)
    records = ooc.Records(own, "bench/gnn_ooc/figures.py")
    folder = directory / "time_to"
    dataset = gnn.generate(folder / "g", num_vertices=own.vertices, dim=own.dim, seed=own.seed)
    graph, found = accuracy.Graph.of(dataset), {}
    for seed in range(1, own.seeds + 1):
        packs = accuracy.pack(dataset, folder / "packs", own, seed)
        for way, shares in curves(dataset, graph, packs, own, seed).items():
            found.setdefault(way, []).append(shares)
        if seed == 1:
            cost = costs(packs, own, pace)
        shutil.rmtree(folder / "packs")
    found["row_reads"] = found["inmem_online"]  # the same samples
    what = f"GraphSAGE, hidden {own.hidden}, {own.epochs} training epochs, fanouts {own.fanouts} with replacement,"
    what += f" batches of {own.batch_size}, 10 % of the rows cached; {own.compute_ms:g} ms a batch and a disk of"
    what += f" {own.time_pace} per second are assumed"
    for way, curve in found.items():
        last = [shares[-1] for shares in curve]
        means = [statistics.mean(shares) for shares in zip(*curve, strict=True)]
        shares = {"mean": means[-1], "min": min(last), "max": max(last), "samples": last, "by_epoch": means}
        fields = {"accuracy": {**shares, "wanted": own.target}, "pace_bytes_per_s": pace, **cost[way]}
        records.add("time_to", what, way, own.seeds, flags=["unlimited", "emulated"], **fields)


def measure(records: ooc.Records, options: argparse.Namespace, directory: Path) -> None:
    wanted = set(options.cases.split(","))
    for name, small in (("search", search), ("time_to", time_to)):
        if name in wanted:
            small(options, directory)
    if wanted <= {"search", "time_to"}:
        return
    dataset = gnn.generate(directory / "g", num_vertices=options.vertices, dim=options.dim, seed=options.seed)
    run = sampled(options, dataset, directory / "g.ovg", options.fanouts, options.batch_size)
    words = ooc.levels(options.share, run.manifest["dataset"]["row_bytes"], options.vertices)
    for policy, order in ooc.WAYS.values():
        ooc.command("pack", str(run.path), *words, "--policy", policy, "--order", order)
    trace = systems.Trace.of(run, "fixed")
    features = torch.from_numpy(np.array(dataset.features))
    work = ooc.Work(options, dataset, trace, features, len(options.fanouts.split(",")))
    counts = Counts(options, run, trace)
    cases: dict[str, Callable] = {
        "ladder": functools.partial(ladder, counts=counts),
        "blow_up": functools.partial(blow_up, dataset=dataset, run=run),
        "packing": functools.partial(packing, run=run, work=work),
        "pace": functools.partial(pace, run=run, work=work),
    }
    for name, case in cases.items():
        if name in wanted:
            case(records, options)


def main(words: list[str] | None = None) -> int:
    options = parse(words)
    torch.set_num_threads(1)
    records = ooc.Records(options, "bench/gnn_ooc/figures.py")
    return ooc.run_in_folder(options, lambda work: measure(records, options, work))


if __name__ == "__main__":
    sys.exit(main())
