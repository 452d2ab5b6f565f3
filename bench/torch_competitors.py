"""Competitors of the dense operators that come through PyTorch, by the protocol and with the data of bench_dense.

`overlace bench --competitors all` starts it; by hand, with torchrun's variables:
    torchrun --nproc-per-node 4 bench/torch_competitors.py --set canonical --out records.jsonl
torch_library: torch.mm and NCCL's collective; torch_async_tp: symm_mem.fused_all_gather_matmul and
fused_matmul_reduce_scatter; torch_one_shot, torch_two_shot: torch.mm and symmetric memory's all-reduce; quack:
AllGather and GEMM of quack-kernels. On CPUs (gloo) only torch_library exists. What is missing is a record with the
reason.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path

# Multicast objects are never made, neither by symmetric memory nor by NCCL; both are read when torch is loaded.
os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
os.environ["NCCL_NVLS_ENABLE"] = "0"

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "driver"))

import programs  # noqa: E402
import records  # noqa: E402
from torch_entrants import (  # noqa: E402
    ROTATED_BYTES,
    Bench,
    Call,
    Entrant,
    Missing,
    enter,
    one_line,
    parsed,
    relative,
    spoiled,
    without_torch,
)

try:
    import torch
    import torch.distributed as dist
except ImportError:
    torch = None  # type: ignore[assignment]
else:
    from torch_rank import Clock, Rank, normal

NAMES = programs.TORCH
SAMPLED = 64  # rows, and columns, of the check against fp64
QUACK_TILES = ((128, 256, 2, 1), (128, 192, 2, 1), (128, 128, 2, 1))  # tile and cluster, M and N: those for Hopper


@dataclasses.dataclass(frozen=True)
class Case:
    op: str
    name: str
    m: int
    n: int
    k: int
    dtype: str

    @property
    def rows(self) -> str:
        return records.DENSE_OPERATORS[self.op].rows

    def fields(self) -> dict:
        case = {"name": self.name, "m": self.m, "n": self.n, "k": self.k}
        # Its own process: what is measured here and by bench_dense is interleaved with itself only.
        return {"workload": self.op, "case": case, "dtype": self.dtype, "flags": ["other_process"]}

    def title(self) -> str:
        return f"{self.op} {self.name}  M {self.m}  N {self.n}  K {self.k}"


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    add = p.add_argument
    add("--cases", type=Path, default=programs.CASES)
    add("--ops", default=",".join(records.OPERATORS))
    return parsed(p, NAMES, COMPETITORS)


def chosen(o: argparse.Namespace, on_gpus: bool) -> list[Case]:
    ops = o.ops.split(",")
    found = []
    for row in json.loads(o.cases.read_text())[o.set or ("smoke" if on_gpus else "cpu")]:
        for m in row["m"]:
            if row["op"] in ops and o.filter in f"{row['op']} {row['name']}":
                found.append(Case(row["op"], row["name"], m, row["n"], row["k"], row.get("dtype", "bf16")))
    return found


class Workload:
    """Operands of one case in as many sets as it takes to touch twice the L2 between two uses."""

    oracle = f"fp64, {SAMPLED} rows x {SAMPLED} columns, and every element against {NAMES[0]}"

    def __init__(self, case: Case, rank: Rank, seed: int) -> None:
        self.case, self.rank, self.seed = case, rank, seed
        self.dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[case.dtype]
        self.is_ag = case.rows == "gathered"
        self.rows_a = case.m // rank.size if self.is_ag else case.m
        self.rows_out = case.m // rank.size if case.rows == "scattered" else case.m
        size = torch.empty(0, dtype=self.dtype).element_size()
        one = (self.rows_a * case.k + case.n * case.k + self.rows_out * case.n) * size
        self.sets = min(max(-(-ROTATED_BYTES // one) + 1, 2), 24)
        self.bytes_rotated = one * self.sets
        first = rank.rank * self.rows_a if self.is_ag else 0
        a, b = self.left(rank.rank, first, self.rows_a), self.right(rank.rank, 0, case.n)
        # Every set holds the same values: one oracle serves all. B is used transposed, as a weight is.
        self.a = [a.clone() for _ in range(self.sets)]
        self.b = [b.clone().t() for _ in range(self.sets)]

    def filled(self, stream: int, first: int, rows: int, scale: float) -> torch.Tensor:
        out = torch.empty(rows, self.case.k, dtype=self.dtype, device=self.rank.device)
        for begin in range(0, rows, 512):
            at = torch.arange(first + begin, first + min(begin + 512, rows), device=self.rank.device)
            out[begin : begin + 512] = normal(self.seed, stream, at, self.case.k, scale).to(self.dtype)
        return out

    def left(self, rank: int, first: int, rows: int) -> torch.Tensor:
        return self.filled(1 if self.is_ag else 1 + rank, first, rows, 1.0)

    def right(self, rank: int, first: int, rows: int) -> torch.Tensor:
        total_k = self.case.k * (1 if self.is_ag else self.rank.size)
        return self.filled(1000 + rank, first, rows, 1 / math.sqrt(total_k))

    def operands(self) -> list[torch.Tensor]:
        return [self.a[0], self.b[0].t()]

    def errors(self, out: torch.Tensor, _name: str) -> tuple[float, float]:
        """Errors of sampled rows and columns."""
        if out.numel() == 0:
            return 0.0, 0.0
        # Rows and columns of their own generator: the same on each run, others on each rank.
        random = torch.Generator().manual_seed(self.seed + 17 + self.rank.rank)
        rows = torch.randint(out.shape[0], (SAMPLED,), generator=random).to(out.device)
        cols = torch.randint(out.shape[1], (SAMPLED,), generator=random).to(out.device)
        first = self.rank.rank * self.rows_out if self.case.rows == "scattered" else 0
        want = torch.zeros(SAMPLED, SAMPLED, dtype=torch.float64, device=out.device)
        scale = 1 / math.sqrt(self.case.k * (1 if self.is_ag else self.rank.size))
        for r in [self.rank.rank] if self.is_ag else range(self.rank.size):
            left = normal(self.seed, 1 if self.is_ag else 1 + r, rows + first, self.case.k, 1.0)
            right = normal(self.seed, 1000 + r, cols, self.case.k, scale)
            want += left.to(self.dtype).double() @ right.to(self.dtype).double().t()
        return relative(out[rows][:, cols], want)

    def facts(self) -> dict:
        return {"flops": 2.0 * self.case.m * self.case.n * self.case.k}


def torch_library(w: Workload) -> Call:
    size, case = w.rank.size, w.case
    new = lambda rows, cols: torch.empty(rows, cols, dtype=w.dtype, device=w.rank.device)  # noqa: E731
    if case.rows == "gathered":
        whole, outs = new(case.m, case.k), [new(case.m, case.n) for _ in range(w.sets)]

        def gather(i: int) -> torch.Tensor:
            dist.all_gather_into_tensor(whole, w.a[i])
            return torch.mm(whole, w.b[i], out=outs[i])

        return gather
    if case.rows == "scattered":
        partial, outs = new(case.m, case.n), [new(case.m // size, case.n) for _ in range(w.sets)]

        def scatter(i: int) -> torch.Tensor:
            torch.mm(w.a[i], w.b[i], out=partial)
            dist.reduce_scatter_tensor(outs[i], partial)
            return outs[i]

        return scatter
    outs = [new(case.m, case.n) for _ in range(w.sets)]

    def reduce(i: int) -> torch.Tensor:
        torch.mm(w.a[i], w.b[i], out=outs[i])
        dist.all_reduce(outs[i])
        return outs[i]

    return reduce


def torch_async_tp(w: Workload) -> Call:
    needs_gpus(w)
    import torch.distributed._symmetric_memory  # registers the operators

    ops, group = torch.ops.symm_mem, w.rank.group
    if w.case.rows == "gathered":
        return lambda i: ops.fused_all_gather_matmul(w.a[i], [w.b[i]], 0, group, return_A=True)[1][0]
    if w.case.rows == "scattered":
        return lambda i: ops.fused_matmul_reduce_scatter(w.a[i], w.b[i], "sum", 0, group)
    raise Missing("async-TP has no GEMM and AllReduce")


def symmetric_all_reduce(w: Workload, shots: int) -> Call:
    if w.case.rows != "reduced":
        raise Missing("an all-reduce, of no use to this operator")
    needs_gpus(w)
    import torch.distributed._symmetric_memory as symmetric

    buffer = symmetric.empty(w.case.m, w.case.n, dtype=w.dtype, device=w.rank.device)
    symmetric.rendezvous(buffer, w.rank.group)
    ops, group = torch.ops.symm_mem, w.rank.group

    def one(i: int) -> torch.Tensor:
        torch.mm(w.a[i], w.b[i], out=buffer)
        return ops.one_shot_all_reduce(buffer, "sum", group)

    def two(i: int) -> torch.Tensor:
        torch.mm(w.a[i], w.b[i], out=buffer)
        return ops.two_shot_all_reduce_(buffer, "sum", group)

    return one if shots == 1 else two


def quack(w: Workload) -> Call:
    if importlib.util.find_spec("quack") is None:
        raise Missing("quack-kernels is not installed", "absent")
    if w.case.rows != "gathered":
        raise Missing("only its AllGather and GEMM is measured")
    needs_gpus(w)
    from quack.distributed import AllGatherRunner
    from quack.gemm import gemm

    runner = AllGatherRunner(w.rows_a, w.case.k, w.dtype, device=w.rank.device)
    outs = [torch.empty(w.case.m, w.case.n, dtype=w.dtype, device=w.rank.device) for _ in range(w.sets)]

    def call(i: int, tiles: tuple[int, int, int, int]) -> torch.Tensor:
        with runner.gather(w.a[i]) as (whole, arrivals):
            gemm(whole, w.b[i].t(), outs[i], None, None, *tiles, ag_args=arrivals)
        return outs[i]

    return fastest(w, [lambda i, tiles=tiles: call(i, tiles) for tiles in QUACK_TILES])


def fastest(w: Workload, calls: list[Call]) -> Call:
    """The fastest configuration of a competitor, by short bursts; those that cannot run are left out by all ranks."""
    clock = Clock(w.rank)
    best: Call | None = None
    best_us = math.inf
    for call in calls:
        failure = ""
        try:
            for i in range(3):
                call(i % w.sets)
            clock.mark(0)
            for i in range(10):
                call(i % w.sets)
            clock.mark(1)
            mine = clock.elapsed_us()
        except (RuntimeError, AssertionError, ValueError) as error:
            mine, failure = math.inf, one_line(error)
        (us,) = w.rank.worst(mine)
        if us < best_us:
            best, best_us = call, us
    if best is None:
        raise Missing(f"none of its configurations runs here: {failure}")
    return best


def needs_gpus(w: Workload) -> None:
    if not w.rank.on_gpus:
        raise Missing("symmetric memory needs a GPU per rank")
    if w.case.m % w.rank.size:
        raise Missing(f"M is {w.case.m}, wanted a multiple of {w.rank.size}")


COMPETITORS: dict[str, Callable[[Workload], Call]] = {
    "torch_library": torch_library,
    "torch_async_tp": torch_async_tp,
    "torch_one_shot": lambda w: symmetric_all_reduce(w, 1),
    "torch_two_shot": lambda w: symmetric_all_reduce(w, 2),
    "quack": quack,
    "torch_wrong": lambda w: spoiled(torch_library(w)),  # torch_library with one element changed: it must be refused
}


def entrant(name: str, w: Workload) -> Entrant:
    if w.case.m % w.rank.size and w.case.rows != "reduced":
        return Entrant(name, None, "unsupported", f"M is {w.case.m}, not a multiple of {w.rank.size}")
    return enter(name, COMPETITORS, w)


def main() -> int:
    o = arguments()
    if torch is None:
        return without_torch(o, chosen(o, on_gpus=False))
    rank = Rank()
    wrong = 0
    try:
        o.run = rank.gather(o.run)[0]
        bench = Bench(o, rank)
        for case in chosen(o, rank.on_gpus):
            workload = Workload(case, rank, o.seed)
            wrong += bench.run(workload, [entrant(name, workload) for name in o.competitors.split(",")])
            if rank.on_gpus:
                torch.cuda.empty_cache()
    finally:
        dist.destroy_process_group()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
