"""Host times of the Python package: eager calls, and the pass of torch.compile on a large graph.

usage: host_time.py [--device cpu|cuda] [--ranks N] [--calls 4000] [--nodes 2000] [--git COMMIT] [--json FILE]

Calls: time of the calling thread per call of the operators, through overlace.ops, through torch.ops with and without
its autograd, and of aten.mm and torch.empty beside them; what is above the same call of the C API is this package and
torch. All ways take turns, burst by burst: given are the median, the tenth and ninetieth percentile, and the median of
what a burst is above that of the C API in the same turn. `C API again` is the same call twice, so what it is above is
the noise. Page faults and switches to other threads are counted, per 1000 calls. On one CPU rank 4 x 4 matrices,
processor time; on GPUs, one rank each, bf16, bursts that the GPU has not to keep up with, the worst rank; there also
replays of a CUDA graph. One GPU is enough for what is above the C API. Pass: the best of five runs on a graph of
decoder layers, traced once. It asserts nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes as c
import dataclasses
import datetime
import json
import os
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ["NCCL_NVLS_ENABLE"] = "0"  # no multicast, read when torch is loaded
os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"

import overlace
import torch
import torch.distributed as dist
from overlace import _library
from torch.distributed import _functional_collectives as collectives
from torch.fx.experimental.proxy_tensor import make_fx

BURST = 20  # calls between two synchronisations
GPU_SIZES = (1024, 2048, 2048)  # M of all ranks, N, K


def operators() -> dict[str, dict]:
    """Arguments of the operators as the library states them, but for those that exchange rows or have fields."""
    text = c.c_char_p()
    if _library.LIBRARY.ovl_operators_json(c.byref(text)) != 0:
        raise RuntimeError(_library.LIBRARY.ovl_error_text().decode())
    sized = [op for op in json.loads(text.value) if not op["fields"]]
    stated = {op["name"]: [x for x in op["args"] if x["role"] in ("input", "output")] for op in sized}
    return {op: args for op, args in stated.items() if not any("got" in x["shape"][0] for x in args)}


def view(t: torch.Tensor) -> _library.Tensor:
    return _library.Tensor(
        t.data_ptr(), 3 if t.dtype == torch.bfloat16 else 1, 2, (c.c_int64 * 4)(*t.shape), (c.c_int64 * 4)(*t.stride())
    )


@dataclasses.dataclass
class Way:
    """One way to call something, and what its bursts took."""

    name: str
    call: Callable[[], object]
    base: str = ""  # the name of what it is compared with
    guard: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext
    per_burst: int = BURST
    samples: list[float] = dataclasses.field(default_factory=list)  # us per call
    faults: int = 0
    switches: int = 0

    def numbers(self, ways: dict[str, Way]) -> dict[str, float]:
        tenths = statistics.quantiles(self.samples, n=10)
        found = {"host_us": statistics.median(self.samples), "p10_us": tenths[0], "p90_us": tenths[-1]}
        if self.base:
            pairs = zip(self.samples, ways[self.base].samples, strict=True)
            found["above_c_us"] = statistics.median(mine - base for mine, base in pairs)
        calls = BURST * len(self.samples) / 1000
        return found | {"faults_per_1000": self.faults / calls, "switches_per_1000": self.switches / calls}


class Calls:
    """The operators by three ways, with the same operands."""

    def __init__(self, context: overlace.Context, number: int) -> None:
        self.context, self.number = context, number
        gpu, size = context.is_gpu, context.size
        m, n, k = GPU_SIZES if gpu else (4, 4, 4)
        like = {"device": "cuda" if gpu else "cpu", "dtype": torch.bfloat16 if gpu else torch.float32}
        self.shard, self.whole = torch.randn(m // size, k, **like), torch.randn(m, k, **like)
        self.b, self.dy = torch.randn(n, k, **like).t(), torch.randn(m, n, **like)
        self.keep: list[object] = []
        self.stated = operators()

    def operands(self, op: str) -> tuple[torch.Tensor, torch.Tensor]:
        a, b, _ = self.stated[op]
        return self.whole if a["shape"][0] == "M" else self.shard, self.dy if b["shape"][0] == "M" else self.b

    def of_c(self, op: str) -> Callable[[], object]:
        """Through the C API, all arguments made before."""
        a, b = self.operands(op)
        m, k, n, size = self.whole.shape[0], a.shape[1], b.shape[1], self.context.size
        names = [x["name"].encode() for x in self.stated[op]]
        out = a.new_empty({"M": m, "K": k}.get(self.stated[op][-1]["shape"][0], m // size), n)
        tensors = [view(t) for t in (a, b, out)]
        pairs = zip(names, tensors, strict=True)
        arguments = (_library.Arg * len(names))(*(_library.Arg(name=name, tensor=t) for name, t in pairs))
        dtype = tensors[1].dtype
        problem = _library.Op(name=op.encode(), m=m, n=n, k=k, ranks=size, dtype=dtype, out_dtype=dtype)
        problem.b_layout = 0 if b is self.b else 1  # a weight, or contiguous rows
        schedule = _library.handle("ovl_schedule_choose", self.context._runtime, c.byref(problem))
        self.keep += [out, arguments]
        function, name = _library.LIBRARY.ovl_call, op.encode()
        if function(self.context._channel, name, arguments, len(names), schedule) != 0:
            raise RuntimeError(_library.LIBRARY.ovl_error_text().decode())
        return lambda: function(self.context._channel, name, arguments, len(names), schedule)

    def of_torch(self, op: str) -> Callable[[], object]:
        function, values = getattr(torch.ops.overlace, op), iter(self.operands(op))
        texts = {"group": self.context.name, "reduce_op": "sum"}
        arguments: list[object] = []
        for x in function.default._schema.arguments:
            if x.kwarg_only:
                break
            value = next(values, None) if "Tensor" in str(x.type) else texts.get(x.name, 0)
            several = [] if value is None else [value]
            arguments.append(several if str(x.type).startswith("List") else value)
        return lambda: function(*arguments)

    def of_package(self, op: str) -> Callable[[], object]:
        function, group = getattr(overlace.ops, op), self.context.group
        a, b = self.operands(op)
        return lambda: function(a, b, group=group)

    def replayed(self, op: str) -> Callable[[], object]:
        """BURST calls of overlace.ops in one CUDA graph."""
        call, graph = self.of_package(op), torch.cuda.CUDAGraph()
        call()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            self.keep += [call() for _ in range(BURST)]
        self.keep.append(graph)
        return graph.replay

    def ways(self) -> list[Way]:
        like = self.whole
        found = [
            Way("aten.mm", lambda: torch.mm(self.whole, self.b)),
            Way("torch.empty", lambda: torch.empty(like.shape, dtype=like.dtype, device=like.device)),
        ]
        for op in self.stated:
            c_api = self.of_c(op)
            base = f"C API {op}"
            found += [
                Way(base, c_api),
                Way(f"C API again {op}", c_api, base),
                Way(f"torch.ops {op}", self.of_torch(op), base),
                Way(
                    f"torch.ops below autograd {op}", self.of_torch(op), base, guard=torch._C._AutoDispatchBelowAutograd
                ),
                Way(f"overlace.ops {op}", self.of_package(op), base),
            ]
            if self.context.is_gpu:
                found.append(Way(f"replay of {op}", self.replayed(op), base, per_burst=1))
        return found

    def burst(self, way: Way) -> None:
        clock = time.perf_counter if self.context.is_gpu else time.thread_time
        if self.context.is_gpu:
            torch.cuda.synchronize()
            dist.barrier()
            torch.cuda.synchronize()
        with way.guard():
            before = resource.getrusage(resource.RUSAGE_THREAD)
            begin = clock()
            for _ in range(way.per_burst):
                way.call()
            us = (clock() - begin) / BURST * 1e6
        after = resource.getrusage(resource.RUSAGE_THREAD)
        way.samples.append(us)
        way.faults += after.ru_minflt - before.ru_minflt
        way.switches += after.ru_nivcsw - before.ru_nivcsw + after.ru_nvcsw - before.ru_nvcsw

    def rows(self) -> list[dict]:
        """The numbers of each way, each of the worst rank."""
        ways, order = self.ways(), random.Random(1)  # the same order on all ranks
        with torch.no_grad():
            for turn in range(max(3, self.number // BURST) + 3):
                for way in order.sample(ways, len(ways)):
                    self.burst(way)
                if turn == 2:  # those before were to warm up
                    for way in ways:
                        way.samples, way.faults, way.switches = [], 0, 0
        by_name = {way.name: way for way in ways}
        every: list = [None] * self.context.size
        dist.all_gather_object(every, [way.numbers(by_name) for way in ways])
        return [
            {"what": way.name} | {key: max(of[i][key] for of in every) for key in every[0][i]}
            for i, way in enumerate(ways)
        ]


def decoder(layers: int, group: dist.ProcessGroup) -> Callable[..., torch.Tensor]:
    """Column- and row-parallel layers around elementwise work."""

    def run(x: torch.Tensor, *ws: torch.Tensor) -> torch.Tensor:
        for i in range(layers):
            q, k, v, o = ws[4 * (i % 2) : 4 * (i % 2) + 4]
            full = collectives.all_gather_tensor(x * (i + 1), 0, group)
            mixed = torch.tanh(full @ q.t()) * (full @ k.t()) + torch.sigmoid(full @ v.t())
            x = x + collectives.reduce_scatter_tensor((mixed * 2).relu() @ o.t(), "sum", 0, group)
        return x

    return run


def pass_times(group: dist.ProcessGroup, nodes: int) -> list[dict]:
    weights = [torch.randn(8, 8) for _ in range(8)]
    count = len(make_fx(decoder(2, group), tracing_mode="fake")(torch.randn(4, 8), *weights).graph.nodes) // 2
    module = make_fx(decoder(max(1, nodes // count), group), tracing_mode="fake")(torch.randn(4, 8), *weights)
    rows = []
    for when in ("always", "gain"):
        times = []
        for _ in range(5):
            graph = torch.fx.Graph()
            graph.graph_copy(module.graph, {})
            before = len(graph.nodes)
            begin = time.thread_time()
            overlace.compile.Pass(when=when)(graph)
            times.append((time.thread_time() - begin) * 1e3)
        found = overlace.compile.report(clear=True).candidates
        done = sum(bool(x.became) for x in found) // 5
        rows.append(
            {"when": when, "nodes": before, "collectives": len(found) // 5, "rewritten": done, "ms": min(times)}
        )
    return rows


def work(rank: int, o: argparse.Namespace, store: str) -> None:
    torch.set_num_threads(1)
    is_gpu = o.device == "cuda"
    if is_gpu:
        torch.cuda.set_device(rank)
    backend = "nccl" if is_gpu else "gloo"
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=o.ranks)
    with overlace.init(timeout_s=120) as context:
        calls = Calls(context, o.calls).rows()
        for row in calls if rank == 0 else []:
            above = f"{row['above_c_us']:+6.1f}" if "above_c_us" in row else " " * 6
            spread = f"({row['p10_us']:.1f} to {row['p90_us']:.1f})"
            counts = f"{row['faults_per_1000']:6.1f} faults, {row['switches_per_1000']:.1f} switches per 1000"
            print(f"{row['what']:33} {row['host_us']:6.1f} us {above}  {spread:16} {counts}", flush=True)
        passes = [] if is_gpu else pass_times(context.group, o.nodes)
        if rank == 0:
            for x in passes:
                done = f"{x['collectives']} collectives, {x['rewritten']} rewritten"
                print(f"pass, {x['when']:6}: {x['nodes']} nodes, {done}: {x['ms']:.1f} ms")
            if o.json:
                machine = torch.cuda.get_device_name() if is_gpu else "CPU"
                result = {"machine": machine, "ranks": o.ranks, "torch": torch.__version__, "git": o.git}
                result["date"] = f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}"
                result["command"] = " ".join(["host_time.py", *sys.argv[1:]])
                o.json.write_text(json.dumps({**result, "calls": calls, "pass": passes}, indent=1) + "\n")
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--ranks", type=int, help="GPUs; default: all")
    parser.add_argument("--calls", type=int, default=4000, help="of each way")
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--git", default="unknown")
    parser.add_argument("--json", type=Path)
    o = parser.parse_args()
    o.ranks = 1 if o.device == "cpu" else o.ranks or torch.cuda.device_count()
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(work, (o, str(Path(folder) / "store")), o.ranks)


if __name__ == "__main__":
    main()
