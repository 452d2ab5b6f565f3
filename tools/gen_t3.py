"""docs/results/t3.md: T3's experiments, published, simulated as hardware, and by software on two H200."""

from __future__ import annotations

import math
import re

from gen_pairs import commits, grouped, head, ratio
from result_records import ROOT, bench_records, geometric_mean, median, microseconds, records

# Published figure -> its name on docs/results/simulator.md. Speed-ups are of GEMM, reduce-scatter and all-gather.
SIMULATED = {
    "T3: ideal geomean": "nothing but the longer of both, geometric mean",
    "T3: ideal max": "the same, at best",
    "T3: t3 geomean": "T3, geometric mean",
    "T3: t3 max": "T3, at best",
    "T3: t3 mca geomean": "T3 with arbitration of memory, geometric mean",
    "T3: t3 mca max": "the same, at best",
    "T3: traffic geomean, %": "traffic of memory, geometric mean, %",
    "T3: traffic max, %": "the same, at best, %",
}
TRIGGERED = re.compile(r"tracked:\d+$")


def simulated() -> list[str]:
    page = (ROOT / "docs" / "results" / "simulator.md").read_text()
    rows = dict(re.findall(r"^\| V7 \| ([^|]+) \| ([^|]+ \| [^|]+) \|", page, re.MULTILINE))
    out = [
        "## Published, and simulated here",
        "",
        "Sixteen sub-layers of Mega-GPT-2 and T-NLG at 8 and 16 ranks, over the same without overlap; 80 compute units,"
        " 1 TB/s of memory that adds, a ring of 150 GB/s: hardware that nobody has built. Published are its authors'"
        " own simulations; `overlace sim t3` is a model of ours, of which two constants are fitted to theirs"
        " ([all rows, and what is accepted](simulator.md)).",
        "",
        *head("figure", "published", "simulated here"),
    ]
    return out + [f"| {text} | {rows[name]} |" for name, text in SIMULATED.items()]


def measured() -> list[str]:
    rows = [row for row in records("t3_x2") if row["workload"] in bench_records.OPERATORS]
    apart = (bench_records.LIBRARY, bench_records.LIMIT)
    names = [name for name in dict.fromkeys(row["competitor"] for row in rows) if name not in apart]
    own = [name for name in names if TRIGGERED.match(name)]
    cells, gains, best_gains = [], [], []
    for (launch, name, m), group in grouped(rows, "launch", "name", "m").items():
        limit = median(group, "limit")
        best = min(names, key=lambda x: median(group, x))
        triggered = min(own, key=lambda x: median(group, x))
        rho = [median(group, x) / limit for x in (best, triggered, "auto")]
        gains.append(median(group, "library") / median(group, triggered))
        best_gains.append(median(group, "library") / median(group, best))
        shown = " | ".join(f"{value:.2f}" for value in rho)
        cells.append(
            f"| {launch} | {name} | {m} | {microseconds(limit)} | {best} | {triggered} | {shown} |"
            f" {ratio(group, 'library', triggered)} | {ratio(group, 'library', best)} |"
        )
    mean, best_mean = geometric_mean(gains), geometric_mean(best_gains)
    return [
        "## By software, on two H200",
        "",
        "GEMM + ReduceScatter of Llama-3.1-70B's layers, split over two GPUs"
        f" ([record](../../bench/results/t3_x2.jsonl), {commits(rows)}; [all times]"
        "(h200x2_operators.md#copies-that-a-running-kernel-triggers)). `tracked` is T3's mechanism with copy engines: a"
        " kernel counts its tiles, a full count starts a copy. `best` is the fastest of all schedules of the run, rho a"
        " time over the attainable limit. Schedules were asked for; `auto` is that of that commit, and the planner"
        " changed since.",
        "",
        f"Over cuBLAS and NCCL: `tracked` {mean:.2f} times as fast in the geometric mean, at best {max(gains):.2f};"
        f" the fastest schedule {best_mean:.2f} and {max(best_gains):.2f}. Other hardware, other layers and two ranks:"
        " not to be compared with the published figures one by one.",
        "",
        *head(
            "launch", "layer", "M", "limit us", "best", "best `tracked`", "rho of best", "of `tracked`", "of `auto`",
            "`tracked` x library", "best x library",
        ),
        *cells,
    ]  # fmt: skip


def unmodified() -> list[str]:
    rows = [row for row in records("t3_x2") if row["workload"] == "striped"]
    out = [
        "## Kernels that nobody changed",
        "",
        "T3's other half: the output lies at several GPUs, and the kernel does not know. Products of PyTorch's into a"
        f" `StripedTensor`, and the sum of its rows ([record](../../bench/results/t3_x2.jsonl), {commits(rows)};"
        " [all times](h200x2_operators.md#kernels-that-nobody-changed-into-a-stripedtensor)).",
        "",
        *head("operands", "M", "N", "K", "x torch and NCCL", "hidden"),
    ]
    for (dtype, m, n, k), group in grouped(rows, "dtype", "m", "n", "k").items():
        compute, plain, own = (median(group, x) for x in ("compute", "torch_library", "striped"))
        hidden = (plain - own) / (plain - compute)
        if not math.isnan(hidden):
            out.append(f"| {dtype} | {m} | {n} | {k} | {plain / own:.2f} | {hidden:.2f} |")
    return out


def traffic() -> list[str]:
    """Closed forms; tests/unit/study/t3/traffic_test.cc holds the schedules and T3's model to them."""
    variants = {
        "GEMM, then a reduce-scatter that reads and writes memory (`serial`), and `tracked`": (
            lambda g: 1 + (g - 1) / g + 1 / g,
            lambda g: (g - 1) / g + 1,
        ),
        "one kernel that stores at the owner (`tma_slot`)": (lambda g: 1 + 1 / g, lambda g: 1.0),
        "T3, memory that adds (simulated)": (lambda g: (2 * g - 2) / g, lambda g: (g - 2) / g),
    }
    out = [
        "## Traffic",
        "",
        "What a rank writes to its memory, reads from it and sends, over the bytes of its product; operands left out."
        " Closed forms; `Traffic.OfSchedulesIsTheClosedForm` compares the bytes of simulated schedules with them"
        " (`overlace sim run --json` has them), `Traffic.OfMemoryThatAddsIsLeast` those of the model of T3. No"
        " profiler was asked on a GPU.",
        "",
        *head("variant", "ranks", "written", "read", "sent"),
    ]
    for name, (written, read) in variants.items():
        out += [f"| {name} | {g} | {written(g):.2f} | {read(g):.2f} | {(g - 1) / g:.2f} |" for g in (2, 4, 8)]
    return out


def absent() -> list[str]:
    return [
        "## Not measured",
        "",
        "- The paper's own sub-layers at two ranks: `overlace bench gemm_rs --set t3_layers` measures them, and has not"
        " run on GPUs. `--set t3` is the table above.",
        "- What two GPUs cannot show: triggers with three peers, the order of a ring, gains at four ranks.",
        "- Not tried: the order of stores by page tables alone, reading poisoned words instead of a kernel's end,"
        " pacing of copies.",
    ]


def page() -> str:
    lines = [
        "# T3: what the paper simulates, and what GPUs do",
        "",
        "Generated by `tools/gen_results.py` from records and [simulator.md](simulator.md); do not edit."
        " [T3](../design/papers.md#t3-transparent-tracking-and-triggering-arxiv-240116677) (arXiv 2401.16677) is"
        " hardware that watches a GEMM's stores, starts copies when a tile is complete and adds in memory. Here it is"
        " three things that must not be mixed up: its authors' numbers, a simulation of such hardware, and software on"
        " GPUs that people have.",
    ]
    for section in (simulated(), measured(), unmodified(), traffic(), absent()):
        lines += ["", *section]
    return "\n".join(lines) + "\n"
