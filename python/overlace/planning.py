"""What the planner decides for a problem, and why; nothing is sent."""

from __future__ import annotations

import ctypes as c
import dataclasses
import json

import torch

from overlace._library import Op, call, handle
from overlace.context import context_of
from overlace.errors import InvalidArgument

_DTYPES = {torch.float64: 0, torch.float32: 1, torch.float16: 2, torch.bfloat16: 3}
_LAYOUTS = {"nk": 0, "kn": 1}
_ACTIVATIONS = {"none": 0, "swiglu": 1}


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
) -> Plan:
    """What `plan=""` means for a call of `op` on the ranks of `group`.

    op: the name of an operator, as ag_gemm. m: rows of all ranks together; n, k: as this rank has them.
    b_layout: "nk" where b is `weight.t()`, "kn" where its rows are contiguous, as those of `dys` of ag_wgrad are.
    activation: of ag_gemm where the operator does it: "none" or "swiglu".
    """
    context = context_of(group)
    if dtype not in _DTYPES or (out_dtype or dtype) not in _DTYPES or b_layout not in _LAYOUTS:
        raise InvalidArgument(
            f"plan: dtype is {dtype}, out_dtype {out_dtype}, b_layout '{b_layout}', wanted float64, float32, float16 "
            "or bfloat16, and 'nk' or 'kn'"
        )
    if activation not in _ACTIVATIONS:
        raise InvalidArgument(f"plan: activation is '{activation}', wanted one of {', '.join(_ACTIVATIONS)}")
    problem = Op(name=op.encode(), m=m, n=n, k=k, ranks=context.size)
    problem.dtype, problem.out_dtype = _DTYPES[dtype], _DTYPES[out_dtype or dtype]
    problem.b_layout, problem.has_bias, problem.has_a = _LAYOUTS[b_layout], int(bias), int(return_a)
    problem.activation = _ACTIVATIONS[activation]
    schedule = handle("ovl_schedule_choose", context._runtime, c.byref(problem))
    try:
        texts = []
        for getter in ("ovl_schedule_json", "ovl_schedule_reason"):
            text = c.c_char_p()
            call(getter, schedule, c.byref(text))
            texts.append(text.value.decode())
    finally:
        call("ovl_schedule_free", schedule)
    return Plan(op, json.loads(texts[0])["family"], texts[1], texts[0])
