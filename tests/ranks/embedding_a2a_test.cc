// embedding_a2a on CPU ranks: every family against sums in fp64, modes, types, bounds, bad input, mutations, explorer.
#include "overlace/ops/embedding_a2a.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <set>

#include "overlace/error.h"
#include "overlace/machine.h"
#include "overlace/ops/call.h"
#include "overlace/plan.h"
#include "overlace/sim.h"
#include "overlace/team.h"
#include "src/base/format.h"
#include "src/sim/schedule/simulation.h"
#include "src/spec/families/placement.h"
#include "src/spec/machine.h"
#include "src/spec/operators.h"
#include "tests/ranks/embedding_case.h"
#include "tests/ranks/mutations.h"
#include "tests/ranks/support/explore.h"
#include "tests/ranks/support/run_ranks.h"

namespace overlace::test {
namespace {

using spec::OpSpec;
using spec::Schedule;

/// What a call on bad operands says on one rank; `change` breaks them.
std::string refusal(Channel& channel, const std::function<void(BagCall&, ops::EmbeddingA2aArgs&)>& change) {
  BagCall call(channel, spec::make_schedule(bag_problem(channel.team().size(), 6), "serial"), {});
  call.make_bags(1);
  ops::EmbeddingA2aArgs args = call.args();
  change(call, args);
  try {
    ops::run(channel, args, spec::make_schedule(bag_problem(channel.team().size(), 6), "serial"));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(EmbeddingA2a, HoldsAllChecks) {
  for (const std::string& family : spec::families("embedding_a2a"))
    for (const int ranks : {1, 2, 3, 4, 5, 8})
      for (const int64_t batch : {0, 3, 24})
        for (const int degree : {1, 3}) {
          const Schedule schedule = spec::make_schedule(bag_problem(ranks, batch), family, degree);
          const spec::CheckReport report =
              spec::check(schedule, spec::Machine{}, {.ranks = {}, .coverage = spec::gives_result(schedule)});
          EXPECT_EQ(report.to_string(), "") << family << " G " << ranks << " B " << batch << " q " << degree;
          EXPECT_EQ(Schedule::from_json(schedule.to_json()), schedule);
        }
}

/// S9 compares each column of the result with the pooled column that belongs there.
TEST(EmbeddingA2a, IsNotProvenWhereItIsWrong) {
  const auto codes_after = [](void (*change)(Schedule&)) {
    Schedule schedule = spec::make_schedule(bag_problem(3, 24), "hetero_unfused_1d", 2);
    change(schedule);
    return checks(schedule);
  };
  EXPECT_EQ(codes_after([](Schedule&) {}), "");
  EXPECT_EQ(codes_after([](Schedule& s) { std::erase_if(s.tasks, [](const auto& t) { return t.id == "take_own"; }); }),
            "S9");
  EXPECT_EQ(codes_after([](Schedule& s) {
              for (spec::Task& task : s.tasks)
                if (task.id == "take_own") task.writes[0].dims[1].begin = "local[f]";
            }),
            "S9")
      << "where columns lie in the pooled rows instead of the result";
  EXPECT_EQ(codes_after([](Schedule& s) {
              for (spec::Task& task : s.tasks)
                if (task.id == "pool_own") task.reads = {task.writes[0]};
            }),
            "S2");
}

class EmbeddingA2aRanks : public testing::TestWithParam<std::tuple<int, Mode>> {};

TEST_P(EmbeddingA2aRanks, EveryFamilyGivesTheExactResultInRepeatedCalls) {
  run_ranks(std::get<0>(GetParam()), std::get<1>(GetParam()), [](Runtime& runtime) {
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    const int ranks = channel.team().size();
    std::vector<int64_t> uneven(static_cast<size_t>(ranks) + 1, 11);  // all samples belong to the first two
    uneven[0] = 0, uneven[1] = ranks == 1 ? 11 : 4;
    for (const BagVariant& v : {BagVariant{}, BagVariant{.mode = "mean", .row_offsets = uneven}})
      for (const std::string& family : spec::families("embedding_a2a"))
        for (const int64_t batch : {24, 11, 1, 0}) {
          if (!v.row_offsets.empty() && batch != 11) continue;
          const Schedule schedule = spec::make_schedule(bag_problem(ranks, batch, v), family, 2);
          if (!spec::gives_result(schedule)) continue;
          BagCall call(channel, schedule, v);
          for (int64_t i = 1; i <= 4; ++i) ASSERT_EQ(call.run(i), "") << family << " B " << batch << " " << v.mode;
        }
  });
}

INSTANTIATE_TEST_SUITE_P(Teams, EmbeddingA2aRanks,
                         testing::Combine(testing::Range(1, 10), testing::ValuesIn(all_modes())), mode_test_name);

TEST(EmbeddingA2a, TakesEachModeTypeAndBound) {
  const std::vector<BagVariant> variants = {
      {.mode = "max"},
      {.bounds = "ignore"},
      {.mode = "mean", .bounds = "ignore"},
      {.bounds = "clamp"},
      {.mode = "max", .bounds = "zero_row"},
      {.bounds = "none", .index = DType::i32},
      {.has_factors = true},
      {.dtype = DType::bf16, .out_dtype = DType::bf16},
      {.mode = "mean", .dtype = DType::bf16, .out_dtype = DType::fp32, .index = DType::i32},
      {.mode = "mean", .dtype = DType::fp16, .out_dtype = DType::fp16},
      {.dtype = DType::fp64, .out_dtype = DType::fp64, .has_factors = true},
  };
  run_ranks(3, Mode::threads, [&](Runtime& runtime) {
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    for (const BagVariant& v : variants) {
      BagCall call(channel, spec::make_schedule(bag_problem(3, 13, v), "hetero_unfused_1d", 2), v);
      for (int64_t i = 1; i <= 3; ++i)
        ASSERT_EQ(call.run(i), "") << v.mode << " " << v.bounds << " " << dtype_name(v.dtype);
    }
  });
}

/// All ranks hear of it, and the team goes on.
TEST(EmbeddingA2a, NamesTheFirstBadIndexAndOffset) {
  run_ranks(2, Mode::threads, [](Runtime& runtime) {
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    const bool is_bad = channel.team().rank() == 1;
    const auto said = [&](const std::function<void(BagCall&)>& change) {
      return refusal(channel, [&](BagCall& call, ops::EmbeddingA2aArgs&) {
        if (is_bad) change(call);
      });
    };
    // Rank 1 has the features 1 to 4, in the order of the placement: table 1, then 2.
    const std::string index = said([](BagCall& call) {
      const size_t bag = 7;  // its second feature's second sample
      const auto begin = static_cast<size_t>(call.offsets()[bag]);
      if (call.offsets()[bag + 1] > call.offsets()[bag])
        call.indices()[begin] = 9;
      else
        call.indices().back() = 9;
    });
    EXPECT_NE(index.find("rank 1, feature "), std::string::npos) << index;
    EXPECT_NE(index.find("index is 9, wanted 0 to "), std::string::npos) << index;
    const std::string offset = said([](BagCall& call) { call.offsets()[1] = 1000; });
    EXPECT_NE(offset.find("offsets[1] is 1000, wanted 0 to "), std::string::npos) << offset;
    EXPECT_NE(said([](BagCall& call) { call.offsets()[0] = 1; }).find("offsets[0] is 1, wanted 0"), std::string::npos);
    EXPECT_EQ(said([](BagCall&) {}), "");
  });
}

/// Memory of zeros that takes room only where it is written.
class Zeros {
 public:
  explicit Zeros(size_t bytes)
      : bytes_(bytes),
        at_(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~Zeros() {
    if (is_there()) ::munmap(at_, bytes_);
  }
  Zeros(const Zeros&) = delete;
  Zeros& operator=(const Zeros&) = delete;
  bool is_there() const { return at_ != MAP_FAILED; }
  template <class T>
  T* as() const {
    return static_cast<T*>(at_);
  }

 private:
  const size_t bytes_;
  void* const at_;
};

/// One table of one column on each rank, whose rank pools both samples: result of the rank that has the sample.
std::string pool_pair(Channel& channel, const ops::EmbeddingA2aArgs& bags, int64_t rows, double want) {
  float out[2] = {-1, -1};
  ops::EmbeddingA2aArgs args = bags;
  args.batch = 2;
  args.placement = base::format(R"({{"tables":[{{"rows":{0},"dim":1}},{{"rows":{0},"dim":1}}],"features":[)"
                                R"({{"table":0,"rank":0,"column":0}},{{"table":1,"rank":1,"column":1}}]}})",
                                rows);
  args.out = TensorView::contiguous(out, DType::fp32, {1, 2});
  ops::run(channel, args, spec::make_schedule(op_spec(channel, args), "serial"));
  return out[0] == want && out[1] == want ? "" : base::format("got {} and {}, wanted {}", out[0], out[1], want);
}

TEST(EmbeddingA2a, ReachesEntriesAndRowsBehind2To31) {
  constexpr int64_t kEdge = int64_t{1} << 31, kLength = kEdge + 4, kRows = 2 * kEdge + 3;
  const Zeros weights(static_cast<size_t>(kRows) * 4), indices(static_cast<size_t>(kLength) * 8);
  if (!weights.is_there() || !indices.is_there()) GTEST_SKIP() << "this machine maps no memory that it may not have";
  const int64_t near_row = kEdge - 1, far_row = 2 * kEdge + 2;
  weights.as<float>()[near_row] = 3, weights.as<float>()[kEdge] = 5, weights.as<float>()[far_row] = 7;
  int64_t* const entry = indices.as<int64_t>() + kEdge;
  entry[-1] = far_row, entry[0] = near_row;                 // of sample 0
  entry[1] = kEdge, entry[2] = kRows, entry[3] = near_row;  // of sample 1; one is outside
  int64_t offsets[] = {kEdge - 1, kEdge + 1, kEdge + 4};
  run_ranks(2, Mode::threads, [&](Runtime& runtime) {
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    const ops::EmbeddingA2aArgs bags{.weights = TensorView::contiguous(weights.as<float>(), DType::fp32, {kRows}),
                                     .indices = TensorView::contiguous(indices.as<int64_t>(), DType::i64, {kLength}),
                                     .offsets = TensorView::contiguous(offsets, DType::i64, {3}),
                                     .bounds = "ignore"};
    EXPECT_EQ(pool_pair(channel, bags, kRows, channel.team().rank() == 0 ? 10 : 8), "");
  });
}

/// Whatever the bounds, what is no bag is an empty one, and an empty one is 0 of each mode.
TEST(EmbeddingA2a, BagsOfFallingOffsetsAreEmpty) {
  float weights[] = {3, 5, 7};
  run_ranks(2, Mode::threads, [&](Runtime& runtime) {
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    for (const char* mode : {"sum", "mean", "max"})
      for (const char* bounds : {"ignore", "clamp", "zero_row", "none"})
        for (std::vector<int64_t> offsets : {std::vector<int64_t>{2, 1, 2}, {4, 1, 2}, {-1, 1, 2}, {1, 1, 2}}) {
          int64_t indices[] = {0, 2, 1};  // the second bag is the 2
          const ops::EmbeddingA2aArgs bags{.weights = TensorView::contiguous(weights, DType::fp32, {3}),
                                           .indices = TensorView::contiguous(indices, DType::i64, {3}),
                                           .offsets = TensorView::contiguous(offsets.data(), DType::i64, {3}),
                                           .mode = mode,
                                           .bounds = bounds};
          EXPECT_EQ(pool_pair(channel, bags, 3, channel.team().rank() == 0 ? 0 : 7), "") << mode << " " << bounds;
        }
  });
}

TEST(EmbeddingA2a, RefusesArgumentsThatDoNotFit) {
  run_ranks(2, Mode::threads, [](Runtime& runtime) {
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    const auto says = [&](const char* text, const std::function<void(ops::EmbeddingA2aArgs&)>& change) {
      const std::string said = refusal(channel, [&](BagCall&, ops::EmbeddingA2aArgs& args) { change(args); });
      EXPECT_NE(said.find(text), std::string::npos) << said;
    };
    says("weights has 3 elements, wanted ", [](auto& a) { a.weights.sizes[0] = 3; });
    says("indices is fp32, wanted i32 or i64", [](auto& a) { a.indices.dtype = DType::fp32; });
    says("offsets must be one contiguous dimension, got none", [](auto& a) { a.offsets = {}; });
    says("per_sample_weights are given with mode mean, wanted mode sum", [](auto& a) {
      a.mode = "mean";
      a.per_sample_weights = a.weights;
    });
    says("mode is 'prod', wanted sum, mean or max", [](auto& a) { a.mode = "prod"; });
    says("bounds is 'wrap', wanted error, ignore, clamp, zero_row or none", [](auto& a) { a.bounds = "wrap"; });
    says("out must be (3, 19) as the batch is split, got (2, 19)", [](auto& a) { a.out.sizes[0] = 2; });
    says("placement: features is missing, wanted a list", [](auto& a) { a.placement = R"({"tables":[{}]})"; });
  });
}

TEST(EmbeddingA2a, RefusesAPlacementThatIsNone) {
  const auto says = [](const char* features, int64_t columns = 8) {
    const std::string text = base::format(R"({{"tables":[{{"rows":4,"dim":8}}],"features":[{}]}})", features);
    return std::string(spec::read_placement(text, 2, columns).status().message());
  };
  EXPECT_EQ(says(R"({"table":0,"rank":1,"column":0})"), "");
  EXPECT_EQ(says(R"({"table":1,"rank":1,"column":0})"), "placement: features[0].table is 1, wanted 0 to 0");
  EXPECT_EQ(says(R"({"table":0,"rank":2,"column":0})"), "placement: features[0].rank is 2, wanted 0 to 1");
  EXPECT_EQ(says(R"({"table":0,"column":0})"), "placement: features[0] has no rank");
  EXPECT_EQ(says(R"({"table":0,"rank":1.5,"column":0})"), "placement: features[0].rank is 1.5, wanted an integer");
  EXPECT_EQ(says(R"({"table":0,"rank":0,"column":0,"cols":1})"), "placement: features[0] has an unknown key 'cols'");
  EXPECT_EQ(says(R"({"table":0,"rank":0,"first":6,"width":3,"column":0})"),
            "placement: features[0].width is 3, wanted 1 to 2");
  EXPECT_EQ(says(R"({"table":0,"rank":0,"width":6,"column":0})"),
            "placement: columns 6 to 8 of the result have no features, wanted one");
  EXPECT_EQ(says(R"({"table":0,"rank":0,"column":0},{"table":0,"rank":1,"width":2,"column":6})"),
            "placement: columns 6 to 8 of the result have several features, wanted one");
}

/// Six calls of a mutant: what is wrong in the first that is.
[[maybe_unused]] std::string run_mutant(const Schedule& schedule, const Mutation& mutation, uint64_t seed) {
  return test::run_mutant(3, mutation, seed, [&](Runtime& runtime) {
    BagCall call(runtime.world().channel(StreamRef::cpu()), schedule, {});
    std::string said;
    for (int64_t i = 1; i <= 6 && said.empty(); ++i) said = call.run(i);
    if (said.empty()) runtime.world().barrier();
    return said;
  });
}

TEST(EmbeddingA2a, EachMutantIsCaught) {
  int num_mutants = 0;
  for (const Mutation& mutation : kMutations) {
    if (mutation.drops_fences) continue;  // the executor's, the same for all operators
    Schedule schedule = spec::make_schedule(bag_problem(3, 24), "hetero_unfused_1d", 2);
    mutation.prepare(schedule);
    EXPECT_EQ(checks(schedule), "") << mutation.name;
    if (!mutation.mutate(schedule)) continue;
    ++num_mutants;
    EXPECT_EQ(checks(schedule), mutation.code) << mutation.name;
#if !defined(__SANITIZE_THREAD__)
    std::string caught;
    for (uint64_t seed = 1; seed <= 400 && caught.empty(); ++seed) caught = run_mutant(schedule, mutation, seed);
    EXPECT_NE(caught, "") << mutation.name;
#endif
  }
  EXPECT_GE(num_mutants, 6);
}

TEST(EmbeddingA2a, HoldsOnPathsOfTheExplorer) {
  for (const char* family : {"serial", "hetero_unfused_1d"}) {
    const ExploreReport report =
        explore({.ranks = 3, .num_seeds = 10, .max_steps = 20000}, [&](Runtime& runtime) -> Protocol {
          const auto call = std::make_shared<BagCall>(runtime.world().channel(StreamRef::cpu()),
                                                      spec::make_schedule(bag_problem(3, 12), family, 2), BagVariant{});
          EXPECT_EQ(call->run(1), "");
          return [call] { return call->run(2) + call->run(3); };
        });
    EXPECT_EQ(report.failure, "") << family;
    EXPECT_GE(report.paths, 10u);
  }
}

TEST(EmbeddingA2a, IsSimulatedAndPlanned) {
  const spec::Machine machine = spec::find_machine("h200x4");
  const OpSpec op = bag_problem(4, 65536);
  const auto us = [&](const char* family, int degree) {
    return sim::simulate(spec::make_schedule(op, family, degree), machine).us();
  };
  EXPECT_GT(us("compute", 1), 0);
  EXPECT_GT(us("serial", 1), us("compute", 1));
  EXPECT_GT(us("limit", 1), 0);
  const sim::Simulation model;
  const plan::PlannerParts parts{.simulation = &model};
  const auto plan = plan::Planner(machine, parts).plan(op, {.limit = plan::Tier::simulation});
  EXPECT_EQ(plan->tier, plan::Tier::simulation) << plan->reason;
  std::set<std::string> families;
  for (const plan::Alternative& other : plan->others) {
    families.insert(other.candidate.family);
    EXPECT_DOUBLE_EQ(other.us, us(other.candidate.family.c_str(), other.candidate.degree));
  }
  EXPECT_EQ(families, (std::set<std::string>{"library", "serial", "hetero_unfused_1d"}));
  EXPECT_EQ(plan->candidate.family, plan->others.front().candidate.family) << plan->reason;
}

}  // namespace
}  // namespace overlace::test
