"""`overlace run --weights disk` with a checkpoint of four times the memory that the kernel lets it have.

OVERLACE_BIN names the program. Skipped where no group of processes can be given less memory.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "bench/driver")]
import memory_limit  # noqa: E402

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")

LIMIT = 64 << 20
LAYERS, HIDDEN, INNER = 56, 320, 832
CONFIG = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 5,
    "num_key_value_heads": 5,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 64,
    "vocab_size": 32,
}
SHAPES = {
    "input_layernorm": (HIDDEN,),
    "post_attention_layernorm": (HIDDEN,),
    **{f"self_attn.{name}_proj": (HIDDEN, HIDDEN) for name in "qkvo"},
    "mlp.gate_proj": (INNER, HIDDEN),
    "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}


@pytest.fixture
def limit() -> Iterator[memory_limit.Limit]:
    try:
        with memory_limit.limited(LIMIT) as made:
            yield made
    except memory_limit.Unavailable as why:
        pytest.skip(f"no memory cgroup: {why}")


@pytest.fixture
def program() -> str:
    path = os.environ.get("OVERLACE_BIN") or shutil.which("overlace")
    if not path:
        pytest.skip("OVERLACE_BIN is not set and overlace is not in PATH")
    return path


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "ckpt"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    torch.manual_seed(3)
    tensors = {}
    for layer in range(LAYERS):
        for name, shape in SHAPES.items():
            value = torch.rand(shape) + 0.5 if len(shape) == 1 else torch.randn(shape) / 18
            tensors[f"model.layers.{layer}.{name}.weight"] = value
    safetensors_torch.save_file(tensors, str(folder / "model.safetensors"))
    return folder


def test_a_checkpoint_of_four_times_the_memory(program, checkpoint, limit, tmp_path, monkeypatch):
    assert (checkpoint / "model.safetensors").stat().st_size >= 4 * LIMIT
    for key in [key for key in os.environ if key.startswith("OVERLACE_")]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("OVERLACE_TIMEOUT_S", "60")

    def words(name: str, *more: str) -> list[str]:
        out = tmp_path / name
        run = [program, "run", "--backend", "cpu", "-n", "1", "--checkpoint", str(checkpoint), "--tokens", "8", *more]
        return [*run, "--repeat", "1", "--link", "none", "--quiet", "--output", f"{out}.npy", "--json", f"{out}.json"]

    whole = subprocess.run(words("whole"), capture_output=True, text=True, timeout=120, check=False)
    assert whole.returncode == 0, whole.stderr
    refused = limit.run(words("resident"), 120)
    assert refused.returncode != 0, "all layers at once do not fit"
    streamed = limit.run(words("streamed", "--device-memory", "12MiB", "--weights", "disk"), 120)
    assert streamed.returncode == 0, streamed.stderr
    most = limit.peak_bytes()
    assert most is None or most <= LIMIT
    assert (tmp_path / "streamed.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()
    weights = json.loads((tmp_path / "streamed.json").read_text())["weights"]
    assert weights["streamed_layers"] == LAYERS and weights["source"] == "disk"
