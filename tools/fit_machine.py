#!/usr/bin/env python3
"""Fits the few numbers of a machine that no probe measures alone to records of whole operators.

    tools/fit_machine.py --bench build/dev/bench/bench_sim --machine machine/h200x4.json --rounds 3 \
        --out machine/h200x4.json bench/results/*.jsonl

Coordinate descent on loss_of() of the recurrence and of the simulator, over the shapes that bench_sim does not hold
out. What came out is marked as measured: it is, though not alone. docs/design/simulator.md says what is fitted and what
is left as probes gave it.

With --team N only teams of N are fitted, all of their shapes, and from the middle of what each number may be instead of
from the file; then the errors for the other teams are printed, beside what N ranks took for the same.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

PARTS = ("compute", "comm", "limit")  # measured beside schedules, no schedules themselves
CHANCE = 0.03  # share of a prediction
LEAST_GAIN = 1e-3  # share of the loss: less moves no number, so that a file that was fitted stays what it is
SHAPE = ("op", "ranks", "m", "n", "k", "activation", "replayed")  # what rows share that are measured against each other
TILE_COLS = (64, 96, 128, 160, 192, 256)  # of the library's GEMMs; with 224 the records are met less well

# Path in the file, least, most. "k_ns/..." make the tiles: a wave of 128 x cols takes each * cols + fixed per element
# of K; "scale/..." multiplies a curve that was measured outside of operators.
PARAMETERS = [
    ("gemm/sustained_TFLOPs", 600, 800),
    ("k_ns/each", 0.0305, 0.050),
    ("k_ns/fixed", 0.1, 3.0),
    ("k_ns/wave_us", 0.2, 6.0),
    ("gemm/start_us", 0.5, 8.0),
    ("latency/launch_us", 0.3, 6.0),
    ("latency/event_us", 0.5, 12.0),
    ("latency/flag_us", 0.2, 3.0),
    ("latency/wait_us", 0.5, 10.0),
    ("latency/signal_us", 0.3, 8.0),
    ("latency/call_us", 0.3, 10.0),
    ("latency/host_call_us", 1.0, 60.0),
    ("latency/host_kernel_us", 1.0, 15.0),
    ("latency/host_copy_us", 1.0, 15.0),
    ("latency/host_lanes_us", 0.3, 40.0),
    ("latency/host_collective_us", 5.0, 40.0),
    ("copy/post_us", 0.3, 10.0),
    ("copy/trigger_us", 3.0, 7.4),
    ("copy/local_GBps", 400.0, 3000.0),
    ("memory/reduce_GBps", 800.0, 4500.0),
    ("scale/all_gather_us", 0.7, 1.6),
    ("scale/reduce_scatter_us", 0.7, 1.6),
    ("scale/all_reduce_us", 0.7, 1.6),
    ("contention/gemm_tensor/ce_in", 1.0, 1.3),
    ("contention/gemm_tensor/ce_out", 1.0, 1.3),
    ("contention/ce_out/gemm_tensor", 1.0, 1.5),
    ("contention/ce_out/ce_out", 1.0, 4.0),
    ("contention/ce_out/ce_in", 1.0, 1.3),
    ("contention/ce_out/reduce", 1.0, 2.0),
    ("contention/reduce/ce_in", 1.0, 2.0),
    ("contention/gemm_tensor/sm_copy", 1.0, 2.0),
    ("contention/sm_copy/gemm_tensor", 1.0, 2.0),
    ("contention/gemm_tensor/epi_store", 1.0, 2.0),
    ("contention/epi_store/gemm_tensor", 1.0, 2.0),
]


def tile_costs(machine: dict) -> dict[str, float]:
    """The line through the widest and the narrowest tile of a file; a guess where there is only one."""
    tiles = sorted(machine["gemm"]["tiles"], key=lambda tile: tile["cols"])
    if len(tiles) < 2:
        return {"each": 0.035, "fixed": 0.6, "wave_us": 2.0}
    low, high = tiles[0], tiles[-1]
    each = (high["k_ns"][0] - low["k_ns"][0]) / (high["cols"] - low["cols"])
    return {"each": each, "fixed": low["k_ns"][0] - each * low["cols"], "wave_us": low["wave_us"][0]}


def start_of(path: str, machine: dict) -> float:
    first, *rest = path.split("/")
    if first == "scale":
        return 1.0
    if first == "k_ns":
        return tile_costs(machine)[rest[0]]
    if first == "contention":
        for c in machine.get("contention", []):
            if [c["slowed"], c["by"]] == rest:
                return c["factor"][0]
        return 1.0  # files leave these out
    return machine[first][rest[0]][0]


def starts(machine: dict) -> dict[str, float]:
    """Where a fit of a file begins. What lanes cost the host is fitted where the file says something of it."""
    silent = {"latency/host_lanes_us"} if "host_lanes_us" not in machine["latency"] else set()
    return {path: start_of(path, machine) for path, _, _ in PARAMETERS if path not in silent}


def with_values(machine: dict, values: dict[str, float]) -> dict:
    """The machine with these numbers."""
    out = json.loads(json.dumps(machine))
    contention = {(c["slowed"], c["by"]): c["factor"] for c in out.get("contention", [])}
    for path, value in values.items():
        first, *rest = path.split("/")
        value = float(f"{value:.4g}")
        if first == "scale":
            for point in out["collectives"][rest[0]]["points"]:
                point[1] = float(f"{point[1] * value:.4g}")
        elif first == "contention":
            if contention.get(tuple(rest), [1.0])[0] != value:  # what the fit left alone is what it was, a prior too
                contention[tuple(rest)] = [value, "measured"]
        elif first != "k_ns" and out[first].get(rest[0], [None])[0] != value:
            out[first][rest[0]] = [value, "measured"]
    if "k_ns/each" in values:
        out["gemm"]["tiles"] = [
            {
                "rows": 128,
                "cols": cols,
                "wave_us": [float(f"{values['k_ns/wave_us']:.4g}"), "measured"],
                "k_ns": [float(f"{values['k_ns/each'] * cols + values['k_ns/fixed']:.4g}"), "measured"],
            }
            for cols in reversed(TILE_COLS)
        ]
    out["contention"] = [{"slowed": a, "by": b, "factor": f} for (a, b), f in sorted(contention.items()) if f[0] > 1]
    return out


def middle(path: str, least: float, most: float) -> float:
    """Where to start without a machine: no contention to speak of, curves as they are, else the geometric mean."""
    if path.startswith("scale"):
        return 1.0
    return 1.05 if path.startswith("contention") else math.sqrt(least * most)


class Loss:
    """Over the shapes that are not held out; with a team, over all of that team's instead."""

    def __init__(self, bench: str, records: list[str], machine: dict, team: int = 0, simulated: int = 4):
        self.bench, self.records, self.machine, self.team, self.simulated = bench, records, machine, team, simulated
        self.calls = 0

    def is_fitted(self, row: dict) -> bool:
        return row["ranks"] == self.team if self.team else not row["held_out"]

    def rows(self, values: dict[str, float]) -> list[dict]:
        self.calls += 1
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "m.json"
            path.write_text(json.dumps(with_values(self.machine, values)))
            command = [self.bench, "--machine", str(path), "--records", ",".join(self.records), "--json", "-"]
            command += ["--calls", str(self.simulated)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(done.stderr)
        model = "predicted_us" if self.simulated else "recurrence_us"
        return [row for row in json.loads(done.stdout) if row[model]]

    def of(self, values: dict[str, float]) -> float:
        rows = [row for row in self.rows(values) if self.is_fitted(row)]
        if not self.simulated:
            return loss_of(rows, "recurrence_us")
        return sum(share * loss_of(rows, model) for model, share in (("recurrence_us", 0.77), ("predicted_us", 0.23)))


def loss_of(rows: list[dict], model: str) -> float:
    """What a model's choices lose, and how far it is off. Each of a shape's schedules is taken the likelier
    the shorter it is predicted: CHANCE less makes it 2.7 times as likely. Errors count most near the best."""
    shapes: dict[tuple, list[dict]] = {}
    for row in rows:
        if row[model]:
            shapes.setdefault(tuple(row[k] for k in SHAPE), []).append(row)
    lost, choices, off, weights = 0.0, 0, 0.0, 0.0
    for members in shapes.values():
        whole = [row for row in members if row["family"] not in PARTS]
        best = min((row["measured_us"] for row in whole), default=math.inf)
        if len(whole) > 1:
            least = min(row[model] for row in whole)
            odds = [(least / row[model]) ** (1 / CHANCE) for row in whole]
            regrets = [min(row["measured_us"] / best - 1, 0.5) for row in whole]
            lost += sum(o * r for o, r in zip(odds, regrets, strict=True)) / sum(odds)
            choices += 1
        for row in members:
            share = min(1.0, best / row["measured_us"]) ** 2
            off += share * abs(max(-0.4, min(0.4, math.log(row[model] / row["measured_us"]))))
            weights += share
    return lost / max(choices, 1) + off / max(weights, 1.0)


def held_out_errors(rows: list[dict], model: str) -> dict:
    """By operator and family, where at least four shapes are held out: median and 90th percentile of the error of the
    simulator ("predicted_us") or of the recurrence ("recurrence_us")."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        if row["held_out"] and row[model]:
            error = abs(row[model] / row["measured_us"] - 1)
            found.setdefault(row["op"], {}).setdefault(row["family"], []).append(error)

    def at(errors: list[float], share: float) -> float:
        return float(f"{sorted(errors)[min(len(errors) - 1, int(share * len(errors)))]:.3g}")

    return {
        op: {family: [at(e, 0.5), at(e, 0.9)] for family, e in sorted(families.items()) if len(e) >= 4}
        for op, families in sorted(found.items())
    }


def descend(loss: Loss, values: dict[str, float], bounds: dict[str, tuple[float, float]], rounds: int) -> dict:
    best = loss.of(values)
    print(f"start: {100 * best:.2f} %", flush=True)
    steps = dict.fromkeys(values, 0.25)
    for number in range(rounds):
        for path in values:
            low, high = bounds[path]
            is_factor = path.startswith("contention")
            for sign in (1, -1):
                step = sign * steps[path]
                new = 1 + (values[path] - 1) * math.exp(step) + (0.01 * sign if is_factor else 0)
                new = new if is_factor else values[path] * math.exp(step)
                tried = values | {path: min(max(new, low), high)}
                if tried[path] != values[path] and (now := loss.of(tried)) < best * (1 - LEAST_GAIN):
                    best, values = now, tried
                    steps[path] *= 1.3
                    break
            else:
                steps[path] *= 0.45
        print(f"round {number + 1}: {100 * best:.2f} % after {loss.calls} evaluations", flush=True)
    return values


def summary(errors: list[float]) -> str:
    if not errors:
        return f"{0:>5}"
    ordered = sorted(errors)

    def at(share: float) -> float:
        return 100 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return f"{len(ordered):>5}{at(0.5):>8.1f} %{at(0.9):>8.1f} %{100 * ordered[-1]:>8.1f} %"


def other_teams(rows: list[dict], guessed: list[dict], team: int) -> str:
    """Errors for teams that no fit has seen, by operator and family: of the fit, of where it started (rows of the same
    order), and of taking what `team` ranks took for the same shape and schedule, where that was measured."""

    def key(row: dict) -> tuple:
        return tuple(row[k] for k in (*SHAPE, "family", "degree", "tile_cols") if k != "ranks")

    seen = {key(row): row["measured_us"] for row in rows if row["ranks"] == team}
    groups: dict[str, list[list[float]]] = {}
    for row, guess in zip(rows, guessed, strict=True):
        if row["ranks"] == team:
            continue
        names = ["all", row["op"], f"{row['op']} {row['family']}"]
        for name in names if row["host_bound"] else [*names, "all, limited by the device"]:
            fit, start, same, nothing = groups.setdefault(name, [[], [], [], []])
            fit.append(abs(row["predicted_us"] / row["measured_us"] - 1))
            start.append(abs(guess["predicted_us"] / row["measured_us"] - 1))
            if key(row) in seen:
                same.append(fit[-1])
                nothing.append(abs(seen[key(row)] / row["measured_us"] - 1))
    lines = [f"{'':<36}{'n':>5}{'median':>10}{'p90':>10}{'max':>10}"]
    for name, lists in sorted(groups.items()):
        labels = ("", "  not fitted", f"  both teams measured, x{team} fit", f"  the same, as on {team}")
        for label, errors in zip(labels, lists, strict=True):
            if errors and (label == "" or name.startswith("all") or name == name.split()[0]):
                lines.append(f"{name + label if label == '' else label:<36}{summary(errors)}")
    return "\n".join(lines)


def text_of(machine: dict) -> str:
    """One key of the second level a line, as the shipped files."""
    parts = []
    for key, value in machine.items():
        if isinstance(value, dict):
            lines = ",\n".join(f"  {json.dumps(a)}: {json.dumps(b)}" for a, b in value.items())
            parts.append(f" {json.dumps(key)}: {{\n{lines}}}")
        elif isinstance(value, list):
            lines = ",\n".join(f"  {json.dumps(b)}" for b in value)
            parts.append(f" {json.dumps(key)}: [\n{lines}]")
        else:
            parts.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "{" + ",\n".join(parts)[1:] + "}\n"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True)
    parser.add_argument("--machine", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--team", type=int, default=0)
    parser.add_argument("--calls", type=int, default=4, help="simulated; 0: the fit is of the recurrence alone")
    parser.add_argument("records", nargs="+")
    options = parser.parse_args(arguments)
    machine = json.loads(options.machine.read_text())
    loss = Loss(options.bench, options.records, machine, options.team, options.calls)
    values = starts(machine)
    if options.team:
        values = {path: middle(path, least, most) for path, least, most in PARAMETERS}
    guessed = values
    bounds = {path: (low, high) for path, low, high in PARAMETERS}
    values = descend(loss, values, bounds, options.rounds)
    for path, value in values.items():
        print(f"  {path:<32}{value:10.4g}")
    if options.team:
        print(other_teams(loss.rows(values), loss.rows(guessed), options.team))
    if options.out:
        fitted = with_values(machine, values)
        loss.simulated = loss.simulated or 4
        rows = loss.rows(values)
        fitted["errors"] = held_out_errors(rows, "predicted_us")
        fitted["recurrence_errors"] = held_out_errors(rows, "recurrence_us")
        options.out.write_text(text_of(fitted))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
