"""What programs that use overlace's types write; job python has mypy and pyright read it, nothing runs it.

Each ignored error is one that mypy must find: one that it does not find is an unused ignore, which it reports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import overlace
import torch
from overlace import ops

if TYPE_CHECKING:
    from typing_extensions import assert_type


def operators(x: torch.Tensor, w: torch.Tensor, group: torch.distributed.ProcessGroup) -> None:
    assert_type(ops.ag_gemm(x, w, group=group), torch.Tensor)
    assert_type(ops.ag_gemm(x, [w, w], group=group, plan="hetero_unfused_1d:4"), list[torch.Tensor])
    assert_type(ops.ag_gemm(x, w, group=group, return_a=True), tuple[torch.Tensor, torch.Tensor])
    assert_type(ops.ag_gemm(x, [w], group=group, return_a=True), tuple[torch.Tensor, list[torch.Tensor]])
    assert_type(ops.ag_wgrad(x, w, group=group), torch.Tensor)
    assert_type(ops.ag_wgrad(x, (w, w), group=group), list[torch.Tensor])
    assert_type(ops.gemm_rs(x, w, group=group, bias=None), torch.Tensor)
    assert_type(ops.gemm_ar(x, w, group=group), torch.Tensor)
    assert_type(ops.gemm_a2a(x, w, group=group, splits=[[1, 1], [1, 1]]), torch.Tensor)
    assert_type(ops.a2a_gemm(x, w, group=group), torch.Tensor)
    assert_type(ops.a2a_gemm(x, w, group=group, return_a=True), tuple[torch.Tensor, torch.Tensor])
    assert_type(ops.all_reduce(x, group=group), torch.Tensor)
    idx, weights = ops.moe_router(x, w, top_k=2)
    assert_type(ops.moe(x, idx, weights, w, w, num_experts=4), torch.Tensor)
    assert_type(
        ops.moe(x, idx, weights, w, w, num_experts=4, return_load=True, group=group),
        tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    )


def around_them(x: torch.Tensor, w: torch.Tensor, model: torch.nn.Module) -> None:
    with overlace.init(backend="cpu") as context:
        assert_type(context.rank, int)
        assert_type(overlace.context_of(), overlace.Context)
    assert_type(overlace.plan("ag_gemm", 8, 4, 6, dtype=torch.float32).family, str)
    assert_type(overlace.empty_symmetric((2, 3)), torch.Tensor)
    with overlace.StripedTensor((8, 6), torch.float32, owners=[0, 1]) as striped:
        striped.run(lambda out: torch.mm(x, w, out=out), inputs=(x, w))
        assert_type(striped.out, torch.Tensor)
        assert_type(striped.reduce_scatter(dtype=torch.float32), torch.Tensor)
        assert_type(striped.owned_rows, int)
    overlace.call("gemm_ar", {"a": x, "b": w, "out": x}, plan="library")
    assert_type(overlace.nn.ColumnParallelLinear(4, 4, plan="serial").forward(x), torch.Tensor)
    moe = overlace.nn.MoELayer(4, 8, 6, top_k=2)
    assert_type(moe.forward(x), torch.Tensor)
    assert_type(moe.load, torch.Tensor | None)
    assert_type(moe.expert_parameters(), dict[str, torch.nn.Parameter])
    with overlace.compile.enable(plan="library"):
        assert_type(str(overlace.compile.report()), str)
    optimizer = overlace.optim.CO2(model, torch.optim.SGD(model.parameters(), 0.1), tau="auto")
    assert_type(optimizer.tau, int)


def mistakes(x: torch.Tensor, w: torch.Tensor) -> None:
    ops.ag_gemm(x, w)  # type: ignore[call-overload]
    ops.ag_gemm(x, w, group=None, plan=4)  # type: ignore[call-overload]
    ops.gemm_ar(x, [w], group=None)  # type: ignore[arg-type]
    overlace.init(heap_byte=1)  # type: ignore[call-arg]
