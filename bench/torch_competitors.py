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
import time
from collections.abc import Callable
from pathlib import Path

# Multicast objects are never made, neither by symmetric memory nor by NCCL; both are read when torch is loaded.
os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
os.environ["NCCL_NVLS_ENABLE"] = "0"

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "driver"))

import programs  # noqa: E402
import protocol  # noqa: E402
import records  # noqa: E402
import schema  # noqa: E402

try:
    import torch
    import torch.distributed as dist
    from torch_rank import Bursts, Clock, Rank, clocks_of, normal
except ImportError:
    torch = None  # type: ignore[assignment]

NAMES = programs.TORCH
ROTATED_BYTES = 2 * 60_000_000  # twice the L2 of an H200
SAMPLED = 64  # rows, and columns, of the check against fp64
ULP = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp32": 2.0**-23}
LARGEST_RMS_ERROR = 0.01
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


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    add = p.add_argument
    add("--cases", type=Path, default=programs.CASES)
    add("--set", default="")
    add("--filter", default="")
    add("--ops", default=",".join(records.OPERATORS))
    add("--competitors", default=",".join(NAMES))
    add("--repetitions", type=int, default=15)
    add("--burst-ms", type=float, default=50)
    add("--warm-s", type=float, default=1)
    add("--settle-s", type=float, default=5)
    add("--seed", type=int, default=1)
    add("--verify-only", action="store_true")
    add("--git", default="unknown")
    add("--run", default=programs.now())
    add("--out", type=Path)
    return p.parse_args()


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

    def refusal(self) -> str:
        for operand in (self.a[0], self.b[0].t()):
            values = operand.reshape(-1)[:4096].float().cpu()
            bits = [x.view(torch.int32).bitwise_right_shift(16).tolist() for x in (values, values.diff())]
            if why := protocol.low_entropy(*bits):
                return why
        return ""

    def errors(self, out: torch.Tensor) -> tuple[float, float]:
        """Largest and root-mean-square error of sampled rows and columns, of the rms of what is wanted."""
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
        error = out[rows][:, cols].double() - want
        rms = want.square().mean().sqrt()
        largest = error.abs().max() / rms
        if not bool(torch.isfinite(largest)):
            return math.inf, math.inf
        return float(largest), float(error.square().mean().sqrt() / rms)

    def flops(self) -> float:
        return 2.0 * self.case.m * self.case.n * self.case.k


Call = Callable[[int], "torch.Tensor"]


class Missing(Exception):
    """Why a competitor cannot run here; `status` as in records."""

    def __init__(self, why: str, status: str = "unsupported") -> None:
        super().__init__(why)
        self.status = status


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
    """Of the configurations of a competitor, by short bursts; those that cannot run are left out by all ranks."""
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


def torch_wrong(w: Workload) -> Call:
    right = torch_library(w)

    def wrong(i: int) -> torch.Tensor:
        out = right(i)
        out[-1, -1] += 50
        return out

    return wrong


COMPETITORS: dict[str, Callable[[Workload], Call]] = {
    "torch_library": torch_library,
    "torch_async_tp": torch_async_tp,
    "torch_one_shot": lambda w: symmetric_all_reduce(w, 1),
    "torch_two_shot": lambda w: symmetric_all_reduce(w, 2),
    "quack": quack,
    "torch_wrong": torch_wrong,  # torch_library with one element changed: it must be refused
}


@dataclasses.dataclass
class Entrant:
    name: str
    call: Call | None = None
    status: str = "ok"
    reason: str = ""
    max_error: float = 0.0
    rms_error: float = 0.0
    rms_error_after: float = 0.0
    same_bits: bool = False
    calls: int = 20
    samples: list[float] = dataclasses.field(default_factory=list)
    host: list[float] = dataclasses.field(default_factory=list)
    clocks: list[dict | None] = dataclasses.field(default_factory=list)


class Bench:
    def __init__(self, o: argparse.Namespace, rank: Rank) -> None:
        self.o, self.rank, self.bursts = o, rank, Bursts(rank)
        self.least_calls = 20 if rank.on_gpus else 3
        self.unsettled = False

    def run(self, case: Case) -> int:
        workload = Workload(case, self.rank, self.o.seed)
        if not self.o.verify_only:
            why = workload.refusal()
            if self.rank.worst(float(bool(why)))[0] > 0:
                raise SystemExit(f"refused for timing: {why or 'the data of another rank'}")
        entrants = [self.enter(name, workload) for name in self.o.competitors.split(",")]
        self.verify(entrants, workload, is_after=False)
        if not self.o.verify_only:
            self.warm_up(entrants, workload)
            self.measure(entrants, workload)
            self.verify(entrants, workload, is_after=True)
        self.report(case, workload, entrants)
        return sum(x.status == "wrong" for x in entrants)

    def enter(self, name: str, workload: Workload) -> Entrant:
        if name not in COMPETITORS:
            raise SystemExit(f"there is no competitor {name}; wanted some of {', '.join(COMPETITORS)}")
        if workload.case.m % self.rank.size and workload.case.rows != "reduced":
            return Entrant(name, None, "unsupported", f"M is {workload.case.m}, not a multiple of {self.rank.size}")
        try:
            return Entrant(name, COMPETITORS[name](workload))
        except Missing as why:
            return Entrant(name, None, why.status, str(why))
        except (RuntimeError, AttributeError, NotImplementedError, ImportError) as why:
            return Entrant(name, None, "unsupported", one_line(why))

    def verify(self, entrants: list[Entrant], w: Workload, is_after: bool) -> None:
        """Twice: what the first call left is overwritten, so that the second cannot pass with old results."""
        base: Entrant | None = None
        reference = None
        for x in entrants:
            if x.status != "ok" or x.call is None:
                continue
            why, out = "", None
            try:
                x.call(0).fill_(math.nan)
                self.rank.synchronize()
                out = x.call(0)
                self.rank.synchronize()
            except (RuntimeError, NotImplementedError) as error:
                why = one_line(error)
            if self.rank.worst(float(bool(why)))[0] > 0:
                x.status, x.reason = "unsupported", why or "another rank could not run it"
                continue
            assert out is not None
            largest, rms = w.errors(out)
            base = base or x
            if base is x:
                reference = out.clone()
            base_rms, base_largest = (rms, largest) if base is x else (base.rms_error, base.max_error)
            ulp = ULP[w.case.dtype]
            good = rms <= 2 * base_rms + ulp / 16 and largest <= 2 * base_largest + 4 * ulp and rms < LARGEST_RMS_ERROR
            assert reference is not None
            difference = (out.float() - reference.float()).abs().max().item() if out.numel() else 0.0
            scale = reference.float().square().mean().sqrt().item() if out.numel() else 0.0
            # NaN fails every comparison, so a good difference is asked for.
            good = good and difference <= max(16 * ulp, 8 * base_largest) * scale
            if not is_after:
                x.max_error, x.rms_error = largest, rms
                x.same_bits = base is not x and bool(torch.equal(out, reference))
            x.rms_error_after = rms if is_after else 0.0
            if self.rank.worst(float(not good))[0] > 0:
                x.status, x.samples = "wrong", []
                x.reason = f"rms error {rms:.3g}, that of {base.name} {base_rms:.3g}; differs by {difference:.3g}"

    def burst(self, x: Entrant, w: Workload, calls: int) -> tuple[float, float]:
        assert x.call is not None
        call = x.call
        return self.bursts.burst(lambda i: call(i % w.sets), calls)

    def warm_up(self, entrants: list[Entrant], w: Workload) -> None:
        begin = time.monotonic()
        mhz: list[float] = []
        while True:
            for x in entrants:
                if x.status == "ok":
                    sample, _ = self.burst(x, w, self.least_calls)
                    x.calls = protocol.burst_calls(self.o.burst_ms * 1e3, sample, self.least_calls, 2000)
            clocks = self.sample()
            mhz.append(clocks["sm_mhz"] if clocks else 0.0)
            settled = clocks is None or protocol.is_settled(mhz)
            spent = time.monotonic() - begin
            is_late = spent > self.o.warm_s + self.o.settle_s
            more, unsettled = self.rank.worst(
                float(spent < self.o.warm_s or (not settled and not is_late)), float(not settled)
            )
            if not more:
                self.unsettled = bool(unsettled)
                return

    def measure(self, entrants: list[Entrant], w: Workload) -> None:
        for _, x in protocol.interleaved(entrants, self.o.repetitions, self.o.seed):
            if x.status != "ok":
                continue
            sample, host = self.burst(x, w, x.calls)
            x.samples.append(sample)
            x.host.append(host)
            x.clocks.append(self.sample())

    def sample(self) -> dict | None:
        return self.rank.nvml.sample() if self.rank.nvml else None

    def report(self, case: Case, w: Workload, entrants: list[Entrant]) -> None:
        lines = []
        for x in entrants:
            clocks = self.rank.gather(clocks_of(x.clocks)) if x.samples else []
            lines.append(schema.with_id(self.record(case, w, x, clocks)) + "\n")
        if self.rank.rank != 0:
            return
        if self.o.out:
            with self.o.out.open("a") as file:
                file.writelines(lines)
        print(f"{case.op} {case.name}  M {case.m}  N {case.n}  K {case.k}  {case.dtype}  {self.rank.size} ranks")
        for x in entrants:
            shown = (
                f"{protocol.median(x.samples):.1f} us" if x.samples else "verified" if x.status == "ok" else x.status
            )
            print(f"  {x.name:<26} {shown}  {x.reason}", flush=True)

    def record(self, case: Case, w: Workload, x: Entrant, clocks: list[dict]) -> dict:
        row = head(self.o, case, x, self.rank.machine(), self.rank.size)
        row["method"].update(n=x.calls, bytes_rotated=w.bytes_rotated)
        row["flops"] = w.flops()
        if x.rms_error > 0:
            row["verify"] = {
                "ok": x.status == "ok",
                "oracle": f"fp64, {SAMPLED} rows x {SAMPLED} columns, and every element against {NAMES[0]}",
                "rms_error": x.rms_error,
                "max_error": x.max_error,
                "rms_error_after": x.rms_error_after,
            }
        if x.samples:
            row["time_us"] = protocol.time_fields(x.samples)
            row["host_us"] = protocol.median(x.host)
            row["clocks"] = clocks
            if not all(clocks):
                row["flags"].append("unattested")
            if self.unsettled:
                row["flags"].append("unsettled")
            if self.rank.on_gpus and row["host_us"] > 0.9 * row["time_us"]["median"]:
                row["flags"].append("host_bound")
        return row


def head(o: argparse.Namespace, case: Case, x: Entrant, machine: dict, size: int) -> dict:
    command = " ".join(["torch_competitors.py", *sys.argv[1:]])
    return {
        **programs.torch_head(o, x, machine, size, command),
        "workload": case.op,
        "case": {"name": case.name, "m": case.m, "n": case.n, "k": case.k},
        "dtype": case.dtype,
        # Its own process: what is measured here and by bench_dense is interleaved with itself only.
        "flags": ["other_process"],
    }


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


def without_torch(o: argparse.Namespace) -> int:
    """Rows that say why nothing was measured."""
    if int(os.environ.get("RANK", 0)) != 0:
        return 0
    size = int(os.environ.get("WORLD_SIZE", 1))
    for case in chosen(o, on_gpus=False):
        for name in o.competitors.split(","):
            row = head(o, case, Entrant(name, None, "absent", "PyTorch is not installed"), {"name": "unknown"}, size)
            if o.out:
                with o.out.open("a") as file:
                    file.write(schema.with_id(row) + "\n")
    print("PyTorch is not installed: its competitors are absent")
    return 0


def main() -> int:
    o = arguments()
    if torch is None:
        return without_torch(o)
    rank = Rank()
    wrong = 0
    try:
        o.run = rank.gather(o.run)[0]
        bench = Bench(o, rank)
        for case in chosen(o, rank.on_gpus):
            wrong += bench.run(case)
            if rank.on_gpus:
                torch.cuda.empty_cache()
    finally:
        dist.destroy_process_group()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
