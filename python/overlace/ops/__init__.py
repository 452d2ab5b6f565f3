"""The operators, with names, defaults and errors of Python; torch.ops.overlace.* is what they call.

All are collective: every rank of `group` calls them in the same order, with the same shapes but for what is said to be
a rank's own. The work is queued on the current CUDA stream; on CPU ranks it is done on return. `group` is a
ProcessGroup, a DeviceMesh of one dimension, or the name of a group.

Each operator has a module: its shapes for torch.compile, which also find errors before anything moves and touch no
peer; its gradient; its function. Of gradients only those that are needed are computed; all ranks must need the same.

| forward | gradient of the activation | gradient of the weight |
|---|---|---|
| Y_i = AG(x) W_i | dx = RS(sum_i dY_i W_i^T): one gemm_rs | dW_i = AG(x)^T dY_i: of AG(x), kept or gathered again |
| y = RS(A W) | dA = AG(dy) W^T: ag_gemm, which also gives AG(dy) | dW = A^T AG(dy) |
| Y = AR(A W) | dA = dY W^T, local: dY is the same on all ranks | dW = A^T dY |
| y = AR(A W) + r, and norm(y) w | dA = dY W^T, dr = dY: dY with what comes through the norm | dW = A^T dY; dw, local |
| Y = A2A(A W) | dA = A2A(dY) back, times W^T: a2a_gemm, which also gives dP = A2A(dY) | dW = A^T dP |
| Y = A2A(A) W | dA = A2A(dY W^T) back: gemm_a2a | dW = A2A(A)^T dY: kept or exchanged again |
| dW_i = AG(x)^T dY_i | dx = RS(sum_i dY_i dW_i'^T), dW_i' the gradient of dW_i: one gemm_rs | of dY_i: AG(x) dW_i' |
| out = A2A(pool of rows of W) | none, they are indices | A2A(dout) back to W's rank, added row by row |
| y = sum of w expert(x) where experts lie | dx, dw by one moe_grad, which moves rows as the forward does | by it, too |

Of the plain collectives: all_gather and reduce_scatter are each other's; that of all_to_all is itself; that of
all_reduce is local, as of Y = AR(A W).

Those with _scaled in their names, of fp8, have none.

Gradients are made of differentiable operators, so they have gradients themselves, of any order, but for those of moe,
which have none. What all ranks hold
alike (dY of AR, a bias of RS and its gradient) counts once: where each rank goes on with it alone, its own gradient is
the sum over ranks.

The gradient of a weight lies in memory as the weight does, so that autograd adds it without a copy: of `weight.t()` it
is the transpose of dY^T A. ag_wgrad, which gathers again and hides that, gives results whose rows are contiguous: it is
for weights stored like that.
"""

from __future__ import annotations

from overlace.ops._a2a_gemm import a2a_gemm
from overlace.ops._ag_gemm import ag_gemm
from overlace.ops._ag_wgrad import ag_wgrad
from overlace.ops._collectives import all_gather, all_reduce, all_to_all, reduce_scatter
from overlace.ops._common import activation_of, replicated
from overlace.ops._embedding_a2a import embedding_a2a
from overlace.ops._gemm_a2a import gemm_a2a
from overlace.ops._gemm_ar import gemm_ar
from overlace.ops._gemm_ar_norm import gemm_ar_norm
from overlace.ops._gemm_rs import gemm_rs
from overlace.ops._moe import moe
from overlace.ops._moe_router import moe_router
from overlace.ops._scaled import ag_gemm_scaled, gemm_ar_scaled, gemm_rs_scaled

__all__ = [
    "a2a_gemm",
    "activation_of",
    "ag_gemm",
    "ag_gemm_scaled",
    "ag_wgrad",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "embedding_a2a",
    "gemm_a2a",
    "gemm_ar",
    "gemm_ar_norm",
    "gemm_ar_scaled",
    "gemm_rs",
    "gemm_rs_scaled",
    "moe",
    "moe_router",
    "reduce_scatter",
    "replicated",
]
