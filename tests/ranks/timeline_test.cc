// Timelines of programs: what each rank ran, in one file, with the signals between them.
#include "overlace/timeline.h"

#include <unistd.h>

#include <filesystem>
#include <set>
#include <vector>

#include "overlace/ops/ag_gemm.h"
#include "src/base/file.h"
#include "src/base/trace.h"
#include "tests/ranks/support/run_ranks.h"

namespace overlace::test {
namespace {

/// ag_gemm of (32, 8) x (8, 6) with all ones.
struct Problem {
  explicit Problem(Channel& c)
      : channel(c), rows(32 / c.team().size()), a(static_cast<size_t>(rows * 8), 1), b(8 * 6, 1), c_data(32 * 6) {
    args.a_shard = TensorView::contiguous(a.data(), DType::fp32, {rows, 8});
    args.b = TensorView::contiguous(b.data(), DType::fp32, {8, 6});
    args.c = TensorView::contiguous(c_data.data(), DType::fp32, {32, 6});
    schedule = spec::make_schedule(op_spec(channel, args), "hetero_fused_1d", 2);
  }
  void run() { ops::run(channel, args, schedule); }

  Channel& channel;
  int64_t rows;
  std::vector<float> a, b, c_data;
  ops::AgGemmArgs args;
  spec::Schedule schedule;
};

/// Rank 0 writes it and looks at it.
std::string own_file() { return testing::TempDir() + "overlace_timeline_" + std::to_string(::getpid()) + ".json"; }

class TimelineTest : public testing::TestWithParam<std::tuple<int, Mode>> {};

TEST_P(TimelineTest, HasTheSpansOfAllRanksUnderTheirLabels) {
  const auto [n, mode] = GetParam();
  run_ranks(n, mode, [n = n](Runtime& runtime) {
    Team& team = runtime.world();
    Problem problem(team.channel(StreamRef::cpu()));
    const std::string path = own_file();
    problem.run();  // before the timeline: not in it
    {
      Timeline timeline(problem.channel);
      timeline.label("first");
      problem.run();
      timeline.label("second");
      problem.run();
      timeline.write(path);
      EXPECT_THROW(timeline.write(path), InvalidArgument);
    }
    problem.run();
    if (team.rank() != 0) return;
    const base::Trace trace = base::parse_trace(base::read_file(path).value(), path).value();
    std::filesystem::remove(path);
    std::set<int> ranks;
    size_t first = 0, second = 0, gemms = 0;
    for (const base::Span& span : trace.spans) {
      ranks.insert(span.rank);
      first += span.name.rfind("first ", 0) == 0 ? 1 : 0;
      second += span.name.rfind("second ", 0) == 0 ? 1 : 0;
      gemms += span.category == "gemm" ? 1 : 0;
      EXPECT_LE(span.begin_ns, span.end_ns);
    }
    EXPECT_EQ(ranks.size(), static_cast<size_t>(n));
    // Two calls: the own rows, and two chunks of the others.
    EXPECT_EQ(gemms, static_cast<size_t>(n == 1 ? 2 : n * 2 * 3));
    EXPECT_GT(first, 0u);
    EXPECT_GT(second, 0u);
    EXPECT_EQ(trace.arrows.empty(), n == 1);
  });
}

TEST_P(TimelineTest, AnotherOneMayFollowOneThatWasNotWritten) {
  const auto [n, mode] = GetParam();
  run_ranks(n, mode, [](Runtime& runtime) {
    Team& team = runtime.world();
    Problem problem(team.channel(StreamRef::cpu()));
    {
      Timeline given_up(problem.channel);
      problem.run();
    }
    Timeline timeline(problem.channel);
    problem.run();
    const std::string path = "/nonexistent/overlace.json";
    if (team.rank() == 0) {
      EXPECT_THROW(timeline.write(path), IoError);
    } else {
      timeline.write(path);
    }
    problem.run();  // still usable
  });
}

INSTANTIATE_TEST_SUITE_P(Teams, TimelineTest,
                         testing::Combine(testing::Values(1, 2, 4), testing::ValuesIn(all_modes())), mode_test_name);

}  // namespace
}  // namespace overlace::test
