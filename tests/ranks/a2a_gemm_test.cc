// a2a_gemm on exact data: every schedule, team sizes 1 to 9, ranks as threads, with the adversary, and as processes.
#include "tests/ranks/ops_cases.h"

namespace overlace::test {
namespace {

class A2aGemmRanks : public ::testing::TestWithParam<std::tuple<int, Mode>> {};

TEST_P(A2aGemmRanks, EveryScheduleGivesTheExactResultInEachOfRepeatedCalls) {
  const auto [ranks, mode] = GetParam();
  if (mode == Mode::processes && !kHasProcesses) GTEST_SKIP() << "ranks are threads under ThreadSanitizer";
  run_ranks(ranks, mode, [](Runtime& runtime) {
    run_cases(runtime, runtime.world().channel(StreamRef::cpu()), cases_of("a2a_gemm", runtime.world().size()));
  });
}

TEST_P(A2aGemmRanks, ColumnsInBlocksComeToTheirPlace) {
  const auto [ranks, mode] = GetParam();
  if (mode == Mode::processes && !kHasProcesses) GTEST_SKIP() << "ranks are threads under ThreadSanitizer";
  run_ranks(ranks, mode, [](Runtime& runtime) {
    run_cases(runtime, runtime.world().channel(StreamRef::cpu()), column_cases_of("a2a_gemm", runtime.world().size()));
  });
}

INSTANTIATE_TEST_SUITE_P(Teams, A2aGemmRanks, all_teams(), mode_test_name);

}  // namespace
}  // namespace overlace::test
