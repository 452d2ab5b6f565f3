"""Collectives of serving engines that are operators of their own, as vLLM and SGLang register them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class EngineCollective:
    """One whose arguments bear these names; the group is always `group_name`, and what is summed is summed."""

    kind: str  # "all_reduce", "reduce_scatter", "all_gather"
    sent: str = "tensor"
    written: str = ""  # the argument that takes the result; empty: the operator gives a new tensor

    def is_along_rows(self, given: Mapping[str, Any], num_dims: int) -> bool:
        """Whether it is along the first dimension, as all are that have no argument for it."""
        return num_dims > 0 and given.get("dim", 0) % num_dims == 0


# By the name of the operator.
ENGINE_COLLECTIVES = {
    "vllm::all_reduce": EngineCollective("all_reduce"),
    "vllm::reduce_scatter": EngineCollective("reduce_scatter"),
    "vllm::all_gather": EngineCollective("all_gather"),
    "sglang::outplace_all_reduce": EngineCollective("all_reduce"),
    "sglang::inplace_all_reduce": EngineCollective("all_reduce", written="tensor"),
    "sglang::reg_all_gather_into_tensor": EngineCollective("all_gather", "input", "output"),
    "sglang::reg_reduce_scatter_tensor": EngineCollective("reduce_scatter", "input", "output"),
}


def arguments_by_name(names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Of a call of an operator whose arguments have these names."""
    return {**dict(zip(names, args, strict=False)), **kwargs}
