"""The functions of `_ptx` under Triton's interpreter, where a program is one thread of a CPU rank."""

from __future__ import annotations

import time
from typing import Any

import triton
import triton.language as tl
from triton.runtime import interpreter

_patch_tensor = interpreter._patch_lang_tensor


def _patch_lang_tensor(tensor: Any, scope: Any) -> None:
    # NOTE: Triton 3.6 takes int() of an array of one number for `range`, which numpy refuses from 2.4 on.
    _patch_tensor(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())


interpreter._patch_lang_tensor = _patch_lang_tensor


POLLS_PER_LOOK = tl.constexpr(1)  # a poll takes the interpreter longer than a look at the clock
TIMED_OUT: list[str] = []  # waits of the kernel that runs


def _host_ns() -> int:
    return time.monotonic_ns()


def _number(value: Any) -> int:
    """The number of a tensor, a constexpr or a number of the interpreter."""
    value = getattr(value, "value", value)
    return int(value.handle.data.item()) if hasattr(value, "handle") else int(value)


def _note(*values: Any) -> None:
    rank, peer, id, want, seen, ns = map(_number, values)
    TIMED_OUT.append(
        f"timeout after {ns / 1e9:.1f} s: rank {rank} waited for rank {peer}, signal {id} (in a Triton kernel): "
        f"expected >= {want}, seen {seen}"
    )


@triton.jit
def is_first_thread():
    return True


@triton.jit
def any_thread(flag):
    return flag


@triton.jit
def load_acquire_sys(word):
    return tl.atomic_add(word, 0, sem="acquire", scope="sys")


@triton.jit
def load_relaxed_sys(word):
    return tl.load(word, volatile=True)


@triton.jit
def store_release_sys(word, value):
    tl.atomic_xchg(word, value, sem="release", scope="sys")


@triton.jit
def claim(word):
    return True  # CPU ranks have no such word


@triton.jit
def abort(word, rank, peer, id, want, seen, ns):
    _note(rank, peer, id, want, seen, ns)  # launch() tells all ranks


@triton.jit
def fence_sys():
    tl.debug_barrier()


@triton.jit
def global_ns():
    return tl.cast(_host_ns(), tl.int64)
