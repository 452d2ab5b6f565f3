#include "src/runtime/call_order.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace overlace::runtime {
namespace {

TEST(CallOrder, WaitsForTheOldestUntilTheRestFits) {
  const std::vector<LiveCall> live = {{1, 60}, {2, 40}, {3, 32}};
  EXPECT_EQ(calls_to_wait_for(live, 1, 132), 1u);
  EXPECT_EQ(calls_to_wait_for(live, 60, 132), 1u);
  EXPECT_EQ(calls_to_wait_for(live, 61, 132), 2u);
  EXPECT_EQ(calls_to_wait_for(live, 100, 132), 2u);
  EXPECT_EQ(calls_to_wait_for(live, 101, 132), 3u);
  EXPECT_EQ(calls_to_wait_for(live, 132, 132), 3u);
  EXPECT_EQ(calls_to_wait_for(std::vector<LiveCall>{{1, 66}}, 66, 132), 0u);
  EXPECT_EQ(calls_to_wait_for({}, 132, 132), 0u);
  EXPECT_EQ(sms_of(0, 132), 132);
  EXPECT_EQ(sms_of(20, 132), 20);
}

/// Calls of random channels end in any order that streams and waits allow: what runs at a time always fits, and
/// something can always run.
TEST(CallOrder, WhatRunsAtATimeFitsAndNothingHangs) {
  constexpr int kRoom = 100;
  struct Call {
    uint32_t channel;
    int sms;
    std::vector<size_t> after;
    bool is_running = false, has_ended = false;
  };
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<Call> calls;
    std::vector<int> budgets(2 + random() % 4);
    for (int& budget : budgets) budget = 1 + static_cast<int>(random() % kRoom);
    size_t left = 60;
    for (bool is_done = false; !is_done;) {
      if (left > 0 && random() % 2 == 0) {
        --left;
        const auto channel = static_cast<uint32_t>(random() % budgets.size());
        Call call{channel, budgets[channel], {}};
        std::vector<LiveCall> live;
        std::vector<size_t> numbers;
        for (size_t i = 0; i < calls.size(); ++i) {  // the last of each channel, by age
          bool is_last = true;
          for (size_t j = i + 1; j < calls.size(); ++j) is_last = is_last && calls[j].channel != calls[i].channel;
          if (!is_last || calls[i].has_ended) continue;
          if (calls[i].channel == channel) {
            call.after.push_back(i);
            continue;
          }
          live.push_back({calls[i].channel, calls[i].sms});
          numbers.push_back(i);
        }
        const size_t waits = calls_to_wait_for(live, call.sms, kRoom);
        call.after.insert(call.after.end(), numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(waits));
        calls.push_back(call);
      }
      int running = 0;
      size_t open = 0;
      std::vector<size_t> ending;
      for (size_t i = 0; i < calls.size(); ++i) {
        bool may_run = !calls[i].has_ended;
        for (const size_t before : calls[i].after) may_run = may_run && calls[before].has_ended;
        calls[i].is_running = may_run;
        running += may_run ? calls[i].sms : 0;
        open += calls[i].has_ended ? 0 : 1;
        if (may_run) ending.push_back(i);
      }
      ASSERT_LE(running, kRoom);
      ASSERT_TRUE(open == 0 || !ending.empty());
      if (!ending.empty()) calls[ending[random() % ending.size()]].has_ended = true;
      is_done = left == 0 && open <= 1;
    }
  }
}

TEST(CheckGrid, ShowsGridAndRoom) {
  EXPECT_TRUE(check_grid("k", 264, 2, 132).ok());
  const base::Status status = check_grid("gemm_rs.persistent", 265, 2, 132);
  EXPECT_EQ(status.code(), Errc::co_residency);
  EXPECT_EQ(status.message(),
            "gemm_rs.persistent: a grid of 265 blocks that wait for each other, room for 264 (132 SMs with 2 blocks "
            "each)");
}

}  // namespace
}  // namespace overlace::runtime
