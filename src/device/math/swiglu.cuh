// SwiGLU of a gate and what it is for: silu(gate) times that (arXiv 2002.05202).
#pragma once

namespace overlace::device {

/// By the special function units: a relative error of 4 ulp, and of 1.2 ulp more for each 1 that gate is below 0, where
/// silu itself falls like exp(gate).
__device__ __forceinline__ float swiglu(float gate, float up) { return __fdividef(gate, 1.0f + __expf(-gate)) * up; }
__device__ __forceinline__ double swiglu(double gate, double up) { return gate / (1.0 + exp(-gate)) * up; }

/// By the special function units, as swiglu: silu(gate) is gate times it.
__device__ __forceinline__ float sigmoid(float gate) { return __fdividef(1.0f, 1.0f + __expf(-gate)); }

}  // namespace overlace::device
