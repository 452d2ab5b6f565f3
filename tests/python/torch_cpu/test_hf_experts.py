"""Hugging Face models whose experts run by overlace.ops.moe, by their own argument: ep_implementation="overlace"."""

import importlib
import re
import sys

import pytest
from ranks import said_by_programs, torch

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate", reason="transformers shards a model with it")
FAMILIES = ("mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v3")
EXPERTS = 6  # transformers cuts them into equal parts alone
COMMON = {
    "hidden_size": 24,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "num_hidden_layers": 2,
    "num_experts_per_tok": 2,
    "vocab_size": 36,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
HEAD = """
import json, sys
import torch, torch.distributed as dist, transformers
from transformers.distributed import DistributedConfig
dist.init_process_group("gloo")
import overlace
from overlace.compat.transformers import register
register()
calls, moe = [], overlace.ops.moe
def counted(*arguments, **options):
    calls.append(1)
    return moe(*arguments, **options)
overlace.ops.moe = counted
rank, size = dist.get_rank(), dist.get_world_size()
load = transformers.AutoModelForCausalLM.from_pretrained
def sharded(path, **sizes):
    plan = DistributedConfig(ep_size=size, ep_implementation="overlace", **sizes)
    return load(path, dtype=torch.float32, distributed_config=plan)
"""
EQUAL = """
from torch.distributed.tensor import DTensor
ids = (torch.arange(size * 12).reshape(size, 12) * 7) % 36

def loss_and_gradients(model, mine, rows):
    logits = model(mine).logits
    (logits.double() - torch.eye(36)[rows]).square().sum().backward()
    return logits.detach().double(), {name: p.grad for name, p in model.named_parameters()}

def whole(t):
    return (t.full_tensor() if isinstance(t, DTensor) else t).double()

def errors(got, want):
    one = [(whole(t) - want[n].double()).norm() / want[n].double().norm() for n, t in got.items()]
    return torch.stack(one).max().item()  # unlike max() of numbers it does not lose NaN

said = {}
for family in sys.argv[2].split():
    path = f"{sys.argv[1]}/{family}"
    truth, truths = loss_and_gradients(load(path, dtype=torch.float64, experts_implementation="eager"), ids, ids)
    base, bases = loss_and_gradients(load(path, dtype=torch.float32), ids, ids)
    for kind in ("tp_size", "fsdp_size"):
        mine = ids if kind == "tp_size" else ids[rank : rank + 1]
        model = sharded(path, **{kind: size})
        held = [tuple(p.to_local().shape) for n, p in model.named_parameters() if n.endswith("experts.down_proj")]
        before = len(calls)
        got, grads = loss_and_gradients(model, mine, mine)
        ran = len(calls) - before
        if kind == "fsdp_size":  # which makes means over ranks
            grads = {n: whole(grad) * size for n, grad in grads.items()}
        wanted, based = (t if kind == "tp_size" else t[rank : rank + 1] for t in (truth, base))
        report = {"ran": ran, "held": held, "out": (got - wanted).norm().item(), "base": (based - wanted).norm().item()}
        report |= {"grad": errors(grads, truths), "grad_base": errors(bases, truths)}
        if kind == "tp_size":
            words = [m.generate(ids[:2], max_new_tokens=6, do_sample=False).tolist() for m in (model, load(path))]
            report["generated"] = words[0] == words[1]
        said[f"{family} {kind}"] = report
print(json.dumps(said))
"""
REFUSED = """
said = {}
for family in sys.argv[2].split():
    try:
        sharded(f"{sys.argv[1]}/{family}", fsdp_size=size)
    except Exception as error:
        said[family] = [type(error).__name__, str(error)]
print(json.dumps(said))
"""


def config_of(family, experts=EXPERTS):
    routed = {"moe_intermediate_size": 32, "intermediate_size": 36}
    if family == "mixtral":
        return transformers.MixtralConfig(**COMMON, intermediate_size=32, num_local_experts=experts)
    if family == "qwen2_moe":
        return transformers.Qwen2MoeConfig(**COMMON, **routed, num_experts=experts, shared_expert_intermediate_size=36)
    if family == "qwen3_moe":
        return transformers.Qwen3MoeConfig(**COMMON, **routed, num_experts=experts, norm_topk_prob=True, head_dim=8)
    if family == "gpt_oss":
        sizes = {"intermediate_size": 32, "num_local_experts": experts, "head_dim": 8}
        return transformers.GptOssConfig(**COMMON, **sizes)
    latent = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8}
    groups = {"n_routed_experts": experts, "n_group": 2, "topk_group": 1, "n_shared_experts": 1}
    return transformers.DeepseekV3Config(**COMMON, **routed, **latent, **groups, first_k_dense_replace=1)


def saved(folder, family, config):
    torch.manual_seed(1)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder / family)


@pytest.mark.parametrize(("size", "families"), [(2, FAMILIES), (3, FAMILIES[::3])], ids=("two", "three"))
def test_models_are_what_they_are_on_one_rank(size, families, tmp_path):
    for family in families:
        saved(tmp_path, family, config_of(family))
    for said in said_by_programs(HEAD + EQUAL, size, str(tmp_path), " ".join(families)):
        assert len(said) == 2 * len(families)
        for name, report in said.items():
            assert report["held"] and all(shape == [EXPERTS // size, 24, 32] for shape in report["held"]), name
            assert report["ran"] == len(report["held"]), name
            assert report["out"] <= 2 * report["base"], (name, report)
            assert report["grad"] <= 2 * report["grad_base"], (name, report)
            assert report.get("generated", True), name


def test_what_cannot_be_run_is_refused_when_it_is_loaded(tmp_path):
    saved(tmp_path, "mixtral", config_of("mixtral", experts=7))
    saved(tmp_path, "gpt_oss", config_of("gpt_oss"))
    tanh = config_of("qwen3_moe")
    tanh.hidden_act = "tanh"
    saved(tmp_path, "qwen3_moe", tanh)
    for said in said_by_programs(HEAD + REFUSED, 2, str(tmp_path), "mixtral gpt_oss qwen3_moe"):
        kind, text = said["mixtral"]
        assert kind == "ValueError" and "7 experts across 2" in text  # of transformers
        kind, text = said["gpt_oss"]
        assert kind == "Unsupported" and "has_bias of GptOssExperts is True, wanted False" in text
        kind, text = said["qwen3_moe"]
        assert kind == "Unsupported" and "act_fn of Qwen3MoeExperts is Tanh, wanted one of" in text


def test_a_version_without_the_registry_is_named(monkeypatch):
    from overlace.errors import Unsupported

    monkeypatch.setitem(sys.modules, "transformers.distributed.expert_parallel", None)
    monkeypatch.delitem(sys.modules, "overlace.compat.transformers", raising=False)
    module = importlib.import_module("overlace.compat.transformers")
    with pytest.raises(Unsupported, match=rf"transformers is {re.escape(transformers.__version__)}, .* wanted 5\.23"):
        module.register()
    module.enable()  # tensor parallelism has a registry of its own
    module.disable()
