"""Row-parallel layers of Hugging Face models under their own `tp_plan`: `gemm_ar` in place of a GEMM and an all-reduce.

Written against transformers 5.23, whose styles of tensor parallelism are objects in a registry.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from transformers.distributed.tensor_parallel import ALL_PARALLEL_STYLES, RowwiseParallel

from overlace import ops
from overlace.context import open_contexts

__all__ = ["OverlaceRowwiseParallel", "disable", "enable"]

_STYLE = "rowwise"


class OverlaceRowwiseParallel(RowwiseParallel):
    """`RowwiseParallel` whose product and all-reduce are one call where nothing needs a gradient and the group of the
    mesh has a team (`overlace.init`); else the style of transformers, unchanged."""

    def install_forward(self, module: nn.Module, mesh: Any) -> nn.Module:
        super().install_forward(module, mesh)
        if type(module) is not nn.Linear or self.input_layouts != Shard(-1) or self.output_layouts != Replicate():
            return module
        plain, group = module.forward, mesh.get_group() if mesh.ndim == 1 else mesh.get_group("tp")

        def forward(*args: Any, **kwargs: Any) -> Any:
            is_known = len(args) == 1 and not kwargs and type(args[0]) is torch.Tensor and args[0].dim() >= 2
            if not is_known or torch.is_grad_enabled() or getattr(module, "_hf_quantized_needs_local_tp", False):
                return plain(*args, **kwargs)
            if all(context.name != group.group_name for context in open_contexts()):
                warnings.warn(
                    f"overlace.compat.transformers: group '{group.group_name}' of the mesh has no team; "
                    "overlace.init(group) comes before the model is called",
                    stacklevel=2,
                )
                return plain(*args, **kwargs)
            weight, bias = (t.to_local() if isinstance(t, DTensor) else t for t in (module.weight, module.bias))
            if weight.dtype != args[0].dtype:
                return plain(*args, **kwargs)
            out = ops.gemm_ar(args[0], weight.t(), group=group)
            return out if bias is None else out + bias

        module.forward = forward  # type: ignore[method-assign]  # as transformers' styles do
        return module


_before: list[Any] = []


def enable() -> None:
    """Models that are loaded with a `tp_plan` from here on take `gemm_ar` for their layers of style "rowwise".

    No edit of the model or its plan; `overlace.init` for the group of the mesh (None: the default group) comes before
    the first call. Forward alone: under `torch.no_grad()`. With torch.compile the pass of `overlace.compile` does the
    same for any model.
    """
    if not _before:
        _before.append(ALL_PARALLEL_STYLES[_STYLE])
        styles: Any = ALL_PARALLEL_STYLES  # its annotation is that of registries of functions
        styles.register(_STYLE, OverlaceRowwiseParallel())


def disable() -> None:
    """Models that are loaded from here on take transformers' own style again; those that were loaded stay."""
    if _before:
        ALL_PARALLEL_STYLES.register(_STYLE, _before.pop())
