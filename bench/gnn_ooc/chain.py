"""bench/gnn_ooc: the commands of the guide one after the other, from a graph to a trained model, each timed.

    python3 bench/gnn_ooc/chain.py --out bench/results/gnn_chain_cpu2.jsonl

generate, sample, plan, pack, verify and train a training epoch of GraphSAGE at 2^20 vertices with a tenth of the rows
in memory, in a folder of its own that goes afterwards. Each line of --out is a record of a command; `whole` is all.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ooc

MODEL = ("--model", "sage", "--epochs", "1", "--hidden", "64")


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vertices", type=int, default=2**20)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--fanouts", default="10,5,5")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where the graph lies meanwhile (default: that of the system)")
    parser.add_argument("--git", help="commit in the records (default: that of this checkout)")
    parser.add_argument("--out", required=True)
    return parser.parse_args(words)


def steps(o: argparse.Namespace, folder: Path) -> dict[str, list[str]]:
    graph, artefact = str(folder / "g"), str(folder / "g.ovg")
    cache = ["--cpu-cache", str(o.vertices // 10 * o.dim * 4)]
    size = ["--vertices", str(o.vertices), "--dim", str(o.dim), "--seed", str(o.seed)]
    batches = ["--fanouts", o.fanouts, "--batch-size", str(o.batch_size), "--seed", str(o.seed)]
    return {
        "generate": ["generate", "--out", graph, *size],
        "sample": ["sample", graph, "--out", artefact, *batches],
        "plan": ["plan", artefact, *cache],
        "pack": ["pack", artefact, *cache, "--order", "fixed"],
        "verify": ["verify", artefact],
        "train": ["train", artefact, *MODEL],
    }


def processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def timed(words: list[str]) -> tuple[float, float]:
    """Seconds by the clock and of processors."""
    began, used = time.monotonic(), processor_s()
    program = os.environ.get("OVERLACE_BIN", "overlace")
    # `gnn train` starts the python3 of PATH: the one that runs this bench.
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    done = subprocess.run([program, "gnn", *words], capture_output=True, text=True, check=False, env=env)
    if done.returncode != 0:
        raise SystemExit(f"overlace gnn {' '.join(words)}: {done.stdout}{done.stderr}")
    return time.monotonic() - began, processor_s() - used


def main(words: list[str] | None = None) -> int:
    o = parse(words)
    records, whole = ooc.Records(o, "bench/gnn_ooc/chain.py"), [0.0, 0.0]
    with tempfile.TemporaryDirectory(prefix="overlace_gnn_chain_", dir=o.folder) as folder:
        for name, command in steps(o, Path(folder)).items():
            shown = " ".join(["overlace gnn", *command]).replace(f"{folder}/", "")
            took = timed(command)
            whole = [a + b for a, b in zip(whole, took, strict=True)]
            records.add("chain", shown, name, **fields_of(took))
        records.add("chain", "all of them", "whole", **fields_of(whole))
    return 0


def fields_of(took: tuple[float, float] | list[float]) -> dict:
    clock, processors = ({"median": 1e6 * s, "samples": [1e6 * s]} for s in took)
    return {"time_us": clock, "cpu_us": processors}


if __name__ == "__main__":
    sys.exit(main())
