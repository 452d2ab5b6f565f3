// The fused pass against obvious loops, in all types, with tails, threads and rounds that are dropped.
#include "src/train/co2/pass.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "src/base/half.h"

namespace overlace::train {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Parameters of a rank, with values that differ by tensor and place.
struct Memory {
  std::vector<int64_t> counts;
  DType dtype = DType::fp32, wire_dtype = DType::fp32;
  std::vector<std::vector<char>> x, copies;
  std::vector<float> a, m, kept, residual;  // kept: empty where nothing is
  std::vector<char> w;
  std::vector<PassTensor> tensors;
  std::vector<TensorPod> bounds;
  std::vector<SumsPod> sums;

  Memory(std::vector<int64_t> sizes, DType type, DType wire, bool keeps = false)
      : counts(std::move(sizes)), dtype(type), wire_dtype(wire) {
    std::mt19937 draw(3);
    std::normal_distribution<float> normal;
    int64_t total = 0;
    for (const int64_t count : counts) total += count;
    w.resize(static_cast<size_t>(total) * dtype_bytes(wire));
    residual.resize(static_cast<size_t>(total));
    for (int64_t i = 0; i < total; ++i) {
      a.push_back(normal(draw));
      m.push_back(normal(draw));
      base::store_element(w.data(), wire, i, static_cast<double>(normal(draw)));
      if (keeps) kept.push_back(normal(draw));
    }
    bounds.resize(counts.size());
    sums.resize(counts.size());
    int64_t begin = 0;
    for (size_t t = 0; t < counts.size(); ++t, begin += counts[t - 1]) {
      x.emplace_back(static_cast<size_t>(counts[t]) * dtype_bytes(type));
      copies.emplace_back(static_cast<size_t>(counts[t]) * 2);
      for (int64_t i = 0; i < counts[t]; ++i)
        base::store_element(x[t].data(), type, i, static_cast<double>(normal(draw)));
      bounds[t].bound = t % 2 == 0 ? kInfinity : 0.5f;
      bounds[t].count = static_cast<double>(counts[t]);
    }
    begin = 0;
    for (size_t t = 0; t < counts.size(); begin += counts[t++])
      tensors.push_back({.x = x[t].data(),
                         .dtype = type,
                         .begin = begin,
                         .count = counts[t],
                         .copy = copies[t].data(),
                         .copy_dtype = DType::bf16});
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  PassMemory memory() {
    return {.anchor = a.data(),
            .momentum = m.data(),
            .kept = kept.empty() ? nullptr : kept.data(),
            .wire = w.data(),
            .wire_dtype = wire_dtype,
            .residual = wire_dtype == DType::fp32 ? nullptr : residual.data()};
  }
  void run(int threads, PassMode mode, const PassPod& pass, int64_t groups) {
    Threads pool(threads);
    run_pass(pool, mode, pass, static_cast<float>(groups), tensors, bounds, memory(), sums);
  }
};

const PassPod kPass{
    .pull = 0.5f, .inv_lambda = 0.75f, .beta = 0.8f, .step_m = 0.9f, .step_d = 0.1f, .keep = 0.6f, .is_applied = 1};

/// run_pass(), element by element, from the text of the algorithm.
void run_slowly(Memory& memory, PassMode mode, const PassPod& pass, int64_t groups) {
  const auto get = [](const void* data, DType dtype, int64_t i) {
    return static_cast<float>(base::load_element(data, dtype, i));
  };
  const auto set = [](void* data, DType dtype, int64_t i, float value) {
    base::store_element(data, dtype, i, static_cast<double>(value));
  };
  const float g = static_cast<float>(groups);
  for (size_t t = 0; t < memory.counts.size(); ++t) {
    SumsPod& sums = memory.sums[t];
    if (mode != PassMode::apply) sums.w2 = sums.bad = 0;
    if (mode != PassMode::delta) sums.m2 = sums.v2 = sums.clipped = 0;
    for (int64_t i = 0; i < memory.counts[t]; ++i) {
      const int64_t flat = memory.tensors[t].begin + i;
      float& a = memory.a[static_cast<size_t>(flat)];
      float& m = memory.m[static_cast<size_t>(flat)];
      float& left = memory.residual[static_cast<size_t>(flat)];
      const float v = get(memory.w.data(), memory.wire_dtype, flat);
      const bool keeps = !memory.kept.empty();
      float next_kept = 0;
      if (mode != PassMode::apply) {
        const float start = keeps ? a - memory.kept[static_cast<size_t>(flat)] : a;
        const float w = start - get(memory.x[t].data(), memory.dtype, i);
        if (mode == PassMode::fused && keeps && std::isfinite(w)) next_kept = pass.keep * w;
        sums.w2 += static_cast<double>(w) * static_cast<double>(w);
        sums.bad += std::isfinite(w) ? 0 : 1;
        const float whole = memory.wire_dtype == DType::fp32 ? w : w + left;
        set(memory.w.data(), memory.wire_dtype, flat, whole / g);
        if (memory.wire_dtype != DType::fp32) {
          left = whole - g * get(memory.w.data(), memory.wire_dtype, flat);
          if (!std::isfinite(left)) left = 0;
        }
      }
      if (mode == PassMode::delta) continue;
      if (keeps) memory.kept[static_cast<size_t>(flat)] = next_kept;
      sums.v2 += static_cast<double>(v) * static_cast<double>(v);
      if (pass.is_applied != 0) {
        const float d = v - pass.pull * m, free = pass.beta * m + d * pass.inv_lambda, bound = memory.bounds[t].bound;
        sums.clipped += free > bound || free < -bound ? 1 : 0;
        m = std::min(std::max(free, -bound), bound);
        a -= pass.step_m * m + pass.step_d * d;
      }
      sums.m2 += static_cast<double>(m) * static_cast<double>(m);
      set(memory.x[t].data(), memory.dtype, i, a - next_kept);
      set(memory.copies[t].data(), DType::bf16, i, a - next_kept);
    }
  }
}

void expect_same(const Memory& got, const Memory& wanted) {
  EXPECT_EQ(got.a, wanted.a);
  EXPECT_EQ(got.m, wanted.m);
  EXPECT_EQ(got.kept, wanted.kept);
  EXPECT_EQ(got.w, wanted.w);
  EXPECT_EQ(got.x, wanted.x);
  EXPECT_EQ(got.copies, wanted.copies);
  if (got.wire_dtype != DType::fp32) {
    EXPECT_EQ(got.residual, wanted.residual);
  }
  for (size_t t = 0; t < got.sums.size(); ++t) {
    EXPECT_NEAR(got.sums[t].m2, wanted.sums[t].m2, 1e-12 * (1 + wanted.sums[t].m2));
    EXPECT_NEAR(got.sums[t].w2, wanted.sums[t].w2, 1e-12 * (1 + wanted.sums[t].w2));
    EXPECT_NEAR(got.sums[t].v2, wanted.sums[t].v2, 1e-12 * (1 + wanted.sums[t].v2));
    EXPECT_EQ(got.sums[t].bad, wanted.sums[t].bad);
    EXPECT_EQ(got.sums[t].clipped, wanted.sums[t].clipped);
  }
}

struct Case {
  PassMode mode;
  DType dtype, wire;
  int64_t groups;
  bool keeps;
};

class Co2Pass : public testing::TestWithParam<Case> {};

TEST_P(Co2Pass, EqualsTheObviousLoops) {
  const Case& c = GetParam();
  const std::vector<int64_t> counts = {1, 0, 7, 512, 515, 16384, 16385, 40003};
  Memory got(counts, c.dtype, c.wire, c.keeps), wanted(counts, c.dtype, c.wire, c.keeps);
  for (int round = 0; round < 2; ++round) {  // twice: the residual of the first round comes into the second
    got.run(3, c.mode, kPass, c.groups);
    run_slowly(wanted, c.mode, kPass, c.groups);
    expect_same(got, wanted);
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const PassMode mode : {PassMode::fused, PassMode::delta, PassMode::apply})
    for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16})
      for (const DType wire : {DType::fp32, DType::bf16})
        for (const bool keeps : {false, true}) all.push_back({mode, dtype, wire, wire == DType::fp32 ? 3 : 4, keeps});
  return all;
}

std::string name_of(const testing::TestParamInfo<Case>& info) {
  const char* const modes[] = {"fused", "delta", "apply"};
  return std::string(modes[static_cast<int>(info.param.mode)]) + "_" + dtype_name(info.param.dtype) + "_" +
         dtype_name(info.param.wire) + (info.param.keeps ? "_keeps" : "");
}

INSTANTIATE_TEST_SUITE_P(Types, Co2Pass, testing::ValuesIn(cases()), name_of);

TEST(Co2PassBits, AreTheSameWithAnyNumberOfThreads) {
  const std::vector<int64_t> counts = {70001, 3, 16384 * 3};
  Memory one(counts, DType::bf16, DType::fp32), many(counts, DType::bf16, DType::fp32);
  one.run(1, PassMode::fused, kPass, 2);
  many.run(5, PassMode::fused, kPass, 2);
  expect_same(many, one);
  for (size_t t = 0; t < counts.size(); ++t) {
    EXPECT_EQ(many.sums[t].m2, one.sums[t].m2);  // to the last bit
    EXPECT_EQ(many.sums[t].w2, one.sums[t].w2);
    EXPECT_EQ(many.sums[t].v2, one.sums[t].v2);
  }
}

TEST(Co2PassSkip, LeavesAnchorAndMomentumAndRestoresParameters) {
  const std::vector<int64_t> counts = {1029, 6};
  Memory memory(counts, DType::fp32, DType::fp32);
  const float nan = std::nanf("");
  float* const x = reinterpret_cast<float*>(memory.x[0].data());
  x[0] = nan;
  x[700] = kInfinity;
  x[1028] = -kInfinity;
  // What came in is bad as well.
  float* const w = reinterpret_cast<float*>(memory.w.data());
  w[3] = nan;
  const std::vector<float> a = memory.a, m = memory.m;
  PassPod pass = kPass;
  pass.is_applied = 0;
  memory.run(2, PassMode::fused, pass, 2);
  EXPECT_EQ(memory.a, a);
  EXPECT_EQ(memory.m, m);
  EXPECT_EQ(memory.sums[0].bad, 3);
  EXPECT_EQ(memory.sums[1].bad, 0);
  EXPECT_EQ(std::memcmp(x, a.data(), 1029 * sizeof(float)), 0);
  EXPECT_TRUE(std::isnan(w[0]));  // this round's increment, which its own header condemns
  EXPECT_TRUE(std::isfinite(w[3]));
}

TEST(Co2PassSkip, KeepsOwnIncrementsThatAreFinite) {
  Memory memory({6}, DType::fp32, DType::fp32, true);
  float* const x = reinterpret_cast<float*>(memory.x[0].data());
  x[2] = std::nanf("");
  const float own = memory.a[1] - memory.kept[1] - x[1], kept = kPass.keep * own;
  const std::vector<float> a = memory.a;
  PassPod pass = kPass;
  pass.is_applied = 0;
  memory.run(1, PassMode::fused, pass, 2);
  EXPECT_EQ(memory.kept[2], 0);
  EXPECT_EQ(x[2], a[2]);
  EXPECT_EQ(memory.kept[1], kept);
  EXPECT_EQ(x[1], a[1] - kept);
  EXPECT_NE(kept, 0);
  EXPECT_EQ(memory.a, a);
}

TEST(Co2PassMomentum, IsNotRememberedWhereThereIsNone) {
  Memory with({515}, DType::fp32, DType::fp32), without({515}, DType::fp32, DType::fp32);
  PassPod pass = kPass;
  pass.beta = pass.pull = 0;
  with.run(1, PassMode::fused, pass, 2);
  const std::vector<float> momentum = without.m;
  PassMemory memory = without.memory();
  memory.momentum = nullptr;
  Threads pool(1);
  run_pass(pool, PassMode::fused, pass, 2, without.tensors, without.bounds, memory, without.sums);
  EXPECT_EQ(without.a, with.a);
  EXPECT_EQ(without.x, with.x);
  EXPECT_EQ(without.sums[0].m2, with.sums[0].m2);
  EXPECT_EQ(without.m, momentum);
}

TEST(Co2PassBf16, ErrorFeedbackLosesNothingInTheLongRun) {
  // The same small increment again and again: without feedback its rounding error would be the same every time.
  constexpr int kRounds = 400;
  Memory memory({5}, DType::fp32, DType::bf16);
  const float step = 1.0f + 0x1p-9f;  // half way between two bf16
  double sent = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::fill(memory.a.begin(), memory.a.end(), step);
    std::memset(memory.x[0].data(), 0, memory.x[0].size());
    memory.run(1, PassMode::delta, kPass, 2);
    sent += 2 * base::load_element(memory.w.data(), DType::bf16, 4);
  }
  EXPECT_NEAR(sent, kRounds * static_cast<double>(step), 0.01);
  EXPECT_GT(std::abs(kRounds * 1.0 - kRounds * static_cast<double>(step)), 0.5);  // what rounding alone would lose
}

TEST(Co2PassBf16, ABadValueIsNotKept) {
  Memory memory({5}, DType::fp32, DType::bf16);
  reinterpret_cast<float*>(memory.x[0].data())[2] = kInfinity;
  memory.run(1, PassMode::delta, kPass, 2);
  EXPECT_EQ(memory.sums[0].bad, 1);
  for (const float left : memory.residual) EXPECT_TRUE(std::isfinite(left));
}

TEST(Co2PassAnchor, IsTakenFromParametersAndGivenBack) {
  Memory memory({3, 0, 9}, DType::bf16, DType::fp32, true);
  const auto x = memory.x;
  reset_anchor(memory.tensors, memory.memory());
  for (const float m : memory.m) EXPECT_EQ(m, 0);
  for (const float kept : memory.kept) EXPECT_EQ(kept, 0);
  memory.kept[1] = 5;
  for (auto& values : memory.x) std::fill(values.begin(), values.end(), '\1');
  restore_parameters(memory.tensors, memory.memory());
  EXPECT_EQ(memory.x, x);
  EXPECT_EQ(memory.kept[1], 0);
}

}  // namespace
}  // namespace overlace::train
