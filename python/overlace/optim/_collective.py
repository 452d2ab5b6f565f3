"""A process group of torch as a transport of the C API (struct ovl_collective)."""

from __future__ import annotations

import ctypes as c
import datetime
import socket

import torch
import torch.distributed as dist

from overlace._library import _Sized
from overlace.errors import InvalidArgument, Unsupported
from overlace.optim._means import takes
from overlace.optim._structs import DTYPES, Co2Options, choice

_TIMEOUT, _PEER_LOST, _OK = 11, 12, 0  # enum ovl_code
_DTYPES = {0: (torch.float64, 8), 1: (torch.float32, 4), 3: (torch.bfloat16, 2)}  # enum ovl_dtype
_ALL_REDUCE = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_void_p, c.c_uint64, c.c_int32, c.c_char_p, c.POINTER(c.c_uint64))
_WAIT = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_uint64, c.c_int64)
_ABORT = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_int, c.c_char_p)


class Collective(_Sized):
    _fields_ = (
        ("struct_size", c.c_size_t),
        ("rank", c.c_int32),
        ("size", c.c_int32),
        ("all_reduce", _ALL_REDUCE),
        ("wait", _WAIT),
        ("abort", _ABORT),
        ("user", c.c_void_p),
    )


def transport_of(
    transport: str, group: dist.ProcessGroup, link: str | None, options: Co2Options, *, is_auto: bool
) -> str:
    """Gives "host" or "process_group". InvalidArgument, Unsupported where it cannot be what was asked for, of which
    some is for "host" alone. Collective where it is "auto"."""
    choice("transport", transport, {"auto": 0, "host": 1, "process_group": 2})
    if transport == "auto":
        hosts: list = [None] * group.size()
        dist.all_gather_object(hosts, socket.gethostname(), group=group)
        transport = "host" if len(set(hosts)) == 1 else "process_group"
    if transport == "host":
        return transport
    if link is not None:
        raise InvalidArgument(f"CO2: link is {link!r} with transport {transport!r}, wanted transport 'host'")
    for is_asked, what in (
        (options.wire_dtype == DTYPES[torch.int8], "wire_dtype is torch.int8"),
        (options.whole_boundaries, "on_failure is 'drop_group'"),
    ):
        if is_asked:
            raise Unsupported(f"CO2: {what} with transport {transport!r}; supported: 'host'")
    if is_auto:
        raise Unsupported(f"CO2: tau is 'auto' with transport {transport!r}, which times nothing; supported: 'host'")
    if not takes(group, "cpu"):
        raise Unsupported(
            f"CO2: transport is {transport!r} with an outer_group whose backend has no CPU tensors; supported: "
            "init_process_group('cpu:gloo,cuda:nccl'), or transport 'host' on one host"
        )
    return transport


class GroupCollective:
    """Keeps what the struct's functions need. `failures`: what torch raised, which cannot pass through C."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.failures: list[BaseException] = []
        self._group = group
        self._works: dict[int, tuple[dist.Work, torch.Tensor]] = {}
        self._last = 0
        self.struct = Collective(
            rank=group.rank(),
            size=group.size(),
            all_reduce=_ALL_REDUCE(self._all_reduce),
            wait=_WAIT(self._wait),
            abort=_ABORT(lambda _user, _code, _why: _OK),  # a process group cannot be told
        )

    def _all_reduce(
        self, _user: int, data: int, count: int, dtype: int, _what: bytes, ticket: c._Pointer[c.c_uint64]
    ) -> int:
        try:
            kind, unit = _DTYPES[dtype]
            memory = (c.c_char * (count * unit)).from_address(data) if count else bytearray(unit)
            tensor = torch.frombuffer(memory, dtype=kind)[:count]
            self._last += 1
            self._works[self._last] = dist.all_reduce(tensor, group=self._group, async_op=True), tensor
            ticket[0] = self._last
        except BaseException as failure:
            self.failures.append(failure)
            return _PEER_LOST
        return _OK

    def _wait(self, _user: int, ticket: int, timeout_ms: int) -> int:
        try:
            work, _ = self._works.pop(ticket)
            work.wait(datetime.timedelta(milliseconds=timeout_ms))
        except BaseException as failure:
            self.failures.append(failure)
            return _TIMEOUT if "imed out" in str(failure) or "timeout" in str(failure).lower() else _PEER_LOST
        return _OK
