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

}  // namespace
}  // namespace overlace::ops
