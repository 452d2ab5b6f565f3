"""A product in Triton that knows nothing of ranks: what a program may have before it has heard of overlace."""

import triton
import triton.language as tl


@triton.jit
def matmul(
    a, b, out, m, n, k: tl.constexpr, stride_am, stride_bk, stride_om, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr
):  # fmt: skip
    """out (m, n) = a (m, k) b (k, n); rows are contiguous, a program makes a tile."""
    across = tl.cdiv(n, BLOCK_N)
    rows = tl.program_id(0) // across * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(0) % across * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first in range(0, k, BLOCK_K):
        inner = first + tl.arange(0, BLOCK_K)
        at = tl.load(a + rows[:, None] * stride_am + inner, mask=(rows[:, None] < m) & (inner < k), other=0.0)
        bt = tl.load(b + inner[:, None] * stride_bk + cols, mask=(inner[:, None] < k) & (cols < n), other=0.0)
        total += tl.dot(at, bt)
    place = out + rows[:, None].to(tl.int64) * stride_om + cols
    tl.store(place, total.to(out.dtype.element_ty), mask=(rows[:, None] < m) & (cols < n))


def multiply(a, b, out, block_m=64, block_n=64, block_k=32):
    (m, k), n = a.shape, b.shape[1]
    grid = (triton.cdiv(m, block_m) * triton.cdiv(n, block_n),)
    strides = a.stride(0), b.stride(0), out.stride(0)
    matmul[grid](a, b, out, m, n, k, *strides, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k)
