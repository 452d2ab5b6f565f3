"""overlace: communication hidden behind the computation that depends on it, for PyTorch (docs/guides/pytorch.md).

Without torch, or with one that is too old, the import works and says why the operators are missing when one is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from overlace import _library
from overlace.errors import (
    CudaError,
    Desync,
    EngineError,
    Error,
    Internal,
    InvalidArgument,
    IoError,
    NonFinite,
    OutOfMemory,
    PeerLost,
    PlanMismatch,
    ScheduleError,
    Timeout,
    Unsupported,
)

if TYPE_CHECKING:  # __getattr__ imports them
    from overlace import compat, compile, gnn, nn, offload, optim, parallel, triton  # noqa: F401

__version__ = _library.LIBRARY.ovl_version().decode()
_WHY_NO_TORCH = _library.why_no_torch()
# Listed again below: the linter knows names in `__all__` by the literal alone.
_OF_TORCH = [
    "Context",
    "DeviceHandle",
    "Plan",
    "Problem",
    "Stats",
    "StripedTensor",
    "Trace",
    "Tuned",
    "call",
    "context_of",
    "empty_symmetric",
    "init",
    "nvtx",
    "ops",
    "plan",
    "trace",
    "tune",
]
_WITHOUT_OPERATORS = ["gnn", "offload"]  # the same, whatever overlace was built with
_MODULES = ["compat", "compile", "nn", "optim", "parallel", "triton"]  # imported when they are named
__all__ = [
    "CudaError",
    "Desync",
    "EngineError",
    "Error",
    "Internal",
    "InvalidArgument",
    "IoError",
    "NonFinite",
    "OutOfMemory",
    "PeerLost",
    "PlanMismatch",
    "ScheduleError",
    "Timeout",
    "Unsupported",
]

if not _WHY_NO_TORCH:
    # Its functions have the group of the moment as a default. DistributedDataParallel imports it, and the group that is
    # there by then lives as long as the interpreter: a thread of gloo that frees a tensor at that time ends the process
    # with "terminate called without an active exception" (seen with torch 2.11).
    import torch.distributed.nn  # noqa: F401

    _library.operators()
    from overlace import ops
    from overlace._call import call
    from overlace._striped import StripedTensor
    from overlace.context import Context, DeviceHandle, Stats, context_of, empty_symmetric, init
    from overlace.planning import Plan, Problem, Tuned, plan, tune
    from overlace.tracing import Trace, nvtx, trace

    __all__ += [
        "Context",
        "DeviceHandle",
        "Plan",
        "Problem",
        "Stats",
        "StripedTensor",
        "Trace",
        "Tuned",
        "call",
        "context_of",
        "empty_symmetric",
        "init",
        "nvtx",
        "ops",
        "plan",
        "trace",
        "tune",
    ]


def __dir__() -> list[str]:
    return sorted({*globals(), *_OF_TORCH, *_MODULES, *_WITHOUT_OPERATORS})


def __getattr__(name: str) -> object:
    if _WHY_NO_TORCH and name in (*_OF_TORCH, *_MODULES):
        raise Unsupported(f"overlace.{name}: {_WHY_NO_TORCH}")
    if name in (*_MODULES, *_WITHOUT_OPERATORS):
        return importlib.import_module(f"overlace.{name}")
    raise AttributeError(f"module 'overlace' has no attribute '{name}'")
