// Family tracked of gemm_rs on CPU ranks: copies that wait for counters of a running kernel.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "src/exec/run.h"
#include "src/ops/common/bodies.h"
#include "tests/ranks/mutations.h"
#include "tests/ranks/whole_cases.h"

namespace overlace::test {
namespace {

using spec::Schedule;

Task& task_of(Schedule& schedule, const std::string& id) {
  return *std::find_if(schedule.tasks.begin(), schedule.tasks.end(), [&](const Task& t) { return t.id == id; });
}

base::Status run_on(Channel& channel, const Case& c, const Schedule& schedule, Operands& operands) {
  return exec::run(channel, schedule, c.text(), {{"A", operands.a()}, {"B", operands.b()}, {"Y", operands.out().view}},
                   ops::bodies(channel));
}

/// Two chunks on three ranks, of two rows of tiles each, four tiles wide.
Case tracked_case(DType dtype) {
  Case c = case_of("gemm_rs", "tracked");
  c.m = 3 * 16 + 5;
  c.n = 36;
  c.in = c.out = dtype;
  return c;
}
Schedule small_tiles(const Case& c, const std::string& family) {
  return spec::make_schedule(
      spec_of(c), family, c.degree,
      family == "tracked" ? spec::Params{{"align", int64_t{4}}, {"align_n", int64_t{9}}} : spec::Params{});
}

/// Values whose sums are rounded: the order of the sums shows.
void fill_rounded(const TensorView& view, uint64_t what, int rank, int64_t call) {
  for (int64_t i = 0; i < view.dim(0); ++i)
    for (int64_t j = 0; j < view.dim(1); ++j) {
      const auto h = static_cast<double>(hash_of(what, rank, i, j, call) >> 40);
      base::store_element(view.data, view.dtype, i * view.stride(0) + j * view.stride(1), h / 8388608.0 - 1.0);
    }
}

class Tracked : public testing::TestWithParam<Mode> {};

TEST_P(Tracked, AThousandCallsHaveTheBitsOfTheOtherFamilies) {
  if (GetParam() == Mode::processes && !kHasProcesses) GTEST_SKIP() << "ranks are threads under ThreadSanitizer";
  for (const DType dtype : {DType::bf16, DType::fp32}) {
    const Case c = tracked_case(dtype);
    const Schedule tracked = small_tiles(c, "tracked"), other = small_tiles(c, "hetero_unfused_1d");
    EXPECT_EQ(tracked.params.at("q"), spec::Param(int64_t{2}));
    run_ranks(kWholeRanks, GetParam(), [&](Runtime& runtime) {
      Channel& channel = runtime.world().channel(StreamRef::cpu());
      Operands operands(c, channel);
      const int rank = runtime.world().rank();
      const int calls = GetParam() == Mode::threads_adversary ? 100 : 1000;
      std::vector<char> want;
      for (int64_t call = 0; call < calls; ++call) {
        if (call % 100 == 0) {
          operands.fill(call);
          fill_rounded(operands.a(), 1, rank, call);
          fill_rounded(operands.b(), 2, rank, call);
          run_on(channel, c, other, operands).or_throw();
          want = operands.out().bytes();
        }
        std::memset(operands.out().view.data, 0x55, want.size() / 2);
        run_on(channel, c, tracked, operands).or_throw();
        ASSERT_EQ(operands.out().bytes(), want) << "call " << call << " of rank " << rank;
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, Tracked, testing::Values(Mode::threads, Mode::threads_adversary, Mode::processes),
                         [](const auto& test) {
                           return std::string(test.param == Mode::threads             ? "threads"
                                              : test.param == Mode::threads_adversary ? "adversary"
                                                                                      : "processes");
                         });

// ---- mutations of its counters ----

bool low_threshold(Schedule& s) {
  task_of(s, "push").waits.back().at_least = 0;
  return true;
}
bool counter_of_the_chunk_before(Schedule& s) {
  task_of(s, "push").waits.back().slot = "max(0,s-1)*(G-1)+p-1";
  return true;
}
bool counter_set_by_own_tiles(Schedule& s) {
  Task& remote = task_of(s, "tiles_remote");
  spec::Set set = remote.sets[0];
  remote.sets.clear();
  set.slot = "z";
  set.each = spec::Loop{"z", 0, "q*(G-1)"};
  task_of(s, "tiles_own").sets = {set};
  task_of(s, "tiles_own").order = 0;
  remote.order = "s*G+p+1";
  s.params.erase("items");
  return true;
}
bool missing_counter(Schedule& s) {
  task_of(s, "tiles_remote").sets.clear();
  return true;
}

const Mutation kOfCounters[] = {{"missing_counter", missing_counter, as_is, "S4", false, 150},
                                {"low_threshold", low_threshold, as_is, "S5"},
                                {"counter_of_the_chunk_before", counter_of_the_chunk_before, as_is, "S5"},
                                {"counter_set_by_own_tiles", counter_set_by_own_tiles, as_is, "S5"}};

/// The first wrong element or error of any rank in six calls with one seed of the adversary.
std::string run(const Case& c, const Schedule& schedule, const Mutation& mutation, uint64_t seed) {
  return run_mutant(kWholeRanks, mutation, seed, [&](Runtime& runtime) {
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    Operands operands(c, channel);
    std::string said;
    for (int64_t call = 1; call <= 6 && said.empty(); ++call) {
      operands.fill(call);
      const base::Status status = run_on(channel, c, schedule, operands);
      said = status.ok() ? operands.mismatch() : status.message();
    }
    if (said.empty()) runtime.world().barrier();
    return said;
  });
}

TEST(TrackedMutations, AreFoundByChecksAndByTheAdversary) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the mutants are data races";
#endif
  const Case c = tracked_case(DType::fp32);
  for (const Mutation& mutation : kOfCounters) {
    Schedule schedule = small_tiles(c, "tracked");
    EXPECT_EQ(checks(schedule), "");
    EXPECT_EQ(run(c, schedule, {"sound", nothing, as_is, ""}, 1), "");
    ASSERT_TRUE(mutation.mutate(schedule));
    EXPECT_EQ(checks(schedule), mutation.code) << mutation.name;
    std::string caught;
    for (uint64_t seed = 1; seed <= 100 && caught.empty(); ++seed) caught = run(c, schedule, mutation, seed);
    EXPECT_NE(caught, "") << mutation.name;
  }
}

/// Copies that wait for a counter which nobody sets hold up whoever waits for their rows, until the deadline.
TEST(TrackedMutations, AMissingCounterEndsAtTheDeadline) {
  const Case c = tracked_case(DType::fp32);
  Schedule schedule = small_tiles(c, "tracked");
  ASSERT_TRUE(missing_counter(schedule));
  const std::string said = run(c, schedule, kOfCounters[0], 1);
  EXPECT_NE(said.find("for arrived["), std::string::npos) << said;
}

}  // namespace
}  // namespace overlace::test
