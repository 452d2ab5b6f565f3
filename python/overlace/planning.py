"""What the planner decides for a problem, and why; nothing is sent."""

from __future__ import annotations

import ctypes as c
import dataclasses
import json
from collections.abc import Sequence

import torch

from overlace._library import Op, call, handle, text
from overlace.context import context_of
from overlace.errors import InvalidArgument

_DTYPES = {torch.float64: 0, torch.float32: 1, torch.float16: 2, torch.bfloat16: 3}
_LAYOUTS = {"nk": 0, "kn": 1}
_ACTIVATIONS = {"none": 0, "swiglu": 1}
_EXCHANGES = {"rows": 0, "cols": 1}


@dataclasses.dataclass(frozen=True)
class Plan:
    """family: of docs/design/schedules.md. reason: why that one. schedule: JSON, a `plan=` of the operators."""

    op: str
    family: str
    reason: str
    schedule: str

    @property
    def is_library(self) -> bool:
        """The plain collective before or behind the plain product: nothing is hidden."""
        return self.family.startswith("library")


def plan(
    op: str,
    m: int,
    n: int,
    k: int,
    *,
    dtype: torch.dtype,
    group: object = None,
    out_dtype: torch.dtype | None = None,
    b_layout: str = "nk",
    bias: bool = False,
    return_a: bool = False,
    activation: str = "none",
    exchange: str = "rows",
    blocks: Sequence[int] = (),
) -> Plan:
    """What `plan=""` means for a call of `op` on the ranks of `group`.

    op: the name of an operator, as ag_gemm. m: rows of all ranks together; n, k: as this rank has them.
    b_layout: "nk" where b is `weight.t()`, "kn" where its rows are contiguous, as those of `dys` of ag_wgrad are.
    activation: of ag_gemm where the operator does it: "none" or "swiglu".
    exchange, blocks: of gemm_a2a and a2a_gemm; with "cols", n and k are those of b.
    """
    context = context_of(group)
    for name, given in (("dtype", dtype), ("out_dtype", out_dtype or dtype)):
        if given not in _DTYPES:
            raise InvalidArgument(f"plan: {name} is {given!r}, wanted one of {', '.join(map(str, _DTYPES))}")
    if b_layout not in _LAYOUTS:
        raise InvalidArgument(f"plan: b_layout is '{b_layout}', wanted one of {', '.join(_LAYOUTS)}")
    if activation not in _ACTIVATIONS:
        raise InvalidArgument(f"plan: activation is '{activation}', wanted one of {', '.join(_ACTIVATIONS)}")
    if exchange not in _EXCHANGES:
        raise InvalidArgument(f"plan: exchange is '{exchange}', wanted one of {', '.join(_EXCHANGES)}")
    problem = Op(name=op.encode(), m=m, n=n, k=k, ranks=context.size)
    problem.dtype, problem.out_dtype = _DTYPES[dtype], _DTYPES[out_dtype or dtype]
    problem.b_layout, problem.has_bias, problem.has_a = _LAYOUTS[b_layout], int(bias), int(return_a)
    problem.activation = _ACTIVATIONS[activation]
    listed = (c.c_int64 * len(blocks))(*blocks)
    problem.exchange, problem.num_blocks = _EXCHANGES[exchange], len(blocks)
    problem.blocks = c.addressof(listed) if blocks else None
    schedule = handle("ovl_schedule_choose", context._runtime, c.byref(problem))
    try:
        texts = [text(getter, schedule) for getter in ("ovl_schedule_json", "ovl_schedule_reason")]
    finally:
        call("ovl_schedule_free", schedule)
    return Plan(op, json.loads(texts[0])["family"], texts[1], texts[0])
