// Programs, admissions and restores replayed on a model of the levels: each row that is delivered is the right one.
#include "src/gnn/levels/levels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <numeric>

#include "src/gnn/levels/counts.h"
#include "tests/unit/gnn/support/traces.h"

namespace overlace::gnn {
namespace {

constexpr uint32_t kGarbage = 0xdeadbeefu;

struct Recorded {
  LevelPlan plan;
  std::vector<BatchPlan> batches;
};

Recorded recorded(const InputTrace& trace, LevelOptions options) {
  if (options.row_bytes == 0) options.row_bytes = 100;
  Recorded out;
  out.plan = std::move(plan_levels(trace, options, [&](int64_t b, const BatchPlan& batch) {
               EXPECT_EQ(b, static_cast<int64_t>(out.batches.size()));
               out.batches.push_back(batch);
               return base::Status();
             })).value();
  return out;
}

/// Memory that holds vertex ids for rows. Admissions run up to `depth` batches late, as it comes.
class Model {
 public:
  Model(const InputTrace& trace, const LevelOptions& options, const Recorded& recorded, uint64_t seed)
      : trace_(trace), options_(options), plan_(recorded.plan), batches_(recorded.batches), seed_(seed) {
    gpu_ = plan_.start.gpu;
    cpu_ = plan_.start.cpu;
    cpu_.push_back(kGarbage);  // the spare slot
  }

  void run_epoch(uint64_t epoch) {
    const auto sequence = epoch_sequence(options_.order, trace_.num_batches(), 5, epoch);
    for (size_t i = 0; i < sequence.size(); ++i) {
      const int64_t b = sequence[i], nb = trace_.num_batches();
      read(b);
      const auto late =
          static_cast<size_t>(random_below(random_word(seed_, draw_++), static_cast<uint64_t>(options_.depth) + 1));
      while (waiting_.size() > late) admit();
      gather(b);
      waiting_.push_back(b);
      if ((b + 1) % plan_.segment_batches == 0 || b + 1 == nb) end_segment(b / plan_.segment_batches);
    }
  }

 private:
  void read(int64_t b) {
    const BatchPlan& batch = batches_[static_cast<size_t>(b)];
    std::vector<uint32_t> rows = batch.pack;
    for (const uint32_t page : batch.pages) {
      const auto& segment = plan_.disk_segments[static_cast<size_t>(b / plan_.disk_segment_batches)];
      for (int64_t j = 0; j < plan_.page.rows; ++j) {
        const size_t place = static_cast<size_t>(page * plan_.page.rows + j);
        rows.push_back(place < segment.rows.size() ? segment.rows[place] : kGarbage);
      }
    }
    ring_.push_front(std::move(rows));
    // One more than programs reach: the oldest may still have to be admitted.
    if (ring_.size() > static_cast<size_t>(options_.depth) + 2) ring_.pop_back();
  }
  void gather(int64_t b) {
    const auto inputs = trace_.inputs(b);
    const BatchPlan& batch = batches_[static_cast<size_t>(b)];
    ASSERT_EQ(batch.program.size(), inputs.size());
    const auto depth = static_cast<uint32_t>(options_.depth);
    for (size_t i = 0; i < inputs.size(); ++i) {
      const uint32_t word = batch.program[i], index = row_index(word);
      uint32_t got = kGarbage;
      if (row_level(word) == RowLevel::gpu)
        got = gpu_.at(index);
      else if (row_level(word) == RowLevel::cpu)
        got = cpu_.at(index);
      else
        got = ring_.at(ring_age(index, depth)).at(ring_row(index, depth));
      ASSERT_EQ(got, inputs[i]) << "batch " << b << ", input " << i;
    }
  }
  void admit() {
    const int64_t b = waiting_.front();
    const size_t age = waiting_.size() - 1;
    waiting_.pop_front();
    // The batch that is about to be gathered is in the ring already, unless the segment has ended.
    for (const auto& [row, slot] : batches_[static_cast<size_t>(b)].admissions)
      cpu_.at(slot) = ring_.at(age + (has_ended_ ? 0 : 1)).at(row);
  }
  void end_segment(int64_t segment) {
    has_ended_ = true;
    while (!waiting_.empty()) admit();
    has_ended_ = false;
    const Restore& restore = plan_.restores.at(static_cast<size_t>(segment));
    for (const SlotMove& move : restore.moves) cpu_.at(move.to) = cpu_.at(move.from);
    for (const auto& [row, slot] : restore.loads) cpu_.at(slot) = restore.rows.at(row);
    ASSERT_TRUE(std::equal(plan_.start.cpu.begin(), plan_.start.cpu.end(), cpu_.begin()));
    ring_.clear();
  }

  const InputTrace& trace_;
  const LevelOptions& options_;
  const LevelPlan& plan_;
  const std::vector<BatchPlan>& batches_;
  std::vector<uint32_t> gpu_, cpu_;
  std::deque<std::vector<uint32_t>> ring_;  // newest first
  std::deque<int64_t> waiting_;             // gathered, not admitted
  bool has_ended_ = false;
  uint64_t seed_, draw_ = 0;
};

void replay(const InputTrace& trace, const LevelOptions& options) {
  const Recorded r = recorded(trace, options);
  for (uint64_t seed = 0; seed < 3; ++seed) {
    Model model(trace, options, r, seed);
    for (uint64_t epoch = 0; epoch < 3; ++epoch) {
      model.run_epoch(epoch);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(Levels, DeliverTheRightRowsOfRandomTraces) {
  const OrderChoice fixed{BatchOrder::fixed, 0}, segments{BatchOrder::segments, 7}, shuffle{BatchOrder::shuffle, 0};
  for (uint64_t seed = 0; seed < 6; ++seed) {
    const MemoryTrace trace = test::random_trace(60, 40, 25, seed);
    for (const CachePolicy policy : {CachePolicy::none, CachePolicy::hottest, CachePolicy::lru, CachePolicy::belady})
      for (const OrderChoice order : {fixed, segments, shuffle})
        for (const int depth : {0, 1, 3})
          for (const auto& [gpu, cpu] : {std::pair<int64_t, int64_t>{0, 0}, {0, 9}, {5, 10}, {10, 200}, {100, 3}}) {
            const bool is_still = policy == CachePolicy::none || policy == CachePolicy::hottest;
            if (order.order == BatchOrder::shuffle && !is_still) continue;
            LevelOptions options{.gpu_rows = gpu, .cpu_rows = cpu, .policy = policy, .order = order, .depth = depth};
            replay(trace, options);
            ASSERT_FALSE(HasFatalFailure()) << name_of(policy) << " " << name_of(order.order) << " depth " << depth
                                            << ", caches of " << gpu << " and " << cpu << ", seed " << seed;
          }
  }
}

TEST(Levels, DeliverTheRightRowsFromADiskCache) {
  const MemoryTrace trace = test::random_trace(60, 40, 25, 9);
  for (const CachePolicy policy : {CachePolicy::hottest, CachePolicy::belady})
    for (const BatchOrder order : {BatchOrder::fixed, BatchOrder::segments})
      for (const int64_t row_bytes : {int64_t{100}, int64_t{1000}, int64_t{4096}, int64_t{5000}})
        for (const bool min_hash : {true, false}) {
          LevelOptions options{.gpu_rows = 4, .cpu_rows = 8, .policy = policy, .row_bytes = row_bytes};
          options.order = {order, 7};
          options.disk = {.max_rows = 120, .min_hash = min_hash};
          const Recorded r = recorded(trace, options);
          EXPECT_GT(r.plan.counts.pages, 0);
          EXPECT_LT(r.plan.counts.pack_rows, r.plan.counts.misses);
          EXPECT_LE(r.plan.stored_rows, 120);
          replay(trace, options);
          ASSERT_FALSE(HasFatalFailure()) << row_bytes;
        }
}

TEST(Levels, DeliverTheRightRowsOfASampledGraph) {
  const MemoryTrace trace = test::sampled_trace(1 << 13, 32, 2);
  for (const OrderChoice order : {OrderChoice{}, OrderChoice{BatchOrder::segments, 9}}) {
    replay(trace, {.gpu_rows = 300, .cpu_rows = 500, .order = order});
    LevelOptions capped{.gpu_rows = 300, .cpu_rows = 500, .order = order, .row_bytes = 512};
    capped.disk.max_rows = 2 << 13;
    replay(trace, capped);
  }
}

TEST(Levels, CountWhatProgramsSay) {
  const MemoryTrace trace = test::sampled_trace(1 << 13, 32, 3);
  LevelOptions options{.gpu_rows = 300, .cpu_rows = 500, .row_bytes = 512};
  options.disk.max_rows = 2 << 13;
  const Recorded r = recorded(trace, options);
  LevelCounts seen;
  for (const BatchPlan& batch : r.batches) {
    std::vector<bool> is_used(batch.pack.size() + batch.pages.size() * 8);
    for (const uint32_t word : batch.program) {
      ++seen.rows;
      const RowLevel level = row_level(word);
      seen.gpu_hits += level == RowLevel::gpu;
      seen.cpu_hits += level == RowLevel::cpu;
      if (level != RowLevel::ring) continue;
      const bool is_own = ring_age(row_index(word), 3) == 0;
      if (is_own) is_used[ring_row(row_index(word), 3)] = true;
      ++(is_own ? seen.misses : seen.ring_hits);
    }
    // Nothing is read that nobody uses, but for neighbours on a page.
    EXPECT_TRUE(std::all_of(is_used.begin(), is_used.begin() + static_cast<int64_t>(batch.pack.size()),
                            [](bool used) { return used; }));
    EXPECT_TRUE(std::is_sorted(batch.pack.begin(), batch.pack.end()));
    for (size_t k = 0; k < batch.pages.size(); ++k) {
      const auto first = is_used.begin() + static_cast<int64_t>(batch.pack.size() + 8 * k);
      EXPECT_TRUE(std::any_of(first, first + 8, [](bool used) { return used; }));
    }
    seen.pack_rows += static_cast<int64_t>(batch.pack.size());
    seen.pages += static_cast<int64_t>(batch.pages.size());
  }
  const LevelCounts& counts = r.plan.counts;
  EXPECT_EQ(counts.rows, seen.rows);
  EXPECT_EQ(counts.gpu_hits, seen.gpu_hits);
  EXPECT_EQ(counts.cpu_hits, seen.cpu_hits);
  EXPECT_EQ(counts.ring_hits, seen.ring_hits);
  EXPECT_EQ(counts.misses, seen.misses);
  EXPECT_EQ(r.plan.bytes.packs, seen.pack_rows * 512);
  EXPECT_EQ(r.plan.bytes.pages, seen.pages * 4096);
  EXPECT_EQ(r.plan.bytes.restores, static_cast<int64_t>(r.plan.restores[0].rows.size()) * 512);
  EXPECT_GT(seen.ring_hits, 0);
}

TEST(Levels, PlanTheBatchesOfAnotherSplitAgainstTheSameStart) {
  const MemoryTrace train = test::random_trace(60, 40, 25, 4), valid = test::random_trace(60, 11, 25, 5);
  const LevelPlan first = recorded(train, {.gpu_rows = 6, .cpu_rows = 12}).plan;
  LevelOptions options{.gpu_rows = 6, .cpu_rows = 12, .policy = CachePolicy::hottest};
  options.start = first.start;
  replay(valid, options);
  EXPECT_EQ(recorded(valid, options).plan.start.cpu, first.start.cpu);
}

TEST(Levels, GiveTheSamePlanTwice) {
  const MemoryTrace trace = test::sampled_trace(1 << 12, 32, 3);
  const LevelOptions options{.gpu_rows = 100, .cpu_rows = 200};
  const Recorded a = recorded(trace, options), b = recorded(trace, options);
  EXPECT_EQ(a.plan.start.cpu, b.plan.start.cpu);
  ASSERT_EQ(a.batches.size(), b.batches.size());
  for (size_t i = 0; i < a.batches.size(); ++i) {
    EXPECT_EQ(a.batches[i].program, b.batches[i].program);
    EXPECT_EQ(a.batches[i].admissions, b.batches[i].admissions);
  }
}

TEST(Levels, RefuseBadArguments) {
  const MemoryTrace trace = test::random_trace(60, 40, 25, 9);
  const auto text = [&](LevelOptions options) {
    if (options.row_bytes == 0) options.row_bytes = 100;
    return plan_levels(trace, options, nullptr).status().message();
  };
  EXPECT_EQ(text({}), "");
  EXPECT_EQ(text({.gpu_rows = -1}), "gpu_rows is -1, wanted at least 0");
  EXPECT_EQ(text({.cpu_rows = -2}), "cpu_rows is -2, wanted at least 0");
  EXPECT_EQ(text({.depth = -1}), "depth is -1, wanted 0 to 64");
  EXPECT_EQ(text({.row_bytes = -4}), "row_bytes is -4, wanted at least 1");
  EXPECT_EQ(text({.order = {BatchOrder::shuffle, 0}}),
            "order is shuffle and policy belady, wanted policy static or none, or another order");
  EXPECT_EQ(text({.order = {BatchOrder::segments, 0}}), "segment_batches is 0, wanted at least 1");
  EXPECT_EQ(text({.epoch_batches = 7}), "epoch_batches is 7, wanted 0 or a divisor of 40 batches");
  EXPECT_EQ(text({.disk = {.max_rows = 10, .page_bytes = 5000}}),
            "page_bytes is 5000, wanted a power of two from 4096 to 65536");
  EXPECT_EQ(text({.disk = {.max_rows = 10}}),
            "disk cache: at most 10 rows, wanted at least 60, which are missed at all");
  LevelOptions twice;
  twice.start = CachedRows{{1, 2}, {3, 1}};
  EXPECT_EQ(text(twice), "start: row 1 is there twice, wanted rows below 60, each once");
  twice.start = CachedRows{{1, 60}, {}};
  EXPECT_EQ(text(twice), "start: row 60 is no vertex, wanted rows below 60, each once");
}

TEST(Restore, BringsAnyContentBack) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    uint64_t draw = 0;
    const auto shuffled = [&] {
      std::vector<uint32_t> rows(20);
      std::iota(rows.begin(), rows.end(), 0u);
      for (size_t i = rows.size(); i > 1; --i) std::swap(rows[i - 1], rows[random_below(random_word(seed, draw++), i)]);
      rows.resize(seed % 2 == 0 ? 20 : 12);
      return rows;
    };
    std::vector<uint32_t> slots = shuffled();
    const std::vector<uint32_t> wanted = shuffled();
    const Restore restore = restore_of(slots, wanted);
    slots.push_back(kGarbage);
    for (const SlotMove& move : restore.moves) slots.at(move.to) = slots.at(move.from);
    for (const auto& [row, slot] : restore.loads) slots.at(slot) = restore.rows.at(row);
    slots.pop_back();
    EXPECT_EQ(slots, wanted);
    EXPECT_TRUE(std::is_sorted(restore.rows.begin(), restore.rows.end()));
    EXPECT_TRUE(seed % 2 != 0 || restore.rows.empty());
  }
}

TEST(Order, AutomaticIsSegmentsWhereThereAreEnough) {
  EXPECT_EQ(automatic_order(1023, 1000, 1000).order, BatchOrder::fixed);
  const OrderChoice short_ones = automatic_order(1024, 1000, 1000);
  EXPECT_EQ(short_ones.order, BatchOrder::segments);
  EXPECT_EQ(short_ones.segment_batches, 256);
  const OrderChoice long_ones = automatic_order(4000, 50'001, 1000);
  EXPECT_EQ(long_ones.order, BatchOrder::fixed);  // 1001 batches fill the cache 20 times
  EXPECT_EQ(automatic_order(4004, 50'001, 1000).segment_batches, 1001);
}

TEST(Order, SegmentsEndWithTheirSampledEpoch) {
  const Segments cut({BatchOrder::segments, 4}, 30, 10);
  ASSERT_EQ(cut.count(), 9);
  std::vector<int64_t> bounds;
  for (int64_t s = 0; s < cut.count(); ++s) {
    bounds.push_back(cut.begin(s));
    EXPECT_EQ(cut.end(s), s + 1 < cut.count() ? cut.begin(s + 1) : 30);
    for (int64_t b = cut.begin(s); b < cut.end(s); ++b) EXPECT_EQ(cut.of(b), s);
  }
  EXPECT_EQ(bounds, (std::vector<int64_t>{0, 4, 8, 10, 14, 18, 20, 24, 28}));
  EXPECT_EQ(Segments({BatchOrder::segments, 4}, 30).count(), 8);
  EXPECT_EQ(Segments({BatchOrder::fixed, 0}, 30, 10).count(), 1);
  EXPECT_EQ(Segments({BatchOrder::fixed, 0}, 30, 10).end(0), 30);
  EXPECT_EQ(Segments({BatchOrder::fixed, 0}, 0).count(), 0);

  std::vector<int64_t> third = epoch_sequence({BatchOrder::segments, 4}, 30, 1, 5, 10);
  EXPECT_EQ(third.size(), 10u);
  std::sort(third.begin(), third.end());
  EXPECT_EQ(third.front(), 20);
  EXPECT_EQ(third.back(), 29);
  EXPECT_EQ(epoch_sequence({BatchOrder::fixed, 0}, 30, 1, 4, 10).front(), 10);
}

TEST(Order, PermutesSegmentsAndKeepsTheirInside) {
  const auto fixed = epoch_sequence({BatchOrder::fixed, 0}, 10, 1, 4);
  std::vector<int64_t> all(10);
  std::iota(all.begin(), all.end(), int64_t{0});
  EXPECT_EQ(fixed, all);
  for (const OrderChoice choice : {OrderChoice{BatchOrder::segments, 3}, OrderChoice{BatchOrder::shuffle, 0}}) {
    int64_t different = 0;
    for (uint64_t epoch = 0; epoch < 20; ++epoch) {
      auto sequence = epoch_sequence(choice, 10, 1, epoch);
      EXPECT_EQ(sequence, epoch_sequence(choice, 10, 1, epoch));
      different += sequence != all;
      const bool keeps = choice.order == BatchOrder::segments;
      for (size_t i = 1; keeps && i < sequence.size(); ++i)
        EXPECT_TRUE(sequence[i] % 3 == 0 || sequence[i] == sequence[i - 1] + 1);
      std::sort(sequence.begin(), sequence.end());
      EXPECT_EQ(sequence, all);
    }
    EXPECT_GT(different, 10);
  }
  EXPECT_TRUE(epoch_sequence({BatchOrder::fixed, 0}, 0, 1, 0).empty());
}

}  // namespace
}  // namespace overlace::gnn
