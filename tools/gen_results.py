#!/usr/bin/env python3
"""Writes docs/results/<machine>.md and blocks of README.md from bench/results; `--check` fails where they differ.

Derived values follow docs/reference/benchmarks.md. Of each case and competitor the newest run counts. What is older
than a change of the baseline is marked (tools/baselines.py).
"""

from __future__ import annotations

import json
import math
import re
import sys

import gen_full_batch
import gen_gnn
import gen_offload
import gen_pairs
import gen_readme
import gen_t3
import result_records
from result_records import (
    DENSE,
    REDUCED,
    ROOT,
    baselines,
    bench_records,
    changes,
    derived,
    forced_name,
    geometric_mean,
    is_void,
    median,
    microseconds,
    newest,
    of_commit,
    ratio,
    records,
)

TORCH = ("torch_library", "torch_async_tp", "torch_one_shot", "torch_two_shot")


def nccl_of(machine: dict) -> str:
    """The version, and how every record was measured (docs/reference/benchmarks.md)."""
    return f"NCCL {machine.get('nccl', '?')} without NVLink SHARP"


def dense_section(workload: str) -> tuple[list[str], list[tuple]]:
    cases = newest(records(workload))
    if not cases:
        return [], []
    lines = [
        f"## {workload}",
        "",
        "| layer | M | N | K | compute | library | serial | limit | auto | rho | x library | schedule |",
    ]
    lines.append("|---|---|---|---|---|---|---|---|---|---|---|---|")
    facts = []
    for (name, m, n, k), group in cases.items():
        d = derived(group)
        family = group["auto"]["schedule"].removesuffix("_rs").removesuffix("_ar")
        times = " | ".join(microseconds(d[c]) for c in ("compute", "library", "serial", "limit", "auto"))
        rho, gain = ratio(d["rho"], group, "auto"), ratio(d["gain"], group, "auto", "library")
        lines.append(f"| {name} | {m} | {n} | {k} | {times} | {rho} | {gain} | {family} |")
        if is_void(group, "auto"):
            d["rho"] = math.nan
        if is_void(group, "auto", "library"):
            d["shown"], d["gain"] = d["gain"], math.nan
        facts.append((workload, name, m, d))
    return [*lines, ""], facts


def summary(facts: list[tuple]) -> list[str]:
    large = [d["rho"] for w, _, m, d in facts if w not in REDUCED and m >= 4096 and not math.isnan(d["rho"])]
    busy = [
        d["gain"] for w, name, m, d in facts if name in ("70B qkv", "70B o_proj") and m >= 4096 and w not in REDUCED
    ]
    busy = [gain for gain in busy if not math.isnan(gain)]
    void = [d["shown"] for *_, d in facts if math.isnan(d["gain"])]
    slower = [(w, name, m, d["gain"]) for w, name, m, d in facts if d["gain"] < 0.98]
    lines = [
        f"- rho (auto over the attainable limit), ag_gemm and gemm_rs, M >= 4096, {len(large)} cases: geometric mean"
        f" {bench_records.geomean(large):.3f}, worst {max(large, default=math.nan):.2f}.",
        "- Gain over `library` (NCCL and cuBLAS) on qkv and o_proj, M >= 4096: geometric mean"
        f" {bench_records.geomean(busy):.2f}, least {min(busy, default=math.nan):.2f}.",
        f"- `auto` more than 2 % slower than `library`: {len(slower)} of {len(facts) - len(void)} cases"
        + (f", {sum(x < 0.98 for x in void)} of {len(void)} whose comparison is void" if void else "")
        + ("." if not slower else ": " + "; ".join(f"{w} {n} M {m} ({g:.2f})" for w, n, m, g in slower) + "."),
    ]
    return lines


def value(row: dict | None, moved: float) -> str:
    """GB/s where bytes are moved, else us."""
    if row is None:
        return "-"
    t = row["time_us"]["median"]
    return f"{moved / t / 1e3:.1f}" if moved else f"{t:.2f}"


def runtime_section(file: str) -> list[str]:
    rows = records(file)
    if not rows:
        return []
    by_case: dict[tuple[str, str], dict[str, dict]] = {}
    for row in rows:
        if row["run"] == rows[-1]["run"]:
            by_case.setdefault((row["case"]["name"], row["case"]["what"]), {})[row["competitor"]] = row
    lines = ["## Runtime primitives", "", "| what | case | overlace | plain CUDA | wanted |", "|---|---|---|---|---|"]
    for (name, what), group in by_case.items():
        ours = group.get("overlace")
        if ours is None:
            continue
        moved = ours.get("bytes") or 0
        unit = "GB/s" if moved else "us"

        target = ours.get("target")
        wanted = "-" if not target else f"{'>=' if moved else '<='} {target:g} {unit}"
        lines.append(
            f"| {name} | {what} | {value(ours, moved)} {unit} | {value(group.get('plain'), moved)} | {wanted} |"
        )
    return [*lines, ""]


def torch_section(facts: list[tuple]) -> list[str]:
    """What PyTorch's competitors gain over its own unfused path, beside what `auto` gains over the same."""
    rows = records("torch")
    if not rows:
        return []
    gains = {(w, name, m): d["gain"] for w, name, m, d in facts}
    lines = [
        "## Through PyTorch",
        "",
        f"torch {rows[-1]['machine'].get('torch', '?')}, {nccl_of(rows[-1]['machine'])}, in a process of"
        " its own: us, and time of `torch_library` (torch.mm and NCCL) over that of the fastest of the others; last,"
        " time of `library` over that of `auto` in the tables above.",
        "",
        f"| operator | layer | M | {' | '.join(f'`{x}`' for x in TORCH)} | gain | gain of auto |",
        "|---" * (5 + len(TORCH)) + "|",
    ]
    for workload in DENSE:
        mine = [r for r in rows if r["workload"] == workload]
        for (name, m, _, _), group in newest(mine).items():
            times = [median(group, x) for x in TORCH]
            best = bench_records.least(*times[1:])
            gain = f"{times[0] / best:.2f}" if not math.isnan(best) else "-"
            own = gains.get((workload, name, m), math.nan)
            shown = " | ".join(microseconds(t) for t in times)
            lines.append(
                f"| {workload} | {name} | {m} | {shown} | {gain} | {'-' if math.isnan(own) else f'{own:.2f}'} |"
            )
    return [*lines, ""]


def page() -> str:
    sections: list[str] = []
    facts: list[tuple] = []
    for workload in DENSE:
        lines, new = dense_section(workload)
        sections += lines
        facts += new
    sections += torch_section(facts) + runtime_section("runtime")
    first = next(r for w in DENSE for r in records(w))
    machine = first["machine"]
    gits = sorted({r["git"] for w in DENSE for r in records(w)})
    head = [
        "# Results on 4x H200",
        "",
        "Generated by `tools/gen_results.py` from `bench/results/*.jsonl`; do not edit. How each number is measured,"
        " and what the columns mean: [benchmarks](../reference/benchmarks.md).",
        "",
        f"Machine: {machine['gpus']}, driver {machine['driver']}, CUDA {machine['cuda']}, {nccl_of(machine)}, power"
        f" limit {machine['power_limit_w']:.0f} W. bf16, normal data, TP = {first['team']}, M of the whole team, N and"
        f" K as one rank sees them, us (median of {first['method']['repetitions']} bursts, worst rank). Commits"
        f" {', '.join(gits)}.",
        "",
        *summary(facts),
        "",
        baselines.note([r for w in DENSE for r in records(w)], changes()),
        "",
    ]
    return "\n".join(head + sections).rstrip() + "\n"


def cpu_page() -> str:
    rows = records("cpu")
    last: dict[tuple[str, str], dict[str, dict]] = {}
    for row in rows:
        last.setdefault((row["case"]["name"], row["case"]["what"]), {})[row["competitor"]] = row
    machine = rows[-1]["machine"]
    lines = [
        "# Results of CPU ranks on two cores",
        "",
        "Generated by `tools/gen_results.py` from `bench/results/cpu.jsonl` and `bench/results/run/cpu2-*.json`; do not"
        " edit. Ranks are processes; `plain` is memcpy and one atomic, or a spin on a word, in the same run.",
        "",
        f"Machine: {machine['cpu']}, {machine['cores']} cores allowed. Commits"
        f" {', '.join(sorted({row['git'] for row in rows}))}.",
        "",
        "| what | case | overlace | plain | wanted |",
        "|---|---|---|---|---|",
    ]
    for (name, what), group in last.items():
        ours, plain = group["overlace"], group.get("plain")
        wanted = f"<= {ours['target']:g} us" if ours["target"] else "-"
        shown = f"{plain['time_us']['median']:.3f} us" if plain else "-"
        lines.append(f"| {name} | {what} | {ours['time_us']['median']:.3f} us | {shown} | {wanted} |")
    lines += [
        "",
        "Two ranks, the layer of model `tiny`, a link EMULATED so that the transfer of one site takes as long as its"
        " GEMM, the best of the schedules tried:",
        "",
        "| site | link | schedule | serial us | overlapped us | limit us | hidden |",
        "|---|---|---|---|---|---|---|",
    ]
    for path in sorted((result_records.RESULTS / "run").glob("cpu2-*.json")):
        run = json.loads(path.read_text())
        site = next(one for one in run["sites"] if one["name"] == path.stem.removeprefix("cpu2-"))
        times = " | ".join(f"{site[key]:.0f}" for key in ("serial_us", "overlapped_us", "limit_us"))
        lines.append(
            f"| {site['name']} | {run['link']} | {site['schedule']} | {times} | {100 * site['hidden']:.0f} % |"
        )
    return "\n".join(lines) + "\n"


def swiglu_section() -> list[str]:
    """Sizes without and with the activation."""
    by_rows: dict[int, list[dict[str, dict]]] = {}
    for (_, m, _, _), group in newest(records("swiglu_x2")).items():
        by_rows.setdefault(m, []).append(group)
    pairs = {m: sorted(two, key=lambda g: "activation" in g["library"]["case"]) for m, two in by_rows.items()}
    known = list(next(iter(pairs.values()))[1])
    kinds = ["library", "compute", "serial", "auto"]
    kinds += [kind for kind in known if kind not in kinds]
    one = next(iter(pairs.values()))[1]["library"]
    schedules = [", ".join(sorted({two[i]["auto"]["schedule"] for two in pairs.values()})) for i in (0, 1)]
    lines = [
        "## SwiGLU of ag_gemm",
        "",
        f"bf16, N {one['case']['n']}, K {one['case']['k']} as one rank sees them, us without -> with it, and the error"
        " of the result with it (rms, against fp64). `k_slab` makes it in its epilogue, others behind their GEMMs."
        f" `auto`: {' -> '.join(schedules)}. Most rows are at the power limit of"
        f" {one['machine']['power_limit_w']:.0f} W; a schedule that stands in two columns shows the noise."
        f" `git` and `activation` were added to the records by hand. {of_commit(records('swiglu_x2'))}",
        "",
        baselines.note(records("swiglu_x2"), changes()),
        "",
        f"| M | {' | '.join(kinds[:4])} | {' | '.join(map(forced_name, kinds[4:]))} |",
        "|---" * (1 + len(kinds)) + "|",
    ]
    for m, (without, gated) in pairs.items():
        cells = [str(m)]
        for kind in kinds:
            error = gated[kind].get("verify", {}).get("rms_error")
            times = f"{microseconds(median(without, kind))} -> {microseconds(median(gated, kind))}"
            cells.append(times + (f", {error:.1e}" if error else ""))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def slot_section() -> list[str]:
    """gemm_ar of many rows in one kernel, by tile and bands."""
    cases = newest(records("gemm_ar_slot_x2"))
    settled = [
        f"{name} M {m}"
        for (name, m, _, _), group in cases.items()
        if not any("unsettled" in row["flags"] for row in group.values())
    ]
    fused = [f"tma_slot:{q}{tile}" for tile in ("", ":align_n=256") for q in (4, 8, 16)]
    kinds = ("library", *(f"grouped_unfused_1d:{q}" for q in (1, 2, 4)), "tma_slot:1", *fused)
    lines = [
        "## gemm_ar of many rows in one kernel",
        "",
        "As above (`bench/results/gemm_ar_slot_x2.jsonl`, another day, median of"
        f" {next(iter(cases.values()))['library']['method']['repetitions']} bursts); `tma_slot`"
        " by bands, with tiles of 256x128 and, `align_n=256`, of 256x256. All give the bits of `library`. Host: of a"
        f" call of `tma_slot:4`, beside the best of groups. Rows but {', '.join(settled)}: clocks had not settled"
        " (`unsettled`). These records name no commit (`git: unknown`); `tile_n` was added to them by hand. `auto` was"
        " not measured in this run.",
        "",
        baselines.note(records("gemm_ar_slot_x2"), changes()),
        "",
        f"| layer | M | N | K | library | {' | '.join(map(forced_name, kinds[1:]))} | host |",
        "|---" * (5 + len(kinds)) + "|",
    ]
    for (name, m, n, k), group in cases.items():
        times = " | ".join(microseconds(median(group, kind)) for kind in kinds)
        best = min((kind for kind in kinds if kind.startswith("grouped")), key=lambda kind: median(group, kind))
        host = f"{group['tma_slot:4']['host_us']:.0f} / {group[best]['host_us']:.0f}"
        lines.append(f"| {name} | {m} | {n} | {k} | {times} | {host} |")
    return lines


def decode_section() -> list[str]:
    """Small M; by operator, shape and launch."""
    rows = records("decode_x2")
    plain = (bench_records.COMPUTE, bench_records.LIBRARY)
    kinds = (*plain, next(r["competitor"] for r in rows if r["competitor"] not in plain))
    names = {"chain": "many in one graph", "graph": "a graph of one", "stream": "eager"}
    lines = [
        "## Small M (decode)",
        "",
        f"As above (`bench/results/decode_x2.jsonl`), us a call by M: cuBLAS alone / with NCCL / forced `{kinds[2]}`;"
        " `auto` was not measured in this run. NCCL's in graphs of one call, and eager where so flagged in the records,"
        f" are limited by the host. {of_commit(rows)}",
        "",
        "| operator | N | K | calls | 1 | 8 | 16 | 32 | 64 |",
        "|---" * 9 + "|",
    ]
    for workload, launch in ((w, x) for w in DENSE[::-1] for x in names):
        by_shape: dict[tuple, list[str]] = {}
        mine = [row for row in rows if (row["workload"], row["launch"]) == (workload, launch)]
        for (_, _, n, k), group in newest(mine).items():
            cell = " / ".join(microseconds(median(group, kind)) for kind in kinds)
            by_shape.setdefault((n, k), []).append(cell)
        lines += [f"| {workload} | {n} | {k} | {names[launch]} | {' | '.join(c)} |" for (n, k), c in by_shape.items()]
    return [*lines, ""]


def canonical_section() -> list[str]:
    """What `auto` takes at the canonical shapes of 70B, beside the library and PyTorch."""
    rows = records("canonical_x2")
    lines = [
        "## Canonical shapes, `auto` beside the library and PyTorch",
        "",
        "`bench/results/canonical_x2.jsonl`, median of"
        f" {rows[0]['method']['repetitions']} bursts. `torch` is `torch.mm` and NCCL, `async-TP` PyTorch's asynchronous"
        f" tensor parallelism (`symm_mem`), both in a process of their own behind the others. {of_commit(rows)}"
        " From M = 8192 on and at"
        " `gate_up` from 4096 clocks had not settled at most rows.",
        "",
    ]
    table = ["| operator | layer | M | limit | library | torch | async-TP | auto | rho | x library | x async-TP | |"]
    table.append("|---" * 12 + "|")
    over_library, over_torch = [], []
    for op in DENSE:
        for (name, m, _, _), group in newest([row for row in rows if row["workload"] == op]).items():
            kinds = ("limit", "library", "torch_library", "torch_async_tp", "auto")
            limit, library, torch, fused, auto = (median(group, kind) for kind in kinds)
            if op not in REDUCED and name in ("70B qkv", "70B o_proj"):
                over_library.append(library / auto)
            if not math.isnan(fused):
                over_torch.append((fused / auto, f"{name} M {m}"))
            times = " | ".join("-" if math.isnan(x) else microseconds(x) for x in (limit, library, torch, fused, auto))
            gains = f"{auto / limit:.2f} | {library / auto:.2f} | {'-' if math.isnan(fused) else f'{fused / auto:.2f}'}"
            table.append(f"| {op} | {name} | {m} | {times} | {gains} | {group['auto']['schedule']} |")
    below = [f"{where} ({gain:.2f})" for gain, where in over_torch if gain < 1.1]
    lines += [
        f"- Gain over `library` on qkv and o_proj, M 1024 to 16384: geometric mean {geometric_mean(over_library):.2f},"
        f" least {min(over_library):.2f}.",
        f"- Over async-TP: geometric mean {geometric_mean([gain for gain, _ in over_torch]):.2f}; below 1.10 at"
        f" {len(below)} of {len(over_torch)}: {', '.join(below)}.",
        "",
    ]
    return [*lines, *table]


def mid_section() -> list[str]:
    """128 to 512 rows, in a chain of replayed calls and eager."""
    rows = records("mid_x2")
    kinds = ("compute", "library", "auto", "one kernel", "hetero_unfused_1d:1")
    lines = [
        "## 128 to 512 rows",
        "",
        "`bench/results/mid_x2.jsonl`, us a call: many in one graph / eager. One kernel: `k_slab:4` or `tma_slot:4`."
        f" {of_commit(rows)}",
        "",
        f"| operator | layer | M | {' | '.join(kinds[:3])} | auto took | forced one kernel | {forced_name(kinds[4])} |",
        "|---" * (4 + len(kinds)) + "|",
    ]
    for op in DENSE:
        of_op = [row for row in rows if row["workload"] == op]
        launches = [newest([row for row in of_op if row["launch"] == how]) for how in ("chain", "stream")]
        for case, group in launches[0].items():
            cells = []
            for kind in kinds:
                names = ("k_slab:4", "tma_slot:4") if kind == "one kernel" else (kind,)
                name = next(x for x in names if x in group)
                cells.append(" / ".join(microseconds(median(launch[case], name)) for launch in launches))
            cells.insert(3, group["auto"]["schedule"])
            lines.append(f"| {op} | {case[0]} | {case[1]} | {' | '.join(cells)} |")
    return lines


def pair_page() -> str:
    runtime, sums = records("runtime_x2"), newest(records("gemm_ar_x2"))
    machine = runtime[-1]["machine"]
    names = ("runtime_x2", "gemm_ar_x2", "swiglu_x2", "decode_x2", "canonical_x2", "mid_x2")
    gits = {row["git"] for name in names for row in records(name)}
    forced = ("hetero_unfused_1d:1", *(f"grouped_unfused_1d:{q}" for q in (1, 2, 4)))
    lines = [
        "# Results on 2x H200",
        "",
        "Generated by `tools/gen_results.py` from"
        " `bench/results/{runtime,canonical,mid,gemm_ar,gemm_ar_slot,swiglu,decode}_x2.jsonl`; do not edit."
        " The fused kernels on two GPUs: [fused GEMM](../design/fused_gemm.md).",
        "",
        f"Machine: {machine['gpus']}, driver {machine['driver']}, CUDA {machine['cuda']}, {nccl_of(machine)}."
        f" Commits {', '.join(sorted(gits))}.",
        "",
        *runtime_section("runtime_x2"),
        *canonical_section(),
        "",
        *mid_section(),
        "",
        "## gemm_ar by schedule",
        "",
        "bf16, N and K as one rank sees them, us (median of"
        f" {next(iter(sums.values()))['library']['method']['repetitions']} bursts, worst rank)."
        f" {of_commit(records('gemm_ar_x2'))}",
        "",
        baselines.note(records("gemm_ar_x2"), changes()),
        "",
        "| layer | M | N | K | library | limit | auto | auto took | x library |"
        f" {' | '.join(map(forced_name, forced))} |",
        "|---" * (9 + len(forced)) + "|",
    ]
    for (name, m, n, k), group in sums.items():
        limit, library, auto = (median(group, kind) for kind in ("limit", "library", "auto"))
        gain = ratio(library / auto, group, "library", "auto")
        times = [*map(microseconds, (library, limit, auto)), group["auto"]["schedule"], gain]
        times += [microseconds(median(group, kind)) for kind in forced]
        lines.append(f"| {name} | {m} | {n} | {k} | {' | '.join(times)} |")
    return "\n".join([*lines, "", *slot_section(), "", *decode_section(), *swiglu_section()]) + "\n"


BLOCK_INTRO = """
The layer of Llama-3.1-70B (hidden 8192, 64 heads, 8 of them of keys and values, feed-forward 28672) with tensor and
sequence parallelism, bf16, in sequences of at most 4096 tokens. What each version is:
[benchmarks](../reference/benchmarks.md). Output and every gradient of each rank are compared with fp64 before and
after timing; interleaved bursts, worst rank, median. `gain` is the time of `nccl` over that of the version. Peak is
that of torch's allocator during a step above what lay there; outside is what the first calls took besides, overlace's
heap (2 GiB declared) included. Wanted of `overlace`: 1.10x forward, 1.07x the step, at most 1.1x of the peak of
`nccl`.
"""
BLOCK_NOTES = """
Known of the step on four GPUs: all runs are at the power limit of 700 W, and with transfers beside them GEMMs run at
1500 to 1530 MHz instead of 1560 to 1590, which is 4 % of all computing time; `ag_wgrad` gathered first when this was
measured. Outside on four GPUs is overlace's heap alone: that run measured nothing else.
"""


def block_table(rows: list[dict]) -> list[str]:
    """The table of one number of tokens and one team: versions by direction."""
    by_version: dict[str, dict[str, dict]] = {}
    for row in rows:
        by_version.setdefault(row["competitor"], {})[row["case"]["name"].split()[-1]] = row
    head = ["version", *(f"{d} us | gain | host us" for d in ("forward", "step")), "peak MiB | outside MiB | rms error"]
    lines = [f"| {' | '.join(head)} | |", "|---" * 11 + "|"]
    anchor = by_version.get("nccl", {})
    for name, found in by_version.items():
        cells = []
        for direction in ("forward", "step"):
            row = found.get(direction, {})
            us, base = (median({"x": x}, "x") for x in (row, anchor.get(direction, {})))
            gain = "-" if math.isnan(us / base) else f"{base / us:.2f}x"
            cells += [microseconds(us), gain, microseconds(row.get("host_us", math.nan))]
        step = found.get("step", {})
        memory, verified = step.get("memory", {}), step.get("verify", {})
        cells += [f"{memory[k] / 2**20:.0f}" if k in memory else "-" for k in ("peak_bytes", "workspace_bytes")]
        cells.append(f"{verified['rms_error']:.2e}" if "rms_error" in verified else "-")
        statuses = dict.fromkeys(row["status"] for row in found.values() if row["status"] != "ok")
        reasons = dict.fromkeys(row["reason"] for row in found.values() if row["reason"])
        flags = [f"{d} {flag}" for d in found for flag in found[d].get("flags", [])]
        notes = (", ".join(statuses), ", ".join(flags), "; ".join(reasons).replace("|", "/"))
        note = ": ".join(x for x in notes if x)
        lines.append(f"| {name} | {' | '.join(cells)} | {note} |")
    return [*lines, ""]


def block_section(file: str, which: str = "") -> list[str]:
    """The newest run of each number of tokens."""
    lines: list[str] = []
    rows = records(file)
    for tokens in sorted({row["case"]["m"] for row in rows}, reverse=True):
        mine = [row for row in rows if row["case"]["m"] == tokens]
        mine = [row for row in mine if row["run"] == max(r["run"] for r in mine)]
        known = next((row["machine"] for row in mine if "gpus" in row["machine"]), mine[0]["machine"])
        place = known.get("gpus", f"{mine[0]['team']} ranks")
        lines += [f"## {place}, {tokens} tokens{which}", ""]
        lines += [f"torch {known.get('torch', '?')}, {nccl_of(known)}, commit {mine[0]['git']}.", ""]
        lines += block_table(mine)
    return lines


def host_time_section() -> list[str]:
    record = json.loads((result_records.RESULTS / "host_time_x1.json").read_text())
    rows = {row["what"]: row for row in record["calls"]}
    gpu, note = record["machine"].removeprefix("NVIDIA "), record.get("note")
    lines = [
        "## Host time of a call",
        "",
        f"One rank on one {gpu}, bf16, us of the calling thread per eager call, commit {record['git']}"
        " ([record](../../bench/results/host_time_x1.json)). Wanted: at most 15 above the C API, nothing for replays."
        f" `aten.mm` takes {rows['aten.mm']['host_us']:.1f}." + (f" Note: {note}." if note else ""),
        "",
        "| operator | C API | the same again | `overlace.ops` | above | `torch.ops` | above | replayed graph |",
        "|---" * 8 + "|",
    ]
    for op in [way.removeprefix("torch.ops ") for way in rows if re.fullmatch(r"torch\.ops \w+", way)]:
        cells = []
        for way, key in (
            ("C API", "host_us"),
            ("C API again", "host_us"),
            ("overlace.ops", "host_us"),
            ("overlace.ops", "above_c_us"),
            ("torch.ops", "host_us"),
            ("torch.ops", "above_c_us"),
            ("replay of", "host_us"),
        ):
            value = rows.get(f"{way} {op}", {}).get(key)
            cells.append("-" if value is None else f"{value:.1f}")
        lines.append(f"| `{op}` | {' | '.join(cells)} |")
    return [*lines, ""]


def block_page() -> str:
    head = [
        "# A decoder block through PyTorch",
        "",
        "Generated by `tools/gen_results.py` from `bench/results/block.jsonl`, `block_x2.jsonl`,"
        " `block_x2_eager.jsonl` and `host_time_x1.json`; do not edit.",
        BLOCK_INTRO,
    ]
    again = block_section("block_x2_eager", ", gradients of weights not copied any more")
    sections = block_section("block_x2") + again + block_section("block")
    return "\n".join([*head, *sections, BLOCK_NOTES.lstrip(), *host_time_section()]).rstrip() + "\n"


def gnn_page() -> str:
    rows = [*records("gnn_ooc_cpu2"), *records("gnn_accuracy_cpu2"), *records("gnn_chain_cpu2")]
    return gen_gnn.page(rows, records("gnn_ooc_h200"), records("gnn_figures_cpu2"))


def full_batch_page() -> str:
    return gen_full_batch.page(records("full_batch_cpu2"))


def offload_page() -> str:
    return gen_offload.page(records("offload_cpu2"), records("offload_h200"), records("offload_blocks_h200"))


PAGES = {
    "h200x4.md": page,
    "h200x2.md": pair_page,
    "h200x2_operators.md": gen_pairs.page,
    "t3.md": gen_t3.page,
    "cpu2.md": cpu_page,
    "block.md": block_page,
    "gnn.md": gnn_page,
    "full_batch.md": full_batch_page,
    "offload.md": offload_page,
}


def check_baselines() -> list[str]:
    """Every commit of a record is placed before or behind each change of the baseline."""
    rows = [row for path in sorted(result_records.RESULTS.glob("*.jsonl")) for row in bench_records.read(path)]
    return baselines.problems(rows, changes(), ROOT)


def main() -> int:
    is_check = "--check" in sys.argv[1:]
    problems = check_baselines()
    for name, write in PAGES.items():
        path = ROOT / "docs" / "results" / name
        text = write()
        if not is_check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            problems.append(f"{path.relative_to(ROOT)} differs from the records; run tools/gen_results.py")
    problems += gen_readme.write(is_check)
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
