"""Hugging Face's own layers as an outside oracle: `overlace run` on checkpoints that transformers saved.

OVERLACE_BIN names the program. Error bound: twice the error of transformers' fp32 layers against its fp64 ones (the
same weights), plus one unit in the last place of fp32 at the largest output.
"""

import copy
import os
import pathlib
import shutil
import subprocess
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

HIDDEN, LAYERS, SEQUENCE, SEQUENCES = 64, 3, 24, 2
TOKENS = SEQUENCE * SEQUENCES
TIMEOUT_S = 300

SHAPE = {
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "vocab_size": 32,
    "max_position_embeddings": 128,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

# Heads for three ranks, too; with five experts no two ranks have equally many.
OF_EXPERTS = {**SHAPE, "num_attention_heads": 6, "head_dim": 16, "experts_implementation": "eager"}
OF_QWENS_EXPERTS = {"num_key_value_heads": 6, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24}


DEEPSEEK = {
    **{**SHAPE, "experts_implementation": "eager"},
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "moe_intermediate_size": 24,
    "n_routed_experts": 12,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "n_shared_experts": 2,
    "routed_scaling_factor": 1.7,
    "first_k_dense_replace": 1,
}


def config_of(family):
    if family == "llama":
        return transformers.LlamaConfig(**SHAPE, num_key_value_heads=2, rope_parameters=LLAMA3_ROPE)
    if family == "llama_biased":
        linear = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
        return transformers.LlamaConfig(
            **SHAPE, num_key_value_heads=4, attention_bias=True, mlp_bias=True, rope_parameters=linear
        )
    if family == "qwen2":
        return transformers.Qwen2Config(**SHAPE, num_key_value_heads=2)
    if family == "qwen3":
        return transformers.Qwen3Config(**SHAPE, num_key_value_heads=1, head_dim=32)
    if family == "mistral":
        return transformers.MistralConfig(**SHAPE, num_key_value_heads=2, sliding_window=7)
    if family == "mistral_full":
        return transformers.MistralConfig(**SHAPE, num_key_value_heads=2, sliding_window=None)
    if family == "mixtral":
        return transformers.MixtralConfig(
            **OF_EXPERTS, num_key_value_heads=6, num_local_experts=5, num_experts_per_tok=2, sliding_window=9
        )
    if family == "qwen2_moe":  # the second of three layers is dense
        return transformers.Qwen2MoeConfig(
            **OF_EXPERTS, **OF_QWENS_EXPERTS, shared_expert_intermediate_size=40, mlp_only_layers=[1]
        )
    if family == "qwen3_moe":
        return transformers.Qwen3MoeConfig(**OF_EXPERTS, **OF_QWENS_EXPERTS, norm_topk_prob=True)
    if family == "qwen3_moe_sparse":  # only the second of three layers has experts
        return transformers.Qwen3MoeConfig(**OF_EXPERTS, **OF_QWENS_EXPERTS, attention_bias=True, decoder_sparse_step=2)
    if family == "deepseek_v3":
        return transformers.DeepseekV3Config(**DEEPSEEK)
    if family == "deepseek_v3_plain":
        return transformers.DeepseekV3Config(
            **{**DEEPSEEK, "n_group": 1, "topk_group": 1, "norm_topk_prob": False, "first_k_dense_replace": 0}
        )
    assert family == "gpt2"
    return transformers.GPT2Config(
        n_embd=HIDDEN, n_layer=LAYERS, n_head=4, vocab_size=32, n_positions=128, bos_token_id=0, eos_token_id=0
    )


FAMILIES = ["llama", "llama_biased", "qwen2", "qwen3", "mistral", "mistral_full", "gpt2"]
FAMILIES_OF_EXPERTS = ["mixtral", "qwen2_moe", "qwen3_moe", "qwen3_moe_sparse"]
FAMILIES_OF_BLOCKS = ["deepseek_v3", "deepseek_v3_plain"]


def randomise(model):
    """Weights of the usual scale; norms around 1 and biases that are not zero, so that none can be forgotten."""
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(torch.randn_like(buffer) * 0.2)
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn_like(parameter) * parameter.shape[-1] ** -0.5)
            else:
                is_scale = name.endswith("weight")
                parameter.copy_(torch.randn_like(parameter) * 0.3 + (1.0 if is_scale else 0.0))


def hidden_states_after(model, hidden_states):
    """What the last layer gives; neither embedding nor final norm."""
    body = copy.deepcopy(model.base_model)
    if hasattr(body, "h"):
        body.ln_f = torch.nn.Identity()
        body.wpe.weight.data.zero_()
    else:
        body.norm = torch.nn.Identity()
    batch = hidden_states.reshape(SEQUENCES, SEQUENCE, HIDDEN)
    with torch.no_grad():
        out = body(inputs_embeds=batch, use_cache=False).last_hidden_state
    return out.reshape(TOKENS, HIDDEN).double().numpy()


def sum_of_blocks(model, hidden_states):
    """What the blocks of experts of all layers that have one give of the same hidden states."""
    batch = hidden_states.reshape(SEQUENCES, SEQUENCE, HIDDEN)
    with torch.no_grad():
        blocks = [layer.mlp for layer in model.base_model.layers if hasattr(layer.mlp, "experts")]
        out = sum(block(batch) for block in blocks)
    return out.reshape(TOKENS, HIDDEN).double().numpy()


class Case:
    """A saved model with its input, and what transformers makes of it in both precisions."""

    def __init__(self, family, directory, make=hidden_states_after, **save_options):
        torch.manual_seed([*FAMILIES, *FAMILIES_OF_EXPERTS, *FAMILIES_OF_BLOCKS].index(family) + 1)
        config = config_of(family)
        config._attn_implementation = "eager"
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        randomise(model)
        model.save_pretrained(directory, **save_options)
        hidden_states = torch.randn(TOKENS, HIDDEN)
        self.directory = pathlib.Path(directory)
        self.input = self.directory / "input.npy"
        np.save(self.input, hidden_states.numpy())
        self.fp32 = make(model, hidden_states)
        self.fp64 = make(copy.deepcopy(model).double(), hidden_states.double())

    def bound(self):
        largest = np.float32(np.abs(self.fp64).max())
        return 2 * np.abs(self.fp32 - self.fp64).max() + np.spacing(largest)


@pytest.fixture(scope="module")
def program():
    path = os.environ.get("OVERLACE_BIN") or shutil.which("overlace")
    if not path:
        pytest.skip("OVERLACE_BIN is not set and overlace is not in PATH")
    return path


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    made = {}

    def make(family, **options):
        key = (family, *sorted(options.items(), key=lambda item: item[0]))
        if key not in made:
            made[key] = Case(family, tmp_path_factory.mktemp(family), **options)
        return made[key]

    return make


def run(program, case, ranks, *more):
    output = case.directory / f"output-{ranks}.npy"
    output.unlink(missing_ok=True)
    command = [program, "run", "--backend", "cpu", "--checkpoint", case.directory, "--input", case.input]
    command += ["--output", output, "--dtype", "fp32", "--ranks", ranks, "--sequence-length", SEQUENCE]
    command += ["--repeat", 1, *more]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=TIMEOUT_S)
    return done, output


def check(program, case, ranks, *more):
    done, output = run(program, case, ranks, *more)
    assert done.returncode == 0, done.stdout + done.stderr
    result = np.load(output)
    assert result.shape == (TOKENS, HIDDEN)
    assert result.dtype == np.float32
    error = np.abs(result.astype(np.float64) - case.fp64).max()
    assert error <= case.bound(), f"error {error}, transformers' own {np.abs(case.fp32 - case.fp64).max()}"


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_agrees_with_transformers(program, cases, family, ranks):
    check(program, cases(family), ranks)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("family", FAMILIES_OF_EXPERTS)
def test_experts_agree_with_transformers(program, cases, family, ranks):
    check(program, cases(family), ranks)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("family", [*FAMILIES_OF_BLOCKS, "mixtral", "qwen2_moe"])
def test_blocks_of_experts_agree_with_transformers(program, cases, family, ranks):
    check(program, cases(family, make=sum_of_blocks), ranks, "--part", "moe")


@pytest.mark.parametrize("options", [{"save_original_format": False}, {"max_shard_size": "60KB"}])
def test_blocks_are_read_from_other_files(program, cases, options):
    check(program, cases("deepseek_v3", make=sum_of_blocks, **options), 2, "--part", "moe")


@pytest.mark.parametrize(
    ("scale", "bias", "tokens", "changed"),
    [
        (1e-4, 0.0, 4104, {}),  # keys that are nearly alike: what rounds them is more than an ulp of their sum
        (30.0, 1000.0, 528, {"num_experts_per_tok": 1}),  # chosen by the bias alone, of scores that are nearly 0
    ],
)
def test_the_oracle_takes_what_rounding_explains(program, tmp_path, scale, bias, tokens, changed):
    torch.manual_seed(5)
    sizes = {"n_routed_experts": 64, "num_experts_per_tok": 4, "n_group": 8, "topk_group": 4, "num_hidden_layers": 2}
    config = transformers.DeepseekV3Config(**{**DEEPSEEK, **sizes, **changed})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    randomise(model)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(torch.randn_like(buffer) * bias)
    model.save_pretrained(tmp_path)
    hidden_states = torch.randn(tokens, HIDDEN) * scale
    np.save(tmp_path / "input.npy", hidden_states.numpy())
    case = types.SimpleNamespace(directory=tmp_path, input=tmp_path / "input.npy")
    done, output = run(program, case, 1, "--part", "moe")
    assert done.returncode == 0, done.stdout + done.stderr
    with torch.no_grad():
        want = model.base_model.layers[1].mlp(hidden_states[None])[0].numpy()
    far = np.abs(np.load(output) - want).max(1) > 1e-5 * np.sqrt(np.mean(want**2))
    assert far.mean() < 0.01  # some tokens choose others where two keys are as good


def test_blocks_alone_run_of_latent_attention(program, cases):
    done, output = run(program, cases("deepseek_v3", make=sum_of_blocks), 2)
    assert done.returncode == 3, done.stdout + done.stderr
    assert 'key "kv_lora_rank" is 16' in done.stderr and "--part moe" in done.stderr
    assert not output.exists()


@pytest.mark.parametrize("family", ["mixtral", "qwen2_moe"])
def test_reads_fused_experts(program, cases, family):
    check(program, cases(family, save_original_format=False), 2)


@pytest.mark.parametrize("family", ["qwen3", "gpt2", *FAMILIES_OF_EXPERTS])
def test_reads_sharded_checkpoints(program, cases, family):
    case = cases(family, max_shard_size="60KB")
    assert (case.directory / "model.safetensors.index.json").exists()
    assert len(list(case.directory.glob("model-*.safetensors"))) > 1
    check(program, case, 2)


def test_fewer_layers_differ(program, cases):
    """The check above can fail: one layer less is another result."""
    case = cases("llama")
    done, output = run(program, case, 2, "--layers", LAYERS - 1)
    assert done.returncode == 0, done.stdout + done.stderr
    assert np.abs(np.load(output) - case.fp64).max() > 1000 * case.bound()


def test_names_an_expert_that_is_missing(program, cases, tmp_path):
    from safetensors.torch import load_file, save_file  # transformers brings it

    case = cases("mixtral")
    for name in ["config.json", "input.npy"]:
        shutil.copy(case.directory / name, tmp_path)
    tensors = load_file(case.directory / "model.safetensors")
    lost = "model.layers.1.block_sparse_moe.experts.3.w3.weight"
    del tensors[lost]
    save_file(tensors, tmp_path / "model.safetensors")
    case = copy.copy(case)
    case.directory, case.input = tmp_path, tmp_path / "input.npy"
    done, output = run(program, case, 2)
    assert done.returncode == 5, done.stdout + done.stderr
    assert f'tensor "{lost}" is missing' in done.stderr
    assert not output.exists()


def test_refuses_what_it_cannot_split(program, cases):
    done, output = run(program, cases("llama"), 3)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "4 attention heads, which 3 ranks" in done.stderr
    assert not output.exists()
