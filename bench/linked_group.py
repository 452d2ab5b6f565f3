"""A process group of torch whose collectives go over a runtime of overlace with an emulated link, on a thread of its
own: what programs exchange that know torch.distributed alone is as slow as what overlace.optim.CO2 sends."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from overlace._library import Options, call, handle
from overlace.context import given_of

_FP32, _I8 = 1, 8  # enum ovl_dtype
_numbers = itertools.count()


class _Work(dist.Work):
    def __init__(self, thread: ThreadPoolExecutor, body: Callable[[], None], result: list[torch.Tensor]) -> None:
        super().__init__()
        self._future: torch.futures.Future = torch.futures.Future()

        def run() -> None:
            try:
                body()
                self._future.set_result(result)
            except Exception as error:
                self._future.set_exception(error)

        thread.submit(run)

    def wait(self, timeout: object = None) -> bool:
        self._future.wait()
        return True

    def get_future(self) -> torch.futures.Future:
        return self._future


class LinkedGroup(dist.ProcessGroup):
    """All ranks of `group`; collective. Tensors are on the CPU, contiguous, and fp32 where they are summed."""

    def __init__(self, group: dist.ProcessGroup, link: str) -> None:
        super().__init__(group.rank(), group.size())
        self._thread = ThreadPoolExecutor(1)
        self._thread.submit(self._open, group, link).result()

    def _open(self, group: dist.ProcessGroup, link: str) -> None:
        self._given, _ = given_of(group)
        options = Options(backend=1, link=link.encode(), timeout_ms=60000)
        self._runtime = handle("ovl_runtime_open_given", ctypes.byref(self._given), ctypes.byref(options))
        self._channel = handle("ovl_channel_open", handle("ovl_runtime_world", self._runtime), None, 0)

    def close(self) -> None:
        self._thread.submit(call, "ovl_runtime_close", self._runtime).result()
        self._thread.shutdown()

    def getBackendName(self) -> str:
        return "linked"

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:
        return self._name

    def _call(self, name: str, *tensors: torch.Tensor, count: int, dtype: int, more: tuple = ()) -> None:
        assert all(t.is_contiguous() and t.device.type == "cpu" for t in tensors)
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in tensors]
        call(name, self._channel, *pointers, ctypes.c_int64(count), dtype, *more)

    def _later(self, body: Callable[[], None], result: list[torch.Tensor]) -> _Work:
        return _Work(self._thread, body, result)

    def _sum(self, name: str, send: torch.Tensor, out: torch.Tensor, op: object) -> None:
        assert send.dtype == out.dtype == torch.float32
        self._call(name, send, out, count=out.numel(), dtype=_FP32)
        if op == dist.ReduceOp.AVG:
            out /= self.size()
        else:
            assert op == dist.ReduceOp.SUM, op

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> _Work:
        (tensor,) = tensors
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        return self._later(lambda: self._sum("ovl_all_reduce", tensor, tensor, op), tensors)

    def _reduce_scatter_base(self, out: torch.Tensor, send: torch.Tensor, opts: Any) -> _Work:
        return self._later(lambda: self._sum("ovl_reduce_scatter", send, out, opts.reduceOp), [out])

    def _gather(self, send: torch.Tensor, out: torch.Tensor) -> None:
        self._call("ovl_all_gather", send, out, count=send.numel() * send.element_size(), dtype=_I8)

    def _allgather_base(self, out: torch.Tensor, send: torch.Tensor, opts: Any = None) -> _Work:
        return self._later(lambda: self._gather(send, out), [out])

    def allgather(self, outs: list[list[torch.Tensor]], sends: list[torch.Tensor], opts: Any = None) -> _Work:
        (parts,), (send,) = outs, sends

        def gather() -> None:
            whole = torch.empty(self.size(), *send.shape, dtype=send.dtype)
            self._gather(send, whole)
            for part, got in zip(parts, whole, strict=True):
                part.copy_(got)

        return self._later(gather, parts)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> _Work:
        (tensor,) = tensors
        count = tensor.numel() * tensor.element_size()
        root = (ctypes.c_int(opts.rootRank),)
        return self._later(lambda: self._call("ovl_broadcast", tensor, count=count, dtype=_I8, more=root), tensors)

    def barrier(self, opts: Any = None) -> _Work:
        return self.allreduce([torch.ones(1)])


def linked_group(group: dist.ProcessGroup, link: str) -> dist.ProcessGroup:
    """A group of all ranks that torch.distributed knows; collective. Ends by end_of()."""
    name = f"linked{next(_numbers)}"
    dist.Backend.register_backend(name, lambda *_: LinkedGroup(group, link), devices=["cpu"])
    return dist.new_group(list(range(group.size())), backend=name)


def end_of(linked: dist.ProcessGroup) -> None:
    assert isinstance(linked, LinkedGroup)
    dist.destroy_process_group(linked)
    linked.close()
