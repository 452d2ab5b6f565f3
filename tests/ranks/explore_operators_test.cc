// Calls of operators on paths of the explorer.
#include <memory>
#include <string>

#include "src/exec/run.h"
#include "src/ops/common/bodies.h"
#include "src/runtime/backend/cpu/observer.h"
#include "tests/ranks/support/explore.h"
#include "tests/ranks/support/seeds.h"
#include "tests/ranks/whole_cases.h"
#include "tests/unit/spec/operators.h"

namespace overlace::test {
namespace {

using spec::Schedule;

/// Leaves out the signals of rank 1 to rank 0.
class NoSignal final : public runtime::Observer {
 public:
  bool before(const runtime::Step& step) override {
    return step.kind != runtime::Step::Kind::add || step.rank != 1 || step.peer != 0;
  }
};

/// Calls 2 and 3 of each path under the explorer; the first call, which allocates and agrees, comes before. Ends with
/// the first path that fails.
ExploreReport explore_calls(const Case& c, const Schedule& schedule, int workers, runtime::Observer* filter = nullptr,
                            uint64_t paths = 10 * static_cast<uint64_t>(seeds().count)) {
  const auto make = [&](Runtime& runtime) -> Protocol {
    Channel* const channel = &runtime.world().channel(StreamRef::cpu());
    const auto operands = std::make_shared<Operands>(c, *channel);
    const auto call = [=, &c, &schedule](int64_t seed) {
      operands->fill(seed);
      const exec::Bindings bindings = {
          {"A", operands->a()}, {"B", operands->b()}, {result_of(c.op), operands->out().view}};
      const base::Status status = exec::run(*channel, schedule, c.text(), bindings, ops::bodies(*channel));
      return status.ok() ? operands->mismatch() : status.message();
    };
    const std::string first = call(1);
    return [call, first] { return first + call(2) + call(3); };
  };
  return explore({.ranks = kWholeRanks,
                  .workers = workers,
                  .num_seeds = paths,
                  .first_seed = seeds().first,
                  .max_steps = 20000,
                  .filter = filter},
                 make);
}

TEST(ExploreOperators, SoundSchedulesHoldOnPathsOfTheExplorer) {
  for (const std::string& op : test::all_operators())
    for (const Case& c : whole_cases(op)) {
      const Schedule schedule = spec::make_schedule(spec_of(c), c.family, c.degree);
      const bool has_items = schedule.params.contains("items");
      for (int workers = 1; workers <= (has_items ? 3 : 1); ++workers) {
        const ExploreReport report = explore_calls(c, schedule, workers);
        EXPECT_EQ(report.failure, "") << c.text() << ", " << workers << " workers";
        EXPECT_GE(report.paths, 10u);
      }
    }
}

/// A sum that does not wait for the own tiles: in the list they stand in front of it, so one worker hides it.
TEST(ExploreOperators, SeveralWorkersFindWhatTheOrderOfOneHides) {
  const Case c = case_of("gemm_rs", "tma_slot");
  Schedule schedule = spec::make_schedule(spec_of(c), c.family, c.degree);
  for (spec::Task& task : schedule.tasks)
    if (task.id == "sum_own") std::erase(task.deps, "tiles_own");
  EXPECT_EQ(explore_calls(c, schedule, 1).failure, "");
  const ExploreReport report = explore_calls(c, schedule, 3, nullptr, 1000);
  EXPECT_NE(report.failure, "") << report.paths << " paths";
}

/// What the deadline says after a while, the explorer says at once, with everybody's waits.
TEST(ExploreOperators, TheExplorerNamesTheDeadlockOfAMissingSignal) {
  for (const char* op : {"ag_gemm", "gemm_rs", "gemm_ar"}) {
    const Case c = case_of(op, "hetero_fused_1d");
    Schedule schedule = spec::make_schedule(spec_of(c), c.family, c.degree);
    EXPECT_EQ(explore_calls(c, schedule, 1).failure, "") << op;
    NoSignal no_signal;
    const ExploreReport report = explore_calls(c, schedule, 1, &no_signal);
    EXPECT_NE(report.failure.find("deadlock: "), std::string::npos) << op << ": " << report.failure;
    EXPECT_NE(report.failure.find(", signal "), std::string::npos) << op << ": " << report.failure;
  }
}

}  // namespace
}  // namespace overlace::test
