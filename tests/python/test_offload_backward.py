"""Gradients of adapters through frozen blocks whose weights stream are those of resident blocks, bit by bit."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import overlace  # noqa: E402
from overlace.offload import _ring, stream_blocks  # noqa: E402
from overlace.offload._backward import both_ways  # noqa: E402
from overlace.offload._blocks import weight_of  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
from test_offload_ring import EarlyLane, SlowLane  # noqa: E402

torch.set_num_threads(1)
WIDTH, RANK = 48, 3


class Adapted(nn.Module):
    """A frozen linear layer and a product of two thin trained ones beside it."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.base = nn.Linear(columns, rows).requires_grad_(False)
        self.down = nn.Parameter(torch.randn(RANK, columns) / 8)
        self.up = nn.Parameter(torch.randn(rows, RANK) / 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + x @ self.down.t() @ self.up.t()


class Block(nn.Module):
    def __init__(self, inner: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH).requires_grad_(False)
        self.first, self.second = Adapted(inner, WIDTH), Adapted(WIDTH, inner)
        self.gain = nn.Parameter(torch.randn(WIDTH), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.gain * self.second(torch.tanh(self.first(self.norm(x))))


def stack(count: int = 5, seed: int = 0) -> nn.ModuleList:
    torch.manual_seed(seed)
    return nn.ModuleList([Block(64 + 8 * i) for i in range(count)])


def through(blocks: nn.ModuleList, x: torch.Tensor, order: list[int] | None = None) -> torch.Tensor:
    for i in order if order is not None else range(len(blocks)):
        x = blocks[i](x)
    return x


def trained(blocks: nn.Module) -> list[nn.Parameter]:
    return [p for p in blocks.parameters() if p.requires_grad]


def gradients(blocks: nn.Module) -> list[torch.Tensor]:
    return [p.grad.clone() for p in trained(blocks)]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) > 0 and all(map(torch.equal, one, other))


def step(blocks: nn.ModuleList, x: torch.Tensor, run=through) -> list[torch.Tensor]:
    """Result, gradient of the input, gradients of what is trained."""
    for p in trained(blocks):
        p.grad = None
    x = x.clone().requires_grad_()
    y = run(blocks, x)
    (y * torch.arange(y.numel()).view_as(y).div(y.numel())).sum().backward()
    return [y.detach(), x.grad, *gradients(blocks)]


def frozen_file(blocks: nn.ModuleList, path: Path) -> Path:
    """Adapters are in no file."""
    state = {f"h.{n}": p.data.contiguous() for n, p in blocks.named_parameters() if not p.requires_grad}
    save_file(state, str(path))
    return path


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(7, WIDTH, generator=torch.Generator().manual_seed(9))


@pytest.mark.parametrize("count", [1, 2, 5, 6])
@pytest.mark.parametrize("slots", [2, 3])
@pytest.mark.parametrize("kind", ["host", "file"])
def test_gradients_are_those_of_a_resident_stack(tmp_path, x, count, slots, kind):
    blocks, resident = stack(count), stack(count)
    source = frozen_file(blocks, tmp_path / "m.safetensors") if kind == "file" else "host"
    frozen = sum(p.nbytes for p in blocks.parameters() if not p.requires_grad)
    with stream_blocks(blocks, "cpu", source=source, slots=slots, backward=True) as stream:
        for i in range(3):
            assert same(step(blocks, x + i), step(resident, x + i))
        stats = stream.stats()
        assert stats["blocks"] == 2 * 3 * count and stats["bytes"] == 2 * 3 * frozen
    assert same(step(blocks, x), step(resident, x))


@pytest.mark.parametrize("kind", ["host", "file"])
def test_training_ends_with_the_same_adapters(tmp_path, x, kind):
    blocks, resident = stack(), stack()
    source = frozen_file(blocks, tmp_path / "m.safetensors") if kind == "file" else "host"
    losses: dict[int, list[float]] = {}
    with stream_blocks(blocks, "cpu", source=source, resident="40KiB", backward=True):
        for which, model in enumerate((blocks, resident)):
            optimizer = torch.optim.AdamW(trained(model), lr=1e-2)
            for _ in range(6):
                optimizer.zero_grad()
                loss = (through(model, x) - x).square().mean()  # the input wants no gradient
                loss.backward()
                optimizer.step()
                losses.setdefault(which, []).append(loss.item())
                with torch.no_grad():  # evaluation between two steps
                    losses[which].append(through(model, x + 1).sum().item())
    assert losses[0] == losses[1] and losses[0][-2] < losses[0][0]
    assert same([p.data for p in trained(blocks)], [p.data for p in trained(resident)])  # also behind close()


def test_micro_batches_accumulate(x):
    blocks, resident = stack(), stack()
    with stream_blocks(blocks, "cpu", backward=True):
        for model in (blocks, resident):
            for i in range(3):
                through(model, x + i).square().sum().backward()
    assert same(gradients(blocks), gradients(resident))


def test_blocks_that_are_called_twice(x):
    order = [0, 1, 2, 1]
    blocks, resident = stack(3), stack(3)
    with stream_blocks(blocks, "cpu", order=order, backward=True):
        for i in range(2):
            run = lambda model, x: through(model, x, order)  # noqa: E731
            assert same(step(blocks, x + i, run), step(resident, x + i, run))


def test_backward_of_a_part_of_the_blocks(x):
    """From the middle, past blocks that keep nothing, and a pass that ends early."""
    blocks, resident = stack(6), stack(6)
    with stream_blocks(blocks, "cpu", backward=True):
        for i in range(2):
            for model in (blocks, resident):
                for p in trained(model):
                    p.grad = None
                middle = through(model, x + i, [0, 1, 2])
                last = through(model, middle.detach(), [3, 4, 5])
                assert last.requires_grad
                middle.square().sum().backward()
            wanted = [p.grad for p in trained(resident) if p.grad is not None]
            assert same([p.grad for p in trained(blocks) if p.grad is not None], wanted)


@pytest.mark.parametrize("lane", [SlowLane, EarlyLane])
@pytest.mark.parametrize("slots", [2, 3])
def test_the_ring_of_a_device_goes_both_ways(x, lane, slots):
    """Copies as late and as early as events allow."""
    blocks, resident = stack(), stack()
    with stream_blocks(blocks, "cpu", slots=slots, backward=True) as stream:
        numbered = [_ring.Block(b.name, [weight_of(t) for t in b.tensors]) for b in stream._streamed]
        rest = [[t.rest for t in b.tensors] for b in stream._streamed]
        order = both_ways(range(len(blocks)))
        ring = _ring.DeviceRing(numbered, order, slots, torch.device("cpu"), lane(), rest.__getitem__)
        stream._calls.ring.close()
        stream._calls.ring = stream._passes._ring = ring
        for i in range(3):
            assert same(step(blocks, x + i), step(resident, x + i))


@pytest.mark.parametrize("is_reentrant", [False, True])
def test_checkpointed_blocks(x, is_reentrant):
    def run(model: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
        for block in model:
            x = checkpoint(block, x, use_reentrant=is_reentrant)
        return x

    blocks, resident = stack(), stack()
    with stream_blocks(blocks, "cpu", backward=True):
        for i in range(3):
            assert same(step(blocks, x + i, run), step(resident, x + i))


def test_checkpointed_blocks_keep_no_activations(x):
    """The hooks of the checkpoint are left alone: nothing of a block's inside outlives its forward."""
    blocks = stack(3)
    kept = []
    blocks[1].first.register_forward_hook(
        lambda m, a, o: kept.append(torch._C._autograd._top_saved_tensors_default_hooks(True))
    )
    with stream_blocks(blocks, "cpu", backward=True):
        checkpoint(blocks[0], x.clone().requires_grad_(), use_reentrant=False)
        checkpoint(blocks[1], x.clone().requires_grad_(), use_reentrant=False)
    assert kept[0][0].__module__ == "torch.utils.checkpoint"


def test_hooks_of_others_see_what_is_no_slot(x):
    blocks, resident = stack(3), stack(3)
    with stream_blocks(blocks, "cpu", backward=True):
        with torch.autograd.graph.save_on_cpu():
            streamed = step(blocks, x)
        assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
        assert same(streamed, step(resident, x))


def test_compiled_blocks(x):
    blocks, resident = stack(3), stack(3)
    for block in blocks:
        block.compile(backend="aot_eager")
    with stream_blocks(blocks, "cpu", backward=True):
        for i in range(2):
            for one, other in zip(step(blocks, x + i), step(resident, x + i), strict=True):
                assert torch.allclose(one, other, rtol=1e-5, atol=1e-6)


def test_an_exception_in_a_block_leaves_nothing_behind(x):
    blocks, resident = stack(), stack()
    fails = [True]

    def fail(_module: nn.Module, _args: tuple) -> None:
        if fails[0]:
            raise ValueError("in the middle")

    blocks[2].second.register_forward_pre_hook(fail)
    with stream_blocks(blocks, "cpu", backward=True):
        with pytest.raises(ValueError, match="in the middle"):
            step(blocks, x)
        assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
        fails[0] = False
        assert same(step(blocks, x), step(resident, x))


def test_passes_that_are_mixed_up(x):
    blocks, resident = stack(3), stack(3)
    with stream_blocks(blocks, "cpu", backward=True):
        first, second = through(blocks, x), through(blocks, x + 1)
        with pytest.raises(overlace.Error, match=r"is wanted by backward of pass 1, but pass 2 has begun; wanted one"):
            (first + second).sum().backward()
        y = through(blocks, x)
        y.sum().backward(retain_graph=True)
        with pytest.raises(overlace.Error, match=r"blocks.2 is wanted by a backward that has passed it, as of retain"):
            y.sum().backward()
        y = through(blocks, x.clone().requires_grad_())
        with pytest.raises(overlace.Unsupported, match=r"backward with create_graph=True; wanted it without"):
            y.sum().backward(create_graph=True)
        assert same(step(blocks, x), step(resident, x))


def test_what_is_refused(x):
    blocks = stack(3)
    with pytest.raises(overlace.InvalidArgument, match=r"order is \[0, 1, 0\] with backward=True; wanted its first"):
        stream_blocks(blocks, "cpu", order=[0, 1, 0], backward=True)
    with stream_blocks(blocks, "cpu"), pytest.raises(overlace.Unsupported, match=r"or backward=True"):
        blocks[0](x)
    with stream_blocks(blocks, "cpu", backward=True):
        blocks[1].gain.requires_grad_()
        with pytest.raises(overlace.Unsupported, match=r"blocks.1: 1.gain streams and wants a gradient; wanted"):
            through(blocks, x)
        blocks[1].gain.requires_grad_(False)
    blocks[2].first.down = nn.Parameter(torch.empty(RANK, WIDTH, device="meta"))
    with pytest.raises(overlace.InvalidArgument, match=r"down wants a gradient and is on meta, wanted cpu"):
        stream_blocks(blocks, "cpu", backward=True)

    class Outer(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.frozen, self.inner = nn.Parameter(torch.ones(WIDTH), requires_grad=False), [inner]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner[0](x * self.frozen)

    leaf = Block(64)
    nested = nn.ModuleList([Outer(leaf), leaf])
    with (
        stream_blocks(nested, "cpu", backward=True),
        pytest.raises(overlace.Unsupported, match=r"blocks.1 was called inside another block with gradients enabled"),
    ):
        nested[0](x)
