"""`overlace run` with layers that stream, beside what `overlace sim graph offload` says of it."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
from pathlib import Path

import protocol
import torch
from safetensors.torch import save_file

SOURCES = ("resident", "host", "disk")


def write_checkpoint(folder: Path, layers: int, hidden: int) -> None:
    """A Llama of that width; the bytes of the file are on the disk when this returns."""
    inner = hidden * 8 // 3 // 64 * 64
    config = {"model_type": "llama", "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers}
    config |= {"num_attention_heads": hidden // 64, "num_key_value_heads": hidden // 64, "hidden_act": "silu"}
    config |= {"rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 4096, "vocab_size": 1000}
    shapes = {"input_layernorm": (hidden,), "post_attention_layernorm": (hidden,), "mlp.down_proj": (hidden, inner)}
    shapes |= {f"self_attn.{x}_proj": (hidden, hidden) for x in "qkvo"}
    shapes |= {f"mlp.{x}_proj": (inner, hidden) for x in ("gate", "up")}
    torch.manual_seed(1)
    tensors = {
        f"model.layers.{i}.{name}.weight": torch.ones(shape) if len(shape) == 1 else torch.randn(shape) / hidden**0.5
        for i in range(layers)
        for name, shape in shapes.items()
    }
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, str(folder / "model.safetensors"))
    with (folder / "model.safetensors").open("rb") as file:
        os.fsync(file.fileno())


def overlace(*words: object, status: int = 0) -> str:
    program = os.environ.get("OVERLACE_BIN", "overlace")
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [program, *map(str, words)], capture_output=True, text=True, check=False, timeout=120, env=env
    )
    if done.returncode != status:
        raise SystemExit(f"overlace {' '.join(map(str, words))}: {done.stderr}")
    return done.stdout if status == 0 else done.stderr


class Runs:
    def __init__(self, checkpoint: Path, tokens: int) -> None:
        self._shape = ["--tokens", tokens, "--sequence-length", tokens]
        self._checkpoint = checkpoint
        said = self._run("--device-memory", 1, status=7)
        self._memory = int(re.search(r"wanted (\d+) or more", said)[1])

    def _run(self, *more: object, status: int = 0) -> str:
        words = ["run", "--backend", "cpu", "-n", 1, "--checkpoint", self._checkpoint, "--repeat", 1, "--quiet"]
        return overlace(*words, "--link", "none", *self._shape, *more, "--json", "-", status=status)

    def one(self, source: str) -> dict:
        more = [] if source == "resident" else ["--device-memory", self._memory, "--weights", source]
        return json.loads(self._run(*more))

    def simulated(self, source: str, tflops: float, host_gbps: float, disk_gbps: float) -> dict:
        words = ["sim", "graph", "offload", "--config", self._checkpoint / "config.json", "--dtype", "fp32"]
        words += ["--device-memory", self._memory, "--host-memory", "0" if source == "disk" else "1TiB", "-n", 1]
        words += ["--tflops", tflops, "--host-gbps", host_gbps, "--disk-gbps", disk_gbps, "--machine", "cpu2"]
        rows = json.loads(overlace(*words, *self._shape, "--json", "-"))["rows"]
        return next(row for row in rows if row["transfers"] == "overlapped")


def predicted(runs: Runs, source: str, results: dict[str, list[dict]], disk_gbps: float) -> float:
    """us of a pass, from the computation of the resident runs, and from what filling slots and the disk take alone."""
    compute_us = statistics.median(run["total"]["overlapped_us"] for run in results["resident"])
    of_one = runs.simulated(source, 1, 1, 1)
    weights = [run["weights"] for run in results[source]]
    filling_us = statistics.median(w["transfer_us"] - w["disk_us"] for w in weights)
    total_bytes = weights[0]["layer_bytes"] * weights[0]["streamed_layers"]
    tflops = of_one["compute_us"] / compute_us
    return runs.simulated(source, tflops, total_bytes / filling_us / 1e3, disk_gbps)["pass_us"]


def measure(records: object, checkpoint: Path, tokens: int, repetitions: int, seed: int, disk_gbps: float) -> None:
    runs = Runs(checkpoint, tokens)
    results: dict[str, list[dict]] = {source: [] for source in SOURCES}
    for _, source in protocol.interleaved(SOURCES, repetitions, seed):
        results[source].append(runs.one(source))
    case, what = f"run, {tokens}", f"overlace run, {tokens} tokens"
    for source in SOURCES:
        ok = all(run["ok"] for run in results[source])
        fields: dict = {"verify": {"ok": ok, "oracle": "fp64, every element of the layers' output"}}
        fields["time_us"] = protocol.time_fields([run["total"]["overlapped_us"] for run in results[source]])
        if source != "resident":
            weights = [run["weights"] for run in results[source]]
            fields["waited_us"] = statistics.median(w["waited_us"] for w in weights)
            fields["simulated_us"] = predicted(runs, source, results, disk_gbps)
        records.add(case, what, f"run_{source}", "ok" if ok else "wrong", **fields)
