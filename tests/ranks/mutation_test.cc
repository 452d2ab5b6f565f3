// Schedules and steps with one rule broken. Each mutant must be caught: by the static checks, or when it runs under the
// adversary. docs/design/testing.md has the table.
#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "src/exec/run.h"
#include "src/ops/common/bodies.h"
#include "src/runtime/backend/cpu/observer.h"
#include "src/spec/kernel_parts.h"
#include "src/spec/operators.h"
#include "tests/ranks/mutations.h"
#include "tests/ranks/whole_cases.h"
#include "tests/unit/spec/operators.h"

namespace overlace::test {
namespace {

/// Leaves fences out.
class NoFences final : public runtime::Observer {
 public:
  bool before(const runtime::Step& step) override { return step.kind != runtime::Step::Kind::fence; }
};

/// In gemm_ar every rank waits at the end of a call until all owners have sent their sums, so its parts have been read:
/// even one buffer needs no credits.
bool is_harmless(const std::string& op, const Mutation& mutation) {
  return op == "gemm_ar" && mutation.prepare == one_buffer;
}

// ---- who catches it ----

/// Six calls with one seed of the adversary: the first wrong element or error of any rank, "" if all was right.
std::string run(const Case& c, const Schedule& schedule, const Mutation& mutation, uint64_t seed) {
  NoFences no_fences;
  return run_mutant(kWholeRanks, mutation, seed, [&](Runtime& runtime) {
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    Operands operands(c, channel);
    std::string said;
    for (int64_t call = 1; call <= 6 && said.empty(); ++call) {
      operands.fill(call);
      const base::Status status = exec::run(
          channel, schedule, c.text(),
          {{"A", operands.a()}, {"B", operands.b()}, {result_of(c.op), operands.out().view}}, ops::bodies(channel));
      said = status.ok() ? operands.mismatch() : status.message();
      if (call == 1 && mutation.drops_fences) runtime::observe(runtime, &no_fences);
    }
    if (!said.empty()) return said;
    runtime.world().barrier();
    runtime::observe(runtime, nullptr);
    return said;
  });
}

/// A mutation of one operator's schedules.
struct Mutant {
  std::string op;
  const Mutation* mutation;
};
std::vector<Mutant> mutants() {
  std::vector<Mutant> all;
  for (const std::string& op : test::all_operators())
    for (const Mutation& mutation : kMutations) all.push_back({op, &mutation});
  return all;
}
void PrintTo(const Mutant& one, std::ostream* out) { *out << one.op << " " << one.mutation->name; }

class MutationTest : public testing::TestWithParam<Mutant> {
 protected:
  /// Whole schedules of the operator, before they are broken.
  template <class F>
  void for_each_family(F use) {
    const Mutation& mutation = *GetParam().mutation;
    for (const Case& c : whole_cases(GetParam().op)) {
      Schedule schedule = spec::make_schedule(spec_of(c), c.family, c.degree);
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

/// Whether a fused kernel does all that the schedule says, on each rank.
bool is_done_by_kernel(const Schedule& schedule) {
  const std::vector<spec::Expansion> all = spec::expand_all(schedule, kWholeRanks).value();
  for (const spec::Expansion& of_rank : all)
    if (!spec::check_kernel(schedule, of_rank).ok()) return false;
  return true;
}

std::vector<Task> parts_of(const Schedule& schedule) {
  std::vector<Task> out;
  std::ranges::copy_if(schedule.tasks, std::back_inserter(out), spec::is_part);
  return out;
}

/// On GPUs, where what is drawn of a list does what the kernel does and not what the schedule says.
TEST(MutationsOfKernels, AreRefusedBeforeTheyRun) {
  int refused = 0;
  for (const Mutant& one : mutants()) {
    for (const Case& c : whole_cases(one.op)) {
      Schedule schedule = spec::make_schedule(spec_of(c), c.family, c.degree);
      if (!std::ranges::any_of(schedule.tasks, spec::is_part)) continue;
      EXPECT_TRUE(is_done_by_kernel(schedule)) << c.text();
      // What drops fences changes no schedule, and what copy lanes do is not the kernel's.
      const std::vector<Task> parts = parts_of(schedule);
      if (one.mutation->drops_fences || !one.mutation->mutate(schedule) || parts_of(schedule) == parts) continue;
      EXPECT_FALSE(is_done_by_kernel(schedule)) << c.text() << ", " << one.mutation->name;
      ++refused;
    }
  }
  EXPECT_EQ(refused, 26) << "of six kernels and seven mutations; the others find nothing to change, such as credits";
}

INSTANTIATE_TEST_SUITE_P(Protocols, MutationTest, testing::ValuesIn(mutants()),
                         [](const auto& test) { return test.param.op + "_" + test.param.mutation->name; });

}  // namespace
}  // namespace overlace::test
