// The fp64 references of the operators against sums written out by hand.
#include "src/ops/common/reference.h"

#include <gtest/gtest.h>

#include "src/base/half.h"

namespace overlace::ops {
namespace {

TensorView matrix(float* data, int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride) {
  TensorView t;
  t.data = data;
  t.dtype = DType::fp32;
  t.ndim = 2;
  t.sizes = {rows, cols};
  t.strides = {row_stride, col_stride};
  return t;
}

TensorView vector(float* data, int64_t count) {
  TensorView t;
  t.data = data;
  t.dtype = DType::fp32;
  t.ndim = 1;
  t.sizes = {count};
  t.strides = {1};
  return t;
}

TEST(Reference, GathersShardsOfDifferentHeight) {
  float first[] = {1, 2}, second[] = {3, 4, 5, 6};  // 1 x 2 and 2 x 2
  float b[] = {1, 10, 100, 2, 20, 200};             // (2, 3) by rows
  float bias[] = {0.5f, -1, 4};
  const TensorView kn = matrix(b, 2, 3, 3, 1);
  const std::vector<TensorView> shards = {matrix(first, 1, 2, 2, 1), matrix(second, 2, 2, 2, 1)};
  EXPECT_EQ(ag_gemm_reference(shards, kn, vector(bias, 3)),
            (std::vector<double>{5.5, 49, 504, 11.5, 109, 1104, 17.5, 169, 1704}));
  EXPECT_EQ(ag_gemm_reference(shards, kn, {}), (std::vector<double>{5, 50, 500, 11, 110, 1100, 17, 170, 1700}));
}

TEST(Reference, SumsRowsOfAllShards) {
  float first[] = {1, 2}, second[] = {3, 4, 5, 6};  // 1 x 2 and 2 x 2
  float b[] = {1, 10, 2, 20, 3, 30};                // (3, 2) by rows
  const std::vector<TensorView> shards = {matrix(first, 1, 2, 2, 1), matrix(second, 2, 2, 2, 1)};
  EXPECT_EQ(ag_wgrad_reference(shards, matrix(b, 3, 2, 2, 1)), (std::vector<double>{22, 220, 28, 280}));
}

TEST(Reference, NormalizesEachRow) {
  float weight[] = {1, 2};
  const std::vector<double> got = rms_norm_reference({6, 8, 0, 0}, vector(weight, 2), 14);  // mean of squares 50
  EXPECT_EQ(got, (std::vector<double>{0.75, 2, 0, 0}));
}

TEST(Reference, TakesAnyStrides) {
  float a[] = {1, -9, 3, -9, 2, -9, 4, -9};  // by columns, every other element: {{1, 2}, {3, 4}}
  float b[] = {5, 7, 6, 8};                  // by columns: {{5, 6}, {7, 8}}
  const TensorView by_columns = matrix(b, 2, 2, 1, 2);
  EXPECT_EQ(ag_gemm_reference({matrix(a, 2, 2, 2, 4)}, by_columns, {}), (std::vector<double>{19, 22, 43, 50}));
}

TEST(Reference, SumsTheRanksProductsAndAddsTheBiasOnce) {
  float a0[] = {1, 2}, a1[] = {10, 20, 30, 40};  // 2 x 1 and 2 x 2: ranks may differ in K
  float b0[] = {1, 3}, b1[] = {1, 2, 3, 4};
  float bias[] = {1000, 2000};
  const std::vector<TensorView> a = {matrix(a0, 2, 1, 1, 1), matrix(a1, 2, 2, 2, 1)};
  const std::vector<TensorView> b = {matrix(b0, 1, 2, 2, 1), matrix(b1, 2, 2, 2, 1)};
  EXPECT_EQ(gemm_sum_reference(a, b, vector(bias, 2)), (std::vector<double>{1071, 2103, 1152, 2226}));
  EXPECT_EQ(gemm_sum_reference({a[0]}, {b[0]}, {}), (std::vector<double>{1, 3, 2, 6}));
}

TEST(Reference, ReadsSixteenBitElementsExactly) {
  uint16_t a[] = {base::float_to_bf16(1.5f), base::float_to_bf16(-2)};
  uint16_t b[] = {base::float_to_bf16(256), base::float_to_bf16(0.25f)};
  TensorView left = matrix(nullptr, 1, 2, 2, 1), right = matrix(nullptr, 2, 1, 1, 1);
  left.dtype = right.dtype = DType::bf16;
  left.data = a;
  right.data = b;
  EXPECT_EQ(ag_gemm_reference({left}, right, {}), (std::vector<double>{383.5}));
}

}  // namespace
}  // namespace overlace::ops
