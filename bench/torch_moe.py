"""The mixture-of-experts layer, forward, beside what users of PyTorch write, by the protocol of the other benches.

`overlace bench moe` starts it; by hand, with torchrun's variables and the package in PYTHONPATH:
    torchrun --nproc-per-node 2 bench/torch_moe.py --set canonical --out records.jsonl
torch: all_to_all_single with splits that are known before the call, grouped_mm, index operations; torch_graph: the
same replayed from a CUDA graph; torch_exchanged: the splits are exchanged and brought to the host in every call;
overlace: eager; overlace_graph: replayed from a CUDA graph; serial_graph, fused_graph: the same by one family;
compute: the grouped GEMMs of the same rows, which already lie with their experts. What is missing is a record with
the reason.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Multicast objects are never made, neither by symmetric memory nor by NCCL; both are read when torch is loaded.
os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
os.environ["NCCL_NVLS_ENABLE"] = "0"

sys.path.insert(0, str(Path(__file__).resolve().parent / "driver"))

import moe_cases
from moe_cases import NAMES
from torch_entrants import (
    Bench,
    Call,
    Entrant,
    Missing,
    enter,
    one_line,
    package,
    parsed,
    spoiled,
    without_torch,
)

try:
    import torch
    import torch.distributed as dist
except ImportError:
    torch = None  # type: ignore[assignment]
else:
    from torch_moe_layer import Layer, grouped
    from torch_rank import Rank, captured

OVERLACE_TIMEOUT_S = 90


def by_torch(w: Layer) -> Call:
    grouped()
    splits = w.splits(w.counts)
    return lambda i: w.by_torch(i, splits)


def by_torch_graph(w: Layer) -> Call:
    return captured(w.rank, w.sets, by_torch(w))


def by_torch_exchanged(w: Layer) -> Call:
    grouped()
    return lambda i: w.by_torch(i, w.splits(w.exchanged_counts()))


def compute(w: Layer) -> Call:
    grouped()
    splits = w.splits(w.counts)
    rows = w.dispatched(0, w.order(), splits)
    w.sample_rows(rows, splits)
    return lambda i: w.through_experts(i, rows, splits)


def by_overlace(w: Layer, family: str = "auto") -> Call:
    """The first call is made here: it takes memory on all ranks, outside of captures."""
    overlace = package()
    case, experts = w.case, w.experts.int()
    most = case.tokens if w.rank.on_gpus else 0

    def call(i: int) -> torch.Tensor:
        matrices = (w.w1[i], w.w2[i])
        sizes: dict[str, Any] = {"num_experts": case.experts, "max_tokens": most, "family": family}
        return overlace.ops.moe(w.x[i], experts, w.weights, *matrices, **sizes)

    try:
        w.team = w.team or overlace.init(timeout_s=OVERLACE_TIMEOUT_S)
        call(0)
    except overlace.Error as why:
        raise Missing(one_line(why)) from None
    return call


def by_overlace_graph(family: str) -> Callable[[Layer], Call]:
    return lambda w: captured(w.rank, w.sets, by_overlace(w, family))


COMPETITORS: dict[str, Callable[[Layer], Call]] = {
    "torch": by_torch,
    "torch_graph": by_torch_graph,
    "torch_exchanged": by_torch_exchanged,
    "overlace": by_overlace,
    "overlace_graph": by_overlace_graph("auto"),
    "serial_graph": by_overlace_graph("serial"),
    "fused_graph": by_overlace_graph("fused"),
    "compute": compute,
    "torch_wrong": lambda w: spoiled(by_torch(w)),  # torch with one element changed: it must be refused
}


def entrant(name: str, w: Layer) -> Entrant:
    x = enter(name, COMPETITORS, w)
    x.launch = "graph" if name.endswith("_graph") else x.launch
    return x


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    return parsed(p, NAMES, COMPETITORS)


def measure(o: argparse.Namespace, rank: Rank, case: moe_cases.Case) -> int:
    """How many competitors are wrong."""
    layer = Layer(case, rank, o.seed)
    try:
        return Bench(o, rank).run(layer, [entrant(name, layer) for name in o.competitors.split(",")])
    finally:
        if layer.team is not None:
            layer.team.close()


def main() -> int:
    o = arguments()
    if torch is None:
        return without_torch(o, moe_cases.chosen(o, on_gpus=False))
    rank = Rank()
    wrong = 0
    try:
        o.run = rank.gather(o.run)[0]
        for case in moe_cases.chosen(o, rank.on_gpus):
            wrong += measure(o, rank, case)
            if rank.on_gpus:
                torch.cuda.empty_cache()
    finally:
        dist.destroy_process_group()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
