"""The table on the terminal."""

from __future__ import annotations

import math
import re

import records
from records import Group

WIDTH = 42  # of the bars


def number(value: float, digits: int = 2) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def us(value: float) -> str:
    if math.isnan(value):
        return "-"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 3
    return f"{value:.{digits}f}"


def verdict(row: dict) -> str:
    if row["status"] != "ok":
        return row["status"].upper() if row["status"] == "wrong" else row["status"]
    return "verified" if row.get("verify", {}).get("ok", "verify" in row) else "-"


def head(row: dict) -> str:
    machine = row["machine"]
    parts = [f"{row['team']} ranks", records.machine_name(row)]
    parts += [
        f"{k} {machine[key]}"
        for k, key in (("CUDA", "cuda"), ("NCCL", "nccl"), ("driver", "driver"))
        if machine.get(key)
    ]
    if "load" in machine:
        parts.append(f"load {machine['load']:.1f} on {machine['cores']} cores")
    if machine.get("link"):
        parts.append(f"link EMULATED {machine['link']}")
    parts.append(re.split(r",(?![^(]*\))", row.get("data", ""))[0])
    return "   ".join(p for p in parts if p)


def operator_table(group: Group) -> list[str]:
    b = records.bounds_of(group)
    lines = [
        f"{group.workload}  {group.title()}   {bursts(group)}",
        f"{'competitor':<26} {'us':>8} {'p10..p90':>17} {'x library':>9} {'x serial':>8} {'rho':>6} {'exposed us':>10}"
        f" {'E':>7} {'TFLOP/s':>8}  verify",
    ]
    for name, row in group.rows.items():
        if "time_us" not in row:
            lines.append(f"{name:<26} {verdict(row)}  {row.get('reason', '')}".rstrip())
            continue
        d = records.derive(row, b)
        efficiency = "no room" if math.isnan(d.efficiency) and not math.isnan(b.limit) else number(d.efficiency)
        lines.append(
            f"{name:<26} {us(d.us):>8} {us(d.p10) + '..' + us(d.p90):>17} {number(d.gain):>9}"
            f" {number(d.over_serial):>8} {number(d.rho):>6} {us(d.exposed):>10} {efficiency:>7}"
            f" {number(d.tflops, 0 if d.tflops >= 10 else 3):>8}  {verdict(row)}"
        )
    return lines + bars(group, b)


def bursts(group: Group) -> str:
    method = group.first["method"]
    if not any("time_us" in row for row in group.rows.values()):
        return ""
    return f"{method['repetitions']} x {method['n']} calls" if method.get("n") else f"{method['repetitions']} bursts"


def bars(group: Group, b: records.Bounds) -> list[str]:
    """The serial path, and the chosen schedule with the limit's place."""
    auto = group.us("auto")
    if any(math.isnan(x) for x in (auto, b.serial, b.limit)):
        return []
    longest = max(auto, b.serial, b.limit)
    place = lambda value: max(1, round(WIDTH * value / longest))  # noqa: E731
    mine = "#" * place(auto)
    limit = place(b.limit)
    mark = mine.ljust(max(limit, len(mine)))
    mark = mark[: limit - 1] + "^" + mark[limit:]
    row = group.rows["auto"]
    lines = [f"serial     |{'#' * place(b.serial)}|", f"auto       |{mark}   ^ limit; {row.get('schedule', '')}"]
    if b.regime:
        lines.append("limit was below the GEMM alone (flag `regime`): the GEMM alone counts as limit")
    return lines


def primitive_table(groups: list[Group]) -> list[str]:
    lines = [f"{'what':<18} {'case':<54} {'overlace':>10} {'p10..p90':>19} {'plain':>10} unit  target"]
    for group in groups:
        case = group.first["case"]
        ours, plain = group.rows.get("overlace"), group.rows.get("plain")
        if ours is None or "time_us" not in ours:
            row = ours or group.first
            shown = f"{case['name']:<18} {case.get('what', ''):<54} {verdict(row):>10}  {row.get('reason', '')}"
            lines.append(shown.rstrip())
            continue
        moved = ours.get("bytes") or 0
        figure = (lambda t, moved=moved: moved / t / 1e3) if moved else (lambda t: t)
        time = ours["time_us"]
        ends = sorted(figure(time[k]) for k in ("p10", "p90"))
        shown = f"{figure(plain['time_us']['median']):.3f}" if plain and "time_us" in plain else "-"
        value, target = figure(time["median"]), ours.get("target") or 0
        wanted = ""
        if target:
            reached = value >= target if moved else value <= target
            wanted = f"{'>=' if moved else '<='} {target:g} {'yes' if reached else 'NO'}"
        lines.append(
            f"{case['name']:<18} {case.get('what', ''):<54} {value:>10.3f} {f'{ends[0]:.3f}..{ends[1]:.3f}':>19}"
            f" {shown:>10} {'GB/s' if moved else 'us':<4}  {wanted}".rstrip()
        )
    return lines


# First letters of competitors; in words.
ANCHORS = {"gemm_core": ("cublas", "cuBLAS"), "moe": ("torch", "torch"), "embedding": ("torch", "torch")}


def ranking(group: Group) -> list[str]:
    """All that was timed, the fastest first, beside the fastest of what users have without overlace."""
    prefix, anchor = ANCHORS[group.workload]
    lines = [f"{group.workload}  {group.title()}"]
    timed = sorted((r for r in group.rows.values() if "time_us" in r), key=lambda r: r["time_us"]["median"])
    best = min((r["time_us"]["median"] for r in timed if r["competitor"].startswith(prefix)), default=math.nan)
    for row in timed:
        t = row["time_us"]
        if "flops" in row:
            tflops = row["flops"] / t["median"] * 1e-6
            rate = f"{number(tflops, 0 if tflops >= 10 else 3):>7} TFLOP/s"
        else:
            rate = f"{row['bytes'] / t['median'] * 1e-3:>7.0f} GB/s"
        lines.append(
            f"{row['competitor']:<34} {us(t['median']):>8} {us(t['p10']) + '..' + us(t['p90']):>17} us"
            f" {rate}  {number(best / t['median'])} x {anchor}"
        )
    lines += [f"{r['competitor']:<34} {verdict(r)} {r['reason']}" for r in group.rows.values() if r["status"] != "ok"]
    if not timed:
        lines.append(f"{sum(r['status'] == 'ok' for r in group.rows.values())} competitors verified")
    return lines


def text(groups: list[Group]) -> str:
    blocks = []
    for workload in dict.fromkeys(g.workload for g in groups):
        mine = [g for g in groups if g.workload == workload]
        blocks.append([f"== {workload}   {head(mine[0].first)}"])
        if workload in ("cpu", "runtime", "gather_rows", "offload"):
            blocks.append(primitive_table(mine))
        elif workload in ANCHORS:
            blocks += [ranking(g) for g in mine]
        else:
            blocks += [operator_table(g) for g in mine]
    return "\n\n".join("\n".join(lines) for lines in blocks) + "\n"
