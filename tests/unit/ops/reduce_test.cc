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
    return run(reads, {writes}, bias ? spec::Params{{"bias", true}} : spec::Params{}, {});
  }
  base::Status run(const std::vector<std::vector<TensorView>>& reads,
                   const std::vector<std::vector<TensorView>>& writes, const spec::Params& of_task,
                   const spec::Params& of_schedule) {
    spec::Task task;
    task.id = "reduce";
    task.kind = spec::Kind::reduce;
    task.params = of_task;
    spec::Schedule schedule;
    schedule.params = of_schedule;
    return reduce_on_cpu({.schedule = schedule, .task = task, .reads = reads, .writes = writes, .stream = {}});
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

TEST_F(ReduceOnCpu, NormIsOfTheRoundedRow) {
  // 256 + 1.25 becomes 258 in bf16; in place, and into rows with gaps.
  std::vector<uint16_t> sum(6, base::float_to_bf16(256)), residual(6, base::float_to_bf16(1.25F)), normed(8, 7);
  residual[1] = base::float_to_bf16(-256);
  std::vector<uint16_t> weight = {base::float_to_bf16(1), base::float_to_bf16(-2), base::float_to_bf16(0.5F)};
  const TensorView out = TensorView::contiguous(sum.data(), DType::bf16, {2, 3});
  const TensorView added = TensorView::contiguous(residual.data(), DType::bf16, {2, 3});
  const TensorView factors = TensorView::contiguous(weight.data(), DType::bf16, {3});
  TensorView apart = TensorView::contiguous(normed.data(), DType::bf16, {2, 4});
  apart.sizes[1] = 3;
  const spec::Params norm = {{"norm", true}}, eps = {{"eps", 0.25}};
  ASSERT_TRUE(run({{out}, {added}, {factors}}, {{out}, {apart}}, norm, eps).ok());
  const float x = base::bf16_to_float(base::float_to_bf16(257.25F));
  EXPECT_EQ(x, 258);
  for (int64_t i = 0; i < 2; ++i) {
    const double row[] = {x, i == 0 ? 0 : x, x};
    const double mean = (row[0] * row[0] + row[1] * row[1] + row[2] * row[2]) / 3 + 0.25;
    for (int64_t j = 0; j < 3; ++j) {
      EXPECT_EQ(base::load_element(sum.data(), DType::bf16, 3 * i + j), row[j]);
      const double want = row[j] / std::sqrt(mean) * base::load_element(weight.data(), DType::bf16, j);
      EXPECT_NEAR(base::load_element(normed.data(), DType::bf16, 4 * i + j), want, std::abs(want) * 0x1p-8);
    }
    EXPECT_EQ(normed[static_cast<size_t>(4 * i + 3)], 7) << "between rows";
  }
  EXPECT_EQ(run({{out}, {added}, {factors}}, {{out}, {apart}}, norm, {}).code(), Errc::bad_schedule) << "no eps";
  EXPECT_EQ(run({{out}, {added}, {factors}}, {{out}}, norm, eps).code(), Errc::bad_schedule) << "one result";
  EXPECT_EQ(run({{out}, {added}, {}}, {{out}, {apart}}, norm, eps).code(), Errc::bad_schedule) << "no weight";
  EXPECT_EQ(run({{out}, {added}, {factors}}, {{out}, {apart.rows(0, 1)}}, norm, eps).code(), Errc::bad_schedule);
}

TEST_F(ReduceOnCpu, NormOfWideRowsOfZeros) {
  std::vector<float> sum(5000), residual(5000), weight(2500, 3), normed(5000, 1);
  for (size_t j = 2500; j < 5000; ++j) residual[j] = j % 2 == 0 ? 2.0F : -2.0F;  // in several blocks of columns
  const auto view = [](std::vector<float>& v) { return TensorView::contiguous(v.data(), DType::fp32, {2, 2500}); };
  const TensorView factors = TensorView::contiguous(weight.data(), DType::fp32, {2500});
  ASSERT_TRUE(
      run({{view(sum)}, {view(residual)}, {factors}}, {{view(sum)}, {view(normed)}}, {{"norm", true}}, {{"eps", 1e-6}})
          .ok());
  for (size_t j = 0; j < 2500; ++j) {
    ASSERT_EQ(normed[j], 0);
    ASSERT_NEAR(normed[2500 + j], j % 2 == 0 ? 3 : -3, 1e-5);
  }
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
