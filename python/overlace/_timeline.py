"""A timeline that is being recorded on a channel of the library."""

from __future__ import annotations

import contextlib
import ctypes as c
import os

from overlace._library import call, handle
from overlace.errors import Error, InvalidArgument

_ENDINGS = (".json", ".pftrace", ".perfetto-trace")


def checked_path(what: str, path: object) -> str:
    """The name of a file that timelines can be written to."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or not text.endswith(_ENDINGS):
        raise InvalidArgument(f"{what} is {path!r}, wanted a name that ends in {', '.join(_ENDINGS)}")
    return text


class Trace:
    """A timeline that is being recorded; `overlace.trace` makes it."""

    def __init__(self, channel: c.c_void_p) -> None:
        self._timeline = handle("ovl_timeline_begin", channel)

    def label(self, text: str) -> None:
        """Puts `text` in front of the names of spans from now on; "" takes it away."""
        if not isinstance(text, str):
            raise InvalidArgument(f"overlace.trace: label is {text!r}, wanted a str")
        call("ovl_timeline_label", self._timeline, text.encode())

    def write(self, path: str) -> None:
        """Collective; the recording ends."""
        call("ovl_timeline_write", self._timeline, path.encode())

    def drop(self) -> None:
        """Ends the recording on this rank alone, without a file."""
        # The handle ends even if the call fails, which it does on each rank by itself: no file has that name.
        with contextlib.suppress(Error):
            self.write("")
