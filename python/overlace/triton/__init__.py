"""Functions for kernels in Triton that reach peers (docs/guides/triton.md), twins of those in include/overlace/device.

Triton comes with torch on Linux. Without it the import raises Unsupported.
"""

from __future__ import annotations

import importlib.util

from overlace.errors import Unsupported

if importlib.util.find_spec("triton") is None:
    raise Unsupported("overlace.triton: triton is not installed; wanted 3.6 or newer, which torch brings along")

from overlace.triton._device import (
    barrier,
    consume,
    consume_all,
    epoch,
    fence,
    last_arriver,
    peer_ptr,
    put_rows,
    put_tile,
    rank,
    signal_add,
    signal_add_all,
    size,
    tile_order,
    wait_all,
    wait_ge,
)
from overlace.triton._launch import launch

__all__ = [
    "barrier",
    "consume",
    "consume_all",
    "epoch",
    "fence",
    "last_arriver",
    "launch",
    "peer_ptr",
    "put_rows",
    "put_tile",
    "rank",
    "signal_add",
    "signal_add_all",
    "size",
    "tile_order",
    "wait_all",
    "wait_ge",
]
