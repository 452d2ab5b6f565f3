"""Loads, stores, fences and clocks that Triton's language has not, one instruction each.

Twin of include/overlace/device/detail/memory.cuh. A scalar value is computed by all threads of a program, so what only
one thread may do asks for the thread's number itself. `_interpreted` has the same functions for the host.
"""

from __future__ import annotations

import triton
import triton.language as tl

POLLS_PER_LOOK = tl.constexpr(256)  # kPollsPerLook of overlace/device/poll.cuh


@triton.jit
def is_first_thread():
    return tl.inline_asm_elementwise("mov.u32 $0, %tid.x;", "=r", [], dtype=tl.int32, is_pure=True, pack=1) == 0


@triton.jit
def any_thread(flag):
    """Whether `flag` holds in any thread of the program, which all of them call: __syncthreads_or."""
    flags = [tl.cast(flag, tl.int32)]
    return (
        tl.inline_asm_elementwise(
            """{
        .reg .pred p;
        setp.ne.s32 p, $1, 0;
        barrier.cta.red.or.pred p, 0, p;
        selp.s32 $0, 1, 0, p;
    }""",
            "=r,r",
            flags,
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
        != 0
    )


@triton.jit
def load_acquire_sys(word):
    return tl.inline_asm_elementwise(
        "ld.acquire.sys.global.b64 $0, [$1];", "=l,l", [word], dtype=tl.int64, is_pure=False, pack=1
    )


@triton.jit
def load_relaxed_sys(word):
    """A word of 32 bits."""
    return tl.inline_asm_elementwise(
        "ld.relaxed.sys.global.b32 $0, [$1];", "=r,l", [word], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def store_release_sys(word, value):
    """A word of 32 bits, by the first thread."""
    values = [word, tl.cast(value, tl.int32)]
    tl.inline_asm_elementwise(
        """{
        .reg .pred p;
        .reg .b32 t;
        mov.u32 t, %tid.x;
        setp.eq.u32 p, t, 0;
        @p st.release.sys.global.b32 [$1], $2;
        mov.u32 $0, 0;
    }""",
        "=r,l,r",
        values,
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def claim(word):
    """Turns 0 into 1; whether this program did it."""
    return tl.atomic_cas(word, 0, 1, sem="relaxed", scope="gpu") == 0


@triton.jit
def abort(word, rank, peer, id, want, seen, ns):
    store_release_sys(word, 1)  # the watching thread of the rank reads the record


@triton.jit
def fence_sys():
    """The first thread's alone."""
    tl.inline_asm_elementwise(
        """{
        .reg .pred p;
        .reg .b32 t;
        mov.u32 t, %tid.x;
        setp.eq.u32 p, t, 0;
        @p fence.acq_rel.sys;
        mov.u32 $0, 0;
    }""",
        "=r",
        [],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def global_ns():
    return tl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)
