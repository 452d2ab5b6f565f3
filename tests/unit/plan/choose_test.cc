#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "overlace/plan.h"
#include "src/spec/check.h"
#include "src/spec/heap_layout.h"
#include "tests/unit/plan/problem.h"

namespace overlace::plan {
namespace {

/// GPUs of one host have the file that is shipped for them; of other machines the rates are known.
struct Known {
  bool is_gpu = false;
  double link_bytes_per_s = 0, flops_per_s = 0;
  int hosts = 1;
  uint64_t heap_bytes = 0;
};
constexpr Known kH200 = {.is_gpu = true};

Plan choose(const spec::OpSpec& op, const Known& known) {
  static const spec::Machine kFile = spec::find_machine("h200x4");
  const bool has_file = known.is_gpu && known.hosts == 1;
  Planner planner(
      has_file ? kFile : spec::rated_machine({known.is_gpu, known.link_bytes_per_s, known.flops_per_s, known.hosts}));
  return *planner.plan(op, {.heap_bytes = known.heap_bytes});
}

int64_t degree(const Plan& choice) { return std::get<int64_t>(choice.schedule.params.at("q")); }

TEST(Choose, FallsBackToLibraryWithTheReason) {
  const spec::OpSpec op = op_of("ag_gemm", 8192, 2560, 8192);
  auto expect_library = [](const Plan& choice, const char* reason) {
    EXPECT_TRUE(choice.schedule.family.starts_with("library")) << choice.schedule.family;
    EXPECT_NE(choice.reason.find(reason), std::string::npos) << choice.reason;
  };
  expect_library(choose(op_of("ag_gemm", 8192, 2560, 8192, 1), kH200), "one rank");
  Known known = {.link_bytes_per_s = 1e9};
  expect_library(choose(op, known), "rate of this machine is unknown");
  known = {.is_gpu = false, .link_bytes_per_s = 0, .flops_per_s = 1e11};
  expect_library(choose(op, known), "copies cost the computing core itself");
  expect_library(choose(op_of("gemm_rs", 65, 8192, 2048), kH200), "too little to hide");
  expect_library(choose(op_of("gemm_ar", 0, 8192, 2048), kH200), "too few rows");
  known = {.link_bytes_per_s = 0, .flops_per_s = 1e11, .hosts = 2};
  expect_library(choose(op, known), "rate of the link between hosts is unknown");
  // The transfer is 2 % of the whole: nothing worth hiding.
  known = {.is_gpu = false, .link_bytes_per_s = 390e9, .flops_per_s = 650e12};
  expect_library(choose(op_of("ag_gemm", 16384, 98304, 8192), known), "nothing expected to gain");
}

TEST(Choose, TakesNothingThatTheHeapHasNoRoomFor) {
  const std::vector<spec::OpSpec> ops = {op_of("ag_gemm", 8192, 2560, 8192), op_of("gemm_rs", 8192, 8192, 2048),
                                         op_of("gemm_ar", 8192, 8192, 2048), op_of("ag_gemm", 16, 7168, 8192),
                                         op_of("ag_wgrad", 8192, 2560, 8192)};
  const Known slow = {.link_bytes_per_s = 2e9, .flops_per_s = 1e11};
  for (Known known : {kH200, slow}) {
    for (const spec::OpSpec& op : ops) {
      int choices = 0;
      for (uint64_t taken = 1; taken != 0; ++choices) {
        const Plan choice = choose(op, known);
        taken = spec::heap_bytes(choice.schedule, op.ranks);
        EXPECT_TRUE(known.heap_bytes == 0 || taken <= known.heap_bytes) << op.op;
        known.heap_bytes = taken - 1;
      }
      EXPECT_GT(choices, known.is_gpu && op.m > 64 ? 1 : 0) << op.op;
      known.heap_bytes = 1;
      EXPECT_TRUE(choose(op, known).schedule.family.starts_with("library")) << op.op;
      known.heap_bytes = 0;
    }
  }
  for (Known little : {kH200, Known{.link_bytes_per_s = 2e9, .flops_per_s = 1e13}}) {
    EXPECT_EQ(choose(ops[0], little).reason.find("bytes of heap"), std::string::npos);
    little.heap_bytes = 1;
    const std::string reason = choose(ops[0], little).reason;
    EXPECT_NE(reason.find("schedules need more than 1 bytes of heap"), std::string::npos) << reason;
  }
}

TEST(Choose, FewTokensTakeOneKernel) {
  const auto family = [](const spec::OpSpec& op, const Known& known) { return choose(op, known).schedule.family; };
  for (const int64_t m : {1, 8, 33, 64}) {
    for (const auto& [name, want] :
         {std::pair("ag_gemm", "one_shot"), std::pair("gemm_ar", "one_shot_ar"), std::pair("gemm_rs", "one_shot_rs")}) {
      const spec::OpSpec op = op_of(name, m, 8192, 2048, 2);
      EXPECT_EQ(family(op, kH200), want) << m;
      EXPECT_TRUE(spec::check(choose(op, kH200).schedule, {}).ok());
    }
  }
  for (const int64_t m : {65, 200, 256}) {  // measured of sums on two ranks
    EXPECT_EQ(family(op_of("gemm_ar", m, 8192, 2048, 2), kH200), "one_shot_ar") << m;
    EXPECT_EQ(family(op_of("gemm_rs", m, 8192, 2048, 2), kH200), "one_shot_rs") << m;
    EXPECT_NE(family(op_of("gemm_ar", m, 8192, 2048, 4), kH200), "one_shot_ar") << m;
  }
  EXPECT_NE(family(op_of("gemm_ar", 257, 8192, 2048, 2), kH200), "one_shot_ar");
  EXPECT_NE(family(op_of("gemm_ar", 1, 8192, 2052, 2), kH200), "one_shot_ar") << "rows of B are not whole 16 bytes";
  EXPECT_NE(family(op_of("gemm_rs", 257, 8192, 2048, 2), kH200), "one_shot_rs");
  EXPECT_NE(family(op_of("ag_gemm", 65, 8192, 2048, 2), kH200), "one_shot");
  EXPECT_NE(family(op_of("ag_wgrad", 64, 8192, 2048, 2), kH200), "one_shot");
  spec::OpSpec gated = op_of("ag_gemm", 64, 8192, 2048, 2);
  gated.activation = spec::Activation::swiglu;
  EXPECT_EQ(family(gated, kH200), "library") << "its kernel makes no swiglu";
  // Few tiles of long K: 67 to 71 us, library 50 to 65; as many as SMs: 23 to 25 and 24 to 30 (decode_x2.jsonl).
  for (const int64_t m : {1, 8, 16, 32, 64}) {
    EXPECT_EQ(family(op_of("ag_gemm", m, 4608, 16384, 2), kH200), "library") << m;
    EXPECT_EQ(family(op_of("ag_gemm", m, 7168, 4096, 2), kH200), "one_shot") << m;
    EXPECT_EQ(family(op_of("ag_gemm", m, 2560, 8192, 2), kH200), "one_shot") << m;
  }
  EXPECT_EQ(family(op_of("ag_gemm", 16, 14336, 8192, 2), kH200), "library") << "71.2 us, library 68.5";
  EXPECT_EQ(family(op_of("ag_gemm", 64, 14336, 8192, 2), kH200), "one_shot") << "73.4 us, library 75.2";
  Known other = kH200;
  other.hosts = 2;
  EXPECT_NE(family(op_of("gemm_ar", 1, 8192, 2048, 2), other), "one_shot_ar") << "it stores to peers";
  other = kH200;
  other.is_gpu = false;
  EXPECT_NE(family(op_of("gemm_ar", 1, 8192, 2048, 2), other), "one_shot_ar") << "CPU ranks";
}

TEST(Choose, HidesTransfersWorthHiding) {
  for (const int64_t m : {4096, 8192, 16384}) {
    const Plan gather = choose(op_of("ag_gemm", m, 2560, 8192), kH200);
    EXPECT_EQ(gather.schedule.family, "hetero_unfused_1d") << m << " " << gather.reason;
    const Plan scatter = choose(op_of("gemm_rs", m, 8192, 7168), kH200);
    EXPECT_EQ(scatter.schedule.family, "hetero_unfused_1d_rs") << m << " " << scatter.reason;
  }
}

TEST(Choose, CrossesOnceBetweenHostsOfEqualSize) {
  Known cpu = {.is_gpu = false, .link_bytes_per_s = 200e6, .flops_per_s = 4e10};
  for (const char* name : {"ag_gemm", "gemm_rs", "gemm_ar"}) {
    spec::OpSpec op = op_of(name, 1024, 512, 256);
    op.dtype = op.out_dtype = DType::fp32;
    cpu.hosts = 2;
    const Plan two = choose(op, cpu);
    EXPECT_TRUE(two.schedule.family.starts_with("hierarchical")) << two.reason;
    EXPECT_EQ(two.schedule.params.at("hosts"), spec::Param(int64_t{2}));
    EXPECT_TRUE(spec::check(two.schedule, {}).ok());
    cpu.hosts = 1;
    EXPECT_FALSE(choose(op, cpu).schedule.family.starts_with("hierarchical"));
    cpu.hosts = 4;  // of one rank each
    EXPECT_FALSE(choose(op, cpu).schedule.family.starts_with("hierarchical"));
    cpu.hosts = 3;  // of unequal size
    EXPECT_FALSE(choose(op, cpu).schedule.family.starts_with("hierarchical"));
  }
  spec::OpSpec long_gemm = op_of("gemm_rs", 1024, 512, 768);
  long_gemm.dtype = long_gemm.out_dtype = DType::fp32;
  cpu.hosts = 2;
  EXPECT_FALSE(choose(long_gemm, cpu).schedule.family.starts_with("hierarchical"));
}

/// It costs all families the same.
TEST(Choose, AnActivationDoesNotDecideBetweenFamilies) {
  int num_flat = 0;
  for (const double rate : {200e6, 1e9, 4e9, 16e9}) {
    const Known cpu = {.link_bytes_per_s = rate, .flops_per_s = 4e10, .hosts = 2};
    for (int64_t m = 64; m <= 4096; m *= 2) {
      for (const int64_t k : {16, 64, 128, 256, 512, 1024, 2048}) {
        spec::OpSpec op = op_of("ag_gemm", m, 2048, k);
        op.dtype = op.out_dtype = DType::fp32;
        const Plan without = choose(op, cpu);
        op.activation = spec::Activation::swiglu;
        const Plan with = choose(op, cpu);
        if (without.schedule.family.starts_with("hierarchical")) continue;
        EXPECT_FALSE(with.schedule.family.starts_with("hierarchical")) << without.reason << " before; " << with.reason;
        ++num_flat;
      }
    }
  }
  EXPECT_GT(num_flat, 0);
}

/// What is fused stores to peers, and tables of one host say nothing of a slow link.
TEST(Choose, GpusOnSeveralHostsCrossOnceOrTakeTheLibrary) {
  const Known slow = {.is_gpu = true, .link_bytes_per_s = 5e9, .flops_per_s = 650e12, .hosts = 2};
  const Known one = {.is_gpu = true, .link_bytes_per_s = 390e9, .flops_per_s = 650e12};
  const spec::OpSpec op = op_of("ag_gemm", 1024, 2560, 8192);
  EXPECT_EQ(choose(op, one).schedule.family, "k_slab") << choose(op, one).reason;
  const Plan two = choose(op_of("ag_gemm", 8192, 28672, 8192), slow);
  EXPECT_TRUE(two.schedule.family.starts_with("hierarchical")) << two.reason;
  for (const char* name : {"ag_gemm", "gemm_rs", "gemm_ar"}) {
    for (const int64_t m : {1024, 4096, 16384}) {
      const Plan choice = choose(op_of(name, m, 2560, 8192), slow);
      for (const spec::Task& task : choice.schedule.tasks)
        EXPECT_NE(task.wait_by, spec::WaitBy::kernel) << choice.schedule.family << " " << choice.reason;
    }
  }
  for (const bool is_gpu : {true, false}) {
    const Known hosts = {.is_gpu = is_gpu, .link_bytes_per_s = 200e6, .flops_per_s = 4e10, .hosts = 2};
    EXPECT_NO_THROW((void)choose(op_of("ag_wgrad", 4096, 2560, 8192), hosts)) << is_gpu;
  }
}

/// A gather that takes as long as its product hides behind it; where it is nothing beside it, the library does.
TEST(Choose, GradientsOfWeightsHideTheirGatherWhereItIsLong) {
  const Known cpu = {.is_gpu = false, .link_bytes_per_s = 200e6, .flops_per_s = 4e10};
  spec::OpSpec op = op_of("ag_wgrad", 1024, 512, 256);
  op.dtype = op.out_dtype = DType::fp32;
  const Plan hidden = choose(op, cpu);
  EXPECT_FALSE(hidden.schedule.family.starts_with("library")) << hidden.reason;
  EXPECT_TRUE(spec::check(hidden.schedule, {}).ok());
  const Known fast = {.is_gpu = false, .link_bytes_per_s = 200e9, .flops_per_s = 4e10};
  EXPECT_EQ(choose(op, fast).schedule.family, "library") << choose(op, fast).reason;
  const Known gpu = {.is_gpu = true, .link_bytes_per_s = 390e9, .flops_per_s = 650e12};
  const Plan on_gpu = choose(op_of("ag_wgrad", 8192, 2560, 8192), gpu);
  EXPECT_TRUE(spec::check(on_gpu.schedule, {}).ok()) << on_gpu.reason;
  for (const spec::Task& task : on_gpu.schedule.tasks) EXPECT_NE(task.wait_by, spec::WaitBy::kernel);
}

TEST(Choose, TakesOneKernelWhereItWasMeasuredToWin) {
  struct Row {
    const char* op;
    int64_t m, n, k;
    const char* family;
  };
  // Rows are of bench/results/fused_x4.json and unseen_x4.jsonl.
  const Row rows[] = {{"ag_gemm", 1024, 2560, 8192, "k_slab"},
                      {"ag_gemm", 1536, 1536, 4096, "k_slab"},
                      {"ag_gemm", 4096, 2560, 8192, "hetero_unfused_1d"},
                      {"ag_gemm", 1536, 7168, 4096, "hetero_unfused_1d"},
                      {"gemm_rs", 1024, 8192, 2048, "tma_slot_rs"},
                      {"gemm_rs", 1536, 4096, 1024, "tma_slot_rs"},
                      {"gemm_rs", 3072, 5120, 1280, "tma_slot_rs"},
                      {"gemm_rs", 12288, 4096, 1024, "tma_slot_rs"},
                      {"gemm_rs", 4096, 8192, 2048, "hetero_unfused_1d_rs"},
                      {"gemm_rs", 1024, 12288, 12288, "hetero_unfused_1d_rs"},
                      {"gemm_ar", 1536, 5120, 6912, "library_ar"}};
  for (const Row& row : rows) {
    const spec::OpSpec op = op_of(row.op, row.m, row.n, row.k);
    const Plan choice = choose(op, kH200);
    EXPECT_EQ(choice.schedule.family, row.family) << op.to_string() << ": " << choice.reason;
  }
  EXPECT_EQ(degree(choose(op_of("ag_gemm", 1024, 2560, 8192), kH200)), 4);
}

TEST(Choose, TwoGpusHideTransfersOfElevenMicroseconds) {
  struct Row {
    const char* op;
    int64_t n, k;
    const char* family;
  };
  // Rows are of bench/results/mid_x2.jsonl, M 512; at M 256 AllGather and the library are within a tenth of each other,
  // and the kernel for small M is ahead of sums by the library (rows_x2.jsonl).
  const Row rows[] = {{"ag_gemm", 2560, 8192, "k_slab"},      {"ag_gemm", 14336, 8192, "k_slab"},
                      {"gemm_rs", 8192, 2048, "tma_slot_rs"}, {"gemm_rs", 8192, 7168, "hetero_unfused_1d_rs"},
                      {"gemm_ar", 8192, 2048, "tma_slot_ar"}, {"gemm_ar", 8192, 7168, "tma_slot_ar"}};
  for (const Row& row : rows) {
    const Plan choice = choose(op_of(row.op, 512, row.n, row.k, 2), kH200);
    EXPECT_EQ(choice.schedule.family, row.family) << row.op << " N " << row.n << ": " << choice.reason;
    const Plan few = choose(op_of(row.op, 256, row.n, row.k, 2), kH200);
    const char* const want = row.op == std::string("ag_gemm") ? "library" : "one_shot";
    EXPECT_TRUE(few.schedule.family.starts_with(want)) << few.schedule.family << ": " << few.reason;
  }
}

/// Two H100, bench/results/random_h100x2.jsonl, eager: tma_slot takes 23 us, the library 42.
TEST(Choose, WhereLittleCanBeHiddenOneKernelIsTakenForWhatItSaves) {
  const Plan choice = choose(op_of("gemm_rs", 460, 744, 1016, 2), kH200);
  EXPECT_EQ(choice.schedule.family, "tma_slot_rs") << choice.reason;
  EXPECT_NE(choice.reason.find("too little to hide"), std::string::npos) << choice.reason;
  // Copies and their flags take as long as what they hide.
  const Plan copies = choose(op_of("ag_gemm", 1183, 15224, 1056, 2), kH200);
  EXPECT_TRUE(copies.schedule.family.starts_with("library")) << copies.reason;
}

/// machine/h200x2.plans.jsonl and t3_x2.jsonl, two H200, eager: hetero_unfused_1d takes 79.7 us where the library takes
/// 103.0, tma_slot 123.4 us where hetero_unfused_1d takes 135.2 and 150.4, of which two chunks are the host's 85.
TEST(Choose, AFileThatSaysWhatLanesCostTheHostNeedsNoRuleOfWhatIsTooLittle) {
  const Machine two = spec::find_machine("h200x2");
  Planner planner(two);
  const auto gather = planner.plan(op_of("ag_gemm", 768, 5120, 5120, 2));
  EXPECT_EQ(to_string(gather->candidate), "hetero_unfused_1d q 1") << gather->reason;
  EXPECT_EQ(gather->reason.find("too little"), std::string::npos) << gather->reason;
  EXPECT_EQ(planner.plan(op_of("gemm_rs", 2048, 8192, 2048, 2))->candidate.family, "tma_slot");
  Machine silent = two;
  silent.latency.host_lanes_us = {};
  const auto before = Planner(silent).plan(op_of("ag_gemm", 768, 5120, 5120, 2));
  EXPECT_NE(before->candidate.family, "hetero_unfused_1d") << before->reason;
  EXPECT_NE(before->reason.find("too little to hide"), std::string::npos) << before->reason;
}

/// Few rows go by the figures of another file, but by the same host: the library's 33 us of it, eager, are more than
/// the 28 us that one_shot takes.
TEST(Choose, FewTokensHaveTheHostOfTheMachine) {
  const spec::OpSpec op = op_of("ag_gemm", 16, 5120, 5120, 2);
  Machine two = spec::find_machine("h200x2");
  EXPECT_EQ(Planner(two).plan(op)->candidate.family, "one_shot");
  two.latency.host_collective_us = {1};
  EXPECT_EQ(Planner(two).plan(op)->candidate.family, "library");
}

/// Two H200, bench/results/swiglu_x2.jsonl: k_slab 375 to 382 us, hetero_unfused_1d 426 to 439.
TEST(Choose, TakesOneKernelWhereShardsMakeSlowProducts) {
  const spec::OpSpec op = op_of("ag_gemm", 1024, 14336, 8192, 2);
  EXPECT_EQ(choose(op, kH200).schedule.family, "k_slab") << choose(op, kH200).reason;
  for (const char* name : {"h200x4", "h200x2"}) {
    const auto plan = Planner(spec::find_machine(name)).plan(op, {.limit = Tier::recurrence});
    EXPECT_EQ(plan->candidate.family, "k_slab") << plan->reason;
  }
}

TEST(Choose, TakesNoKernelThatWasNotMeasured) {
  const auto family = [](const spec::OpSpec& op) { return choose(op, kH200).schedule.family; };
  spec::OpSpec op = op_of("ag_gemm", 1024, 2560, 8192);
  EXPECT_EQ(family(op), "k_slab");
  op.bias = true;
  EXPECT_EQ(family(op), "k_slab");
  op = op_of("gemm_rs", 1024, 8192, 2048);
  op.bias = true;
  EXPECT_EQ(family(op), "tma_slot_rs");
  for (const auto& change : std::vector<void (*)(spec::OpSpec&)>{
           [](spec::OpSpec& o) { o.dtype = o.out_dtype = DType::fp16; },
           [](spec::OpSpec& o) { o.out_dtype = DType::fp32; }, [](spec::OpSpec& o) { o.b_layout = spec::BLayout::kn; },
           [](spec::OpSpec& o) { o.n = 8190; }, [](spec::OpSpec& o) { o.k = 2044; },
           [](spec::OpSpec& o) { o.ranks = 9; }}) {
    spec::OpSpec other = op;
    change(other);
    EXPECT_FALSE(family(other).starts_with("tma_slot")) << other.to_string();
  }
}

TEST(Choose, AllReducesTakeOneKernelWhereItWasAhead) {
  const auto choice = [](int64_t m, int64_t k, int ranks) {
    return choose(op_of("gemm_ar", m, 8192, k, ranks), kH200).schedule;
  };
  // Two H200, bench/results/gemm_ar_slot_x2.jsonl: 4 to 15 % less than the best of groups, 3 % (clocks moved) at K 7168
  // M 2048.
  for (const int64_t m : {1024, 2048, 4096, 8192, 16384}) EXPECT_EQ(choice(m, 2048, 2).family, "tma_slot_ar") << m;
  for (const int64_t m : {1024, 2048, 4096}) EXPECT_EQ(choice(m, 7168, 2).family, "tma_slot_ar") << m;
  EXPECT_EQ(choice(16384, 7168, 2).family, "grouped_unfused_1d_ar") << "3 % less there, clocks moved";
  EXPECT_EQ(std::get<int64_t>(choice(1024, 2048, 2).params.at("groups")), 4);
  EXPECT_EQ(std::get<int64_t>(choice(8192, 2048, 2).params.at("groups")), 8);
  EXPECT_EQ(choose(op_of("gemm_ar", 4096, 8192, 2052, 2), kH200).schedule.family, "grouped_unfused_1d_ar")
      << "no such kernel";
  // No record carries these: the recurrence alone, fitted to other rows and teams.
  EXPECT_EQ(choice(4096, 7168, 4).family, "tma_slot_ar");
  EXPECT_TRUE(choice(8192, 7168, 4).family.starts_with("grouped"));
  EXPECT_EQ(choice(8192, 7168, 8).family, "tma_slot_ar");
  // Four ranks and a short K: the links are busy for longer than the GEMMs, and groups made it slower.
  for (const int64_t m : {8192, 16384}) EXPECT_FALSE(choice(m, 2048, 4).family.starts_with("grouped")) << m;
}

TEST(Choose, OneKernelKeepsTheGatheredRowsWhereEveryRankHasSome) {
  spec::OpSpec keeps = op_of("ag_gemm", 1024, 2560, 8192);
  EXPECT_EQ(choose(keeps, kH200).schedule.family, "k_slab");
  keeps.gathered = true;
  EXPECT_EQ(choose(keeps, kH200).schedule.family, "k_slab");
  keeps.row_offsets = {0, 512, 512, 768, 1024};
  EXPECT_NE(choose(keeps, kH200).schedule.family, "k_slab");
  keeps.gathered = false;
  EXPECT_EQ(choose(keeps, kH200).schedule.family, "k_slab");
}

/// Other numbers than those of the machine that was measured: what is known of the call decides.
TEST(Choose, ProductsOfOtherWidthsOnGpusAreNotTheMeasuredOnes) {
  spec::OpSpec op = op_of("gemm_rs", 8192, 8192, 2048);
  op.dtype = op.out_dtype = DType::fp32;
  const Plan choice = choose(op, {.is_gpu = true, .link_bytes_per_s = 390e9, .flops_per_s = 45e12});
  EXPECT_EQ(choice.reason.find("h200x4"), std::string::npos) << choice.reason;
  EXPECT_FALSE(choice.schedule.family.starts_with("tma_slot"));
}

TEST(Choose, ItsRulesForGpusNameSchedulesThatPassTheChecks) {
  for (const char* name : {"ag_gemm", "gemm_rs", "gemm_ar"}) {
    const Plan choice = choose(op_of(name, 8192, 8192, 2048), kH200);
    EXPECT_FALSE(choice.schedule.family.starts_with("library")) << choice.reason;
    const spec::CheckReport report = spec::check(choice.schedule, spec::Machine{.is_gpu = true});
    EXPECT_TRUE(report.ok()) << report.to_string();
  }
  for (const char* family : {"grouped_fused_1d", "grouped_unfused_1d"}) {
    const spec::Schedule schedule = spec::make_schedule(op_of("gemm_ar", 8192, 8192, 2048), family, 4);
    const spec::CheckReport report = spec::check(schedule, spec::Machine{.is_gpu = true});
    EXPECT_TRUE(report.ok()) << report.to_string();
  }
}

TEST(Choose, BroadcastsGroupByGroupWhereTheLinkIsAsSlowAsTheGemm) {
  // GEMM 86 ms, each of the two passes over the link 42 ms.
  const Known known = {.is_gpu = false, .link_bytes_per_s = 100e6, .flops_per_s = 50e9};
  spec::OpSpec op = op_of("gemm_ar", 2048, 1024, 1024, 2);
  op.dtype = op.out_dtype = DType::fp32;
  const Plan choice = choose(op, known);
  EXPECT_EQ(choice.schedule.family, "grouped_unfused_1d_ar") << choice.reason;
  EXPECT_GE(degree(choice), 4) << choice.reason;
  EXPECT_NE(choice.reason.find("grouped_unfused_1d q"), std::string::npos) << choice.reason;
}

TEST(Choose, UsesAnEmulatedLinkOnCpus) {
  const Known known = {.is_gpu = false, .link_bytes_per_s = 200e6, .flops_per_s = 50e9};
  const Plan choice = choose(op_of("ag_gemm", 2048, 1024, 1024, 2), known);
  EXPECT_TRUE(choice.schedule.family.starts_with("hetero")) << choice.reason;
}

TEST(Choose, CutsFinerWhereTheFirstTransferIsExposed) {
  // Transfer as long as the GEMM: in one chunk it could not start before half of the GEMM is done.
  const Known slow_link = {.is_gpu = false, .link_bytes_per_s = 200e6, .flops_per_s = 1e11};
  const Plan scatter = choose(op_of("gemm_rs", 4096, 2048, 256, 2), slow_link);
  EXPECT_GT(degree(scatter), 1) << scatter.reason;
}

TEST(Choose, IsPureAndItsSchedulesAreValid) {
  for (const char* name : {"ag_gemm", "gemm_rs", "gemm_ar"}) {
    for (const int ranks : {2, 4, 8}) {
      for (const int64_t m : {100, 4096, 4097, 8191, 16384}) {
        const spec::OpSpec op = op_of(name, m, 8192, 2048, ranks);
        const Plan choice = choose(op, kH200), again = choose(op, kH200);
        EXPECT_EQ(choice.schedule, again.schedule);
        EXPECT_EQ(choice.reason, again.reason);
        spec::Machine machine;
        machine.is_gpu = true;
        machine.ranks = ranks;
        machine.sms = 132;
        machine.heap_bytes = int64_t{8} << 30;
        const spec::CheckReport report = spec::check(choice.schedule, machine);
        EXPECT_TRUE(report.ok()) << op.to_string() << "\n" << report.to_string();
      }
    }
  }
}

/// Decisions hold for a bucket of M; what was decided for its upper end must be a candidate of each problem in it.
TEST(Choose, WhatABucketDecidesFitsEachProblemInIt) {
  std::mt19937_64 random(20261123);
  const auto draw = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  const spec::Machine machine = spec::find_machine("h200x4");
  Planner planner(machine);
  std::set<std::string> families;
  for (int i = 0; i < 4000; ++i) {
    const char* const names[] = {"ag_gemm", "gemm_rs", "gemm_ar", "ag_wgrad"};
    const int64_t unit = draw(0, 2) == 0 ? 1 : draw(0, 1) == 0 ? 8 : 64;
    const int64_t m = draw(1, int64_t{1} << draw(4, 15));
    spec::OpSpec op = op_of(names[draw(0, 3)], m, unit * draw(1, 20000 / unit), unit * draw(1, 20000 / unit),
                            static_cast<int>(draw(2, 8)));
    op.bias = op.op != "ag_wgrad" && draw(0, 1) == 0;
    op.gathered = op.op == "ag_gemm" && draw(0, 3) == 0;
    const auto plan = planner.plan(op);
    families.insert(plan->candidate.family);
    if (plan->candidate.family == "library") continue;
    // Small M has figures of the machine that was measured with it.
    std::vector<Candidate> own = candidates(op, machine);
    const std::vector<Candidate> of_few = candidates(op, spec::find_machine(machine.small_m_machine));
    own.insert(own.end(), of_few.begin(), of_few.end());
    EXPECT_NE(std::find(own.begin(), own.end(), plan->candidate), own.end())
        << op.to_string() << ": " << to_string(plan->candidate) << ", " << plan->reason;
  }
  EXPECT_GE(families.size(), 5u);
}

}  // namespace
}  // namespace overlace::plan
