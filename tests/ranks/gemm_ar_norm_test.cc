// gemm_ar_norm on CPU ranks: every family against fp64, the same bits of all families and ranks, accuracy, bad input,
// mutations, explorer.
#include "overlace/ops/gemm_ar_norm.h"

#include <map>
#include <memory>
#include <mutex>

#include "overlace/error.h"
#include "overlace/machine.h"
#include "overlace/plan.h"
#include "src/ops/common/reference.h"
#include "src/sim/schedule/simulation.h"
#include "src/spec/costs.h"
#include "src/spec/machine.h"
#include "tests/ranks/mutations.h"
#include "tests/ranks/ops_cases.h"
#include "tests/ranks/support/explore.h"

namespace overlace::test {
namespace {

using spec::OpSpec;
using spec::Schedule;

struct Shape {
  int64_t m = 6, n = 5, k = 4;  // k of rank r has r % 2 more
  DType dtype = DType::fp32;
  bool bias = false;
  spec::BLayout layout = spec::BLayout::nk;
  int64_t gap = 0;
  double eps = 1e-5;

  std::string text() const {
    return base::format("M {} N {} K {} {}{}{}", m, n, k, dtype_name(dtype), bias ? " bias" : "",
                        layout == spec::BLayout::nk ? " nk" : " kn");
  }
};

OpSpec problem(const Shape& shape, int ranks, int rank = 0) {
  OpSpec op;
  op.op = "gemm_ar_norm";
  op.m = shape.m, op.n = shape.n, op.k = shape.k + rank % 2;
  op.ranks = ranks;
  op.dtype = op.out_dtype = shape.dtype;
  op.b_layout = shape.layout;
  op.bias = shape.bias;
  op.fields = {{"eps", shape.eps}};
  return op;
}

double rounded(double v, DType dtype) {
  uint64_t at = 0;
  base::store_element(&at, dtype, 0, v);
  return base::load_element(&at, dtype, 0);
}

/// One rank's operands, and a call.
class Call {
 public:
  Call(Channel& channel, const Shape& shape, Schedule schedule)
      : channel_(channel), shape_(shape), schedule_(std::move(schedule)), rank_(channel.team().rank()) {
    const int64_t k = shape.k + rank_ % 2;
    const bool is_nk = shape.layout == spec::BLayout::nk;
    a_ = Matrix(shape.m, k, shape.dtype, shape.gap);
    b_ = Matrix(is_nk ? shape.n : k, is_nk ? k : shape.n, shape.dtype, shape.gap);
    for (Matrix* matrix : {&residual_, &out_, &normed_}) *matrix = Matrix(shape.m, shape.n, shape.dtype, shape.gap);
    for (Matrix* vector : {&weight_, &bias_}) *vector = Matrix(1, shape.n, shape.dtype, 0);
  }

  /// Integers whose sums are exact, or fractions where not `is_exact`.
  void fill(int64_t seed, bool is_exact = true) {
    seed_ = seed, is_exact_ = is_exact;
    a_.fill([&](int64_t i, int64_t j) { return value(1, rank_, i, j); });
    b_.fill([&](int64_t i, int64_t j) {
      return shape_.layout == spec::BLayout::nk ? value(2, rank_, j, i) : value(2, rank_, i, j);
    });
    residual_.fill([&](int64_t i, int64_t j) { return value(3, 0, i, j); });
    bias_.fill([&](int64_t, int64_t j) { return value(4, 0, 0, j); });
    weight_.fill([&](int64_t, int64_t j) { return value(5, 0, 1, j) + 0.5; });
    for (Matrix* result : {&out_, &normed_}) result->fill([](int64_t, int64_t) { return NAN; });
  }
  ops::GemmArNormArgs args() {
    return {.a = a_.view,
            .b = shape_.layout == spec::BLayout::nk ? b_.view.transposed() : b_.view,
            .residual = residual_.view,
            .norm_weight = vector(weight_),
            .out = out_.view,
            .normed = normed_.view,
            .bias = shape_.bias ? vector(bias_) : TensorView{},
            .eps = shape_.eps};
  }
  void run() { ops::run(channel_, args(), schedule_); }
  void spoil_inputs() {
    for (Matrix* m : {&a_, &b_, &residual_, &weight_, &bias_}) m->fill([](int64_t, int64_t) { return NAN; });
  }

  /// The first wrong element of exact operands' results, in words; empty if all are right.
  std::string mismatch() {
    const std::vector<double> sums = exact_out();
    std::vector<double> kept(sums);
    for (double& x : kept) x = rounded(x, shape_.dtype);
    weight_.fill([&](int64_t, int64_t j) { return value(5, 0, 1, j) + 0.5; });
    const std::vector<double> normed = ops::rms_norm_reference(kept, vector(weight_), shape_.eps);
    // Some roundings in fp32 (fp64 of fp64), then one to the type.
    const double ulp = shape_.dtype == DType::bf16   ? 0x1p-8
                       : shape_.dtype == DType::fp16 ? 0x1p-11
                       : shape_.dtype == DType::fp32 ? 0x1p-21
                                                     : 0x1p-50;
    for (int64_t i = 0; i < shape_.m; ++i)
      for (int64_t j = 0; j < shape_.n; ++j) {
        const auto at = static_cast<size_t>(i * shape_.n + j);
        if (out_.get(i, j) != kept[at]) return wrong("out", i, j, out_.get(i, j), kept[at]);
        if (!(std::abs(normed_.get(i, j) - normed[at]) <= 1.01 * ulp * std::abs(normed[at])))
          return wrong("normed", i, j, normed_.get(i, j), normed[at]);
      }
    if (!out_.gaps_intact() || !normed_.gaps_intact()) return "wrote between rows";
    return "";
  }
  const Matrix& out() const { return out_; }
  const Matrix& normed() const { return normed_; }
  std::vector<char> bits() const {
    std::vector<char> all = out_.bytes(), more = normed_.bytes();
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  /// sum + residual in fp64, of operands as they are rounded.
  std::vector<double> exact_out() const {
    std::vector<double> out;
    for (int64_t i = 0; i < shape_.m; ++i)
      for (int64_t j = 0; j < shape_.n; ++j) {
        double sum = at(3, 0, i, j) + (shape_.bias ? at(4, 0, 0, j) : 0);
        for (int source = 0; source < channel_.team().size(); ++source)
          for (int64_t k = 0; k < shape_.k + source % 2; ++k) sum += at(1, source, i, k) * at(2, source, k, j);
        out.push_back(sum);
      }
    return out;
  }
  TensorView weight() const { return vector(weight_); }

 private:
  TensorView vector(const Matrix& matrix) const {
    return TensorView::contiguous(matrix.view.data, shape_.dtype, {shape_.n});
  }
  double value(uint64_t what, int64_t rank, int64_t i, int64_t j) const {
    if (is_exact_) return static_cast<double>(hashed(what, rank, i, j, seed_, shape_.dtype));
    return static_cast<double>(hash_of(what, rank, i, j, seed_) >> 11) * 0x1p-52 - 1;
  }
  double at(uint64_t what, int64_t rank, int64_t i, int64_t j) const {
    return rounded(value(what, rank, i, j), shape_.dtype);
  }
  std::string wrong(const char* what, int64_t i, int64_t j, double got, double want) const {
    return base::format("{}[{}, {}] of rank {} is {}, wanted {}", what, i, j, rank_, got, want);
  }

  Channel& channel_;
  const Shape shape_;
  const Schedule schedule_;
  const int rank_;
  int64_t seed_ = 0;
  bool is_exact_ = true;
  Matrix a_, b_, residual_, weight_, bias_, out_, normed_;
};

/// Hosts of equal size for families that know them.
spec::Params options_of(const std::string& family, int ranks) {
  if (family == "tma_slot") return {{"align", int64_t{2}}};
  return family == "hierarchical" ? spec::Params{{"hosts", hosts_of(ranks, 0)}} : spec::Params{};
}

TEST(GemmArNorm, HoldsAllChecks) {
  for (const std::string& family : spec::families("gemm_ar_norm"))
    for (const int ranks : {1, 2, 3, 5})
      for (const int64_t m : {0, 3, 24})
        for (const bool bias : {false, true}) {
          const int degree = bias ? 3 : 1;
          const Shape shape{.m = m, .n = 100, .bias = bias};
          const Schedule schedule =
              spec::make_schedule(problem(shape, ranks), family, degree, options_of(family, ranks));
          const spec::CheckReport report =
              spec::check(schedule, spec::Machine{}, {.ranks = {}, .coverage = spec::gives_result(schedule)});
          EXPECT_EQ(report.to_string(), "") << family << " G " << ranks << " M " << m << " q " << degree;
          EXPECT_EQ(Schedule::from_json(schedule.to_json()), schedule);
        }
}

TEST(GemmArNorm, IsNotProvenWhereItIsWrong) {
  for (const char* family : {"library", "serial", "grouped_unfused_1d", "one_shot", "tma_slot"}) {
    const auto codes_after = [&](void (*change)(spec::Task&)) {
      Schedule schedule = spec::make_schedule(problem({.m = 24, .n = 16}, 3), family, 2, options_of(family, 3));
      for (spec::Task& task : schedule.tasks)
        if (task.id == "norm") change(task);
      return checks(schedule);
    };
    EXPECT_EQ(codes_after([](spec::Task&) {}), "") << family;
    EXPECT_EQ(codes_after([](spec::Task& t) { t.reads[1].buffer = "Y"; }), "S9") << family << ": the sum twice";
    EXPECT_EQ(codes_after([](spec::Task& t) { t.reads.erase(t.reads.begin() + 1); }), "S9") << family;
    EXPECT_EQ(codes_after([](spec::Task& t) { std::swap(t.writes[0], t.writes[1]); }), "S9") << family;
    EXPECT_EQ(codes_after([](spec::Task& t) { t.params.erase("norm"); }), "S2") << family;
    EXPECT_EQ(codes_after([](spec::Task& t) { t.reads[2].dims[0].count = "N-1"; }), "S2") << family;
    EXPECT_EQ(codes_after([](spec::Task& t) {
                for (std::vector<spec::Region>* regions : {&t.reads, &t.writes})
                  for (spec::Region& region : *regions) region.dims.back().count = "N-1";
              }),
              "S9")
        << family << ": rows without their last column";
    EXPECT_EQ(codes_after([](spec::Task& t) { t.deps.clear(); }), "S5") << family << ": before the sums";
  }
}

/// A broadcast reads the sums from where the norm writes.
TEST(GemmArNorm, WaitsForThoseWhoReadTheSums) {
  for (const char* family : {"serial", "grouped_fused_1d", "hetero_unfused_1d"}) {
    Schedule schedule = spec::make_schedule(problem({.m = 24}, 3), family, 2);
    for (spec::Task& task : schedule.tasks) {
      if (task.id != "norm") continue;
      EXPECT_EQ(std::erase(task.deps, "broadcast"), 1u) << family;
    }
    EXPECT_EQ(checks(schedule), "S5") << family;
  }
}

class GemmArNormRanks : public testing::TestWithParam<std::tuple<int, Mode>> {};

TEST_P(GemmArNormRanks, EveryFamilyGivesTheExactSumAndTheSameBits) {
  const auto [ranks, mode] = GetParam();
  if (mode == Mode::processes && !kHasProcesses) GTEST_SKIP() << "ranks are threads under ThreadSanitizer";
  std::mutex mutex;
  std::map<std::string, std::vector<char>> bits;  // of a shape and a call, whatever family and rank
  run_ranks(ranks, mode, [&, mode = mode, ranks = ranks](Runtime& runtime) {
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    const Shape shapes[] = {{.m = 13, .bias = true},
                            {.m = 8, .n = 1100, .k = 3, .dtype = DType::bf16},
                            {.m = 5, .n = 64, .dtype = DType::fp16, .bias = true, .layout = spec::BLayout::kn},
                            {.m = 6, .n = 7, .k = 0, .dtype = DType::fp64, .gap = 3},
                            {.m = 1, .n = 1},
                            {.m = 0},
                            {.m = 3, .n = 0}};
    for (const Shape& shape : shapes)
      for (const std::string& family : spec::families("gemm_ar_norm")) {
        // Every second shape where ranks are not plain threads, the others with one rank more.
        if (mode != Mode::threads && (&shape - shapes + ranks) % 2 != 0) continue;
        const Schedule schedule = spec::make_schedule(problem(shape, channel.team().size(), channel.team().rank()),
                                                      family, 2, options_of(family, channel.team().size()));
        if (!spec::gives_result(schedule)) continue;
        Call call(channel, shape, schedule);
        for (int64_t i = 1; i <= 3; ++i) {
          call.fill(i);
          call.run();
          call.spoil_inputs();  // they are ours again
          ASSERT_EQ(call.mismatch(), "") << family << " " << shape.text() << " call " << i;
          const std::lock_guard lock(mutex);
          const auto [first, is_first] = bits.emplace(base::format("{} {}", shape.text(), i), call.bits());
          ASSERT_TRUE(first->second == call.bits()) << family << " " << shape.text() << " call " << i;
        }
      }
  });
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)  // with more ranks it takes minutes there
constexpr int kMostRanks = 3;
#else
constexpr int kMostRanks = 5;
#endif

INSTANTIATE_TEST_SUITE_P(Teams, GemmArNormRanks,
                         testing::Combine(testing::Range(1, kMostRanks + 1), testing::ValuesIn(all_modes())),
                         mode_test_name);

/// At most twice the error of gemm_ar by the library, then a sum and a norm that are rounded as often.
TEST(GemmArNorm, IsAsAccurateAsItsParts) {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16})
    run_ranks(3, Mode::threads, [&](Runtime& runtime) {
      Channel& channel = runtime.world().channel(StreamRef::cpu());
      const Shape shape{.m = 9, .n = 1500, .k = 40, .dtype = dtype, .bias = true};
      OpSpec parts = problem(shape, 3, channel.team().rank());
      Call call(channel, shape, spec::make_schedule(parts, "hetero_unfused_1d", 2));
      call.fill(1, /*is_exact=*/false);
      call.run();
      parts.op = "gemm_ar", parts.fields.clear();
      const ops::GemmArNormArgs args = call.args();
      Matrix sum(shape.m, shape.n, dtype, 0);
      ops::run(channel, ops::GemmArArgs{.a = args.a, .b = args.b, .out = sum.view, .bias = args.bias},
               spec::make_schedule(parts, "library"));
      const std::vector<double> exact = call.exact_out();
      const std::vector<double> wanted = ops::rms_norm_reference(exact, call.weight(), shape.eps);
      std::vector<double> kept;
      for (int64_t i = 0; i < shape.m; ++i)
        for (int64_t j = 0; j < shape.n; ++j)
          kept.push_back(rounded(sum.get(i, j) + ops::element(args.residual, i, j), dtype));
      const std::vector<double> normed = ops::rms_norm_reference(kept, call.weight(), shape.eps);
      double error = 0, of_parts = 0, norm_error = 0, norm_of_parts = 0;
      for (size_t at = 0; at < exact.size(); ++at) {
        const auto i = static_cast<int64_t>(at) / shape.n, j = static_cast<int64_t>(at) % shape.n;
        error = std::max(error, std::abs(call.out().get(i, j) - exact[at]));
        of_parts = std::max(of_parts, std::abs(kept[at] - exact[at]));
        norm_error = std::max(norm_error, std::abs(call.normed().get(i, j) - wanted[at]));
        norm_of_parts = std::max(norm_of_parts, std::abs(rounded(normed[at], dtype) - wanted[at]));
      }
      EXPECT_GT(of_parts, 0);
      EXPECT_LE(error, 2 * of_parts) << dtype_name(dtype);
      EXPECT_LE(norm_error, 2 * norm_of_parts) << dtype_name(dtype);
    });
}

TEST(GemmArNorm, RefusesArgumentsThatDoNotFit) {
  run_ranks(2, Mode::threads, [](Runtime& runtime) {
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    const auto says = [&](const std::string& text, const std::function<void(ops::GemmArNormArgs&)>& change) {
      Call call(channel, {.k = 4}, spec::make_schedule(problem({}, 2, channel.team().rank()), "serial"));
      call.fill(1);
      ops::GemmArNormArgs args = call.args();
      change(args);
      std::string said = "ok";
      try {
        ops::run(channel, args, spec::make_schedule(problem({}, 2, channel.team().rank()), "serial"));
      } catch (const Error& error) {
        said = std::string(errc_name(error.code())) + ": " + error.what();
      }
      EXPECT_NE(said.find(text), std::string::npos) << said << "; wanted " << text;
    };
    says("invalid_argument: gemm_ar_norm: residual must be (6, 5) as the sum, got (5, 5)",
         [](auto& a) { a.residual.sizes[0] = 5; });
    says("residual must have the dtype of a (fp32), got bf16", [](auto& a) { a.residual.dtype = DType::bf16; });
    says("residual must have 2 dimensions, got 0", [](auto& a) { a.residual = {}; });
    says("norm_weight must be (5) to take N of b, got (4)", [](auto& a) { a.norm_weight.sizes[0] = 4; });
    says("norm_weight must have the dtype of a (fp32), got fp16", [](auto& a) { a.norm_weight.dtype = DType::fp16; });
    says("norm_weight must be contiguous, got stride 2", [](auto& a) { a.norm_weight.strides[0] = 2; });
    says("normed must be (6, 5) as out, got (6, 4)", [](auto& a) { a.normed.sizes[1] = 4; });
    says("normed must have the dtype of a (fp32) or fp32, got fp16", [](auto& a) { a.normed.dtype = DType::fp16; });
    says("normed must have the dtype of out (bf16), got fp32", [](auto& a) {
      for (TensorView* t : {&a.a, &a.b, &a.residual, &a.norm_weight, &a.out}) t->dtype = DType::bf16;
    });
    says("invalid_argument: gemm_ar_norm: out is fp32, wanted bf16 as a: residual and results have one type",
         [](auto& a) {
           for (TensorView* t : {&a.a, &a.b, &a.residual, &a.norm_weight}) t->dtype = DType::bf16;
         });
    says("normed (6, 5) must not share memory with out (6, 5)", [](auto& a) { a.normed = a.out; });
    says("out (6, 5) must not share memory with residual (6, 5)", [](auto& a) { a.out = a.residual; });
    says("invalid_argument: gemm_ar_norm: eps is 0, wanted a finite number above 0", [](auto& a) { a.eps = 0; });
    says("eps is -1, wanted a finite number above 0", [](auto& a) { a.eps = -1; });
    says("eps is nan, wanted a finite number above 0", [](auto& a) { a.eps = NAN; });
    says("plan_mismatch: gemm_ar_norm: schedule serial_ar_norm was made for eps", [](auto& a) { a.eps = 1; });
    says("ok", [](auto&) {});
  });
}

TEST(GemmArNorm, RefusesProblemsWithoutANorm) {
  const auto said = [](const std::function<void(OpSpec&)>& change) {
    OpSpec op = problem({}, 2);
    change(op);
    try {
      (void)spec::make_schedule(op, "serial");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("ok");
  };
  EXPECT_NE(said([](OpSpec& op) { op.fields.clear(); }).find("field 'eps' is missing, wanted a number"),
            std::string::npos);
  EXPECT_NE(said([](OpSpec& op) { op.fields["eps"] = 0.0; }).find("eps is 0, wanted a finite number above 0"),
            std::string::npos);
  EXPECT_NE(said([](OpSpec& op) { op.dtype = DType::bf16; }).find("out is fp32, wanted bf16 as a: residual"),
            std::string::npos);
  EXPECT_EQ(said([](OpSpec&) {}), "ok");
}

TEST(GemmArNorm, EachMutantIsCaughtByTheChecks) {
  int num_mutants = 0;
  for (const Mutation& mutation : kMutations) {
    if (mutation.drops_fences) continue;  // the executor's, the same for all operators
    Schedule schedule = spec::make_schedule(problem({.m = 24}, 3), "uniform_fused_1d", 2);
    mutation.prepare(schedule);
    EXPECT_EQ(checks(schedule), "") << mutation.name;
    if (!mutation.mutate(schedule)) continue;
    ++num_mutants;
    // As in gemm_ar every rank waits for the sums of all owners, so that one buffer needs no credit.
    EXPECT_EQ(checks(schedule), mutation.mutate == skipped_credit ? "" : mutation.code) << mutation.name;
  }
  EXPECT_GE(num_mutants, 6);
}

TEST(GemmArNorm, HoldsOnPathsOfTheExplorer) {
  for (const char* family : {"serial", "hetero_unfused_1d"}) {
    const ExploreReport report =
        explore({.ranks = 3, .num_seeds = 10, .max_steps = 20000}, [&](Runtime& runtime) -> Protocol {
          Channel& channel = runtime.world().channel(StreamRef::cpu());
          const auto call = std::make_shared<Call>(
              channel, Shape{}, spec::make_schedule(problem({}, 3, channel.team().rank()), family, 2));
          const auto once = [call](int64_t seed) {
            call->fill(seed);
            call->run();
            return call->mismatch();
          };
          EXPECT_EQ(once(1), "");
          return [once] { return once(2) + once(3); };
        });
    EXPECT_EQ(report.failure, "") << family;
    EXPECT_GE(report.paths, 10u);
  }
}

/// Simulator and planner see the norm: of 4 passes over M x N, in every family.
TEST(GemmArNorm, IsSimulatedAndPlanned) {
  const spec::Machine machine = spec::find_machine("h200x2");
  const Shape shape{.m = 2048, .n = 8192, .k = 2048, .dtype = DType::bf16};
  const OpSpec op = problem(shape, 2);
  OpSpec sums = op;
  sums.op = "gemm_ar", sums.fields.clear();
  const double norm_us = spec::reduce_us(machine, 4.0 * 2048 * 8192 * 2);
  for (const char* family : {"compute", "serial", "hetero_unfused_1d", "grouped_unfused_1d", "tma_slot"}) {
    const double with = sim::simulate(spec::make_schedule(op, family, 4), machine).us();
    const double without = sim::simulate(spec::make_schedule(sums, family, 4), machine).us();
    EXPECT_GT(with, without + norm_us) << family;
    EXPECT_LT(with, without + 1.5 * norm_us + 10) << family;
  }
  plan::Planner planner(machine);
  const auto with = planner.plan(op), without = planner.plan(sums);
  EXPECT_EQ(with->candidate.family, without->candidate.family) << with->reason;
  ASSERT_FALSE(with->others.empty());
  for (size_t i = 0; i < with->others.size(); ++i)
    EXPECT_NEAR(with->others[i].us - without->others[i].us, norm_us + machine.latency.launch_us.value, 1e-6);
}

}  // namespace
}  // namespace overlace::test
