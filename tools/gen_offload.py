"""docs/results/offload.md, from the records of bench/offload; tools/gen_results.py writes it."""

from __future__ import annotations

from collections.abc import Sequence

from gen_gnn import Cases, cases_of

NAMES = {
    "resident": "everything stays in memory: the computation alone",
    "brought": "the stream by someone who computes nothing: what bringing the blocks takes alone",
    "overlace": "`stream_blocks`: blocks are brought ahead of their use",
    "layer_by_layer": "a block is fetched when it is called",
    "accelerate_cpu_offload": "accelerate's `cpu_offload`, which on a CPU copies nothing",
    "accelerate_disk_offload": "accelerate's `disk_offload`",
}
ALONE = ("resident", "brought")
DISK_SHARE, STEADY, SIMULATED = 0.85, 1.10, 0.10  # goals: of the sequential rate, of max(compute, disk)


def median(row: dict) -> float:
    return row["time_us"]["median"]


def bound(rows: dict[str, dict]) -> float:
    return max(median(rows[name]) for name in ALONE)


def timed(cases: Cases) -> dict[str, dict[str, dict]]:
    return {name: rows for name, rows in cases.items() if name != "disk" and not name.startswith("run, ")}


def run_section(cases: Cases) -> list[str]:
    """`overlace run` with streamed layers beside what the simulator says of them."""
    rows = [row for name, group in cases.items() if name.startswith("run, ") for row in group.values()]
    if not rows:
        return []
    lines = [
        "",
        "### `overlace run`",
        "",
        "All layers of a small Llama, one rank; verified against fp64. Simulated: `overlace sim graph offload` from",
        "the computation of the resident run, from what filling slots takes beside the disk, and from `diskbench`.",
        "",
        "| case | weights | median ms | least | most | waited for layers | simulated ms | measured of simulated |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        time = row["time_us"]
        shown = " | ".join(f"{us / 1e3:.1f}" for us in (time["median"], time["min"], max(time["samples"])))
        rest = "- | - | -"
        if "simulated_us" in row:
            ratio = time["median"] / row["simulated_us"]
            rest = f"{row['waited_us'] / 1e3:.1f} | {row['simulated_us'] / 1e3:.1f} | {ratio:.2f}"
        tokens = row["case"]["name"].removeprefix("run, ")
        lines.append(f"| {tokens} tokens | {row['competitor'].removeprefix('run_')} | {shown} | {rest} |")
    return lines


def case_section(name: str, rows: dict[str, dict]) -> list[str]:
    what = rows["overlace"]["case"]["what"]
    limit, binds = bound(rows), max(ALONE, key=lambda way: median(rows[way]))
    lines = [
        "",
        f"### {what[0].upper() + what[1:]}",
        "",
        f"{'Computation' if binds == 'resident' else 'Bringing the blocks'} takes longer alone: {limit / 1e3:.1f} ms.",
        "",
        "| way | median ms | least | most | of the longer alone | waited for blocks | processor ms | GB read |",
        "|---|---|---|---|---|---|---|---|",
    ]
    present = {way: row for way, row in rows.items() if row["status"] == "ok"}
    for way, row in sorted(present.items(), key=lambda item: median(item[1])):
        time = row["time_us"]
        shown = " | ".join(f"{us / 1e3:.1f}" for us in (time["median"], time["min"], max(time["samples"])))
        ratio = f"{time['median'] / limit:.2f}"
        waited = f"{row['waited_us'] / 1e3:.1f}" if "waited_us" in row else "-"
        rest = f"{waited} | {row['cpu_us']['median'] / 1e3:.1f} | {row['kernel_bytes'] / 1e9:.3f}"
        lines.append(f"| `{way}` | {shown} | {ratio} | {rest} |")
    for way, row in rows.items():
        if row["status"] != "ok":
            lines += ["", f"`{way}`: {row['status']}, {row['reason']}."]
    return lines


def goals_section(cases: Cases) -> list[str]:
    lines = ["", "### Goals", "", "| case | goal | measured | held |", "|---|---|---|---|"]
    for name, rows in timed(cases).items():
        ratio = median(rows["overlace"]) / bound(rows)
        held = "yes" if ratio <= STEADY else "no"
        waited = rows["overlace"]["waited_us"] / median(rows["overlace"])
        shown = f"{ratio:.2f}, of which it waited for blocks {100 * waited:.0f} %"
        lines.append(f"| {name} tokens | at most {STEADY:.2f} of max(compute, bringing) | {shown} | {held} |")
        for way, row in rows.items():
            if way in (*ALONE, "overlace") or row["status"] != "ok":
                continue
            gain = median(row) / median(rows["overlace"])
            held = "yes" if gain >= 1 else "no"
            lines.append(f"| {name} tokens | never slower than `{way}` | {gain:.2f} times as fast | {held} |")
    for rows in (rows for name, rows in cases.items() if name.startswith("run, ")):
        for row in (row for row in rows.values() if "simulated_us" in row):
            off = median(row) / row["simulated_us"] - 1
            held = "yes" if abs(off) <= SIMULATED else "no"
            goal = f"simulated within {SIMULATED:.0%} of measured".replace("%", " %")
            lines.append(f"| {row['case']['name']}, {row['competitor']} | {goal} | {100 * off:+.0f} % | {held} |")
    if "disk" in cases:
        rate = cases["disk"]["diskbench"]["storage"]["read_GBps"]["1048576"]
        for name, rows in timed(cases).items():
            if not name.startswith("disk"):
                continue
            row = rows["brought"]
            share = row["bytes"] / row["time_us"]["median"] / 1e3 / rate
            held = "yes" if share >= DISK_SHARE else "no"
            goal = f"blocks alone at {DISK_SHARE:.0%} of the sequential rate, {rate:.2f} GB/s".replace("%", " %")
            lines.append(f"| {name} tokens | {goal} | {100 * share:.0f} % | {held} |")
    return lines


def gpu_section(rows: Sequence[dict]) -> list[str]:
    """`bench_offload` on a GPU: streamed layers beside resident ones and beside copies alone."""
    if not rows:
        return []
    cases = cases_of(rows)
    first = next(iter(cases.values()))["overlace"]
    lines = [
        "",
        f"## Layers in the slots of a GPU: {first['machine']['name'].removeprefix('1 x ')}",
        "",
        f"`{first['command'].split()[0]}` of `bench/offload/main.cc`, from `bench/results/offload_h200.jsonl`:",
        f"{first['case']['what']}, {first['dtype']}, {first['data']}, attention by {first['attention']}; commit",
        f"{first['git']}, {first['date']}, driver {first['machine']['driver']}, CUDA {first['machine']['cuda']}.",
        f"Seconds of a pass: {first['method']['repetitions']} turns of {first['method']['n']}, behind one untimed",
        "(`copies`: one a turn).",
        "`resident`: all layers in the GPU's memory. `copies`: as many bytes from pinned memory, without computation.",
        "What streams has the bits of what is resident; the first layers were compared with fp64.",
        "",
        "| weights, tokens | resident | copies | `overlace` | of the longer | of resident | GB/s |"
        " of the copies' rate | waited for layers |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, ways in cases.items():
        resident, plain, ours = (median(ways[way]) for way in ("resident", "plain", "overlace"))
        rate = ways["overlace"]["bytes"] / ours / 1e3
        cells = [name, f"{resident / 1e6:.3f}", f"{plain / 1e6:.3f}", f"{ours / 1e6:.3f}"]
        cells += [f"{ours / max(resident, plain):.3f}", f"{ours / resident:.2f}", f"{rate:.1f}"]
        cells += [f"{100 * plain / ours:.0f} %", f"{ways['overlace']['waited_us'] / 1e6:.3f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def blocks_section(rows: Sequence[dict]) -> list[str]:
    """`stream_blocks` on a GPU beside competitors, a line for each way and a column for each case."""
    if not rows:
        return []
    cases = cases_of(rows)
    of = [group["overlace"] for group in cases.values()]
    commits = ", ".join(sorted({row["git"] for row in of}))
    lines = [
        "",
        "## `stream_blocks` on one H200",
        "",
        f"`bench/offload/offload.py`, from `bench/results/offload_blocks_h200.jsonl`: {of[0]['data']},",
        f"{of[0]['dtype']}, weights in host memory; commits {commits}, {of[0]['date']}, torch",
        f"{of[0]['machine']['torch']}. A pass in milliseconds, in parentheses how many times as long as `overlace`;",
        "all ways of a case interleaved, each after its results were compared with the resident stack's.",
        "",
        "| way | " + " | ".join(name.removeprefix("host, ") + " tokens" for name in cases) + " |",
        "|---" * (len(cases) + 1) + "|",
    ]
    for way in next(iter(cases.values())):
        cells = []
        for group in cases.values():
            row, ours = group.get(way), median(group["overlace"])
            is_timed = row is not None and row["status"] == "ok"
            cells.append(f"{median(row) / 1e3:.1f} ({median(row) / ours:.2f})" if is_timed else "-")
        lines.append(f"| `{way}` | " + " | ".join(cells) + " |")
    steady = [f"{median(group['overlace']) / bound(group):.2f}" for group in cases.values()]
    least = " and ".join(steady)
    lines += ["", f"In units of the longer of `resident` and `brought`: {least} (at most {STEADY:.2f} wanted)."]
    return lines


def page(rows: list[dict], of_gpu: Sequence[dict] = (), blocks: Sequence[dict] = ()) -> str:
    cases = cases_of(rows)
    first = next(iter(timed(cases).values()))["overlace"]
    machine, method = first["machine"], first["method"]
    commits = ", ".join(sorted({row["git"] for group in cases.values() for row in group.values()}))
    loads = [row["machine"]["load"] for group in cases.values() for row in group.values()]
    head = [
        "# Layers that do not fit",
        "",
        "Generated by `tools/gen_results.py` from `offload_cpu2.jsonl`, `offload_h200.jsonl` and",
        "`offload_blocks_h200.jsonl` in `bench/results`; do not edit. How it works stands in",
        "[the design](../design/offload.md).",
        *gpu_section(of_gpu),
        *blocks_section(blocks),
        "",
        "## `stream_blocks` on one CPU",
        "",
        "The bench is `bench/offload/offload.py`.",
        f"{first['data']}, fp32; {machine['name']}, {machine['kernel']}, torch {machine['torch']} with one thread;",
        f"commit {commits}, {first['date']}. A pass in milliseconds: {method['repetitions']} turns of {method['n']}",
        "timed passes behind one that is not, all ways interleaved, each after its result was compared with the",
        "resident stack's.",
        "",
        f"**The machine was shared with other work**: {min(loads):.1f} to {max(loads):.1f} processes wanted one of its",
        f"{machine['cores']} cores, so whoever brings blocks and whoever computes took cores from each other, and the",
        "disk had other readers. Times vary; ratios of one table are of the same minutes.",
        "",
        "Memory was not limited (flag `unlimited`); the kernel is asked to forget the files of those that read through",
        "its cache before each pass, and the last column shows that it did.",
        "",
        "| way | what it is |",
        "|---|---|",
        *(f"| `{way}` | {what} |" for way, what in NAMES.items()),
    ]
    body = [line for name, rows in timed(cases).items() for line in case_section(name, rows)]
    return "\n".join([*head, *body, *run_section(cases), *goals_section(cases)]) + "\n"
