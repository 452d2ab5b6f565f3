"""Launches kernels whose programs wait for other ranks."""

from __future__ import annotations

import ctypes as c
import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from triton import knobs

from overlace import errors
from overlace.context import Context, context_of
from overlace.errors import InvalidArgument, Unsupported

_IS_INTERPRETED = knobs.runtime.interpret  # as it was when kernels became what they are


def _grid_of(grid: int | Sequence[int] | Callable, meta: dict[str, Any]) -> tuple[int, ...]:
    sizes = grid(meta) if callable(grid) else grid
    sizes = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    if not 1 <= len(sizes) <= 3 or not all(isinstance(n, int) and n >= 1 for n in sizes):
        raise InvalidArgument(f"launch: grid is {sizes}, wanted one to three numbers of 1 or more")
    return sizes


def _check_tensors(context: Context, arguments: dict[str, Any], symmetric: Sequence[str]) -> None:
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor) and value.device != context.device:
            raise InvalidArgument(f"launch: {name} is on {value.device}, wanted {context.device}")
    for name in symmetric:
        value = arguments.get(name)
        if not isinstance(value, torch.Tensor):
            wanted = ", ".join(n for n, v in arguments.items() if isinstance(v, torch.Tensor))
            raise InvalidArgument(f"launch: symmetric names {name!r}, wanted tensors of the kernel: {wanted}")
        context._symmetric.check_reached(f"launch: {name}", value)


@functools.cache
def _driver() -> c.CDLL:
    return c.CDLL("libcuda.so.1")


def _check_co_resident(kernel: Any, grid: tuple[int, ...], device: torch.device) -> None:
    """All programs must run at once: one that waits keeps its place until another one has sent."""
    if kernel.metadata.num_ctas != 1:
        raise Unsupported(
            f"launch: num_ctas of {kernel.metadata.name} is {kernel.metadata.num_ctas}, wanted 1: signals are ordered "
            "behind the stores of one block"
        )
    kernel._init_handles()
    threads, per_sm = kernel.metadata.num_warps * 32, c.c_int()
    code = _driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(
        c.byref(per_sm), c.c_void_p(kernel.function), threads, c.c_size_t(kernel.metadata.shared)
    )
    if code != 0:
        raise errors.make("cuda", f"launch: cuOccupancyMaxActiveBlocksPerMultiprocessor gave {code}")
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    programs = math.prod(grid)
    if programs > per_sm.value * sms:
        raise errors.make(
            "co_residency",
            f"launch: the grid {grid} of {kernel.metadata.name} has {programs} programs, wanted at most "
            f"{per_sm.value * sms}, which run at once: {per_sm.value} on each of {sms} SMs",
        )


def launch(
    kernel: Any,
    grid: int | Sequence[int] | Callable,
    *args: Any,
    symmetric: Sequence[str] = (),
    group: object = None,
    **options: Any,
) -> None:
    """Launches a kernel on the current stream, as `kernel[grid](*args, **options)`, if it can come to its end.

    kernel: a function under `triton.jit`. grid: numbers of programs, or a function of the arguments that gives them.
    symmetric: names of the arguments that peers reach: tensors of `empty_symmetric`, or views of such.
    group: as for `overlace.init`. options: other arguments by name, and options of Triton such as num_warps.

    Not collective by itself: all ranks whose kernels wait for each other launch. A first launch compiles, which takes
    longer than a deadline of a second. On CPU ranks kernels run under Triton's interpreter (TRITON_INTERPRET=1),
    as one program. Raises InvalidArgument, Unsupported (more programs than run at once, no interpreter).
    """
    context = context_of(group)
    named = {name: value for name, value in options.items() if name in kernel.arg_names}
    bound = inspect.signature(kernel.fn).bind(*args, **named)
    bound.apply_defaults()
    arguments = bound.arguments
    sizes = _grid_of(grid, dict(arguments))
    _check_tensors(context, arguments, symmetric)
    if context.is_gpu:
        if _IS_INTERPRETED:
            raise Unsupported("launch: TRITON_INTERPRET is set, wanted unset: the ranks are on GPUs")
        with torch.cuda.device(context.device):  # Triton asks for the current one
            _check_co_resident(kernel.warmup(*args, grid=sizes, **options), sizes, context.device)
            kernel[sizes](*args, **options)
        return
    if not _IS_INTERPRETED:
        raise Unsupported("launch: the ranks are on CPUs, wanted GPUs, or TRITON_INTERPRET=1 set before the import")
    if math.prod(sizes) != 1:
        raise Unsupported(f"launch: grid is {sizes}, wanted 1 program: the interpreter runs them one after the other")
    from overlace.triton import _interpreted

    _interpreted.TIMED_OUT.clear()
    kernel[sizes](*args, **options)
    if _interpreted.TIMED_OUT:  # as the thread does that watches a GPU
        context.abort(_interpreted.TIMED_OUT[0])
