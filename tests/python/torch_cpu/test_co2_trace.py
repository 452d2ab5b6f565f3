"""Measured rounds of CO2 and its peers beside those that the simulator predicts, by `overlace trace diff`."""

import itertools
import json
import os
import statistics
import subprocess
import time
from pathlib import Path

import pytest
from ranks import overlace, run_ranks, torch

OVERLACE = os.environ.get("OVERLACE_BIN", "overlace")
STEP_MS, ROUNDS, LINK = 3, 5, "20MB/s,50us"
RULES = [
    ("co2", 4, {}),
    ("eager", 4, {}),
    ("local_sgd", 4, {}),
    ("streaming", 4, {"fragments": 2, "delay": 1}),
    ("streaming", 4, {"fragments": 2, "delay": 0}),
]


def train(group, rule, tau, options, path):
    torch.manual_seed(2)
    model = torch.nn.Sequential(*[torch.nn.Linear(100, 100) for _ in range(4)])
    inner = torch.optim.SGD(model.parameters(), lr=0.01)
    with overlace.optim.CO2(
        model, inner, outer_group=group, tau=tau, rule=rule, transport="host", link=LINK, outer_timeout_s=30, **options
    ) as co2:
        for _ in range(ROUNDS * tau):
            inner.zero_grad()
            model(torch.full((4, 100), 0.1 + group.rank())).square().mean().backward()
            time.sleep(STEP_MS / 1e3)
            inner.step()
        co2.flush()  # the last exchange is in the timeline once somebody has waited for it
        co2.trace(path)
        with pytest.raises(overlace.InvalidArgument, match=r"\.json"):
            co2.trace(f"{path}.txt")
    return sum(p.numel() for p in model.parameters())


def spans(path):
    events = json.loads(Path(path).read_text())["traceEvents"]
    return [e for e in events if e["ph"] == "X"]


@pytest.mark.parametrize(("rule", "tau", "options"), RULES, ids=lambda value: str(value).replace(" ", ""))
def test_measured_rounds_lie_beside_simulated_ones(rule, tau, options, tmp_path):
    measured, simulated = str(tmp_path / "measured.json"), str(tmp_path / "simulated.json")
    parameters, _ = run_ranks(2, train, rule, tau, options, measured)
    assert '"emulated":true' in Path(measured).read_text()
    plan = overlace.optim.plan_tau(parameters, groups=2, step_ms=STEP_MS, link=LINK)
    words = ["--rule", rule, "--period", str(tau), "--rounds", str(ROUNDS), "--parameters", str(parameters)]
    words += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    words += ["--step-us", str(1e3 * STEP_MS), "--all-reduce-us", str(1e3 * plan.all_reduce_ms), "--update-us", "100"]
    head = [OVERLACE, "sim", "graph", "co2", "--machine", "cpu2", "--group", "1", "--network", "ring(2, 1)"]
    subprocess.run([*head, *words, "--trace", simulated], check=True, timeout=60, capture_output=True)
    diff = [OVERLACE, "trace", "diff", measured, simulated, "--rank", "0", "--json", "-"]
    done = subprocess.run(diff, timeout=60, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    exchanges = [row for row in rows if row["id"] == "all_reduce"]
    assert len(exchanges) == ROUNDS * options.get("fragments", 1)
    for row in exchanges:
        # The link is emulated, so it can be slower than told and not faster.
        assert row["duration_us"] > 0.95 * row["other_duration_us"], row
    steps = [row for row in rows if row["id"] == "steps"]
    assert sum(row["duration_us"] for row in steps) >= 1e3 * STEP_MS * ROUNDS * tau
    # Lanes of a rank hold one span at a time; the exchange of a rule that does not wait lies beside steps.
    own = [span for span in spans(measured) if span["pid"] == min(s["pid"] for s in spans(measured))]
    compute = sorted((s["ts"], s["ts"] + s["dur"]) for s in own if s["name"] in ("steps", "update"))
    assert all(end <= begin + 1e-3 for (_, end), (begin, _) in itertools.pairwise(compute))
    net = [s for s in own if s["name"] == "all_reduce"]
    work = [(s["ts"], s["ts"] + s["dur"]) for s in own if s["name"] == "steps"]
    shares = [sum(max(0, min(e, s["ts"] + s["dur"]) - max(b, s["ts"])) for b, e in work) / s["dur"] for s in net[:-1]]
    # In the median, as a rank may lose its core between two launches.
    share, waits = statistics.median(shares), rule == "local_sgd" or options.get("delay") == 0
    assert share < 0.1 if waits else share > 0.1, shares
