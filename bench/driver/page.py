"""One self-contained HTML page of records: no script, nothing loaded, light and dark, phone and desktop."""

from __future__ import annotations

import json
import math
from html import escape

import records
import table
from page_style import STYLE
from records import Bounds, Derived, Group

PARTS = {"compute": "the GEMM alone", "comm": "the transfers alone", "limit": "both side by side, without dependence"}
MARKS = (("compute", "mark-compute", "GEMM alone"), ("limit", "mark-limit", "attainable limit"))
LEGEND = "".join(f'<span class="key"><i class="{style}"></i>{text}</span>' for _, style, text in MARKS)
SHOWN_FLAGS = ("host_bound", "unsettled", "other_process")
ENDS = ("median", "p90")
BUSY = 0.7  # processes per core before the bench began


def html(rows: list[dict]) -> str:
    groups = records.groups(rows)
    body = [head(rows), tiles(groups)]
    operators = [g for g in groups if g.workload in (*records.DENSE, "run")]
    if len(operators) > 2:
        body.append(overview(operators))
    body += [operator(g, i) for i, g in enumerate(operators)]
    for workload in ("runtime", "cpu"):
        mine = [g for g in groups if g.workload == workload]
        if mine:
            body.append(primitives(workload, mine))
    body += [gemm(g) for g in groups if g.workload == "gemm_core"]
    body.append(sources(rows))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>overlace bench</title><style>{STYLE}</style></head>\n<body><main>\n"
        + "\n".join(part for part in body if part)
        + "\n</main></body></html>\n"
    )


def badge(text: str, kind: str = "") -> str:
    return f'<span class="badge {kind}">{escape(text)}</span>'


def head(rows: list[dict]) -> str:
    machines = list(dict.fromkeys(records.machine_name(r) for r in rows))
    facts = [badge(m) for m in machines]
    first = rows[0]["machine"] if rows else {}
    for name, key in (("driver", "driver"), ("CUDA", "cuda"), ("NCCL", "nccl"), ("torch", "torch")):
        found = list(dict.fromkeys(str(r["machine"][key]) for r in rows if r["machine"].get(key)))
        facts += [badge(f"{name} {', '.join(found)}")] if found else []
    if first.get("power_limit_w"):
        facts.append(badge(f"power limit {first['power_limit_w']:.0f} W"))
    facts += [badge(f"commit {c}") for c in sorted({r["git"] for r in rows})[:4]]
    loads = [r["machine"]["load"] / r["machine"]["cores"] for r in rows if "load" in r["machine"]]
    if loads and max(loads) > BUSY:
        facts.append(badge(f"other load: {max(loads):.1f} processes per core", "bad"))
    links = sorted({r["machine"]["link"] for r in rows if r["machine"].get("link")})
    facts += [badge(f"link EMULATED {x}", "emulated") for x in links]
    if any("unattested" in r.get("flags", []) for r in rows):
        facts.append(badge("clocks unattested", "bad"))
    dates = sorted({r["date"][:16].replace("T", " ") for r in rows})
    span = f"{dates[0]} to {dates[-1]} UTC" if len(dates) > 1 else f"{dates[0]} UTC" if dates else ""
    return (
        f'<header><h1>overlace bench</h1><p class="facts">{"".join(facts)}</p>'
        f'<p class="aside">{len(rows)} records, {escape(span)}. Times are medians over bursts of the slowest rank;'
        " every competitor of a case was verified first.</p></header>"
    )


def tile(name: str, value: str, note: str = "") -> str:
    return f'<div class="tile"><div class="name">{name}</div><div class="value">{value}</div><div>{note}</div></div>'


def tiles(groups: list[Group]) -> str:
    facts = [(g, records.derive(g.rows["auto"], records.bounds_of(g))) for g in groups if "auto" in g.rows]
    facts = [(g, d) for g, d in facts if not math.isnan(d.gain)]
    if not facts:
        return ""
    gains = [d.gain for _, d in facts]
    rhos = [d.rho for _, d in facts if not math.isnan(d.rho)]
    losses = [g for g, d in facts if d.gain < 0.98]
    shown = [
        tile("cases", str(len(facts)), "auto beside library"),
        tile(
            "gain over library",
            f"{records.geomean(gains):.2f}x",
            f"geometric mean; {min(gains):.2f} to {max(gains):.2f}",
        ),
    ]
    if rhos:
        shown.append(
            tile("time over the limit", f"{records.geomean(rhos):.2f}", f"geometric mean; worst {max(rhos):.2f}")
        )
    shown.append(tile("slower than library", f"{len(losses)}", "cases by more than 2 %"))
    return f'<section class="tiles">{"".join(shown)}</section>'


def cell(value: str, label: str, kind: str = "number") -> str:
    return f'<td class="{kind}" data-label="{label}">{value}</td>'


def overview(groups: list[Group]) -> str:
    lines = []
    for i, g in enumerate(groups):
        b = records.bounds_of(g)
        if "auto" not in g.rows or math.isnan(g.us("auto")):
            continue
        d = records.derive(g.rows["auto"], b)
        worse = ' class="bad-text"' if d.gain < 0.98 else ""
        lines.append(
            f'<tr><th scope="row"><a href="#c{i}">{escape(g.workload)} {escape(g.first["case"]["name"])}</a>'
            f'<span class="aside">{escape(g.size())}</span></th>'
            + cell(table.us(b.library), "library us")
            + cell(table.us(d.us), "auto us")
            + cell(table.us(b.limit), "limit us")
            + cell(f"<span{worse}>{table.number(d.gain)}</span>", "x library")
            + cell(table.number(d.rho), "rho")
            + cell(bar(d, b, "auto", largest(b.serial, d.us, d.p90)), "", "bar")
            + "</tr>"
        )
    heads = "".join(f'<th class="number">{x}</th>' for x in ("library us", "auto us", "limit us", "x library", "rho"))
    return (
        f'<section><h2>All cases</h2><table><thead><tr><th>case</th>{heads}<th class="bar">{LEGEND}</th></tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></section>"
    )


def largest(*values: float) -> float:
    return max((v for v in values if not math.isnan(v)), default=math.nan)


def bar(d: Derived, b: Bounds, kind: str, longest: float) -> str:
    """A bar of its time on a scale that ends at `longest`, with its spread and the marks of `b`."""
    us, p10, p90 = d.us, d.p10, d.p90
    at = lambda value: f"{1000 * value / longest:.1f}"  # noqa: E731
    parts = [
        f'<rect class="track" width="1000" height="24"/><rect class="fill {kind}" y="3" width="{at(us)}" height="18"/>'
    ]
    if not math.isnan(p10) and p90 > p10:
        parts.append(f'<path class="whisker" d="M{at(p10)} 12H{at(p90)}M{at(p10)} 7v10M{at(p90)} 7v10"/>')
    for name, style, _ in MARKS:
        value = getattr(b, name)
        if not math.isnan(value) and value <= longest:
            parts.append(f'<path class="{style}" d="M{at(value)} 0v24"/>')
    return f'<svg viewBox="0 0 1000 24" preserveAspectRatio="none" aria-hidden="true">{"".join(parts)}</svg>'


def kind_of(name: str) -> str:
    if name.startswith("auto"):
        return "auto"
    return "part" if name in PARTS else "plain" if name in ("library", "serial") else "other"


def clocks(group: Group) -> str:
    """SM clock and power over all that was timed, from the records of one case."""
    mhz: list[float] = []
    watts: list[float] = []
    for row in group.rows.values():
        found = row.get("clocks") or []
        if isinstance(found, dict):
            found = [found]
        for one in found:
            for name, to in (("sm_mhz", mhz), ("watts", watts)):
                value = one.get(name, one.get(f"{name}_median", 0))
                value = value["median"] if isinstance(value, dict) else value
                to += [value] if value else []
    if not mhz or not watts:
        return ""
    return f"SM {min(mhz):.0f} to {max(mhz):.0f} MHz, {min(watts):.0f} to {max(watts):.0f} W per GPU"


def operator(group: Group, index: int) -> str:
    b = records.bounds_of(group)
    longest = largest(*(x for r in group.rows.values() for x in (r.get("time_us", {}).get(k, math.nan) for k in ENDS)))
    lines = []
    for name, row in group.rows.items():
        if "time_us" not in row:
            why = escape(row.get("reason", ""))
            good = row["status"] == "ok"
            status = "verified" if good and "verify" in row else "ran" if good else escape(row["status"])
            look = "" if good else ' class="bad-text"' if row["status"] == "wrong" else ' class="aside"'
            lines.append(f'<tr><th scope="row">{escape(name)}</th><td colspan="5"{look}>{status} {why}</td></tr>')
            continue
        d = records.derive(row, b)
        note = PARTS.get(name) or (row.get("schedule", "") if name.startswith("auto") else "")
        is_part = name in ("compute", "comm")
        flags = "".join(badge(f.replace("_", " ")) for f in row.get("flags", []) if f in SHOWN_FLAGS)
        ends = f"{table.us(d.p10)}..{table.us(d.p90)}" if not math.isnan(d.p10) else ""
        lines.append(
            f'<tr><th scope="row">{escape(name)}{flags}<span class="aside">{escape(note)}</span></th>'
            + cell(bar(d, b, kind_of(name), longest), "", "bar")
            + cell(f'{table.us(d.us)}<span class="aside">{ends}</span>', "us")
            + cell("-" if is_part else table.number(d.gain), "x library")
            + cell("-" if is_part else table.number(d.rho), "rho")
            + cell("-" if name == "comm" else table.number(d.tflops, 0 if d.tflops >= 10 else 3), "TFLOP/s")
            + "</tr>"
        )
    notes = [x for x in (table.bursts(group), clocks(group)) if x]
    if b.regime:
        notes.append("the limit was below the GEMM alone, which counts as limit")
    reason = group.rows.get("auto", {}).get("reason", "")
    return (
        f'<section id="c{index}"><h2>{escape(group.workload)} <span>{escape(group.title())}</span></h2>'
        f'<table><thead><tr><th>competitor</th><th class="bar">{LEGEND}</th><th class="number">us</th>'
        '<th class="number">x library</th><th class="number">rho</th><th class="number">TFLOP/s</th></tr></thead>'
        f'<tbody>{"".join(lines)}</tbody></table><p class="aside">{escape("; ".join(notes))}</p>'
        + (f'<p class="aside">auto: {escape(reason)}</p>' if reason else "")
        + "</section>"
    )


def primitives(workload: str, groups: list[Group]) -> str:
    lines = []
    for g in groups:
        case, ours, plain = g.first["case"], g.rows.get("overlace"), g.rows.get("plain")
        title = f'<th scope="row">{escape(case["name"])}<span class="aside">{escape(case.get("what", ""))}</span></th>'
        if ours is None or "time_us" not in ours:
            lines.append(f'<tr>{title}<td colspan="4">{table.verdict(ours or g.first)}</td></tr>')
            continue
        moved = ours.get("bytes") or 0
        figure = (lambda t, moved=moved: moved / t / 1e3) if moved else (lambda t: t)
        value, other = figure(g.us("overlace")), figure(g.us("plain")) if plain else math.nan
        target = ours.get("target") or 0
        reached = value >= target if moved else value <= target
        wanted = f"{'at least' if moved else 'at most'} {target:g}" if target else ""
        verdict = badge("reached", "good") if target and reached else badge("missed", "bad") if target else ""
        unit = "GB/s" if moved else "us"
        lines.append(
            f"<tr>{title}"
            + cell(f"{value:.4g} {unit}", "overlace")
            + cell("-" if math.isnan(other) else f"{other:.4g} {unit}", "plain")
            + cell(wanted, "wanted")
            + cell(verdict, "")
            + "</tr>"
        )
    heads = "".join(f'<th class="number">{x}</th>' for x in ("overlace", "plain", "wanted", ""))
    teams = ", ".join(str(t) for t in sorted({g.first["team"] for g in groups}))
    return (
        f"<section><h2>{workload} <span>{teams} ranks</span></h2><table><thead><tr><th>what</th>{heads}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></section>"
    )


def kind_of_gemm(name: str) -> str:
    return "plain" if name.startswith("cublas") else "auto"


def gemm(group: Group) -> str:
    timed = sorted((r for r in group.rows.values() if "time_us" in r), key=lambda r: r["time_us"]["median"])
    if not timed:
        return ""
    none = records.bounds({})
    longest = timed[-1]["time_us"]["p90"]
    lines = [
        f'<tr><th scope="row">{escape(r["competitor"])}</th>'
        + cell(bar(records.derive(r, none), none, kind_of_gemm(r["competitor"]), longest), "", "bar")
        + cell(table.us(r["time_us"]["median"]), "us")
        + cell(f"{r['flops'] / r['time_us']['median'] * 1e-6:.0f}", "TFLOP/s")
        + "</tr>"
        for r in timed
    ]
    return (
        f"<section><h2>gemm_core <span>{escape(group.title())}</span></h2><table><thead><tr><th>kernel</th>"
        '<th class="bar"></th><th class="number">us</th><th class="number">TFLOP/s</th></tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></section>"
    )


def sources(rows: list[dict]) -> str:
    commands = list(dict.fromkeys(r["command"] for r in rows))
    lines = "\n".join(json.dumps(r, separators=(",", ":")) for r in rows)
    return (
        "<section><h2>Sources</h2><p>rho is time over the attainable limit: the GEMM beside the same transfers without"
        " dependence, from the same run. Whiskers show the 10th and 90th percentile of the bursts.</p>"
        f"<details><summary>{len(commands)} commands</summary><pre>{escape(chr(10).join(commands))}</pre></details>"
        f"<details><summary>{len(rows)} records, one per line</summary><pre>{escape(lines)}</pre></details></section>"
    )
