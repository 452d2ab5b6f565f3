// GEMM of the CPU backend: c (+)= a b with fp32 accumulation (fp64 for fp64), by the best provider there is.
#pragma once

#include <string>

#include "overlace/tensor.h"
#include "src/base/status.h"

namespace overlace::exec {

/// a (M, K) K contiguous; b (K, N) with K or N contiguous; c (M, N) N contiguous; bias (N) or undefined. dtypes: a and
/// b alike, c that dtype or fp32. The result of a row block equals the same rows of the whole product bit for bit.
struct GemmArgs {
  TensorView a, b, c, bias;
  bool accumulate = false;  // c += a b; c is fp32 or fp64
};
base::Status cpu_gemm(const GemmArgs& args);

/// "reference" or "onednn 2.6.3"; chosen once per process.
std::string cpu_gemm_provider();

}  // namespace overlace::exec
