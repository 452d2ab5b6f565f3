"""Starts the ranks of an example: as processes of this host, over gloo or NCCL. torchrun would do as well."""

from __future__ import annotations

import argparse
import gc
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

Run = Callable[[dist.ProcessGroup, str], None]


def _work(rank: int, run: Run, ranks: int, device: str, store: str) -> None:
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=ranks)
    run(dist.group.WORLD, device)
    gc.collect()  # a DistributedDataParallel holds the group in a circle: its threads end here, not in Python's end
    dist.destroy_process_group()


def launch(run: Run, text: str, ranks: int = 2) -> None:
    """run(group, device) on each rank; it raises where something is wrong. `ranks`: of them by default. `text`: what
    the example is, with its usage, which names the devices that it runs on."""
    devices = re.search(r"--device ([\w|]+)", text)
    parser = argparse.ArgumentParser(description=text.partition("\n\n")[0])
    parser.add_argument("--ranks", type=int, default=ranks)
    parser.add_argument("--device", choices=devices[1].split("|") if devices else ["cpu"], default="cpu")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        mp.spawn(_work, (run, arguments.ranks, arguments.device, store), arguments.ranks)
    print("all was equal")
