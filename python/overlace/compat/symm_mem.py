"""Functions with the signatures of torch.ops.symm_mem, on overlace's operators: for code that calls those.

They are torch.ops.overlace.<name> too, composites with gradients and shapes. The group needs overlace.init(group) in
place of torch's enable_symm_mem_for_group. "avg" and "sum" are the reductions that both know.
"""

from __future__ import annotations

import torch

from overlace import ops
from overlace.errors import Unsupported

_library = torch.library.Library("overlace", "FRAGMENT")
SCHEMAS = (
    "fused_all_gather_matmul(Tensor A, Tensor[] Bs, int gather_dim, str group_name, *, bool return_A=True) "
    "-> (Tensor?, Tensor[])",
    "fused_matmul_reduce_scatter(Tensor A, Tensor B, str reduce_op, int scatter_dim, str group_name) -> Tensor",
    "fused_matmul_all_reduce(Tensor A, Tensor B, str reduce_op, str group_name) -> Tensor",
    "fused_all_gather_scaled_matmul(Tensor A, Tensor[] Bs, Tensor A_scale, Tensor[] B_scales, int gather_dim, "
    "str group_name, Tensor?[] biases, Tensor?[] result_scales, ScalarType?[] out_dtypes, bool[] use_fast_accum) "
    "-> (Tensor, Tensor[])",
    "fused_scaled_matmul_reduce_scatter(Tensor A, Tensor B, Tensor A_scale, Tensor B_scale, str reduce_op, "
    "int orig_scatter_dim, int scatter_dim_after_maybe_reshape, str group_name, SymInt[]? output_shape, "
    "Tensor? bias=None, Tensor? result_scale=None, ScalarType? out_dtype=None, bool use_fast_accum=False) -> Tensor",
)


def fused_all_gather_matmul(
    A_shard: torch.Tensor, Bs: list[torch.Tensor], gather_dim: int, group_name: str, *, return_A: bool = True
) -> tuple[torch.Tensor | None, list[torch.Tensor]]:
    """overlace.ops.ag_gemm: the gathered A, or None, and its products with Bs."""
    if return_A:
        return ops.ag_gemm(A_shard, list(Bs), group=group_name, gather_dim=gather_dim, return_a=True)
    return None, ops.ag_gemm(A_shard, list(Bs), group=group_name, gather_dim=gather_dim)


def fused_matmul_reduce_scatter(
    A: torch.Tensor, B: torch.Tensor, reduce_op: str, scatter_dim: int, group_name: str
) -> torch.Tensor:
    """overlace.ops.gemm_rs: this rank's part, along scatter_dim, of the sum or average of `A B`."""
    return ops.gemm_rs(A, B, group=group_name, reduce_op=reduce_op, scatter_dim=scatter_dim)


def fused_matmul_all_reduce(A: torch.Tensor, B: torch.Tensor, reduce_op: str, group_name: str) -> torch.Tensor:
    """overlace.ops.gemm_ar: the sum or average of `A B`, on all ranks."""
    return ops.gemm_ar(A, B, group=group_name, reduce_op=reduce_op)


def _no_scales(name: str, a: torch.Tensor) -> Unsupported:
    return Unsupported(
        f"{name}: A is {a.dtype} with scales, whose products are not there yet, wanted float32, bfloat16 or float16 "
        f"without scales ({name.replace('scaled_', '')}); torch.ops.symm_mem.{name} has them"
    )


def fused_all_gather_scaled_matmul(A: torch.Tensor, *_arguments: object, **_options: object) -> None:
    """Not there yet: raises Unsupported."""
    raise _no_scales("fused_all_gather_scaled_matmul", A)


def fused_scaled_matmul_reduce_scatter(A: torch.Tensor, *_arguments: object, **_options: object) -> None:
    """Not there yet: raises Unsupported."""
    raise _no_scales("fused_scaled_matmul_reduce_scatter", A)


for _schema in SCHEMAS:
    _name = _schema.partition("(")[0]
    _library.define(_schema)
    _library.impl(_name, globals()[_name], "CompositeImplicitAutograd")
