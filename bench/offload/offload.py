"""bench/offload: a stack of blocks whose weights stream through memory, beside competitors, on one CPU or GPU.

    python3 bench/offload/offload.py --out bench/results/offload_cpu2.jsonl
    python3 bench/offload/offload.py --device cuda --dtype bf16 --sources host --run-layers 0 --width 4096
        --tokens 1024,12288,32768 --out bench/results/offload_blocks_h200.jsonl

For each source (host, disk) and number of tokens: every way must give the result of the resident stack, then all are
timed interleaved. `brought` is the stream by someone who computes nothing, so that max(resident, brought) is what a
stream cannot beat. Each line of --out is a record as bench/record.schema.json wants it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "driver")]

import programs  # noqa: E402
import protocol  # noqa: E402
import runs  # noqa: E402
import schema  # noqa: E402
import ways  # noqa: E402

UNVERIFIED = ("brought",)  # it computes nothing
# In units of the largest result: a product's last bits may depend on where weights lie.
MOST_ERROR = {"fp32": 1e-4, "bf16": 2**-5}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
Sample = tuple[float, float, float, float]  # seconds, of processors, bytes fetched from a disk, seconds waited


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--tokens", default="16,64,256")
    parser.add_argument("--sources", default="disk,host")
    parser.add_argument("--run-layers", type=int, default=16, help="of the model of overlace run; 0: none")
    parser.add_argument("--run-width", type=int, default=768)
    parser.add_argument("--passes", type=int, default=2, help="timed in a turn, behind one that is not")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--device", default="cpu", help="where is computed: cpu or cuda")
    parser.add_argument("--dtype", choices=[*DTYPES], default="fp32")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", help="directory on the disk that is measured (default: a new one, removed after)")
    parser.add_argument("--git", help="commit in the records (default: that of this checkout)")
    parser.add_argument("--run", default=programs.now())
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args(words)


def machine(device: str) -> dict:
    cores, cpu = len(os.sched_getaffinity(0)), programs.cpu_name()
    kernel = f"{platform.system()} {platform.release()}"
    of_gpu = {}
    if device != "cpu":
        of_gpu = {"gpus": f"1x {torch.cuda.get_device_name(device)}", "cuda": torch.version.cuda}
    return {
        **of_gpu,
        "name": f"{of_gpu['gpus'].removeprefix('1x ') if of_gpu else cpu}, {cores} cores",
        "cpu": cpu,
        "cores": cores,
        "kernel": kernel,
        "torch": torch.__version__,
        "load": os.getloadavg()[0],
    }


def fetched_bytes() -> int:
    """That this process has had fetched from a disk, by the kernel's count."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("read_bytes")))


class Records:
    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        commit = ["git", "-C", str(HERE), "rev-parse", "--short=12", "HEAD"]
        options.git = options.git or subprocess.check_output(commit, text=True).strip()
        self._command = " ".join(["bench/offload/offload.py", *sys.argv[1:]])

    def add(
        self, case: str, what: str, competitor: str, status: str = "ok", reason: str = "", **fields: object
    ) -> None:
        entrant = argparse.Namespace(name=competitor, reason=reason, status=status)
        row = programs.torch_head(self._options, entrant, machine(self._options.device), 1, self._command)
        row |= {"workload": "offload", "case": {"name": case, "what": what}, "dtype": self._options.dtype}
        o = self._options
        row |= {"data": f"{o.layers} blocks of width {o.width}, seed {o.seed}", "flags": ["unlimited"]}
        row["method"] = {"repetitions": o.repetitions, "n": o.passes}
        row |= fields
        wrong = schema.complaints(row, json.loads(schema.PATH.read_text()))
        if wrong:
            raise SystemExit("\n".join(wrong))
        with self._options.out.open("a") as out:
            out.write(schema.with_id(row) + "\n")
        shown = f"{row['time_us']['median'] / 1e3:.1f} ms" if "time_us" in row else f"{status} {reason}"
        print(f"{case:<18} {competitor:<28} {shown}", flush=True)


def opened(makers: dict, expected: torch.Tensor, x: torch.Tensor, most: float, report: object) -> tuple[dict, dict]:
    """The ways that give the right result, and how right it is."""
    entrants, verified = {}, {}
    for name, make in makers.items():
        try:
            way = make()
        except ways.Absent as why:
            report(name, "absent", str(why))
            continue
        # Some bring blocks ahead from the second pass on.
        results = [way.run(x) for _ in range(2)]
        errors = [float((y - expected).abs().max() / expected.abs().max()) for y in results]
        error = 0.0 if name in UNVERIFIED else max(errors)
        if not error <= most:
            report(name, "wrong", f"the result differs by {error}, wanted at most {most}")
            way.close()
            continue
        oracle = "none: nothing is computed" if name in UNVERIFIED else "resident stack"
        entrants[name], verified[name] = way, {"ok": True, "oracle": oracle, "max_error": error}
    return entrants, verified


def one_turn(way: ways.Way, x: torch.Tensor, passes: int) -> Sample:
    way.before_pass()
    way.run(x)
    seconds = worked = 0.0
    before, waited = fetched_bytes(), way.waited_s()
    for _ in range(passes):
        way.before_pass()
        begin, used = time.perf_counter(), time.process_time()
        way.run(x)
        seconds += time.perf_counter() - begin
        worked += time.process_time() - used
    return seconds / passes, worked / passes, (fetched_bytes() - before) / passes, (way.waited_s() - waited) / passes


def fields_of(samples: list[Sample]) -> dict:
    us = [round(s[0] * 1e6) for s in samples]
    cpu = [round(s[1] * 1e6) for s in samples]
    return {
        "time_us": protocol.time_fields(us),
        "cpu_us": {"median": statistics.median(cpu), "min": min(cpu), "samples": cpu},
        "kernel_bytes": round(statistics.median(s[2] for s in samples)),
    }


def model_of(o: argparse.Namespace) -> ways.Model:
    return ways.Model(o.layers, o.width, o.seed, o.device, DTYPES[o.dtype])


def measure(records: Records, o: argparse.Namespace, source: str, tokens: int, path: Path, work: Path) -> None:
    case, what = f"{source}, {tokens}", f"{tokens} tokens, weights from {source}"
    model = model_of(o)
    x = torch.randn(tokens, o.width, generator=torch.Generator().manual_seed(o.seed + tokens))
    x = x.to(device=model.device, dtype=model.dtype)
    makers = ways.all_ways(source, model, path, work)
    expected = makers["resident"]().run(x)
    weights = sum(p.nbytes for p in model.stack("meta").parameters())

    def report(name: str, status: str, reason: str) -> None:
        records.add(case, what, name, status, reason)

    entrants, verified = opened(makers, expected, x, MOST_ERROR[o.dtype], report)
    names = list(entrants)
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    for _, name in protocol.interleaved(names, o.repetitions, o.seed):
        samples[name].append(one_turn(entrants[name], x, o.passes))
    for name in names:
        brings: dict[str, object] = {} if name == "resident" else {"bytes": weights}
        if isinstance(entrants[name], ways.Streamed) and o.device == "cpu":
            brings["waited_us"] = statistics.median(round(s[3] * 1e6) for s in samples[name])
        records.add(case, what, name, verify=verified[name], **brings, **fields_of(samples[name]))
        entrants[name].close()


def disk_rate(records: Records, work: Path) -> float:
    """GB/s of requests of 1 MiB."""
    program = os.environ.get("OVERLACE_BIN", "overlace")
    command = [program, "gnn", "diskbench", str(work), "--size", "256MiB", "--seconds", "0.5", "--quiet", "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode != 0:
        raise SystemExit(f"overlace gnn diskbench: {done.stderr}")
    storage = schema.storage_of(json.loads(done.stdout))
    records.add("disk", "overlace gnn diskbench in the same directory", "diskbench", storage=storage)
    return storage["read_GBps"]["1048576"]


def main(words: list[str] | None = None) -> int:
    o = parse(words)
    if o.repetitions < 1 or o.passes < 1 or set(o.sources.split(",")) - {"host", "disk", "none"}:
        print(f"offload.py: error: --repetitions {o.repetitions}, --passes {o.passes}, --sources {o.sources}; wanted 1")
        print("or more, 1 or more, and host, disk, host,disk or none")
        return programs.EXIT_USAGE
    torch.set_num_threads(o.threads)
    records = Records(o)
    with tempfile.TemporaryDirectory(prefix="overlace_offload_") as made:
        work = Path(o.work or made)
        path = work / "stack.safetensors"
        if "disk" in o.sources:
            save_file(model_of(o).stack().state_dict(), str(path))
            with path.open("rb") as file:
                os.fsync(file.fileno())
        disk_gbps = disk_rate(records, work) if "disk" in o.sources or o.run_layers > 0 else 0.0
        if o.run_layers > 0:
            runs.write_checkpoint(work / "checkpoint", o.run_layers, o.run_width)
            for tokens in map(int, o.tokens.split(",")):
                runs.measure(records, work / "checkpoint", tokens, o.repetitions, o.seed, disk_gbps)
        for source in [source for source in o.sources.split(",") if source != "none"]:
            for tokens in map(int, o.tokens.split(",")):
                measure(records, o, source, tokens, path, work)
    return 0


if __name__ == "__main__":
    sys.exit(main())
