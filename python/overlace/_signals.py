"""Signals that arrive while the main thread waits for other ranks inside the library."""

from __future__ import annotations

import ctypes as c
import threading
from collections.abc import Iterator

from overlace import _library, errors


def _answers() -> Iterator[int]:
    """1 if a handler has raised, which is kept for whoever sees the wait fail; else 0.

    Not a function: Python runs handlers where one begins, in front of any `try`. A generator goes on within its own.
    """
    answer = 0
    while True:
        try:
            yield answer
            c.pythonapi.PyErr_CheckSignals()
            answer = 0
        except GeneratorExit:
            return
        except BaseException as raised:
            errors.interruptions.append(raised)
            answer = 1


_CHECK = _library.INTERRUPT_CHECK(_answers().__next__)


def watch() -> None:
    """Waits of the main thread see signals from now on. On others nothing: Python runs no handlers there."""
    if threading.current_thread() is threading.main_thread():
        _library.LIBRARY.ovl_set_interrupt_check(_CHECK)


def unwatch() -> None:
    _library.LIBRARY.ovl_set_interrupt_check(None)
