"""`overlace bench`: runs workloads beside their competitors, keeps records, shows and compares them."""

from __future__ import annotations

import argparse
import difflib
import json
import math
import shlex
import subprocess
import sys
from pathlib import Path

import compare
import draws
import embedding_cases
import moe_cases
import page
import programs
import records
import table
from programs import CASES, DEFAULT, EXIT_USAGE, EXIT_WRONG, TORCH, WORKLOADS, Plan, Refused

WORST = 1.01  # ratio of times, where --worst says none
SOURCES = ("bench", "cli", "cmake", "include", "src")


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="overlace bench", description=__doc__, allow_abbrev=False)
    add = p.add_argument
    add("workload", nargs="*", help="those that --list shows; default: the dense operators")
    add("--list", action="store_true", help="show workloads, case sets and competitors")
    add("--status", action="store_true", help="which committed records are older than what they measure")
    add(
        "--set",
        default="",
        help="cases (default: smoke; on CPU ranks cpu), as --list shows them; random:SEED:COUNT",
    )
    add("--filter", default="", help="only cases whose operator and name contain this; of moe and embedding, title")
    add("--competitors", help="list by commas; all: also those through torch")
    add("--aa", action="store_true", help="measure auto twice: both must agree, or the run is void")
    add("-n", "--ranks", type=int, help="ranks (default: the GPUs, 4 or 2, else 2 CPU ranks)")
    add("--link", default="", help=f"emulated link between CPU ranks (default {programs.DEFAULT_LINK})")
    add("--repetitions", type=int, help="bursts of each competitor (default 15)")
    add("--burst-ms", type=float, help="wanted length of a burst (default 50)")
    add("--warm-s", type=float, help="least time of warming up per case (default 1)")
    add("--settle-s", type=float, help="most time per case for clocks to settle besides (default 5)")
    add("--heap-gib", type=int, help="symmetric heap of a rank (default 12; CPU ranks 1)")
    add("--runs", type=int, default=1, help="repeat the whole: a verdict needs two runs")
    add("--seed", type=int, default=1, help="seed of data and order")
    add("--data", default="normal", help="ramp: data that must be refused for timing")
    add("--graph", action="store_true", help="replay each call of the dense operators from a CUDA graph")
    add("--verify-only", action="store_true", help="check every competitor, time none")
    add("--out", type=Path, help="add the records to this file")
    add("--from", dest="source", type=Path, metavar="RECORDS", help="measure nothing: show and compare these records")
    add("--compare", type=Path, metavar="RECORDS", help="name what became slower since these")
    add("--agree", type=Path, metavar="RECORDS", help="whether serial/limit agrees with these")
    add("--against", type=Path, metavar="RECORDS", help="ratio to these times case by case; status 1 beyond --worst")
    add("--worst", type=float, help="largest ratio that --against takes (default 1.01)")
    add("--html", type=Path, metavar="FILE", help="write one self-contained page")
    add("--timeout-s", type=float, default=3600, help="deadline of each program (default 3600)")
    add("--git", help="commit that the records name (default: that of the checkout)")
    add("--programs", type=Path, help="folder of the bench programs (default: beside overlace)")
    add("--python", default=sys.executable, help="interpreter that has PyTorch (default: the driver's)")
    add("--overlace", type=Path, help=argparse.SUPPRESS)
    return p


def nearest(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, 1, 0)
    return f"; the nearest is {close[0]}" if close else ""


def commit() -> str:
    """HEAD of the checkout that the driver lies in, -dirty if sources differ from it."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", programs.BENCH.parent, *words], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    head = git("rev-parse", "--short=12", "HEAD")
    return (head + ("-dirty" if git("status", "--porcelain", "--", *SOURCES) else "")) or "unknown"


def plan_of(o: argparse.Namespace) -> Plan:
    for word in o.workload:
        if word not in WORKLOADS:
            raise Refused(f"there is no workload {word}{nearest(word, list(WORKLOADS))}; wanted {', '.join(WORKLOADS)}")
    sets = list(dict.fromkeys([*json.loads(CASES.read_text()), *moe_cases.SETS, *embedding_cases.SETS]))
    if o.set and o.set not in sets and draws.read(o.set) is None:
        raise Refused(f"--set is {o.set}{nearest(o.set, sets)}; wanted {', '.join(sets)} or random:SEED:COUNT")
    counts = {"--ranks": o.ranks, "--repetitions": o.repetitions, "--runs": o.runs, "--heap-gib": o.heap_gib}
    for option, value in counts.items():
        if value is not None and value < 1:
            raise Refused(f"{option} is {value}, wanted at least 1")
    names = DEFAULT if not o.competitors else tuple(o.competitors.split(","))
    if names == ("all",):
        names = DEFAULT + TORCH
    if o.aa:
        names += ("auto@2",)
    gpus = len(programs.gpu_names())
    if o.overlace is None:
        raise Refused("--overlace names the command line; `overlace bench` does this itself")
    return Plan(
        o.workload or list(records.OPERATORS),
        o.overlace.resolve(),
        o.programs,
        o.ranks,
        o.set or ("verify" if o.verify_only and (gpus < 2 or o.link) else ""),
        o.filter,
        names,
        o.repetitions,
        o.burst_ms,
        o.warm_s,
        o.settle_s,
        o.heap_gib,
        o.seed,
        o.data,
        o.link,
        o.graph,
        o.verify_only,
        o.timeout_s,
        o.git or commit(),
        gpus,
        o.python,
    )


def show_list() -> None:
    print("workloads")
    for name, what in WORKLOADS.items():
        print(f"  {name:<11} {what}")
    print("\nsets of cases of the dense operators (--set)")
    for name, rows in json.loads(CASES.read_text()).items():
        cases = sum(len(row["m"]) for row in rows)
        print(f"  {name:<11} {cases:>3} cases: {', '.join(dict.fromkeys(r['op'] + ' ' + r['name'] for r in rows))}")
    print(f"  random:SEED:COUNT: {', '.join(draws.OPERATORS)} in turn, of any shape; layers of moe, bags likewise")
    for workload, sets in (("moe", moe_cases.SETS), ("embedding", embedding_cases.SETS)):
        print(f"\nsets of cases of {workload} (--set)")
        for name, cases in sets.items():
            print(f"  {name:<11} {len(cases):>3} cases: {', '.join(dict.fromkeys(case.name for case in cases))}")
    print("\ncompetitors (--competitors)")
    print(f"  {', '.join(DEFAULT)}")
    print("  FAMILY[:DEGREE[:OPTION=NUMBER]...], candidates (all that the planner considers),")
    print("  NAME@2 (NAME once more), wrong (must be refused)")
    print(f"  through torch: {', '.join(TORCH)}")
    print(f"  of moe: {', '.join(moe_cases.NAMES)}; torch_wrong (must be refused)")
    print(f"  of embedding: {', '.join(embedding_cases.NAMES)}; torch_wrong (must be refused)")


# What dense operators, primitives and layers are made of.
MEASURED = (
    "include/overlace/device",
    "src/device",
    "src/exec",
    "src/gemm_core",
    "src/ops",
    "src/plan",
    "src/runtime",
    "src/spec",
)


def changed_since(commit_id: str) -> list[str]:
    words = ["git", "-C", str(programs.BENCH.parent), "diff", "--name-only", commit_id, "--", *MEASURED]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LookupError(f"{commit_id} is not a commit of this checkout")
    return done.stdout.split()


def show_status() -> None:
    for path in sorted((programs.BENCH / "results").glob("*.jsonl")):
        print("\n".join(compare.stale(path.name, records.read(path), changed_since)))


def measure(plan: Plan, o: argparse.Namespace) -> tuple[list[dict], int]:
    """The new records, and the first status that is not 0."""
    out = o.out or Path(f"build/bench-{programs.now().replace(':', '')}.jsonl")
    out.parent.mkdir(parents=True, exist_ok=True)
    known = len(records.read(out)) if out.exists() else 0
    plan.out = out.resolve()
    first = 0
    for run in range(o.runs):
        plan.run = programs.now() + (f".{run + 1}" if o.runs > 1 else "")
        for step in programs.steps(plan):
            seen = len(records.read(out)) if out.exists() else 0
            print(f"-- {step.title}{f', run {run + 1} of {o.runs}' if o.runs > 1 else ''}", file=sys.stderr, flush=True)
            status = programs.run(step, plan, lambda line: print(f"   {line}", file=sys.stderr, flush=True))
            new = records.read(out)[seen:] if out.exists() else []
            if new:
                print(table.text(records.groups(new)), flush=True)
            if status != 0 and first == 0:
                first = status
                print(f"overlace bench: {step.title} ended with {status}: {shlex.join(step.command)}", file=sys.stderr)
    rows = records.read(out)[known:] if out.exists() else []
    print(f"{len(rows)} records in {out}")
    return rows, first


def check_worst(o: argparse.Namespace) -> None:
    if o.worst is None:
        return
    if o.against is None:
        raise Refused(f"--worst is {o.worst:g} without --against, wanted both")
    if not 0 < o.worst < math.inf:
        raise Refused(f"--worst is {o.worst:g}, wanted a ratio above 0")


def conclude(rows: list[dict], o: argparse.Namespace, status: int) -> int:
    wrong = [r for r in rows if r["status"] == "wrong"]
    for row in wrong:
        print(f"WRONG {row['workload']} {row['case']['name']} {row['competitor']}: {row.get('reason', '')}")
    checks = []
    if o.aa and not o.verify_only:
        checks.append(("A against A", *compare.same_twice(rows)))
    if o.compare:
        lines, is_slower = compare.regressions(records.read(o.compare), rows)
        checks.append((f"since {o.compare}", lines, not is_slower))
    if o.agree:
        checks.append((f"agreement with {o.agree}", *compare.agreement(records.read(o.agree), rows)))
    if o.against:
        worst = WORST if o.worst is None else o.worst
        checks.append((f"against {o.against}", *compare.against(records.read(o.against), rows, worst)))
    for title, lines, good in checks:
        print(f"\n== {title}: {'ok' if good else 'NOT OK'}")
        print("\n".join(lines))
        status = status or (0 if good else EXIT_WRONG)
    if o.html:
        o.html.write_text(page.html(rows))
        print(f"page: {o.html}")
    return status or (EXIT_WRONG if wrong else 0)


def main(arguments: list[str]) -> int:
    o = parser().parse_args(arguments)
    try:
        check_worst(o)
        if o.list:
            show_list()
            return 0
        if o.status:
            show_status()
            return 0
        if o.source:
            rows = records.read(o.source)
            print(table.text(records.groups(rows)))
            return conclude(rows, o, 0)
        plan = plan_of(o)
        with programs.machine_lock():
            if plan.gpus and not plan.verify_only:
                programs.refuse_foreign_processes()
            return conclude(*measure_with(plan, o))
    except Refused as why:
        print(f"overlace bench: error: {why}", file=sys.stderr)
        return why.exit
    except (OSError, ValueError) as why:
        print(f"overlace bench: error: {why}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        return 130


def measure_with(plan: Plan, o: argparse.Namespace) -> tuple[list[dict], argparse.Namespace, int]:
    rows, status = measure(plan, o)
    return rows, o, status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
