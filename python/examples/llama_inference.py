"""Hugging Face's Llama, made tensor-parallel by exchanging its linear layers: logits and greedily generated tokens are
those of the whole model. The weights are random, nothing is downloaded; needs `transformers`.

usage: llama_inference.py [--ranks 2] [--device cpu|cuda]
"""

from __future__ import annotations

import copy

import overlace
import torch
import torch.distributed as dist
import transformers
from launch import launch
from overlace.nn import ColumnParallelLinear, RowParallelLinear
from torch import nn

CONFIG = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 64,
}
KINDS = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"), ColumnParallelLinear),
    **dict.fromkeys(("o_proj", "down_proj"), RowParallelLinear),
}
NUM_TOKENS = 6


def tensor_parallel(model: nn.Module, group: dist.ProcessGroup) -> nn.Module:
    """Heads and hidden columns split over the ranks; activations between blocks are whole on all of them."""
    for module in list(model.modules()):
        for name, layer in list(module.named_children()):
            if name in KINDS:
                setattr(module, name, KINDS[name].from_module(layer, group=group, sequence_parallel=False))
    return model


@torch.inference_mode()
def results(model: nn.Module, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    generated = model.generate(tokens, max_new_tokens=NUM_TOKENS, min_new_tokens=NUM_TOKENS, do_sample=False)
    return model(tokens).logits, generated


def run(group: dist.ProcessGroup, device: str) -> None:
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG)).to(device).eval()
    model.generation_config.pad_token_id = 0
    tokens = torch.arange(24, device=device).reshape(2, 12) % CONFIG["vocab_size"]
    logits, generated = results(model, tokens)
    with overlace.init(group) as context:
        split = tensor_parallel(copy.deepcopy(model), group)
        got, text = results(split, tokens)
        assert context.stats().calls == 2 * CONFIG["num_hidden_layers"] * (1 + NUM_TOKENS)
    torch.testing.assert_close(got, logits, rtol=1e-4, atol=1e-5)
    assert torch.equal(text, generated), (text, generated)


if __name__ == "__main__":
    launch(run, __doc__)
