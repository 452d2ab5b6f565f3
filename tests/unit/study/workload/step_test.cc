#include "src/study/workload/step.h"

#include <gtest/gtest.h>

#include "src/study/network/collectives.h"

namespace overlace::study {
namespace {

TEST(Step, LanesGroupsAndDependences) {
  Step step(2);
  // Rank 0 computes 10, rank 1 computes 30; both transfer 5 once both have come; rank 0 computes 7 meanwhile.
  const int group = step.new_group();
  const int a = step.add({.name = "a", .rank = 0, .us = 10}, {});
  const int b = step.add({.name = "b", .rank = 1, .us = 30}, {});
  const int ta = step.add({.name = "t", .rank = 0, .lane = kNetLane, .us = 5, .group = group}, {a});
  const int tb = step.add({.name = "t", .rank = 1, .lane = kNetLane, .us = 5, .group = group}, {b});
  const int c = step.add({.name = "c", .rank = 0, .us = 7}, {});
  const int d = step.add({.name = "d", .rank = 0, .us = 2}, {ta});
  const StepTime time = step.run().value();
  EXPECT_EQ(sim::us_of_ps(time.begin[static_cast<size_t>(ta)]), 30);
  EXPECT_EQ(sim::us_of_ps(time.begin[static_cast<size_t>(tb)]), 30);
  EXPECT_EQ(sim::us_of_ps(time.end[static_cast<size_t>(c)]), 17);
  EXPECT_EQ(sim::us_of_ps(time.end[static_cast<size_t>(d)]), 37);
  EXPECT_EQ(time.us, 37);
  EXPECT_EQ(time.compute_us, 30);
  EXPECT_EQ(time.bound_us, 35);   // b and its transfer
  EXPECT_EQ(time.serial_us, 35);  // rank 1
  const base::Trace trace = step.to_trace(time, "two ranks");
  ASSERT_EQ(trace.spans.size(), 6U);
  EXPECT_EQ(trace.spans[5].begin_ns, 35000);
  EXPECT_EQ(trace.arrows.size(), 3U);  // a to its transfer, b to its, that to d; lanes' own order has none
}

TEST(Step, ContentionSlowsWhatRunsBesideIt) {
  Step step(1);
  step.add({.name = "gemm", .us = 100}, {});
  step.add({.name = "copy", .lane = kNetLane, .us = 50, .load = spec::Load::ce_out}, {});
  const spec::Contention slow[] = {{spec::Load::gemm_tensor, spec::Load::ce_out, {1.25}}};
  EXPECT_EQ(step.run()->us, 100);
  const StepTime time = step.run(slow).value();
  // 50 us beside the copy do 40 of 100, 60 are left.
  EXPECT_NEAR(time.us, 110, 1e-3);
  EXPECT_NEAR(time.lost_us, 10, 1e-3);
}

TEST(Step, GroupsThatWaitForEachOtherAreAnError) {
  Step step(2);
  const int first = step.new_group(), second = step.new_group();
  step.add({.name = "x", .rank = 0, .lane = kNetLane, .us = 1, .group = first}, {});
  step.add({.name = "y", .rank = 0, .lane = kNetLane, .us = 1, .group = second}, {});
  step.add({.name = "y", .rank = 1, .lane = kNetLane, .us = 1, .group = second}, {});
  step.add({.name = "x", .rank = 1, .lane = kNetLane, .us = 1, .group = first}, {});
  const auto time = step.run();
  EXPECT_EQ(time.status().code(), Errc::bad_schedule);
  EXPECT_EQ(time.status().message(), "step: x of rank 0 never begins, 0 of 4 tasks have ended");
}

TEST(Step, RefusesTimesThatAreNone) {
  for (const double us : {-1.0, std::numeric_limits<double>::quiet_NaN(), 1e13}) {
    Step step(1);
    step.add({.name = "a", .us = us}, {});
    EXPECT_EQ(step.run().status().code(), Errc::invalid_argument) << us;
  }
}

/// Each is short enough; the sum, or what the contention can make of it, does not fit into 64 bits of picoseconds.
TEST(Step, RefusesTimesWhoseSumIsTooLong) {
  Step step(1);
  for (int i = 0; i < 12; ++i) step.add({.name = "long", .us = 9e11});
  EXPECT_EQ(step.run().status().message(),
            "step: 12 tasks take 1.08e+13 us one after the other, up to 1 times as long beside others, wanted at most "
            "1e+13");
  Step slowed(1);
  for (int i = 0; i < 24; ++i) slowed.add({.name = "long", .us = 2e11});
  EXPECT_EQ(slowed.run()->us, 4.8e12);
  const spec::Contention twice[] = {{spec::Load::gemm_tensor, spec::Load::ce_out, {2}}};
  EXPECT_EQ(slowed.run(twice).status().code(), Errc::invalid_argument);
}

TEST(Groups, TileTheRanks) {
  const Groups groups = groups_of(8, {2, 2}).value();
  EXPECT_EQ(groups, (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(groups_of(6, {})->size(), 1U);
  for (const Grouping bad : {Grouping{1, 3}, Grouping{0, 2}, Grouping{4, 4}, Grouping{1, -1}})
    EXPECT_EQ(groups_of(8, bad).status().code(), Errc::invalid_argument) << bad.stride << " " << bad.size;
}

/// On a switch groups do not meet: each takes what it takes on a switch of its own.
TEST(Groups, SideBySideAsAlone) {
  const Network whole = nvswitch(16, {100, 0.5}).value(), part = nvswitch(4, {100, 0.5}).value();
  for (const Collective op : {Collective::all_gather, Collective::all_reduce, Collective::all_to_all})
    for (const int stride : {1, 2, 4}) {
      const double us =
          run_collective(op, op == Collective::all_reduce ? "two_shot" : "direct", whole, 1 << 20, {}, {stride, 4})->us;
      EXPECT_EQ(us, run_collective(op, op == Collective::all_reduce ? "two_shot" : "direct", part, 1 << 20)->us);
    }
  EXPECT_EQ(run_collective(Collective::all_gather, "ring", whole, 1 << 20, {}, {4, 4})->us,
            run_collective(Collective::all_gather, "ring", part, 1 << 20)->us);
  EXPECT_EQ(run_collective(Collective::all_gather, "ring", whole, 1 << 20, {}, {1, 1})->us, 0);
}

/// Rails: four groups over two hosts share nothing; on one rail they would share a NIC.
TEST(Groups, ShareLinksWhereTheyMeet) {
  const Network tree = rail_fat_tree(4, 2, 50, 64, 1).value();
  const double rails = run_collective(Collective::all_reduce, "ring", tree, 8 << 20, {}, {2, 4})->us;
  const double bytes_us = 2 * 3 / 4.0 * (8 << 20) / 50e3;
  EXPECT_NEAR(rails, bytes_us + 6 * 0.5, 1e-2);
  // One ring over all: a NIC carries the whole result instead of half of it.
  const double ring = run_collective(Collective::all_reduce, "ring", tree, 8 << 20)->us;
  EXPECT_GT(ring, 1.5 * 7 / 8 * (8 << 20) / 50e3);
}

TEST(Uneven, EvenIsTheCollectiveAndOneHotRankIsItsLink) {
  const Network network = nvswitch(4, {100, 0}).value();
  const uint64_t block = 1 << 20;
  std::vector<uint64_t> bytes(16, block);
  const UnevenTime even = all_to_all_uneven(network, bytes, {}).value();
  EXPECT_NEAR(even.longest_us(), run_collective(Collective::all_to_all, "direct", network, 4 * block)->us, 1e-9);
  for (size_t i = 0; i < 16; ++i) bytes[i] = i % 4 == 2 && i / 4 != 2 ? block : 0;  // all to rank 2
  const UnevenTime hot = all_to_all_uneven(network, bytes, {}).value();
  EXPECT_NEAR(hot.us[2], 3 * block / 100e3, 1e-6);
  EXPECT_LT(hot.us[0], hot.us[2]);
  EXPECT_EQ(all_to_all_uneven(network, {1, 2}, {}).status().code(), Errc::invalid_argument);
}

TEST(Uneven, RailsSendEachByteOnceOverTheNics) {
  const Network tree = rail_fat_tree(4, 4, 10, 64, 1).value();
  const std::vector<uint64_t> bytes(16 * 16, 1 << 16);
  const UnevenTime time = all_to_all_uneven(tree, bytes, {}).value();
  EXPECT_EQ(time.algorithm, "rail");
  // 12 blocks of a rank leave its host, over the NIC of the receiver's rail.
  EXPECT_GE(time.longest_us(), 12.0 * (1 << 16) / 10e3);
  EXPECT_LT(time.longest_us(), 12.0 * (1 << 16) / 10e3 * 1.1);
}

/// A sender that begins late finds links free that others will need later: rails after an uneven start in the hosts.
TEST(Uneven, WhatIsSentLaterKeepsNoLinkIdle) {
  const Network tree = rail_fat_tree(8, 8, 48.5, 64, 1).value();
  constexpr size_t kRanks = 64;
  std::vector<uint64_t> bytes(kRanks * kRanks, 0);  // ranks send more the higher they are
  std::vector<double> of_host(8, 0);
  for (size_t i = 0; i < kRanks; ++i)
    for (size_t j = 0; j < kRanks; ++j) {
      bytes[i * kRanks + j] = i == j ? 0 : (i % 5 + 1) << 20;
      if (i / 8 != j / 8) of_host[i / 8] += static_cast<double>(bytes[i * kRanks + j]);
    }
  const double nics = *std::max_element(of_host.begin(), of_host.end()) / 8 / 48.5e3;
  const UnevenTime time = all_to_all_uneven(tree, bytes, {}).value();
  EXPECT_GE(time.longest_us(), nics);
  EXPECT_LT(time.longest_us(), 1.6 * nics);
}

TEST(Shift, IsOneMessage) {
  const Network network = torus({4, 4}, {25, 1}).value();
  EXPECT_NEAR(shift_us(network, 4, 1 << 20).value(), (1 << 20) / 25e3 + 1, 1e-3);
  EXPECT_EQ(shift_us(network, 0, 1).status().code(), Errc::invalid_argument);
}

}  // namespace
}  // namespace overlace::study
