"""Embedding and All-to-All, forward, beside what users of PyTorch write, by the protocol of the other benches.

`overlace bench embedding` starts it; by hand, with torchrun's variables and the package in PYTHONPATH:
    torchrun --nproc-per-node 2 bench/torch_embedding.py --set canonical --out records.jsonl
torch: one embedding_bag over all tables of the rank, all_to_all_single, columns into their places; torch_graph: the
same replayed from a CUDA graph; overlace: eager; overlace_graph: replayed from a CUDA graph; library_graph,
serial_graph: the same by one family; compute: torch's pooling alone. What is missing is a record with the reason.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

# Multicast objects are never made, neither by symmetric memory nor by NCCL; both are read when torch is loaded.
os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
os.environ["NCCL_NVLS_ENABLE"] = "0"

sys.path.insert(0, str(Path(__file__).resolve().parent / "driver"))

import embedding_cases
from embedding_cases import NAMES
from torch_entrants import Bench, Call, Entrant, Missing, enter, one_line, package, parsed, spoiled, without_torch

try:
    import torch
    import torch.distributed as dist
except ImportError:
    torch = None  # type: ignore[assignment]
else:
    from torch_embedding_bags import Bags
    from torch_rank import Rank, captured

OVERLACE_TIMEOUT_S = 90


def by_torch(w: Bags) -> Call:
    whole = w.whole_rows()
    return lambda i: w.by_torch(i, whole)


def compute(w: Bags) -> Call:
    whole = w.whole_rows()
    return lambda i: w.pooled(i, whole)


def by_overlace(w: Bags, family: str = "") -> Call:
    """The first call is made here: it takes memory on all ranks, outside of captures."""
    overlace = package()
    slices, placement = w.slices(), w.placement()

    def call(i: int) -> torch.Tensor:
        rows, offsets = w.bags[i]
        fixed = {"group": dist.group.WORLD, "batch": w.case.samples, "placement": placement, "plan": family}
        return overlace.ops.embedding_a2a(slices, rows, offsets, **fixed)

    try:
        w.team = w.team or overlace.init(timeout_s=OVERLACE_TIMEOUT_S)
        call(0)
    except overlace.Error as why:
        raise Missing(one_line(why)) from None
    return call


def graph_of(make: Callable[[Bags], Call]) -> Callable[[Bags], Call]:
    return lambda w: captured(w.rank, w.sets, make(w))


COMPETITORS: dict[str, Callable[[Bags], Call]] = {
    "torch": by_torch,
    "torch_graph": graph_of(by_torch),
    "overlace": by_overlace,
    "overlace_graph": graph_of(by_overlace),
    "library_graph": graph_of(lambda w: by_overlace(w, "library")),
    "serial_graph": graph_of(lambda w: by_overlace(w, "serial")),
    "compute": compute,
    "torch_wrong": lambda w: spoiled(by_torch(w)),  # torch with one element changed: it must be refused
}


def entrant(name: str, w: Bags) -> Entrant:
    x = enter(name, COMPETITORS, w)
    x.launch = "graph" if name.endswith("_graph") else x.launch
    return x


def measure(o: argparse.Namespace, rank: Rank, case: embedding_cases.Case) -> int:
    """How many competitors are wrong."""
    bags = Bags(case, rank, o.seed)
    try:
        return Bench(o, rank).run(bags, [entrant(name, bags) for name in o.competitors.split(",")])
    finally:
        if bags.team is not None:
            bags.team.close()


def main() -> int:
    o = parsed(argparse.ArgumentParser(description=__doc__, allow_abbrev=False), NAMES, COMPETITORS)
    if torch is None:
        return without_torch(o, embedding_cases.chosen(o, on_gpus=False))
    rank = Rank()
    wrong = 0
    try:
        o.run = rank.gather(o.run)[0]
        for case in embedding_cases.chosen(o, rank.on_gpus):
            wrong += measure(o, rank, case)
            if rank.on_gpus:
                torch.cuda.empty_cache()
    finally:
        dist.destroy_process_group()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
