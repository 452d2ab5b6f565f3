"""Collectives of serving engines, vLLM and SGLang, by the names of their operators: no engine is imported."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Collective:
    """What an engine's operator does, and its arguments by name; `group_name` is one of all of them.

    Those that return nothing and have no `output` write what they were given.
    """

    does: str  # "sum", "scatter" or "gather"
    sent: str  # the argument with this rank's tensor
    output: str = ""  # the argument that takes the result, where the operator has one


COLLECTIVES = {
    "vllm::all_reduce": Collective("sum", "tensor"),
    "vllm::reduce_scatter": Collective("scatter", "tensor"),
    "vllm::all_gather": Collective("gather", "tensor"),
    "sglang::outplace_all_reduce": Collective("sum", "tensor"),
    "sglang::inplace_all_reduce": Collective("sum", "tensor"),
    "sglang::reg_reduce_scatter_tensor": Collective("scatter", "input", "output"),
    "sglang::reg_all_gather_into_tensor": Collective("gather", "input", "output"),
}
