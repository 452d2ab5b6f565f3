"""A process group of torch as a transport of the C API (struct ovl_collective)."""

from __future__ import annotations

import ctypes as c
import datetime
import os
import socket

import torch
import torch.distributed as dist

from overlace import errors
from overlace._library import Options, _Sized, call
from overlace.context import given_of
from overlace.errors import Desync, Error, InvalidArgument, PeerLost, Timeout, Unsupported
from overlace.optim._layout import Layout, Sharded
from overlace.optim._means import takes
from overlace.optim._structs import DTYPES, Co2Options, choice
from overlace.optim.groups import begun

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


def _device_transports() -> dict[str, bool]:
    """Which transports of the library take memory of GPUs."""
    host, nccl = c.c_int32(), c.c_int32()
    call("ovl_co2_device_transports", c.byref(host), c.byref(nccl))
    return {"host": bool(host.value), "nccl": bool(nccl.value)}


def _auto(group: dist.ProcessGroup, device: torch.device | None, *, takes_nccl: bool) -> str:
    """NCCL where each group has a GPU of this host for itself and no kernel of a team of overlace may wait for the
    multiprocessors that NCCL holds. Collective."""
    from overlace import context

    card = None if device is None else str(torch.cuda.get_device_properties(device).uuid)
    takes_nccl = takes_nccl and card is not None and not any(team.is_gpu for team in context._contexts.values())
    everybody: list = [None] * group.size()
    dist.all_gather_object(everybody, (socket.gethostname(), card, takes_nccl), group=group)
    if len({host for host, _, _ in everybody}) > 1:
        return "process_group"
    is_nccl = all(takes for _, _, takes in everybody) and len({card for _, card, _ in everybody}) == len(everybody)
    return "nccl" if is_nccl else "host"


def transport_of(
    transport: str,
    group: dist.ProcessGroup,
    link: str | None,
    options: Co2Options,
    device: torch.device | None,
    layout: Layout,
    *,
    is_auto: bool,
    state: str = "device",
) -> tuple[str, bool]:
    """Gives "host", "nccl" or "process_group", and whether it takes the memory of `device`, the GPU that has all
    parts. InvalidArgument, Unsupported where it cannot be what was asked for, of which some is for "host" alone.
    Collective where it is "auto"."""
    choice("transport", transport, {"auto": 0, "host": 1, "process_group": 2, "nccl": 3})
    is_on_host = bool(choice("state", state, {"device": 0, "host": 1}))
    device_transports = _device_transports() if device is not None else {}
    asked = (
        (options.wire_dtype == DTYPES[torch.int8], "wire_dtype is torch.int8"),
        (bool(options.whole_boundaries), "on_failure is 'drop_group'"),
    )
    if transport == "auto":
        takes_nccl = device_transports.get("nccl", False) and link is None and not is_on_host
        takes_nccl = takes_nccl and not any(is_so for is_so, _ in asked)
        transport = _auto(group, device, takes_nccl=takes_nccl)
    if transport == "host":
        return transport, device_transports.get("host", False) and not is_on_host
    if link is not None:
        raise InvalidArgument(f"CO2: link is {link!r} with transport {transport!r}, wanted transport 'host'")
    for is_asked, what in asked:
        if is_asked:
            raise Unsupported(f"CO2: {what} with transport {transport!r}; supported: 'host'")
    if transport == "nccl":
        if is_on_host:
            raise Unsupported("CO2: state is 'host' with transport 'nccl'; supported: 'host', 'process_group'")
        if device is None:
            raise Unsupported("CO2: transport is 'nccl' with parameters that are not all on one GPU; supported: 'host'")
        if isinstance(layout, Sharded) and os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1":
            raise InvalidArgument(
                "CO2: CUDA_DEVICE_MAX_CONNECTIONS is 1 with sharded parameters and transport 'nccl', whose all-reduces "
                "would hold back those of the shards; wanted: another value, or transport 'host'"
            )
        return transport, True
    if is_auto:
        raise Unsupported(f"CO2: tau is 'auto' with transport {transport!r}, which times nothing; supported: 'host'")
    if not takes(group, "cpu"):
        raise Unsupported(
            f"CO2: transport is {transport!r} with an outer_group whose backend has no CPU tensors; supported: "
            "init_process_group('cpu:gloo,cuda:nccl'), or transport 'host' on one host"
        )
    return transport, False


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
            self._works[self._last] = begun(dist.all_reduce(tensor, group=self._group, async_op=True)), tensor
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


def with_ranks(error: Error, group: dist.ProcessGroup) -> BaseException:
    """The error; what the library calls rank i, a place in this group, is told where it is another rank."""
    ranks = dist.get_process_group_ranks(group)
    if not isinstance(error, Desync | PeerLost | Timeout) or ranks == list(range(len(ranks))):
        return error
    are = ", ".join(map(str, ranks))
    return errors.make(error.code, f"{error}; ranks 0 to {len(ranks) - 1} of the outer group are ranks {are}")


def opening_of(
    transport: str, group: dist.ProcessGroup, link: str | None, timeout_s: float
) -> tuple[str, list[object], list[BaseException]]:
    """The function of the library that opens CO2 over this transport, its arguments behind the parameters, which must
    live as long as what it opens, and where callbacks leave what they raised."""
    if transport == "process_group":
        collective = GroupCollective(group)
        return "ovl_co2_open_collective", [c.byref(collective.struct)], collective.failures
    given, failures = given_of(group)
    if transport == "nccl":
        return "ovl_co2_open_nccl", [c.byref(given), c.c_int32(0)], failures
    runtime = Options(timeout_ms=round(timeout_s * 1000), link=None if link is None else link.encode())
    return "ovl_co2_open_host", [c.byref(given), c.byref(runtime)], failures
