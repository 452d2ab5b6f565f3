"""A decoder block through PyTorch, forward and training step: overlace's layers and pass beside NCCL and async-TP.

    python3 bench/torch_block.py --ranks 4 --tokens 8192,1024 --out records.jsonl
starts the ranks itself (with torchrun's variables it is one of them). Versions of one block, on the same parameters:
nccl: eager, all_gather_into_tensor and reduce_scatter_tensor; overlace: eager, layers of overlace.nn; nccl_compiled:
torch.compile and functional collectives; torch_async_tp: with Inductor's _micro_pipeline_tp too; overlace_compiled:
with overlace.compile.enable() instead. Each is verified against fp64 before it is timed, and again afterwards; then the
rows of this direction are written. One that fails or does not end in time is `absent` with the reason, and the ranks
start again without it, for what is not written yet. On CPUs nothing of Inductor runs.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

# Multicast objects are never made, neither by symmetric memory nor by NCCL; both are read when torch is loaded.
os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
os.environ["NCCL_NVLS_ENABLE"] = "0"

sys.path.insert(0, str(Path(__file__).resolve().parent / "driver"))

import programs
import protocol
from torch_block_records import CHECKS, COMMAND, DIRECTIONS, NAMES, Error, Version, head, write

EXIT_FAILED = 5  # of a rank that wrote down why
WRITTEN = ".written"  # behind a direction: the mark of its rows
OVERLACE_TIMEOUT_S = 90  # shorter than a stage: what hangs is named by the runtime


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    add = p.add_argument
    add("--ranks", type=int, default=2)
    add("--shape", default="llama-3.1-70b", help="llama-3.1-70b or tiny")
    add("--tokens", default="8192,1024", help="of all ranks")
    add("--sequence", type=int, default=4096, help="longest; attention stays within")
    add("--competitors", default=",".join(NAMES))
    add("--directions", default=",".join(DIRECTIONS))
    add("--repetitions", type=int, default=15)
    add("--burst-ms", type=float, default=100)
    add("--warm-s", type=float, default=1)
    add("--heap-bytes", type=int, default=2 << 30, help="symmetric memory of overlace on each GPU")
    add("--seed", type=int, default=1)
    add("--verify-only", action="store_true")
    add("--stage-timeout-s", type=float, default=180)
    add("--timeout-s", type=float, default=1200, help="of one number of tokens, all versions and starts")
    add("--absent", default="{}", help=argparse.SUPPRESS)
    add("--failures", type=Path, help=argparse.SUPPRESS)
    add("--git", default="unknown")
    add("--run", default=programs.now())
    add("--out", type=Path)
    return p.parse_args()


def one_line(error: object) -> str:
    return " ".join(str(error).split())[:300]


# ---- a rank ----


def spot(t: object) -> object:
    """50 in one place of the result, nothing elsewhere."""
    found = t.detach() * 0
    found[-1, -1] = 50
    return found


def stuck_at_last(module: Callable) -> Callable:
    """Never ends its sixth forward with a backward: after the first and two to verify, twice, a step is to be timed."""
    count = itertools.count(1)

    def call(t: object) -> object:
        import torch

        if torch.is_grad_enabled() and next(count) > 5:
            time.sleep(1e6)
        return module(t)

    return call


class Bench:
    """One number of tokens."""

    def __init__(self, o: argparse.Namespace, rank: object, tokens: int) -> None:
        import torch
        import torch_block_model as model
        from torch_rank import Bursts

        self.o, self.rank, self.tokens, self.torch, self.model = o, rank, tokens, torch, model
        self.bursts = Bursts(rank)
        self.dtype = "bf16" if rank.on_gpus else "fp32"
        dtype = torch.bfloat16 if rank.on_gpus else torch.float32
        self.sequence = min(o.sequence, tokens)
        with self.stage("", "data"):
            self.parts = model.Parts(model.SHAPES[o.shape], tokens, self.sequence, dtype, rank.device, o.seed)
        self.context, self.team_bytes = None, 0
        absent = json.loads(o.absent)
        self.versions = [
            Version(name, "absent", absent[name]) if name in absent else Version(name)
            for name in o.competitors.split(",")
        ]

    @contextlib.contextmanager
    def stage(self, name: str, what: str) -> Iterator[None]:
        """Ends this process where it raises or takes too long: the others cannot go on with this version either."""
        late = f"{what} did not end within {self.o.stage_timeout_s:g} s"
        timer = threading.Timer(self.o.stage_timeout_s, self.fail, (name, late))
        timer.daemon = True
        timer.start()
        self.leave(name, f"{what}: the process ended", math.inf)  # what stays if it does
        try:
            yield
        except Exception as error:
            self.fail(name, f"{what}: {type(error).__name__}: {one_line(error)}")
        finally:
            timer.cancel()
        self.leave("", "between two stages", math.inf)

    def leave(self, name: str, why: str, when: float) -> None:
        """Tells the process that started the ranks; times that are finite are failures."""
        if self.o.failures:
            text = json.dumps({"name": name, "why": why, "rank": self.rank.rank, "time": when})
            whole = self.o.failures / f"{self.rank.rank}.json"
            part = whole.with_suffix(".part")  # a rank may be killed while it writes
            part.write_text(text)
            part.replace(whole)

    def fail(self, name: str, why: str) -> None:
        self.leave(name, why, time.time())
        print(f"rank {self.rank.rank}, {name or 'all'}: {why}", file=sys.stderr, flush=True)
        os._exit(EXIT_FAILED)  # collectives that others will not join cannot be left in any other way

    def run(self) -> int:
        with self.stage("", "oracle"):
            self.wanted = self.model.oracle(self.parts)
            self.rank.synchronize()
        for x in self.running():
            with self.stage(x.name, "preparation"):
                self.prepare(x)
            if x.status == "ok":
                with self.stage(x.name, "first forward and backward"):
                    before = self.outside_bytes()
                    self.first(x)
                    grown = self.rank.worst(float(self.outside_bytes() - before))[0]
                x.workspace_bytes = int(max(grown, 0)) + (self.team_bytes if x.name.startswith("overlace") else 0)
        self.verify(is_after=False)
        for direction in self.o.directions.split(","):
            if not self.o.verify_only:
                self.time(direction)
                self.verify(is_after=True)
            self.report(direction)
        if self.context is not None:
            with self.stage("overlace", "close"):
                self.context.close()
        return sum(x.status == "wrong" for x in self.versions)

    def running(self) -> list[Version]:
        return [x for x in self.versions if x.status == "ok"]

    # -- making them --

    def prepare(self, x: Version) -> None:
        if x.name.startswith("overlace") and (why := self.join()):
            x.status, x.reason = "absent", why
        elif x.name == "torch_async_tp" and not self.rank.on_gpus:
            x.status, x.reason = "unsupported", "symmetric memory needs a GPU per rank"
        elif x.name == "overlace":
            x.module = x.call = self.model.with_modules(self.parts)
        elif x.name in ("nccl", *CHECKS):
            module = x.module = self.model.plain(self.parts)
            spoiled = {
                "torch_wrong": lambda t: module(t) + spot(t),
                "torch_stuck": lambda _: time.sleep(1e6),
                "torch_late": stuck_at_last(module),
                "torch_killed": lambda _: os.kill(os.getpid(), signal.SIGKILL),
            }
            x.call = spoiled.get(x.name, module)
        else:
            x.module = self.model.plain(self.parts, self.model.FunctionalColumn, self.model.FunctionalRow)
            x.call = self.compiled(x)

    def join(self) -> str:
        """Makes overlace's team; why not."""
        if self.context is None:
            try:
                import overlace
            except ImportError as why:
                return one_line(why)
            if overlace._WHY_NO_TORCH:
                return overlace._WHY_NO_TORCH
            heap = self.o.heap_bytes if self.rank.on_gpus else "auto"
            before = self.outside_bytes()
            self.context = overlace.init(timeout_s=OVERLACE_TIMEOUT_S, heap_bytes=heap)
            self.team_bytes = self.outside_bytes() - before
        return ""

    def outside_bytes(self) -> int:
        """Memory of this GPU that is not in torch's allocator: heaps, symmetric memory, workspaces of libraries."""
        if not self.rank.on_gpus:
            return 0
        self.rank.synchronize()
        free, total = self.torch.cuda.mem_get_info()
        return total - free - self.torch.cuda.memory_reserved()

    def compiled(self, x: Version) -> Callable:
        """With options or a backend of its own, so that no version takes another's code."""
        torch = self.torch
        if not self.rank.on_gpus:
            backend = functools.partial(torch._dynamo.lookup_backend("aot_eager"))
            if x.name == "overlace_compiled":
                from overlace.compile import aot_eager

                backend = functools.partial(aot_eager)
            return torch.compile(x.module, backend=backend, fullgraph=True, dynamic=False)
        import torch_block_passes

        x.counter = torch_block_passes.Counter()
        options = {"post_grad_custom_post_pass": x.counter}
        if x.name == "torch_async_tp":
            from torch.distributed._symmetric_memory import enable_symm_mem_for_group

            enable_symm_mem_for_group(self.rank.group)
            options["_micro_pipeline_tp"] = True
        return torch.compile(x.module, fullgraph=True, dynamic=False, options=options)

    def first(self, x: Version) -> None:
        """Compiles what is to be compiled, forward alone and with backward."""
        enabled = contextlib.nullcontext()
        if x.name == "overlace_compiled":
            import overlace

            enabled = overlace.compile.enable(when="gain" if self.rank.on_gpus else "always")
        with enabled:
            for direction in DIRECTIONS:
                self.work(x, direction)
        self.rank.synchronize()
        if x.name == "overlace_compiled":
            report = overlace.compile.report(clear=True)
            left = [f"{c.collective}: {c.reason}" for c in report.candidates if not c.became]
            x.reason = f"{len(report.candidates) - len(left)} of {len(report.candidates)} collectives rewritten"
            x.reason += "; " + "; ".join(left) if left else ""
        elif hasattr(x, "counter"):
            x.reason = str(x.counter)
            if x.name == "torch_async_tp" and not x.counter.fused():
                x.status, x.reason = "unsupported", f"nothing was fused: {x.counter}"

    # -- verifying --

    def verify(self, is_after: bool) -> None:
        """On other data first, so that what a call left cannot pass for its result."""
        base: Version | None = None
        for x in self.running():
            with self.stage(x.name, "verification"):
                with self.torch.no_grad():
                    x.call(self.parts.other_x)
                found = self.model.Result.of(x.call, x.module, self.parts)
                self.rank.synchronize()
                errors = {name: Error.of(found[name], self.wanted[name]) for name in self.wanted}
                base = base or x
                of_base = base.errors or errors  # after timing those of before, of the first version too
                bad = [n for n, e in errors.items() if not e.is_good(of_base[n], self.dtype)]
                texts = self.rank.gather(", ".join(f"{n} {errors[n]} ({of_base[n]})" for n in bad))
            if is_after:
                x.rms_after = max(e.rms for e in errors.values())
            else:
                x.errors = errors
            if any(texts):
                where = "; ".join(f"rank {i}: {text}" for i, text in enumerate(texts) if text)
                x.status, x.reason = "wrong", f"rms and largest errors (those of {base.name}): {where}"[:600]
                x.samples.clear()

    # -- timing --

    def work(self, x: Version, direction: str) -> None:
        if direction == "step":
            self.model.step(x.call, x.module, self.parts)
        else:
            with self.torch.no_grad():
                x.call(self.parts.x)

    def burst(self, x: Version, direction: str, calls: int) -> tuple[float, float]:
        return self.bursts.burst(lambda _: self.work(x, direction), calls)

    def time(self, direction: str) -> None:
        begin = time.monotonic()
        is_warm = False
        while not is_warm:
            for x in self.running():
                with self.stage(x.name, f"warm-up, {direction}"):
                    us, _ = self.burst(x, direction, 5)
                    x.calls[direction] = protocol.burst_calls(self.o.burst_ms * 1e3, us, 5, 500)
            with self.stage(self.versions[0].name, f"warm-up, {direction}"):
                is_warm = self.rank.worst(float(time.monotonic() - begin < self.o.warm_s))[0] == 0
        for x in self.running():
            self.measure_memory(x, direction)
        for _, x in protocol.interleaved(self.running(), self.o.repetitions, self.o.seed):
            with self.stage(x.name, f"bursts, {direction}"):
                us, host = self.burst(x, direction, x.calls[direction])
            x.samples[direction].append(us)
            x.host[direction].append(host)
            x.clocks[direction].append(self.rank.nvml.sample() if self.rank.nvml else None)

    def measure_memory(self, x: Version, direction: str) -> None:
        """What one call needs of torch's allocator above what lies there: parameters, input, the oracle's results."""
        if not self.rank.on_gpus:
            return
        cuda = self.torch.cuda
        with self.stage(x.name, f"memory, {direction}"):
            self.rank.synchronize()
            cuda.reset_peak_memory_stats()
            before = cuda.memory_allocated()
            self.work(x, direction)
            self.rank.synchronize()
            (most,) = self.rank.worst(float(cuda.max_memory_allocated() - before))
        x.peak_bytes[direction] = int(most)

    # -- records --

    def report(self, direction: str) -> None:
        from torch_rank import clocks_of

        rows = []
        machine = self.rank.machine()
        for x in self.versions:
            timed = x.status == "ok" and bool(x.samples[direction])
            clocks = self.rank.gather(clocks_of(x.clocks[direction])) if timed else []
            rows.append(self.record(x, direction, machine, clocks))
        if self.rank.rank != 0:
            return
        write(self.o, rows)
        if self.o.failures:
            (self.o.failures / f"{direction}{WRITTEN}").touch()
        sizes = f"{self.tokens} tokens in sequences of {self.sequence}, {self.dtype}, {self.rank.size} ranks"
        print(f"{self.o.shape} {direction}, {sizes}")
        for x in self.versions:
            print(f"  {x.name:<18} {self.shown(x, self.versions[0], direction)}  {x.reason}", flush=True)

    def shown(self, x: Version, base: Version, direction: str) -> str:
        if x.status != "ok" or not x.samples[direction]:
            return f"{'verified' if x.status == 'ok' else x.status:<40}"
        us = protocol.median(x.samples[direction])
        gain = protocol.median(base.samples[direction]) / us if base.samples[direction] else math.nan
        memory, workspace = (n / 2**20 for n in (x.peak_bytes.get(direction, 0), x.workspace_bytes))
        return f"{us:9.1f} us {gain:5.2f}x {memory:7.0f} MiB + {workspace:5.0f}"

    def record(self, x: Version, direction: str, machine: dict, clocks: list) -> dict:
        row = head(self.o, x, direction, self.tokens, machine, self.rank.size)
        row["dtype"] = self.dtype
        row["case"]["sequence"] = self.sequence
        row["method"]["n"] = x.calls.get(direction, 0)
        flops = self.parts.shape.forward_flops(self.rank.size, self.tokens, self.sequence)
        row["flops"] = flops * (3 if direction == "step" else 1)
        if x.errors:
            row["verify"] = {
                "ok": x.status == "ok",
                "oracle": "fp64: output and every gradient of each rank, all elements; wrong above twice the error of "
                + self.versions[0].name,
                "rms_error": max(e.rms for e in x.errors.values()),
                "max_error": max(e.largest for e in x.errors.values()),
                "rms_error_after": x.rms_after,
            }
        if x.status == "ok" and x.samples[direction]:
            row["time_us"] = protocol.time_fields(x.samples[direction])
            row["host_us"] = protocol.median(x.host[direction])
            row["clocks"] = clocks
            row["flags"] += [] if all(clocks) else ["unattested"]
            if self.rank.on_gpus and row["host_us"] > 0.9 * row["time_us"]["median"]:
                row["flags"].append("host_bound")
            if direction in x.peak_bytes:
                row["memory"] = {"peak_bytes": x.peak_bytes[direction], "workspace_bytes": x.workspace_bytes}
        return row


def be_rank(o: argparse.Namespace) -> int:
    import torch
    from torch_rank import Rank

    rank = Rank()
    torch._dynamo.config.recompile_limit = 64  # versions, directions and numbers of tokens compile one code
    o.run = rank.gather(o.run)[0]
    wrong = 0
    for tokens in numbers(o.tokens):
        wrong += Bench(o, rank, tokens).run()
        if rank.on_gpus:
            torch.cuda.empty_cache()
    torch.distributed.destroy_process_group()
    return 1 if wrong else 0


# ---- the process that starts them ----


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def refused(o: argparse.Namespace) -> str:
    lists = (("competitor", o.competitors, NAMES, CHECKS), ("direction", o.directions, DIRECTIONS, ()))
    for what, given, known, checks in lists:
        unknown = [name for name in given.split(",") if name not in (*known, *checks)]
        if unknown:
            return f"there is no {what} {unknown[0]}; wanted some of {', '.join(known)}"
    if o.shape not in ("llama-3.1-70b", "tiny"):
        return f"--shape is {o.shape}, wanted llama-3.1-70b or tiny"
    for tokens in numbers(o.tokens):
        if tokens % o.ranks or tokens % min(o.sequence, tokens):
            return f"--tokens is {tokens}, wanted a multiple of {o.ranks} ranks and of --sequence {o.sequence}"
    return ""


def give_up(o: argparse.Namespace, tokens: int, directions: list[str], status: str, absent: dict[str, str]) -> None:
    """Rows that say why nothing was measured, by competitor."""
    versions = [Version(name, status, absent.get(name, "")) for name in o.competitors.split(",")]
    write(o, [head(o, x, d, tokens, {"name": "unknown"}, o.ranks) for d in directions for x in versions])


def without_torch(o: argparse.Namespace) -> int:
    why = dict.fromkeys(o.competitors.split(","), "PyTorch is not installed")
    for tokens in numbers(o.tokens):
        give_up(o, tokens, o.directions.split(","), "absent", why)
    print("PyTorch is not installed: all are absent")
    return 0


def launch(o: argparse.Namespace) -> int:
    """Every number of tokens in processes of its own."""
    worst = 0
    for tokens in numbers(o.tokens):
        with tempfile.TemporaryDirectory() as folder:
            worst = max(worst, measure(o, tokens, Path(folder)))
    return worst


def measure(o: argparse.Namespace, tokens: int, folder: Path) -> int:
    """Starts ranks, again without a version that failed, until all directions are written. The exit status."""
    left, absent = o.directions.split(","), {}
    deadline = time.monotonic() + o.timeout_s
    while True:
        status, ended = run_ranks(o, tokens, left, absent, folder, deadline)
        left = [direction for direction in left if not (folder / f"{direction}{WRITTEN}").exists()]
        if status in (0, 1):
            return status
        first = cause(folder, ended)
        name, why = first["name"], f"rank {first['rank']}: {first['why']}"
        print(f"{tokens} tokens: {name or 'the ranks'} failed: {why}", file=sys.stderr, flush=True)
        is_late = time.monotonic() > deadline
        if is_late or not name or name in absent or not left:
            late = f"all versions did not end within {o.timeout_s:g} s: {why}"
            others = dict.fromkeys(o.competitors.split(","), late if is_late else why)
            give_up(o, tokens, left, "timeout" if is_late else "absent", others | absent)
            return programs.EXIT_LOST
        absent[name] = why


def cause(folder: Path, ended: set[int]) -> dict:
    """What the ranks left. What others say behind the first that ended is a consequence."""
    found = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    order = [(failure["rank"] not in ended, failure["time"]) for failure in found]
    return found[order.index(min(order))] if found else {"name": "", "rank": 0, "why": "they left no word"}


def run_ranks(
    o: argparse.Namespace, tokens: int, directions: list[str], absent: dict[str, str], folder: Path, deadline: float
) -> tuple[int, set[int]]:
    """The worst status, and who ended first with another than 0 and 1."""
    for old in folder.glob("*.json"):
        old.unlink()
    words = [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:], "--tokens", str(tokens), "--run", o.run]
    words += ["--directions", ",".join(directions), "--absent", json.dumps(absent), "--failures", str(folder)]
    env = {**os.environ, "WORLD_SIZE": str(o.ranks), "MASTER_ADDR": "127.0.0.1"}
    env[COMMAND] = " ".join(["torch_block.py", *sys.argv[1:]])
    env |= {"MASTER_PORT": str(programs.free_port()), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(words, env={**env, "RANK": str(i), "LOCAL_RANK": str(i)}, stdin=subprocess.DEVNULL)
        for i in range(o.ranks)
    ]
    ended: set[int] = set()
    try:
        while any([rank.poll() is None for rank in ranks]):
            ended = ended or {i for i, rank in enumerate(ranks) if rank.returncode not in (None, 0, 1)}
            if ended:
                deadline = min(deadline, time.monotonic() + 10)  # the others may say why, too
            if time.monotonic() > deadline:
                break
            time.sleep(0.02)
    finally:
        late = [rank for rank in ranks if rank.poll() is None]
        for rank in late:
            rank.kill()
        for rank in ranks:
            rank.wait()
    return max(rank.returncode if rank.returncode >= 0 else programs.EXIT_LOST for rank in ranks), ended


def main() -> int:
    o = arguments()
    if "RANK" in os.environ:
        try:
            status = be_rank(o)
        except Exception:
            traceback.print_exc()
            status = EXIT_FAILED
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # threads of torch that hold Python objects abort where the interpreter ends before them
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(programs.EXIT_LOST))  # not without ending the ranks
    why = refused(o)
    if why:
        print(why, file=sys.stderr)
        return programs.EXIT_USAGE
    return without_torch(o) if importlib.util.find_spec("torch") is None else launch(o)


if __name__ == "__main__":
    sys.exit(main())
