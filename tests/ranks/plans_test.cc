// Ranks whose N or K differ, and whose own choices may: all run one schedule, or all of them see that they do not.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "overlace/capi.h"

namespace overlace::test {
namespace {

constexpr int kRanks = 4;
constexpr int64_t kNarrow = 1, kWide = 600, kOtherWide = 601;  // for which `auto` takes library, and another one

std::string last_error() { return ovl_error_text(); }

template <class T>
T fresh() {
  T value{};
  value.struct_size = sizeof(T);
  return value;
}

/// One rank of the C API, which keeps what it has chosen, as PyTorch's operators do.
class Rank {
 public:
  Rank(ovl_runtime* runtime, int rank, bool is_ag) : runtime_(runtime), rank_(rank), is_ag_(is_ag) {
    ovl_team* team = nullptr;
    EXPECT_EQ(ovl_runtime_world(runtime, &team), OVL_OK) << last_error();
    EXPECT_EQ(ovl_channel_open(team, nullptr, 0, &channel_), OVL_OK) << last_error();
  }
  ~Rank() {
    for (const auto& [problem, schedule] : chosen_) EXPECT_EQ(ovl_schedule_free(schedule), OVL_OK);
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  int rank() const { return rank_; }
  int64_t preparations() const {
    auto info = fresh<ovl_info>();
    EXPECT_EQ(ovl_runtime_info(runtime_, &info), OVL_OK) << last_error();
    return static_cast<int64_t>(info.preparations);
  }
  /// The text of this rank's choice.
  std::string text(int64_t m, int64_t width) {
    const char* text = nullptr;
    EXPECT_EQ(ovl_schedule_text(schedule(m, width), &text), OVL_OK) << last_error();
    return text;
  }

  int barrier() { return ovl_barrier(channel_); }
  /// The code of a call of ag_gemm with N `width` or of gemm_rs with K `width`; what it gives must be right.
  int call(int64_t m, int64_t width, const std::vector<int64_t>& widths_of_all) {
    const int64_t n = is_ag_ ? width : kFixed, k = is_ag_ ? kFixed : width;
    const int64_t a_rows = is_ag_ ? m / kRanks : m, out_rows = is_ag_ ? m : m / kRanks;
    std::vector<float> a(static_cast<size_t>(a_rows * k)), b(static_cast<size_t>(k * n)),
        out(static_cast<size_t>(out_rows * n), -1.0f);
    const int64_t first = is_ag_ ? rank_ * a_rows : 0;
    for (int64_t i = 0; i < a_rows; ++i)
      for (int64_t j = 0; j < k; ++j) a[static_cast<size_t>(i * k + j)] = a_at(first + i);
    for (int64_t i = 0; i < k; ++i)
      for (int64_t j = 0; j < n; ++j) b[static_cast<size_t>(i * n + j)] = b_at(j);
    ovl_schedule* const plan = schedule(m, width);
    const int code = is_ag_ ? ag_gemm(a, b, out, a_rows, n, k, plan) : gemm_rs(a, b, out, m, n, k, plan);
    if (code != OVL_OK) return code;
    int64_t depth = 0;
    for (const int64_t other : widths_of_all) depth += other;
    if (is_ag_) depth = kFixed;
    int64_t wrong = 0;
    for (int64_t i = 0; i < out_rows; ++i)
      for (int64_t j = 0; j < n; ++j) {
        const int64_t row = is_ag_ ? i : rank_ * out_rows + i;
        wrong += out[static_cast<size_t>(i * n + j)] != static_cast<float>(depth) * a_at(row) * b_at(j) ? 1 : 0;
      }
    EXPECT_EQ(wrong, 0) << "rank " << rank_ << ", M " << m << ", width " << width;
    return code;
  }

 private:
  static constexpr int64_t kFixed = 64;
  static float a_at(int64_t row) { return static_cast<float>(row % 7 - 3); }
  static float b_at(int64_t column) { return static_cast<float>(column % 5 - 1); }

  static ovl_tensor matrix(std::vector<float>& data, int64_t rows, int64_t columns) {
    ovl_tensor tensor{};
    EXPECT_EQ(ovl_matrix(data.data(), OVL_FP32, rows, columns, &tensor), OVL_OK) << last_error();
    return tensor;
  }
  int ag_gemm(std::vector<float>& a, std::vector<float>& b, std::vector<float>& c, int64_t rows, int64_t n, int64_t k,
              ovl_schedule* plan) {
    const ovl_arg args[] = {ovl_tensor_arg("a_shard", matrix(a, rows, k)), ovl_tensor_arg("b", matrix(b, k, n)),
                            ovl_tensor_arg("c", matrix(c, rows * kRanks, n))};
    return ovl_call(channel_, "ag_gemm", args, 3, plan);
  }
  int gemm_rs(std::vector<float>& a, std::vector<float>& b, std::vector<float>& out, int64_t m, int64_t n, int64_t k,
              ovl_schedule* plan) {
    const ovl_arg args[] = {ovl_tensor_arg("a", matrix(a, m, k)), ovl_tensor_arg("b", matrix(b, k, n)),
                            ovl_tensor_arg("out", matrix(out, m / kRanks, n))};
    return ovl_call(channel_, "gemm_rs", args, 3, plan);
  }

  ovl_schedule* schedule(int64_t m, int64_t width) {
    ovl_schedule*& found = chosen_[{m, width}];
    if (found != nullptr) return found;
    auto op = fresh<ovl_op>();
    op.name = is_ag_ ? "ag_gemm" : "gemm_rs";
    op.m = m, op.n = is_ag_ ? width : kFixed, op.k = is_ag_ ? kFixed : width;
    op.ranks = kRanks, op.dtype = op.out_dtype = OVL_FP32, op.b_layout = OVL_KN;
    EXPECT_EQ(ovl_schedule_choose(runtime_, &op, &found), OVL_OK) << last_error();
    return found;
  }

  ovl_runtime* runtime_;
  int rank_;
  bool is_ag_;
  ovl_channel* channel_ = nullptr;
  std::map<std::pair<int64_t, int64_t>, ovl_schedule*> chosen_;
};

void run(bool is_ag, int64_t timeout_ms, const std::function<void(Rank&)>& body, int end = OVL_OK) {
  ovl_world* world = nullptr;
  ASSERT_EQ(ovl_world_create(kRanks, &world), OVL_OK) << last_error();
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      auto options = fresh<ovl_options>();
      options.backend = OVL_BACKEND_CPU, options.heap_bytes = 32 << 20, options.timeout_ms = timeout_ms;
      options.machine = "10MB/s,1GFLOP/s";
      ovl_runtime* runtime = nullptr;
      ASSERT_EQ(ovl_runtime_open_thread(world, r, &options, &runtime), OVL_OK) << last_error();
      {
        Rank rank(runtime, r, is_ag);
        body(rank);
      }
      const int code = ovl_runtime_close(runtime);
      if (end == OVL_OK) {
        EXPECT_EQ(code, OVL_OK) << last_error();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ovl_world_free(world), OVL_OK) << last_error();
}

class Plans : public testing::TestWithParam<bool> {};

enum Round { kAllNarrow, kOneWide, kAllWide, kOneOtherWide };

std::vector<int64_t> widths_of(Round round, int odd) {
  std::vector<int64_t> widths(kRanks, round == kAllWide ? kWide : kNarrow);
  if (round == kOneWide) widths[static_cast<size_t>(odd)] = kWide;
  if (round == kOneOtherWide) widths[static_cast<size_t>(odd)] = kOtherWide;
  return widths;
}

TEST_P(Plans, TheWidthsAreChosenDifferently) {
  run(GetParam(), 20000, [](Rank& rank) {
    const auto is_library = [&](int64_t width) { return rank.text(512, width).find("library") != std::string::npos; };
    EXPECT_TRUE(is_library(kNarrow));
    EXPECT_FALSE(is_library(kWide));
    EXPECT_FALSE(is_library(kOtherWide));
  });
}

/// Whoever has another width at some first use of it: its peers do not wait for it, and it takes what they have.
TEST_P(Plans, ARankWithAnotherWidthAndChoiceFollowsInEveryOrderOfFirstUse) {
  const std::vector<std::vector<Round>> orders = {
      {kAllNarrow, kOneWide, kAllNarrow, kOneWide},
      {kOneWide, kAllNarrow, kOneWide},
      {kOneWide, kAllWide, kAllNarrow},
      {kAllWide, kOneOtherWide, kAllWide},
      {kAllNarrow, kOneWide, kAllWide},
      {kAllNarrow, kOneWide, kOneOtherWide, kAllWide},
      {kAllNarrow, kAllWide, kOneOtherWide, kAllNarrow, kAllWide},
      {kAllWide, kAllNarrow, kOneOtherWide, kAllWide, kAllNarrow},
  };
  run(GetParam(), 20000, [&](Rank& rank) {
    int64_t m = 512;
    for (int odd = 0; odd < kRanks; ++odd) {
      for (const std::vector<Round>& order : orders) {
        m += 4;
        for (size_t i = 0; i < order.size(); ++i) {
          const std::vector<int64_t> widths = widths_of(order[i], odd);
          ASSERT_EQ(rank.call(m, widths[static_cast<size_t>(rank.rank())], widths), OVL_OK)
              << "rank " << rank.rank() << ", odd " << odd << ", M " << m << ", round " << i << ": " << last_error();
        }
      }
    }
  });
}

/// All have called both widths, by two schedules: nobody meets, and the rank that comes later ends the call on all.
TEST_P(Plans, KnownWidthsOfTwoSchedulesInOneCallEndOnAllRanks) {
  run(
      GetParam(), 20000,
      [](Rank& rank) {
        for (const Round round : {kAllNarrow, kAllWide}) {
          const std::vector<int64_t> widths = widths_of(round, 0);
          ASSERT_EQ(rank.call(512, widths[0], widths), OVL_OK) << last_error();
        }
        // So that nobody is still in the call before; who has not left the barrier is told in it.
        int code = rank.barrier();
        const std::vector<int64_t> widths = widths_of(kOneWide, 2);
        if (code == OVL_OK) code = rank.call(512, widths[static_cast<size_t>(rank.rank())], widths);
        EXPECT_TRUE(code == OVL_DESYNC || code == OVL_ABORTED) << code;
        EXPECT_NE(last_error().find("do not make the same calls: rank "), std::string::npos) << last_error();
      },
      OVL_ABORTED);
}

INSTANTIATE_TEST_SUITE_P(Operators, Plans, testing::Values(true, false),
                         [](const auto& of) { return of.param ? "ag_gemm" : "gemm_rs"; });

}  // namespace
}  // namespace overlace::test
