#include "src/gnn/sample/selection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "src/gnn/levels/levels.h"
#include "tests/unit/gnn/support/traces.h"

namespace overlace::gnn {
namespace {

std::vector<uint32_t> inputs_of(const InputTrace& trace, int64_t batch) {
  const auto inputs = trace.inputs(batch);
  return {inputs.begin(), inputs.end()};
}

TEST(TraceSelection, JoinsSampledEpochs) {
  const MemoryTrace a = test::random_trace(20, 3, 6, 1), b = test::random_trace(20, 5, 6, 2);
  const TraceSelection both = std::move(TraceSelection::joined({&a, &b})).value();
  ASSERT_EQ(both.num_batches(), 8);
  EXPECT_EQ(both.num_vertices(), 20);
  for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(inputs_of(both, i), i < 3 ? inputs_of(a, i) : inputs_of(b, i - 3));
  EXPECT_EQ(both.source(4), (std::pair<const InputTrace*, int64_t>{&b, 1}));
  EXPECT_TRUE(check_inputs(both).ok());

  EXPECT_EQ(TraceSelection::joined({}).status().message(), "traces: none, wanted at least one");
  const MemoryTrace other(21);
  EXPECT_EQ(TraceSelection::joined({&a, &other}).status().message(),
            "traces[1] has 21 vertices, wanted 20, as the first");
}

TEST(TraceSelection, GivesAllRanksAsManyBatches) {
  const MemoryTrace trace = test::random_trace(20, 10, 6, 3);
  for (const int ranks : {1, 2, 3, 4, 16}) {
    std::vector<int64_t> seen;
    for (int rank = 0; rank < ranks; ++rank) {
      const TraceSelection own = std::move(TraceSelection::of_rank(trace, rank, ranks)).value();
      ASSERT_EQ(own.num_batches(), (10 + ranks - 1) / ranks);
      for (int64_t i = 0; i < own.num_batches(); ++i) {
        const int64_t b = own.source(i).second;
        EXPECT_EQ(b, (i * ranks + rank) % 10);
        EXPECT_EQ(inputs_of(own, i), inputs_of(trace, b));
        seen.push_back(b);
      }
    }
    std::sort(seen.begin(), seen.end());
    seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
    EXPECT_EQ(seen.size(), 10u);
  }
  EXPECT_TRUE(TraceSelection::of_rank(MemoryTrace(20), 1, 2)->num_batches() == 0);
  EXPECT_EQ(TraceSelection::of_rank(trace, 2, 2).status().message(), "rank is 2, wanted one in [0, 2)");
  EXPECT_EQ(TraceSelection::of_rank(trace, 0, 0).status().message(), "rank is 0, wanted one in [0, 0)");
}

// Two sampled epochs in one cycle: what the second uses first is known at the end of the first.
TEST(TraceSelection, IsPlannedAsOneCycle) {
  const MemoryTrace a = test::random_trace(60, 30, 20, 6), b = test::random_trace(60, 30, 20, 7);
  const TraceSelection both = std::move(TraceSelection::joined({&a, &b})).value();
  LevelOptions options{.gpu_rows = 5, .cpu_rows = 10, .row_bytes = 100};
  const LevelPlan joined = std::move(plan_levels(both, options, nullptr)).value();
  options.start = joined.start;
  int64_t apart = 0;
  for (const MemoryTrace* trace : {&a, &b}) apart += plan_levels(*trace, options, nullptr)->bytes.total();
  EXPECT_LT(joined.bytes.total(), apart);
  EXPECT_EQ(joined.counts.rows, [&] {
    int64_t rows = 0;
    for (int64_t i = 0; i < both.num_batches(); ++i) rows += std::ssize(both.inputs(i));
    return rows;
  }());
}

}  // namespace
}  // namespace overlace::gnn
