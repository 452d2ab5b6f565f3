"""Passes that a CUDA graph captures, against a played driver: its graphs run their nodes in any order that their edges
allow, on the addresses that they were given."""

from __future__ import annotations

import ctypes as c
import gc
import random
import weakref
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

import overlace  # noqa: E402
import test_offload  # noqa: E402
from overlace.offload import _graphs, stream_blocks  # noqa: E402
from torch import nn  # noqa: E402

WIDTH = 8


class Graph:
    def __init__(self, number: int) -> None:
        self.id = number
        self.nodes: list[tuple[bool, list[int], Callable]] = []  # is a copy, numbers of those before it, what it does
        self.tip: list[int] = []  # what comes next in the stream is behind these
        self.objects: list[tuple[int, int]] = []

    def add(self, behind: list[int], does: Callable, is_copy: bool = False) -> int:
        assert len(set(behind)) == len(behind) and all(0 < node <= len(self.nodes) for node in behind)
        self.nodes.append((is_copy, behind, does))
        return len(self.nodes)

    def launch(self, does: Callable) -> None:
        self.tip = [self.add(self.tip, does)]

    def replay(self, prefer: Callable[[bool], float]) -> None:
        """Runs that node which is preferred among those that may."""
        done: set[int] = set()
        while len(done) < len(self.nodes):
            ready = [i for i, n in enumerate(self.nodes, 1) if i not in done and done.issuperset(n[1])]
            node = min(ready, key=lambda i: prefer(self.nodes[i - 1][0]))
            self.nodes[node - 1][2]()
            done.add(node)

    def end(self) -> None:
        for destroy, of in self.objects:
            c.CFUNCTYPE(None, c.c_void_p)(destroy)(of)
        self.objects = []


class Driver:
    """The functions of libcuda that are called, with one stream."""

    def __init__(self) -> None:
        self.graph: Graph | None = None
        self.number = 0
        self.status = 1
        self.failing = ""
        self.created: dict[int, tuple[int, int]] = {}

    def capture(self) -> Graph:
        self.number += 1
        self.graph = Graph(self.number)
        return self.graph

    def __getattribute__(self, name: str) -> object:
        if name.startswith("cu") and self.failing and name.startswith(self.failing):
            return lambda *arguments: 1
        return super().__getattribute__(name)

    def cuStreamGetCaptureInfo_v3(self, stream, status, number, graph, nodes, edges, count) -> int:
        assert stream.value == 7
        tip = self.graph.tip
        status._obj.value, number._obj.value, graph._obj.value = self.status, self.graph.id, 1000 + self.graph.id
        self.given = (c.c_void_p * len(tip))(*tip)
        nodes._obj.contents = c.cast(self.given, c.POINTER(c.c_void_p)).contents if tip else c.c_void_p()
        count._obj.value = len(tip)
        return 0

    def cuCtxGetCurrent(self, context) -> int:
        context._obj.value = 5
        return 0

    def cuGraphAddMemcpyNode(self, node, graph, behind, count, copy, context) -> int:
        copy = copy._obj
        assert (graph.value, context.value, copy.Height, copy.Depth) == (1000 + self.graph.id, 5, 1, 1)
        assert (copy.srcMemoryType, copy.dstMemoryType) == (1, 2)
        to, source, size = copy.dstDevice, copy.srcHost, copy.WidthInBytes
        listed = [behind[i] for i in range(count.value)]
        node._obj.value = self.graph.add(listed, lambda: c.memmove(to, source, size), is_copy=True)
        return 0

    def cuStreamUpdateCaptureDependencies_v2(self, stream, nodes, edges, count, flags) -> int:
        assert (stream.value, flags.value, edges.value) == (7, 0, None)
        self.graph.tip = [*self.graph.tip, *[nodes[i] for i in range(count.value)]]
        return 0

    def cuUserObjectCreate(self, out, of, destroy, references, flags) -> int:
        assert (references.value, flags.value) == (1, 1)
        self.created[len(self.created) + 1] = (destroy.value, of.value)
        out._obj.value = len(self.created)
        return 0

    def cuGraphRetainUserObject(self, graph, given, count, flags) -> int:
        assert (graph.value, count.value, flags.value) == (1000 + self.graph.id, 1, 1)
        self.graph.objects.append(self.created[given.value])
        return 0

    def cuUserObjectRelease(self, given, count) -> int:
        destroy, of = self.created[given.value]
        c.CFUNCTYPE(None, c.c_void_p)(destroy)(of)
        return 0


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Driver:
    played = Driver()

    def capture_of(device: torch.device) -> _graphs.Capture | None:
        return _graphs.Capture(_graphs.Driver(played), lambda: 7) if played.graph is not None else None

    monkeypatch.setattr(_graphs, "capture_of", capture_of)
    Layer.cuda = played
    assert not _graphs._KEPT
    yield played
    for kept in _graphs._KEPT:
        kept.mark.free()
    _graphs._KEPT.clear()


class Layer(nn.Module):
    """While a graph is captured it computes nothing: it adds a node that will, with the weights that it has now."""

    cuda: Driver

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.up, self.down = nn.Parameter(torch.randn(WIDTH, inner)), nn.Parameter(torch.randn(inner, WIDTH).t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        up, down = self.up.detach(), self.down.detach()
        return launched(lambda: x + torch.relu(x @ up) @ down.t())


def launched(does: Callable[[], torch.Tensor]) -> torch.Tensor:
    graph = Layer.cuda.graph
    if graph is None:
        return does()
    with torch.inference_mode(False):
        y = torch.full((4, WIDTH), torch.nan)
    graph.launch(lambda: y.copy_(does()))
    return y


def stack(count: int = 5) -> nn.ModuleList:
    torch.manual_seed(4)
    return nn.ModuleList(Layer(5 + i) for i in range(count)).requires_grad_(False)


def through(blocks: nn.ModuleList, x: torch.Tensor, order: list[int]) -> torch.Tensor:
    for i in order:
        x = blocks[i](x)
    return x


class Captured:
    """A graph of `run`; a replay begins with other bytes in the slots."""

    def __init__(self, cuda: Driver, run: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.x = torch.zeros(4, WIDTH)
        first = len(_graphs._KEPT)
        self.graph = cuda.capture()
        try:
            with torch.inference_mode():
                self.y = run(self.x)
        finally:
            cuda.graph = None
        self.slots = [kept.what[-1] for kept in _graphs._KEPT[first:]]

    def __call__(self, x: torch.Tensor, prefer: Callable[[bool], float]) -> torch.Tensor:
        for memory in self.slots:
            memory.fill_(0x7F)
        self.x.copy_(x)
        self.graph.replay(prefer)
        return self.y.clone()


def early(is_copy: bool) -> float:
    return not is_copy


def late(is_copy: bool) -> float:
    return is_copy


def at_random(_is_copy: bool, generator: random.Random = random.Random(3)) -> float:  # noqa: B008
    return generator.random()


PREFERENCES = [early, late, at_random]


def inputs(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(8)
    return [torch.randn(4, WIDTH, generator=generator) for _ in range(count)]


@pytest.mark.parametrize("prefer", PREFERENCES)
@pytest.mark.parametrize("slots", [2, 3])
@pytest.mark.parametrize(
    ("order", "resident"), [([0, 1, 2, 3, 4], 0), ([0, 1, 2, 1, 3], 0), ([0], 0), ([*range(5)], 1200)]
)
def test_replays_have_the_bits_of_resident_blocks(cuda, prefer, slots, order, resident):
    blocks, wanted = stack(), stack()
    with stream_blocks(blocks, "cpu", slots=slots, order=order, resident=resident) as stream, torch.no_grad():
        captured = Captured(cuda, lambda x: through(blocks, x, order))
        assert sum(n[0] for n in captured.graph.nodes) == 2 * (len(order) - (2 if resident else 0))
        for i, x in enumerate(inputs(20)):
            assert torch.equal(captured(x, prefer), through(wanted, x, order)), i
            if i % 3 == 0:
                assert torch.equal(through(blocks, x, order), through(wanted, x, order)), i
        assert stream.stats()["graphs"] == 1
        captured.graph.end()
        assert stream.stats()["graphs"] == 0


@pytest.mark.parametrize("prefer", PREFERENCES)
def test_a_capture_in_the_middle_of_a_pass_changes_nothing_of_it(cuda, prefer):
    blocks, wanted = stack(), stack()
    (x,) = inputs(1)
    with stream_blocks(blocks, "cpu"), torch.no_grad():
        half = through(blocks, x, [0, 1])
        captured = Captured(cuda, lambda x: through(blocks, x, [*range(5)]))
        assert torch.equal(captured(x, prefer), through(wanted, x, [*range(5)]))
        assert torch.equal(through(blocks, half, [2, 3, 4]), through(wanted, x, [*range(5)]))
        assert torch.equal(through(blocks, x, [*range(5)]), through(wanted, x, [*range(5)]))


@pytest.mark.parametrize("prefer", PREFERENCES)
@pytest.mark.parametrize("slots", [2, 3])
def test_parts_of_a_pass_and_several_in_one_graph(cuda, prefer, slots):
    blocks, wanted = stack(), stack()
    orders = [[0, 1, 2], [0], [0, 1, 2, 3, 4, 0, 1, 2, 3, 4], [0, 1, 0, 1, 2, 3, 4, 0]]
    with stream_blocks(blocks, "cpu", slots=slots) as stream, torch.no_grad():
        graphs = [Captured(cuda, lambda x, order=order: through(blocks, x, order)) for order in orders]
        assert [len(captured.slots) for captured in graphs] == [1, 1, 1, 1]
        for x in inputs(3):
            for captured, order in zip(graphs, orders, strict=True):
                assert torch.equal(captured(x, prefer), through(wanted, x, order)), order
            assert torch.equal(through(blocks, x, [*range(5)]), through(wanted, x, [*range(5)]))
        for i, captured in enumerate(graphs):
            assert stream.stats()["graphs"] == 4 - i
            captured.graph.end()
        with pytest.raises(overlace.Desync, match=r"blocks.3 was called, wanted blocks.0, the next of the order"):
            Captured(cuda, lambda x: through(blocks, x, [3]))
        assert stream.stats()["graphs"] == 0


@pytest.mark.parametrize("prefer", PREFERENCES)
def test_blocks_inside_blocks_and_an_exception(cuda, prefer):
    class Outer(Layer):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.is_bad:
                raise KeyError("bad")
            inside = self.inner_block[0](super().forward(x))
            return super().forward(inside)

    blocks, wanted = stack(3), stack(3)
    for listed in (blocks, wanted):
        listed[0].__class__, listed[0].inner_block, listed[0].is_bad = Outer, [listed[1]], False

    def twice(x: torch.Tensor) -> torch.Tensor:
        blocks[0].is_bad = True
        with pytest.raises(KeyError):
            blocks[0](x)
        blocks[0].is_bad = False
        return through(blocks, x, [0, 2])

    with stream_blocks(blocks, "cpu", order=[0, 1, 2], slots=2), torch.no_grad():
        captured = Captured(cuda, twice)
        for x in inputs(4):
            assert torch.equal(captured(x, prefer), through(wanted, x, [0, 2]))
            assert torch.equal(through(blocks, x, [0, 2]), through(wanted, x, [0, 2]))


@pytest.mark.parametrize(("forgets", "prefer"), [("put_behind", late), ("used", early)])
def test_edges_that_are_forgotten_are_noticed(cuda, monkeypatch, forgets, prefer):
    if forgets == "put_behind":
        monkeypatch.setattr(_graphs.GraphLane, "use_after", lambda self, event: None)
    else:
        monkeypatch.setattr(_graphs.GraphLane, "used", lambda self: [])
    blocks, wanted = stack(), stack()
    with stream_blocks(blocks, "cpu"), torch.no_grad():
        captured = Captured(cuda, lambda x: through(blocks, x, [*range(5)]))
        (x,) = inputs(1)
        assert not torch.equal(captured(x, prefer), through(wanted, x, [*range(5)]))


def test_values_that_change_between_replays_are_seen(cuda):
    blocks, wanted = stack(), stack()
    (x,) = inputs(1)
    with stream_blocks(blocks, "cpu"), torch.no_grad():
        through(blocks, x, [*range(5)])
        captured = Captured(cuda, lambda x: through(blocks, x, [*range(5)]))
        for is_captured in (False, True):  # who sees it first
            for listed in (blocks, wanted):
                listed[0].up.add_(1)
            if is_captured:
                captured = Captured(cuda, lambda x: through(blocks, x, [*range(5)]))
            for _ in range(2):
                assert torch.equal(captured(x, late), through(wanted, x, [*range(5)]))
                assert torch.equal(through(blocks, x, [*range(5)]), through(wanted, x, [*range(5)]))


def test_a_graph_that_outlives_the_stream_goes_on_until_it_ends(cuda):
    blocks, wanted = stack(), stack()
    (x,) = inputs(1)
    with stream_blocks(blocks, "cpu") as stream, torch.no_grad():
        captured = Captured(cuda, nn.Sequential(*blocks))
    assert stream.stats()["graphs"] == 1
    del blocks, stream
    gc.collect()
    assert torch.equal(captured(x, early), through(wanted, x, [*range(5)]))
    captured.slots.clear()
    held = [weakref.ref(tensor) for tensor in _graphs._KEPT[0].what]
    assert len(held) == 11 and all(tensor() is not None for tensor in held)
    captured.graph.end()
    with stream_blocks(stack(1), "cpu"):
        pass
    gc.collect()
    assert all(tensor() is None for tensor in held) and not _graphs._KEPT


def test_what_is_refused(cuda, tmp_path):
    blocks = stack()
    (x,) = inputs(1)
    model = test_offload.stack(2)
    file = test_offload.saved(model, tmp_path / "m.safetensors")
    with torch.no_grad():
        for options, text in (
            ({"source": file}, r'with source=.*m.safetensors; wanted source="host", as a graph reads no files'),
            ({"backward": True}, "with backward=True; wanted backward=False"),
        ):
            with stream_blocks(model, "cpu", **options):
                cuda.capture()
                with pytest.raises(overlace.Unsupported, match=rf"0 was called while a CUDA graph is captured, {text}"):
                    model(torch.ones(3, test_offload.WIDTH))
                cuda.graph = None
                assert torch.isfinite(model(torch.ones(3, test_offload.WIDTH))).all()
        with stream_blocks(blocks, "cpu") as stream:
            cuda.capture()
            for call in (stream.close, lambda: stream_blocks(stack(), "cpu")):
                with pytest.raises(
                    overlace.InvalidArgument, match="called while a CUDA graph is captured; wanted it be"
                ):
                    call()
            cuda.graph = None
            for failing, text in (
                ("cuGraphAddMemcpyNode", "cuGraphAddMemcpyNode gave 1, wanted 0"),
                ("cuUserObjectCreate", "cuUserObjectCreate gave 1"),
                ("cuGraphRetain", "cuGraphRetainUserObject gave 1"),
                ("cuStreamUpdate", "cuStreamUpdateCaptureDependencies_v2 gave 1"),
            ):
                cuda.failing = failing
                with pytest.raises(overlace.CudaError, match=text):
                    Captured(cuda, lambda x: through(blocks, x, [*range(5)]))
                cuda.failing = ""
            cuda.status = 2
            with pytest.raises(overlace.InvalidArgument, match="a capture of status 2, wanted 1"):
                Captured(cuda, lambda x: through(blocks, x, [*range(5)]))
            cuda.status = 1
            captured = Captured(cuda, lambda x: through(blocks, x, [*range(5)]))
            assert torch.equal(captured(x, late), through(stack(), x, [*range(5)]))
