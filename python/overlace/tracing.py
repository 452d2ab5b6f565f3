"""Timelines of the operators of a group, for a trace viewer (docs/guides/read-a-report.md)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from overlace._timeline import Trace, checked_path
from overlace.context import context_of

__all__ = ["Trace", "trace"]


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
