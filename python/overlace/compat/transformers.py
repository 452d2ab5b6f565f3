"""Hugging Face models under their own plans: `gemm_ar` in row-parallel layers of a `tp_plan`, in place of a GEMM and an
all-reduce, and `overlace.ops.moe` under an `ep_plan`, in place of two all-to-alls with the experts between them.

Written against transformers 5.23, whose styles of tensor parallelism and ways of expert parallelism are in registries.
Without the former, importing this module raises ImportError; without the latter, register() raises Unsupported.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
import transformers
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from transformers.activations import ACT2FN
from transformers.distributed.parallel_utils import ALL_PARALLEL_STYLES
from transformers.distributed.tensor_parallel import RowwiseParallel

from overlace import ops
from overlace.context import init, open_contexts
from overlace.errors import Unsupported

try:
    from transformers.distributed.expert_parallel import EPImplementation, EPImplementationInterface
except ImportError:  # of an older version
    EPImplementation, EPImplementationInterface = object, None  # type: ignore[assignment,misc]
_Experts: Any = EPImplementation

_NAME = "overlace.compat.transformers"
__all__ = ["OverlaceExpertParallel", "OverlaceRowwiseParallel", "disable", "enable", "register"]

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
                    f"{_NAME}: group '{group.group_name}' of the mesh has no team; "
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


# By the class of a module, as configurations name activations by different fields.
_ACTIVATIONS = {
    type(ACT2FN[name]): own
    for name, own in (
        *(("silu", "silu"), ("swish", "silu"), ("relu", "relu")),
        *(("gelu", "gelu_erf"), ("gelu_pytorch_tanh", "gelu_tanh")),
    )
}
_LAYOUT = {
    "has_gate": True,
    "has_bias": False,
    "is_transposed": False,
    "is_concatenated": True,
    "has_post_expert_norm": False,
}


def _activation_of(experts: nn.Module) -> str:
    """The activation as overlace.ops.moe names it; experts that it cannot compute are refused."""
    name = type(experts).__name__
    for field, wanted in _LAYOUT.items():
        got = getattr(experts, field, None)
        if got is not wanted:
            raise Unsupported(f"{_NAME}: {field} of {name} is {got}, wanted {wanted}")
    gate: Any = getattr(experts, "_apply_gate", None)
    if getattr(gate, "__name__", "") != "_default_apply_gate":
        raise Unsupported(f"{_NAME}: {name} has a gate of its own (_apply_gate), wanted act_fn(gate) * up")
    activation = type(getattr(experts, "act_fn", None))
    if activation not in _ACTIVATIONS:
        known = ", ".join(sorted(kind.__name__ for kind in _ACTIVATIONS))
        raise Unsupported(f"{_NAME}: act_fn of {name} is {activation.__name__}, wanted one of {known}")
    return _ACTIVATIONS[activation]


class OverlaceExpertParallel(_Experts):
    """The experts of one layer by one `overlace.ops.moe`. The expert group's team is made where it has none."""

    def __init__(self, experts: nn.Module, ep_mesh: Any, tp_mesh: Any) -> None:
        super().__init__(experts, ep_mesh, tp_mesh)
        self.experts: Any = experts
        self.activation = _activation_of(experts)
        self.num_experts: int = self.experts.num_experts * ep_mesh.size()  # there it is this rank's alone
        if ep_mesh.device_type != "cpu":
            raise Unsupported(f"{_NAME}: the mesh of the experts is of {ep_mesh.device_type}, wanted cpu: CPU ranks")
        self.group = ep_mesh.get_group()
        if all(context.name != self.group.group_name for context in open_contexts()):
            init(self.group)

    def __call__(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Collective over the expert group. Ranks of a tensor-parallel group, which hold the same tokens, take a part
        of them each.

        hidden_states: (T, H). top_k_index: (T, k), of all experts. top_k_weights: (T, k). Gives (T, H).
        """
        rows = [hidden_states, top_k_index, top_k_weights]
        is_shared = self.tp_mesh.size() > 1
        if is_shared:
            for i, t in enumerate(rows):
                whole = DTensor.from_local(t, self.tp_mesh, [Replicate()], run_check=False)
                rows[i] = whole.redistribute(self.tp_mesh, [Shard(0)]).to_local()
        x, idx, weights = rows
        out = ops.moe(
            x,
            idx,
            weights,
            self.experts.gate_up_proj,  # this rank's alone: transformers has put local tensors there for the call
            self.experts.down_proj,
            num_experts=self.num_experts,
            activation=self.activation,
            group=self.group,
        )
        if not is_shared:
            return out
        shape = hidden_states.shape
        return DTensor.from_local(out, self.tp_mesh, [Shard(0)], shape=shape, stride=(shape[1], 1)).full_tensor()


def register() -> None:
    """`DistributedConfig(ep_size=..., ep_implementation="overlace")` is known to transformers from here on.

    The experts of models that are loaded with it run by `overlace.ops.moe`, forward and backward, on CPU ranks of one
    host; each rank loads and holds its own experts alone. Loading is collective and makes the team of the expert group
    where it has none (`overlace.init` with defaults). Experts with biases, with transposed or interleaved weights, with
    a gate of their own or another activation than silu, gelu and relu raise Unsupported when the model is loaded.
    """
    if EPImplementationInterface is None:
        raise Unsupported(
            f"{_NAME}: transformers is {transformers.__version__}, without a registry of ways of expert parallelism "
            "(EPImplementationInterface), wanted 5.23"
        )
    EPImplementationInterface.register("overlace", OverlaceExpertParallel)


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
