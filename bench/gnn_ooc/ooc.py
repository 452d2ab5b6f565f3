"""bench/gnn_ooc: bytes and epoch times of training on graphs whose features lie on a disk, beside competitors.

    python3 bench/gnn_ooc/ooc.py --out bench/results/gnn_ooc_cpu2.jsonl

Makes a graph, samples it, packs it, checks that each way gives the rows of the dataset, counts bytes, then times all
ways interleaved. Each line of --out is a record as bench/record.schema.json wants it.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import functools
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch.nn import functional

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "driver")]

import overlace  # noqa: E402
import row_ways  # noqa: E402
import schema  # noqa: E402
import systems  # noqa: E402
from overlace import gnn  # noqa: E402
from overlace.gnn import _native  # noqa: E402
from overlace.gnn.nn import Model  # noqa: E402

PAGE = systems.PAGE
GPU_SHARE = 0.4  # of the cached rows: what a GPU would hold; they do not change
CASES = ("bytes", "counted", "disk", "rows", "epoch", "slow", "trained", "overlap", "played", "like", "absent")
LIKE = ("papers", "mag", "friendster", "igb")  # whose skew of accesses is played
LIKE_SEEDS, LIKE_BATCHES = 0.15, 600  # share of the vertices, and batches of a training epoch there
WAYS = {"static_packs": ("static", "shuffle"), "overlace": ("belady", "fixed")}


def parsed(parser: argparse.ArgumentParser, words: list[str] | None, cases: tuple[str, ...]) -> argparse.Namespace:
    """With what the benches that write some of their cases have alike."""
    parser.add_argument("--cases", default=",".join(cases), help="that are written")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", help="directory on the disk that is measured (default: a new one, removed after)")
    parser.add_argument("--git", help="commit in the records (default: that of this checkout)")
    parser.add_argument("--out", required=True)
    options = parser.parse_args(words)
    unknown = set(options.cases.split(",")) - set(cases)
    if unknown:
        parser.error(f"--cases has {', '.join(sorted(unknown))}, wanted some of {', '.join(cases)}")
    return options


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vertices", type=int, default=2**18)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--fanouts", default="10,5,5")
    parser.add_argument("--shares", default="0.05,0.1,0.2,0.3", help="of the rows, cached: for bytes")
    parser.add_argument("--share", type=float, default=0.1, help="of the rows, cached: for times")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--model-batches", type=int, default=32, help="that are trained on")
    parser.add_argument("--model-repeats", type=int, default=7)
    parser.add_argument("--row-batches", type=int, default=32, help="that ways which read single rows are timed on")
    parser.add_argument("--row-repeats", type=int, default=3)
    parser.add_argument("--superbatch", type=int, default=row_ways.SUPERBATCH, help="batches that ginex_like knows")
    parser.add_argument("--overlap-repeats", type=int, default=3, help="of training as fast as the disk that is played")
    parser.add_argument("--played-ms", type=float, default=10, help="of a batch, of the trainer that is played")
    parser.add_argument("--pace", default="256MiB", help="per second, of the slower disk that is played")
    parser.add_argument("--pace-repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="of torch; more wait for each other on a busy machine")
    return parsed(parser, words, CASES)


def command(*words: str, group: tuple[str, ...] = ("gnn",)) -> Any:
    """A command of `overlace gnn` with its result as data."""
    program = os.environ.get("OVERLACE_BIN", "overlace")
    quiet = ["--quiet"] if group == ("gnn",) else []
    done = subprocess.run([program, *group, *words, *quiet, "--json", "-"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"overlace {' '.join([*group, *words])}: {done.stderr}")
    return json.loads(done.stdout)


def machine() -> dict:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    cores = os.cpu_count() or 1
    return {
        "name": f"{cpu}, {cores} cores",
        "cpu": cpu,
        "cores": cores,
        "load": float(Path("/proc/loadavg").read_text().split()[0]),
        "kernel": f"{platform.system()} {platform.release()}",
        "torch": torch.__version__,
    }


class Records:
    def __init__(self, options: argparse.Namespace, program: str = "bench/gnn_ooc/ooc.py") -> None:
        commit = ["git", "-C", str(HERE), "rev-parse", "--short=12", "HEAD"]
        self._git = options.git or subprocess.check_output(commit, text=True).strip()
        self._path = Path(options.out)
        self._run = self._now()
        self._command = " ".join([program, *sys.argv[1:]])
        self.data = f"dcsbm, {options.vertices} vertices, {options.dim} fp32, seed {options.seed}"

    @staticmethod
    def _now() -> str:
        return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")

    def add(self, case: str, what: str, competitor: str, repetitions: int = 1, **fields: object) -> None:
        row = {
            "schema": "overlace.bench/1",
            "run": self._run,
            "date": self._now(),
            "git": self._git,
            "command": self._command,
            "machine": machine(),
            "workload": "gnn_ooc",
            "case": {"name": case, "what": what},
            "dtype": "fp32",
            "team": 1,
            "data": self.data,
            "method": {"repetitions": repetitions},
            "competitor": competitor,
            "status": "ok",
            "flags": ["unlimited"],
            **fields,
        }
        body = json.dumps(row, separators=(",", ":"))
        line = body[:-1] + f',"id":"{schema.record_id(body)}"}}'
        wrong = schema.complaints(json.loads(line), json.loads(schema.PATH.read_text()))
        if wrong:
            raise SystemExit("\n".join(wrong))
        with self._path.open("a") as out:
            out.write(line + "\n")
        print(f"{case:<18} {competitor:<14} {describe(fields)}", flush=True)


def describe(fields: dict) -> str:
    parts = [f"{key} {fields[key]}" for key in ("feature_bytes", "bytes_read", "kernel_bytes") if key in fields]
    if "reason" in fields:
        parts.append(f"{fields['status']}: {fields['reason']}")
    if "accuracy" in fields:
        parts.append(", ".join(f"{100 * share:.2f} %" for share in fields["accuracy"]["samples"]))
    if "time_us" in fields:
        parts.append(
            f"{fields['time_us']['median'] / 1e6:.3f} s, {fields['cpu_us']['median'] / 1e6:.3f} s of processors"
        )
    return ", ".join(parts)


Ways = dict[str, Callable[[], Iterator[gnn.Batch]]]
Sample = tuple[float, float]  # seconds that passed, and of processor time of all threads


def times(samples: list[Sample]) -> dict:
    out = {}
    for name, place in (("time_us", 0), ("cpu_us", 1)):
        us = [round(sample[place] * 1e6) for sample in samples]
        out[name] = {"median": statistics.median(us), "min": min(us), "samples": us}
    return out


def levels(share: float, row_bytes: int, vertices: int, gpu_share: float = GPU_SHARE) -> list[str]:
    rows = round(share * vertices)
    gpu = round(gpu_share * rows)
    return ["--gpu-cache", str(gpu * row_bytes), "--cpu-cache", str((rows - gpu) * row_bytes)]


def counted(run: gnn.Artefact, share: float, policy: str, order: str, gpu_share: float = GPU_SHARE) -> dict:
    """What the planner says of packs that are not written."""
    dataset = run.manifest["dataset"]
    words = levels(share, dataset["row_bytes"], dataset["num_vertices"], gpu_share)
    made = command("pack", str(run.path), *words, "--policy", policy, "--order", order, "--dry-run")
    return next(p for p in made["packs"] if p["name"] == order)


def plan_bytes(
    records: Records, options: argparse.Namespace, run: gnn.Artefact, dataset: gnn.Dataset, trace: systems.Trace
) -> None:
    """Bytes of features by share of cached rows: exact, by a walk through the whole trace."""
    row = run.manifest["dataset"]["row_bytes"]
    pages = -(-row // PAGE) * PAGE  # a row of whole parts of a page lies on one
    for share in (float(word) for word in options.shares.split(",")):
        case, what = f"bytes_{share:g}", f"a training epoch, {100 * share:g} % of the rows cached"
        read = {way: counted(run, share, *words)["feature_bytes"] for way, words in WAYS.items()}
        lru = counted(run, share, "lru", "fixed", 0)["feature_bytes"]
        bytes_of = {
            "row_reads": read["static_packs"] // row * pages,
            "lru_rows": lru // row * pages,
            **row_bytes(options, dataset, trace, share),
            "lru_packs": lru,
            **read,
        }
        for competitor, count in bytes_of.items():
            records.add(case, what, competitor, feature_bytes=count)


def row_bytes(options: argparse.Namespace, dataset: gnn.Dataset, trace: systems.Trace, share: float) -> dict[str, int]:
    """Bytes that are planned by the ways that look ahead."""
    out = {}
    for name in ("ginex_like", "window_rows"):
        with row_ways.RowWay(name, dataset, trace, round(share * options.vertices), options.superbatch) as way:
            out[name] = way.planned_bytes()
    return out


def check_rows(batches: Iterator[gnn.Batch], features: np.ndarray, trace: systems.Trace) -> int:
    """Every row of every batch is that of the dataset, and every batch of the trace comes once."""
    seen = set()
    for batch in batches:
        known = trace.batches[batch.number]
        if not np.array_equal(np.asarray(batch.n_id), known.n_id):
            raise SystemExit(f"batch {batch.number} has other vertices than the trace")
        if not np.array_equal(np.asarray(batch.x), features[known.n_id]):
            raise SystemExit(f"batch {batch.number} has other rows than the dataset")
        seen.add(batch.number)
    if len(seen) != len(trace.batches):
        raise SystemExit(f"{len(seen)} batches came, wanted {len(trace.batches)}")
    return len(seen)


def read_all(batches: Iterator[gnn.Batch], most: int) -> None:
    for i, _ in enumerate(batches, 1):
        if i == most:
            return


def train_on(batches: Iterator[gnn.Batch], *, most: int, model: Model, optimizer: torch.optim.Optimizer) -> None:
    for i, batch in enumerate(batches, 1):
        loss = functional.cross_entropy(model(batch), batch.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i == most:
            return


def by_turns(ways: Ways, repeats: int, work: Callable) -> dict[str, list[Sample]]:
    """Each way once, then all in turns, the first of a turn another each time."""
    samples: dict[str, list[Sample]] = {name: [] for name in ways}
    names = list(ways)
    for turn in range(repeats + 1):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            begin, worked = time.perf_counter(), time.process_time()
            work(ways[name]())
            if turn > 0:
                samples[name].append((time.perf_counter() - begin, time.process_time() - worked))
    return samples


@dataclass
class Work:
    """What all cases need of one graph."""

    options: argparse.Namespace
    dataset: gnn.Dataset
    trace: systems.Trace
    features: torch.Tensor
    layers: int

    verified: ClassVar[dict] = {"ok": True, "oracle": "rows of the dataset, every batch"}

    @property
    def shown(self) -> str:
        share = f"{100 * self.options.share:g} % of the rows cached"
        return f"{share}, {len(self.trace.batches)} batches, {self.trace.rows} input rows"

    def model(self) -> tuple[Model, torch.optim.Adam]:
        torch.manual_seed(self.options.seed)
        model = Model("sage", self.dataset.dim, 128, self.dataset.num_classes, self.layers)
        return model, torch.optim.Adam(model.parameters(), lr=3e-3)


def played_machine(path: Path, rate: float) -> str:
    """Writes a machine file whose disk reads `rate` GB/s in requests of any size; its name."""
    read = {"points": [[4096, rate], [1048576, rate]], "source": "prior", "x": "bytes"}
    path.write_text(json.dumps({"overlace_machine": 1, "name": "played", "storage": {"read_GBps": read}}))
    return str(path)


def predicted_us(run: gnn.Artefact, packs: str, pace: int, compute_ms: float) -> float:
    """A training epoch as `overlace sim graph gnn` has it, from a disk of `pace` bytes per second."""
    disk = played_machine(run.path.parent / "played.json", pace / 1e9)
    words = ["--packs", packs, "--machine", disk, "--compute-ms", str(compute_ms)]
    rows = command(str(run.path), *words, group=("sim", "graph", "gnn"))["rows"]
    return next(row["epoch_s"] for row in rows if row["way"] == "pipelined") * 1e6


def slow_disk(records: Records, options: argparse.Namespace, run: gnn.Artefact, work: Work, case: str = "slow") -> None:
    """An epoch without a model from a disk that is played."""
    loaders: dict[str, gnn.PackedLoader] = {}
    ways = {name: functools.partial(systems.packed, run, WAYS[name][1], loaders, options.pace) for name in WAYS}
    samples = by_turns(ways, options.pace_repeats, lambda batches: read_all(batches, -1))
    for name, seconds in samples.items():
        fields = {
            "bytes_read": loaders[WAYS[name][1]].bytes_read,
            "pace_bytes_per_s": _native.size("pace", options.pace),
            "predicted_us": predicted_us(run, WAYS[name][1], _native.size("pace", options.pace), 0),
        }
        what = f"no model, a disk of {options.pace} per second, {100 * options.share:g} % of the rows cached"
        records.add(case, what, name, options.pace_repeats, verify=work.verified, **fields, **times(seconds))
    for loader in loaders.values():
        loader.close()


def overlap(records: Records, options: argparse.Namespace, run: gnn.Artefact, work: Work) -> None:
    """Training from a disk that takes as long as training: what hides behind what."""
    model, optimizer = work.model()
    memory = {"inmem_offline": lambda: systems.in_memory(work.trace, work.features)}
    train = functools.partial(train_on, most=-1, model=model, optimizer=optimizer)
    alone = by_turns(memory, 1, train)["inmem_offline"][0][0]
    loaders: dict[str, gnn.PackedLoader] = {}
    with gnn.PackedLoader(run, packs="fixed") as loader:
        pace = max(1, round(loader.bytes_read / alone))
    ways = {**memory, "overlace": lambda: systems.packed(run, "fixed", loaders, pace)}
    samples = by_turns(ways, options.overlap_repeats, train)
    compute_ms = 1e3 * statistics.median(one[0] for one in samples["inmem_offline"]) / len(work.trace.batches)
    what = (
        f"GraphSAGE, 128 hidden, all batches; {100 * options.share:g} % of the rows cached, a disk as fast as training"
    )
    for name, seconds in samples.items():
        fields: dict[str, object] = {"pace_bytes_per_s": pace}
        if name == "overlace":
            fields["bytes_read"] = loaders["fixed"].bytes_read
            fields["predicted_us"] = predicted_us(run, "fixed", pace, compute_ms)
        records.add("overlap", what, name, options.overlap_repeats, verify=work.verified, **fields, **times(seconds))
    loaders["fixed"].close()


def played(records: Records, options: argparse.Namespace, run: gnn.Artefact, work: Work) -> None:
    """The same with a trainer that takes its time and no processor, as one on a GPU would."""

    def wait_for_each(batches: Iterator[gnn.Batch]) -> None:
        for _ in batches:
            time.sleep(options.played_ms / 1e3)

    loaders: dict[str, gnn.PackedLoader] = {}
    with gnn.PackedLoader(run, packs="fixed") as loader:
        read = loader.bytes_read
    pace = max(1, round(read / (len(work.trace.batches) * options.played_ms / 1e3)))
    ways: Ways = {
        "trainer_alone": lambda: iter(work.trace.batches),
        "overlace": lambda: systems.packed(run, "fixed", loaders, pace),
    }
    samples = by_turns(ways, options.overlap_repeats, wait_for_each)
    loaders["fixed"].close()
    compute_ms = 1e3 * statistics.median(one[0] for one in samples["trainer_alone"]) / len(work.trace.batches)
    what = f"a trainer that waits {options.played_ms:g} ms a batch, a disk as fast; {work.shown}"
    for name, seconds in samples.items():
        fields: dict[str, object] = {"pace_bytes_per_s": pace, "flags": ["unlimited", "emulated"]}
        if name == "overlace":
            fields |= {"bytes_read": read, "predicted_us": predicted_us(run, "fixed", pace, compute_ms)}
        records.add("played", what, name, options.overlap_repeats, **fields, **times(seconds))


def likes(records: Records, options: argparse.Namespace, run: gnn.Artefact, work: Work) -> None:
    """Bytes of features on graphs with the skews of published ones; rows of the usual width, as only shares count."""
    for name in LIKE:
        folder = run.path.parent / f"like_{name}"
        dataset = gnn.generate(folder, like=name, num_vertices=options.vertices, dim=32, seed=options.seed)
        # NOTE: the published shares of seeds, 1 % and less, are a few batches on graphs of this size.
        rng = np.random.default_rng(options.seed)
        seeds = np.flatnonzero((rng.random(options.vertices) < LIKE_SEEDS) & (np.diff(dataset.indptr) > 0))
        np.save(folder / "train.npy", seeds)
        command("import", str(folder), "--in-place", "--classes", str(dataset.num_classes))
        dataset, size = gnn.Dataset(folder), max(1, len(seeds) // LIKE_BATCHES)
        sampler = gnn.OfflineSampler(dataset, [10, 5, 5], size, seed=options.seed, replace=True)
        sampled = sampler.run(f"{folder}.ovg")
        for way, words in WAYS.items():
            what = f"{name}, {options.vertices} vertices, rows of 128 B, 15 % are seeds, about {LIKE_BATCHES} batches;"
            what += f" {100 * options.share:g} % of the rows cached"
            read = counted(sampled, options.share, *words)
            records.add(f"like_{name}", what, way, feature_bytes=read["feature_bytes"])
        for path in (folder, sampled.path):
            shutil.rmtree(path)


def count_bytes(
    records: Records, run: gnn.Artefact, work: Work, ways: Ways, loaders: dict[str, gnn.PackedLoader]
) -> None:
    """Each way once with all rows compared, and what it read: as planned, as it counted, as the kernel did."""
    packs = {p["name"]: p for p in run.manifest["packs"]}
    for name, way in ways.items():
        is_row_way = isinstance(way, row_ways.RowWay)
        before = systems.kernel_bytes()
        check_rows(iter(way) if is_row_way else way(), work.features.numpy(), work.trace)
        fields: dict[str, object] = {"kernel_bytes": systems.kernel_bytes() - before}
        if name in WAYS:
            # NOTE: opening reads the caches and their plan, a second epoch does not.
            before = systems.kernel_bytes()
            check_rows(way(), work.features.numpy(), work.trace)
            fields["kernel_bytes"] = systems.kernel_bytes() - before
            fields["bytes_read"] = loaders[WAYS[name][1]].stats()["bytes_read"]
            fields["planned_bytes"] = packs[WAYS[name][1]]["bytes_read"]
            fields["feature_bytes"] = packs[WAYS[name][1]]["feature_bytes"]
        if is_row_way:
            fields["feature_bytes"] = fields["bytes_read"] = way.bytes_read
            fields["planned_bytes"] = way.planned_bytes()
        what = f"a training epoch read and checked, {work.shown}"
        records.add("counted", what, name, verify=work.verified, **fields)


def count_and_time_rows(
    records: Records, run: gnn.Artefact, work: Work, ways: Ways, loaders: dict[str, gnn.PackedLoader]
) -> None:
    """All ways counted; those that read single rows timed beside packs."""
    options = work.options
    with contextlib.ExitStack() as stack:
        cached = round(options.share * options.vertices)
        by_rows = {
            name: stack.enter_context(row_ways.RowWay(name, work.dataset, work.trace, cached, options.superbatch))
            for name in ("row_reads", "ginex_like", "window_rows")
        }
        if "counted" in options.cases.split(","):
            count_bytes(records, run, work, {**ways, **by_rows}, loaders)
        if "rows" not in options.cases.split(","):
            return
        most = min(options.row_batches, len(work.trace.batches))
        packed = {name: ways[name] for name in WAYS}
        rows = {name: functools.partial(iter, way) for name, way in by_rows.items()}
        samples = by_turns({**packed, **rows}, options.row_repeats, functools.partial(read_all, most=most))
    what = f"no model, the first {most} batches; {100 * options.share:g} % of the rows cached"
    for name, seconds in samples.items():
        records.add("rows", what, name, options.row_repeats, verify=work.verified, **times(seconds))


def time_ways(records: Records, work: Work, ways: Ways, wanted: list[str]) -> None:
    """Whole epochs without a model, some batches with one."""
    options = work.options
    if "epoch" in wanted:
        samples = by_turns(ways, options.repeats, lambda batches: read_all(batches, -1))
        for name, seconds in samples.items():
            what = f"no model, {work.shown}"
            records.add("epoch", what, name, options.repeats, verify=work.verified, **times(seconds))
    if "trained" in wanted:
        model, optimizer = work.model()
        most = min(options.model_batches, len(work.trace.batches))
        train = functools.partial(train_on, most=most, model=model, optimizer=optimizer)
        samples = by_turns(ways, options.model_repeats, train)
        what = f"GraphSAGE, 128 hidden, the first {most} batches; {100 * options.share:g} % of the rows cached"
        for name, seconds in samples.items():
            records.add("trained", what, name, options.model_repeats, verify=work.verified, **times(seconds))


def measure(records: Records, options: argparse.Namespace, directory: Path) -> None:
    wanted = options.cases.split(",")
    if "absent" in wanted:
        for name, reason in systems.absent().items():
            records.add("absent", "a training epoch", name, status="absent", reason=reason)
    if wanted == ["absent"]:
        return
    dataset = gnn.generate(directory / "g", num_vertices=options.vertices, dim=options.dim, seed=options.seed)
    fanouts = [int(word) for word in options.fanouts.split(",")]
    sampler = gnn.OfflineSampler(dataset, fanouts, batch_size=options.batch_size, replace=True, seed=options.seed)
    run = sampler.run(directory / "g.ovg")
    for policy, order in WAYS.values():
        words = levels(options.share, run.manifest["dataset"]["row_bytes"], options.vertices)
        command("pack", str(run.path), *words, "--policy", policy, "--order", order)
    trace = systems.Trace.of(run, "fixed")
    work = Work(options, dataset, trace, torch.from_numpy(np.array(dataset.features)), len(fanouts))
    if "bytes" in wanted:
        plan_bytes(records, options, run, dataset, trace)
    loaders: dict[str, gnn.PackedLoader] = {}
    ways: Ways = {
        "overlace": lambda: systems.packed(run, "fixed", loaders),
        "static_packs": lambda: systems.packed(run, "shuffle", loaders),
        "inmem_offline": lambda: systems.in_memory(trace, work.features),
        "pyg_mmap": lambda: systems.pyg_mmap(trace, dataset),
    }
    if "disk" in wanted:
        disk = command("diskbench", str(directory), "--size", "256MiB", "--seconds", "0.5")
        records.add("disk", "overlace gnn diskbench in the same directory", "disk", storage=schema.storage_of(disk))
    if "counted" in wanted or "rows" in wanted:
        count_and_time_rows(records, run, work, ways, loaders)
    time_ways(records, work, ways, wanted)
    for loader in loaders.values():
        loader.close()
    for name, case in (("slow", slow_disk), ("overlap", overlap), ("played", played), ("like", likes)):
        if name in wanted:
            case(records, options, run, work)


def run_in_folder(options: argparse.Namespace, body: Callable[[Path], None]) -> int:
    """In --work, or a folder that goes afterwards; the exit status."""
    work = Path(options.work or tempfile.mkdtemp(prefix="overlace_gnn_"))
    work.mkdir(parents=True, exist_ok=True)
    try:
        body(work)
    except overlace.Error as error:
        print(f"gnn_ooc: {error}", file=sys.stderr)
        return 1
    finally:
        if not options.work:
            shutil.rmtree(work, ignore_errors=True)
    return 0


def main(words: list[str] | None = None) -> int:
    options = parse(words)
    torch.set_num_threads(options.threads)
    return run_in_folder(options, lambda work: measure(Records(options), options, work))


if __name__ == "__main__":
    sys.exit(main())
