"""Functions with the signatures of torch.ops.symm_mem, on overlace's operators: for code that calls those.

They are torch.ops.overlace.<name> too, composites with gradients and shapes. The group needs overlace.init(group) in
place of torch's enable_symm_mem_for_group. "avg" and "sum" are the reductions that both know.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from overlace import ops
from overlace.errors import InvalidArgument, Unsupported

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


def _check_scaled(name: str, result_scale: torch.Tensor | None, out_dtype: torch.dtype | None) -> torch.dtype:
    if result_scale is not None:
        raise Unsupported(f"{name}: result_scale is {list(result_scale.shape)}, wanted None: no result is float8")
    if out_dtype is None:
        raise Unsupported(
            f"{name}: out_dtype is None, which is the type of the operands there, wanted bfloat16, float16 or float32"
        )
    return out_dtype


def _of_tensor_or_rows(
    name: str, A: torch.Tensor, A_scale: torch.Tensor, B: torch.Tensor, B_scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales as ag_gemm_scaled takes them: of A's rows and B's columns, or (1) each. One row has a scale of rows."""
    rows, columns = math.prod(A.shape[:-1]), B.shape[-1]
    if A_scale.dim() > 1 and A_scale.numel() == rows and B_scale.numel() == columns:
        return A_scale, B_scale.reshape(1, -1)
    if A_scale.numel() == 1 and B_scale.numel() == 1:
        return A_scale.reshape(1), B_scale.reshape(1)
    raise InvalidArgument(
        f"{name}: A_scale is {tuple(A_scale.shape)}, B_scale {tuple(B_scale.shape)}, wanted ({rows}, 1) and"
        f" (1, {columns}), or one number each"
    )


def fused_all_gather_scaled_matmul(
    A: torch.Tensor,
    Bs: list[torch.Tensor],
    A_scale: torch.Tensor,
    B_scales: list[torch.Tensor],
    gather_dim: int,
    group_name: str,
    biases: list[torch.Tensor | None],
    result_scales: list[torch.Tensor | None],
    out_dtypes: list[torch.dtype | None],
    use_fast_accum: list[bool],
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """overlace.ops.ag_gemm_scaled: the gathered A and its products with Bs, each of which gathers.

    Scales of rows are those of this rank's rows; sums are always those of slow accumulation."""
    name = "fused_all_gather_scaled_matmul"
    lists: dict[str, Sequence[object]] = {
        "B_scales": B_scales,
        "biases": biases,
        "result_scales": result_scales,
        "out_dtypes": out_dtypes,
    }
    for what, listed in lists.items():
        if len(listed) != len(Bs):
            raise InvalidArgument(f"{name}: {len(listed)} {what} for {len(Bs)} Bs, wanted as many")
    types = [_check_scaled(name, *of_one) for of_one in zip(result_scales, out_dtypes, strict=True)]
    if not Bs:
        raise InvalidArgument(f"{name}: Bs is empty, wanted one matrix or more")
    scales = [_of_tensor_or_rows(name, A, A_scale, *of_one) for of_one in zip(Bs, B_scales, strict=True)]
    full: torch.Tensor | None = None
    outs = []
    for B, (scale, of_columns), bias, out_dtype in zip(Bs, scales, biases, types, strict=True):
        gathered, out = ops.ag_gemm_scaled(
            A,
            scale,
            B,
            of_columns,
            group=group_name,
            bias=bias,
            gather_dim=gather_dim,
            return_a=True,
            out_dtype=out_dtype,
        )
        full = gathered if full is None else full
        outs.append(out)
    assert full is not None
    return full, outs


def fused_scaled_matmul_reduce_scatter(
    A: torch.Tensor,
    B: torch.Tensor,
    A_scale: torch.Tensor,
    B_scale: torch.Tensor,
    reduce_op: str,
    orig_scatter_dim: int,
    scatter_dim_after_maybe_reshape: int,
    group_name: str,
    output_shape: list[int] | None,
    bias: torch.Tensor | None = None,
    result_scale: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> torch.Tensor:
    """overlace.ops.gemm_rs_scaled: this rank's part, along orig_scatter_dim of output_shape, of the sum or average of
    the scaled `A B`. Sums are always those of slow accumulation."""
    name = "fused_scaled_matmul_reduce_scatter"
    wanted = _check_scaled(name, result_scale, out_dtype)
    rows = A.shape[:-1] if output_shape is None else output_shape[:-1]
    of_rows, of_columns = _of_tensor_or_rows(name, A, A_scale, B, B_scale)
    return ops.gemm_rs_scaled(
        A.reshape(*rows, A.shape[-1]),
        of_rows if of_rows.dim() == 1 else of_rows.reshape(*rows, 1),
        B,
        of_columns,
        group=group_name,
        bias=bias,
        reduce_op=reduce_op,
        scatter_dim=orig_scatter_dim,
        out_dtype=wanted,
    )


for _schema in SCHEMAS:
    _name = _schema.partition("(")[0]
    _library.define(_schema)
    _library.impl(_name, globals()[_name], "CompositeImplicitAutograd")
