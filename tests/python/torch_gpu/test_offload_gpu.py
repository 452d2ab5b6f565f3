"""Blocks that stream into slots of a GPU: bits of resident ones, copies beside computation, little else in memory."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)

import overlace  # noqa: E402
from overlace.offload import StreamedStates, _graphs, stream_blocks  # noqa: E402
from torch import nn  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import test_offload  # noqa: E402
import test_offload_backward  # noqa: E402


class Wide(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


def wide(layers: int, width: int, where: str) -> nn.Sequential:
    torch.manual_seed(3)
    with torch.device("cuda"):
        made = nn.Sequential(*[Wide(width) for _ in range(layers)])
    return made.requires_grad_(False).to(device=where, dtype=torch.bfloat16)


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("slots", [2, 3])
@pytest.mark.parametrize("kind", ["host", "file"])
def test_a_stack_gives_the_bits_of_a_resident_one(tmp_path, count, slots, kind):
    model, resident = test_offload.stack(count), test_offload.stack(count).cuda()
    source = test_offload.saved(model, tmp_path / "m.safetensors") if kind == "file" else "host"
    for block in model:
        block.shift = block.shift.cuda()  # a buffer does not stream
    x = torch.randn(7, test_offload.WIDTH, device="cuda")
    with stream_blocks(model, "cuda", source=source, slots=slots) as stream, torch.no_grad():
        for step in range(4):
            assert torch.equal(model(x + step), resident(x + step))
        queued = [model(x + step) for step in range(20)]  # the host does not wait between them
        for step, y in enumerate(queued):
            assert torch.equal(y, resident(x + step)), step
        assert stream.stats()["blocks"] >= 24 * count


def test_many_passes_are_queued_ahead_of_large_blocks():
    """Were a slot filled while a pass that was queued before still reads it, a later result would differ."""
    model, resident = wide(6, 2048, "cpu"), wide(6, 2048, "cuda")
    x = torch.randn(512, 2048, device="cuda", dtype=torch.bfloat16)
    with stream_blocks(model, "cuda"), torch.no_grad():
        got = [model(x * (1 + step)) for step in range(12)]
        for step, y in enumerate(got):
            assert torch.equal(y, resident(x * (1 + step))), step


def test_slots_are_all_that_lies_on_the_gpu():
    model = wide(8, 1024, "cpu")
    wide(1, 1024, "cuda")(torch.ones(16, 1024, device="cuda", dtype=torch.bfloat16))  # cuBLAS takes a workspace
    block = sum(p.nbytes for p in model[0].parameters())
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    with stream_blocks(model, "cuda") as stream, torch.no_grad():
        x = torch.randn(16, 1024, device="cuda", dtype=torch.bfloat16)
        model(x)
        torch.cuda.synchronize()
        held = torch.cuda.memory_allocated() - before
        assert 2 * block <= held < 2 * block + (2 << 20)
        assert stream.stats()["memory_bytes"] >= 2 * block


def share_beside(run: Callable[[], object]) -> float:
    """By the profiler's trace of two passes: the share of the copies' time that lies within kernels."""
    run()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(2):
            run()
        torch.cuda.synchronize()
    spans = [(e.name, e.time_range.start, e.time_range.end) for e in profile.events() if e.device_type.name == "CUDA"]
    copies = [(a, b) for name, a, b in spans if "HtoD" in name and b - a > 500]
    kernels = [(a, b) for name, a, b in spans if "Memcpy" not in name and "Memset" not in name]
    assert len(copies) >= 8 and kernels, sorted({name for name, _, _ in spans})
    beside = sum(max(0, min(b, d) - max(a, c)) for a, b in copies for c, d in kernels)
    return beside / sum(b - a for a, b in copies)


def test_copies_run_beside_the_computation():
    model = wide(6, 4096, "cpu")
    x = torch.randn(16384, 4096, device="cuda", dtype=torch.bfloat16)
    with stream_blocks(model, "cuda"), torch.no_grad():
        assert share_beside(lambda: model(x)) > 0.5
        captured = Captured(model, x.shape)
        assert share_beside(captured.graph.replay) > 0.5


def test_gradients_of_adapters_are_those_of_resident_blocks():
    blocks, resident = test_offload_backward.stack(4), test_offload_backward.stack(4).cuda()
    for parameter in (p for p in blocks.parameters() if p.requires_grad):
        parameter.data = parameter.data.cuda()
    x = torch.randn(7, test_offload_backward.WIDTH, device="cuda")
    with stream_blocks(blocks, "cuda", backward=True):
        for step in range(3):
            wanted = test_offload_backward.through(resident, x + step).square().sum()
            got = test_offload_backward.through(blocks, x + step).square().sum()
            assert torch.equal(got, wanted)
            for loss in (wanted, got):
                loss.backward()
            theirs = {name: p.grad for name, p in resident.named_parameters() if p.requires_grad}
            for name, parameter in blocks.named_parameters():
                if parameter.requires_grad:
                    assert torch.equal(parameter.grad, theirs[name]), (step, name)


class Captured:
    """A graph of a pass; a replay begins with other bytes in its slots."""

    def __init__(self, model: Callable[[torch.Tensor], torch.Tensor], shape: tuple[int, ...]) -> None:
        self.x = torch.zeros(shape, device="cuda", dtype=torch.bfloat16)
        model(self.x)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        first = len(_graphs._KEPT)
        with torch.cuda.graph(self.graph):
            self.y = model(self.x)
        self.slots = [kept.what[-1] for kept in _graphs._KEPT[first:]]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        for memory in self.slots:
            memory.fill_(0x7F)
        self.x.copy_(x)
        self.graph.replay()
        return self.y.clone()

    def end(self) -> None:
        self.slots.clear()
        self.graph.reset()


def inputs(count: int, shape: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(count)]


def has_graphs(stream, wanted: int) -> bool:
    """A graph's end is told by a thread of the driver, soon."""
    deadline = time.monotonic() + 10
    while stream.stats()["graphs"] != wanted and time.monotonic() < deadline:
        time.sleep(0.01)
    return stream.stats()["graphs"] == wanted


@pytest.mark.parametrize("slots", [2, 3])
@pytest.mark.parametrize("resident", [0, "16MiB"])
def test_replays_have_the_bits_of_resident_blocks(slots, resident):
    model, wanted = wide(5, 1024, "cpu"), wide(5, 1024, "cuda")
    with stream_blocks(model, "cuda", slots=slots, resident=resident) as stream, torch.no_grad():
        captured = Captured(model, (64, 1024))
        assert len(captured.slots) == stream.stats()["graphs"] == 1
        queued = []
        for i, x in enumerate(inputs(20, (64, 1024))):
            queued.append((captured(x), x))
            if i % 3 == 0:
                queued.append((model(x), x))  # the host waits for none of them
        for i, (y, x) in enumerate(queued):
            assert torch.equal(y, wanted(x)), i


def test_graphs_of_two_shapes_and_of_a_part_of_the_blocks():
    model, wanted = wide(4, 1024, "cpu"), wide(4, 1024, "cuda")
    with stream_blocks(model, "cuda"), torch.no_grad():
        some, many, part = Captured(model, (16, 1024)), Captured(model, (512, 1024)), Captured(model[:2], (16, 1024))
        twice = Captured(lambda x: model(model(x)), (16, 1024))
        assert [len(c.slots) for c in (some, many, part, twice)] == [1, 1, 1, 1]
        for x, y in zip(inputs(5, (16, 1024)), inputs(5, (512, 1024)), strict=True):
            assert torch.equal(some(x), wanted(x)) and torch.equal(many(y), wanted(y))
            assert torch.equal(part(x), wanted[:2](x)) and torch.equal(twice(x), wanted(wanted(x)))
            assert torch.equal(model(y), wanted(y))


def test_values_that_change_between_replays_are_seen():
    model, wanted = wide(3, 512, "cpu"), wide(3, 512, "cuda")
    with stream_blocks(model, "cuda"), torch.no_grad():
        captured = Captured(model, (16, 512))
        for x in inputs(3, (16, 512)):
            assert torch.equal(captured(x), wanted(x))
            torch.cuda.synchronize()  # a replay reads them when it runs
            for listed in (model, wanted):
                listed[1].up.weight.mul_(2)
            assert torch.equal(captured(x), wanted(x)) and torch.equal(model(x), wanted(x))


def test_a_graph_holds_what_it_uses_until_it_ends():
    model, wanted = wide(3, 1024, "cpu"), wide(3, 1024, "cuda")
    (x,) = inputs(1, (16, 1024))
    with torch.no_grad():
        with stream_blocks(model, "cuda") as stream:
            first, second = Captured(model, (16, 1024)), Captured(model, (16, 1024))
            before = torch.cuda.memory_allocated()
            first.end()
            assert has_graphs(stream, 1)
            slots = 2 * sum(p.nbytes for p in model[0].parameters())
            assert torch.cuda.memory_allocated() <= before - slots
            assert torch.equal(second(x), wanted(x)) and torch.equal(model(x), wanted(x))
        for parameter in model.parameters():
            parameter.zero_()  # the caller's memory; the graph goes on with what it holds
        pinned = [torch.zeros_like(p, device="cpu").pin_memory() for p in model.parameters()]
        assert torch.equal(second(x), wanted(x))
        second.end()
        assert has_graphs(stream, 0) and len(pinned) == 6


def test_captures_that_are_refused(tmp_path):
    model = test_offload.stack(3)
    x = torch.randn(7, test_offload.WIDTH, device="cuda")
    file = test_offload.saved(model, tmp_path / "m.safetensors")
    for options, text in (
        ({"source": file}, 'wanted source="host", as a graph reads no files'),
        ({"backward": True}, "wanted backward=False"),
    ):
        with stream_blocks(model, "cuda", **options), torch.no_grad():
            model(x)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with pytest.raises(overlace.Unsupported, match=text), torch.cuda.graph(graph):
                model(x)
            torch.cuda.synchronize()
            assert torch.isfinite(model(x)).all()
    with stream_blocks(model, "cuda") as stream, torch.no_grad():
        model(x)
        torch.cuda.synchronize()
        with (
            pytest.raises(overlace.InvalidArgument, match="wanted it behind"),
            torch.cuda.graph(torch.cuda.CUDAGraph()),
        ):
            stream.close()
        torch.cuda.synchronize()
        assert torch.isfinite(model(x)).all()


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_a_model_of_transformers_generates_the_same_tokens(kind):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 4, "vocab_size": 97}
    config = transformers.AutoConfig.for_model(
        kind, **sizes, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64
    )
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(config).eval().requires_grad_(False).cuda()
    tokens = torch.randint(0, 97, (2, 9), device="cuda")
    wanted = model(tokens).logits
    texts = model.generate(tokens, max_new_tokens=12, do_sample=False)
    layers = model.model.layers.to("cpu")
    with stream_blocks(layers, "cuda"):
        assert torch.equal(model(tokens).logits, wanted)
        assert torch.equal(model.generate(tokens, max_new_tokens=12, do_sample=False), texts)
        # The cache that transformers offloads by layer, beside it.
        moved = model.generate(tokens, max_new_tokens=12, do_sample=False, cache_implementation="offloaded")
        assert torch.equal(moved, texts)


def test_states_of_an_optimizer_rest_in_pinned_memory():
    ours, theirs = wide(6, 1024, "cuda").requires_grad_(), wide(6, 1024, "cuda").requires_grad_()
    optimizer, resident = (torch.optim.AdamW(model.parameters(), lr=1e-3) for model in (ours, theirs))
    with StreamedStates(optimizer, bucket_bytes="4MiB") as streamed:
        for step in range(6):
            x = torch.randn(32, 1024, device="cuda", dtype=torch.bfloat16)
            for model, stepper in ((ours, streamed), (theirs, resident)):
                stepper.zero_grad()
                model(x).square().mean().backward()
                stepper.step()
            for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
                assert torch.equal(p, q), step
        stats, states = streamed.stats(), optimizer.state_dict()["state"]
        for index, of in resident.state_dict()["state"].items():
            assert states[index]["exp_avg"].is_pinned()
            assert all(torch.equal(states[index][key].cuda(), of[key]) for key in ("exp_avg", "exp_avg_sq"))
        assert stats["memory_bytes"] < stats["resting_bytes"] / 2
