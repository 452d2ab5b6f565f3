"""Host times of the Python package, on one CPU rank: eager calls, and the pass of torch.compile on a large graph.

usage: host_time.py [--calls 2000] [--nodes 2000]

Calls: median time of the calling thread per call of the operators on 4 x 4 matrices, through overlace.ops, through
torch.ops, and of aten.mm beside them; what is above the call of the C API is this package and torch. Pass: the best of
five runs on a graph of decoder layers that was traced once. It asserts nothing.
"""

from __future__ import annotations

import argparse
import ctypes as c
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import overlace
import torch
import torch.distributed as dist
from overlace import _library
from torch.distributed import _functional_collectives as collectives
from torch.fx.experimental.proxy_tensor import make_fx


class Tensor(c.Structure):
    """ovl_tensor."""

    _fields_ = (
        ("data", c.c_void_p),
        ("dtype", c.c_int32),
        ("ndim", c.c_int32),
        ("sizes", c.c_int64 * 4),
        ("strides", c.c_int64 * 4),
    )


class GemmArArgs(_library._Sized):
    _fields_ = (("struct_size", c.c_size_t), ("a", Tensor), ("b", Tensor), ("out", Tensor), ("bias", Tensor))


def median_us(call: Callable[[], object], calls: int) -> float:
    samples = []
    for _ in range(20):
        begin = time.thread_time()
        for _ in range(calls // 20):
            call()
        samples.append((time.thread_time() - begin) / (calls // 20) * 1e6)
    return statistics.median(samples)


def view(t: torch.Tensor) -> Tensor:
    return Tensor(t.data_ptr(), 1, 2, (c.c_int64 * 4)(*t.shape), (c.c_int64 * 4)(*t.stride()))


def c_call(context: overlace.Context, a: torch.Tensor, b: torch.Tensor) -> Callable[[], object]:
    """gemm_ar through the C API, all arguments made before."""
    out = torch.empty(a.shape[0], b.shape[1])
    team = _library.handle("ovl_runtime_world", context._runtime)
    channel = _library.handle("ovl_channel_open", team, None, 0)
    problem = _library.Op(name=b"gemm_ar", m=a.shape[0], n=b.shape[1], k=a.shape[1], ranks=1, dtype=1, out_dtype=1)
    schedule = _library.handle("ovl_schedule_choose", c.byref(problem), c.byref(context.hardware))
    arguments = GemmArArgs(a=view(a), b=view(b.t().contiguous().t()), out=view(out))
    keep = (a, b, out, arguments)
    return lambda: _library.LIBRARY.ovl_gemm_ar(channel, c.byref(keep[3]), schedule)


def calls(context: overlace.Context, number: int) -> None:
    a, w = torch.randn(4, 4), torch.randn(4, 4)
    b, ops, name = w.t(), torch.ops.overlace, context.name
    base = median_us(c_call(context, a, b), number)
    print(f"{'C API, gemm_ar':34} {base:7.1f} us")
    for label, call in (
        ("aten.mm", lambda: torch.mm(a, b)),
        ("torch.ops gemm_ar", lambda: ops.gemm_ar(a, b, None, "sum", name)),
        ("torch.ops gemm_rs", lambda: ops.gemm_rs(a, b, None, "sum", 0, name)),
        ("torch.ops ag_gemm", lambda: ops.ag_gemm(a, [b], [], 0, name)),
        ("overlace.ops gemm_ar", lambda: overlace.ops.gemm_ar(a, b, group=context.group)),
        ("overlace.ops gemm_rs", lambda: overlace.ops.gemm_rs(a, b, group=context.group)),
        ("overlace.ops ag_gemm", lambda: overlace.ops.ag_gemm(a, b, group=context.group)),
    ):
        with torch.no_grad():
            us = median_us(call, number)
        print(f"{label:34} {us:7.1f} us  {us - base:+6.1f}")


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


def compile_pass(group: dist.ProcessGroup, nodes: int) -> None:
    weights = [torch.randn(8, 8) for _ in range(8)]
    count = len(make_fx(decoder(2, group), tracing_mode="fake")(torch.randn(4, 8), *weights).graph.nodes) // 2
    module = make_fx(decoder(max(1, nodes // count), group), tracing_mode="fake")(torch.randn(4, 8), *weights)
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
        print(f"pass, {when:6}: {before} nodes, {len(found) // 5} collectives, {done} rewritten: {min(times):.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--nodes", type=int, default=2000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder) / 'store'}", rank=0, world_size=1)
        with overlace.init() as context:
            calls(context, arguments.calls)
            compile_pass(context.group, arguments.nodes)
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
