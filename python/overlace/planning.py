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

FP8: tuple[torch.dtype, ...] = (torch.float8_e4m3fn, torch.float8_e5m2)  # what is multiplied with scales
_DTYPES = {torch.float64: 0, torch.float32: 1, torch.float16: 2, torch.bfloat16: 3, FP8[0]: 4, FP8[1]: 5}
_LAYOUTS = {"nk": 0, "kn": 1}
_ACTIVATIONS = {"none": 0, "swiglu": 1}
_EXCHANGES = {"rows": 0, "cols": 1}
_SCALES = {"none": 0, "tensor": 1, "rows": 2}
LIBRARY_FAMILY = "library"  # the first family of every operator


@dataclasses.dataclass(frozen=True)
class Problem:
    """What an operator has to compute.

    op: the name of an operator, as ag_gemm. m: rows of all ranks together; n, k: as this rank has them.
    dtype: of the operands; out_dtype: of the result, the same where it is None.
    b_layout: "nk" where b is `weight.t()`, "kn" where its rows are contiguous, as those of `dys` of ag_wgrad are.
    activation: of ag_gemm where the operator does it: "none" or "swiglu".
    exchange, blocks: of gemm_a2a and a2a_gemm; with "cols", n and k are those of b.
    scales: "tensor" or "rows" where dtype is float8_e4m3fn or float8_e5m2; out_dtype is bfloat16 then where it is None.
    b_dtype: of b where that is the other one of these two.
    """

    op: str
    m: int
    n: int
    k: int
    dtype: torch.dtype
    out_dtype: torch.dtype | None = None
    b_layout: str = "nk"
    bias: bool = False
    return_a: bool = False
    activation: str = "none"
    exchange: str = "rows"
    blocks: Sequence[int] = ()
    scales: str = "none"
    b_dtype: torch.dtype | None = None

    def _struct(self, call_name: str, ranks: int) -> tuple[Op, object]:
        """ovl_op, and what it points to."""
        for name, size in (("m", self.m), ("n", self.n), ("k", self.k)):
            if not isinstance(size, int):
                raise InvalidArgument(f"{call_name}: {name} is {size!r}, wanted an integer")
        out_dtype = self.out_dtype or (torch.bfloat16 if self.dtype in FP8 else self.dtype)
        for name, dtype in (("dtype", self.dtype), ("out_dtype", out_dtype), ("b_dtype", self.b_dtype or self.dtype)):
            if dtype not in _DTYPES:
                raise InvalidArgument(f"{call_name}: {name} is {dtype!r}, wanted one of {', '.join(map(str, _DTYPES))}")
        for name, given, known in (
            ("b_layout", self.b_layout, _LAYOUTS),
            ("activation", self.activation, _ACTIVATIONS),
            ("exchange", self.exchange, _EXCHANGES),
            ("scales", self.scales, _SCALES),
        ):
            if given not in known:
                raise InvalidArgument(f"{call_name}: {name} is '{given}', wanted one of {', '.join(known)}")
        out = Op(name=self.op.encode(), m=self.m, n=self.n, k=self.k, ranks=ranks)
        out.dtype, out.out_dtype = _DTYPES[self.dtype], _DTYPES[out_dtype]
        out.b_layout, out.has_bias, out.has_a = _LAYOUTS[self.b_layout], int(self.bias), int(self.return_a)
        out.activation, out.scales = _ACTIVATIONS[self.activation], _SCALES[self.scales]
        out.b_dtype = 0 if self.b_dtype is None else _DTYPES[self.b_dtype]
        listed = (c.c_int64 * len(self.blocks))(*self.blocks)
        out.exchange, out.num_blocks = _EXCHANGES[self.exchange], len(self.blocks)
        out.blocks = c.addressof(listed) if self.blocks else None
        return out, listed


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
        return self.family.startswith(LIBRARY_FAMILY)


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
    scales: str = "none",
    b_dtype: torch.dtype | None = None,
) -> Plan:
    """What `plan=""` means for a call of `op` on the ranks of `group`. The other arguments are those of `Problem`."""
    context = context_of(group)
    problem, _listed = Problem(
        op, m, n, k, dtype, out_dtype, b_layout, bias, return_a, activation, exchange, blocks, scales, b_dtype
    )._struct("plan", context.size)
    schedule = handle("ovl_schedule_choose", context._runtime, c.byref(problem))
    try:
        texts = [text(getter, schedule) for getter in ("ovl_schedule_json", "ovl_schedule_reason")]
    finally:
        call("ovl_schedule_free", schedule)
    return Plan(op, json.loads(texts[0])["family"], texts[1], texts[0])


@dataclasses.dataclass(frozen=True)
class Tuned:
    """A problem that `overlace.tune` looked at.

    problem: in words. state: "measured", "measured before" (found in the file that OVERLACE_PLAN_CACHE names),
    "failed" (why: failure) or "left" (the seconds were over). usual, tuned: what `plan=""` takes without measurements
    and takes now. Times are medians in microseconds, of the slowest rank; 0 where there are none.
    """

    problem: str
    state: str
    usual: str
    tuned: str
    usual_us: float
    tuned_us: float
    library_us: float
    failure: str = ""

    @property
    def gain(self) -> float:
        """How many times faster calls have become; 1 where nothing was measured."""
        return self.usual_us / self.tuned_us if self.tuned_us else 1.0


class _Tuned(c.Structure):
    """ovl_tuned."""

    _fields_ = (
        ("problem", c.c_char_p),
        ("usual", c.c_char_p),
        ("tuned", c.c_char_p),
        ("failure", c.c_char_p),
        ("usual_us", c.c_double),
        ("tuned_us", c.c_double),
        ("library_us", c.c_double),
        ("state", c.c_int32),
    )


def tune(problems: Sequence[Problem] | None = None, *, seconds: float = 0.0, group: object = None) -> list[Tuned]:
    """Measures the planner's best schedules, after which `plan=""` takes the winners in all calls of the group.

    problems: what to measure, the same on all ranks. None: all for which the program has called an operator, or
    `overlace.plan`, on every rank of `group`, so run a few steps first.
    seconds: no problem is begun after so many, by rank 0's clock; 0: no limit.
    Collective, outside captures; earlier calls are waited for. A problem takes some 0.2 s on two GPUs of a host: the
    three best schedules of the simulator, the choice so far and `library`, in bursts that take turns. Winners count for
    all rows of a bucket (exact up to 256, then eight to an octave) and for this group's context alone. With
    OVERLACE_PLAN_CACHE=FILE rank 0 keeps them for the next program, too. Captured graphs keep what they have. Schedules
    that lost keep their memory of the symmetric heap until other calls need it. Raises on all ranks: InvalidArgument,
    PlanMismatch (the lists differ), Unsupported (CPU ranks without OVERLACE_MACHINE: nothing says what candidates
    cost); what a rank cannot read at all (a dtype) it refuses alone.
    """
    context = context_of(group)
    if not isinstance(seconds, (int, float)):
        raise InvalidArgument(f"tune: seconds is {seconds!r}, wanted a number")
    if isinstance(problems, Problem) or not all(isinstance(one, Problem) for one in problems or ()):
        raise InvalidArgument(f"tune: problems is {problems!r}, wanted a list of overlace.Problem, or None")
    structs = [] if problems is None else [one._struct("tune", context.size) for one in problems]
    array = (Op * max(len(structs), 1))(*(struct for struct, _listed in structs))
    found, count = c.POINTER(_Tuned)(), c.c_int()
    given = None if problems is None else array
    call("ovl_tune", context._channel, given, len(structs), c.c_double(seconds), c.byref(found), c.byref(count))
    states = ("measured", "measured before", "failed", "left")
    return [
        Tuned(
            problem=one.problem.decode(),
            state=states[one.state],
            usual=one.usual.decode(),
            tuned=one.tuned.decode(),
            usual_us=one.usual_us,
            tuned_us=one.tuned_us,
            library_us=one.library_us,
            failure=one.failure.decode(),
        )
        for one in found[: count.value]
    ]
