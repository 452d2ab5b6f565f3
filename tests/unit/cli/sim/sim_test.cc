#include "cli/sim/sim.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <random>
#include <utility>

#include "overlace/error.h"
#include "src/base/file.h"
#include "src/base/json.h"
#include "src/ops/fused/choose.h"
#include "src/spec/fused_pod.h"
#include "src/spec/machine.h"
#include "src/spec/operators.h"

namespace overlace::cli {
namespace {

class SimCommand : public testing::Test {
 protected:
  SimCommand() {
    char name[] = "/tmp/overlace_sim_XXXXXX";
    if (::mkdtemp(name) == nullptr) throw std::runtime_error("mkdtemp failed");
    folder_ = name;
  }
  ~SimCommand() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  base::Json json(const std::string& name) const {
    return base::Json::parse(base::read_file(path(name)).value(), name).value();
  }
  SimWords words() const {
    SimWords w;
    w.m = 1024;
    w.n = 512;
    w.k = 256;
    w.json = path("out.json");
    return w;
  }

 private:
  std::string folder_;
};

TEST_F(SimCommand, RunWritesTimesAndATimelineThatDiffReads) {
  SimWords w = words();
  w.seeds = 4;
  w.trace = path("a.pftrace");
  testing::internal::CaptureStdout();
  EXPECT_EQ(sim_run(w), 0);
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_NE(text.find("ag_gemm hetero_unfused_1d: "), std::string::npos) << text;
  const base::Json out = json("out.json");
  EXPECT_GE(out.find("us")->as_double(), out.find("bound_us")->as_double());
  EXPECT_GE(out.find("p95_us")->as_double(), out.find("p50_us")->as_double());
  EXPECT_EQ(out.find("bytes")->as_array().size(), 4u);

  w.degree = 1;
  w.trace = path("b.json");
  w.ranks = 4;
  w.machine = std::string(OVERLACE_SOURCE_DIR) + "/tests/golden/sim/machine.json";
  testing::internal::CaptureStdout();
  EXPECT_EQ(sim_run(w), 0);
  DiffWords diff;
  diff.first = path("a.pftrace");
  diff.second = diff.first;
  diff.max_median = 0;
  EXPECT_EQ(trace_diff(diff), 0);
  diff.second = path("b.json");
  diff.json = path("diff.json");
  EXPECT_EQ(trace_diff(diff), 1);  // another machine: more than nothing apart
  const size_t all = json("diff.json").find("rows")->as_array().size();
  diff.rank = 2;
  diff.match = "kind";
  EXPECT_EQ(trace_diff(diff), 1);
  (void)testing::internal::GetCapturedStdout();
  EXPECT_GT(json("diff.json").find("median")->as_double(), 0);
  const base::Json one = json("diff.json");
  EXPECT_EQ(one.find("rows")->as_array().size() * 4, all);
  for (const base::Json& row : one.find("rows")->as_array()) EXPECT_EQ(row.find("rank")->as_int(), 2);
}

/// As `overlace plan`: what `auto` on as many GPUs goes by.
TEST_F(SimCommand, WithoutAMachineTheNumberOfRanksSaysWhich) {
  constexpr std::pair<int, const char*> kMachines[] = {{0, "h200x4"}, {2, "h200x2"}, {4, "h200x4"}, {8, "h200x4"}};
  for (const auto& [ranks, machine] : kMachines) {
    SimWords w = words();
    w.ranks = ranks;
    for (int (*command)(const SimWords&) : {sim_run, sim_compare}) {
      testing::internal::CaptureStdout();
      ASSERT_EQ(command(w), 0);
      (void)testing::internal::GetCapturedStdout();
      EXPECT_EQ(json("out.json").find("machine")->as_string(), machine) << ranks;
    }
  }
  const spec::OpSpec op{.op = "ag_gemm", .m = 1024, .n = 512, .k = 256, .ranks = 2, .row_offsets = {}};
  base::write_file(path("schedule.json"), spec::make_schedule(op, "serial").to_json()).or_throw();
  SimWords w = words();
  w.schedule = path("schedule.json");
  testing::internal::CaptureStdout();
  ASSERT_EQ(sim_run(w), 0);
  (void)testing::internal::GetCapturedStdout();
  EXPECT_EQ(json("out.json").find("machine")->as_string(), "h200x2");
}

TEST_F(SimCommand, CompareSortsFamiliesAndPutsPartsLast) {
  SimWords w = words();
  w.op = "gemm_rs";
  testing::internal::CaptureStdout();
  EXPECT_EQ(sim_compare(w), 0);
  (void)testing::internal::GetCapturedStdout();
  const base::Json out = json("out.json");
  bool has_library = false, is_part = false;
  double last = 0;
  for (const base::Json& row : out.find("families")->as_array()) {
    const std::string family = row.find("family")->as_string();
    const bool part = family == "compute" || family == "comm" || family == "limit";
    has_library = has_library || family == "library";
    EXPECT_GE(part, is_part) << family;
    if (part != is_part) last = 0;
    is_part = part;
    if (row.find("us") == nullptr) continue;
    EXPECT_GE(row.find("us")->as_double(), last) << family;
    last = row.find("us")->as_double();
  }
  EXPECT_TRUE(has_library);
}

/// What would be ranked first if only it could run: kernels of few rows, of two to eight ranks, of multiples of 8.
TEST_F(SimCommand, CompareRanksNothingThatCannotRun) {
  std::mt19937 random(7);
  const auto up_to = [&](int64_t most) { return static_cast<int64_t>(1 + random() % static_cast<uint64_t>(most)); };
  constexpr const char* kMachines[] = {"h200x2", "h200x4"};
  int num_refused = 0;
  for (int i = 0; i < 12; ++i) {
    for (const char* op : {"ag_gemm", "ag_wgrad", "gemm_rs", "gemm_ar"}) {
      SimWords w = words();
      w.op = op;
      w.m = up_to(4) == 1 ? up_to(64) : up_to(8000);
      w.n = up_to(4) == 1 ? up_to(9000) : 8 * up_to(1000);
      w.k = up_to(4) == 1 ? up_to(9000) : 8 * up_to(1000);
      w.ranks = i % 6 == 0 ? 12 : 0;
      w.dtype = i % 5 == 0 ? "fp32" : "bf16";
      w.machine = kMachines[i % 2];
      testing::internal::CaptureStdout();
      ASSERT_EQ(sim_compare(w), 0);
      const std::string text = testing::internal::GetCapturedStdout();
      const base::Json out = json("out.json");
      const auto& rows = out.find("families")->as_array();
      double product_us = 0;
      for (const base::Json& row : rows) {
        if (row.find("family")->as_string() == "compute") product_us = row.find("us")->as_double();
      }
      ASSERT_GT(product_us, 0) << text;
      for (const base::Json& row : rows) {
        const std::string family = row.find("family")->as_string();
        const spec::OpSpec problem{.op = op,
                                   .m = w.m,
                                   .n = w.n,
                                   .k = w.k,
                                   .ranks = w.ranks != 0 ? w.ranks : spec::find_machine(w.machine).ranks,
                                   .dtype = i % 5 == 0 ? DType::fp32 : DType::bf16,
                                   .out_dtype = i % 5 == 0 ? DType::fp32 : DType::bf16,
                                   .row_offsets = {}};
        const auto degree = static_cast<int>(row.find("degree")->as_int());
        if (row.find("us") == nullptr) {
          ++num_refused;
          EXPECT_NE(row.find("problem")->as_string(), "") << text;
          continue;
        }
        EXPECT_EQ(ops::fused::check_instance(spec::make_schedule(problem, family, degree)).message(), "") << text;
        const bool is_plan = spec::find_family(*spec::find_operator(op), family)->purpose == spec::Purpose::plan;
        // Tiles of the kernel for small M are not those of the product alone.
        const spec::ClosedForm form = spec::find_family(*spec::find_operator(op), family)->form;
        const bool has_own_tiles = form == spec::ClosedForm::small_m_kernel && w.m <= kOneShotTokens;
        if (!is_plan || w.m <= 64 || has_own_tiles) continue;
        EXPECT_GE(row.find("us")->as_double(), product_us) << family << "\n" << text;
      }
    }
  }
  EXPECT_GT(num_refused, 20);
}

TEST(SimCheckRunsOn, RefusesKernelsOfHopperOnOtherGpus) {
  spec::OpSpec op{.op = "gemm_rs", .m = 8192, .n = 8192, .k = 2048, .ranks = 2, .row_offsets = {}};
  const spec::Schedule fused = spec::make_schedule(op, "tma_slot", 64), unfused = spec::make_schedule(op, "serial");
  spec::Machine machine = spec::find_machine("h200x2");
  EXPECT_TRUE(check_runs_on(machine, fused).ok());
  machine.compute_capability = 100;
  EXPECT_EQ(check_runs_on(machine, fused).code(), Errc::not_supported);
  EXPECT_TRUE(check_runs_on(machine, unfused).ok());
}

TEST_F(SimCommand, RefusesWhatCannotBeSimulated) {
  const auto refusal = [](const SimWords& w) -> std::string {
    try {
      (void)sim_run(w);
    } catch (const InvalidArgument& e) {
      return e.what();
    }
    return "taken";
  };
  SimWords w = words();
  w.m = 0;
  EXPECT_EQ(refusal(w), "--m is 0, wanted at least 1");
  w = words();
  w.dtype = "int4";
  EXPECT_EQ(refusal(w), "--dtype is int4, wanted fp64, fp32, fp16 or bf16");
  w = words();
  w.calls = 0;
  EXPECT_EQ(refusal(w), "sim: --calls is 0, wanted 1 to 10000");
  w = words();
  w.machine = "a100";
  EXPECT_EQ(refusal(w),
            "machine: got a100, wanted a file that ends in .json or one of cpu2, h200x2, h200x2_calibrated, h200x4");
}

}  // namespace
}  // namespace overlace::cli
