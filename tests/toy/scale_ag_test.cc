// An operator that the library does not know goes through everything that its own operators do: checks, mutations, CPU
// ranks, adversary, explorer, timeline, simulator, planner. Nothing outside tests names it.
#include "tests/toy/scale_ag.h"

#include <memory>
#include <mutex>

#include "overlace/plan.h"
#include "overlace/sim.h"
#include "overlace/team.h"
#include "src/base/half.h"
#include "src/exec/run.h"
#include "src/sim/schedule/simulation.h"
#include "src/spec/machine.h"
#include "src/spec/operators.h"
#include "tests/ranks/mutations.h"
#include "tests/ranks/support/explore.h"
#include "tests/ranks/support/run_ranks.h"

namespace overlace::toy {
namespace {

using spec::OpSpec;
using spec::Schedule;

constexpr double kAlpha = 3;

/// Before any test, so that their names can list its families.
const bool kIsAdded = (spec::add_operator(kScaleAg), true);

OpSpec problem(int ranks, int64_t m = 24, int64_t n = 5) {
  OpSpec op{.op = "scale_ag", .m = m, .n = n, .ranks = ranks, .dtype = DType::fp32, .row_offsets = {}};
  op.out_dtype = DType::fp32;
  op.fields = {{"alpha", kAlpha}};
  return op;
}

/// The body of the tasks that scale, on CPU ranks.
base::Status scale_on_cpu(const exec::BodyContext& context) {
  if (context.reads[0].empty()) return {};
  const double alpha = std::get<double>(context.schedule.params.at("alpha"));
  const TensorView &from = context.reads[0][0], &to = context.writes[0][0];
  for (int64_t i = 0; i < from.dim(0); ++i)
    for (int64_t j = 0; j < from.dim(1); ++j) {
      const double x = base::load_element(from.data, from.dtype, i * from.stride(0) + j * from.stride(1));
      base::store_element(to.data, to.dtype, i * to.stride(0) + j * to.stride(1), alpha * x);
    }
  return {};
}

/// One rank's operands, which differ by row, column and call, and a call.
class Call {
 public:
  Call(Channel& channel, Schedule schedule, const OpSpec& op)
      : channel_(channel), schedule_(std::move(schedule)), n_(op.n), off_(spec::row_offsets(op)) {
    const auto rank = static_cast<size_t>(channel.team().rank());
    first_ = off_[rank];
    x_.resize(static_cast<size_t>((off_[rank + 1] - first_) * n_));
    y_.resize(static_cast<size_t>(op.m * n_));
  }
  /// What went wrong; empty if nothing did.
  std::string run(int64_t call, base::Trace* trace = nullptr) {
    for (size_t i = 0; i < x_.size(); ++i) x_[i] = at(call, first_ * n_ + static_cast<int64_t>(i));
    std::fill(y_.begin(), y_.end(), -1.0F);
    const int64_t rows = static_cast<int64_t>(x_.size()) / n_;
    static const exec::Bodies kBodies = {.by_kind = {{spec::Kind::reduce, scale_on_cpu}}};
    const base::Status status = exec::run(channel_, schedule_, "scale_ag",
                                          {{"X", TensorView::contiguous(x_.data(), DType::fp32, {rows, n_})},
                                           {"Y", TensorView::contiguous(y_.data(), DType::fp32, {off_.back(), n_})}},
                                          kBodies, {.trace = trace});
    if (!status.ok()) return status.message();
    std::fill(x_.begin(), x_.end(), -2.0F);  // it is ours again: nobody may still read it
    for (size_t i = 0; i < y_.size(); ++i) {
      const float want = static_cast<float>(kAlpha) * at(call, static_cast<int64_t>(i));
      if (y_[i] != want) return base::format("call {}: y[{}] is {}, wanted {}", call, i, y_[i], want);
    }
    return "";
  }

 private:
  static float at(int64_t call, int64_t place) { return static_cast<float>(call * 1009 + place); }

  Channel& channel_;
  const Schedule schedule_;
  const int64_t n_;
  const std::vector<int64_t> off_;
  int64_t first_ = 0;
  std::vector<float> x_, y_;
};

TEST(ScaleAg, IsKnownByItsValueAlone) {
  ASSERT_TRUE(kIsAdded);
  EXPECT_EQ(spec::find_operator("scale_ag"), &kScaleAg);
  EXPECT_EQ(spec::families("scale_ag"), (std::vector<std::string>{"library", "serial", "pushed"}));
  EXPECT_EQ(spec::operator_names(), "ag_gemm, ag_wgrad, gemm_rs, gemm_ar or scale_ag");
  EXPECT_EQ(problem(3).to_string(), "scale_ag M 24 N 5 K 0 G 3 fp32 alpha 3");
  const Schedule schedule = spec::make_schedule(problem(3), "pushed", 2);
  EXPECT_EQ(spec::family_of(schedule), &kScaleAg.families[2]);
  EXPECT_EQ(Schedule::from_json(schedule.to_json()), schedule);
  EXPECT_NE(schedule.to_string().find("push"), std::string::npos);
}

TEST(ScaleAg, RefusesWhatItsTablesDoNotHave) {
  const auto refusal = [](void (*change)(OpSpec&), const char* family = "pushed") -> std::string {
    OpSpec op = problem(2);
    change(op);
    try {
      (void)spec::make_schedule(op, family);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal([](OpSpec& op) { op.fields.clear(); }),
            "scale_ag M 24 N 5 K 0 G 2 fp32: field 'alpha' is missing, wanted a number");
  EXPECT_EQ(refusal([](OpSpec& op) { op.fields["alpha"] = true; }),
            "scale_ag M 24 N 5 K 0 G 2 fp32 alpha true: field 'alpha' is true or false, wanted a number");
  EXPECT_EQ(refusal([](OpSpec& op) { op.fields["beta"] = 1.0; }),
            "scale_ag M 24 N 5 K 0 G 2 fp32 alpha 3 beta 1: scale_ag has no field 'beta'");
  EXPECT_EQ(refusal([](OpSpec& op) { op.k = 2; }),
            "scale_ag M 24 N 5 K 2 G 2 fp32 alpha 3: scale_ag sums nothing, wanted K 0");
  EXPECT_EQ(refusal([](OpSpec& op) { op.bias = true; }),
            "scale_ag M 24 N 5 K 0 G 2 fp32 bias alpha 3: scale_ag adds no bias");
  EXPECT_EQ(refusal([](OpSpec&) {}, "k_slab"), "scale_ag: unknown family 'k_slab' (known: library, serial, pushed)");
}

TEST(ScaleAg, HoldsAllChecks) {
  for (const std::string& family : spec::families("scale_ag"))
    for (const int ranks : {1, 2, 3, 4, 8})
      for (const int64_t m : {0, 7, 24})
        for (const int degree : {1, 2, 4})
          EXPECT_EQ(spec::check(spec::make_schedule(problem(ranks, m), family, degree), spec::Machine{}).to_string(),
                    "")
              << family << " G " << ranks << " M " << m << " q " << degree;
}

/// S9 compares with the operator's meaning.
TEST(ScaleAg, IsNotProvenWhereItIsWrong) {
  const auto codes_after = [](void (*change)(Schedule&)) {
    Schedule schedule = spec::make_schedule(problem(3), "pushed", 2);
    change(schedule);
    return test::checks(schedule);
  };
  EXPECT_EQ(codes_after([](Schedule&) {}), "");
  EXPECT_EQ(codes_after([](Schedule& s) { s.tasks[0].params.clear(); }), "S9") << "nothing is scaled";
  EXPECT_EQ(codes_after([](Schedule& s) { std::erase_if(s.tasks, [](const auto& t) { return t.id == "copy_own"; }); }),
            "S9")
      << "own rows are missing";
  EXPECT_EQ(codes_after([](Schedule& s) {
              for (spec::Task& task : s.tasks)
                if (task.id == "take") task.writes[0].dims[0].begin = "off[r]";
            }),
            "S9")
      << "rows of a peer in the place of others";
}

TEST(ScaleAg, GivesTheResultOnEveryTeam) {
  for (const test::Mode mode : test::all_modes())
    for (const int ranks : {1, 2, 3, 5})
      test::run_ranks(ranks, mode, [](Runtime& runtime) {
        Channel& channel = runtime.world().channel(StreamRef::cpu());
        for (const std::string& family : spec::families("scale_ag"))
          for (const int64_t m : {24, 7, 1}) {
            const OpSpec op = problem(channel.team().size(), m);
            Call call(channel, spec::make_schedule(op, family, 2), op);
            for (int64_t i = 1; i <= 5; ++i) ASSERT_EQ(call.run(i), "") << family << " M " << m;
          }
      });
}

/// What a mutant does under the adversary: the first thing that any rank found wrong. A data race to a thread
/// sanitizer.
[[maybe_unused]] std::string run_mutant(const OpSpec& op, const Schedule& schedule, const test::Mutation& mutation,
                                        uint64_t seed) {
  std::mutex mutex;
  std::string first;
  const auto say = [&](const std::string& what) {
    const std::lock_guard lock(mutex);
    if (first.empty()) first = what;
  };
  test::RankOptions options;
  options.timeout_ms = mutation.timeout_ms;
  options.adversary = AdversaryOptions::parse("delay_us=200,seed=" + std::to_string(seed));
  test::run_bootstraps(3, test::Mode::threads_adversary, [&](Bootstrap& bootstrap) {
    Runtime runtime = Runtime::open(bootstrap, runtime_options(test::Mode::threads_adversary, options));
    try {
      Call call(runtime.world().channel(StreamRef::cpu()), schedule, op);
      std::string said;
      for (int64_t i = 1; i <= 6 && said.empty(); ++i) said = call.run(i);
      if (said.empty()) {
        runtime.world().barrier();
        return runtime.close();
      }
      say(said);
      runtime.abort(Errc::aborted, "caught");
    } catch (const Error& error) {
      say(error.what());
    }
  });
  return first;
}

TEST(ScaleAg, EachMutantIsCaught) {
  const OpSpec op = problem(3);
  int num_mutants = 0;
  for (const char* family : {"serial", "pushed"})
    for (const test::Mutation& mutation : test::kMutations) {
      if (mutation.drops_fences) continue;  // the executor's, the same for all operators
      Schedule schedule = spec::make_schedule(op, family, 2);
      mutation.prepare(schedule);
      EXPECT_EQ(test::checks(schedule), "") << family << " " << mutation.name;
      if (!mutation.mutate(schedule)) continue;
      ++num_mutants;
      EXPECT_EQ(test::checks(schedule), mutation.code) << family << " " << mutation.name;
#if !defined(__SANITIZE_THREAD__)
      std::string caught;
      for (uint64_t seed = 1; seed <= 400 && caught.empty(); ++seed) caught = run_mutant(op, schedule, mutation, seed);
      EXPECT_NE(caught, "") << family << " " << mutation.name;
#endif
    }
  EXPECT_EQ(num_mutants, 13) << "serial has one chunk, whose flags cannot be swapped";
}

TEST(ScaleAg, HoldsOnPathsOfTheExplorer) {
  for (const char* family : {"serial", "pushed"}) {
    const OpSpec op = problem(3);
    const test::ExploreReport report =
        test::explore({.ranks = 3, .num_seeds = 10, .max_steps = 20000}, [&](Runtime& runtime) -> test::Protocol {
          const auto call =
              std::make_shared<Call>(runtime.world().channel(StreamRef::cpu()), spec::make_schedule(op, family, 2), op);
          EXPECT_EQ(call->run(1), "");
          return [call] { return call->run(2) + call->run(3); };
        });
    EXPECT_EQ(report.failure, "") << family;
    EXPECT_GE(report.paths, 10u);
  }
}

TEST(ScaleAg, IsTracedTaskByTask) {
  test::run_ranks(2, test::Mode::threads, [](Runtime& runtime) {
    const OpSpec op = problem(2);
    Call call(runtime.world().channel(StreamRef::cpu()), spec::make_schedule(op, "pushed", 2), op);
    base::Trace trace;
    ASSERT_EQ(call.run(1, &trace), "");
    std::set<std::string> names;
    for (const base::Span& span : trace.spans) names.insert(span.name.substr(0, span.name.find('[')));
    for (const char* name : {"scale", "push", "copy_own", "take"}) EXPECT_TRUE(names.contains(name)) << name;
  });
}

TEST(ScaleAg, IsSimulatedAndPlanned) {
  const spec::Machine machine = spec::find_machine("h200x4");
  OpSpec op = problem(4, 16384, 8192);
  const auto us = [&](const char* family, int degree) {
    return sim::simulate(spec::make_schedule(op, family, degree), machine).us();
  };
  EXPECT_DOUBLE_EQ(us("serial", 1), us("pushed", 1)) << "the same tasks";
  EXPECT_NE(us("pushed", 4), us("pushed", 1));
  EXPECT_GT(us("library", 1), 0);

  const sim::Simulation model;
  const plan::PlannerParts parts{.simulation = &model};
  const auto plan = plan::Planner(machine, parts).plan(op, {.limit = plan::Tier::simulation});
  EXPECT_EQ(plan->tier, plan::Tier::simulation) << plan->reason;
  EXPECT_EQ(plan->others.size(), 6u) << "library, serial and four degrees";
  for (const plan::Alternative& other : plan->others)
    EXPECT_DOUBLE_EQ(other.us, us(other.candidate.family.c_str(), other.candidate.degree))
        << to_string(other.candidate);
  EXPECT_EQ(plan->schedule, spec::make_schedule(op, plan->candidate.family, plan->candidate.degree));

  const auto unsure = plan::Planner(machine, parts).plan(op);
  EXPECT_EQ(unsure->candidate.family, "library") << "the recurrence knows no closed form of it: " << unsure->reason;
  const spec::Machine rated = spec::rated_machine({.link_bytes_per_s = 1e11, .flops_per_s = 1e14});
  EXPECT_EQ(plan::Planner(rated).plan(op)->reason, "no closed form of scale_ag: library");
}

}  // namespace
}  // namespace overlace::toy
