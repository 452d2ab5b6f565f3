"""Blocks of a model whose weights do not fit: they pass through a ring of slots ahead of their use.

    stream = overlace.offload.stream_blocks(model.model.layers, "cpu", source="checkpoint/")
    with torch.inference_mode():
        model.generate(...)
    stream.close()

States of an optimizer do so while it steps: StreamedStates(torch.optim.AdamW(...)).
Wants torch, but not overlace's operators.
"""

from __future__ import annotations

import importlib.util

from overlace.errors import Unsupported

if importlib.util.find_spec("torch") is None:
    raise Unsupported("overlace.offload: torch is not installed; wanted any torch >= 2.6")

from overlace.offload.states import StreamedStates
from overlace.offload.stream import StreamedBlocks, stream_blocks

__all__ = ["StreamedBlocks", "StreamedStates", "stream_blocks"]
