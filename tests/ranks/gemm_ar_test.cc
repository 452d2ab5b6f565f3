// gemm_ar on exact data: every schedule, team sizes 1 to 9, ranks as threads, with the adversary, and as processes.
#include "tests/ranks/ops_cases.h"

namespace overlace::test {
namespace {

class GemmArRanks : public ::testing::TestWithParam<std::tuple<int, Mode>> {};

TEST_P(GemmArRanks, EveryScheduleGivesTheExactResultInEachOfRepeatedCalls) {
  const auto [ranks, mode] = GetParam();
  if (mode == Mode::processes && !kHasProcesses) GTEST_SKIP() << "ranks are threads under ThreadSanitizer";
  run_ranks(ranks, mode, [](Runtime& runtime) {
    run_cases(runtime, runtime.world().channel(StreamRef::cpu()), cases_of("gemm_ar", runtime.world().size()));
  });
}

/// Every schedule of the dense operators, with one size of 0.
void run_without(int64_t Case::*size) {
  run_ranks(3, Mode::threads, [&](Runtime& runtime) {
    for (const char* op : {"ag_gemm", "gemm_rs", "gemm_ar"}) {
      std::vector<Case> cases = cases_of(op, 3);
      for (Case& one : cases) one.*size = 0;
      run_cases(runtime, runtime.world().channel(StreamRef::cpu()), cases);
    }
  });
}
TEST(EmptyOperands, EveryScheduleRunsWithoutColumns) { run_without(&Case::n); }
TEST(EmptyOperands, EveryScheduleGivesZerosWithoutDepth) { run_without(&Case::k); }

INSTANTIATE_TEST_SUITE_P(Teams, GemmArRanks, all_teams(), mode_test_name);

}  // namespace
}  // namespace overlace::test
