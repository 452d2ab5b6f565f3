"""bench/gnn_ooc: whether `overlace gnn plan` chooses well: every setting that it ranks is packed and run.

    python3 bench/gnn_ooc/choice.py --out bench/results/gnn_ooc_cpu2.jsonl

Orders, depths and page sizes within one memory and one cap of the disk, 24 with the defaults; a training epoch of each
from a disk that is played, with a trainer that waits. Records have the case `choice`: the setting that the plan puts
first, and the fastest and the slowest of all, run again in turns.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "driver")]

import numpy as np  # noqa: E402
import ooc  # noqa: E402
import overlace  # noqa: E402
from overlace import gnn  # noqa: E402
from overlace.gnn import _native  # noqa: E402

CHECKED = 4  # batches whose rows are compared with the dataset


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vertices", type=int, default=2**18)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--fanouts", default="10,5,5")
    parser.add_argument("--gpu-memory", default="32MiB", help="of caches and buffers, as `gnn plan` takes it")
    parser.add_argument("--cpu-memory", default="40MiB")
    parser.add_argument("--blow-up", type=float, default=3, help="rows that packs and disk cache may have, of all")
    parser.add_argument("--compute-ms", type=float, default=1, help="of a batch, of the trainer that is played")
    parser.add_argument("--pace", default="128MiB", help="per second, of the disk that is played")
    parser.add_argument("--repeats", type=int, default=5, help="of the first, the fastest and the slowest setting")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--git", help="commit in the records (default: that of this checkout)")
    parser.add_argument("--out", required=True)
    return parser.parse_args(words)


def name_of(setting: dict) -> str:
    length = f" of {setting['segment_batches']}" if setting["order"] == "segments" else ""
    return f"{setting['order']}{length}, depth {setting['depth']}, pages of {setting['page_bytes']}"


class Settings:
    """Each is packed in an artefact of its own, which shares the samples."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self._folder = options, folder
        self._dataset = gnn.generate(folder / "g", num_vertices=options.vertices, dim=options.dim, seed=options.seed)
        fanouts = [int(word) for word in options.fanouts.split(",")]
        sampler = gnn.OfflineSampler(self._dataset, fanouts, options.batch_size, seed=options.seed, replace=True)
        self._sampled = sampler.run(folder / "g.ovg").path
        self.row = self._sampled_manifest()["dataset"]["row_bytes"]
        self.disk = round(options.blow_up * options.vertices) * self.row
        rate = _native.size("pace", options.pace) / 1e9
        machine = ooc.played_machine(folder / "played.json", rate)
        memory = ["--gpu-cache", options.gpu_memory, "--cpu-cache", options.cpu_memory, "--disk", str(self.disk)]
        rates = ["--machine", machine, "--compute-ms", str(options.compute_ms)]
        self.ranked = ooc.command(str(self._sampled), *memory, *rates, group=("gnn", "plan"))["rows"]

    def _sampled_manifest(self) -> dict:
        return gnn.Artefact(self._sampled).manifest

    def pack(self, setting: dict) -> Path:
        path = self._folder / name_of(setting).replace(" ", "").replace(",", "-")
        if path.exists():
            return path
        shutil.copytree(self._sampled, path)
        words = ["--gpu-cache", str(setting["gpu_rows"] * self.row), "--cpu-cache", str(setting["cpu_rows"] * self.row)]
        words += ["--order", setting["order"], "--policy", setting["policy"], "--depth", str(setting["depth"])]
        words += ["--page", str(setting["page_bytes"]), "--disk", str(self.disk)]
        if setting["order"] == "segments":
            words += ["--segment", str(setting["segment_batches"])]
        ooc.command("pack", str(path), *words)
        with gnn.PackedLoader(path, format="numpy") as loader:
            features = self._dataset.features
            for i, batch in enumerate(loader, 1):
                if not np.array_equal(batch.x, features[batch.n_id]):
                    raise SystemExit(f"{name_of(setting)}: batch {batch.number} has other rows than the dataset")
                if i == CHECKED:
                    break
        return path

    def epoch(self, setting: dict) -> ooc.Sample:
        with gnn.PackedLoader(self.pack(setting), format="numpy", copy=False, pace=self.options.pace) as loader:
            begin, worked = time.perf_counter(), time.process_time()
            for _ in loader:
                time.sleep(self.options.compute_ms / 1e3)
            return time.perf_counter() - begin, time.process_time() - worked


def measure(records: ooc.Records, settings: Settings) -> None:
    options = settings.options
    fitting = [setting for setting in settings.ranked if "refused" not in setting]
    for setting in settings.ranked:
        if "refused" in setting:
            print(f"depth {setting['depth']}: {setting['refused']}", flush=True)
    seconds = []
    for place, setting in enumerate(fitting):
        seconds.append(settings.epoch(setting)[0])
        print(f"{place:>3} {name_of(setting):<44} {setting['epoch_s']:.3f} s planned, {seconds[-1]:.3f} s", flush=True)
        if place > 0:
            shutil.rmtree(settings.pack(setting))
    order = sorted(range(len(fitting)), key=seconds.__getitem__)
    chosen = {"chosen": fitting[0], "best": fitting[order[0]], "worst": fitting[order[-1]]}
    samples: dict[str, list[ooc.Sample]] = {name: [] for name in chosen}
    for setting in chosen.values():
        settings.pack(setting)
    for _ in range(options.repeats):
        for name, setting in chosen.items():
            samples[name].append(settings.epoch(setting))
    for name, setting in chosen.items():
        what = f"{name_of(setting)}, of {len(fitting)} settings within {options.gpu_memory} and {options.cpu_memory}"
        what += f"; a disk of {options.pace} per second, a trainer that waits {options.compute_ms:g} ms a batch"
        fields: dict[str, object] = {
            "pace_bytes_per_s": _native.size("pace", options.pace),
            "predicted_us": setting["epoch_s"] * 1e6,
            "bytes_read": setting["bytes_read"],
            "flags": ["unlimited", "emulated"],
            "verify": {"ok": True, "oracle": f"rows of the dataset, the first {CHECKED} batches"},
        }
        records.add("choice", what, name, options.repeats, **fields, **ooc.times(samples[name]))
    medians = {name: statistics.median(one[0] for one in times) for name, times in samples.items()}
    print(f"chosen / best {medians['chosen'] / medians['best']:.3f}", flush=True)


def main(words: list[str] | None = None) -> int:
    options = parse(words)
    with tempfile.TemporaryDirectory(prefix="overlace_gnn_choice_") as folder:
        try:
            measure(ooc.Records(options, "bench/gnn_ooc/choice.py"), Settings(options, Path(folder)))
        except overlace.Error as error:
            print(f"gnn_ooc: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
