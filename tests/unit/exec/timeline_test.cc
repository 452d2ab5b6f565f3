#include "src/exec/timeline.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "src/exec/arrows.h"

namespace overlace::exec {
namespace {

base::Span span_named(const std::string& name) {
  base::Span span;
  span.rank = 1;
  span.lane = "ce 0";
  span.name = name;
  return span;
}

TEST(Timeline, MarksBecomeTimesOfSpansAndArrows) {
  Recording recording;
  recording.spans.push_back({span_named("push"), 0, 2});
  recording.spans.push_back({span_named("wait"), 2, 1});
  recording.halves.push_back({sent_half("arrived[0]", 7, 1, "ce 0", 0, 3), 2});
  recording.halves.push_back({seen_half("credit[0]", 7, 2, 1, "sm 0", 0), 1});
  const std::vector<int64_t> mark_ns = {100, 450, 300};
  const base::Trace trace = timed(recording, mark_ns);
  ASSERT_EQ(trace.spans.size(), 2u);
  EXPECT_EQ(trace.spans[0].name, "push");
  EXPECT_EQ(trace.spans[0].begin_ns, 100);
  EXPECT_EQ(trace.spans[0].end_ns, 300);
  EXPECT_EQ(trace.spans[1].begin_ns, 300);
  EXPECT_EQ(trace.spans[1].end_ns, 450);
  ASSERT_EQ(trace.arrows.size(), 2u);
  EXPECT_EQ(trace.arrows[0].from_ns, 300);  // where the span that caused it ends
  EXPECT_EQ(trace.arrows[0].to_ns, 0);
  EXPECT_EQ(trace.arrows[0].to_rank, 3);
  EXPECT_EQ(trace.arrows[1].from_ns, 0);
  EXPECT_EQ(trace.arrows[1].to_ns, 450);
  EXPECT_EQ(trace.arrows[1].to_lane, "sm 0");
}

TEST(Timeline, ASpanNeverEndsBeforeItBegan) {
  Recording recording;
  recording.spans.push_back({span_named("short"), 0, 1});
  const std::vector<int64_t> mark_ns = {1000, 999};
  const base::Trace trace = timed(recording, mark_ns);
  EXPECT_EQ(trace.spans[0].begin_ns, 1000);
  EXPECT_EQ(trace.spans[0].end_ns, 1000);
}

TEST(Timeline, TheOriginLiesWhereAllClockSamplesAllow) {
  // Passed at host times 5000000000, ...20000, ...41000; each look is a little before and after.
  const int64_t origin = 5000000000;
  const std::vector<ClockSample> samples = {{origin - 4000, origin + 9000, 0},
                                            {origin + 19000, origin + 26000, 20000},
                                            {origin + 36000, origin + 41600, 41000}};
  // Lower bounds -4000, -1000, -5000; upper bounds 9000, 6000, 600.
  EXPECT_EQ(host_time_of_origin(samples), origin - 200);
  EXPECT_EQ(host_time_of_origin(std::span(samples).first(1)), origin + 2500);
}

TEST(Timeline, ClocksThatContradictThemselvesGiveTheMiddle) {
  const std::vector<ClockSample> samples = {{1000, 1100, 0}, {3000, 3100, 1000}};  // 1000..1100 and 2000..2100
  EXPECT_EQ(host_time_of_origin(samples), 1550);
}

TEST(Timeline, NamesBearTheLabelOfTheirSite) {
  EXPECT_EQ(labelled("qkv", "push[s=0,p=1]"), "qkv push[s=0,p=1]");
  EXPECT_EQ(labelled("", "push"), "push");
  const base::Span span = caller_span(2, "", "attention");
  EXPECT_EQ(span.rank, 2);
  EXPECT_EQ(span.lane, "sm 0");
  EXPECT_EQ(span.name, "attention");
  EXPECT_EQ(span.category, "other");
}

TEST(Timeline, WorkAndWaitsOfAnInstanceAreNamedAlikeEverywhere) {
  spec::OpSpec op;
  op.op = "ag_gemm";
  op.m = 8, op.n = 3, op.k = 4;
  op.ranks = 2;
  op.dtype = op.out_dtype = DType::bf16;
  const spec::Schedule schedule = spec::make_schedule(op, "hetero_fused_1d", 2);
  auto program = expand_program(schedule, "", 1, 2);
  ASSERT_TRUE(program.ok()) << program.status().message();
  const Bindings bindings;
  const Call call{
      .program = **program, .bindings = bindings, .bodies = {}, .trace = nullptr, .copies_out = {}, .label = "up"};
  std::vector<std::string> seen;
  for (const spec::Instance& i : (*program)->expansion.instances) {
    const base::Span work = work_span(call, i);
    seen.push_back(
        base::format("{} | {} | {} | {} B | {} flop", work.lane, work.name, work.category, work.bytes, work.flops));
    EXPECT_EQ(work.rank, 1);
    if (!i.waits.empty() && !i.waits[0].previous) {
      const base::Span wait = wait_span(call, i.waits[0], work.lane);
      seen.push_back(base::format("{} | {} | {}", wait.lane, wait.name, wait.category));
    }
  }
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(seen,
            (std::vector<std::string>{
                "ce 0 | up push[s=0,p=1] | copy | 16 B | 0 flop", "ce 0 | up push[s=1,p=1] | copy | 16 B | 0 flop",
                "sm 0 | up gemm_own | gemm | 0 B | 96 flop", "sm 0 | up gemm_remote[s=0] | gemm | 0 B | 48 flop",
                "sm 0 | up gemm_remote[s=1] | gemm | 0 B | 48 flop", "sm 0 | up wait arrived[0] | wait",
                "sm 0 | up wait arrived[1] | wait"}));
}

TEST(Timeline, AnAddThatLooksLateByTheClocksIsStillTheSource) {
  base::Trace trace;
  trace.arrows.push_back(sent_half("arrived[0]", 1, 0, "ce 0", 50000, 1));
  trace.arrows.push_back(seen_half("arrived[0]", 1, 0, 1, "sm 0", 48000));
  trace.arrows.push_back(sent_half("arrived[1]", 1, 0, "ce 0", 90000, 1));
  trace.arrows.push_back(seen_half("arrived[1]", 1, 0, 1, "sm 0", 60000));  // further than clocks are apart
  join_arrows(trace);
  ASSERT_EQ(trace.arrows.size(), 1u);
  EXPECT_EQ(trace.arrows[0].name, "arrived[0]");
  EXPECT_EQ(trace.arrows[0].from_ns, 50000);
  EXPECT_EQ(trace.arrows[0].to_ns, 50000);
  // Among adds at one time the one that was recorded first counts, whether they look late or not.
  for (const int64_t seen_ns : {48000, 52000}) {
    base::Trace alike;
    for (const char* lane : {"ce 0", "ce 1"}) alike.arrows.push_back(sent_half("arrived[0]", 1, 0, lane, 50000, 1));
    alike.arrows.push_back(seen_half("arrived[0]", 1, 0, 1, "sm 0", seen_ns));
    join_arrows(alike);
    ASSERT_EQ(alike.arrows.size(), 1u);
    EXPECT_EQ(alike.arrows[0].from_lane, "ce 0") << seen_ns;
  }
}

}  // namespace
}  // namespace overlace::exec
