// Rules that do not wait: against the text of eager updates and of streamed fragments, against each other and training
// alone; in shards.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "src/train/co2/options.h"
#include "src/train/co2/replica.h"
#include "tests/unit/train/co2/hostile_collective.h"
#include "tests/unit/train/co2/toy.h"

namespace overlace::train {
namespace {

using test::largest_difference;
using test::run_members;
using test::small;
using test::Toy;
using test::train;

/// Eager updates as their paper words them: each group has an anchor of its own, moved by the mean of the round before,
/// the own increment's share put in for this round's and taken out for that one's.
std::vector<std::vector<double>> eager_by_the_text(int groups, int tau, int rounds, double share) {
  Toy shape(0);
  std::vector<double> place, start;
  for (const float value : shape.flat()) start.push_back(static_cast<double>(value));
  for (const auto& tensor : shape.values())
    for (size_t i = 0; i < tensor.size(); ++i) place.push_back(static_cast<double>(i));
  const size_t n = start.size(), count = static_cast<size_t>(groups);
  std::vector<std::vector<double>> anchors(count, start), before(count, std::vector<double>(n));
  for (int t = 0; t < rounds; ++t) {
    std::vector<double> mean_before(n);
    for (const auto& own : before)
      for (size_t i = 0; i < n; ++i) mean_before[i] += own[i] / groups;
    for (size_t g = 0; g < count; ++g)
      for (size_t i = 0; i < n; ++i) {
        double x = anchors[g][i];
        for (int k = 0; k < tau; ++k) x -= 0.1 * (x - 0.2 * static_cast<double>(g) - 0.001 * place[i]);
        const double own = anchors[g][i] - x;
        anchors[g][i] -= mean_before[i] + share * (own - before[g][i]);
        before[g][i] = own;
      }
  }
  return anchors;
}

TEST(Co2Rules, EagerFollowsTheTextOfItsPaper) {
  for (const double keep : {-1.0, 0.7}) {
    std::vector<std::vector<float>> starts(3);
    run_members(3, 0, [&](AsyncCollective& outer) {
      Toy toy(outer.rank());
      Replica replica(small({.rule = OuterRule::eager, .tau = 3, .keep = keep}), toy.parameters(), outer);
      for (int i = 0; i < 3 * 9; ++i) {
        toy.step();
        replica.on_inner_step(0.1);
      }
      starts[static_cast<size_t>(outer.rank())] = toy.flat();
      replica.flush();
    });
    const auto wanted = eager_by_the_text(3, 3, 9, keep < 0 ? 1.0 / 3 : keep);
    for (size_t g = 0; g < 3; ++g)
      for (size_t i = 0; i < wanted[g].size(); ++i)
        EXPECT_NEAR(static_cast<double>(starts[g][i]), wanted[g][i], 2e-6) << "group " << g << " keep " << keep;
    EXPECT_GT(largest_difference(starts[0], starts[2]), 1e-3);
  }
}

TEST(Co2Rules, WhatIsKeptMakesOneGroupTrainAsIfAlone) {
  // A stale increment that was kept in whole changes nothing once it comes in.
  const auto ends = train(1, {.tau = 3, .outer_momentum = 0, .keep = 1}, 20);
  Toy alone(0);
  for (int i = 0; i < 20; ++i) alone.step();
  EXPECT_LE(largest_difference(ends[0], alone.flat()), 1e-6);
  const auto paper = train(1, {.tau = 3, .keep = 0}, 20);
  EXPECT_GT(largest_difference(paper[0], alone.flat()), 1e-2);
}

/// Streamed fragments as their paper words them, in fp64; fragment_of by element, alpha and beta by Nesterov.
struct Streamed {
  Co2Options co2;
  std::vector<int> fragment_of;
  int groups = 2;

  std::vector<std::vector<double>> after(int steps) const {
    Toy shape(0, counts());
    std::vector<double> anchor, place;
    for (const float value : shape.flat()) anchor.push_back(static_cast<double>(value));
    for (const auto& tensor : shape.values())
      for (size_t i = 0; i < tensor.size(); ++i) place.push_back(static_cast<double>(i));
    const size_t n = anchor.size(), count = static_cast<size_t>(groups);
    std::vector<double> momentum(n), mean(n);
    std::vector<std::vector<double>> x(count, anchor);
    int sent = 0;  // exchanges
    int64_t due = -1;
    for (int step = 1; step <= steps; ++step) {
      for (size_t g = 0; g < count; ++g)
        for (size_t i = 0; i < n; ++i) x[g][i] -= 0.1 * (x[g][i] - 0.2 * static_cast<double>(g) - 0.001 * place[i]);
      const auto take = [&] {
        for (size_t i = 0; i < n; ++i) {
          if (fragment_of[i] != (sent - 1) % co2.fragments) continue;
          momentum[i] = co2.outer_momentum * momentum[i] + mean[i];
          anchor[i] -= co2.outer_lr * (mean[i] + co2.outer_momentum * momentum[i]);
          for (auto& own : x) own[i] = co2.mix * own[i] + (1 - co2.mix) * anchor[i];
        }
        due = -1;
      };
      if (due == step) take();
      if (step % (co2.tau / co2.fragments) != 0) continue;
      for (size_t i = 0; i < n; ++i) {
        if (fragment_of[i] != sent % co2.fragments) continue;
        mean[i] = 0;
        for (const auto& own : x) mean[i] += (anchor[i] - own[i]) / groups;
      }
      ++sent;
      due = step + co2.delay;
      if (co2.delay == 0) take();
    }
    return x;
  }
  static std::vector<int64_t> counts() { return {40, 0, 31, 1, 64}; }
};

TEST(Co2Rules, StreamingFollowsTheTextOfItsPaper) {
  std::vector<int> fragment_of(136, 1);
  std::fill_n(fragment_of.begin(), 72, 0);  // buckets of 40, 32 and 64 elements
  for (const int64_t delay : {0, 1, 2, 3}) {
    Co2Options co2{.rule = OuterRule::streaming, .tau = 6, .outer_momentum = 0.6, .fragments = 2, .delay = delay};
    for (const int steps : {17, 18, 19, 20, 21}) {
      std::vector<std::vector<float>> got(2), flushed(2);
      run_members(2, 5, [&](AsyncCollective& outer) {
        Toy toy(outer.rank(), Streamed::counts());
        Replica replica(small(co2), toy.parameters(), outer);
        EXPECT_EQ(replica.buckets().size(), 3u);
        for (int i = 0; i < steps; ++i) {
          toy.step();
          replica.on_inner_step(0.1);
        }
        got[static_cast<size_t>(outer.rank())] = toy.flat();
        replica.flush();
        flushed[static_cast<size_t>(outer.rank())] = toy.flat();
      });
      const auto wanted = Streamed{*resolve(co2), fragment_of}.after(steps);
      for (size_t g = 0; g < 2; ++g)
        for (size_t i = 0; i < wanted[g].size(); ++i)
          ASSERT_NEAR(static_cast<double>(got[g][i]), wanted[g][i], 2e-6)
              << "group " << g << " element " << i << " steps " << steps << " delay " << delay;
      EXPECT_EQ(flushed[0], flushed[1]);
      EXPECT_GT(largest_difference(got[0], got[1]), 1e-3);
    }
  }
}

TEST(Co2Rules, StreamingOfOneFragmentThatWaitsIsLocalSgd) {
  const auto local = train(3, {.rule = OuterRule::local_sgd, .tau = 4}, 20);
  Co2Options co2{.rule = OuterRule::streaming, .tau = 4, .outer_lr = 1, .outer_momentum = 0, .fragments = 1};
  co2.delay = 0;
  co2.mix = 0;
  EXPECT_EQ(train(3, co2, 20), local);
  co2.mix = 0.5;
  EXPECT_NE(train(3, co2, 20), local);
}

TEST(Co2Rules, AStreamedRunGoesOnFromEveryStepWithTheSameBits) {
  for (const int64_t delay : {0, 2}) {
    const Co2Options co2{.rule = OuterRule::streaming, .tau = 4, .fragments = 2, .delay = delay};
    const auto wanted = train(2, co2, 13);
    for (int stop = 0; stop <= 12; ++stop) {
      std::vector<std::string> saved(2);
      std::vector<std::vector<float>> ends(2);
      const auto run = [&](int first, int last, bool loads) {
        run_members(2, 3, [&](AsyncCollective& outer) {
          Toy toy(outer.rank());
          Replica replica(small(co2), toy.parameters(), outer);
          const size_t me = static_cast<size_t>(outer.rank());
          if (loads) replica.load(saved[me]).or_throw();
          for (int i = first; i < last; ++i) {
            toy.step();
            replica.on_inner_step(0.1);
          }
          if (!loads) saved[me] = replica.save();
          if (loads) replica.flush();
          ends[me] = toy.flat();
        });
      };
      run(0, stop, false);
      run(stop, 13, true);
      ASSERT_EQ(ends, wanted) << "stopped after step " << stop << " with delay " << delay;
    }
  }
}

TEST(Co2Rules, ABadExchangeOfAFragmentLeavesNoBadValueAnywhere) {
  run_members(2, 0, [&](AsyncCollective& outer) {
    Toy toy(outer.rank());
    Replica replica(small({.rule = OuterRule::streaming, .tau = 4, .fragments = 4}), toy.parameters(), outer);
    for (int i = 0; i < 24; ++i) {
      toy.step();
      if (i == 6 && outer.rank() == 1)
        for (std::vector<float>& tensor : toy.values())
          std::fill(tensor.begin(), tensor.end(), std::numeric_limits<float>::quiet_NaN());
      replica.on_inner_step(0.1);
    }
    replica.flush();
    for (const float value : toy.flat()) ASSERT_TRUE(std::isfinite(value));
    int dropped = 0;
    int64_t bytes = 0;
    for (const RoundStats& stats : replica.stats()) {
      dropped += stats.is_dropped ? 1 : 0;
      bytes += stats.bytes;
    }
    EXPECT_EQ(dropped, 1);
    EXPECT_EQ(bytes, 4 * 136 * (6 + 1));  // each element six times, and once by the flush
  });
}

/// Two groups of two ranks, each with a slice of every parameter, add up inside a group; against whole replicas.
void expect_shards_to_follow(const Co2Options& co2) {
  const auto wanted = train(2, co2, 12);
  std::mutex mutex;
  std::map<std::pair<int, int>, std::vector<float>> ends;  // by group and shard
  test::HostileGroup outers[2] = {test::HostileGroup(2), test::HostileGroup(2)};
  test::HostileGroup inners[2] = {test::HostileGroup(2), test::HostileGroup(2)};
  std::vector<std::thread> threads;
  for (int group = 0; group < 2; ++group)
    for (int shard = 0; shard < 2; ++shard)
      threads.emplace_back([&, group, shard] {
        test::HostileGroup::Member outer(outers[shard], group), inner(inners[group], shard);
        Toy toy(group);
        std::vector<Parameter> parameters = toy.parameters();
        for (Parameter& p : parameters) {
          p.group_count = p.count;
          const int64_t cut = (p.count + 2) / 3, begin = shard == 0 ? 0 : cut;  // the last parameter has an empty shard
          p.data = static_cast<float*>(p.data) + begin;
          p.count = shard == 0 ? cut : p.count - cut;
        }
        ReplicaOptions options = small(co2);
        options.shard_degree = 2;
        options.reduce_in_group = [&](std::span<double> values) {
          inner.wait(inner.all_reduce({values.data(), values.size(), DType::fp64, "sums"}, {}), 20000);
        };
        try {
          Replica replica(options, parameters, outer);
          for (int i = 0; i < 12; ++i) {
            toy.step();
            replica.on_inner_step(0.1);
          }
          replica.flush();
          const std::lock_guard lock(mutex);
          ends[{group, shard}].assign(replica.anchor().begin(), replica.anchor().end());
        } catch (const std::exception& error) {
          ADD_FAILURE() << error.what();
          outer.abort(Errc::aborted, error.what());
          inner.abort(Errc::aborted, error.what());
        }
      });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ((ends[{0, 0}]), (ends[{1, 0}]));
  EXPECT_EQ((ends[{0, 1}]), (ends[{1, 1}]));
  std::vector<float> whole;
  size_t at0 = 0, at1 = 0;
  for (const size_t count : {5u, 0u, 130u, 1u}) {
    const size_t cut = (count + 2) / 3;
    for (size_t i = 0; i < cut; ++i) whole.push_back(ends[{0, 0}][at0++]);
    for (size_t i = cut; i < count; ++i) whole.push_back(ends[{0, 1}][at1++]);
  }
  EXPECT_LE(largest_difference(whole, wanted[0]), 1e-5);
}

TEST(Co2Rules, ShardsFollowTheWholeModel) {
  for (const double keep : {0.0, 0.8}) {
    Co2Options co2{.tau = 2, .outer_momentum = 0.3, .keep = keep, .gap = StalenessGap::adaptive};
    co2.phi = 0.5;  // the clip acts, with a bound that no shard knows by itself
    expect_shards_to_follow(co2);
  }
  expect_shards_to_follow({.rule = OuterRule::eager, .tau = 2});
  expect_shards_to_follow({.rule = OuterRule::streaming, .tau = 2, .fragments = 1});
}

}  // namespace
}  // namespace overlace::train
