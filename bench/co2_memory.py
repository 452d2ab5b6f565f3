"""Memory of a rank of data parallel training as its process sees it: DDP, ZeRO-1 and FSDP2, and CO2 over each.

    python3 bench/co2_memory.py --out records.jsonl
starts four CPU ranks for each row. ddp, zero1, fsdp2: over all ranks; group_*: the same in groups of two that do not
know of each other; co2_*: these with CO2 between the groups, over the host. What a process holds (anonymous and shared
pages) after some rounds, and at most meanwhile, is counted above what it held before its model was made.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "driver"))

import programs
import schema

SCHEMES = ("ddp", "zero1", "fsdp2")
NAMES = tuple(f"{prefix}{scheme}" for scheme in SCHEMES for prefix in ("", "group_", "co2_"))
COMMAND = "CO2_MEMORY_COMMAND"  # environment of the ranks: the command that started them
GROUP, TAU = 2, 2


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0], allow_abbrev=False)
    add = p.add_argument
    add("--ranks", type=int, default=4)
    add("--layers", type=int, default=12)
    add("--width", type=int, default=1024)
    add("--steps", type=int, default=5)
    add("--competitors", default=",".join(NAMES))
    add("--seed", type=int, default=1)
    add("--git", default="unknown")
    add("--run", default=programs.now())
    add("--out", type=Path)
    return p.parse_args()


def held() -> int:
    """Bytes of anonymous and shared pages."""
    rows = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return sum(int(rows[name].split()[0]) for name in ("RssAnon", "RssShmem")) * 1024


class Peak:
    """How much the process held at most since `begin`, of all kinds of pages."""

    @staticmethod
    def begin() -> None:
        Path("/proc/self/clear_refs").write_text("5")

    @staticmethod
    def read() -> int:
        rows = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return int(rows["VmHWM"].split()[0]) * 1024


def inside(scheme: str, model: object, group: object) -> tuple:
    """A model and its optimizer over the ranks of `group`."""
    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.optim import ZeroRedundancyOptimizer

    if scheme == "fsdp2":
        mesh = DeviceMesh.from_group(group, "cpu")
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3)
    model = torch.nn.parallel.DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=True)
    if scheme == "zero1":
        kind = torch.optim.AdamW
        return model, ZeroRedundancyOptimizer(model.parameters(), kind, process_group=group, lr=1e-3)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def train(o: argparse.Namespace, groups: object, world: object) -> dict:
    """Bytes above what was held before the model was made; of this rank."""
    import overlace
    import torch
    from torch import nn

    gc.collect()
    Peak.begin()
    before, peak_before = held(), Peak.read()
    torch.manual_seed(o.seed)
    model = nn.Sequential(*(nn.Linear(o.width, o.width) for _ in range(o.layers)))
    count = sum(p.numel() for p in model.parameters())
    scheme = o.name.rpartition("_")[2]
    model, optimizer = inside(scheme, model, world if o.name == scheme else groups.inner)
    co2 = None
    if o.name.startswith("co2_"):
        options = {"outer_group": groups.outer, "inner_group": groups.inner, "tau": TAU, "transport": "host"}
        co2 = overlace.optim.CO2(model, optimizer, outer_timeout_s=120, **options)
    step = optimizer.step if co2 is None else co2.step
    generator = torch.Generator().manual_seed(torch.distributed.get_rank())
    for _ in range(o.steps):
        optimizer.zero_grad()
        model(torch.randn(4, o.width, generator=generator)).square().mean().backward()
        step()
    gc.collect()
    ends = {"parameters": count, "held": held() - before, "peak": Peak.read() - peak_before}
    torch.distributed.barrier()
    if co2 is not None:
        co2.flush()
        co2.close()
    return ends


def work(rank: int, o: argparse.Namespace, store: str) -> None:
    import overlace
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=o.ranks)
    groups = overlace.optim.make_groups(ranks_per_group=GROUP)
    mine = train(o, groups, dist.group.WORLD)
    everybody: list = [None] * o.ranks
    dist.all_gather_object(everybody, mine)
    if rank == 0:
        write(o, everybody)
    gc.collect()
    dist.destroy_process_group()


def write(o: argparse.Namespace, ranks: list[dict]) -> None:
    import torch

    cpu, cores = programs.cpu_name(), len(os.sched_getaffinity(0))
    machine = {"name": f"{cpu}, {cores} cores", "cpu": cpu, "cores": cores, "torch": torch.__version__}
    machine |= {"kernel": f"{platform.system()} {platform.release()}", "load": os.getloadavg()[0]}
    o.repetitions = 1
    entrant = argparse.Namespace(name=o.name, reason="", status="ok")
    row = programs.torch_head(o, entrant, machine, o.ranks, os.environ[COMMAND])
    what = f"{o.layers} layers of {o.width}, AdamW, {o.steps} steps, groups of {GROUP}"
    row |= {"workload": "co2", "case": {"name": "memory", "what": what}, "dtype": "fp32", "data": "normal(0,1)"}
    row["training"] = {"parameters": ranks[0]["parameters"]}
    most = {key: max(rank[key] for rank in ranks) for key in ("held", "peak")}
    row["memory"] = {"process_bytes": most["held"], "process_peak_bytes": most["peak"]}
    print(f"{o.name}: {most['held'] >> 20} MiB held, {most['peak'] >> 20} MiB at most", flush=True)
    if o.out:
        with o.out.open("a") as file:
            file.write(schema.with_id(row) + "\n")


def main() -> int:
    o = arguments()
    names = o.competitors.split(",")
    unknown = [name for name in names if name not in NAMES]
    if unknown or o.ranks % GROUP != 0 or o.steps < 2 * TAU:
        print(f"co2_memory.py: error: competitors {unknown} are not known, ranks {o.ranks} or steps {o.steps} too few")
        return programs.EXIT_USAGE
    os.environ.setdefault(COMMAND, " ".join(["python3 bench/co2_memory.py", *sys.argv[1:]]))
    for o.name in names:  # in processes of its own: what is freed may stay with a process
        if (status := programs.spawn_ranks(work, o)) != 0:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
