"""docs/results/gnn.md, from the records of bench/gnn_ooc; tools/gen_results.py writes it."""

from __future__ import annotations

from collections.abc import Sequence

import gen_gnn_figures

NAMES = {
    "row_reads": "a page for each row that is not among the most used (class of GraphBolt's disk feature)",
    "lru_rows": "a page for each row that an LRU cache of the same size misses (class of GNNDrive)",
    "ginex_like": "a page for each row that a cache misses whose content is chosen by the known next 128 batches"
    " (class of Ginex)",
    "window_rows": "pages that hold missed rows, read together and 16 batches ahead; half of the cache has the most"
    " used rows, half those of the next 16 batches (class of GIDS; by the CPU)",
    "lru_packs": "packs, LRU cache",
    "static_packs": "packs, policy static, any order (DiskGNN's scheme)",
    "overlace": "packs, policy belady, order fixed",
    "pyg_mmap": "PyG's `NodeLoader` on a memory map, batches sampled before",
    "inmem_offline": "the same batches, all features in memory",
    "mmap_rows": "rows of a memory map by NumPy, without read-ahead",
}
GPU_NAMES = {
    "inmem_gpu": "features, ids and edges in the GPU's memory",
    "inmem_pinned": "features in pinned memory; a stream of its own gathers the next batch beside the training",
}
ON_CPU = (
    "Computed on the CPU, which also reads and gathers. A run ends after these batches, so each run from packs begins"
    " with reading the caches."
)
Cases = dict[str, dict[str, dict]]


def cases_of(rows: Sequence[dict]) -> Cases:
    """Case -> competitor -> its newest record."""
    out: Cases = {}
    for row in sorted(rows, key=lambda row: row["run"]):
        out.setdefault(row["case"]["name"], {})[row["competitor"]] = row
    return out


def absent_section(cases: Cases) -> list[str]:
    """Competitors that were asked for and not run."""
    rows = cases.get("absent", {})
    return ["## Absent", "", *(f"- `{name}`: {row['reason']}." for name, row in rows.items()), ""] if rows else []


def gigabytes(count: int) -> str:
    return f"{count / 1e9:.3f}"


def bytes_section(cases: Cases) -> list[str]:
    names = [name for name in cases if name.startswith("bytes_")]
    shares = [float(name.removeprefix("bytes_")) for name in names]
    lines = [
        "## Bytes of features that a training epoch reads",
        "",
        "In GB, and in brackets as a share of static packs with the same cache. Exact: they come from a walk through",
        "the whole trace, and what loaders and kernel counted is the same (next section).",
        "",
        "| " + " | ".join(["way", *(f"{100 * share:g} % of the rows cached" for share in shares)]) + " |",
        "|---" * (len(shares) + 1) + "|",
    ]
    for way in cases[names[0]]:
        cells = []
        for name in names:
            read, static = (cases[name][x]["feature_bytes"] for x in (way, "static_packs"))
            cells.append(f"{gigabytes(read)} ({read / static:.3f})")
        lines.append(f"| `{way}`: {NAMES[way]} | " + " | ".join(cells) + " |")
    ratios = [cases[name]["row_reads"]["feature_bytes"] / cases[name]["overlace"]["feature_bytes"] for name in names]
    lines += ["", f"`row_reads` reads {min(ratios):.1f} to {max(ratios):.1f} times the bytes of `overlace`."]
    return lines


def like_section(cases: Cases) -> list[str]:
    """Static packs beside ours on graphs with the skews of published ones."""
    names = [name for name in cases if name.startswith("like_")]
    if not names:
        return []
    what = cases[names[0]]["overlace"]["case"]["what"].split(", ", 1)[1]
    lines = ["", f"Graphs that `generate --like` makes ({what}), exact:", ""]
    lines += ["| like | `static_packs` | `overlace` |", "|---|---|---|"]
    for name in names:
        static, ours = (cases[name][way]["feature_bytes"] for way in ("static_packs", "overlace"))
        lines.append(
            f"| {name.removeprefix('like_')} | {gigabytes(static)} | {gigabytes(ours)} ({ours / static:.3f}) |"
        )
    return lines


def limited_section(cases: Cases) -> list[str]:
    note = (
        "The limit is that of a memory cgroup, in which pages that the kernel caches count; each run is a process and a"
        " group of its own. `mmap_rows` is what PyG does with a memory map, but for the read-ahead, which is off: with"
        " that of this machine, 8 MiB, a batch did not end in 100 s. `row_reads` goes through `DiskFeatureStore` here,"
        " which merges neighbouring pages."
    )
    return times_section(cases, "In less memory than features", "limited", note) if "limited" in cases else []


def counted_section(counted: dict[str, dict]) -> list[str]:
    what = counted["overlace"]["case"]["what"].removeprefix("a training epoch read and checked, ")
    lines = [
        "",
        "## Counted",
        "",
        f"{what[0].upper() + what[1:]}. GB of one training epoch, with blocks, ids and padding where",
        "there are such. Every row of every batch was compared with the dataset.",
        "",
        "| way | planned | counted by the reader | counted by the kernel |",
        "|---|---|---|---|",
    ]
    for way, row in counted.items():
        cells = [gigabytes(row[key]) if key in row else "-" for key in ("planned_bytes", "bytes_read", "kernel_bytes")]
        lines.append(f"| `{way}` | " + " | ".join(cells) + " |")
    return lines


def times_section(cases: Cases, title: str, case: str, note: str) -> list[str]:
    rows = cases[case]
    ours = rows["overlace"]["time_us"]["median"]
    first = rows["overlace"]
    what = first["case"]["what"]
    lines = [
        "",
        f"## {title}",
        "",
        f"{what[0].upper() + what[1:]}. Seconds, {first['method']['repetitions']} runs, interleaved; the last column",
        f"is processor time of all threads, which other work on the machine changes less. {note}",
        "",
        "| way | median | least | most | of `overlace` | processor time, median |",
        "|---|---|---|---|---|---|",
    ]
    for way, row in sorted(rows.items(), key=lambda item: item[1]["time_us"]["median"]):
        time = row["time_us"]
        cells = [time["median"], time["min"], max(time["samples"])]
        shown = " | ".join(f"{cell / 1e6:.3f}" for cell in cells)
        worked = row["cpu_us"]["median"] / 1e6
        lines.append(f"| `{way}` | {shown} | {time['median'] / ours:.2f} | {worked:.3f} |")
    return lines


def slow_section(cases: Cases) -> list[str]:
    """The same epoch from a disk that is played, and what such a disk needs for the bytes alone."""
    if "slow" not in cases:
        return []
    first = cases["slow"]["overlace"]
    rate = first["pace_bytes_per_s"]
    lines = [
        "",
        "## From a slower disk",
        "",
        f"A disk of {rate / 1e9:.2f} GB/s, played by the engine (`pace`); no model. Seconds,",
        f"{first['method']['repetitions']} runs, interleaved; the disk alone: bytes over the rate; predicted: by",
        "`overlace sim graph gnn`.",
        "",
        "| way | median | least | most | the disk alone | median of that | predicted |",
        "|---|---|---|---|---|---|---|",
    ]
    for way, row in cases["slow"].items():
        time, alone = row["time_us"], row["bytes_read"] / rate
        shown = " | ".join(f"{cell / 1e6:.3f}" for cell in (time["median"], time["min"], max(time["samples"])))
        predicted = f"{row['predicted_us'] / 1e6:.3f}" if "predicted_us" in row else "-"
        lines.append(f"| `{way}` | {shown} | {alone:.3f} | {time['median'] / 1e6 / alone:.2f} | {predicted} |")
    return lines


def rows_section(cases: Cases) -> list[str]:
    note = (
        "What reads single rows does so past the page cache: `row_reads` and `ginex_like` by 16 threads of Python, each"
        " row a request; `window_rows` by the library's engine."
    )
    return times_section(cases, "Beside ways that read single rows", "rows", note) if "rows" in cases else []


def hidden(row: dict, compute: float, trainer: str) -> list[str]:
    """Table and sentence of an epoch whose disk and trainer take equally long, or nearly."""
    ours, predicted = row["time_us"]["median"] / 1e6, row["predicted_us"] / 1e6
    disk = row["bytes_read"] / row["pace_bytes_per_s"]
    unhidden = ours - max(compute, disk)
    what = row["case"]["what"]
    return [
        "",
        f"{what[0].upper() + what[1:]}: {row['pace_bytes_per_s'] / 1e9:.3f} GB/s,",
        f"played by the engine. Medians of {row['method']['repetitions']} runs, interleaved.",
        "",
        "| what | seconds |",
        "|---|---|",
        f"| {trainer} | {compute:.3f} |",
        f"| the disk alone: bytes over the rate | {disk:.3f} |",
        f"| one after the other: their sum | {compute + disk:.3f} |",
        f"| `overlace` | {ours:.3f} |",
        f"| the same, predicted by `overlace sim graph gnn` from the bytes and the first row | {predicted:.3f} |",
        "",
        f"One after the other would take {(compute + disk) / ours:.2f} times as long; {100 * unhidden / ours:.1f} % of",
        f"the epoch is not hidden; the prediction is {100 * (predicted / ours - 1):+.1f} % off.",
    ]


def overlap_section(cases: Cases) -> list[str]:
    """Training from a disk as fast as training: hidden is what does not show in the time."""
    lines = ["", "## Disk and training equally fast"]
    if "played" in cases:
        alone = cases["played"]["trainer_alone"]["time_us"]["median"] / 1e6
        what = "the trainer alone, which needs no processor, as one on a GPU"
        lines += hidden(cases["played"]["overlace"], alone, what)
    if "overlap" in cases:
        memory, packs = (cases["overlap"][way] for way in ("inmem_offline", "overlace"))
        lines += hidden(packs, memory["time_us"]["median"] / 1e6, "training alone, features in memory")
        lines += ["", "Here training, reading and checking share the processors, with other work on the machine."]
    return lines if len(lines) > 2 else []


def choice_section(cases: Cases) -> list[str]:
    """The setting that the planner puts first among all that it ranks, each of which was run."""
    if "choice" not in cases:
        return []
    chosen, best = (cases["choice"][name]["time_us"]["median"] for name in ("chosen", "best"))
    shown = {"chosen": "the first of the plan", "best": "the fastest in a run of each", "worst": "the slowest in it"}
    first = cases["choice"]["chosen"]
    lines = [
        "",
        "## What the planner chooses",
        "",
        "All that `overlace gnn plan` ranks was packed and run once, then these three again, medians of",
        f"{first['method']['repetitions']} runs, interleaved: {first['case']['what'].split(', of ', 1)[1]}.",
        "",
        "| which | setting | seconds | planned |",
        "|---|---|---|---|",
    ]
    for name, row in cases["choice"].items():
        setting = row["case"]["what"].split(", of ", 1)[0]
        seconds = f"{row['time_us']['median'] / 1e6:.3f} | {row['predicted_us'] / 1e6:.3f}"
        lines.append(f"| {shown[name]} | {setting} | {seconds} |")
    return [*lines, "", f"The first of the plan takes {chosen / best:.3f} times the time of the fastest."]


WAYS = {
    "inmem_online": "sampled anew each training epoch, features in memory, by a sampler in NumPy",
    "fixed_anew": "packs, policy belady, order fixed, as many sampled epochs as are trained",
    "fixed": "packs, policy belady, order fixed, one sampled epoch",
    "segments": "packs, policy belady, order segments, one sampled epoch",
    "shuffle": "packs, policy static, order shuffle, one sampled epoch (DiskGNN's scheme)",
    "partition_train": "trained in parts, neighbours in other parts unseen (class of MariusGNN), tested with all",
    "partition_only": "the same, tested in parts, too",
}


def chain_section(cases: Cases) -> list[str]:
    """The commands of the guide, one after the other."""
    if "chain" not in cases:
        return []
    whole = cases["chain"]["whole"]
    lines = [
        "",
        "## From a graph to a trained model",
        "",
        f"{whole['data']}; a command each, by `bench/gnn_ooc/chain.py`; {whole['machine']['name']}, commit",
        f"{whole['git']}, {whole['date']}, {whole['machine']['load']:.1f} processes wanted a core at the end.",
        "",
        "| command | seconds by the clock | of processors |",
        "|---|---|---|",
    ]
    for row in cases["chain"].values():
        seconds = (row[key]["median"] / 1e6 for key in ("time_us", "cpu_us"))
        lines.append(f"| `{row['case']['what']}` | " + " | ".join(f"{s:.1f}" for s in seconds) + " |")
    return lines


def accuracy_section(cases: Cases, prefix: str = "accuracy_", title: str = "Accuracy") -> list[str]:
    names = [name for name in cases if name.startswith(prefix)]
    if not names:
        return []
    first = cases[names[0]]["fixed"]
    lines = [
        "",
        f"## {title}",
        "",
        f"{first['data']}; {first['case']['what']}; {first['method']['repetitions']} seeds of samples and weights.",
        "Test accuracy after the last training epoch in per cent, mean and range, and in points what it is more than",
        "that of `inmem_online`. All ways of a seed begin with the same weights and are tested on the same batches,",
        "but for the last one.",
        "",
        "| way | " + " | ".join(name.removeprefix(prefix) for name in names) + " |",
        "|---" * (len(names) + 1) + "|",
    ]
    for way, what in WAYS.items():
        cells = []
        for name in names:
            seen, online = (cases[name][one]["accuracy"] for one in (way, "inmem_online"))
            shown = f"{100 * seen['mean']:.2f} ({100 * seen['min']:.2f} to {100 * seen['max']:.2f})"
            more = "" if way == "inmem_online" else f", {100 * (seen['mean'] - online['mean']):+.2f}"
            cells.append(shown + more)
        lines.append(f"| `{way}`: {what} | " + " | ".join(cells) + " |")
    return lines


def losses_section(cases: Cases, figures: Cases) -> list[str]:
    lines = ["", "## Where `overlace` is not the best", ""]
    for case in ("limited", "epoch", "rows", "trained", "slow", "overlap", "gpu_epoch", "gpu_rows"):
        if case not in cases:
            continue
        ours = cases[case]["overlace"]["time_us"]["median"]
        for way, row in cases[case].items():
            ratio = ours / row["time_us"]["median"]
            if ratio > 1:
                lines.append(f"- `{case}`: {ratio:.2f} times the time of `{way}`.")
    for name, rows in cases.items():
        if not name.startswith(("bytes_", "like_")):
            continue
        for way, row in rows.items():
            if row["feature_bytes"] < rows["overlace"]["feature_bytes"]:
                lines.append(f"- `{name}`: more bytes than `{way}`.")
    lines += gen_gnn_figures.losses(figures)
    return lines if len(lines) > 3 else [*lines, "Nowhere in this record."]


def gpu_section(rows: Sequence[dict]) -> list[str]:
    """Epochs and first batches on a GPU."""
    if not rows:
        return []
    cases = cases_of(rows)
    first = cases["gpu_epoch"]["overlace"]
    machine = first["machine"]
    ours = first["bytes_read"] / first["time_us"]["median"] / 1e3
    rate = f"`overlace` reads {gigabytes(first['bytes_read'])} GB a training epoch, {ours:.2f} GB/s."
    return [
        "",
        f"## On one {machine['gpus'].removeprefix('1x ')}",
        "",
        f"From `gnn_ooc_h200.jsonl`, by `bench/gnn_ooc/on_gpu.py`: {first['data']}; {machine['cores']} cores,",
        f"{machine['kernel']}, torch {machine['torch']}; commit {first['git']}, {first['date']}.",
        "Memory was not limited. What lies in caches lay there before the time began. `row_reads`, `mmap_rows` read a",
        "batch when it is its turn.",
        "",
        *(f"- `{way}`: {what}" for way, what in GPU_NAMES.items()),
        *times_section(cases, "Whole training epochs on a GPU", "gpu_epoch", rate),
        *times_section(cases, "Beside single rows, on a GPU", "gpu_rows", "A run ends after these batches."),
    ]


def page(rows: list[dict], of_gpu: Sequence[dict] = (), of_figures: Sequence[dict] = ()) -> str:
    cases, figures = cases_of(rows), cases_of(of_figures)
    first = next(iter(cases["epoch"].values()))
    machine = first["machine"]
    rates = cases["disk"]["disk"]["storage"]["read_GBps"]
    others = ("absent", "accuracy_", "packages_", "chain")
    timed = [group for name, group in cases.items() if not name.startswith(others)]
    commits = ", ".join(sorted({row["git"] for group in timed for row in group.values()}))
    load = f"{machine['load']:.1f}"
    head = [
        "# Training on graphs whose features lie on a disk",
        "",
        "Generated by `tools/gen_results.py` from `gnn_ooc_cpu2.jsonl`, `gnn_accuracy_cpu2.jsonl`,",
        "`gnn_figures_cpu2.jsonl`, `gnn_chain_cpu2.jsonl` and `gnn_ooc_h200.jsonl` in `bench/results`; do not edit.",
        "The benches are `ooc.py`, `limited.py`, `choice.py`, `accuracy.py`, `figures.py`, `chain.py` and `on_gpu.py`",
        "in `bench/gnn_ooc`; what the ways do stands in [the design](../design/diskgnn.md).",
        "",
        f"{first['data']}; {machine['name']}, {machine['kernel']}, torch {machine['torch']};",
        f"commit {commits}, {first['date']}. The machine was shared with other work: {load} processes",
        "wanted a core when the times below were written down, so they are of a busy machine and vary; the bytes do",
        "not. No GPU took part but in [the last tables](#on-one-nvidia-h200).",
        "",
        "Memory was not limited where nothing else is said (flag `unlimited`), and the page cache could not be dropped",
        "as a whole. The kernel is asked to forget the features before each run of `pyg_mmap`, which then reads them",
        "once and keeps them.",
        "",
    ]
    disk = (
        f"`overlace gnn diskbench` read {rates['1048576']:.2f} GB/s in requests of 1 MiB and {rates['4096']:.2f} GB/s"
        " in pages in the same directory in the same run."
    )
    body = [
        *absent_section(cases),
        *bytes_section(cases),
        *like_section(cases),
        *counted_section(cases["counted"]),
        *limited_section(cases),
        *times_section(cases, "Epochs without a model", "epoch", disk),
        *rows_section(cases),
        *times_section(cases, "With GraphSAGE", "trained", ON_CPU),
        *slow_section(cases),
        *overlap_section(cases),
        *choice_section(cases),
        *accuracy_section(cases),
        *accuracy_section(cases, "packages_", "Accuracy on the distribution's packages"),
        *chain_section(cases),
        *gen_gnn_figures.section(figures),
        *losses_section({**cases, **cases_of(of_gpu)}, figures),
        *gpu_section(of_gpu),
    ]
    return "\n".join(head + body) + "\n"
