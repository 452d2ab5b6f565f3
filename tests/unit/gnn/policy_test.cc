// Cache policies against slow twins and against the best that any policy could do.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <list>
#include <map>
#include <set>

#include "src/gnn/levels/counts.h"
#include "src/gnn/levels/levels.h"
#include "src/gnn/levels/next_use.h"
#include "tests/unit/gnn/support/traces.h"

namespace overlace::gnn {
namespace {

constexpr int64_t kRowBytes = 100;

LevelPlan planned(const InputTrace& trace, LevelOptions options) {
  options.row_bytes = kRowBytes;
  return std::move(plan_levels(trace, options, nullptr)).value();
}

/// Rows that are read: misses and what restores bring back.
int64_t rows_read(const LevelPlan& plan) { return plan.bytes.total() / kRowBytes; }

TEST(Counts, RanksByUsesThenById) {
  const MemoryTrace trace = test::trace_of(5, {{4, 1}, {1, 3}, {3, 0}, {1}});
  EXPECT_EQ(use_counts(trace), (std::vector<uint32_t>{1, 3, 0, 2, 1}));
  const std::vector<uint32_t> all = {1, 3, 0, 4, 2};
  for (int64_t n = 0; n <= 5; ++n)
    EXPECT_EQ(hottest_rows(use_counts(trace), n), std::vector<uint32_t>(all.begin(), all.begin() + n));
}

TEST(NextUses, AgreesWithASearch) {
  const MemoryTrace trace = test::random_trace(12, 9, 6, 5);
  const BatchRange range{2, 8};
  const auto uses = [&](int64_t b, uint32_t v) {
    const auto inputs = trace.inputs(b);
    return std::find(inputs.begin(), inputs.end(), v) != inputs.end();
  };
  const std::vector<uint32_t> at_end = {0, 3, 11};
  const NextUses cycle = NextUses::of_cycle(trace, range), segment = NextUses::of_segment(trace, range, at_end);
  for (int64_t time = -1; time < range.size(); ++time)
    for (uint32_t v = 0; v < 12; ++v) {
      uint32_t in_cycle = kNeverUsed, in_segment = kNeverUsed;
      if (std::find(at_end.begin(), at_end.end(), v) != at_end.end()) in_segment = 6;
      for (int64_t t = 2 * range.size() - 1; t > time; --t) {
        if (!uses(range.begin + t % range.size(), v)) continue;
        in_cycle = static_cast<uint32_t>(t);
        if (t < range.size()) in_segment = static_cast<uint32_t>(t);
      }
      if (time < 0) {
        EXPECT_EQ(cycle.first(v), in_cycle);
        EXPECT_EQ(segment.first(v), in_segment);
        continue;
      }
      const auto inputs = trace.inputs(range.begin + time);
      for (size_t i = 0; i < inputs.size(); ++i)
        if (inputs[i] == v) {
          EXPECT_EQ(cycle.at(time)[i], in_cycle);
          EXPECT_EQ(segment.at(time)[i], in_segment);
        }
    }
  EXPECT_EQ(cycle.end_time(), 12u);
  EXPECT_EQ(segment.end_time(), 7u);
}

/// Fewest rows read by any policy that holds at most `slots` rows, begins with the set `start` and has to end with it,
/// by trying all contents after each batch. Sets are bits.
int64_t fewest_rows(const InputTrace& trace, int64_t slots, uint32_t start, uint32_t on_gpu) {
  std::map<uint32_t, int64_t> cost = {{start, 0}};
  for (int64_t b = 0; b < trace.num_batches(); ++b) {
    uint32_t used = 0;
    for (const uint32_t v : trace.inputs(b)) used |= 1u << v;
    used &= ~on_gpu;
    std::map<uint32_t, int64_t> after;
    for (const auto& [held, rows] : cost) {
      const int64_t read = rows + std::popcount(used & ~held);
      const uint32_t may_stay = held | used;
      for (uint32_t kept = may_stay;; kept = (kept - 1) & may_stay) {
        if (std::popcount(kept) <= slots) {
          const auto [place, is_new] = after.insert({kept, read});
          if (!is_new) place->second = std::min(place->second, read);
        }
        if (kept == 0) break;
      }
    }
    cost = std::move(after);
  }
  int64_t best = -1;
  for (const auto& [held, rows] : cost) {
    const int64_t total = rows + std::popcount(start & ~held);
    if (best < 0 || total < best) best = total;
  }
  return best;
}

uint32_t bits_of(const std::vector<uint32_t>& rows) {
  uint32_t bits = 0;
  for (const uint32_t v : rows) bits |= 1u << v;
  return bits;
}

TEST(Belady, ReadsAsFewRowsAsAnyPolicyCouldInASegment) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const MemoryTrace trace = test::random_trace(9, 7, 5, seed);
    for (const int64_t cpu : {1, 2, 3}) {
      LevelOptions options{.gpu_rows = 1, .cpu_rows = cpu};
      options.order = {BatchOrder::segments, 100};
      const LevelPlan plan = planned(trace, options);
      EXPECT_EQ(rows_read(plan), fewest_rows(trace, cpu, bits_of(plan.start.cpu), bits_of(plan.start.gpu)))
          << "seed " << seed << ", " << cpu << " slots";
    }
  }
}

TEST(Belady, ReadsAsFewRowsAsAnyPolicyCouldInACycleFromItsStart) {
  int64_t ours = 0, fewest = 0;
  for (uint64_t seed = 100; seed < 160; ++seed) {
    const MemoryTrace trace = test::random_trace(8, 8, 4, seed);
    for (const int64_t cpu : {1, 2, 3}) {
      const LevelPlan plan = planned(trace, {.gpu_rows = 1, .cpu_rows = cpu});
      const int64_t read = rows_read(plan);
      EXPECT_GE(read, fewest_rows(trace, cpu, bits_of(plan.start.cpu), bits_of(plan.start.gpu)));
      // The best of all sets to begin with is looked for: ours may be another, seldom a worse one.
      int64_t best = read;
      for (uint32_t start = 0; start < 256; ++start)
        if (std::popcount(start) == cpu && (start & bits_of(plan.start.gpu)) == 0)
          best = std::min(best, fewest_rows(trace, cpu, start, bits_of(plan.start.gpu)));
      EXPECT_LE(read, best + 1) << "seed " << seed << ", " << cpu << " slots";
      ours += read;
      fewest += best;
    }
  }
  EXPECT_LE(static_cast<double>(ours), 1.005 * static_cast<double>(fewest)) << ours << " of " << fewest;
}

TEST(Lru, AgreesWithASlowTwin) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const MemoryTrace trace = test::random_trace(14, 20, 6, seed);
    LevelOptions options{.gpu_rows = 2, .cpu_rows = 4, .policy = CachePolicy::lru};
    options.order = {BatchOrder::segments, 100};
    const LevelPlan plan = planned(trace, options);
    const std::set<uint32_t> on_gpu(plan.start.gpu.begin(), plan.start.gpu.end());
    std::list<uint32_t> held(plan.start.cpu.begin(), plan.start.cpu.end());  // used last first
    int64_t misses = 0;
    for (int64_t b = 0; b < trace.num_batches(); ++b) {
      // All of a batch is gathered before its rows come in.
      std::vector<uint32_t> missed;
      for (const uint32_t v : trace.inputs(b)) {
        if (on_gpu.count(v) != 0) continue;
        const auto found = std::find(held.begin(), held.end(), v);
        if (found != held.end())
          held.splice(held.begin(), held, found);
        else
          missed.push_back(v);
      }
      for (const uint32_t v : missed) {
        held.pop_back();
        held.push_front(v);
      }
      misses += static_cast<int64_t>(missed.size());
    }
    EXPECT_EQ(plan.counts.misses, misses);
    int64_t missing = 0;
    for (const uint32_t v : plan.start.cpu) missing += std::find(held.begin(), held.end(), v) == held.end();
    EXPECT_EQ(plan.bytes.restores, missing * kRowBytes);
  }
}

TEST(Static, ReadsWhatTheHottestRowsLeave) {
  const MemoryTrace trace = test::random_trace(30, 25, 9, 3);
  for (const CachePolicy policy : {CachePolicy::hottest, CachePolicy::none})
    for (const BatchOrder order : {BatchOrder::fixed, BatchOrder::shuffle}) {
      LevelOptions options{.gpu_rows = 4, .cpu_rows = 7, .policy = policy};
      options.order = {order, 0};
      const LevelPlan plan = planned(trace, options);
      const auto cached = hottest_rows(use_counts(trace), policy == CachePolicy::none ? 4 : 11);
      int64_t misses = 0, rows = 0;
      for (int64_t b = 0; b < trace.num_batches(); ++b)
        for (const uint32_t v : trace.inputs(b)) {
          misses += std::find(cached.begin(), cached.end(), v) == cached.end();
          ++rows;
        }
      EXPECT_EQ(plan.bytes.packs, misses * kRowBytes);
      EXPECT_EQ(plan.bytes.total(), plan.bytes.packs);
      EXPECT_EQ(plan.counts.rows, rows);
      EXPECT_EQ(plan.counts.admissions, 0);
    }
}

TEST(Policies, AreOrderedAsTheyShouldBeOnASkewedGraph) {
  const MemoryTrace trace = test::sampled_trace(1 << 14, 32, 1);
  LevelOptions options{.gpu_rows = 655, .cpu_rows = 983};
  const auto bytes = [&](CachePolicy policy) {
    options.policy = policy;
    return planned(trace, options).bytes.total();
  };
  const int64_t best = bytes(CachePolicy::belady), still = bytes(CachePolicy::hottest), lru = bytes(CachePolicy::lru),
                none = bytes(CachePolicy::none);
  EXPECT_LT(best, still);
  EXPECT_LT(best, lru);
  EXPECT_LT(still, none);
  EXPECT_LT(lru, none);
}

}  // namespace
}  // namespace overlace::gnn
