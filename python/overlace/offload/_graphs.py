"""CUDA graphs that bring blocks themselves: copies as nodes of a graph that is being captured, and what it holds.

A copy becomes a node behind those nodes that used its slot, without a stream of its own: a pass that a capture leaves
in the middle then has no branch that nobody joins.
"""

from __future__ import annotations

import ctypes as c
import functools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from overlace import errors

_ACTIVE = 1  # CU_STREAM_CAPTURE_STATUS_ACTIVE
_HOST, _DEVICE = 1, 2  # CU_MEMORYTYPE_...
_ADD = 0  # CU_STREAM_ADD_CAPTURE_DEPENDENCIES
_NO_SYNC, _MOVE = 1, 1  # CU_USER_OBJECT_NO_DESTRUCTOR_SYNC, CU_GRAPH_USER_OBJECT_MOVE
_SEMAPHORE_BYTES = 64  # of a sem_t at most


class Copy3D(c.Structure):
    """CUDA_MEMCPY3D."""

    _fields_ = (
        *((name, c.c_size_t) for name in ("srcXInBytes", "srcY", "srcZ", "srcLOD")),
        ("srcMemoryType", c.c_int),
        *((name, c.c_void_p) for name in ("srcHost", "srcDevice", "srcArray", "reserved0")),
        *((name, c.c_size_t) for name in ("srcPitch", "srcHeight")),
        *((name, c.c_size_t) for name in ("dstXInBytes", "dstY", "dstZ", "dstLOD")),
        ("dstMemoryType", c.c_int),
        *((name, c.c_void_p) for name in ("dstHost", "dstDevice", "dstArray", "reserved1")),
        *((name, c.c_size_t) for name in ("dstPitch", "dstHeight", "WidthInBytes", "Height", "Depth")),
    )


class Driver:
    """What of CUDA's driver is called here; nodes, graphs and streams are addresses."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def _call(self, name: str, *arguments: object) -> None:
        code = int(getattr(self._library, name)(*arguments))
        if code != 0:
            raise errors.make("cuda", f"stream_blocks: {name} gave {code}, wanted 0")

    def capture(self, stream: int) -> tuple[int, int, list[int]]:
        """A captured stream's capture: its id, its graph, and the nodes that what comes next is behind."""
        status, number, graph = c.c_int(), c.c_uint64(), c.c_void_p()
        nodes, edges, count = c.POINTER(c.c_void_p)(), c.c_void_p(), c.c_size_t()
        out = [c.byref(x) for x in (status, number, graph, nodes, edges, count)]
        self._call("cuStreamGetCaptureInfo_v3", c.c_void_p(stream), *out)
        if status.value != _ACTIVE:
            text = f"stream_blocks: a capture of status {status.value}, wanted {_ACTIVE}: an earlier error has ended it"
            raise errors.make("capture", text)
        return number.value, graph.value or 0, [nodes[i] or 0 for i in range(count.value)]

    def add_copy(self, graph: int, behind: Sequence[int], to: int, source: int, size: int) -> int:
        """A node that copies from host memory to the device."""
        node, context = c.c_void_p(), c.c_void_p()
        self._call("cuCtxGetCurrent", c.byref(context))
        copy = Copy3D(srcMemoryType=_HOST, srcHost=source, dstMemoryType=_DEVICE, dstDevice=to)
        copy.WidthInBytes, copy.Height, copy.Depth = size, 1, 1
        listed = (c.c_void_p * len(behind))(*behind)
        arguments = (c.c_void_p(graph), listed, c.c_size_t(len(behind)), c.byref(copy), context)
        self._call("cuGraphAddMemcpyNode", c.byref(node), *arguments)
        return node.value or 0

    def put_behind(self, stream: int, nodes: Sequence[int]) -> None:
        """What is captured of the stream from now on comes behind the nodes too."""
        known = self.capture(stream)[2]
        new = [node for node in nodes if node not in known]
        if new:
            listed = (c.c_void_p * len(new))(*new)
            arguments = (listed, c.c_void_p(), c.c_size_t(len(new)), c.c_uint(_ADD))
            self._call("cuStreamUpdateCaptureDependencies_v2", c.c_void_p(stream), *arguments)

    def retain(self, graph: int, end: c.c_void_p, of: int) -> None:
        """The driver calls end(of) once the graph and all that was made from it are gone, or if this fails."""
        given = c.c_void_p()
        self._call("cuUserObjectCreate", c.byref(given), c.c_void_p(of), end, c.c_uint(1), c.c_uint(_NO_SYNC))
        try:
            self._call("cuGraphRetainUserObject", c.c_void_p(graph), given, c.c_uint(1), c.c_uint(_MOVE))
        except errors.Error:
            self._library.cuUserObjectRelease(given, c.c_uint(1))
            raise


class GraphLane:
    """Copies of a graph, one behind the other; events are lists of its nodes."""

    def __init__(self, driver: Driver, graph: int, stream: Callable[[], int]) -> None:
        self._driver, self._graph, self._stream = driver, graph, stream
        self._after: list[int] = []
        self._last: list[int] = []

    def copy(self, to: torch.Tensor, source: torch.Tensor) -> None:
        size = source.numel() * source.element_size()
        if size == 0:
            return
        behind = list(dict.fromkeys([*self._last, *self._after]))
        self._last = [self._driver.add_copy(self._graph, behind, to.data_ptr(), source.data_ptr(), size)]
        self._after = []  # later copies are behind this one

    def copied(self) -> list[int]:
        return self._last

    def used(self) -> list[int]:
        return self._driver.capture(self._stream())[2]

    def copy_after(self, event: list[int]) -> None:
        self._after = [*self._after, *event]

    def use_after(self, event: list[int]) -> None:
        self._driver.put_behind(self._stream(), event)

    def wait(self, event: list[int]) -> None:
        """Nothing has run: there is nothing to wait for."""


class Capture:
    """The capture that the current stream is in."""

    def __init__(self, driver: Driver, stream: Callable[[], int]) -> None:
        self._driver, self._stream = driver, stream
        self.id, self._graph, _ = driver.capture(stream())

    def lane(self) -> GraphLane:
        return GraphLane(self._driver, self._graph, self._stream)

    def keep(self, owner: object, what: Sequence[object]) -> None:
        """`what` stays until the graph and all that was made from it are gone, and let_go() is called."""
        mark = _Mark()
        self._driver.retain(self._graph, _Mark.SET, mark.address)
        _KEPT.append(_Kept(weakref.ref(owner), what, mark))


class _Mark:
    """Set by the driver's thread, which must not wait for Python: a semaphore of the C library, whose memory outlives
    the interpreter where its graph does."""

    _LIBRARY = c.CDLL(None)
    _LIBRARY.calloc.restype = c.c_void_p
    SET = c.cast(_LIBRARY.sem_post, c.c_void_p)

    def __init__(self) -> None:
        self.address: int = self._LIBRARY.calloc(c.c_size_t(1), c.c_size_t(_SEMAPHORE_BYTES))
        self._LIBRARY.sem_init(c.c_void_p(self.address), c.c_int(0), c.c_uint(0))

    def is_set(self) -> bool:
        value = c.c_int()
        self._LIBRARY.sem_getvalue(c.c_void_p(self.address), c.byref(value))
        return value.value > 0

    def free(self) -> None:
        self._LIBRARY.free(c.c_void_p(self.address))


@dataclass
class _Kept:
    owner: weakref.ref
    what: Sequence[object]
    mark: _Mark


_KEPT: list[_Kept] = []  # by graphs


def let_go(owner: object = None) -> int:
    """Lets go what graphs held that are gone. How many there are that hold something of the owner's."""
    for kept in [kept for kept in _KEPT if kept.mark.is_set()]:
        _KEPT.remove(kept)
        kept.mark.free()
    return sum(kept.owner() is owner for kept in _KEPT) if owner is not None else 0


@functools.cache
def _driver() -> Driver:
    return Driver(c.CDLL("libcuda.so.1"))


def capture_of(device: torch.device) -> Capture | None:
    """None where the device's current stream is not captured."""
    if device.type != "cuda":
        return None
    with torch.cuda.device(device):
        if not torch.cuda.is_current_stream_capturing():
            return None
        return Capture(_driver(), lambda: torch.cuda.current_stream(device).cuda_stream)
