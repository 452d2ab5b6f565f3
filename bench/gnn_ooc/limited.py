"""bench/gnn_ooc: a batch of the first ones of a training epoch in a memory cgroup smaller than the features, no model.

    python3 bench/gnn_ooc/limited.py --out bench/results/gnn_ooc_cpu2.jsonl

Every run of a way is a process of its own, with NumPy alone, in a new group; the page cache of the features is dropped
before. Its clock begins when all is open. Records have the case `limited`.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKED = 10  # batches whose rows are compared, by their checksums
WAYS = ("overlace", "static_packs", "row_reads", "mmap_rows")


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vertices", type=int, default=2**20)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--fanouts", default="10,5,5")
    parser.add_argument("--share", type=float, default=0.08, help="of the rows, cached")
    parser.add_argument("--limit", default="0.25", help="memory, as a share of the features, or bytes such as 128MiB")
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--map-batches", type=int, default=5, help="of mmap_rows, a row after the other")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--git", help="commit in the records (default: that of this checkout)")
    parser.add_argument("--out", required=True)
    return parser.parse_args(words)


def rows_of(way: str, folder: Path, count: int) -> Iterator[tuple[int, object]]:
    """Batch by batch its number and rows; the first thing it gives, None, says that all is open."""
    import numpy as np
    from overlace import gnn

    if way in ("overlace", "static_packs"):
        packs = "fixed" if way == "overlace" else "shuffle"
        with gnn.PackedLoader(folder / "g.ovg", packs=packs, format="numpy", copy=False) as loader:
            yield -1, None
            for batch in loader:
                yield batch.number, batch.x
        return
    bounds = np.load(folder / "bounds.npy")
    ids = np.load(folder / "ids.npy", mmap_mode="r")
    dataset = gnn.Dataset(folder / "g")
    if way == "mmap_rows":
        features = dataset.features
        # NOTE: with the kernel's read-ahead of megabytes a batch would read the file many times over.
        features._mmap.madvise(mmap.MADV_RANDOM)
        read = features.__getitem__
    else:
        hot = np.load(folder / "hot.npy")
        store = gnn.DiskFeatureStore(dataset, cache=len(hot) * dataset.features.strides[0], hot=hot)
        read = store.read
    yield -1, None
    for number in range(count):
        yield number, read(np.asarray(ids[bounds[number] : bounds[number + 1]]))


def work(way: str, folder: Path, count: int) -> dict:
    """Seconds of the first `count` batches, and checksums of those that are compared."""
    sys.modules["torch"] = None  # type: ignore[assignment]
    batches = rows_of(way, folder, count)
    next(batches)
    begin, worked, checks, wall = time.perf_counter(), time.process_time(), {}, 0.0
    for done, (number, rows) in enumerate(batches, 1):
        if number < CHECKED:
            pause = time.perf_counter()
            checks[number] = zlib.crc32(rows)
            wall += time.perf_counter() - pause
        if done == count:
            break
    seconds = time.perf_counter() - begin - wall
    return {"seconds": seconds, "processor": time.process_time() - worked - wall, "checks": checks}


def prepare(options: argparse.Namespace, folder: Path) -> tuple[int, dict[str, int]]:
    """Makes graph, samples and packs; bytes of the features, and checksums of the first batches."""
    import numpy as np
    import ooc
    import systems
    from overlace import gnn

    dataset = gnn.generate(folder / "g", num_vertices=options.vertices, dim=options.dim, seed=options.seed)
    fanouts = [int(word) for word in options.fanouts.split(",")]
    run = gnn.OfflineSampler(dataset, fanouts, options.batch_size, replace=True, seed=options.seed).run(
        folder / "g.ovg"
    )
    row = run.manifest["dataset"]["row_bytes"]
    for policy, order in ooc.WAYS.values():
        # NOTE: all of the cached rows are the CPU's here.
        words = ooc.levels(options.share, row, options.vertices, gpu_share=0)
        ooc.command("pack", str(run.path), *words, "--policy", policy, "--order", order)
    counts, ids = np.zeros(options.vertices, np.int64), []
    with gnn.PackedLoader(run, packs="fixed", format="numpy", copy=False) as loader:
        for batch in loader:
            counts[batch.n_id] += 1
            if batch.number < options.batches:
                ids.append((batch.number, batch.n_id.copy()))
    ids.sort(key=lambda pair: pair[0])
    np.save(folder / "ids.npy", np.concatenate([one for _, one in ids]))
    np.save(folder / "bounds.npy", np.cumsum([0, *(len(one) for _, one in ids)]))
    hot = np.lexsort((np.arange(len(counts)), -counts))[: round(options.share * options.vertices)]
    np.save(folder / "hot.npy", hot)
    rows = np.fromfile(folder / "g" / "features.npy", np.float32, offset=dataset.features.offset)
    rows = rows.reshape(-1, options.dim)
    checks = {str(number): zlib.crc32(rows[one]) for number, one in ids[:CHECKED]}
    systems.evict(folder / "g" / "features.npy")
    return options.vertices * row, checks


def measure(options: argparse.Namespace, folder: Path) -> None:
    sys.path[:0] = [str(HERE), str(HERE.parent / "driver")]
    import memory_limit
    import ooc
    import systems
    from overlace.gnn import _native

    features, checks = prepare(options, folder)
    limit = round(float(options.limit) * features) if "." in options.limit else _native.size("limit", options.limit)
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
    for turn in range(options.repeats):
        for name in WAYS[turn % len(WAYS) :] + WAYS[: turn % len(WAYS)]:
            systems.evict(folder / "g" / "features.npy")
            with memory_limit.limited(limit) as group:
                count = options.map_batches if name == "mmap_rows" else options.batches
                done = group.run([sys.executable, __file__, "--worker", name, str(folder), str(count)], 200)
            if done.returncode != 0:
                raise SystemExit(f"{name} in {limit} bytes: exit {done.returncode}, {done.stderr}")
            said = json.loads(done.stdout)
            wrong = [number for number, crc in said["checks"].items() if crc != checks[number]]
            if wrong or (name != "static_packs" and len(said["checks"]) != min(count, len(checks))):
                raise SystemExit(f"{name}: batches {wrong} have other rows than the dataset")
            samples[name].append((said["seconds"] / count, said["processor"] / count))
    records = ooc.Records(options, "bench/gnn_ooc/limited.py")
    what = f"no model, a batch of the first {options.batches} ({options.map_batches} of `mmap_rows`) in"
    what += f" {limit / 1e6:.0f} MB of memory, features of {features / 1e6:.0f} MB;"
    what += f" {100 * options.share:g} % of the rows cached"
    verified = {"ok": True, "oracle": f"checksums of the rows of the first {CHECKED} batches"}
    for name, seconds in samples.items():
        fields = {"memory_limit_bytes": limit, "flags": [], **ooc.times(seconds)}
        records.add("limited", what, name, options.repeats, verify=verified, **fields)


def main(words: list[str] | None = None) -> int:
    options = parse(words)
    with tempfile.TemporaryDirectory(prefix="overlace_gnn_limited_") as folder:
        measure(options, Path(folder))
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        print(json.dumps(work(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))), flush=True)
        # NOTE: the loader is in the middle of its epoch; what it would free goes with the process.
        os._exit(0)
    sys.exit(main())
