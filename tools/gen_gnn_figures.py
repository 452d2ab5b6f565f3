"""The section of docs/results/gnn.md on figures of DiskGNN's paper, from records of bench/gnn_ooc/figures.py."""

from __future__ import annotations

from collections.abc import Iterable

Cases = dict[str, dict[str, dict]]
FROM_ROWS = {
    "rows": "pages for each input row, no cache",
    "rows_cpu": "+ the CPU's cache, the rows that are used most",
    "rows_cpu_gpu": "+ the GPU's cache, those used more",
    "disk_cache": "+ packs and disk cache: rows that several batches miss once on pages, by vertex",
    "min_hash": "+ pages in the order of min-hash",
    "segments": "+ the length of segments searched, instead of one for the whole epoch",
    "belady": "+ policy belady, order fixed, instead of static",
}
FROM_PACKS = {
    "rows": "pages for each input row, no cache",
    "packs": "+ packs without a limit of the disk",
    "packs_gpu": "+ the GPU's cache",
    "packs_gpu_cpu": "+ the CPU's cache (DiskGNN's scheme)",
    "packs_belady": "+ policy belady, order fixed, instead of static",
    "belady": "with the disk cache, as above",
}
PACKING = {
    "passes": "`gnn.pack`: all batches in passes over the features, with blocks, ids, checksums and a journal",
    "by_batch": "batch by batch, rows alone: a request for each page that has some",
    "by_row": "the same, a page for each row",
    "planning": "the plan alone, which `passes` makes, too: `overlace gnn pack --dry-run`",
}
TIME_TO = {
    "row_reads": "sampled anew, a page for each row that is not among the most used",
    "shuffle": "packs, policy static, order shuffle, one sampled epoch (DiskGNN's scheme)",
    "fixed": "packs, policy belady, order fixed, one sampled epoch",
    "fixed_anew": "the same, as many sampled epochs as are trained",
    "inmem_online": "sampled anew, features in memory",
}


def gigabytes(count: float) -> str:
    return f"{count / 1e9:.3f}"


def table(head: str, rows: Iterable[Iterable[str]]) -> list[str]:
    lines = [" | ".join(row) for row in rows]
    return ["", f"| {head} |", "|---" * len(head.split(" | ")) + "|", *(f"| {line} |" for line in lines)]


def capital(text: str) -> str:
    return text[0].upper() + text[1:]


def ladder(cases: Cases) -> list[str]:
    rows = cases["ladder"]

    def steps(names: dict[str, str]) -> Iterable[list[str]]:
        before = None
        for name, what in names.items():
            count = rows[name]["feature_bytes"]
            yield [what, gigabytes(count), f"{count / before:.3f}" if before else "-", f"{rows[name]['blow_up']:.2f}"]
            before = count

    head = "level | GB | of the line before | stored rows a vertex"
    return [
        "",
        "### A level more each time",
        "",
        f"{capital(rows['rows']['case']['what'])}. Bytes of",
        "features that a training epoch reads, exact. A walk through the trace and the planner count the same, but for",
        "pages by vertex, which the planner does not make, and policy belady, which the walk does not know.",
        *table(head, steps(FROM_ROWS)),
        "",
        "From packs, the other way round:",
        *table(head, steps(FROM_PACKS)),
    ]


def search(cases: Cases) -> list[str]:
    names = sorted((name for name in cases if name.startswith("search_")), key=lambda name: -float(name[7:]))
    lines, shares = [], []
    for name in names:
        found, best, plain = (cases[name][way] for way in ("found", "best", "by_vertex"))
        count = [gigabytes(row["feature_bytes"]) for row in (found, best, plain)]
        shares.append(found["feature_bytes"] / best["feature_bytes"])
        lines.append(
            [
                f"{float(name[7:]):g}",
                f"{found['segment_batches']}, {count[0]}",
                f"{best['segment_batches']}, {count[1]}",
                f"{shares[-1]:.4f}",
                count[2],
                f"{found['feature_bytes'] / plain['feature_bytes']:.3f}",
            ]
        )
    first = cases[names[0]]
    searching = max(cases[name]["found"]["cpu_us"]["median"] for name in names) / 1e6
    trying = first["best"]["cpu_us"]["median"] / 1e6
    head = "stored rows a vertex, at most | length found, GB | best length, GB | found over best"
    return [
        "",
        "### Segments of the disk cache, and min-hash",
        "",
        f"{first['found']['data']}, {first['found']['case']['what'].split('; at most')[0]}. The length of",
        "segments by DiskGNN's search beside the best of all that fit, and at the length found pages by vertex",
        f"instead of min-hash. A search took at most {searching:.2f} s of a processor, all lengths {trying:.1f} s,",
        "both in NumPy. DiskGNN: 4.61 s and 3,261 s (IGB).",
        *table(f"{head} | by vertex, GB | min-hash over it", lines),
    ]


def blow_up(cases: Cases) -> list[str]:
    lines = ["", "### Blow-up", ""]
    lines += [
        "Rows in packs over rows of the dataset, no limit of the disk; in brackets GB that the files take, with blocks,"
    ]
    lines += [
        "ids and the rows that caches begin with. DiskGNN: 1 and less on papers and MAG, 5.4 on Friendster, 10 on IGB."
    ]
    for kind, title in (("cache", "of the rows cached"), ("fanouts", "fanouts"), ("batch", "batch size")):
        prefix = f"blow_up_{kind}_"
        rows = []
        for name in (name for name in cases if name.startswith(prefix)):
            key = name.removeprefix(prefix)
            shown = f"{100 * float(key):g} %" if kind == "cache" else key.replace(",", ", ")
            ways = (cases[name][way] for way in ("static_packs", "overlace"))
            rows.append([shown, *(f"{row['blow_up']:.2f} ({gigabytes(row['stored_bytes'])})" for row in ways)])
        what = next(iter(cases[name] for name in cases if name.startswith(prefix)))["overlace"]["case"]["what"]
        lines += ["", f"{capital(what)}:", *table(f"{title} | `static_packs` | `overlace`", rows)]
    return lines


def packing(cases: Cases) -> list[str]:
    rows = cases["packing"]
    first = rows["passes"]
    lines = []
    for name, what in PACKING.items():
        row, cells = rows[name], [f"`{name}`: {what}"]
        for key in ("bytes_read", "kernel_bytes", "bytes_written", "kernel_written"):
            cells.append(gigabytes(row[key]) if key in row else "-")
        if "time_us" in row:
            time = row["time_us"]
            spread = f"{time['median'] / 1e6:.2f} ({time['min'] / 1e6:.2f} to {max(time['samples']) / 1e6:.2f})"
            cells += [spread, f"{row['cpu_us']['median'] / 1e6:.2f}"]
        else:
            cells += ["-", "-"]
        lines.append(cells)
    read = {name: rows[name]["bytes_read"] / first["bytes_read"] for name in ("by_batch", "by_row")}
    ratios = {key: rows["by_batch"][key]["median"] / rows["passes"][key]["median"] for key in ("time_us", "cpu_us")}
    return [
        "",
        "### Packing in passes and batch by batch",
        "",
        f"{capital(first['case']['what'])}.",
        f"GB; medians of {first['method']['repetitions']} runs in turns, after one whose rows were compared.",
        f"The machine was shared ({first['machine']['load']:.1f} processes wanted a core then). The kernel counts",
        "what opening a dataset reads, too: 65 places of the features to know them by.",
        *table("way | read | by the kernel | written | by the kernel | seconds | of processors", lines),
        "",
        f"Batch by batch takes {ratios['time_us']:.1f} times the time of passes and {ratios['cpu_us']:.1f} times the",
        f"processor time, and reads {read['by_batch']:.1f} times the bytes ({read['by_row']:.1f} with a page for each",
        "row). DiskGNN: passes are 3.8 to 9.8 times as fast.",
    ]


def pace(cases: Cases) -> list[str]:
    names = [name for name in cases if name.startswith("pace_")]
    lines = []
    for name in names:
        for way, row in cases[name].items():
            time, alone = row["time_us"], row["bytes_read"] / row["pace_bytes_per_s"]
            cells = [f"1/{1 / float(name[5:]):g}", f"{row['pace_bytes_per_s'] / 1e9:.3f}", f"`{way}`"]
            cells += [f"{cell / 1e6:.3f}" for cell in (time["median"], time["min"], max(time["samples"]))]
            lines.append([*cells, f"{alone:.3f}", f"{row['predicted_us'] / 1e6:.3f}"])
    first = cases[names[0]]["overlace"]
    disk = cases.get("disk", {}).get("disk")
    rate = f" `overlace gnn diskbench` read {disk['storage']['read_GBps']['1048576']:.2f} GB/s." if disk else ""
    ratios = []
    for name in names:
        static, ours = (cases[name][way]["time_us"]["median"] for way in ("static_packs", "overlace"))
        ratios.append(f"{static / ours:.2f} (at 1/{1 / float(name[5:]):g})")
    return [
        "",
        "### A half and a quarter of the disk's rate",
        "",
        f"An epoch without a model from the disk, played (`pace`) at a part of its rate.{rate}",
        f"{capital(first['case']['what'].split(', ')[-1])}; seconds, {first['method']['repetitions']} runs in turns;",
        "the disk alone: bytes over the rate; predicted: by `overlace sim graph gnn`.",
        *table("of its rate | GB/s | way | median | least | most | the disk alone | predicted", lines),
        "",
        f"`static_packs` takes {' and '.join(ratios)} times the time of `overlace`.",
    ]


def reached(row: dict) -> tuple[int | None, float, float]:
    """Epochs to the accuracy that is wanted, None: never; seconds of an epoch, and of writing packs."""
    shares = row["accuracy"]
    epochs = next((n for n, mean in enumerate(shares["by_epoch"], 1) if mean >= shares["wanted"]), None)
    epoch = row.get("predicted_us", row.get("bound_us", 0)) / 1e6
    return epochs, epoch, row.get("bytes_written", 0) / row["pace_bytes_per_s"]


def losses(cases: Cases) -> list[str]:
    """Where ours is behind, in the words of the page's list."""
    out = []
    for name in (name for name in cases if name.startswith("pace_")):
        static, ours = (cases[name][way]["time_us"]["median"] for way in ("static_packs", "overlace"))
        if ours > static:
            out.append(f"- `{name}`: {ours / static:.2f} times the time of `static_packs`.")
    whole = {way: reached(row) for way, row in cases.get("time_to", {}).items()}
    took = {way: epochs * epoch + write for way, (epochs, epoch, write) in whole.items() if epochs}
    for ours in ("fixed", "fixed_anew"):
        for way in took:
            if way in ("fixed", "fixed_anew") or ours not in took or took[ours] <= took[way]:
                continue
            ratio = took[ours] / took[way]
            out.append(f"- `time_to`: `{ours}` takes {ratio:.2f} times the time of `{way}`, with packs written once.")
    return out


def time_to(cases: Cases) -> list[str]:
    rows = cases["time_to"]
    first = rows["fixed"]
    wanted, lines = first["accuracy"]["wanted"], []
    for way, what in TIME_TO.items():
        row = rows[way]
        means = row["accuracy"]["by_epoch"]
        epochs, epoch, write = reached(row)
        least = "at least " if way == "row_reads" else ""
        cells = [f"`{way}`: {what}", " ".join(f"{100 * mean:.1f}" for mean in means)]
        cells += [str(epochs) if epochs else "never", f"{least}{epoch:.3f}", f"{write:.2f}" if write else "-"]
        lines.append([*cells, *(f"{epochs * epoch + more:.2f}" if epochs else "-" for more in (0, write))])
    head = "way | accuracy after each epoch, % | epochs | an epoch, s | writing packs, s | those epochs, s | with packs"
    return [
        "",
        "### Time to an accuracy",
        "",
        f"{first['data']}; {first['case']['what']}; means of {first['method']['repetitions']} seeds.",
        f"Epochs until the mean test accuracy is {100 * wanted:g} % were trained; **times were not measured**: an",
        "epoch from packs is that of `overlace sim graph gnn`, in memory the trainer alone, with row reads the longer",
        "of the trainer and the bytes over the rate, though a disk reads pages slower than packs. Writing packs: their",
        "bytes over the same rate, once; what samples and plans cost is left out, also that of sampling anew beside",
        "the training.",
        *table(head, lines),
        "",
        "DiskGNN, papers100M with SAGE: 76 s a training epoch and 65.9 % in the end; Ginex 580 s, MariusGNN 205 s and",
        "2.4 points less, DGL from disk 5,522 s.",
    ]


def section(cases: Cases) -> list[str]:
    """All tables that there are records of."""
    if not cases:
        return []
    first = next(row for name in cases for row in cases[name].values() if not name.startswith(("time_to", "search_")))
    commits = ", ".join(sorted({row["git"] for group in cases.values() for row in group.values()}))
    parts = [("ladder", ladder), ("search_", search), ("blow_up_", blow_up), ("packing", packing)]
    parts += [("pace_", pace), ("time_to", time_to)]
    out = [
        "",
        "## The paper's figures",
        "",
        "From `gnn_figures_cpu2.jsonl`, by `bench/gnn_ooc/figures.py`: figures of DiskGNN's paper that no table above",
        "has, with its values where they are known, which are of other graphs and machines.",
        f"{first['data']}; {first['machine']['name']}; commit {commits}, {first['date']}.",
    ]
    for prefix, make in parts:
        if any(name.startswith(prefix) for name in cases):
            out += make(cases)
    return out
