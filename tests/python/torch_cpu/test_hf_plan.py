"""A stock Hugging Face model under its own tensor parallelism, `tp_plan="auto"`: the pass of overlace.compile makes
gemm_ar of its layers' all-reduces, which are in place, and a style of overlace.compat.transformers does so in eager."""

import itertools

import pytest
from ranks import said_by_programs, torch

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate", reason="transformers shards a model with it")

RANKS, LAYERS = 2, 2
BODY = """
import json, sys, warnings
import torch, torch.distributed as dist, overlace, transformers
warnings.simplefilter("ignore")  # of transformers, about the name of an argument
dist.init_process_group("gloo")
overlace.init()
load = transformers.LlamaForCausalLM.from_pretrained
whole, sharded = load(sys.argv[1]), load(sys.argv[1], tp_plan="auto")
ids = torch.arange(2 * 12).reshape(2, 12) % 32
with torch.no_grad(), overlace.compile.enable(when="always"):
    got = torch.compile(sharded, backend=overlace.compile.aot_eager)(ids).logits
    calls = overlace.context_of().stats().calls
    report = [(c.became, c.reason) for c in overlace.compile.report().candidates]
    off = [(got - other(ids).logits).abs().max().item() for other in (whole, sharded)]
print(json.dumps({"calls": calls, "report": report, "off": off}))
"""


EAGER = """
import json, sys, warnings
import torch, torch.distributed as dist, overlace, transformers
import overlace.compat.transformers as styles
dist.init_process_group("gloo")
load = transformers.LlamaForCausalLM.from_pretrained
def quietly(**parallel):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of transformers, about the name of an argument
        return load(sys.argv[1], **parallel)
ids = torch.arange(2 * 12).reshape(2, 12) % 32
styles.enable()
styles.enable()
whole, sharded = quietly(), quietly(tp_plan="auto")
styles.disable()
theirs = quietly(tp_plan="auto")
counts = []
def calls():
    counts.append(overlace.context_of().stats().calls)
with torch.no_grad():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        early = sharded(ids).logits
    told = sum("has no team" in str(w.message) for w in seen)
    overlace.init()
    calls()
    got = sharded(ids).logits
    calls()
    other = theirs(ids).logits
    calls()
    off = [(got - x).abs().max().item() for x in (early, other, whole(ids).logits)]
loss = sharded(ids).logits.float().square().mean()
loss.backward()
calls()
whole_loss = whole(ids).logits.float().square().mean()
off.append(abs(loss.item() - whole_loss.item()))
print(json.dumps({"calls": counts, "told": told, "off": off}))
"""


def save_llama(path, layers):
    """A small model of random weights."""
    torch.manual_seed(1)
    transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=32,
            max_position_embeddings=64,
        )
    ).save_pretrained(path)


def said_by_ranks(script, tmp_path):
    """What the ranks of `script` print, on a model of random weights."""
    save_llama(tmp_path, LAYERS)
    yield from said_by_programs(script, RANKS, str(tmp_path))


def test_all_collectives_of_a_llamas_layers_are_rewritten(tmp_path):
    for said in said_by_ranks(BODY, tmp_path):
        assert said["calls"] == 2 * LAYERS, said
        assert [became for became, _ in said["report"]].count("gemm_ar") == 2 * LAYERS, said
        assert max(said["off"]) < 1e-5, said


def test_a_style_takes_gemm_ar_without_a_compiler(tmp_path):
    for said in said_by_ranks(EAGER, tmp_path):
        assert [b - a for a, b in itertools.pairwise(said["calls"])] == [2 * LAYERS, 0, 0], said
        assert said["told"] > 0, said  # before overlace.init
        assert max(said["off"]) < 1e-5, said
