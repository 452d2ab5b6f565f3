"""Hugging Face's own blocks as an outside oracle: overlace.nn.MoELayer with their weights, results and gradients."""

import pytest
from ranks import overlace, run_ranks, torch

pytest.importorskip("transformers")
HIDDEN, INTER, EXPERTS = 16, 12, 8
COMMON = {"hidden_size": HIDDEN, "num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 1}


def block_of(family):
    """The block of a small model, and the options of the layer that is to be it."""
    import transformers as hf
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek
    from transformers.models.mixtral import modeling_mixtral as mixtral
    from transformers.models.qwen3_moe import modeling_qwen3_moe as qwen

    routed = {"num_experts_per_tok": 3, "moe_intermediate_size": INTER}
    if family == "mixtral":
        config = hf.MixtralConfig(**COMMON, intermediate_size=INTER, num_local_experts=EXPERTS, num_experts_per_tok=2)
        return mixtral.MixtralSparseMoeBlock(config), {"top_k": 2, "renormalize": True}
    if family == "qwen3_moe":
        config = hf.Qwen3MoeConfig(**COMMON, **routed, num_experts=EXPERTS, norm_topk_prob=False)
        return qwen.Qwen3MoeSparseMoeBlock(config), {"top_k": 3}
    grouped = {"n_group": 4, "topk_group": 2, "norm_topk_prob": True, "routed_scaling_factor": 2.5}
    config = hf.DeepseekV3Config(**COMMON, **routed, **grouped, n_routed_experts=EXPERTS, n_shared_experts=2)
    options = {"top_k": 3, "score": "sigmoid", "renormalize": True, "num_groups": 4, "kept_groups": 2}
    return deepseek.DeepseekV3MoE(config), options | {"route_scale": 2.5, "expert_bias": True, "shared_size": 2 * INTER}


def layer_of(block, options, group):
    from overlace.nn import MoELayer

    weights = (block.gate.weight, block.experts.gate_up_proj, block.experts.down_proj)
    if "shared_size" not in options:
        return MoELayer.from_stacks(*weights, group=group, **options)
    gate, w1, w2 = (t.detach() for t in weights)
    shared = block.shared_experts
    state = {"gate.weight": gate, "expert_bias": block.gate.e_score_correction_bias}
    state |= {f"experts.{e}.{name}": part for name, t in (("w1", w1), ("w2", w2)) for e, part in enumerate(t)}
    state["shared.up.weight"] = torch.cat([shared.gate_proj.weight, shared.up_proj.weight]).detach()
    state["shared.down.weight"] = shared.down_proj.weight.detach()
    layer = MoELayer(EXPERTS, HIDDEN, INTER, group=group, **options)
    layer.load_state_dict(state)
    return layer


def same_as(group, family):
    rank = group.rank()
    torch.manual_seed(2)
    block, options = block_of(family)
    with torch.no_grad():
        for p in block.parameters():
            p.copy_(torch.randn_like(p) / 3)
        for bias in block.buffers():
            bias.copy_(torch.randn_like(bias) / 9)
    layer = layer_of(block, options, group)
    x = torch.randn(2, 9, HIDDEN, requires_grad=True)
    want = block(x)
    want.square().sum().backward()
    mine = x.detach()[rank].requires_grad_()
    out = layer(mine)
    out.square().sum().backward()
    bound = {"rtol": 1e-4, "atol": 1e-4 * want.abs().max().item()}
    torch.testing.assert_close(out, want[rank], **bound)
    torch.testing.assert_close(mine.grad, x.grad[rank], **bound)
    gate = overlace.ops.all_reduce(layer.gate.weight.grad, group=group)
    for got, grad in (
        (gate, block.gate.weight.grad),
        (layer.w1.grad, block.experts.gate_up_proj.grad[layer.mine]),
        (layer.w2.grad, block.experts.down_proj.grad[layer.mine]),
    ):
        torch.testing.assert_close(got, grad, rtol=1e-4, atol=1e-4 * grad.abs().max().item())


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "deepseek_v3"])
def test_same_as_transformers(family):
    run_ranks(2, same_as, family)
