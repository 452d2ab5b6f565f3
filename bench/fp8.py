"""ag_gemm, gemm_rs and gemm_ar of e4m3 with scales beside PyTorch's, by the protocol of bench_dense; results are bf16.

    torchrun --nproc-per-node 2 bench/fp8.py --set canonical --scales rows --out records.jsonl
torch_library: torch._scaled_mm and NCCL's collective; torch_async_tp: symm_mem.fused_all_gather_scaled_matmul and
fused_scaled_matmul_reduce_scatter; auto, library and families by name: overlace.ops.ag_gemm_scaled and the others;
bf16_auto, bf16_library: overlace's operators of the operands in bf16, whose results are those of the quantised numbers.
PYTHONPATH names the package. All are verified before and after they are timed.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import torch_competitors as wide  # noqa: E402  (before torch: it switches multicast off)
from torch_entrants import Bench, Call, Entrant, Missing, enter, parsed, relative, spoiled, without_torch  # noqa: E402

try:
    import torch
    import torch.distributed as dist
except ImportError:
    torch = None  # type: ignore[assignment]
else:
    from torch_rank import Rank

NAMES = ("torch_library", "torch_async_tp", "library", "auto", "bf16_library", "bf16_auto")
FAMILIES = ("serial", "hetero_unfused_1d:4", "hetero_fused_1d:4", "uniform_fused_1d:4", "uniform_fused_2d:4")
LARGEST = 448.0  # of e4m3
SPREAD = 4.5  # standard deviations from zero to the largest number, beyond which numbers are clamped


@dataclasses.dataclass(frozen=True)
class Case(wide.Case):
    scales: str = "tensor"

    def fields(self) -> dict:
        fields = super().fields() | {"flags": []}  # all take turns in one process
        fields["case"]["scales"] = self.scales
        return fields

    def title(self) -> str:
        return f"{super().title()}  scales of {self.scales}"


class Workload(wide.Workload):
    """Operands in e4m3 and their scales; `a` and `b` are what they stand for, in bf16."""

    def __init__(self, case: Case, rank: Rank, seed: int) -> None:
        super().__init__(dataclasses.replace(case, dtype="bf16"), rank, seed)
        self.case = case
        self.oracle = f"fp64 of the quantised operands, {wide.SAMPLED} rows x {wide.SAMPLED} columns"
        mine = rank.rank * self.rows_a if self.is_ag else 0
        self.a8, self.a_scale = self.quantised(self.a[0], mine)
        b8, self.b_scale = self.quantised(self.b[0].t(), 0)
        self.b_scale = self.b_scale if case.scales == "tensor" else self.b_scale.t()
        self.a8s = [self.a8.clone() for _ in range(self.sets)]
        self.b8s = [b8.clone().t() for _ in range(self.sets)]

    def quantised(self, t: torch.Tensor, first: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Scales are powers of two, so that bf16 holds what operands stand for; those of rows differ by row."""
        largest = SPREAD * t.float().square().mean().sqrt() if t.numel() else torch.ones((), device=t.device)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        scale = torch.exp2(torch.ceil(torch.log2(largest / LARGEST))).reshape(1)
        if self.case.scales == "rows":
            at = torch.arange(first, first + t.shape[0], device=t.device)
            scale = scale * torch.exp2((at % 3).float())[:, None]
        return (t.float() / scale).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn), scale

    def operands(self) -> list[torch.Tensor]:
        return [self.a[0], self.b[0].t()]  # before they were quantised: eight bits hold less than what is asked for

    def wide_operands(self) -> tuple[torch.Tensor, torch.Tensor]:
        return (self.a8.float() * self.a_scale), (self.b8s[0].float() * self.b_scale)

    def errors(self, out: torch.Tensor, _name: str) -> tuple[float, float]:
        """Errors of sampled rows and columns; ranks send each other those of their operands."""
        random = torch.Generator().manual_seed(self.seed + 17)
        rows = torch.randint(out.shape[0], (wide.SAMPLED,), generator=random).to(out.device)
        cols = torch.randint(out.shape[1], (wide.SAMPLED,), generator=random).to(out.device)
        a, b = self.wide_operands()
        size, rank = self.rank.size, self.rank.rank
        if self.is_ag:
            whole = [torch.empty_like(a) for _ in range(size)]
            dist.all_gather(whole, a.contiguous())
            want = torch.cat(whole)[rows].double() @ b[:, cols].double()
            return relative(out[rows][:, cols], want)
        want = torch.empty(0)
        for owner in range(size):  # the sampled rows of each owner, summed over all
            first = owner * self.rows_out if self.case.rows == "scattered" else 0
            part = a[first + rows].double() @ b[:, cols].double()
            dist.all_reduce(part)
            want = part if owner == rank else want
        return relative(out[rows][:, cols], want)


def scaled_mm(w: Workload, a: torch.Tensor, b: torch.Tensor, a_scale: torch.Tensor) -> torch.Tensor:
    return torch._scaled_mm(a, b, scale_a=a_scale, scale_b=w.b_scale, out_dtype=torch.bfloat16)


def torch_library(w: Workload) -> Call:
    size, case = w.rank.size, w.case
    if case.rows == "gathered":
        whole = torch.empty(case.m, case.k, dtype=torch.float8_e4m3fn, device=w.rank.device)
        scales = w.a_scale if case.scales == "tensor" else torch.empty(case.m, 1, device=w.rank.device)

        def gather(i: int) -> torch.Tensor:
            dist.all_gather_into_tensor(whole.view(torch.uint8), w.a8s[i].view(torch.uint8))
            if case.scales == "rows":
                dist.all_gather_into_tensor(scales, w.a_scale)
            return scaled_mm(w, whole, w.b8s[i], scales)

        return gather
    outs = [torch.empty(w.rows_out, case.n, dtype=torch.bfloat16, device=w.rank.device) for _ in range(w.sets)]

    def scatter(i: int) -> torch.Tensor:
        dist.reduce_scatter_tensor(outs[i], scaled_mm(w, w.a8s[i], w.b8s[i], w.a_scale))
        return outs[i]

    def reduce(i: int) -> torch.Tensor:
        out = scaled_mm(w, w.a8s[i], w.b8s[i], w.a_scale)
        dist.all_reduce(out)
        return out

    return scatter if case.m // size == w.rows_out and case.rows == "scattered" else reduce


def torch_async_tp(w: Workload) -> Call:
    wide.needs_gpus(w)
    import torch.distributed._symmetric_memory  # registers the operators

    ops, group, case = torch.ops.symm_mem, w.rank.group, w.case
    if case.rows == "gathered":
        return lambda i: ops.fused_all_gather_scaled_matmul(
            w.a8s[i], [w.b8s[i]], w.a_scale, [w.b_scale], 0, group, [None], [None], [torch.bfloat16], [False]
        )[1][0]
    if case.rows == "scattered":
        return lambda i: ops.fused_scaled_matmul_reduce_scatter(
            w.a8s[i], w.b8s[i], w.a_scale, w.b_scale, "sum", 0, 0, group, [case.m, case.n], out_dtype=torch.bfloat16
        )
    raise Missing("async-TP has no GEMM and AllReduce")


def overlace_scaled(w: Workload, plan: str) -> Call:
    from overlace import ops

    function = getattr(ops, f"{w.case.op}_scaled")
    return lambda i: function(w.a8s[i], w.a_scale, w.b8s[i], w.b_scale, group=None, plan=plan)


def overlace_wide(w: Workload, plan: str) -> Call:
    """The same sums: bf16 holds the scaled numbers."""
    from overlace import ops

    a, b = w.wide_operands()
    pairs = [(a.bfloat16(), b.t().contiguous().bfloat16().t()) for _ in range(w.sets)]
    function = getattr(ops, w.case.op)
    return lambda i: function(*pairs[i], group=None, plan=plan)


COMPETITORS: dict[str, Callable[[Workload], Call]] = {
    "torch_library": torch_library,
    "torch_async_tp": torch_async_tp,
    "auto": lambda w: overlace_scaled(w, ""),
    **{plan: lambda w, plan=plan: overlace_scaled(w, plan) for plan in ("library", *FAMILIES)},
    "wrong": lambda w: spoiled(overlace_scaled(w, "library")),  # one element changed: it must be refused
    "bf16_auto": lambda w: overlace_wide(w, ""),
    "bf16_library": lambda w: overlace_wide(w, "library"),
}


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    p.add_argument("--cases", type=Path, default=wide.programs.CASES)
    p.add_argument("--ops", default=",".join(wide.records.OPERATORS))
    p.add_argument("--scales", choices=("tensor", "rows"), default="tensor")
    return parsed(p, NAMES, COMPETITORS)


def takes_scales(op: str) -> bool:
    from overlace import ops

    return hasattr(ops, f"{op}_scaled")


def chosen(o: argparse.Namespace, on_gpus: bool) -> list[Case]:
    found = [c for c in wide.chosen(o, on_gpus) if takes_scales(c.op) and c.k % 16 == 0 and c.n % 16 == 0]
    return [Case(**{**dataclasses.asdict(c), "dtype": "e4m3"}, scales=o.scales) for c in found]


def entrant(name: str, w: Workload) -> Entrant:
    if w.case.m % w.rank.size:
        return Entrant(name, None, "unsupported", f"M is {w.case.m}, not a multiple of {w.rank.size}")
    return enter(name, COMPETITORS, w)


def main() -> int:
    o = arguments()
    if torch is None:
        return without_torch(o, wide.chosen(o, on_gpus=False))
    rank = Rank()
    wrong = 0
    try:
        import overlace

        o.run = rank.gather(o.run)[0]
        bench = Bench(o, rank)
        with overlace.init():
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
