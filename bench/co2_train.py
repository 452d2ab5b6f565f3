"""Data parallel training of two CPU ranks over an emulated slow link: CO2 beside what exchanges and waits.

    python3 bench/co2_train.py --tau 4,16,32 --out records.jsonl
starts the ranks itself. A character model learns the English of Python's own help texts; every repetition has a seed of
its own, for parameters and batches. alone: no exchange. Over a process group with the link: ddp: gradients at every
step, in buckets behind backward; zero1: the same with torch's ZeroRedundancyOptimizer; fsdp2: torch's fully_shard of
each layer; torch_local_sgd: torch's own mean of parameters at the end of a round. Over the link too: local_sgd,
slow_mo, diloco: increments, awaited at the end of a round; eager, co2: a round later; streaming: a quarter of them four
times a round, awaited a step later. All see the same samples.
Times are of the later rounds; beside them stands what `overlace sim graph co2` predicts from the step of
`alone`, the pass of `co2` and the link. Groups must end with the same parameters, or the record is `wrong`.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import pydoc_data.topics
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "driver"))

import programs
import protocol
import schema

RULES = ("local_sgd", "slow_mo", "diloco", "streaming", "eager", "co2")
BY_TORCH = ("ddp", "zero1", "fsdp2", "torch_local_sgd")  # over linked_group.py
ABSENT = {
    "torchft": "it exchanges over process groups that it makes itself, which no emulated link slows down, behind a "
    "service of its own (lighthouse)"
}
NAMES = ("alone", *BY_TORCH, *RULES, *ABSENT)
SIMULATED = ("ddp", *RULES)  # what `overlace sim graph co2` knows
WIRES = {"co2_bf16": "bfloat16", "co2_int8": "int8"}  # co2 with another type on the wire, where asked for
CHECKS = ("wrong",)  # one group ends elsewhere: to be refused
COMMAND = "CO2_TRAIN_COMMAND"  # environment of the ranks: the command that started them
VOCABULARY, CONTEXT, WIDTH, BATCH, RATE = 96, 16, 32, 64, 2e-3
OVERLACE = os.environ.get("OVERLACE_BIN", "overlace")


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0], allow_abbrev=False)
    add = p.add_argument
    add("--ranks", type=int, default=2)
    add("--tau", default="4,16,32", help="steps of a round: a case each")
    add("--steps", type=int, default=192, help="of every competitor; whole rounds")
    add("--hidden", type=int, default=384)
    add("--link", default="20MB/s,50us")
    add("--competitors", default=",".join(NAMES))
    add("--repetitions", type=int, default=3)
    add("--seed", type=int, default=1)
    add("--verify-only", action="store_true")
    add("--git", default="unknown")
    add("--run", default=programs.now())
    add("--out", type=Path)
    return p.parse_args()


# ---- a rank ----


def model_of(o: argparse.Namespace, seed: int) -> object:
    from torch import manual_seed, nn

    manual_seed(seed)
    return nn.Sequential(
        nn.Embedding(VOCABULARY, WIDTH),
        nn.Flatten(),
        nn.Linear(CONTEXT * WIDTH, o.hidden),
        nn.ReLU(),
        nn.Linear(o.hidden, o.hidden),
        nn.ReLU(),
        nn.Linear(o.hidden, VOCABULARY),
    )


class Text:
    def __init__(self) -> None:
        import torch

        text = " ".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
        codes = torch.tensor([min(max(ord(c) - 31, 0), VOCABULARY - 1) for c in text])
        self.train, self.test = codes[: -len(codes) // 10], codes[-len(codes) // 10 :]

    def batch(self, codes: object, seed: int, count: int) -> tuple:
        import torch

        starts = torch.randint(len(codes) - CONTEXT, (count,), generator=torch.Generator().manual_seed(seed))
        windows = codes[starts[:, None] + torch.arange(CONTEXT + 1)]
        return windows[:, :-1], windows[:, -1]


def over_link(name: str, tau: int, plain: object, linked: object) -> tuple:
    """Model and optimizer of a competitor that knows torch.distributed alone, over a group with the link."""
    import torch
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    adamw, model = torch.optim.AdamW, plain
    if name == "fsdp2":
        mesh = DeviceMesh.from_group(linked, "cpu")
        for layer in plain:
            if any(True for _ in layer.parameters()):
                fully_shard(layer, mesh=mesh)
        fully_shard(plain, mesh=mesh)
    elif name != "torch_local_sgd":
        model = DistributedDataParallel(plain, process_group=linked, bucket_cap_mb=0.5)
    if name == "zero1":
        return model, ZeroRedundancyOptimizer(model.parameters(), adamw, process_group=linked, lr=RATE)
    optimizer = adamw(model.parameters(), lr=RATE)
    if name == "torch_local_sgd":
        averager = PeriodicModelAverager(period=tau, warmup_steps=tau - 1, process_group=linked)
        optimizer = PostLocalSGDOptimizer(optimizer, averager)
    return model, optimizer


def train(o: argparse.Namespace, group: object, text: Text, name: str, tau: int, seed: int) -> dict:
    """Times in us, shares, losses; of this rank."""
    import linked_group
    import overlace
    import torch
    from torch.distributed.fsdp import FSDPModule
    from torch.nn.functional import cross_entropy

    plain = model = model_of(o, seed)
    linked = co2 = None
    if name in BY_TORCH:
        linked = linked_group.linked_group(group, o.link)
        model, optimizer = over_link(name, tau, plain, linked)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    if name != "alone" and linked is None:
        rule, wire = ("co2" if name == "wrong" or name in WIRES else name), getattr(torch, WIRES.get(name, "float32"))
        co2 = overlace.optim.CO2(
            model,
            optimizer,
            outer_group=group,
            tau=tau,
            rule=rule,
            wire_dtype=wire,
            transport="host",
            link=o.link,
            outer_timeout_s=60,
        )
    step = optimizer.step if co2 is None else co2.step
    torch.distributed.barrier(group=group)
    windows, rounds, losses, began = [], [], [], time.perf_counter_ns()
    for i in range(o.steps):
        x, y = text.batch(text.train, 1000003 * seed + 2 * i + group.rank(), BATCH)
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        step()
        losses.append(loss.item())
        if (i + 1) % tau == 0:
            now = time.perf_counter_ns()
            windows.append((now - began) / 1e3 / tau)
            began = now
            if co2 is not None and i >= 2 * tau:
                rounds.append(co2.stats())
    out = {"step_us": statistics.median(windows[2:] or windows), "train_loss": statistics.mean(losses[-32:])}
    if co2 is not None:
        co2.flush()
        co2.close()
        whole = sum(r["round_ms"] for r in rounds)
        out["waited"] = sum(r["exposed_ms"] for r in rounds) / whole if whole > 0 else 0.0
        out["pass_us"] = statistics.median(r["pass_ms"] for r in rounds) * 1e3 if rounds else 0.0
        out["comm_us"] = statistics.median(r["comm_ms"] for r in rounds) * 1e3 if rounds else 0.0
    with torch.no_grad():
        x, y = text.batch(text.test, 7, 8192)
        out["loss"] = float(cross_entropy(plain(x), y))
        for part in plain.modules():
            if isinstance(part, FSDPModule):
                part.unshard()
        values = torch.cat([p.flatten() for p in plain.parameters()])
        if name == "wrong" and group.rank() == 1:
            values[5] += 1
        everybody = [torch.empty_like(values) for _ in range(group.size())]
        torch.distributed.all_gather(everybody, values, group=group)
    out["is_same"] = all(torch.equal(values, other) for other in everybody)
    if linked is not None:
        linked_group.end_of(linked)
    return out


def work(rank: int, o: argparse.Namespace, store: str) -> None:
    import overlace  # noqa: F401 - before there is a group
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=o.ranks)
    group, text = dist.group.WORLD, Text()
    for tau in map(int, o.tau.split(",")):
        here = [name for name in o.competitors.split(",") if name not in ABSENT]
        results: dict[str, list[list[dict]]] = {name: [] for name in here}
        repetitions = 1 if o.verify_only else o.repetitions
        for repetition, name in protocol.interleaved(list(results), repetitions, o.seed):
            mine = train(o, group, text, name, tau, o.seed + repetition)
            everybody: list = [None] * o.ranks
            dist.all_gather_object(everybody, mine)
            results[name].append(everybody)
            if rank == 0:
                shown = f"{mine['step_us'] / 1e3:.2f} ms, loss {mine['loss']:.4f}"
                print(f"co2 tau {tau} repetition {repetition} {name}: {shown}", flush=True)
        if rank == 0:
            write(o, tau, results)
    gc.collect()
    dist.destroy_process_group()


# ---- records ----


def median_of(runs: list[list[dict]], key: str, of_ranks: object = max) -> float:
    return statistics.median(of_ranks(rank[key] for rank in ranks) for ranks in runs)


def all_reduce_us(o: argparse.Namespace, parameters: int) -> float:
    import overlace

    return overlace.optim.plan_tau(parameters, groups=o.ranks, step_ms=1, link=o.link).all_reduce_ms * 1e3


def simulated(o: argparse.Namespace, rule: str, tau: int, parameters: int, step_us: float, pass_us: float) -> dict:
    """What the simulator of whole steps says: us of a step, share that is exposed."""
    words = [OVERLACE, "sim", "graph", "co2", "--machine", "cpu2", "--rule", rule, "--group", "1"]
    words += ["--network", f"ring({o.ranks}, 1)"]
    words += ["--parameters", str(parameters), "--step-us", f"{step_us:.3f}", "--period", str(tau), "--json", "-"]
    words += ["--update-us", f"{pass_us:.3f}", "--all-reduce-us", f"{all_reduce_us(o, parameters):.3f}"]
    (row,) = json.loads(subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout)["rows"]
    return {"step_us": row["round_us"] / tau, "exposed": row["exposed_us"] / row["round_us"]}


def machine_of(o: argparse.Namespace) -> dict:
    cores = len(os.sched_getaffinity(0))
    cpu = programs.cpu_name()
    kernel = f"{platform.system()} {platform.release()}"
    machine = {"name": f"{cpu}, {cores} cores", "cpu": cpu, "cores": cores, "kernel": kernel, "link": o.link}
    return machine | {"torch": __import__("torch").__version__, "load": os.getloadavg()[0]}


def head_of(o: argparse.Namespace, tau: int, parameters: int, entrant: argparse.Namespace) -> dict:
    row = programs.torch_head(o, entrant, machine_of(o), o.ranks, os.environ[COMMAND])
    row |= {"workload": "co2", "case": {"name": f"tau {tau}", "what": f"{o.steps} steps, {parameters} parameters"}}
    return row | {"dtype": "fp32", "data": f"pydoc_data.topics, seeds from {o.seed}", "flags": ["emulated"]}


def write(o: argparse.Namespace, tau: int, results: dict[str, list[list[dict]]]) -> None:
    parameters = sum(p.numel() for p in model_of(o, 1).parameters())
    alone = [max(rank["step_us"] for rank in ranks) for ranks in results.get("alone", [])]
    pass_us = median_of(results["co2"], "pass_us") if "co2" in results else 0.0
    lines = []
    for name in (name for name in o.competitors.split(",") if name in ABSENT):
        row = head_of(o, tau, parameters, argparse.Namespace(name=name, reason=ABSENT[name], status="absent"))
        lines.append(schema.with_id(row) + "\n")
    for name, runs in results.items():
        is_same = all(rank["is_same"] for ranks in runs for rank in ranks)
        ok = is_same or name == "alone"
        samples = [max(rank["step_us"] for rank in ranks) for ranks in runs]
        losses = [ranks[0]["loss"] for ranks in runs]
        training: dict = {
            "parameters": parameters,
            "samples_per_s": BATCH * o.ranks / statistics.median(samples) * 1e6,
            "loss": {"median": statistics.median(losses), "min": min(losses), "max": max(losses)},
        }
        if alone:
            lost = [1 - a / s for a, s in zip(alone, samples, strict=True)]
            training["lost"] = statistics.median(lost)
            if name in SIMULATED:
                training["simulated"] = simulated(o, name, tau, parameters, statistics.median(alone), pass_us)
        for key in ("waited", "pass_us", "comm_us"):
            if key in runs[0][0]:
                training[key] = median_of(runs, key)
        entrant = argparse.Namespace(name=name, reason="", status="ok" if ok else "wrong")
        if not ok:
            entrant.reason = "groups ended with different parameters"
        row = head_of(o, tau, parameters, entrant)
        row["method"] = {"repetitions": len(runs), "n": o.steps}
        row["verify"] = {"ok": ok, "oracle": "parameters of all groups, bit by bit" if name != "alone" else "none"}
        if ok and not o.verify_only:
            row |= {"time_us": protocol.time_fields(samples), "training": training}
        if os.getloadavg()[0] > o.ranks + 0.5:
            row["flags"].append("other_process")
        lines.append(schema.with_id(row) + "\n")
    if o.out:
        with o.out.open("a") as file:
            file.writelines(lines)


def main() -> int:
    o = arguments()
    if o.verify_only:  # the bits of three rounds
        o.steps = min(o.steps, 96)
    unknown = [name for name in o.competitors.split(",") if name not in (*NAMES, *WIRES, *CHECKS)]
    bad = [tau for tau in o.tau.split(",") if not tau.isdigit() or int(tau) < 1 or o.steps % int(tau) != 0]
    if unknown or bad or o.repetitions < 1:
        print(f"co2_train.py: error: competitors {unknown} are not known, or tau {bad} does not divide {o.steps} steps")
        return programs.EXIT_USAGE
    os.environ.setdefault(COMMAND, " ".join(["co2_train.py", *sys.argv[1:]]))
    return programs.spawn_ranks(work, o)


if __name__ == "__main__":
    sys.exit(main())
