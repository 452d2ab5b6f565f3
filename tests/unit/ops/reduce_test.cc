#include <gtest/gtest.h>

#include <cmath>

#include "src/base/half.h"
#include "src/ops/reduce/bodies.h"

namespace overlace::ops {
namespace {

/// A reduce task over `sources` (all alike) and perhaps a bias, by the CPU body.
class ReduceOnCpu : public ::testing::Test {
 protected:
  base::Status reduce(const std::vector<std::vector<TensorView>>& reads, const std::vector<TensorView>& writes,
                      bool bias) {
    spec::Task task;
    task.id = "reduce";
    task.kind = spec::Kind::reduce;
    if (bias) task.params["bias"] = true;
    const spec::Schedule schedule;
    return reduce_on_cpu({.schedule = schedule, .task = task, .reads = reads, .writes = {writes}, .stream = {}});
  }
};

TEST_F(ReduceOnCpu, AddsSourcesOfAllRegionsInOrderAndRoundsOnce) {
  // 1 + 2^-9 + 2^-9 is a bf16 step above 1, but each addition alone would be lost in bf16.
  const float small = std::ldexp(1.0F, -9);
  std::vector<uint16_t> one(6, base::float_to_bf16(1)), tiny(6, base::float_to_bf16(small)), out(6);
  std::vector<float> bias = {0, 1, 2};
  const TensorView a = TensorView::contiguous(one.data(), DType::bf16, {2, 3});
  const TensorView b = TensorView::contiguous(tiny.data(), DType::bf16, {2, 3});
  const TensorView dst = TensorView::contiguous(out.data(), DType::bf16, {2, 3});
  const TensorView vector = TensorView::contiguous(bias.data(), DType::fp32, {3});
  ASSERT_TRUE(reduce({{a}, {b, b, b, b}, {vector}}, {dst}, true).ok());
  for (int64_t i = 0; i < 2; ++i) {
    for (int64_t j = 0; j < 3; ++j) {
      EXPECT_EQ(out[static_cast<size_t>(i * 3 + j)], base::float_to_bf16(1 + 4 * small + static_cast<float>(j)));
    }
  }
}

TEST_F(ReduceOnCpu, TakesPitchesWideRowsAndFp64) {
  const int64_t cols = 2500, pitch = 2503;  // more than one block of columns
  std::vector<double> a(2 * pitch), b(2 * pitch), out(2 * pitch, -1);
  for (int64_t i = 0; i < 2 * pitch; ++i) {
    a[static_cast<size_t>(i)] = static_cast<double>(i) + 0x1p-40;
    b[static_cast<size_t>(i)] = static_cast<double>(3 * i);
  }
  const auto view = [&](std::vector<double>& v) {
    TensorView t = TensorView::contiguous(v.data(), DType::fp64, {2, pitch});
    t.sizes[1] = cols;
    return t;
  };
  ASSERT_TRUE(reduce({{view(a), view(b)}}, {view(out)}, false).ok());
  for (int64_t i = 0; i < 2 * pitch; ++i) {
    const double want = i % pitch < cols ? static_cast<double>(4 * i) + 0x1p-40 : -1;
    ASSERT_EQ(out[static_cast<size_t>(i)], want) << i;
  }
}

TEST_F(ReduceOnCpu, ConvertsFp32ToEveryOutputType) {
  std::vector<float> in = {1.5F, -2, 1024};
  const TensorView source = TensorView::contiguous(in.data(), DType::fp32, {1, 3});
  for (const DType type : {DType::fp32, DType::bf16, DType::fp16}) {
    std::vector<char> out(12);
    ASSERT_TRUE(reduce({{source}}, {TensorView::contiguous(out.data(), type, {1, 3})}, false).ok());
    for (int64_t j = 0; j < 3; ++j) {
      EXPECT_EQ(base::load_element(out.data(), type, j), static_cast<double>(in[static_cast<size_t>(j)]));
    }
  }
}

TEST_F(ReduceOnCpu, SwigluIsOfSumsWithTheirBias) {
  std::vector<double> one = {1, 2, -3, 4}, two = {1, 1, 1, 1}, bias = {0.5, 0, 2, -1}, out(2);
  const auto row = [](std::vector<double>& x) {
    return TensorView::contiguous(x.data(), DType::fp64, {1, static_cast<int64_t>(x.size())});
  };
  ReduceOperands r{.sources = {row(one), row(two)}, .bias = row(bias), .dst = row(out)};
  r.activation = spec::Activation::swiglu;
  sum_on_cpu(r);
  EXPECT_NEAR(out[0], 2.5 / (1 + std::exp(-2.5)) * 3, 1e-15);
  EXPECT_EQ(out[1], 0.0);
}

TEST_F(ReduceOnCpu, NothingToWriteIsNothingToDo) { EXPECT_TRUE(reduce({{}}, {}, false).ok()); }

TEST_F(ReduceOnCpu, RefusesOtherForms) {
  std::vector<float> in(6), out(6);
  const TensorView source = TensorView::contiguous(in.data(), DType::fp32, {2, 3});
  const TensorView dst = TensorView::contiguous(out.data(), DType::fp32, {2, 3});
  const base::Status shape = reduce({{source.rows(0, 1)}}, {dst}, false);
  EXPECT_EQ(shape.code(), Errc::bad_schedule);
  EXPECT_NE(shape.message().find("result (2, 3), got (1, 3)"), std::string::npos);
  EXPECT_EQ(reduce({{}}, {dst}, false).code(), Errc::bad_schedule);
  EXPECT_EQ(reduce({{source}, {}}, {dst}, true).code(), Errc::bad_schedule);
}

}  // namespace
}  // namespace overlace::ops
