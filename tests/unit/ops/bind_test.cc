// Arguments of calls of an operator that the library does not have.
#include "src/ops/common/bind.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace overlace::ops {
namespace {

constexpr spec::Arg kArgs[] = {
    {.name = "X", .call = "x", .rows = "M", .columns = "N"},
    {.name = "S", .call = "scales", .rows = "N", .why = "to scale columns of x"},
    {.name = "Y", .call = "y", .role = spec::Role::output, .rows = "M", .columns = "N", .why = "as x"}};

/// An argument without columns is a vector.
TEST(CheckArgs, AVectorHasOneDimensionOfItsLength) {
  const spec::OperatorDef def{.name = "scale_columns", .summary = "", .args = kArgs, .families = {}};
  std::vector<float> x(15), y(15), scales(10);
  const auto refusal = [&](const TensorView& vector) {
    const CallArgs args{.tensors = {TensorView::contiguous(x.data(), DType::fp32, {3, 5}), vector,
                                    TensorView::contiguous(y.data(), DType::fp32, {3, 5})}};
    const Site site{.op = def.name, .rank = 2};
    return check_args(site, def, args, pose(def, args, 4)).message();
  };
  TensorView vector = TensorView::contiguous(scales.data(), DType::fp32, {5});
  EXPECT_EQ(refusal(vector), "");
  vector.strides[0] = 2;
  EXPECT_EQ(refusal(vector), "scale_columns: scales must be contiguous, got stride 2; rank 2");
  EXPECT_EQ(refusal(TensorView::contiguous(scales.data(), DType::fp32, {4})),
            "scale_columns: scales must be (5) to scale columns of x, got (4); rank 2");
  EXPECT_EQ(refusal(TensorView::contiguous(scales.data(), DType::fp32, {1, 5})),
            "scale_columns: scales must be (5) to scale columns of x, got (1, 5); rank 2");
}

/// No kernel adds a bias of the factors' type to a wider result.
TEST(CheckBias, OnGpusItHasTheTypeOfTheResult) {
  std::vector<float> values(4);
  const auto view = [&](DType dtype) { return TensorView::contiguous(values.data(), dtype, {4}); };
  const Named out{"c", view(DType::fp32)}, in{"a_shard", view(DType::fp16)};
  for (const bool is_gpu : {false, true}) {
    const Site site{.op = "ag_gemm", .rank = 1, .is_gpu = is_gpu};
    EXPECT_TRUE(check_bias(site, {}, 4, out, in).ok());
    EXPECT_TRUE(check_bias(site, view(DType::fp32), 4, out, in).ok());
    const base::Status status = check_bias(site, view(DType::fp16), 4, out, in);
    EXPECT_EQ(status.code(), is_gpu ? Errc::not_supported : Errc::ok);
    EXPECT_EQ(status.message(),
              is_gpu ? "ag_gemm: bias is fp16, wanted fp32, as c: on GPUs it has the dtype of the result; rank 1" : "");
    EXPECT_EQ(check_bias(site, view(DType::bf16), 4, out, in).message(),
              "ag_gemm: bias must have the dtype of c (fp32) or of a_shard (fp16), got bf16; rank 1");
  }
}

}  // namespace
}  // namespace overlace::ops
