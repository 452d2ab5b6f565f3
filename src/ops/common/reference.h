// What each operator must give, in fp64 by the obvious loops: the oracle of tests.
#pragma once

#include <vector>

#include "overlace/schedule.h"
#include "overlace/tensor.h"

namespace overlace::ops {

/// Element (i, j) of a matrix, or j of a vector.
double element(const TensorView& t, int64_t i, int64_t j);
/// out (rows of a, N) row-major += a b.
void add_product(const TensorView& a, const TensorView& b, double* out);
/// Every row of out (rows, N) += bias, if there is one.
void add_bias(const TensorView& bias, int64_t rows, int64_t n, double* out);

/// c (M, N) of ag_gemm, of swiglu (M, N / 2), from the shards of all ranks.
std::vector<double> ag_gemm_reference(const std::vector<TensorView>& shards, const TensorView& b,
                                      const TensorView& bias, spec::Activation activation = spec::Activation::none);
/// c (K, N) of ag_wgrad, from the shards of all ranks.
std::vector<double> ag_wgrad_reference(const std::vector<TensorView>& shards, const TensorView& b);
/// The whole sum (M, N), bias included, from the operands of all ranks. Rank r of gemm_rs keeps its rows, gemm_ar all
/// of them.
std::vector<double> gemm_sum_reference(const std::vector<TensorView>& a, const std::vector<TensorView>& b,
                                       const TensorView& bias);
/// Rows of x (rows, columns of weight), each divided by the root of the mean of its squares plus eps, times weight.
std::vector<double> rms_norm_reference(const std::vector<double>& x, const TensorView& weight, double eps);

}  // namespace overlace::ops
