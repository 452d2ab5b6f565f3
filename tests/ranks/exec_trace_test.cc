// What a call leaves in a timeline.
#include <algorithm>
#include <map>
#include <mutex>

#include "src/base/trace.h"
#include "src/exec/run.h"
#include "tests/ranks/ops_cases.h"

namespace overlace::test {
namespace {

Channel& channel_of(Runtime& runtime) { return runtime.world().channel(StreamRef::cpu()); }

void call(const Case& c, Channel& channel, int64_t seed) {
  Operands operands(c, channel);
  operands.fill(seed);
  operands.run();
  ASSERT_EQ(operands.mismatch(), "");
}

TEST(ExecTrace, TracesEveryInstanceWaitAndArrowOfBothRanks) {
  std::mutex mutex;
  base::Trace trace;
  run_ranks(2, Mode::threads, [&](Runtime& runtime) {
    Channel& channel = channel_of(runtime);
    const Case c{.op = "gemm_rs", .family = "hetero_fused_1d", .degree = 2, .m = 16};
    call(c, channel, 0);
    base::Trace mine;
    exec::set_trace(channel, &mine);
    call(c, channel, 1);
    exec::set_trace(channel, nullptr);
    call(c, channel, 2);
    const std::lock_guard lock(mutex);
    trace.merge(std::move(mine));
  });
  exec::join_arrows(trace);
  for (const int rank : {0, 1}) {
    for (const char* name : {"gemm_remote[s=0]", "gemm_remote[s=1]", "gemm_own", "push[s=0,p=1]", "push[s=1,p=1]",
                             "reduce[s=0]", "reduce[s=1]"}) {
      const auto count = std::count_if(trace.spans.begin(), trace.spans.end(), [&](const base::Span& s) {
        return s.rank == rank && s.name == name && s.end_ns >= s.begin_ns && s.begin_ns > 0;
      });
      EXPECT_EQ(count, 1) << name << " of rank " << rank;
    }
  }
  for (const base::Span& span : trace.spans) {
    if (span.name.starts_with("gemm")) {
      EXPECT_GT(span.flops, 0) << span.name;
    }
    if (span.name.starts_with("push")) {
      EXPECT_EQ(span.bytes, 4 * 5 * 4) << span.name;
    }
    EXPECT_TRUE(span.category == "gemm" || span.category == "copy" || span.category == "reduce" ||
                span.category == "wait")
        << span.category;
  }
  std::vector<std::string> arrows;
  for (const base::Arrow& a : trace.arrows) {
    arrows.push_back(a.name + " " + std::to_string(a.from_rank) + ">" + std::to_string(a.to_rank));
    EXPECT_LE(a.from_ns, a.to_ns);
    EXPECT_EQ(a.from_lane, "ce 0");
    EXPECT_EQ(a.to_lane, "sm 1");
    const auto spans_at = [&](int rank, const std::string& name, int64_t base::Span::*time, int64_t ns) {
      return std::count_if(trace.spans.begin(), trace.spans.end(), [&](const base::Span& s) {
        return s.rank == rank && s.name.starts_with(name) && s.*time == ns;
      });
    };
    EXPECT_EQ(spans_at(a.from_rank, "push", &base::Span::end_ns, a.from_ns), 1);
    EXPECT_EQ(spans_at(a.to_rank, "reduce", &base::Span::begin_ns, a.to_ns), 1);
  }
  std::sort(arrows.begin(), arrows.end());
  EXPECT_EQ(arrows, (std::vector<std::string>{"arrived[0] 0>1", "arrived[0] 1>0", "arrived[1] 0>1", "arrived[1] 1>0"}));
}

TEST(ExecTrace, TransfersOfTheEmulatedLinkAreInTheTrace) {
  RankOptions options;
  options.link = LinkOptions::parse("100MB/s,100us");
  std::mutex mutex;
  base::Trace trace;
  const auto body = [&](Runtime& runtime) {
    Channel& channel = channel_of(runtime);
    base::Trace mine;
    exec::set_trace(channel, &mine);
    exec::set_trace_label(channel, "qkv");
    for (int64_t seed = 0; seed < 2; ++seed) {
      call({.op = "ag_gemm", .family = "hetero_fused_1d", .degree = 2, .m = 16, .k = 64}, channel, seed);
    }
    exec::set_trace(channel, nullptr);
    const std::lock_guard lock(mutex);
    trace.merge(std::move(mine));
  };
  run_ranks(2, Mode::threads, body, options);
  EXPECT_TRUE(trace.emulated);
  for (const char* lane : {"link 0->1", "link 1->0"}) {
    int64_t bytes = 0, count = 0;
    for (const base::Span& span : trace.spans) {
      if (span.lane != lane) continue;
      ++count;
      bytes += span.bytes;
      EXPECT_EQ(span.name, "qkv transfer");
      EXPECT_GE(span.end_ns - span.begin_ns, span.bytes * 10 / 2) << "100 MB/s are 10 ns a byte";
    }
    EXPECT_EQ(count, 4) << lane;
    EXPECT_EQ(bytes, 2 * 8 * 64 * 4) << lane;
  }
  // Products of a peer's rows begin a link's latency behind those of own rows on the rank that calls first, if on none
  // else: a rank that is late finds them there.
  std::map<std::string, int> waits;
  for (const base::Span& span : trace.spans) {
    if (span.category != "wait") continue;
    ++waits[span.name];
    EXPECT_GT(span.end_ns, span.begin_ns) << span.name;
  }
  EXPECT_GE(waits["qkv wait arrived[0]"], 1);
  for (const auto& [name, count] : waits) EXPECT_TRUE(name.starts_with("qkv wait ")) << name << " " << count;
}

}  // namespace
}  // namespace overlace::test
