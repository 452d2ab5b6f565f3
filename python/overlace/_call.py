"""Any operator by its name: those of the library, and those that a program adds (docs/guides/add-an-operator.md)."""

from __future__ import annotations

import ctypes as c
from collections.abc import Mapping, Sequence

import torch

from overlace import _library, errors
from overlace._library import Arg, Tensor
from overlace.context import Context, context_of
from overlace.errors import InvalidArgument, Unsupported

_DTYPES = {
    torch.float64: 0,
    torch.float32: 1,
    torch.float16: 2,
    torch.bfloat16: 3,
    torch.float8_e4m3fn: 4,
    torch.float8_e5m2: 5,
    torch.int64: 6,
    torch.int32: 7,
    torch.int8: 8,
    torch.uint8: 9,
}
_TENSOR, _INTEGER, _REAL, _TEXT, _LIST = range(5)


def tensor_of(op: str, name: str, t: object, device: torch.device) -> Tensor:
    if not isinstance(t, torch.Tensor):
        raise InvalidArgument(f"{op}: {name} is a {type(t).__name__}, wanted a torch.Tensor or None")
    if t.device != device:
        raise InvalidArgument(f"{op}: {name} is on {t.device}, wanted {device}")
    if t.dtype not in _DTYPES:
        raise InvalidArgument(f"{op}: {name} is {t.dtype}, wanted one of {', '.join(map(str, _DTYPES))}")
    if not 1 <= t.dim() <= 4:
        raise InvalidArgument(f"{op}: {name} is {list(t.shape)}, wanted one to four dimensions")
    if t.requires_grad and torch.is_grad_enabled():
        raise Unsupported(
            f"{op}: {name} needs a gradient, which overlace.call has none of; overlace.ops has operators that do"
        )
    return Tensor(t.data_ptr(), _DTYPES[t.dtype], t.dim(), tuple(t.shape), tuple(t.stride()))


def _value_of(op: str, name: str, value: object) -> Arg:
    arg = Arg(name=name.encode())
    if isinstance(value, bool | int):
        arg.kind, arg.integer = _INTEGER, int(value)
    elif isinstance(value, float):
        arg.kind, arg.real = _REAL, value
    elif isinstance(value, str):
        arg.kind, arg.text = _TEXT, value.encode()
    elif isinstance(value, Sequence) and all(isinstance(x, int) for x in value):
        arg.kind, arg.count, arg.list = _LIST, len(value), (c.c_int64 * len(value))(*value)
    else:
        raise InvalidArgument(f"{op}: {name} is {value!r}, wanted an int, a float, a bool, a str or a sequence of ints")
    return arg


def call(
    op: str, tensors: Mapping[str, torch.Tensor | None], *, group: object = None, plan: str = "", **fields: object
) -> None:
    """Runs the operator `op` on the ranks of a group. Collective; queued on the current stream, done on CPU ranks.

    op: its name, of the library or of a plugin that called `overlace::spec::add_operator`.
    tensors: its arguments by the names of docs/reference/operators.md, results too: they are written in place. None is
        an optional one that is not given. Each tensor is a torch.Tensor of one to four dimensions on the group's
        device, with the strides that the operator takes.
    group: as for `overlace.init`. plan: "", "FAMILY:DEGREE" or JSON, as for `overlace.ops`.
    fields: other parameters of the operator, `row_offsets` and `activation` among them.

    There is no gradient and no shape function: `overlace.ops` has those. Raises InvalidArgument (argument, value got,
    value wanted), PlanMismatch, Unsupported, ScheduleError.
    """
    for name, text in (("op", op), ("plan", plan)):
        if not isinstance(text, str):
            raise InvalidArgument(f"overlace.call: {name} is {text!r}, wanted a text")
    with torch.profiler.record_function(f"overlace::{op}"):  # as operators of torch.ops are called
        call_within_op(op, tensors, context_of(group), plan, fields)


def call_within_op(
    op: str, tensors: Mapping[str, torch.Tensor | None], context: Context, plan: str, fields: Mapping[str, object]
) -> None:
    """`call` of an operator that torch.profiler knows by its name already."""
    args = [
        Arg(name=name.encode(), kind=_TENSOR, tensor=tensor_of(op, name, t, context.device))
        for name, t in tensors.items()
        if t is not None
    ]
    args += [_value_of(op, name, value) for name, value in fields.items()]
    code = _library.operators().ovl_torch_run(
        context.name.encode(), op.encode(), (Arg * len(args))(*args), len(args), plan.encode()
    )
    if code != 0:
        library = _library.LIBRARY
        raise errors.make(library.ovl_error_name(code).decode(), library.ovl_error_text().decode())
