"""Where the words of a handle and the fields of a record lie, for kernels.

Words: enum ovl_word of overlace/capi_words.h. Record: TimeoutRecord of overlace/handle_pod.h, in bytes.
"""

from __future__ import annotations

import triton.language as tl

RANK = tl.constexpr(0)
SIZE = tl.constexpr(1)
SLOTS = tl.constexpr(2)
SLOT_PITCH = tl.constexpr(3)
SLOT_STRIDE = tl.constexpr(4)
TEAM_ID = tl.constexpr(7)
TICKETS = tl.constexpr(9)
ABORT_WORD = tl.constexpr(10)
RECORD = tl.constexpr(11)
TIMEOUT_NS = tl.constexpr(12)
CLAIM = tl.constexpr(13)
BARRIER_ID = tl.constexpr(15)
FIRST_ID = tl.constexpr(16)
BASES = tl.constexpr(17)

RECORD_MAGIC = tl.constexpr(0)
RECORD_RANK = tl.constexpr(4)
RECORD_PEER = tl.constexpr(8)
RECORD_TEAM = tl.constexpr(12)
RECORD_ID = tl.constexpr(16)
RECORD_BLOCK = tl.constexpr(20)
RECORD_CALL = tl.constexpr(24)
RECORD_KIND = tl.constexpr(28)
RECORD_EXPECTED = tl.constexpr(32)
RECORD_SEEN = tl.constexpr(40)
RECORD_WAITED_NS = tl.constexpr(48)
RECORD_LAST_CHANGE_NS = tl.constexpr(56)
RECORD_EXTRA = tl.constexpr(64)

MAGIC = tl.constexpr(0x0B1ACE01)
KIND_SIGNAL = tl.constexpr(1)  # WaitKind
ALIGNMENT = tl.constexpr(256)  # of the heaps to each other, at least
