"""Timelines of the operators of a group, for a trace viewer, and their ranges in a profiler
(docs/guides/read-a-report.md)."""

from __future__ import annotations

import contextlib
import ctypes as c
import os
from collections.abc import Iterator

from overlace import _library
from overlace._timeline import Trace, checked_path
from overlace.context import context_of
from overlace.errors import InvalidArgument

__all__ = ["Trace", "nvtx", "trace"]


@contextlib.contextmanager
def trace(path: str | os.PathLike[str], *, group: object = None, label: str = "") -> Iterator[Trace]:
    """Records when the operators of a group run, on all its ranks, until the block ends; then rank 0 writes `path`.

    path: .json (Chrome) or .pftrace, .perfetto-trace (Perfetto); equal on all ranks. group: as for `overlace.init`.
    label: what the names of spans begin with; `Trace.label` changes it. Collective: all ranks of the group enter and
    leave the block. A group has one timeline at a time. On GPUs spans are those of the stream that was current at
    `overlace.init`, and captured calls have none. If the block raises nothing is written. Raises InvalidArgument,
    IoError (rank 0).
    """
    text = checked_path("overlace.trace: path", path)
    context = context_of(group)
    recorded = context._begin_trace()
    try:
        if label:
            recorded.label(label)
        yield recorded
    except BaseException:
        recorded.drop()
        raise
    else:
        recorded.write(text)
    finally:
        context._trace = None


class _Ranges(contextlib.AbstractContextManager):
    """Holds from the call of `nvtx` on, or to the end of a with block."""

    def __init__(self, enabled: bool) -> None:
        before = c.c_int()
        _library.call("ovl_nvtx", int(enabled), c.byref(before))
        self._before = before

    def __exit__(self, *error: object) -> None:
        _library.call("ovl_nvtx", self._before, None)


def nvtx(enabled: bool = True) -> _Ranges:
    """Makes ranges of NVTX, in the domain "overlace", of all operators of this process from now on, and inside of them
    of their tasks (copies, GEMMs, reductions) while the host queues them, or on CPU ranks computes them.

    As a context manager it lasts for the block; then what held before holds again. OVERLACE_NVTX=1 does the same from
    the first `overlace.init` on. Profilers such as Nsight Systems show them; without one they go nowhere. Not
    collective: ranks may differ. Raises InvalidArgument, and Unsupported where overlace was built without the header of
    NVTX.
    """
    if not isinstance(enabled, bool):
        raise InvalidArgument(f"overlace.nvtx: enabled is {enabled!r}, wanted True or False")
    return _Ranges(enabled)
