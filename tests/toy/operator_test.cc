// An operator that the library does not know goes through everything that its own operators do: checks, mutations, CPU
// ranks, adversary, explorer, timeline, simulator, planner, tuner. Nothing outside tests names it.
#include "tests/toy/operator.h"

#include <memory>
#include <mutex>

#include "overlace/ops/call.h"
#include "overlace/plan.h"
#include "overlace/sim.h"
#include "overlace/team.h"
#include "overlace/tune.h"
#include "src/exec/run.h"
#include "src/sim/schedule/simulation.h"
#include "src/spec/families/families.h"
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
const bool kIsAdded = (spec::add_operator(kOperator), true);

OpSpec problem(int ranks, int64_t m = 24, int64_t n = 5) {
  OpSpec op{.op = "scale_ag", .m = m, .n = n, .ranks = ranks, .dtype = DType::fp32, .row_offsets = {}};
  op.out_dtype = DType::fp32;
  op.fields = {{"alpha", kAlpha}};
  return op;
}

/// One rank's operands, which differ by row, column and call, and a call.
class Call {
 public:
  Call(Channel& channel, Schedule schedule, const OpSpec& op, const spec::OperatorDef& def = kOperator)
      : channel_(channel), def_(def), schedule_(std::move(schedule)), n_(op.n), off_(spec::row_offsets(op)) {
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
    exec::set_trace(channel_, trace);
    const ops::CallArgs args{
        .tensors = {TensorView::contiguous(x_.data(), DType::fp32, {rows, n_}),
                    TensorView::contiguous(y_.data(), DType::fp32, {off_.back(), n_})},
        .fields = {{"alpha", kAlpha}},
    };
    try {
      ops::call(channel_, def_, args, schedule_);
    } catch (const Error& error) {
      return error.what();
    }
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
  const spec::OperatorDef& def_;
  const Schedule schedule_;
  const int64_t n_;
  const std::vector<int64_t> off_;
  int64_t first_ = 0;
  std::vector<float> x_, y_;
};

TEST(ScaleAg, IsKnownByItsValueAlone) {
  ASSERT_TRUE(kIsAdded);
  EXPECT_EQ(spec::find_operator("scale_ag"), &kOperator);
  EXPECT_EQ(spec::families("scale_ag"), (std::vector<std::string>{"library", "serial", "pushed"}));
  EXPECT_EQ(spec::operator_names(),
            "ag_gemm, ag_wgrad, gemm_rs, gemm_ar, gemm_ar_norm, gemm_a2a, a2a_gemm, embedding_a2a or scale_ag");
  EXPECT_EQ(problem(3).to_string(), "scale_ag M 24 N 5 K 0 G 3 fp32 alpha 3");
  const Schedule schedule = spec::make_schedule(problem(3), "pushed", 2);
  EXPECT_EQ(spec::family_of(schedule), &kOperator.families[2]);
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

/// What the first task of this thread's next call does before it computes.
thread_local const std::function<void()>* inner_work = nullptr;
const spec::OperatorDef kNesting = [] {
  spec::OperatorDef def = kOperator;
  def.compute = [](const spec::HostTask& task) {
    if (const auto* work = std::exchange(inner_work, nullptr); work != nullptr) (*work)();
    kOperator.compute(task);
  };
  return def;
}();

/// A product of its own, of all ranks, on the channel of a call that has begun; what went wrong.
std::string multiply_inside(Channel& channel) {
  const int ranks = channel.team().size();
  std::vector<float> a(4 * 6, static_cast<float>(channel.team().rank() + 1)), b(6 * 5, 2.0F), y(4 * 5, -1.0F);
  const ops::CallArgs args{.tensors = {TensorView::contiguous(a.data(), DType::fp32, {4, 6}),
                                       TensorView::contiguous(b.data(), DType::fp32, {6, 5}),
                                       TensorView::contiguous(y.data(), DType::fp32, {4, 5}),
                                       {},
                                       {},
                                       {}}};
  const Schedule schedule = spec::make_schedule(ops::op_spec(channel, spec::kGemmAr, args), "serial");
  ops::call(channel, spec::kGemmAr, args, schedule);
  const auto want = static_cast<float>(12 * ranks * (ranks + 1) / 2);
  return std::count(y.begin(), y.end(), want) == std::ssize(y) ? "" : base::format("{}, wanted {}", y[0], want);
}

TEST(ScaleAg, MayCallOnItsChannelWhileItComputes) {
  for (const test::Mode mode : {test::Mode::threads, test::Mode::threads_adversary})
    for (const int ranks : {1, 2, 3})
      test::run_ranks(ranks, mode, [](Runtime& runtime) {
        Channel& channel = runtime.world().channel(StreamRef::cpu());
        const OpSpec op = problem(channel.team().size());
        Call outer(channel, spec::make_schedule(op, "pushed", 2), op, kNesting);
        int num_inner = 0;
        const std::function<void()> work = [&] {
          EXPECT_EQ(multiply_inside(channel), "");
          ++num_inner;
        };
        for (int64_t i = 1; i <= 4; ++i) {
          inner_work = &work;
          ASSERT_EQ(outer.run(i), "");
        }
        EXPECT_EQ(num_inner, 4);
      });
}

/// Both bind their memory to the same names of one program.
TEST(ScaleAg, MayCallWithItsScheduleWhileItComputes) {
  test::run_ranks(2, test::Mode::threads, [](Runtime& runtime) {
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    const OpSpec op = problem(2);
    const Schedule schedule = spec::make_schedule(op, "library");
    Call outer(channel, schedule, op, kNesting), inner(channel, schedule, op);
    int64_t call = 0;
    const std::function<void()> work = [&] { EXPECT_EQ(inner.run(100 + call), ""); };
    for (call = 1; call <= 4; ++call) {
      inner_work = call == 1 ? nullptr : &work;
      ASSERT_EQ(outer.run(call), "");
    }
  });
}

/// Six calls of a mutant: what is wrong in the first that is.
[[maybe_unused]] std::string run_mutant(const OpSpec& op, const Schedule& schedule, const test::Mutation& mutation,
                                        uint64_t seed) {
  return test::run_mutant(3, mutation, seed, [&](Runtime& runtime) {
    Call call(runtime.world().channel(StreamRef::cpu()), schedule, op);
    std::string said;
    for (int64_t i = 1; i <= 6 && said.empty(); ++i) said = call.run(i);
    if (said.empty()) runtime.world().barrier();
    return said;
  });
}

TEST(ScaleAg, ChecksTheArgumentsOfACall) {
  test::run_ranks(2, test::Mode::threads, [](Runtime& runtime) {
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    const auto rank = "; rank " + std::to_string(channel.team().rank());
    std::vector<float> x(3 * 5), y(6 * 5), b(5);
    const auto refusal = [&](const std::function<void(ops::CallArgs&)>& change) -> std::string {
      ops::CallArgs args{.tensors = {TensorView::contiguous(x.data(), DType::fp32, {3, 5}),
                                     TensorView::contiguous(y.data(), DType::fp32, {6, 5})},
                         .fields = {{"alpha", kAlpha}}};
      const Schedule schedule = spec::make_schedule(ops::op_spec(channel, kOperator, args), "pushed", 2);
      change(args);
      try {
        ops::call(channel, kOperator, args, schedule);
      } catch (const Error& error) {
        return error.what();
      }
      return "";
    };
    EXPECT_EQ(refusal([](ops::CallArgs&) {}), "");
    EXPECT_EQ(refusal([](ops::CallArgs& a) { a.tensors.pop_back(); }), "scale_ag: got 1 tensors, wanted 2" + rank);
    EXPECT_EQ(refusal([](ops::CallArgs& a) { a.tensors[0].sizes[0] = 2; }),
              "scale_ag: x must be (3, 5) as y's rows are split, got (2, 5)" + rank);
    EXPECT_EQ(refusal([](ops::CallArgs& a) {
                a.row_offsets = {0, 1, 6};
              }),
              "scale_ag: x must be (" + std::string(channel.team().rank() == 0 ? "1" : "5") +
                  ", 5) as row_offsets say, got (3, 5)" + rank);
    EXPECT_EQ(refusal([](ops::CallArgs& a) { a.tensors[1].sizes[1] = 4; }),
              "scale_ag: y must be (6, 5) to take all rows of x, got (6, 4)" + rank);
    EXPECT_EQ(refusal([](ops::CallArgs& a) { a.fields.clear(); }),
              "scale_ag: field 'alpha' is missing, wanted a number" + rank);
    EXPECT_EQ(refusal([](ops::CallArgs& a) { a.fields["alpha"] = int64_t{3}; }),
              "scale_ag: field 'alpha' is an integer, wanted a number" + rank);
    EXPECT_EQ(refusal([](ops::CallArgs& a) { a.fields["alpha"] = 4.0; }),
              "scale_ag: schedule pushed was made for alpha 3, the call has 4" + rank);
    EXPECT_EQ(refusal([](ops::CallArgs& a) { a.tensors[1].data = a.tensors[0].data; }),
              "scale_ag: y (6, 5) must not share memory with x (3, 5)" + rank);
    const auto name_refusal = [](const std::vector<std::pair<std::string_view, TensorView>>& tensors) -> std::string {
      try {
        (void)ops::named_tensors(kOperator, tensors);
      } catch (const Error& error) {
        return error.what();
      }
      return "";
    };
    const TensorView view = TensorView::contiguous(b.data(), DType::fp32, {5});
    EXPECT_EQ(name_refusal({{"y", view}, {"z", view}}), "scale_ag: no argument is called 'z', wanted x, y");
    EXPECT_EQ(name_refusal({{"y", view}, {"y", view}}), "scale_ag: y is given twice");
    EXPECT_EQ(ops::named_tensors(kOperator, {{"y", view}})[1].data, view.data);
  });
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

/// Its own function computes what is measured, and calls take the winner.
TEST(ScaleAg, IsTuned) {
  test::run_ranks(2, test::Mode::threads, [](Runtime& runtime) {
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    const Context context = Context::open(runtime, {.machine = "cpu2"});
    const OpSpec op = problem(2, 64, 16);
    EXPECT_EQ(context.plan(op)->candidate.family, "library");
    const int64_t before = num_computed;
    const TuneResult result = tune(context, channel, {op}, {.problem_ms = 20});
    EXPECT_GT(num_computed, before);
    ASSERT_EQ(result.tuned.size(), 1U);
    const Tuned& one = result.tuned[0];
    EXPECT_EQ(one.failure, "");
    EXPECT_GT(one.tuned_us, 0);
    EXPECT_GT(one.library_us, 0);
    const auto plan = context.plan(op);
    EXPECT_EQ(plan->tier, plan::Tier::probe) << plan->reason;
    EXPECT_EQ(plan->candidate, one.tuned);
    Call call(channel, plan->schedule, op);
    for (int64_t i = 1; i <= 3; ++i) ASSERT_EQ(call.run(i), "");
  });
}

}  // namespace
}  // namespace overlace::toy
