// ag_gemm on exact data: every schedule, team sizes 1 to 9, ranks as threads, with the adversary, and as processes.
#include "tests/ranks/ops_cases.h"

namespace overlace::test {
namespace {

class AgGemmRanks : public ::testing::TestWithParam<std::tuple<int, Mode>> {};

TEST_P(AgGemmRanks, EveryScheduleGivesTheExactResultInEachOfRepeatedCalls) {
  const auto [ranks, mode] = GetParam();
  if (mode == Mode::processes && !kHasProcesses) GTEST_SKIP() << "ranks are threads under ThreadSanitizer";
  run_ranks(ranks, mode, [](Runtime& runtime) {
    run_cases(runtime, runtime.world().channel(StreamRef::cpu()), cases_of("ag_gemm", runtime.world().size()));
  });
}

TEST_P(AgGemmRanks, EveryScheduleMakesSwigluOfPairsOfColumns) {
  const auto [ranks, mode] = GetParam();
  if (mode == Mode::processes && !kHasProcesses) GTEST_SKIP() << "ranks are threads under ThreadSanitizer";
  run_ranks(ranks, mode, [](Runtime& runtime) {
    std::vector<Case> cases = cases_of("ag_gemm", runtime.world().size());
    for (Case& c : cases) {
      c.swiglu = true;
      c.n *= 2;
      if (c.family == "k_slab") c.n += 120;  // more than a tile
    }
    run_cases(runtime, runtime.world().channel(StreamRef::cpu()), cases);
  });
}

INSTANTIATE_TEST_SUITE_P(Teams, AgGemmRanks, all_teams(), mode_test_name);

}  // namespace
}  // namespace overlace::test
