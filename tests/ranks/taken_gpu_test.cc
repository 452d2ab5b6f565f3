// A kernel that needs all its CTAs at once finds no room on a rank's GPU: all ranks know, and what overlace chose gives
// way to the library. The refusal is a fake, which a rank makes in place of the call.
#include <memory>
#include <string>

#include "src/capi/handles.h"
#include "src/exec/run.h"
#include "tests/ranks/ops_cases.h"

namespace overlace::test {
namespace {

spec::OpSpec problem_of(int64_t m) {
  spec::OpSpec op;
  op.op = "ag_gemm", op.m = m, op.n = 8, op.k = 16, op.ranks = 3;
  op.dtype = op.out_dtype = DType::fp32;
  return op;
}

/// What all ranks know when some refuse their first call of `m` rows.
exec::Impasse after_refusals(Runtime& runtime, int64_t m, const std::vector<Errc>& codes) {
  Channel& channel = runtime.world().channel(StreamRef::cpu());
  const Errc mine = codes[static_cast<size_t>(runtime.world().rank())];
  const spec::Schedule schedule = spec::make_schedule(problem_of(m), "serial");
  const base::Status why = mine == Errc::ok ? base::Status() : base::error(mine, "a fake");
  const base::Status status = exec::refuse(channel, schedule, "N", why);
  EXPECT_FALSE(status.ok());
  return exec::impasse(channel);
}

TEST(TakenGpu, AllRanksKnowWhereThatAloneIsRefused) {
  run_ranks(3, Mode::threads, [](Runtime& runtime) {
    using enum exec::Impasse;
    constexpr Errc kTaken = Errc::co_residency, kWrong = Errc::invalid_argument;
    EXPECT_EQ(after_refusals(runtime, 24, {Errc::ok, kTaken, Errc::ok}), gpu_is_taken);
    EXPECT_EQ(after_refusals(runtime, 27, {kTaken, kTaken, kTaken}), gpu_is_taken);
    EXPECT_EQ(after_refusals(runtime, 30, {Errc::ok, kTaken, kWrong}), none);
    EXPECT_EQ(after_refusals(runtime, 33, {kWrong, Errc::ok, Errc::ok}), none);
  });
}

TEST(TakenGpu, AChosenScheduleGivesWayToTheLibrary) {
  run_ranks(3, Mode::threads, [](Runtime& runtime) {
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    const Context context = Context::open(runtime);
    const auto object = [&](bool is_chosen) {
      auto made = std::make_unique<capi::ScheduleObject>();
      if (is_chosen) made->chosen.emplace(capi::Chosen{problem_of(24), context});
      made->plans.push_back(std::make_unique<capi::ScheduleTexts>());
      made->plan().schedule = spec::make_schedule(problem_of(24), "serial");
      made->plan().reason = "fast";
      return made;
    };
    const auto gives_way = [&](capi::ScheduleObject& schedule) {
      const auto outcome = schedule.give_way(channel, "N", exec::Impasse::gpu_is_taken);
      EXPECT_TRUE(outcome.ok()) << outcome.status().message();
      return outcome.ok() && *outcome;
    };
    const auto chosen = object(true);
    EXPECT_TRUE(gives_way(*chosen));
    EXPECT_EQ(chosen->plan().schedule.family, "library");
    EXPECT_EQ(chosen->plan().reason, "fast; serial does not fit on a GPU beside others of its process: library");
    EXPECT_FALSE(gives_way(*chosen)) << "the library gives way to nothing";
    const auto named_by_one = object(runtime.world().rank() != 1);
    EXPECT_FALSE(gives_way(*named_by_one)) << "the caller of rank 1 named the schedule";
    EXPECT_EQ(named_by_one->plan().schedule.family, "serial");
  });
}

}  // namespace
}  // namespace overlace::test
