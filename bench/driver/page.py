"""One self-contained HTML page of records, from the template that `overlace run --report` uses too."""

from __future__ import annotations

import json
import math
from pathlib import Path

import records
import table
from records import Bounds, Derived, Group

TEMPLATE = Path(__file__).resolve().parents[2] / "cli" / "report" / "page.html"
PARTS = {"compute": "the GEMM alone", "comm": "the transfers alone", "limit": "both side by side, without dependence"}
MARKS = {"compute": "GEMM alone", "limit": "attainable limit"}
SHOWN_FLAGS = ("host_bound", "unsettled", "other_process")
ENDS = ("median", "p90")
BUSY = 0.7  # processes per core before the bench began


def html(rows: list[dict]) -> str:
    """The page: one JSON value in the template, where nothing of it can end its block or become markup."""
    text = json.dumps(data(rows), separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return TEMPLATE.read_text().replace("@DATA@", text)


def data(rows: list[dict]) -> dict:
    """What the page shows, as the template wants it (docs/design/reports.md)."""
    groups = records.groups(rows)
    blocks = [tiles(groups)]
    operators = [g for g in groups if g.workload in (*records.DENSE, "run")]
    if len(operators) > 2:
        blocks.append(overview(operators))
    blocks += [operator(g, i) for i, g in enumerate(operators)]
    for workload in ("runtime", "cpu", "gather_rows", "offload"):
        mine = [g for g in groups if g.workload == workload]
        if mine:
            blocks.append(primitives(workload, mine))
    blocks += [ranking(g) for g in groups if g.workload in table.ANCHORS]
    blocks.append(sources(rows))
    return {
        "title": "overlace bench",
        "heading": "overlace bench",
        **head(rows),
        "blocks": [block for block in blocks if block],
        "footer": ["written by ", styled("code", "overlace bench")],
    }


def styled(style: str, text: str) -> dict:
    return {"style": style, "text": text}


def badge(text: str, kind: str = "") -> dict:
    return {"badge": text, "kind": kind}


def note(*text: str | dict) -> dict:
    return {"part": "note", "text": list(text)}


def legend() -> dict:
    return note(*({"key": kind, "text": text} for kind, text in MARKS.items()))


def grid(columns: dict[str, str], rows: list[dict]) -> dict:
    """A table whose columns have a title and a kind."""
    return {"part": "table", "columns": [{"title": t, "kind": k} for t, k in columns.items()], "rows": rows}


def section(title: str, aside: str, parts: list[dict], name: str = "") -> dict:
    return {"block": "section", "id": name, "title": [title + " ", styled("aside", aside)], "parts": parts}


def head(rows: list[dict]) -> dict:
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
    text = (
        f"{len(rows)} records, {span}. Times are medians over bursts of the slowest rank;"
        " every competitor of a case was verified first."
    )
    return {"badges": facts, "note": text}


def tile(name: str, value: str, aside: str = "") -> dict:
    return {"name": name, "value": value, "note": aside}


def tiles(groups: list[Group]) -> dict | None:
    facts = [(g, records.derive(g.rows["auto"], records.bounds_of(g))) for g in groups if "auto" in g.rows]
    facts = [(g, d) for g, d in facts if not math.isnan(d.gain)]
    if not facts:
        return None
    gains = [d.gain for _, d in facts]
    rhos = [d.rho for _, d in facts if not math.isnan(d.rho)]
    losses = [g for g, d in facts if d.gain < 0.98]
    spread = f"geometric mean; {min(gains):.2f} to {max(gains):.2f}"
    shown = [
        tile("cases", str(len(facts)), "auto beside library"),
        tile("gain over library", f"{records.geomean(gains):.2f}x", spread),
    ]
    if rhos:
        worst = f"geometric mean; worst {max(rhos):.2f}"
        shown.append(tile("time over the limit", f"{records.geomean(rhos):.2f}", worst))
    shown.append(tile("slower than library", f"{len(losses)}", "cases by more than 2 %"))
    return {"block": "tiles", "tiles": shown}


def overview(groups: list[Group]) -> dict:
    lines = []
    for i, g in enumerate(groups):
        b = records.bounds_of(g)
        if "auto" not in g.rows or math.isnan(g.us("auto")):
            continue
        d = records.derive(g.rows["auto"], b)
        gain = table.number(d.gain)
        link = {"link": f"c{i}", "text": f"{g.workload} {g.first['case']['name']}"}
        lines.append(
            {
                "name": [link, styled("aside below", g.size())],
                "cells": [
                    table.us(b.library),
                    table.us(d.us),
                    table.us(b.limit),
                    styled("bad-text", gain) if d.gain < 0.98 else gain,
                    table.number(d.rho),
                    bar(d, b, "auto", largest(b.serial, d.us, d.p90)),
                ],
            }
        )
    columns = {"case": "", **dict.fromkeys(("library us", "auto us", "limit us", "x library", "rho"), "number")}
    return section("All cases", "", [grid({**columns, "": "bars long"}, lines), legend()])


def largest(*values: float) -> float:
    return max((v for v in values if not math.isnan(v)), default=math.nan)


def bar(d: Derived, b: Bounds, kind: str, longest: float) -> dict:
    """A bar of its time on a scale that ends at `longest`, with its spread and the marks of `b`."""
    at = lambda value: round(100 * value / longest, 3)  # noqa: E731
    marks = {name: getattr(b, name) for name in MARKS}
    shown = {
        "bars": [{"at": at(d.us), "kind": kind}],
        "marks": [{"at": at(v), "kind": k} for k, v in marks.items() if not math.isnan(v) and v <= longest],
    }
    if not math.isnan(d.p10) and d.p90 > d.p10:
        shown["whisker"] = [at(d.p10), at(d.p90)]
    return shown


def kind_of(name: str) -> str:
    if name.startswith("auto"):
        return "auto"
    return "part" if name in PARTS else "plain" if name in records.PLAIN else "other"


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


def unmeasured(name: str, row: dict) -> dict:
    good = row["status"] == "ok"
    status = "verified" if good and "verify" in row else "ran" if good else row["status"]
    text = f"{status} {row.get('reason', '')}"
    look = "" if good else "bad-text" if row["status"] == "wrong" else "aside"
    return {"name": name, "note": styled(look, text) if look else text}


def competitor(name: str, row: dict, b: Bounds, longest: float) -> dict:
    d = records.derive(row, b)
    aside = PARTS.get(name) or (row.get("schedule", "") if name.startswith("auto") else "")
    is_part = name in (records.COMPUTE, records.COMM)
    flags = [badge(f.replace("_", " ")) for f in row.get("flags", []) if f in SHOWN_FLAGS]
    ends = f"{table.us(d.p10)}..{table.us(d.p90)}" if not math.isnan(d.p10) else ""
    return {
        "name": [name, *flags, styled("aside below", aside)],
        "cells": [
            bar(d, b, kind_of(name), longest),
            [table.us(d.us), styled("aside below", ends)],
            "-" if is_part else table.number(d.gain),
            "-" if is_part else table.number(d.rho),
            "-" if name == records.COMM else table.number(d.tflops, 0 if d.tflops >= 10 else 3),
        ],
    }


def operator(group: Group, index: int) -> dict:
    b = records.bounds_of(group)
    longest = largest(*(x for r in group.rows.values() for x in (r.get("time_us", {}).get(k, math.nan) for k in ENDS)))
    lines = [
        competitor(name, row, b, longest) if "time_us" in row else unmeasured(name, row)
        for name, row in group.rows.items()
    ]
    notes = [x for x in (table.bursts(group), clocks(group)) if x]
    if b.regime:
        notes.append("the limit was below the GEMM alone, which counts as limit")
    reason = group.rows.get("auto", {}).get("reason", "")
    columns = {"competitor": "", "": "bars long", **dict.fromkeys(("us", "x library", "rho", "TFLOP/s"), "number")}
    parts = [grid(columns, lines), legend(), note("; ".join(notes))]
    if reason:
        parts.append(note(f"auto: {reason}"))
    return section(group.workload, group.title(), parts, f"c{index}")


def primitive(g: Group) -> dict:
    case, ours, plain = g.first["case"], g.rows.get("overlace"), g.rows.get("plain")
    name = [case["name"], styled("aside below", case.get("what", ""))]
    if ours is None or "time_us" not in ours:
        return {"name": name, "note": table.verdict(ours or g.first)}
    moved = ours.get("bytes") or 0
    figure = (lambda t: moved / t / 1e3) if moved else (lambda t: t)
    value, other = figure(g.us("overlace")), figure(g.us("plain")) if plain else math.nan
    target = ours.get("target") or 0
    reached = value >= target if moved else value <= target
    wanted = f"{'at least' if moved else 'at most'} {target:g}" if target else ""
    verdict = badge("reached", "good") if target and reached else badge("missed", "bad") if target else ""
    unit = "GB/s" if moved else "us"
    second = "-" if math.isnan(other) else f"{other:.4g} {unit}"
    return {"name": name, "cells": [f"{value:.4g} {unit}", second, wanted, verdict]}


def primitives(workload: str, groups: list[Group]) -> dict:
    columns = {"what": "", **dict.fromkeys(("overlace", "plain", "wanted", ""), "number")}
    teams = ", ".join(str(t) for t in sorted({g.first["team"] for g in groups}))
    return section(workload, f"{teams} ranks", [grid(columns, [primitive(g) for g in groups])])


def kind_of_ranked(name: str, workload: str) -> str:
    return "plain" if name.startswith(table.ANCHORS[workload][0]) else "part" if name in PARTS else "auto"


def ranking(group: Group) -> dict | None:
    timed = sorted((r for r in group.rows.values() if "time_us" in r), key=lambda r: r["time_us"]["median"])
    if not timed:
        return None
    none = records.bounds({})
    longest = timed[-1]["time_us"]["p90"]
    lines = [
        {
            "name": r["competitor"],
            "cells": [
                bar(records.derive(r, none), none, kind_of_ranked(r["competitor"], group.workload), longest),
                table.us(r["time_us"]["median"]),
                f"{r['flops'] / r['time_us']['median'] * 1e-6:.0f}",
            ],
        }
        for r in timed
    ]
    columns = {"competitor": "", "": "bars long", "us": "number", "TFLOP/s": "number"}
    return section(group.workload, group.title(), [grid(columns, lines)])


def sources(rows: list[dict]) -> dict:
    commands = list(dict.fromkeys(r["command"] for r in rows))
    lines = "\n".join(json.dumps(r, separators=(",", ":")) for r in rows)
    text = (
        "rho is time over the attainable limit: the GEMM beside its transfers without dependence, from one run."
        " Whiskers show the 10th and 90th percentile of the bursts."
    )
    folded = {f"{len(commands)} commands": "\n".join(commands), f"{len(rows)} records, one per line": lines}
    pres = [{"part": "pre", "summary": summary, "text": body} for summary, body in folded.items()]
    return section("Sources", "", [note(text), *pres])
