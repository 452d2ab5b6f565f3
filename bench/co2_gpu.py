"""Data parallel training of groups of one GPU each: CO2 over NCCL and over the host beside training alone.

    python3 bench/co2_gpu.py --out records.jsonl
starts the ranks itself, on two GPUs: a transformer of 1.3 billion fp32 parameters in bf16 autocast, AdamW inside, in
less than three minutes. alone: no exchange; co2_nccl, co2_host: the same steps with CO2 over that transport. Times are
those of the device in later rounds. lost: share of a step that alone does not have; waited: share of a round that the
stream stood at waits; host_us, boundary_host_us: host time of a step that is no boundary, and of one that is, without
the optimizer's own; pass_of_copy: bytes that the pass moves in a second (32 a parameter) over those of a copy of the
same run. Groups must end with the same bits, or the record is `wrong`. `--device cpu` tries the program itself:
`--layers 1 --width 32 --competitors alone,co2_host`.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "driver"))

import programs
import protocol
import schema

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # no multicast, in ranks too

NAMES = ("alone", "co2_nccl", "co2_host")
COMMAND = "CO2_GPU_COMMAND"  # environment of the ranks: the command that started them
SKIPPED = 2  # rounds: the pipeline fills
PASS_BYTES = 32  # of a parameter: x, anchor, kept increment, wire, each read and written


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0], allow_abbrev=False)
    add = p.add_argument
    add("--ranks", type=int, default=2)
    add("--tau", type=int, default=16)
    add("--host-tau", type=int, default=32, help="of co2_host, whose sums the CPU makes")
    add("--rounds", type=int, default=5)
    add("--layers", type=int, default=24)
    add("--width", type=int, default=2048)
    add("--vocabulary", type=int, default=50304)
    add("--batch", type=int, default=8)
    add("--sequence", type=int, default=1024)
    add("--device", choices=("cuda", "cpu"), default="cuda")
    add("--competitors", default=",".join(NAMES))
    add("--repetitions", type=int, default=1)
    add("--seed", type=int, default=1)
    add("--git", default="unknown")
    add("--run", default=programs.now())
    add("--out", type=Path)
    return p.parse_args()


# ---- a rank ----


def model_of(o: argparse.Namespace, seed: int) -> object:
    """A decoder without positions, with its embedding tied to its head."""
    import torch
    from torch import nn

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(o.vocabulary, o.width)
            layer = {"dim_feedforward": 4 * o.width, "dropout": 0.0, "batch_first": True, "norm_first": True}
            heads = max(1, o.width // 128)
            self.layers = nn.ModuleList(nn.TransformerEncoderLayer(o.width, heads, **layer) for _ in range(o.layers))
            self.norm = nn.LayerNorm(o.width)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            x = self.embedding(tokens)
            for layer in self.layers:
                x = layer(x)
            return self.norm(x) @ self.embedding.weight.t()

    torch.manual_seed(seed)  # the same values in all groups
    with torch.device(o.device):
        model = Decoder()
    with torch.no_grad():
        model.embedding.weight.mul_(0.02)
    return model


class Clock:
    """Moments of the device's stream, of the host on CPU ranks."""

    def __init__(self, device: str) -> None:
        import torch

        self.events: list = []
        self.torch, self.on_gpu = torch, device == "cuda"

    def tick(self) -> None:
        if not self.on_gpu:
            self.events.append(time.perf_counter_ns())
            return
        self.events.append(self.torch.cuda.Event(enable_timing=True))
        self.events[-1].record()

    def windows_us(self) -> list[float]:
        if not self.on_gpu:
            return [(b - a) / 1e3 for a, b in zip(self.events, self.events[1:], strict=False)]
        self.torch.cuda.synchronize()
        return [a.elapsed_time(b) * 1e3 for a, b in zip(self.events, self.events[1:], strict=False)]


def copy_bytes_per_s(o: argparse.Namespace) -> float:
    """Bytes read and written, the best of some copies."""
    import torch

    count = (1 << 29) if o.device == "cuda" else 1 << 20
    source, target = (torch.zeros(count, dtype=torch.float32, device=o.device) for _ in range(2))
    clock = Clock(o.device)
    for _ in range(8):
        clock.tick()
        target.copy_(source)
    clock.tick()
    return 8e6 * count / min(clock.windows_us()[2:])


def train(o: argparse.Namespace, group: object, name: str, seed: int) -> dict:
    """Times in us, shares; of this rank."""
    import overlace
    import torch
    from torch.nn.functional import cross_entropy

    tau = o.host_tau if name == "co2_host" else o.tau
    rank, model = group.rank(), model_of(o, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    inner_step, inner_ns = optimizer.step, [0]

    def timed(*words: object) -> object:
        begin = time.perf_counter_ns()
        done = inner_step(*words)
        inner_ns[0] = time.perf_counter_ns() - begin
        return done

    optimizer.step = timed
    co2 = None
    if name != "alone":
        transport = name.removeprefix("co2_")
        co2 = overlace.optim.CO2(model, optimizer, outer_group=group, tau=tau, transport=transport, outer_timeout_s=120)
    where = torch.device("cuda", rank) if o.device == "cuda" else torch.device("cpu")
    generator = torch.Generator(where).manual_seed(1000003 * seed + rank)
    clock, stats = Clock(o.device), []
    host_ns: dict[bool, list[int]] = {False: [], True: []}  # by whether the step is a boundary
    torch.distributed.barrier(group=group)
    clock.tick()
    for i in range(tau * o.rounds):
        shape = (o.batch, o.sequence + 1)
        tokens = torch.randint(o.vocabulary, shape, generator=generator, device=where)
        optimizer.zero_grad()
        with torch.autocast(o.device, dtype=torch.bfloat16):
            scores = model(tokens[:, :-1])
            loss = cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        begin = time.perf_counter_ns()
        (optimizer if co2 is None else co2).step()
        is_end = (i + 1) % tau == 0
        host_ns[is_end].append(time.perf_counter_ns() - begin - inner_ns[0])
        if not is_end:
            continue
        clock.tick()
        if co2 is not None:
            stats.append(co2.stats())
    parameters = sum(p.numel() for p in model.parameters())
    windows = [us / tau for us in clock.windows_us()[SKIPPED:]]
    out = {
        "step_us": statistics.median(windows),
        "parameters": parameters,
        "loss": float(loss.detach()),
        "is_same": True,
    }
    if co2 is None:
        return out
    co2.flush()
    taken = [row for row in stats if row["rounds"] > 0][-max(1, o.rounds - SKIPPED - 1) :]
    whole = sum(row["round_ms"] for row in taken)
    out["waited"] = sum(row["exposed_ms"] for row in taken) / whole if whole > 0 else 0.0
    out["pass_us"] = statistics.median(row["pass_ms"] for row in taken) * 1e3
    out["comm_us"] = statistics.median(row["comm_ms"] for row in taken) * 1e3
    out["host_us"] = statistics.median(host_ns[False]) / 1e3
    out["boundary_host_us"] = statistics.median(host_ns[True][SKIPPED:]) / 1e3
    out["pass_of_copy"] = PASS_BYTES * parameters / out["pass_us"] * 1e6 / copy_bytes_per_s(o)
    co2.close()
    for p in model.parameters():
        mine = p.detach().view(torch.int32)
        first = mine.clone()
        torch.distributed.broadcast(first, 0, group=group)
        out["is_same"] = out["is_same"] and torch.equal(first, mine)
    return out


def work(rank: int, o: argparse.Namespace, store: str) -> None:
    import overlace  # noqa: F401 - before there is a group
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if o.device == "cuda":
        torch.cuda.set_device(rank)
    backend = "nccl" if o.device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=o.ranks)
    results: dict[str, list[list[dict]]] = {name: [] for name in o.competitors.split(",")}
    for repetition, name in protocol.interleaved(list(results), o.repetitions, o.seed):
        mine = train(o, dist.group.WORLD, name, o.seed + repetition)
        gc.collect()
        if o.device == "cuda":
            torch.cuda.empty_cache()
        everybody: list = [None] * o.ranks
        dist.all_gather_object(everybody, mine)
        results[name].append(everybody)
        if rank == 0:
            more = {key: round(value, 4) for key, value in mine.items() if key not in ("step_us", "is_same")}
            print(f"co2 repetition {repetition} {name}: {mine['step_us'] / 1e3:.2f} ms a step, {more}", flush=True)
    if rank == 0:
        write(o, results)
    dist.destroy_process_group()


# ---- records ----


def machine_of(o: argparse.Namespace) -> dict:
    import torch

    machine = {"cpu": programs.cpu_name(), "cores": len(os.sched_getaffinity(0)), "torch": torch.__version__}
    if o.device == "cpu":
        return machine
    gpus = f"{o.ranks} x {torch.cuda.get_device_name(0)}"
    return machine | {
        "gpus": gpus,
        "cuda": str(torch.version.cuda),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
    }


def write(o: argparse.Namespace, results: dict[str, list[list[dict]]]) -> None:
    def median_of(runs: list[list[dict]], key: str, of_ranks: object = max) -> float:
        return statistics.median(of_ranks(rank[key] for rank in ranks) for ranks in runs)

    alone = [max(rank["step_us"] for rank in ranks) for ranks in results.get("alone", [])]
    lines = []
    for name, runs in results.items():
        ok = all(rank["is_same"] for ranks in runs for rank in ranks)
        samples = [max(rank["step_us"] for rank in ranks) for ranks in runs]
        parameters, losses = runs[0][0]["parameters"], [ranks[0]["loss"] for ranks in runs]
        training: dict = {
            "parameters": parameters,
            "samples_per_s": o.batch * o.ranks / statistics.median(samples) * 1e6,
            "loss": {"median": statistics.median(losses), "min": min(losses), "max": max(losses)},
        }
        if alone:
            training["lost"] = statistics.median(1 - a / s for a, s in zip(alone, samples, strict=True))
        for key, of_ranks in (
            ("waited", max),
            ("pass_us", max),
            ("comm_us", max),
            ("host_us", max),
            ("boundary_host_us", max),
            ("pass_of_copy", min),
        ):
            if key in runs[0][0]:
                training[key] = median_of(runs, key, of_ranks)
        entrant = argparse.Namespace(name=name, reason="", status="ok" if ok else "wrong")
        if not ok:
            entrant.reason = "groups ended with different parameters"
        row = programs.torch_head(o, entrant, machine_of(o), o.ranks, os.environ[COMMAND])
        tau = o.host_tau if name == "co2_host" else o.tau
        what = (
            f"{o.rounds} rounds of {tau} steps, {o.layers} layers of width {o.width}, {o.batch} x {o.sequence} tokens"
        )
        row |= {"workload": "co2", "case": {"name": f"{parameters} parameters", "what": what}, "dtype": "fp32"}
        row |= {
            "data": f"random tokens, seeds from {o.seed}",
            "method": {"repetitions": len(runs), "n": o.rounds * tau},
        }
        row["verify"] = {"ok": ok, "oracle": "parameters of all groups, bit by bit" if name != "alone" else "none"}
        if ok:
            row |= {"time_us": protocol.time_fields(samples), "training": training}
        lines.append(schema.with_id(row) + "\n")
    if o.out:
        with o.out.open("a") as file:
            file.writelines(lines)


def main() -> int:
    o = arguments()
    unknown = [name for name in o.competitors.split(",") if name not in NAMES]
    if unknown or o.rounds <= SKIPPED or min(o.tau, o.host_tau, o.repetitions, o.ranks) < 1:
        print(
            f"co2_gpu.py: error: competitors {unknown} are not known, or rounds {o.rounds}, wanted more than {SKIPPED}"
        )
        return programs.EXIT_USAGE
    os.environ.setdefault(COMMAND, " ".join(["co2_gpu.py", *sys.argv[1:]]))
    return programs.spawn_ranks(work, o)


if __name__ == "__main__":
    sys.exit(main())
