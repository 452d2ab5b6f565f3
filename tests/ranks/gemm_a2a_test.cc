// gemm_a2a on exact data: every schedule, team sizes 1 to 9, ranks as threads, with the adversary, and as processes.
#include "tests/ranks/ops_cases.h"

namespace overlace::test {
namespace {

class GemmA2aRanks : public ::testing::TestWithParam<std::tuple<int, Mode>> {};

TEST_P(GemmA2aRanks, EveryScheduleGivesTheExactResultInEachOfRepeatedCalls) {
  const auto [ranks, mode] = GetParam();
  if (mode == Mode::processes && !kHasProcesses) GTEST_SKIP() << "ranks are threads under ThreadSanitizer";
  run_ranks(ranks, mode, [](Runtime& runtime) {
    run_cases(runtime, runtime.world().channel(StreamRef::cpu()), cases_of("gemm_a2a", runtime.world().size()));
  });
}

TEST_P(GemmA2aRanks, ColumnsInBlocksComeToTheirPlace) {
  const auto [ranks, mode] = GetParam();
  if (mode == Mode::processes && !kHasProcesses) GTEST_SKIP() << "ranks are threads under ThreadSanitizer";
  run_ranks(ranks, mode, [](Runtime& runtime) {
    run_cases(runtime, runtime.world().channel(StreamRef::cpu()), column_cases_of("gemm_a2a", runtime.world().size()));
  });
}

INSTANTIATE_TEST_SUITE_P(Teams, GemmA2aRanks, all_teams(), mode_test_name);

}  // namespace
}  // namespace overlace::test
