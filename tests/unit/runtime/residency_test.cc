#include "src/runtime/residency.h"

#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <utility>
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

using Tenant = Residency::Tenant;
constexpr int kSms = 132;

constexpr Tenant whole(uint64_t runtime) { return {runtime, 0, kSms, kSms}; }

TEST(Residency, WhoIsAloneFillsAllItsSms) {
  Residency gpu(kSms);
  EXPECT_EQ(gpu.most_sms(whole(1)), kSms);
  const auto own = gpu.take(whole(1)), again = gpu.take(whole(1));
  EXPECT_EQ(gpu.most_sms(whole(1)), kSms);
  EXPECT_EQ(gpu.most_sms({1, 1, 40, kSms}), 40) << "a sibling, whose calls wait for those of the first";
}

TEST(Residency, TwoRuntimesLeaveEachOtherRoomForACluster) {
  Residency gpu(kSms);
  const auto first = gpu.take(whole(1));
  std::optional<Residency::Lease> second = gpu.take(whole(2));
  EXPECT_EQ(gpu.most_sms(whole(1)), 122);
  EXPECT_EQ(gpu.most_sms(whole(2)), 122);
  second.reset();
  EXPECT_EQ(gpu.most_sms(whole(1)), kSms);
}

/// Whatever fills the GPU first, who comes last finds 10 SMs.
TEST(Residency, ThatHoldsForAnyNumberOfThem) {
  Residency gpu(kSms);
  std::vector<Residency::Lease> leases;
  for (uint64_t n = 1; n <= 40; ++n) {
    leases.push_back(gpu.take(whole(n)));
    if (n == 1) continue;
    const int most = gpu.most_sms(whole(n));
    EXPECT_GE(most, 2);
    EXPECT_LE(most * (static_cast<int>(n) - 1), kSms - 10) << n << " runtimes";
    EXPECT_GT((most + 1) * (static_cast<int>(n) - 1), kSms - 10) << n << " runtimes";
  }
}

TEST(Residency, BudgetsThatFitTogetherAreLet) {
  Residency gpu(kSms);
  const Tenant small{1, 0, 32, kSms}, large{2, 0, 100, kSms};
  const auto a = gpu.take(small), b = gpu.take(large);
  EXPECT_EQ(gpu.most_sms(small), 32);
  EXPECT_EQ(gpu.most_sms(large), 100);
  const auto c = gpu.take({1, 1, 8, kSms});
  EXPECT_EQ(gpu.most_sms(large), 100) << "leaves 32";
  EXPECT_EQ(gpu.most_sms({1, 1, 8, kSms}), 8) << "leaves 92 with its sibling";
  const auto d = gpu.take({1, 2, 92, kSms});
  EXPECT_EQ(gpu.most_sms({1, 2, 92, kSms}), 92 * 122 / 132) << "three channels share 122";
}

TEST(Residency, ChannelsOfOneRuntimeFillAtMostItsRoom) {
  Residency gpu(kSms);
  const Tenant halves[] = {{1, 0, 66, 66}, {2, 0, 66, 66}, {2, 1, 66, 66}};  // virtual ranks
  const auto a = gpu.take(halves[0]), b = gpu.take(halves[1]), c = gpu.take(halves[2]);
  for (const Tenant& tenant : halves) EXPECT_EQ(gpu.most_sms(tenant), 66);
  const Tenant beside[] = {{3, 0, 66, 66}, {4, 0, 66, 66}};  // those of another context
  const auto d = gpu.take(beside[0]), e = gpu.take(beside[1]);
  EXPECT_EQ(gpu.most_sms(halves[0]), 40);
  EXPECT_EQ(gpu.most_sms(beside[1]), 40);
}

TEST(Residency, EarlyLaunchesWantThatNoOtherChannelIsThere) {
  Residency gpu(kSms);
  const Tenant channel = whole(1), sibling{1, 1, kSms, kSms}, other = whole(2);
  EXPECT_TRUE(gpu.is_alone(channel));
  const auto own = gpu.take(channel);
  EXPECT_TRUE(gpu.is_alone(channel));
  for (const Tenant& beside : {sibling, other}) {
    std::optional<Residency::Lease> lease = gpu.take(beside);
    EXPECT_FALSE(gpu.is_alone(channel));
    EXPECT_FALSE(gpu.is_alone(beside));
    lease.reset();
    EXPECT_TRUE(gpu.is_alone(channel));
  }
}

TEST(Residency, MovedLeasesAreGivenBackOnce) {
  Residency gpu(kSms);
  Residency::Lease a = gpu.take(whole(1));
  Residency::Lease b = std::move(a);
  EXPECT_FALSE(gpu.is_alone(whole(2)));
  b = gpu.take(whole(3));
  EXPECT_FALSE(gpu.is_alone(whole(1))) << "only runtime 3 is there";
  EXPECT_TRUE(gpu.is_alone(whole(3)));
  b = Residency::Lease();
  EXPECT_TRUE(gpu.is_alone(whole(2)));
}

TEST(Residency, AllOfAProcessMeetAtADevice) {
  Residency& gpu = Residency::of_device(1000, 20);
  const auto lease = gpu.take({1, 0, 20, 20});
  EXPECT_EQ(&Residency::of_device(1000, 20), &gpu);
  EXPECT_FALSE(Residency::of_device(1000, 20).is_alone({2, 0, 20, 20}));
  EXPECT_TRUE(Residency::of_device(1001, 20).is_alone({2, 0, 20, 20}));
}

}  // namespace
}  // namespace overlace::runtime
