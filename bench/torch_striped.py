"""Products that PyTorch computes, unchanged, into a StripedTensor, and its reduce-scatter, beside the same product and
NCCL's; by the protocol and with the data of the other benches.

With torchrun's variables and the package in PYTHONPATH:
    torchrun --nproc-per-node 2 bench/torch_striped.py --set canonical --out records.jsonl
torch_library: torch.mm, or torch._scaled_mm of fp8 with row-wise scales, and NCCL's reduce-scatter; torch_async_tp:
symm_mem.fused_matmul_reduce_scatter and fused_scaled_matmul_reduce_scatter; striped: the same product into `out`,
proven first, then `reduce_scatter`; overlace: ops.gemm_rs, which chooses (bf16); NAME_graph: replayed from a CUDA
graph; compute: the product alone, into local memory. What is missing is a record with the reason.
"""

from __future__ import annotations

import argparse
import dataclasses
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
sys.path.insert(0, str(HERE))

import protocol  # noqa: E402
from torch_entrants import (  # noqa: E402
    ROTATED_BYTES,
    Bench,
    Call,
    Entrant,
    Missing,
    enter,
    one_line,
    package,
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
    from torch_rank import Rank, captured, normal

NAMES = (
    "compute",
    "torch_library",
    "torch_async_tp",
    "striped",
    "overlace",
    "torch_library_graph",
    "striped_graph",
    "overlace_graph",
)
SAMPLED = 64  # rows, and columns, of the check against fp64
TIMEOUT_S = 60.0
LARGEST_E4M3 = 448.0


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    m: int
    n: int
    k: int
    dtype: str = "bf16"  # e4m3: of the operands, whose product is bf16

    def fields(self) -> dict:
        case = {"name": self.name, "m": self.m, "n": self.n, "k": self.k}
        return {"workload": "striped", "case": case, "dtype": self.dtype}

    def title(self) -> str:
        return f"striped {self.name}  M {self.m}  N {self.n}  K {self.k}"


ROWS = (1024, 2048, 4096, 8192, 16384)
LAYERS = (("o_proj", 8192, 2048), ("down", 8192, 7168))
SETS = {
    "verify": [Case("a", 64, 256, 96), Case("a", 64, 256, 96, "e4m3")],
    "canonical": [
        *(Case(name, m, n, k) for name, n, k in LAYERS for m in ROWS),
        *(Case("fc2", m, 12288, 12288) for m in (1024, 8192)),
        *(Case(name, 8192, n, k, "e4m3") for name, n, k in LAYERS),
    ],
    "fp8": [Case(name, m, n, k, "e4m3") for name, n, k in LAYERS for m in ROWS],
}
SETS["smoke"] = [Case(name, 8192, n, k, dtype) for dtype in ("bf16", "e4m3") for name, n, k in LAYERS]


class Workload:
    """Operands of one case in as many sets as it takes to touch twice the L2 between two uses."""

    oracle = f"fp64, {SAMPLED} rows x {SAMPLED} columns, and every element against {NAMES[1]}"

    def __init__(self, case: Case, rank: Rank, seed: int) -> None:
        self.case, self.rank, self.seed = case, rank, seed
        self.dtype = torch.bfloat16
        self.rows_out = case.m // rank.size
        size = 1 if case.dtype == "e4m3" else 2
        one = (case.m * case.k + case.n * case.k) * size + self.rows_out * case.n * 2
        self.sets = min(max(-(-ROTATED_BYTES // one) + 1, 2), 24)
        self.bytes_rotated = one * self.sets
        a, self.a_scale = self.stored(self.of("a", rank.rank, slice(0, case.m)))
        b, b_scale = self.stored(self.of("b", rank.rank, slice(0, case.n)))
        self.b_scale = b_scale.t()
        if case.dtype == "e4m3" and not rank.on_gpus:  # whose torch has one scale for a matrix alone
            self.a_scale, self.b_scale = torch.tensor(1.0), torch.tensor(1.0)
        # Every set holds the same values: one oracle serves all. B is used transposed, as a weight is.
        self.a = [a.clone() for _ in range(self.sets)]
        self.b = [b.clone().t() for _ in range(self.sets)]
        self.tensors: list = []
        self.team = None

    def of(self, which: str, rank: int, rows: object) -> torch.Tensor:
        """Rows of A, or columns of B, of a rank in bf16; all of them, or those of a list."""
        scale = 1.0 if which == "a" else 1 / math.sqrt(self.case.k * self.rank.size)
        stream = 1 + rank if which == "a" else 1000 + rank
        at = torch.arange(rows.stop) if isinstance(rows, slice) else rows
        parts = [normal(self.seed, stream, part.to(self.rank.device), self.case.k, scale) for part in at.split(512)]
        return torch.cat([part.to(torch.bfloat16) for part in parts])

    def stored(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As the product takes them, with the scale of each row."""
        scale = torch.ones(len(rows), 1, device=rows.device)
        if self.case.dtype != "e4m3":
            return rows, scale
        if self.rank.on_gpus:
            scale = rows.float().abs().amax(1, keepdim=True) / LARGEST_E4M3
        return (rows.float() / scale).to(torch.float8_e4m3fn), scale

    def values(self, which: str, rank: int, rows: torch.Tensor) -> torch.Tensor:
        stored, scale = self.stored(self.of(which, rank, rows))
        return stored.double() * scale.double()

    def operands(self) -> list[torch.Tensor]:
        return [] if self.case.dtype == "e4m3" else [self.a[0], self.b[0].t()]

    def product(self, i: int, out: torch.Tensor) -> None:
        if self.case.dtype == "e4m3":
            scales = self.a_scale, self.b_scale
            torch._scaled_mm(self.a[i], self.b[i], *scales, out_dtype=self.dtype, out=out)
        else:
            torch.mm(self.a[i], self.b[i], out=out)

    def new(self, rows: int) -> torch.Tensor:
        return torch.empty(rows, self.case.n, dtype=self.dtype, device=self.rank.device)

    def errors(self, out: torch.Tensor, name: str) -> tuple[float, float]:
        """Errors of sampled rows and columns."""
        random = torch.Generator().manual_seed(self.seed + 17 + self.rank.rank)
        rows = torch.randint(out.shape[0], (SAMPLED,), generator=random)
        cols = torch.randint(out.shape[1], (SAMPLED,), generator=random)
        is_part = name == NAMES[0]
        first = 0 if is_part else self.rank.rank * self.rows_out
        want = torch.zeros(SAMPLED, SAMPLED, dtype=torch.float64, device=out.device)
        for r in [self.rank.rank] if is_part else range(self.rank.size):
            want += self.values("a", r, rows + first) @ self.values("b", r, cols).t()
        return relative(out[rows.to(out.device)][:, cols.to(out.device)], want)

    def facts(self) -> dict:
        return {"flops": 2.0 * self.case.m * self.case.n * self.case.k}

    def overlace(self):
        module = package()
        self.team = self.team or module.init(timeout_s=TIMEOUT_S)
        return module

    def close(self) -> None:
        if self.team is not None:
            self.team.close()
        self.tensors, self.team = [], None


def compute(w: Workload) -> Call:
    outs = [w.new(w.case.m) for _ in range(2)]

    def call(i: int) -> torch.Tensor:
        w.product(i, outs[i % 2])
        return outs[i % 2]

    return call


def torch_library(w: Workload) -> Call:
    partial, outs = w.new(w.case.m), [w.new(w.rows_out) for _ in range(w.sets)]

    def call(i: int) -> torch.Tensor:
        w.product(i, partial)
        dist.reduce_scatter_tensor(outs[i], partial)
        return outs[i]

    return call


def torch_async_tp(w: Workload) -> Call:
    if not w.rank.on_gpus:
        raise Missing("symmetric memory needs a GPU per rank")
    import torch.distributed._symmetric_memory  # registers the operators

    ops, group = torch.ops.symm_mem, w.rank.group
    if w.case.dtype == "bf16":
        return lambda i: ops.fused_matmul_reduce_scatter(w.a[i], w.b[i], "sum", 0, group)
    shape = [w.case.m, w.case.n]
    return lambda i: ops.fused_scaled_matmul_reduce_scatter(
        w.a[i], w.b[i], w.a_scale, w.b_scale, "sum", 0, 0, group, shape, out_dtype=w.dtype
    )


def striped(w: Workload) -> Call:
    """Proven here, outside of captures."""
    overlace = w.overlace()
    try:
        t = overlace.StripedTensor((w.case.m, w.case.n), w.dtype)
        w.tensors.append(t)
        t.verify(lambda out: w.product(0, out), inputs=(w.a[0], w.b[0]))
    except overlace.Error as why:
        raise Missing(one_line(why)) from None
    outs = [w.new(w.rows_out) for _ in range(w.sets)]

    def call(i: int) -> torch.Tensor:
        w.product(i, t.out)
        return t.reduce_scatter(out=outs[i])

    return call


def by_overlace(w: Workload) -> Call:
    if w.case.dtype != "bf16":
        raise Missing("overlace has no product of fp8")
    overlace = w.overlace()
    return lambda i: overlace.ops.gemm_rs(w.a[i], w.b[i], group=None)


COMPETITORS: dict[str, Callable[[Workload], Call]] = {
    "compute": compute,
    "torch_library": torch_library,
    "torch_async_tp": torch_async_tp,
    "striped": striped,
    "overlace": by_overlace,
    "torch_library_graph": lambda w: captured(w.rank, w.sets, torch_library(w)),
    "striped_graph": lambda w: captured(w.rank, w.sets, striped(w)),
    "overlace_graph": lambda w: captured(w.rank, w.sets, by_overlace(w)),
    "torch_wrong": lambda w: spoiled(torch_library(w)),  # torch_library with one element changed: it must be refused
}


def entrant(name: str, w: Workload) -> Entrant:
    if w.case.m % w.rank.size:
        return Entrant(name, None, "unsupported", f"M is {w.case.m}, not a multiple of {w.rank.size}")
    x = enter(name, COMPETITORS, w)
    x.launch = "graph" if name.endswith("_graph") else x.launch
    return x


def hidden(entrants: list[Entrant]) -> str:
    """What of the time that torch_library takes above the product `striped` does not."""
    us = {x.name: protocol.median(x.samples) for x in entrants if x.samples}
    if not {*NAMES[:2], "striped"} <= set(us):
        return ""
    alone, library, own = us[NAMES[0]], us[NAMES[1]], us["striped"]
    return f"  striped / torch_library {own / library:.3f}, hidden {(library - own) / (library - alone):.2f}"


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    return parsed(p, NAMES, COMPETITORS)


def chosen(o: argparse.Namespace, on_gpus: bool) -> list[Case]:
    return [c for c in SETS[o.set or ("smoke" if on_gpus else "verify")] if o.filter in f"{c.name} {c.dtype} {c.m}"]


def measure(o: argparse.Namespace, rank: Rank, case: Case) -> int:
    """How many competitors are wrong."""
    w = Workload(case, rank, o.seed)
    try:
        entrants = [entrant(name, w) for name in o.competitors.split(",")]
        wrong = Bench(o, rank).run(w, entrants)
        if rank.rank == 0 and (text := hidden(entrants)):
            print(text, flush=True)
        del entrants  # graphs end before the team
        return wrong
    finally:
        w.close()


def main() -> int:
    o = arguments()
    if torch is None:
        return without_torch(o, chosen(o, on_gpus=False))
    rank = Rank()
    wrong = 0
    try:
        o.run = rank.gather(o.run)[0]
        for case in chosen(o, rank.on_gpus):
            wrong += measure(o, rank, case)
            if rank.on_gpus:
                torch.cuda.empty_cache()
    finally:
        dist.destroy_process_group()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
