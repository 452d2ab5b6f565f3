"""Blocks whose weights pass through slots give the bits of blocks that are resident."""

from __future__ import annotations

import copy
import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import overlace  # noqa: E402
from overlace.offload import stream_blocks  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from torch import nn  # noqa: E402

torch.set_num_threads(1)
WIDTH = 48


class Mlp(nn.Module):
    """Two layers, a vector and a buffer."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width, bias=False)
        self.gain = nn.Parameter(torch.randn(width))
        self.register_buffer("shift", torch.randn(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.gain * self.down(torch.relu(self.up(x))) + self.shift


def stack(count: int = 5, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(*[Mlp(WIDTH, 64 + 8 * i) for i in range(count)]).requires_grad_(False)


def saved(model: nn.Module, path: Path, prefix: str = "model.layers.") -> Path:
    save_file({prefix + name: value.contiguous() for name, value in model.state_dict().items()}, str(path))
    return path


def addresses(model: nn.Module) -> dict[str, int]:
    return {name: p.data_ptr() for name, p in model.named_parameters()}


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(7, WIDTH, generator=torch.Generator().manual_seed(9))


@pytest.mark.parametrize("count", [1, 2, 5, 6])
@pytest.mark.parametrize("slots", [2, 3])
@pytest.mark.parametrize("kind", ["host", "file"])
def test_a_stack_gives_the_bits_of_a_resident_one(tmp_path, x, count, slots, kind):
    model, resident = stack(count), stack(count)
    source = saved(model, tmp_path / "m.safetensors") if kind == "file" else "host"
    before, values = addresses(model), copy.deepcopy(model.state_dict())
    stream = stream_blocks(model, "cpu", source=source, slots=slots)
    assert hooks(model) == 2 * count
    with torch.no_grad():
        for step in range(4):
            assert torch.equal(model(x + step), resident(x + step))
    state = model.state_dict()
    assert list(state) == list(values) and all(torch.equal(state[n], values[n]) for n in values)
    stats = stream.stats()
    assert stats["blocks"] == 4 * count and stats["bytes"] == 4 * sum(p.nbytes for p in model.parameters())
    stream.close()
    assert hooks(model) == 0
    assert (addresses(model) == before) == (kind == "host")
    with torch.no_grad():
        assert torch.equal(model(x), resident(x))
    stream.close()  # a second time is nothing


def test_slots_are_all_the_memory_and_each_block_keeps_its_own(x):
    model = stack(5)
    seen: dict[int, set[int]] = {}
    for i, block in enumerate(model):
        block.register_forward_hook(lambda m, a, o, i=i: seen.setdefault(i, set()).add(m.up.weight.data_ptr()))
    with stream_blocks(model, "cpu") as stream, torch.no_grad():
        for _ in range(3):
            model(x)
        largest = sum(-(-p.nbytes // 4096) * 4096 for p in model[4].parameters())
        assert stream.stats()["memory_bytes"] == 2 * largest < sum(p.nbytes for p in model.parameters())
    assert all(len(places) == 1 for places in seen.values()) and len(set.union(*seen.values())) == 2


def test_parameters_are_slots_only_while_their_block_runs(x):
    model = stack(3)
    at = addresses(model)
    inside = []
    model[1].up.register_forward_pre_hook(
        lambda m, a: inside.append((model[1].gain.data_ptr(), model[0].gain.data_ptr()))
    )
    with stream_blocks(model, "cpu"), torch.no_grad():
        model(x)
        assert addresses(model) == at
    assert inside[0][0] != at["1.gain"] and inside[0][1] == at["0.gain"]


@pytest.mark.parametrize("source", ["host", "file"])
def test_models_of_the_meta_device_and_blocks_that_stay(tmp_path, x, source):
    resident = stack(6)
    path = saved(resident, tmp_path / "m.safetensors", "h.")
    if source == "file":
        with torch.device("meta"):
            model = nn.Sequential(*[Mlp(WIDTH, 64 + 8 * i) for i in range(6)]).requires_grad_(False)
        for mine, theirs in zip(model, resident, strict=True):
            mine.shift = theirs.shift.clone()
    else:
        model = stack(6)
    block_bytes = max(sum(p.nbytes for p in b.parameters()) for b in model)
    with stream_blocks(model, "cpu", source=path if source == "file" else "host", resident=2 * block_bytes) as stream:
        with torch.inference_mode():
            for _ in range(3):
                assert torch.equal(model(x), resident(x))
        assert stream.stats()["blocks"] == 3 * 4
        assert 0 < stream.stats()["resident_bytes"] <= 2 * block_bytes
    with stream_blocks(model, "cpu", resident="1GiB") as stream, torch.no_grad():
        assert torch.equal(model(x), resident(x)) and stream.stats()["blocks"] == 0


def test_tied_weights_stream_once_or_stay(tmp_path, x):
    def tied() -> nn.Sequential:
        model = stack(4)
        model[0].also = model[0].gain  # in one block: once
        model[3].up.weight = model[1].up.weight = nn.Parameter(torch.randn(64, WIDTH), requires_grad=False)
        model[3].up.bias = nn.Parameter(torch.zeros(64), requires_grad=False)
        model[1].up.bias = nn.Parameter(torch.ones(64), requires_grad=False)
        model[1].down.weight = nn.Parameter(torch.randn(WIDTH, 64), requires_grad=False)
        model[3].down.weight = nn.Parameter(torch.randn(WIDTH, 64), requires_grad=False)
        return model

    torch.manual_seed(3)
    model = tied()
    resident = copy.deepcopy(model)
    with stream_blocks(model, "cpu") as stream, torch.no_grad():
        for _ in range(3):
            assert torch.equal(model(x), resident(x))
        assert stream.stats()["bytes"] == 3 * (sum(p.nbytes for p in model.parameters()) - model[1].up.weight.nbytes)
        assert stream.stats()["resident_bytes"] == model[1].up.weight.nbytes
        assert model[1].up.weight is model[3].up.weight and model[0].also is model[0].gain
    # A file has one name of each.
    state = {f"layers.{n}": v for n, v in model.state_dict().items() if n not in ("3.up.weight", "0.also")}
    save_file(state, str(tmp_path / "m.safetensors"))
    with stream_blocks(model, "cpu", source=tmp_path / "m.safetensors"), torch.no_grad():
        assert torch.equal(model(x), resident(x))


class Mixed(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.a = nn.Parameter(torch.randn(3, 5, dtype=torch.bfloat16), requires_grad=False)
        self.b = nn.Parameter(torch.randn(7, dtype=torch.float64), requires_grad=False)
        self.c = nn.Parameter(torch.randint(-99, 99, (1, 3), dtype=torch.int8), requires_grad=False)
        self.d = nn.Parameter(torch.randn(6, 4).t(), requires_grad=False)  # columns first
        self.e = nn.Parameter(torch.empty(0, 4), requires_grad=False)
        self.f = nn.Parameter(torch.tensor(2.5), requires_grad=False)

    def forward(self, total: torch.Tensor) -> torch.Tensor:
        parts = [p.double().reshape(-1) @ torch.arange(p.numel(), dtype=torch.float64) for p in self.parameters()]
        return total * 0.5 + torch.stack(parts).sum()


def test_mixed_types_and_strides(tmp_path):
    model = nn.ModuleList([Mixed(i) for i in range(3)])
    resident = copy.deepcopy(model)

    def run(blocks: nn.ModuleList) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for block in blocks:
            total = block(total)
        return total

    with stream_blocks(model, "cpu"), torch.no_grad():
        assert torch.equal(run(model), run(resident)) and torch.equal(run(model), run(resident))
        assert all(block.d.stride() == (1, 4) for block in model)
    with stream_blocks(model, "cpu", source=saved(model, tmp_path / "m.safetensors")), torch.no_grad():
        assert torch.equal(run(model), run(resident))


class Nested(nn.Module):
    """Calls the next block from inside."""

    def __init__(self, inner: nn.Module, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.lin = nn.Linear(WIDTH, WIDTH)
        self._next = [inner]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lin(self._next[0](torch.relu(self.lin(x))))


def test_a_block_that_calls_the_next_and_one_that_calls_itself(x):
    leaf = Mlp(WIDTH, 32)
    blocks = nn.ModuleList([Nested(leaf, 5), leaf, Mlp(WIDTH, 40)]).requires_grad_(False)
    run = lambda b: b[2](b[0](x))  # noqa: E731
    wanted = run(blocks)
    with stream_blocks(blocks, "cpu") as stream, torch.no_grad():
        for _ in range(3):
            assert torch.equal(run(blocks), wanted)
        assert stream.stats()["blocks"] == 9
    deep = nn.ModuleList([Nested(Nested(leaf, 1), 2), leaf]).requires_grad_(False)
    deep[0]._next = [deep[0]]  # itself, without end: the error passes, and no slot stays behind
    with stream_blocks(deep, "cpu") as stream, torch.no_grad():
        with pytest.raises(RecursionError):
            deep[0](x)
        deep[0]._next = [leaf]
        got = deep[0](x)
    with torch.no_grad():
        assert torch.equal(got, deep[0](x))


def test_exceptions_and_early_returns_leave_no_slot_behind(x):
    model, resident = stack(5), stack(5)
    with stream_blocks(model, "cpu") as stream, torch.no_grad():
        at = addresses(model)
        for stop in (0, 1, 3, 4):

            def fail(m, a):
                raise KeyError("on purpose")

            handle = model[stop].up.register_forward_pre_hook(fail)
            with pytest.raises(KeyError, match="on purpose"):
                model(x)
            handle.remove()
            assert addresses(model) == at
            assert torch.equal(model(x), resident(x))
            h = x
            for block in model[: stop + 1]:  # a model that ends early
                h = block(h)
            assert torch.equal(model(x), resident(x))
        assert stream.stats()["memory_bytes"] > 0


def test_an_interrupt_leaves_no_slot_behind(x):
    model, resident = stack(4), stack(4)
    with stream_blocks(model, "cpu"), torch.no_grad():
        at = addresses(model)

        def interrupt(m, a):
            raise KeyboardInterrupt

        handle = model[2].up.register_forward_pre_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            model(x)
        handle.remove()
        assert torch.equal(model(x), resident(x))
        assert addresses(model) == at


def test_the_first_block_inside_another_one_is_out_of_order(x):
    first = Mlp(WIDTH, 32)
    blocks = nn.ModuleList([first, Nested(first, 5)]).requires_grad_(False)
    wanted = first(x)
    with stream_blocks(blocks, "cpu"), torch.no_grad():
        assert torch.equal(blocks[0](x), wanted)
        text = r"blocks.0 was called inside blocks.1, wanted blocks.0"
        with pytest.raises(overlace.Desync, match=text):
            blocks[1](x)
        assert torch.equal(blocks[0](x), wanted)


def test_two_models_beside_each_other(tmp_path, x):
    models, residents = [stack(3, 1), stack(4, 2)], [stack(3, 1), stack(4, 2)]
    first = stream_blocks(models[0], "cpu")
    second = stream_blocks(models[1], "cpu", source=saved(models[1], tmp_path / "m.safetensors"))
    with torch.no_grad():
        a = b = x
        c = d = x
        for i in range(4):  # by turns, block by block
            if i < 3:
                a, c = models[0][i](a), residents[0][i](c)
            b, d = models[1][i](b), residents[1][i](d)
        assert torch.equal(a, c) and torch.equal(b, d)
        first.close()
        assert torch.equal(models[1](x), residents[1](x)) and torch.equal(models[0](x), residents[0](x))
    second.close()


def test_an_order_of_ones_own(x):
    model, resident = stack(3), stack(3)
    order = [0, 1, 2, 1]

    def run(m: nn.Sequential) -> torch.Tensor:
        h = x
        for i in order:
            h = m[i](h)
        return h

    with stream_blocks(model, "cpu", order=order), torch.no_grad():
        assert all(torch.equal(run(model), run(resident)) for _ in range(3))


def test_values_that_change_between_passes_are_seen(x):
    model, resident = stack(4), stack(4)
    with stream_blocks(model, "cpu"), torch.no_grad():
        model(x)
        for m in (model, resident):
            m[0].gain.mul_(3)  # read ahead already
            m.load_state_dict({n: v + 1 for n, v in m.state_dict().items()})
        assert torch.equal(model(x), resident(x))


def test_compile_does_not_compile_again(x):
    model, resident = stack(4), stack(4)
    compiled: list[int] = []

    def backend(graph, inputs):
        compiled.append(1)
        return graph.forward

    torch._dynamo.reset()
    with stream_blocks(model, "cpu"), torch.no_grad():
        for block in model:
            block.compile(backend=backend)
        assert torch.equal(model(x), resident(x))
        first = len(compiled)
        for step in range(3):
            assert torch.equal(model(x + step), resident(x + step))
        assert first > 0 and len(compiled) == first
    torch._dynamo.reset()


def test_what_is_compiled_has_no_graph_break_in_a_block(x):
    """All blocks share one graph of their forward; a model that is compiled whole breaks between blocks only."""
    resident = nn.Sequential(*[Mlp(WIDTH, 64) for _ in range(4)]).requires_grad_(False)
    by_block, whole = copy.deepcopy(resident), copy.deepcopy(resident)
    graphs: list[int] = []

    def backend(graph, inputs):
        graphs.append(sum(node.target is torch.relu for node in graph.graph.nodes))
        return graph.forward

    def compiled(model: nn.Module, call) -> list[int]:
        torch._dynamo.reset()
        graphs.clear()
        with stream_blocks(model, "cpu"), torch.no_grad():
            for step in range(3):
                assert torch.equal(call(x + step), resident(x + step))
        return list(graphs)

    for block in by_block:
        block.forward = torch.compile(block.forward, backend=backend, fullgraph=True)
    assert compiled(by_block, by_block) == [1]
    assert compiled(whole, torch.compile(whole, backend=backend)) == [1]
    torch._dynamo.reset()


class Attend(nn.Module):
    """A block of a diffusion transformer: it modulates two streams by a time step and returns both."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.modulate, self.mix = nn.Linear(width, 4 * width), nn.Linear(width, width)

    def forward(self, hidden: torch.Tensor, *, context: torch.Tensor, step: torch.Tensor) -> tuple[torch.Tensor, ...]:
        shift, scale, of_hidden, of_context = self.modulate(step).chunk(4, dim=-1)
        both = self.mix(torch.cat([context, hidden]) * (1 + scale) + shift)
        return context + of_context * both[: len(context)], hidden + of_hidden * both[len(context) :]


@pytest.mark.parametrize("kind", ["host", "file"])
def test_a_diffusion_transformer_denoises_to_the_same_bits(tmp_path, x, kind):
    torch.manual_seed(3)
    resident = nn.ModuleList(Attend(WIDTH) for _ in range(5)).requires_grad_(False)
    blocks = copy.deepcopy(resident)
    source = saved(resident, tmp_path / "d.safetensors", "transformer_blocks.") if kind == "file" else "host"

    def denoised(stack: nn.ModuleList) -> list[torch.Tensor]:
        out, image = [], x
        for time in (1.0, 0.5, 0.25):
            for guided in (False, True):  # two passes a step, as guidance has them
                hidden, context = image, x[:3] * guided
                for block in stack:
                    context, hidden = block(hidden, context=context, step=torch.full((1, WIDTH), time))
                out.append(hidden)
            image = out[-2] + 2 * (out[-1] - out[-2])
        return out

    with torch.inference_mode():
        wanted = denoised(resident)
        with stream_blocks(blocks, "cpu", source=source) as stream:
            for ours, theirs in zip(denoised(blocks), wanted, strict=True):
                assert torch.equal(ours, theirs)
            assert stream.stats()["blocks"] == 5 * 6


# What is refused.


def test_calls_out_of_order(x):
    model, resident = stack(4), stack(4)
    with stream_blocks(model, "cpu"), torch.no_grad():
        model[0](x)
        with pytest.raises(overlace.Desync) as raised:
            model[2](x)
        text = "stream_blocks: blocks.2 was called, wanted blocks.1, the next of the order, or blocks.0, its first"
        assert str(raised.value) == text and raised.value.code == "desync"
        assert torch.equal(model(x), resident(x))


def test_gradients_are_refused(x):
    model = stack(3)
    with stream_blocks(model, "cpu"):
        with pytest.raises(
            overlace.Unsupported, match=r"blocks.0 was called with gradients enabled; wanted torch.no_grad"
        ):
            model(x.requires_grad_())
        assert torch.equal(model(x.detach()), stack(3)(x.detach()))  # nothing wants one


def test_parameters_that_are_replaced_or_written(tmp_path, x):
    model = stack(3)
    with stream_blocks(model, "cpu"), torch.no_grad():
        was = model[1].gain
        model[1].gain = nn.Parameter(torch.zeros(WIDTH), requires_grad=False)
        with pytest.raises(overlace.InvalidArgument, match=r"blocks.1: 1.gain was replaced after wrapping"):
            model(x)
        model[1].gain = was
        model(x)
        model.double()
        with pytest.raises(overlace.InvalidArgument, match=r"blocks.0: 0.gain was replaced after wrapping"):
            model(x.double())
    model = stack(3)
    with stream_blocks(model, "cpu"), torch.no_grad():
        handle = model[1].register_forward_pre_hook(lambda m, a: m.gain.add_(1))
        with pytest.raises(overlace.InvalidArgument, match=r"1.gain was written while its block ran"):
            model(x)
        handle.remove()
        assert torch.equal(model(x), stack(3)(x))
        model[0](x)
        model[2].gain.add_(1)
        model[1](x)
        with pytest.raises(overlace.InvalidArgument, match=r"2.gain was written in the middle of a pass"):
            model[2](x)
    with stream_blocks(model, "cpu", source=saved(model, tmp_path / "m.safetensors")), torch.no_grad():
        model(x)
        model[2].gain.add_(1)
        with pytest.raises(overlace.InvalidArgument, match=r"2.gain was written, but it streams from .*m.safetensors"):
            model(x)


def test_files_that_lack_something(tmp_path, x):
    model = stack(3)
    state = {f"layers.{n}": v for n, v in model.state_dict().items()}

    def raised(change: dict, **options) -> overlace.Error:
        path = tmp_path / "bad.safetensors"
        save_file({n: v for n, v in {**state, **change}.items() if v is not None}, str(path))
        at = addresses(model)
        with pytest.raises(overlace.Error) as error:
            stream_blocks(model, "cpu", source=path, **options)
        assert addresses(model) == at and hooks(model) == 0
        return error.value

    path = tmp_path / "bad.safetensors"
    assert str(raised({"layers.2.up.bias": None})) == f"{path}: tensor 'layers.2.up.bias' is missing"
    error = raised({"layers.1.gain": torch.zeros(3)})
    assert error.code == "corrupt" and isinstance(error, overlace.IoError)
    assert str(error) == f"{path}: tensor 'layers.1.gain' is torch.float32 (3,), wanted torch.float32 (48,)"
    assert "is torch.float16 (48,), wanted" in str(raised({"layers.1.gain": torch.zeros(48).half()}))
    nothing = raised({n: None for n in state} | {"q": torch.zeros(1)})
    assert str(nothing) == f"{path}: tensor '0.gain' with anything before it: none; wanted one, or prefix="
    twice = raised({f"other.{n}": v + 0 for n, v in model.state_dict().items()})
    assert "'layers.' and 'other.'" in str(twice) and twice.code == "invalid_argument"
    with pytest.raises(overlace.IoError, match=r"none.safetensors: No such file"):
        stream_blocks(model, "cpu", source=tmp_path / "none.safetensors")
    whole = saved(model, tmp_path / "cut.safetensors")
    os.truncate(whole, whole.stat().st_size - 5)
    with pytest.raises(overlace.IoError, match="the file is cut"):
        stream_blocks(model, "cpu", source=whole)
    (tmp_path / "text.safetensors").write_text("weights, honestly")
    with pytest.raises(overlace.IoError, match="do not begin as safetensors do"):
        stream_blocks(model, "cpu", source=tmp_path / "text.safetensors")


def test_a_file_that_is_cut_while_it_streams(tmp_path, x):
    model = stack(4)
    path = saved(model, tmp_path / "m.safetensors")
    stream = stream_blocks(model, "cpu", source=path)
    with torch.no_grad():
        model(x)
        os.truncate(path, path.stat().st_size - 4096 * 8)
        with pytest.raises(overlace.IoError, match=r"m.safetensors was written while it streamed") as raised:
            model(x)
    assert raised.value.code == "corrupt"
    stream.close()
    assert hooks(model) == 0


def test_arguments(x):
    model = stack(3)
    for options, text in (
        ({"slots": 1}, "slots is 1, wanted 2 or more"),
        ({"order": [0, 3]}, r"order is \[0, 3\], wanted numbers from 0 to 2"),
        ({"order": []}, r"order is \[\]"),
        ({"resident": "8GB"}, "resident is '8GB', wanted bytes such as 8GiB"),
    ):
        with pytest.raises(overlace.InvalidArgument, match=text):
            stream_blocks(model, "cpu", **options)
    with pytest.raises(overlace.InvalidArgument, match="wanted modules"):
        stream_blocks([], "cpu")
    with pytest.raises(overlace.InvalidArgument, match="there twice"):
        stream_blocks([model[0], model[0]], "cpu")
    with pytest.raises(overlace.Unsupported, match="device is meta, wanted cpu or cuda"):
        stream_blocks(model, "meta")
    if not torch.cuda.is_available():
        with pytest.raises(overlace.Unsupported, match="device is cuda, but torch sees no GPU"):
            stream_blocks(model, "cuda")
    with torch.device("meta"):
        empty = nn.Sequential(Mlp(4, 4))
    with pytest.raises(overlace.InvalidArgument, match=r"blocks.0: 0.gain is on the meta device"):
        stream_blocks(empty, "cpu")
    with stream_blocks(model, "cpu"), pytest.raises(overlace.InvalidArgument, match="streams already"):
        stream_blocks(model, "cpu")
    with torch.no_grad():
        assert torch.equal(model(x), stack(3)(x))
    assert hooks(model) == 0


def test_tensors_that_are_elsewhere_are_refused_before_anything_moves(x):
    """As a tensor of the CPU is where a CUDA device was promised."""
    model, resident = stack(3), stack(3)
    with stream_blocks(model, "cpu") as stream, torch.no_grad():
        first = model[0](x)
        blocks = stream.stats()["blocks"]
        for call in (lambda: model[1](first.to("meta")), lambda: model[0](x=x.to("meta"))):
            with pytest.raises(overlace.InvalidArgument, match=r"blocks.\d was given a tensor on meta, wanted cpu"):
                call()
        assert stream.stats()["blocks"] == blocks
        assert torch.equal(model[2](model[1](first)), resident(x))


def test_a_child_is_told_so(x):
    model = stack(3)
    with stream_blocks(model, "cpu"), torch.no_grad():
        model(x)
        child = os.fork()
        if child == 0:
            try:
                model(x)
                os._exit(1)
            except overlace.InvalidArgument as error:
                os._exit(0 if error.code == "forked" else 2)
            finally:
                os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert torch.equal(model(x), stack(3)(x))


def anonymous_bytes() -> int:
    """Bytes of this process, without the pages of files."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("RssAnon"))
    return int(line.split()[1]) << 10


def test_memory_is_slots_and_little_else(tmp_path):
    """Two blocks of a model that is read from a file, 144 MiB in blocks of 12, are in memory: no file, and no copy."""

    def run(count: int, width: int) -> tuple[int, int]:
        """Most that is in memory above what was, and what slots take."""
        shapes = {f"h.{i}.weight": (1 << 10, width) for i in range(count)}
        path = tmp_path / f"{width}.safetensors"
        save_file({name: torch.full(shape, float(i)) for i, (name, shape) in enumerate(shapes.items())}, path)
        with torch.device("meta"):
            blocks = nn.ModuleList([nn.Linear(width, 1 << 10, bias=False) for _ in range(count)])
        x = torch.ones(1, width)
        seen, before = [], anonymous_bytes()
        with stream_blocks(blocks, "cpu", source=path) as stream, torch.inference_mode():
            for _ in range(2):
                for i, block in enumerate(blocks):
                    assert torch.equal(block(x), torch.full((1, 1 << 10), float(i * width)))
                    seen.append(anonymous_bytes())
            return max(seen) - before, stream.stats()["memory_bytes"]

    run(3, 1 << 7)  # what torch and the library make once
    taken, slots = run(12, 3 << 10)
    assert 0 <= slots - (2 * 12 << 20) <= 2 * 4096  # a tensor begins anywhere in a page
    assert taken <= slots + (64 << 20)
