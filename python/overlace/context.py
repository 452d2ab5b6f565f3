"""Teams of overlace over torch's process groups."""

from __future__ import annotations

import atexit
import contextlib
import ctypes as c
import dataclasses
import os
import secrets
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.distributed as dist

from overlace import _library, _signals
from overlace._library import Given, Info, Options, call, handle, text
from overlace._symmetric import DeviceHandle, Symmetric
from overlace._timeline import Trace, checked_path
from overlace.errors import Error, InvalidArgument

_OPERATORS = _library.operators()
_BACKENDS = {"auto": 0, "cpu": 1, "cuda_peer": 2}
_NOWHERE = torch.device("meta")
# By ProcessGroup.group_name.
_contexts: dict[str, Context] = {}


@dataclasses.dataclass(frozen=True)
class Stats:
    """What this rank did since `overlace.init`."""

    calls: int
    serialised_calls: int
    moved_calls: int
    preparations: int
    evictions: int
    heap_growths: int
    smaller_plans: int
    shared_blocks: int
    heap_bytes: int
    heap_in_use: int
    max_heap_bytes: int


class Context:
    """A team of the ranks of one process group. Made by `overlace.init`; also a context manager that closes it."""

    def __init__(self, group: dist.ProcessGroup, options: Options, sms: int = 0) -> None:
        self.group = group
        self.name: str = group.group_name
        self.rank: int = group.rank()
        self.size: int = group.size()
        trace_path = os.environ.get("OVERLACE_TRACE", "")
        if trace_path:
            checked_path("overlace.init: OVERLACE_TRACE", trace_path)
        self._runtime = _open(group, options)
        try:
            self._team = team = handle("ovl_runtime_world", self._runtime)
            info = self._info()
            self.is_gpu = info.backend == _BACKENDS["cuda_peer"]
            self.device = torch.device("cuda", info.device) if self.is_gpu else torch.device("cpu")
            stream = torch.cuda.current_stream().cuda_stream if self.is_gpu else None
            self._channel = handle("ovl_channel_open", team, c.c_void_p(stream), sms)
        except BaseException:
            _library.LIBRARY.ovl_runtime_abort(self._runtime, b"overlace.init failed")
            _library.LIBRARY.ovl_runtime_close(self._runtime)
            raise
        _OPERATORS.ovl_torch_add_group(
            self.name.encode(), self._runtime, self._channel, self.rank, self.size, info.device
        )
        _contexts[self.name] = self
        self._trace: Trace | None = None
        self._trace_path = ""
        if trace_path and len(_contexts) == 1:  # the first team of the process: a file has room for one
            self._begin_trace()
            self._trace_path = trace_path
        self._symmetric = Symmetric(self._runtime, self._team, self._channel, self.rank, self.size, self.device)

    def _info(self) -> Info:
        info = Info()
        call("ovl_runtime_info", self._runtime, c.byref(info))
        return info

    @property
    def machine(self) -> str:
        """What schedules are chosen for and where it comes from: "h200x2, shipped for NVIDIA H200 x 2"."""
        return text("ovl_runtime_machine", self._runtime)

    def check(self) -> None:
        """Raises the first cause if this team was aborted by a rank, a dead peer or a deadline; InvalidArgument, once,
        what a kernel of this rank that has ended found wrong with its arguments."""
        call("ovl_runtime_check", self._runtime)

    def synchronize(self) -> None:
        """Waits until everything that this rank called has completed, then check()."""
        call("ovl_runtime_synchronize", self._runtime)

    def stats(self) -> Stats:
        info = self._info()
        return Stats(**{f.name: getattr(info, f.name) for f in dataclasses.fields(Stats)})

    def barrier(self) -> None:
        """Waits on the host until all ranks are here. On GPUs `synchronize()` first: queued work may still run."""
        call("ovl_team_barrier", self._team)

    def empty_symmetric(self, shape: int | Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """An uninitialised contiguous tensor in the symmetric heap, which all ranks reach. Collective.

        shape, dtype: the same on all ranks. Its memory is the heap's until `free` or `close`: the tensor does not own
        it, and counts against heap_bytes of `overlace.init`. Raises InvalidArgument, OutOfMemory.
        """
        return self._symmetric.empty(shape, dtype)

    def peer(self, t: torch.Tensor, rank: int) -> torch.Tensor:
        """The tensor at the place of `t` in the memory of another rank, with the same shape and strides.

        t: what `empty_symmetric` gave, or a view of a part of it. Loads and stores go there directly; who may write
        when is the caller's to say (`barrier`, signals). Raises InvalidArgument, Unsupported (the rank is not reached
        by loads and stores).
        """
        return self._symmetric.peer(t, rank)

    def free(self, t: torch.Tensor) -> None:
        """Gives memory of `empty_symmetric` back. Collective; no rank uses the tensor, or its twins, any more."""
        self._symmetric.free(t)

    def device_handle(self, ids: int = 0) -> DeviceHandle:
        """What kernels of the caller need to reach peers (include/overlace/device/README.md). Collective if `ids` > 0.

        ids: signals to be allocated for them, the same number on all ranks.
        """
        return self._symmetric.handle(ids)

    @contextlib.contextmanager
    def limit_sms(self, sms: int) -> Iterator[None]:
        """Inside `with context.limit_sms(64):` fused kernels of this context's calls fill at most so many SMs.

        sms: 0 for no limit but that of `overlace.init`; rounded down to pairs. The others are left to other streams.
        Eager calls and what is captured there; ranks may differ. Schedules without a fused kernel, and kernels that a
        compiled or captured program has already, keep what they fill. Raises InvalidArgument.
        """
        if not isinstance(sms, int) or isinstance(sms, bool) or sms < 0:
            raise InvalidArgument(f"limit_sms: sms is {sms!r}, wanted 0 (no limit) or more")
        before = c.c_int()
        call("ovl_channel_limit_sms", self._channel, sms, c.byref(before))
        try:
            yield
        finally:
            if self.name in _contexts:  # close() ends it, too
                call("ovl_channel_limit_sms", self._channel, before.value, None)

    def abort(self, why: str) -> None:
        """All waits of all ranks return with PeerLost. From any thread; afterwards only close() is left."""
        call("ovl_runtime_abort", self._runtime, why.encode())

    def close(self) -> None:
        """Collective. The group is unknown afterwards and may be initialised again.

        A CUDA graph with NCCL's calls should be gone by then: else all ranks keep NCCL's memory until they end.
        """
        if _contexts.pop(self.name, None) is None:
            return
        self._end_trace()
        _OPERATORS.ovl_torch_remove_group(self.name.encode())
        call("ovl_runtime_close", self._runtime)

    def _begin_trace(self) -> Trace:
        if self._trace is not None:
            whose = f"OVERLACE_TRACE={self._trace_path} asks for" if self._trace_path else "overlace.trace has begun"
            raise InvalidArgument(
                f"overlace.trace: group '{self.name}' has a timeline, which {whose}; wanted none: one at a time"
            )
        self._trace = Trace(self._channel)
        return self._trace

    def _end_trace(self) -> None:
        """Writes what OVERLACE_TRACE asked for; that must not keep the team from being closed."""
        trace, self._trace = self._trace, None
        if trace is None or not self._trace_path:
            return
        try:
            self.check()
            trace.write(self._trace_path)
        except Error as error:
            text = f"overlace: OVERLACE_TRACE={self._trace_path}: no timeline was written: {error}"
            warnings.warn(text, stacklevel=3)

    def __enter__(self) -> Context:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
            return
        # The others may wait for calls that this rank will never make.
        with contextlib.suppress(Exception):
            self.abort(f"rank {self.rank} left with {type(error).__name__}: {error}")
            self.close()

    def __repr__(self) -> str:
        return f"<overlace.Context of group '{self.name}', rank {self.rank} of {self.size}>"


def given_of(group: dist.ProcessGroup) -> tuple[Given, list[BaseException]]:
    """Ranks that find each other over `group`, for functions of the C API; what went wrong in there. Collective."""
    size = group.size()
    failures: list[BaseException] = []
    device = -1  # NCCL's tensors are on the current GPU, which is another one in a thread of the library

    def gather(mine: object) -> list:
        everything: list = [None] * size
        with torch.cuda.device(device):
            dist.all_gather_object(everything, mine, group=group)
        return everything

    @_library.ALLGATHER
    def allgather(_user: int, mine: int, num_bytes: int, everything: int) -> int:
        try:
            gathered = b"".join(gather(c.string_at(mine, num_bytes)))
            c.memmove(everything, gathered, num_bytes * size)
        except BaseException as failure:  # nothing may leave through C
            failures.append(failure)
            return 1
        return 0

    token = gather(secrets.token_hex(8))[0]
    if torch.cuda.is_initialized():
        device = torch.cuda.current_device()
    return Given(rank=group.rank(), size=size, token=token.encode(), allgather=allgather), failures


def _open(group: dist.ProcessGroup, options: Options) -> c.c_void_p:
    given, failures = given_of(group)
    try:
        return handle("ovl_runtime_open_given", c.byref(given), c.byref(options))
    except Exception as error:
        raise error from (failures[0] if failures else None)


def process_group(group: object = None) -> dist.ProcessGroup:
    """A ProcessGroup; of a DeviceMesh of one dimension its group; of None the default group; of a str that name."""
    if isinstance(group, dist.ProcessGroup):
        return group
    if group is None:
        if not dist.is_initialized():
            raise InvalidArgument("overlace.init: group is None and torch.distributed has no default group yet")
        return dist.distributed_c10d._get_default_group()
    if isinstance(group, str):
        return dist.distributed_c10d._resolve_process_group(group)  # type: ignore[arg-type]  # a NewType of str
    dimensions, get_group = getattr(group, "ndim", None), getattr(group, "get_group", None)
    if dimensions is None or get_group is None:
        raise InvalidArgument(
            f"group is {group!r}, wanted a ProcessGroup, a DeviceMesh of one dimension, the name of a group, or None"
        )
    if dimensions != 1:
        names = getattr(group, "mesh_dim_names", None)
        example = f"mesh['{names[-1]}']" if names else "mesh['tp'] of one made with mesh_dim_names"
        raise InvalidArgument(
            f"group is a DeviceMesh of {dimensions} dimensions{f' {names}' if names else ''}, wanted one: {example}"
        )
    return get_group()


def group_name(group: object = None) -> str:
    """What the operators call `group`."""
    return group if isinstance(group, str) else process_group(group).group_name


def context_of(group: object = None) -> Context:
    """The context of a group after `overlace.init`."""
    name = group_name(group)
    if name not in _contexts:
        raise InvalidArgument(
            f"group '{name}' has no overlace team: call overlace.init(group) on all its ranks before the first op"
        )
    return _contexts[name]


def empty_symmetric(
    shape: int | Sequence[int], dtype: torch.dtype = torch.float32, *, group: object = None
) -> torch.Tensor:
    """`Context.empty_symmetric` of a group's context."""
    return context_of(group).empty_symmetric(shape, dtype)


def open_contexts() -> list[Context]:
    """All that are open, in the order of their opening."""
    return list(_contexts.values())


def size_of(op: str, name: str, tensors: Mapping[str, torch.Tensor | None] | None = None) -> tuple[int, int]:
    """Rank and size, for shape functions. tensors: arguments by name, on the rank's device or on none."""
    found = _contexts.get(name)
    if found is None:
        raise InvalidArgument(
            f"{op}: group '{name}' has no overlace team: call overlace.init(group) on all its ranks before the first op"
        )
    for label, t in (tensors or {}).items():
        if t is not None and t.device not in (found.device, _NOWHERE):
            raise InvalidArgument(
                f"{op}: {label} is on {t.device}, wanted {found.device}, where rank {found.rank} of group '{name}' is"
            )
    return found.rank, found.size


def init(
    group: object = None,
    *,
    heap_bytes: int | str = "auto",
    max_heap_bytes: int | str = "auto",
    timeout_s: float | None = None,
    backend: str = "auto",
    sms: int = 0,
    machine: str | None = None,
) -> Context:
    """Makes the team of a process group. Collective over that group; once per group, before its first operator.

    group: ProcessGroup, DeviceMesh of one dimension, or None for the default group. Its ranks must be on one host.
    heap_bytes: symmetric memory of each rank at first; "auto" is 1 GiB on GPUs, 64 MiB on CPUs (or
        OVERLACE_HEAP_BYTES).
    max_heap_bytes: to which it may grow when calls need more; "auto" is 16 times that where heap_bytes is "auto", else
        heap_bytes (or OVERLACE_MAX_HEAP_BYTES). Where that is not enough, schedules that need less are taken.
    timeout_s: longest wait for a peer; None is 300 s (or OVERLACE_TIMEOUT_S).
    sms: SMs that a call's fused kernels may fill, 0 for all; the others are left to other streams and contexts, of
        which nobody keeps account yet. CPU ranks ignore it.
    machine: that schedules are chosen for: the name of a shipped machine ("h200x2"), a file that ends in .json, or
        rates of link and GEMM ("50GB/s,2TFLOP/s"). None takes OVERLACE_MACHINE, else what is found for these GPUs; CPU
        ranks have nothing then and take `library`. Rank 0's counts for all; `Context.machine` says what was taken.
    backend: "auto" takes "cuda_peer" where the group has NCCL, with the current CUDA device, else "cpu".

    Raises InvalidArgument, PeerLost (a rank did not come), Unsupported (no access to a peer's memory), OutOfMemory.
    Teams that are still open when the interpreter ends are closed then, aborted if it ends with an exception.
    """
    if backend not in _BACKENDS:
        raise InvalidArgument(f"overlace.init: backend is '{backend}', wanted one of {', '.join(_BACKENDS)}")
    found = process_group(group)
    if found.group_name in _contexts:
        raise InvalidArgument(f"overlace.init: group '{found.group_name}' has a team already; close() it first")
    if backend == "auto":
        backend = "cuda_peer" if "nccl" in dist.get_backend(found) and torch.cuda.is_available() else "cpu"
    options = Options(backend=_BACKENDS[backend])
    for name, value in (("heap_bytes", heap_bytes), ("max_heap_bytes", max_heap_bytes)):
        if value == "auto":
            continue
        if not isinstance(value, int) or value <= 0:
            raise InvalidArgument(f"overlace.init: {name} is {value!r}, wanted 'auto' or a number above 0")
        setattr(options, name, value)
    if not isinstance(sms, int) or isinstance(sms, bool) or sms < 0:
        raise InvalidArgument(f"overlace.init: sms is {sms!r}, wanted 0 (all SMs) or more")
    if timeout_s is not None:
        if not 0.001 <= timeout_s <= 86400:
            raise InvalidArgument(f"overlace.init: timeout_s is {timeout_s}, wanted 0.001 to 86400")
        options.timeout_ms = int(timeout_s * 1000)
    if machine is not None:
        if not isinstance(machine, str) or not machine:
            raise InvalidArgument(f"overlace.init: machine is {machine!r}, wanted None, a name, a file or rates")
        options.machine = machine.encode()
    if backend == "cuda_peer":
        options.has_device, options.device = 1, torch.cuda.current_device()
    _signals.watch()
    return Context(found, options, sms)


def _at_exit() -> None:
    failed = getattr(sys, "last_value", None)
    for found in list(_contexts.values()):
        with contextlib.suppress(Exception):
            if failed is not None:
                found.abort(f"rank {found.rank} ended with {type(failed).__name__}: {failed}")
            found.close()
    _signals.unwatch()


atexit.register(_at_exit)
