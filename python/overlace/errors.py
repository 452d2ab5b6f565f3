"""Exceptions of overlace. Each is also an exception of Python's own, and has the library's code as `.code`."""

from __future__ import annotations

import re


class Error(Exception):
    """Base of all; `code` is one of docs/reference/errors.md, such as "invalid_argument"."""

    code = "internal"


class InvalidArgument(Error, ValueError):
    """Nothing moved; correct the call."""

    code = "invalid_argument"


class ScheduleError(InvalidArgument):
    """A schedule breaks a rule; nothing was launched."""

    code = "bad_schedule"


class PlanMismatch(InvalidArgument):
    """The ranks disagree, or a schedule was made for another problem; nothing was launched."""

    code = "plan_mismatch"


class Unsupported(Error, NotImplementedError):
    """Not here, or not yet; the text names what is."""

    code = "not_supported"


class Timeout(Error, TimeoutError):
    """A deadline passed. Only close() is left."""

    code = "timeout"


class PeerLost(Error, ConnectionError):
    """A rank is gone or gave up. Only close() is left."""

    code = "peer_lost"


class Desync(Error, RuntimeError):
    """The ranks made different calls. Only close() is left."""

    code = "desync"


class IoError(Error, OSError):
    """A file could not be read or written, or holds something else."""

    code = "io"


class CudaError(Error, RuntimeError):
    """A CUDA call failed; the process must end."""

    code = "cuda"


class EngineError(Error, RuntimeError):
    """A library under overlace failed; the process must end."""

    code = "engine"


class OutOfMemory(Error, MemoryError):
    """Nothing was half allocated; free something, or raise heap_bytes."""

    code = "out_of_memory"


class NonFinite(Error, ArithmeticError):
    """Values that are not finite where they must be."""

    code = "non_finite"


class Internal(Error, RuntimeError):
    """A fault of overlace."""

    code = "internal"


_KINDS: tuple[type[Error], ...] = (
    InvalidArgument,
    ScheduleError,
    PlanMismatch,
    Unsupported,
    Timeout,
    PeerLost,
    Desync,
    IoError,
    CudaError,
    EngineError,
    OutOfMemory,
    NonFinite,
    Internal,
)
_CLASSES: dict[str, type[Error]] = {
    "layout_mismatch": InvalidArgument,
    "closed": InvalidArgument,
    "forked": InvalidArgument,
    "capture": InvalidArgument,
    "co_residency": Unsupported,
    "version_mismatch": Unsupported,
    "aborted": PeerLost,
    "bootstrap": PeerLost,
    "corrupt": IoError,
    "stale": IoError,
    "heap_exhausted": OutOfMemory,
    **{kind.code: kind for kind in _KINDS},
}


# What handlers of signals raised while the library waited, which ended that wait (overlace/_signals.py).
interruptions: list[BaseException] = []


def make(code: str, text: str) -> BaseException:
    """The exception of a code of the library, or the one for which the library's wait was ended: KeyboardInterrupt."""
    if interruptions:
        return interruptions.pop()
    error = _CLASSES.get(code, Internal)(text)
    error.code = code
    return error


def of_operator(error: RuntimeError) -> BaseException | None:
    """What torch.ops.overlace.* raised, as the class it belongs to; None if it is not of overlace."""
    match = re.match(r"\[(\w+)\] (.*)", str(error), re.DOTALL)
    return make(match[1], match[2]) if match else None
