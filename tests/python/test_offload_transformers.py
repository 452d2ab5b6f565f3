"""Hugging Face's decoders whose layers stream from the files that they were saved to: the bits of resident ones."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import overlace  # noqa: E402
from overlace.offload import stream_blocks  # noqa: E402

torch.set_num_threads(1)
LAYERS = 5
SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}


def make(family: str, dtype: torch.dtype) -> transformers.PreTrainedModel:
    torch.manual_seed(11)
    kind = {"llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config}[family]
    config = kind(**SHAPE, pad_token_id=0, eos_token_id=1, bos_token_id=2)
    return transformers.AutoModelForCausalLM.from_config(config).to(dtype).eval()


@pytest.fixture
def prompts() -> torch.Tensor:
    return torch.randint(3, 96, (3, 9), generator=torch.Generator().manual_seed(4))


def generated(model: transformers.PreTrainedModel, prompts: torch.Tensor) -> torch.Tensor:
    mask = torch.ones_like(prompts)
    return model.generate(prompts, attention_mask=mask, max_new_tokens=12, min_new_tokens=12, do_sample=False)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shards", [1, 4])
def test_forward_and_generate_are_those_of_the_resident_model(tmp_path, prompts, family, dtype, shards):
    resident = make(family, dtype)
    size = sum(p.nbytes for p in resident.parameters())
    resident.save_pretrained(tmp_path, max_shard_size="50GB" if shards == 1 else size // 4)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shards > 1)
    resident, model = (
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype).eval() for _ in range(2)
    )
    with stream_blocks(model.model.layers, "cpu", source=tmp_path) as stream, torch.inference_mode():
        assert torch.equal(model(prompts).logits, resident(prompts).logits)
        assert torch.equal(generated(model, prompts), generated(resident, prompts))
        stats = stream.stats()
        assert stats["blocks"] == LAYERS * 13  # forward once, then 12 tokens
        layer_bytes = sum(p.nbytes for p in model.model.layers[0].parameters())
        assert 0 <= stats["memory_bytes"] - 2 * layer_bytes < 2 * 2 * 4096 * 12  # whole pages of each tensor
        state = model.state_dict()
        assert all(torch.equal(value, state[name]) for name, value in resident.state_dict().items())
    with torch.inference_mode():
        assert torch.equal(model(prompts).logits, resident(prompts).logits)


def test_a_model_whose_layers_are_never_in_memory(tmp_path: Path, prompts: torch.Tensor):
    resident = make("llama", torch.float32)
    resident.save_pretrained(tmp_path)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(resident.config).eval()
    rest = {name: value for name, value in resident.state_dict().items() if ".layers." not in name}
    model.load_state_dict(rest, strict=False, assign=True)
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    with stream_blocks(model.model.layers, "cpu", source=tmp_path), torch.inference_mode():
        assert torch.equal(model(prompts).logits, resident(prompts).logits)
        assert torch.equal(generated(model, prompts), generated(resident, prompts))


def test_from_host_memory_and_with_layers_that_stay(prompts):
    model, resident = make("qwen2", torch.float32), make("qwen2", torch.float32)
    layer_bytes = sum(p.nbytes for p in model.model.layers[0].parameters())
    with stream_blocks(model.model.layers, "cpu", resident=2 * layer_bytes) as stream, torch.inference_mode():
        assert torch.equal(generated(model, prompts), generated(resident, prompts))
        assert stream.stats()["resident_bytes"] == 2 * layer_bytes
        assert stream.stats()["bytes"] == 12 * 3 * layer_bytes


def test_training_by_mistake_is_refused(prompts):
    model = make("llama", torch.float32)
    with stream_blocks(model.model.layers, "cpu"), pytest.raises(overlace.Unsupported, match="gradients enabled"):
        model(prompts, labels=prompts)


def test_a_checkpoint_of_another_model(tmp_path):
    make("llama", torch.float32).save_pretrained(tmp_path)
    model = make("qwen2", torch.float32)
    with pytest.raises(overlace.IoError, match=r"tensor 'model.layers.0.self_attn.q_proj.bias' is missing"):
        stream_blocks(model.model.layers, "cpu", source=tmp_path)


class Adapted(torch.nn.Module):
    """A frozen projection with a thin product beside it, as adapters are."""

    def __init__(self, base: torch.nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down = torch.nn.Parameter(torch.randn(2, base.in_features) / 8)
        self.up = torch.nn.Parameter(torch.randn(base.out_features, 2) / 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + x @ self.down.t() @ self.up.t()


def adapted(folder: Path) -> transformers.PreTrainedModel:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).requires_grad_(False)
    torch.manual_seed(5)
    for layer in model.model.layers:
        layer.self_attn.q_proj = Adapted(layer.self_attn.q_proj)
        layer.mlp.down_proj = Adapted(layer.mlp.down_proj)
    return model.train()


def without_base(name: str) -> str:
    return name.replace(".base.", ".")


@pytest.mark.parametrize("kind", ["host", "file"])
@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_adapters_are_trained_to_the_same_bits(tmp_path, prompts, is_checkpointed, kind):
    make("llama", torch.float32).save_pretrained(tmp_path)
    losses, values = [], []
    for is_streamed in (False, True):
        model = adapted(tmp_path)
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=1e-2)
        if is_checkpointed:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        stream = None
        if is_streamed:
            source = tmp_path if kind == "file" else "host"
            stream = stream_blocks(model.model.layers, "cpu", source=source, rename=without_base, backward=True)
        for _ in range(3):
            loss = model(prompts, labels=prompts).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        if stream is not None:
            stream.close()
        values.append([p.detach() for p in trained])
    assert losses[:3] == losses[3:] and losses[2] < losses[0]
    assert len(values[0]) == 4 * LAYERS and all(map(torch.equal, *values))


def test_names_that_the_files_do_not_have(tmp_path):
    make("llama", torch.float32).save_pretrained(tmp_path)
    with pytest.raises(overlace.Error, match=r"tensor 'model.layers.0.self_attn.q_proj.base.weight' is missing"):
        stream_blocks(adapted(tmp_path).model.layers, "cpu", source=tmp_path, prefix="model.layers.", backward=True)
