"""Layers that stream from what transformers saved, from files and from host memory: the bits of those that all fit.

OVERLACE_BIN names the program.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

LAYERS = 4
SHAPE = {
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "vocab_size": 32,
    "max_position_embeddings": 64,
}
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True),
    "qwen2": lambda: transformers.Qwen2Config(**SHAPE),
    "qwen3": lambda: transformers.Qwen3Config(**SHAPE, head_dim=16),
    "mistral": lambda: transformers.MistralConfig(**SHAPE, sliding_window=5),
    "gpt2": lambda: transformers.GPT2Config(n_embd=48, n_layer=LAYERS, n_head=6, vocab_size=32, n_positions=64),
}


@pytest.fixture(scope="module")
def program():
    path = os.environ.get("OVERLACE_BIN") or shutil.which("overlace")
    if not path:
        pytest.skip("OVERLACE_BIN is not set and overlace is not in PATH")
    return path


def run(program: str, folder: Path, ranks: int, *more: object) -> subprocess.CompletedProcess:
    command = [
        program,
        "run",
        "--backend",
        "cpu",
        "--checkpoint",
        folder,
        "-n",
        ranks,
        "--tokens",
        24,
        "--link",
        "none",
    ]
    command += ["--sequence-length", 8, "--repeat", 1, "--quiet", *more]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120)


def output(program: str, folder: Path, ranks: int, *more: object) -> bytes:
    done = run(program, folder, ranks, "--output", folder / "y.npy", "--json", folder / "r.json", *more)
    assert done.returncode == 0, done.stdout + done.stderr
    return (folder / "y.npy").read_bytes()


def smallest(program: str, folder: Path, ranks: int, *more: object) -> str:
    done = run(program, folder, ranks, "--device-memory", 1, *more)
    assert done.returncode == 7, done.stderr
    return re.search(r"wanted (\d+) or more", done.stderr)[1]


@pytest.mark.parametrize("family", CONFIGS)
def test_families_stream_to_the_same_bits(program, tmp_path, family):
    torch.manual_seed(1)
    dtype = torch.bfloat16 if family == "qwen3" else torch.float32  # converted on the way
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[family]())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2 + (parameter.ndim == 1))
    model.to(dtype).save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    for ranks, batch in ((1, 16), (2, 16), (3, 8)):  # 16 of 24 leave a smaller one
        together = ("--micro-batch", batch)
        resident = output(program, tmp_path, ranks, *together)
        size = smallest(program, tmp_path, ranks, *together)
        for source in ("host", "disk"):
            words = (*together, "--device-memory", size, "--weights", source)
            assert output(program, tmp_path, ranks, *words) == resident, (ranks, source)
            weights = json.loads((tmp_path / "r.json").read_text())["weights"]
            assert (weights["source"], weights["streamed_layers"]) == (source, LAYERS)


def test_a_tensor_that_is_missing(program, tmp_path):
    from safetensors.torch import load_file, save_file

    transformers.AutoModelForCausalLM.from_config(CONFIGS["llama"]()).save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    del state["model.layers.2.mlp.up_proj.weight"]
    save_file(state, tmp_path / "model.safetensors")
    done = run(program, tmp_path, 2, "--device-memory", "8MiB", "--weights", "disk")
    assert done.returncode == 5, done.stderr
    assert 'tensor "model.layers.2.mlp.up_proj.weight" is missing' in done.stderr
