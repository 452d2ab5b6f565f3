"""The programs that measure, how each is started, and what they leave."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import draws
import records
import schema

BENCH = Path(__file__).resolve().parents[1]
CASES = BENCH / "dense" / "cases.json"
TORCH = ("torch_library", "torch_async_tp", "torch_one_shot", "torch_two_shot", "quack")  # by torch_competitors.py
DEFAULT = ("compute", "comm", "library", "serial", "limit", "auto")
DEFAULT_LINK = "1GB/s,20us"  # between CPU ranks: without one, copies cost the core that computes
KILLED = 128
EXIT_WRONG, EXIT_USAGE, EXIT_UNSUPPORTED, EXIT_LOST = 1, 2, 3, 4

# Workload -> what it measures.
WORKLOADS = {
    **{o.name: o.what for o in records.DENSE_OPERATORS.values()},
    "cpu": "puts, signals and hops between CPU ranks, beside memcpy and a spin on a word",
    "runtime": "stores, copies, flags and barriers between GPUs, beside plain CUDA (needs GPUs)",
    "gemm_core": "the plain GEMM beside cuBLASLt (needs a GPU)",
    "gather_rows": "random rows from a GPU's memory, pinned memory and a peer, beside one copy (needs a GPU)",
    "offload": "layers that stream into 16 GiB of a GPU, beside resident ones and plain copies (needs a GPU)",
    "run": "the decoder layers of `overlace run`, site by site",
    "moe": "the mixture-of-experts layer through PyTorch, forward, beside all_to_all_single and grouped_mm",
    "embedding": "bags of embeddings and All-to-All, forward, beside embedding_bag and all_to_all_single",
    "block": "a decoder block through PyTorch, forward and training step, beside NCCL and async-TP",
    "co2": "training of two CPU ranks over an emulated slow link, through PyTorch: CO2, DDP, local SGD, ...",
}

# Workloads that ranks of PyTorch measure, and by which program.
LAYERS = {"moe": "torch_moe.py", "embedding": "torch_embedding.py"}


class Refused(Exception):
    """The command cannot be done; `exit` is the status."""

    def __init__(self, message: str, status: int = EXIT_USAGE) -> None:
        super().__init__(message)
        self.exit = status


@dataclasses.dataclass
class Plan:
    """What the command line asked for."""

    workloads: list[str]
    overlace: Path
    programs: Path | None = None
    ranks: int | None = None
    set: str = ""
    filter: str = ""
    competitors: tuple[str, ...] = DEFAULT
    repetitions: int | None = None
    burst_ms: float | None = None
    warm_s: float | None = None
    settle_s: float | None = None
    heap_gib: int | None = None
    seed: int = 1
    data: str = "normal"
    link: str = ""
    graph: bool = False
    verify_only: bool = False
    timeout_s: float = 3600
    git: str = "unknown"
    gpus: int = 0
    python: str = sys.executable
    run: str = ""  # id, shared by all records of a run
    out: Path = Path("records.jsonl")

    def program(self, name: str) -> str:
        here = self.overlace.parent
        places = [self.programs] if self.programs else [here / "bench", here, here.parent / "libexec" / "overlace"]
        for place in places:
            if (place / name).exists():
                return str(place / name)
        raise Refused(
            f"{name} is not in {', '.join(map(str, places))}: build with OVERLACE_BENCH=ON, or name --programs",
            EXIT_UNSUPPORTED,
        )

    def team(self) -> int:
        if self.ranks is not None:
            return self.ranks
        return (4 if self.gpus >= 4 else self.gpus) if self.gpus > 1 else 2

    def on_gpus(self) -> bool:
        return self.gpus > 1 and not self.link


@dataclasses.dataclass
class Step:
    """One program to run."""

    title: str
    command: list[str]
    convert: Callable[[Plan, Path], None] | None = None  # for results that are not records yet
    env: dict[str, str] = dataclasses.field(default_factory=dict)


def common(plan: Plan, default_repetitions: int | None = None) -> list[str]:
    words = ["--git", plan.git, "--run", plan.run, "--out", str(plan.out)]
    repetitions = plan.repetitions or default_repetitions
    if repetitions:
        words += ["--repetitions", str(repetitions)]
    return words + (["--verify-only"] if plan.verify_only else [])


def launched(plan: Plan, ranks: int, words: list[str]) -> list[str]:
    return [str(plan.overlace), "run", "-n", str(ranks), "--", *words]


def cases_of(plan: Plan) -> Path:
    """The file of the set: that of the checkout, or beside the records one that is drawn."""
    if draws.read(plan.set) is None:
        return CASES
    path = plan.out.with_name(plan.set.replace(":", "-") + ".json")
    path.write_text(json.dumps(draws.cases(plan.set), indent=1) + "\n")
    return path


def dense_words(plan: Plan, ops: list[str], names: list[str]) -> list[str]:
    words = ["--cases", str(cases_of(plan)), "--ops", ",".join(ops), "--competitors", ",".join(names)]
    return words + measured_words(plan)


def measured_words(plan: Plan) -> list[str]:
    words = ["--seed", str(plan.seed)]
    for option, value in (("--set", plan.set), ("--filter", plan.filter)):
        words += [option, value] if value else []
    for option, number in (("--burst-ms", plan.burst_ms), ("--warm-s", plan.warm_s)):
        words += [option, f"{number:g}"] if number is not None else []
    return words + common(plan)


def is_foreign(competitor: str) -> bool:
    return competitor in TORCH or competitor.startswith("torch_")


def steps(plan: Plan) -> Iterator[Step]:
    ops = [w for w in plan.workloads if w in records.DENSE]
    own = [c for c in plan.competitors if not is_foreign(c)]
    if ops and own:
        words = [plan.program("bench_dense"), *dense_words(plan, ops, own), "--data", plan.data]
        words += ["--launch", "graph"] if plan.graph else []
        words += ["--settle-s", f"{plan.settle_s:g}"] if plan.settle_s is not None else []
        words += ["--heap-gib", str(plan.heap_gib)] if plan.heap_gib is not None else []
        words += ["--backend", "cuda_peer"] if plan.on_gpus() else ["--backend", "cpu", "--link", link(plan)]
        yield Step(", ".join(ops), launched(plan, plan.team(), words))
    foreign = [c for c in plan.competitors if is_foreign(c)]
    of_torch = [op for op in ops if op in records.OPERATORS]
    if of_torch and foreign:
        words = [plan.python, str(BENCH / "torch_competitors.py"), *dense_words(plan, of_torch, foreign)]
        yield Step("competitors through torch", launched(plan, plan.team(), words), env=torch_variables())
    if "cpu" in plan.workloads:
        program = plan.program("bench_cpu")
        yield Step("cpu, 2 ranks", launched(plan, 2, [program, *common(plan), "--pin"]))
        yield Step("cpu, 4 ranks", launched(plan, 4, [program, *common(plan)]))
    if "runtime" in plan.workloads:
        ranks = ["--ranks", str(plan.ranks)] if plan.ranks else []
        yield Step("runtime", [plan.program("bench_runtime"), *ranks, *common(plan)])
    if "gemm_core" in plan.workloads:
        rows = ["--filter", plan.filter] if plan.filter else []
        yield Step("gemm_core", [plan.program("bench_gemm_core"), *rows, *common(plan)])
    if "gather_rows" in plan.workloads:
        yield Step("gather_rows", [plan.program("bench_gather_rows"), *common(plan)])
    if "offload" in plan.workloads:
        yield Step("offload", [plan.program("bench_offload"), *common(plan)])
    if "run" in plan.workloads:
        yield run_step(plan)
    for workload, program in LAYERS.items():
        if workload in plan.workloads:
            words = [plan.python, str(BENCH / program), *measured_words(plan)]
            if plan.competitors[: len(DEFAULT)] != DEFAULT:  # which are those of the dense operators
                words += ["--competitors", ",".join(plan.competitors)]
            words += ["--settle-s", f"{plan.settle_s:g}"] if plan.settle_s is not None else []
            yield Step(workload, launched(plan, plan.team(), words), env=torch_variables())
    if "block" in plan.workloads:
        words = [plan.python, str(BENCH / "torch_block.py"), "--ranks", str(plan.team()), "--seed", str(plan.seed)]
        words += [] if plan.on_gpus() else ["--shape", "tiny", "--tokens", "64", "--sequence", "32"]
        yield Step("block", [*words, *common(plan)])
    if "co2" in plan.workloads:
        words = [plan.python, str(BENCH / "co2_train.py"), "--ranks", str(plan.ranks or 2), "--seed", str(plan.seed)]
        words += ["--link", plan.link] if plan.link else []
        yield Step("co2", [*words, *common(plan)], env={"OVERLACE_BIN": str(plan.overlace)})


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def torch_variables() -> dict[str, str]:
    """What ranks of PyTorch that `overlace run` starts need besides."""
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}


def link(plan: Plan) -> str:
    return plan.link or DEFAULT_LINK


def run_step(plan: Plan) -> Step:
    result = f"{plan.out}.run.json"
    words = [str(plan.overlace), "run", "-n", str(plan.team()), "--quiet", "--json", result, "--seed", str(plan.seed)]
    words += ["--repeat", "1" if plan.verify_only else str(plan.repetitions or 7)]
    if not plan.on_gpus():
        words += ["--backend", "cpu", "--link", link(plan)]
    return Step("run", words, convert=lambda plan, out: convert_run(plan, out, words))


def convert_run(plan: Plan, out: Path, words: list[str]) -> None:
    """The result of `overlace run` as records: its medians, without samples."""
    path = Path(f"{plan.out}.run.json")
    result = json.loads(path.read_text())
    path.unlink()
    machine = {"name": machine_of(plan), "cpu": cpu_name()}
    if result.get("link"):
        machine["link"] = result["link"]
    lines = []
    total = {"name": "total", **result["total"]}
    total["limit_us"] = total.pop("stack_limit_us", None)  # measured; its limit_us follows from those of the sites
    for site in [*result["sites"], total]:
        case = {"name": f"{result['model']} {site['name']}", **{k: site[k] for k in ("m", "n", "k") if k in site}}
        times = {name: site.get(f"{key}_us") for name, key in RUN_TIMES.items()}
        for name, us in times.items():
            if us is None or (plan.verify_only and name != "auto"):
                continue
            row = {
                "schema": "overlace.bench/1",
                "run": plan.run,
                "date": now(),
                "git": plan.git,
                "command": " ".join(["overlace", *words[1:]]),
                "machine": machine,
                "workload": "run",
                "case": case,
                "dtype": result["dtype"],
                "team": result["ranks"],
                "launch": "stream",
                "data": f"normal, seed {result['seed']}",
                "method": {"repetitions": result["repetitions"]},
                "competitor": name,
                "schedule": site.get("schedule", "") if name == "auto" else name,
                "reason": site.get("reason", "") if name == "auto" else "",
                "status": "ok" if result["ok"] else "wrong",
                "flags": ["emulated"] if result.get("emulated") else [],
            }
            if name == "auto":
                row["verify"] = {"ok": result["ok"], "oracle": "fp64, every element of the layers' output"}
            if result["ok"] and not plan.verify_only:
                row["time_us"] = {"median": us}
            lines.append(schema.with_id(row) + "\n")
    with out.open("a") as file:
        file.writelines(lines)


RUN_TIMES = {"compute": "compute", "comm": "comm", "library": "library", "serial": "serial", "limit": "limit"}
RUN_TIMES["auto"] = "overlapped"


def now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def spawn_ranks(work: Callable, o: argparse.Namespace) -> int:
    """`work(rank, o, path of a store)` in `o.ranks` processes; the exit status tells of wrong rows added to `o.out`."""
    import torch.multiprocessing

    def wrong_rows() -> int:
        return o.out.read_text().count('"status":"wrong"') if o.out and o.out.exists() else 0

    before = wrong_rows()
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(work, (o, str(Path(folder) / "store")), o.ranks)
    return EXIT_WRONG if wrong_rows() > before else 0


def torch_head(o: argparse.Namespace, entrant: object, machine: dict, size: int, command: str) -> dict:
    """What rows of PyTorch benches begin with. `o` has run, git, seed, repetitions; `entrant` name, reason, status."""
    return {
        "schema": "overlace.bench/1",
        "run": o.run,
        "date": now(),
        "git": o.git,
        "command": command,
        "machine": machine,
        "team": size,
        "launch": "stream",
        "data": f"normal(0,1), weights / sqrt(K), seed {o.seed}",
        "method": {"repetitions": o.repetitions, "lead_in": 0.2},
        "competitor": entrant.name,
        "reason": entrant.reason,
        "status": entrant.status,
        "flags": [],
    }


def cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return "unknown"
    return next((x.partition(":")[2].strip() for x in text.splitlines() if x.startswith("model name")), "unknown")


def machine_of(plan: Plan) -> str:
    if plan.on_gpus():
        return f"{plan.team()} x {gpu_names()[0]}"
    return f"{cpu_name()}, {len(os.sched_getaffinity(0))} cores"


def nvidia_smi(*words: str) -> list[str]:
    try:
        done = subprocess.run(["nvidia-smi", *words], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []


def gpu_names() -> list[str]:
    names = nvidia_smi("--query-gpu=name", "--format=csv,noheader")
    names = names or ["GPU" for _ in Path("/dev").glob("nvidia[0-9]*")]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return names
    return names[: len([x for x in visible.split(",") if x.strip()])]


def refuse_foreign_processes() -> None:
    """Somebody else's work on the GPUs would be in every number."""
    for line in nvidia_smi("--query-compute-apps=pid,process_name", "--format=csv,noheader"):
        raise Refused(f"another process is on the GPUs: {line}; wanted them for this run alone", EXIT_UNSUPPORTED)


@contextlib.contextmanager
def machine_lock() -> Iterator[None]:
    """One run per machine at a time."""
    path = Path(tempfile.gettempdir()) / f"overlace-bench-{os.getuid()}.lock"
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Refused(f"another bench runs on this machine ({path} is locked)", EXIT_UNSUPPORTED) from None
        yield


def run(step: Step, plan: Plan, on_line: Callable[[str], None]) -> int:
    """Runs a step to its end or the deadline; every line it prints goes to on_line. What it started ends with it."""
    process = subprocess.Popen(
        step.command,
        env={**os.environ, **step.env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    expired = threading.Event()

    def stop() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)

    def expire() -> None:
        expired.set()
        stop()

    timer = threading.Timer(plan.timeout_s, expire)
    timer.start()
    with process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                on_line(line.rstrip("\n"))
            status = process.wait()
        except BaseException:
            stop()
            raise
        finally:
            timer.cancel()
    if expired.is_set():
        print(f"overlace bench: {step.title} did not end within {plan.timeout_s:g} s", file=sys.stderr)
        return EXIT_LOST
    if status < 0 or status > KILLED:
        return EXIT_LOST
    if status == 0 and step.convert:
        step.convert(plan, plan.out)
    return status
