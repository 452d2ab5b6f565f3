"""Versions of the decoder block of bench/torch_block.py, how they fared, and their records."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import math
import os
import sys
from collections.abc import Callable

import programs
import schema

NAMES = ("nccl", "overlace", "nccl_compiled", "torch_async_tp", "overlace_compiled")
# One element changed; never ends; never ends a step that is to be timed; dies: to be refused.
CHECKS = ("torch_wrong", "torch_stuck", "torch_late", "torch_killed")
DIRECTIONS = ("forward", "step")
ULP = {"bf16": 2.0**-8, "fp32": 2.0**-23}
LARGEST_RMS_ERROR = {"bf16": 0.05, "fp32": 1e-4}
COMMAND = "TORCH_BLOCK_COMMAND"  # environment of the ranks: the command that started them all


@dataclasses.dataclass(frozen=True)
class Error:
    """Root mean square and largest, in units of the root mean square of what is wanted."""

    rms: float
    largest: float

    @classmethod
    def of(cls, got: object, want: object) -> Error:
        if got is None or got.shape != want.shape:
            return cls(math.inf, math.inf)
        difference, scale = got.double() - want, want.square().mean().sqrt()
        return cls(float(difference.square().mean().sqrt() / scale), float(difference.abs().max() / scale))

    def is_good(self, base: Error, dtype: str) -> bool:
        """Not much worse than that of the first version. NaN fails every comparison, so a good error is asked for."""
        ulp = ULP[dtype]
        is_near = self.rms <= 2 * base.rms + ulp / 16 and self.largest <= 2 * base.largest + 4 * ulp
        return is_near and self.rms < LARGEST_RMS_ERROR[dtype]

    def __str__(self) -> str:
        return f"{self.rms:.3g}/{self.largest:.3g}"


@dataclasses.dataclass
class Version:
    name: str
    status: str = "ok"
    reason: str = ""
    module: object = None
    call: Callable | None = None
    errors: dict[str, Error] = dataclasses.field(default_factory=dict)  # of each result
    rms_after: float = 0.0
    calls: dict[str, int] = dataclasses.field(default_factory=dict)
    samples: dict[str, list[float]] = dataclasses.field(default_factory=lambda: collections.defaultdict(list))
    host: dict[str, list[float]] = dataclasses.field(default_factory=lambda: collections.defaultdict(list))
    clocks: dict[str, list] = dataclasses.field(default_factory=lambda: collections.defaultdict(list))
    peak_bytes: dict[str, int] = dataclasses.field(default_factory=dict)
    workspace_bytes: int = 0


def head(o: argparse.Namespace, x: Version, direction: str, tokens: int, machine: dict, size: int) -> dict:
    command = os.environ.get(COMMAND) or " ".join(["torch_block.py", *sys.argv[1:]])
    case = {"name": f"{o.shape} {direction}", "m": tokens}
    return {**programs.torch_head(o, x, machine, size, command), "workload": "block", "case": case}


def write(o: argparse.Namespace, rows: list[dict]) -> None:
    if o.out:
        with o.out.open("a") as file:
            file.writelines(schema.with_id(row) + "\n" for row in rows)
