// Schedules and steps with one rule broken. Each mutant must be caught: by the static checks, or when it runs under the
// adversary. docs/design/testing.md has the table.
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "src/exec/run.h"
#include "src/ops/common/bodies.h"
#include "src/runtime/backend/cpu/observer.h"
#include "src/spec/check.h"
#include "tests/ranks/whole_cases.h"

namespace overlace::test {
namespace {

using spec::Schedule;
using spec::Task;

/// Copies to peers that say when they have arrived.
bool is_push(const Task& task) {
  return task.kind == spec::Kind::copy && !task.sets.empty() && !task.writes.empty() && task.writes[0].at.text() != "r";
}

std::string parenthesised(const spec::Expr& expr) { return "(" + expr.text() + ")"; }

// ---- mutations: change the schedule and say whether there was anything to change ----

using Mutate = bool (*)(Schedule&);

bool change_tasks(Schedule& schedule, const std::function<bool(Task&)>& change) {
  bool is_changed = false;
  for (Task& task : schedule.tasks) is_changed |= change(task);
  return is_changed;
}

/// The flag leaves before the copy: a copy of nothing in front of each push sets it.
bool early_signal(Schedule& schedule) {
  std::vector<Task> tasks;
  for (Task& task : schedule.tasks) {
    if (is_push(task)) {
      Task flag = task;
      flag.id += "_flag";
      for (std::vector<spec::Region>* regions : {&flag.reads, &flag.writes})
        for (spec::Region& region : *regions)
          for (spec::Range& range : region.dims) range.count = 0;
      flag.order = spec::Expr("2*" + parenthesised(task.order));
      task.order = spec::Expr("2*" + parenthesised(task.order) + "+1");
      task.sets.clear();
      tasks.push_back(std::move(flag));
    }
    tasks.push_back(task);
  }
  const bool is_changed = tasks.size() != schedule.tasks.size();
  schedule.tasks = std::move(tasks);
  return is_changed;
}

/// The copies of a lane go in reverse, their flags in the old order: each flag says that another copy has arrived.
bool swapped_flags(Schedule& schedule) {
  const auto degree = schedule.params.find("q");
  if (degree == schedule.params.end() || degree->second == spec::Param(int64_t{1})) return false;  // nothing to swap
  return change_tasks(schedule, [&](Task& task) {
    if (!is_push(task)) return false;
    bool is_changed = false;
    for (spec::Set& set : task.sets)
      for (const spec::SignalDecl& signal : schedule.signals) {
        if (signal.name != set.signal || signal.slots.text() == "1") continue;
        set.slot = spec::Expr(parenthesised(signal.slots) + "-1-" + parenthesised(set.slot));
        is_changed = true;
      }
    if (is_changed) task.order = spec::Expr("0-" + parenthesised(task.order));
    return is_changed;
  });
}

bool missing_signal(Schedule& schedule) {
  return change_tasks(schedule, [](Task& task) {
    if (!is_push(task)) return false;
    task.sets.clear();
    return true;
  });
}

/// Consumers do not wait for data.
bool missing_wait(Schedule& schedule) {
  return change_tasks(schedule, [](Task& task) {
    return std::erase_if(task.waits, [](const spec::Wait& wait) { return !wait.previous; }) != 0;
  });
}

bool missing_dependency(Schedule& schedule) {
  return change_tasks(schedule, [](Task& task) {
    const bool is_changed = is_push(task) && !task.deps.empty();
    if (is_changed) task.deps.clear();
    return is_changed;
  });
}

bool has_credits(const Schedule& schedule) {
  for (const Task& task : schedule.tasks)
    for (const spec::Wait& wait : task.waits)
      if (wait.previous) return true;
  return false;
}

/// With one buffer in place of two only the credits protect it.
void one_buffer(Schedule& schedule) {
  if (!has_credits(schedule)) return;
  for (spec::Buffer& buffer : schedule.buffers) buffer.depth = 1;
}

bool skipped_credit(Schedule& schedule) {
  return change_tasks(schedule, [](Task& task) {
    return std::erase_if(task.waits, [](const spec::Wait& wait) { return wait.previous; }) != 0;
  });
}

bool missing_credit(Schedule& schedule) {
  if (!has_credits(schedule)) return false;
  return change_tasks(schedule, [](Task& task) {
    return std::erase_if(task.sets,
                         [](const spec::Set& set) { return set.signal.find("credit") != set.signal.npos; }) != 0;
  });
}

bool nothing(Schedule&) { return true; }
void as_is(Schedule&) {}

/// Leaves fences out.
class NoFences final : public runtime::Observer {
 public:
  bool before(const runtime::Step& step) override { return step.kind != runtime::Step::Kind::fence; }
};

struct Mutation {
  const char* name;
  Mutate mutate;
  void (*prepare)(Schedule&);  // of the schedule before it is broken
  const char* code;            // of the static check that finds it; "": none can
  bool drops_fences = false;
  int64_t timeout_ms = 10000;
};

const Mutation kMutations[] = {
    {"dropped_fence", nothing, as_is, "", true},          {"early_signal", early_signal, as_is, "S5"},
    {"swapped_flags", swapped_flags, as_is, "S5"},        {"missing_signal", missing_signal, as_is, "S4", false, 150},
    {"missing_wait", missing_wait, as_is, "S5"},          {"missing_dependency", missing_dependency, as_is, "S5"},
    {"skipped_credit", skipped_credit, one_buffer, "S6"}, {"missing_credit", missing_credit, one_buffer, "S4"},
};

/// In gemm_ar every rank waits at the end of a call until all owners have sent their sums, so its parts have been read:
/// even one buffer needs no credits.
bool is_harmless(const std::string& op, const Mutation& mutation) {
  return op == "gemm_ar" && mutation.prepare == one_buffer;
}

// ---- who catches it ----

/// Codes of the errors that the static checks find.
std::string checks(const Schedule& schedule) {
  std::set<std::string> codes;
  for (const spec::Finding& finding : spec::check(schedule, spec::Machine{}).findings)
    if (finding.is_error) codes.insert(finding.code);
  std::string text;
  for (const std::string& code : codes) text += (text.empty() ? "" : " ") + code;
  return text;
}

/// Six calls with one seed of the adversary: the first wrong element or error of any rank, "" if all was right.
std::string run(const Case& c, const Schedule& schedule, const Mutation& mutation, uint64_t seed) {
  RankOptions options;
  options.timeout_ms = mutation.timeout_ms;
  options.checks_end = false;
  options.adversary = AdversaryOptions::parse("delay_us=200,seed=" + std::to_string(seed));
  std::mutex mutex;
  std::string first;
  NoFences no_fences;
  const auto body = [&](Runtime& runtime) {
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    Operands operands(c, channel);
    std::string said;
    for (int64_t call = 1; call <= 6 && said.empty(); ++call) {
      operands.fill(call);
      const base::Status status =
          exec::run(channel, schedule, c.text(),
                    {{"A", operands.a()}, {"B", operands.b()}, {spec::gathers(c.op) ? "C" : "Y", operands.out().view}},
                    ops::bodies(channel));
      said = status.ok() ? operands.mismatch() : status.message();
      if (call == 1 && mutation.drops_fences) runtime::observe(runtime, &no_fences);
    }
    if (said.empty()) {
      runtime.world().barrier();
      runtime::observe(runtime, nullptr);
      runtime.close();
      return;
    }
    {
      const std::lock_guard lock(mutex);
      if (first.empty()) first = said;
    }
    runtime.abort(Errc::aborted, "caught");
  };
  run_bootstraps(kWholeRanks, Mode::threads_adversary, [&](Bootstrap& bootstrap) {
    Runtime runtime = Runtime::open(bootstrap, runtime_options(Mode::threads_adversary, options));
    try {
      body(runtime);
    } catch (const Error& error) {
      const std::lock_guard lock(mutex);
      if (first.empty()) first = error.what();
    }
  });
  return first;
}

/// A mutation of one operator's schedules.
struct Mutant {
  const char* op;
  const Mutation* mutation;
};
std::vector<Mutant> mutants() {
  std::vector<Mutant> all;
  for (const char* op : {"ag_gemm", "ag_wgrad", "gemm_rs", "gemm_ar"})
    for (const Mutation& mutation : kMutations) all.push_back({op, &mutation});
  return all;
}
void PrintTo(const Mutant& one, std::ostream* out) { *out << one.op << " " << one.mutation->name; }

class MutationTest : public testing::TestWithParam<Mutant> {
 protected:
  /// Whole schedules of the operator, before they are broken.
  template <class F>
  void for_each_family(F use) {
    const std::string op = GetParam().op;
    const Mutation& mutation = *GetParam().mutation;
    for (const std::string& family : whole_families(op)) {
      const Case c = case_of(op, family);
      Schedule schedule = spec::make_schedule(spec_of(c), family, c.degree);
      mutation.prepare(schedule);
      use(c, std::move(schedule), mutation);
    }
  }
};

TEST_P(MutationTest, TheStaticChecksFindIt) {
  for_each_family([](const Case& c, Schedule schedule, const Mutation& mutation) {
    EXPECT_EQ(checks(schedule), "") << c.text();
    if (!mutation.mutate(schedule)) return;
    const bool is_found = !is_harmless(c.op, mutation) || std::string(mutation.code) == "S4";
    EXPECT_EQ(checks(schedule), is_found ? mutation.code : "") << c.text();
  });
}

TEST_P(MutationTest, TheAdversaryCatchesIt) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the mutants are data races";
#endif
  constexpr uint64_t kSeeds = 400, kHarmlessSeeds = 5;  // most are caught by the first; cores and sanitizers decide
  int num_mutants = 0;
  for_each_family([&](const Case& c, Schedule schedule, const Mutation& mutation) {
    EXPECT_EQ(run(c, schedule, {"sound", nothing, as_is, ""}, 1), "") << c.text();
    if (!mutation.mutate(schedule)) return;
    ++num_mutants;
    std::string caught;
    const bool is_caught = !is_harmless(c.op, mutation);
    for (uint64_t seed = 1; seed <= (is_caught ? kSeeds : kHarmlessSeeds) && caught.empty(); ++seed)
      caught = run(c, schedule, mutation, seed);
    EXPECT_EQ(!caught.empty(), is_caught) << mutation.name << " of " << c.text() << ": " << caught;
  });
  const bool has_none = spec::gathers(GetParam().op) &&
                        GetParam().mutation->name == std::string("missing_dependency");  // its copies need none
  EXPECT_EQ(num_mutants == 0, has_none) << num_mutants;
}

INSTANTIATE_TEST_SUITE_P(Protocols, MutationTest, testing::ValuesIn(mutants()),
                         [](const auto& test) { return std::string(test.param.op) + "_" + test.param.mutation->name; });

}  // namespace
}  // namespace overlace::test
