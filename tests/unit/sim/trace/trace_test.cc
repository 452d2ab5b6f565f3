#include "src/sim/trace/trace.h"

#include <gtest/gtest.h>

#include "overlace/sim.h"

namespace overlace::sim {
namespace {

base::Trace measured_ranks() {
  base::Trace t;
  t.spans = {
      {0, "sm 0", "gemm", "gemm", 1000, 11000, 0, 5},          {0, "ce 0", "push[p=1]", "copy", 2000, 4000, 64, 0},
      {0, "sm 0", "wait arrived[0]", "wait", 500, 1000, 0, 0}, {1, "sm 0", "gemm", "gemm", 3000, 9000, 0, 5},
      {1, "sm 0", "gemm", "gemm", 9000, 10000, 0, 5},          {1, "link 0->1", "put", "copy", 0, 1, 0, 0}};
  return t;
}

TEST(TraceDiff, OfATraceWithItselfIsZero) {
  const TraceDiff diff = diff_traces(measured_ranks(), measured_ranks()).value();
  EXPECT_EQ(diff.rows.size(), 4u);  // waits and links are left out
  EXPECT_EQ(diff.median, 0);
  EXPECT_DOUBLE_EQ(diff.extent_us, 10);
  for (const auto& [kind, us] : diff.by_kind) EXPECT_EQ(us, 0) << kind;
}

TEST(TraceDiff, AlignsByIdAndTurn) {
  base::Trace other = measured_ranks();
  for (base::Span& span : other.spans) {
    span.begin_ns += 7777;  // another clock
    span.end_ns += 7777;
  }
  other.spans[4].end_ns += 3000;   // rank 1, second gemm
  other.spans[1].begin_ns += 500;  // rank 0, push
  const TraceDiff diff = diff_traces(measured_ranks(), other).value();
  ASSERT_EQ(diff.rows.size(), 4u);
  EXPECT_EQ(diff.rows[1].id, "push[p=1]");
  EXPECT_DOUBLE_EQ(diff.rows[1].residual_us(), -0.5);
  EXPECT_DOUBLE_EQ(diff.rows[1].other_start_us, 1.5);
  EXPECT_EQ(diff.rows[3].turn, 1);
  EXPECT_DOUBLE_EQ(diff.rows[3].residual_us(), 3);
  EXPECT_EQ(diff.by_kind[0], (std::pair<std::string, double>{"gemm", 3}));
  EXPECT_EQ(diff.by_kind[1], (std::pair<std::string, double>{"copy", 0.5}));
  EXPECT_EQ(diff.by_rank[0].first, "rank 1");
  EXPECT_DOUBLE_EQ(diff.median, 0.125);  // of 0, 0, 1/4, 3
}

TEST(TraceDiff, AnIdOnOneSideOnlyIsRefused) {
  base::Trace other = measured_ranks();
  other.spans[1].name = "push[p=2]";
  const auto diff = diff_traces(measured_ranks(), other);
  EXPECT_EQ(diff.status().code(), Errc::invalid_argument);
  EXPECT_EQ(diff.status().message(),
            "traces: 2 ids are on one side only, wanted the same work: push[p=1] of rank 0 is in the first trace only; "
            "push[p=2] of rank 0 is in the second trace only");
}

/// What is simulated comes back through both file formats with its ids and lanes.
TEST(ToTrace, GoesThroughFilesUnchanged) {
  spec::OpSpec op;
  op.op = "gemm_ar";
  op.m = 512;
  op.n = 256;
  op.k = 128;
  op.ranks = 2;
  SimOptions options;
  options.has_spans = true;
  const SimResult result =
      simulate(spec::make_schedule(op, "hetero_unfused_1d", 2), spec::find_machine("h200x4"), options);
  const base::Trace trace = to_trace(result, "simulated");
  ASSERT_GT(trace.spans.size(), 20u);
  ASSERT_GT(trace.arrows.size(), 4u);
  for (const std::string& bytes : {base::to_perfetto(trace), base::to_chrome_json(trace)}) {
    const base::Trace back = base::parse_trace(bytes, "file").value();
    EXPECT_EQ(back.spans.size(), trace.spans.size());
    EXPECT_EQ(back.arrows.size(), trace.arrows.size());
    const TraceDiff diff = diff_traces(trace, back).value();
    EXPECT_EQ(diff.median, 0);
  }
}

TEST(TraceDiff, NothingAgreesWithNothing) {
  EXPECT_EQ(diff_traces(base::Trace{}, base::Trace{}).status().message(),
            "traces: no task in either, wanted two of the same work");
}

}  // namespace
}  // namespace overlace::sim
