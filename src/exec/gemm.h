// GEMM of the CPU backend: c (+)= a b with fp32 accumulation (fp64 for fp64), by the best provider there is.
#pragma once

#include <string>
#include <string_view>

#include "overlace/tensor.h"
#include "src/base/status.h"

namespace overlace::exec {

/// What GEMMs multiply, and what a bias may be.
inline bool is_float(DType t) { return t == DType::fp64 || t == DType::fp32 || t == DType::fp16 || t == DType::bf16; }

/// a (M, K) with K or M contiguous; b (K, N) with K or N contiguous; c (M, N) N contiguous; bias (N) or undefined, of
/// any floating dtype. a and b have one dtype (fp64 fp32 bf16 fp16) or are of fp8; c that dtype or fp32. Uses the
/// calling thread alone.
///
/// The result of a row block equals the same rows of the whole product bit for bit: always with the reference provider
/// (column blocks and accumulated K slabs too), with oneDNN in fp32 where rows are many (its bf16 products of few rows
/// add in another order, on an AMD EPYC also those of one row in fp32). Either gives the same bits for the same shapes
/// and data.
///
/// Operands of fp8, e4m3 both or one of them e5m2, have scales, which are fp32 and multiply the sum: (1) each, or (M,
/// 1) and (1, N). c is fp32, bf16 or fp16 then; sums are fp32 of exact products, scaled in fp64 and rounded to fp32
/// before anything is added.
struct GemmArgs {
  TensorView a{}, b{}, c{}, bias{}, a_scale{}, b_scale{};
  bool accumulate = false;  // c += a b; c is fp32 or fp64; bias is added last
};
base::Status cpu_gemm(const GemmArgs& args);

/// "reference" or "onednn 2.6.3".
std::string cpu_gemm_provider();
/// "auto" (oneDNN where it is found; the default), "reference" or "onednn". Process-wide; for tests and comparisons.
/// not_supported with the reason where oneDNN cannot be opened.
base::Status set_cpu_gemm_provider(std::string_view name);

}  // namespace overlace::exec
