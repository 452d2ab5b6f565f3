#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <thread>

#include "overlace/error.h"
#include "overlace/plan.h"
#include "src/base/format.h"
#include "src/plan/recurrence.h"
#include "src/spec/check.h"
#include "src/spec/cost_model.h"
#include "src/spec/fusable.h"
#include "src/spec/operators.h"
#include "tests/unit/plan/problem.h"
#include "tests/unit/spec/operators.h"

namespace overlace::plan {
namespace {

using spec::Machine;
using spec::OpSpec;

bool has(const Plan& plan, const std::string& family) {
  for (const Alternative& other : plan.others)
    if (other.candidate.family == family) return true;
  return false;
}

TEST(Planner, AlwaysConsidersLibraryAndSerialAndGivesValidSchedules) {
  Planner planner(h200());
  for (const std::string& name : test::all_operators()) {
    for (const int64_t m : {1, 64, 1000, 2048, 8192}) {
      const OpSpec op = op_of(name, m, 2560, 8192);
      const auto plan = planner.plan(op);
      EXPECT_TRUE(has(*plan, "library")) << op.to_string();
      EXPECT_EQ(has(*plan, "serial"), !spec::has_few_tokens(op)) << op.to_string();
      EXPECT_EQ(plan->tier, Tier::recurrence);
      EXPECT_EQ(std::get<int64_t>(plan->schedule.params.at("M")), m);
      const spec::CheckReport report = spec::check(plan->schedule, h200());
      EXPECT_TRUE(report.ok()) << op.to_string() << ": " << report.to_string();
      EXPECT_NE(plan->reason.find(to_string(plan->candidate)), std::string::npos) << plan->reason;
      for (size_t i = 1; i < plan->others.size(); ++i) EXPECT_LE(plan->others[i - 1].us, plan->others[i].us);
    }
  }
}

TEST(Planner, SamePlanForTheSameCall) {
  Planner a(h200()), b(h200());
  const OpSpec op = op_of("gemm_rs", 8192, 8192, 2048);
  const auto first = a.plan(op), again = a.plan(op), other = b.plan(op);
  EXPECT_EQ(first, again) << "kept";
  EXPECT_EQ(first->schedule.to_json(), other->schedule.to_json());
  EXPECT_EQ(first->reason, other->reason);
  EXPECT_EQ(first->key, other->key);
}

TEST(Planner, ThreadsShareIt) {
  Planner planner(h200());
  std::vector<std::shared_ptr<const Plan>> found(8);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < found.size(); ++i)
    threads.emplace_back(
        [&, i] { found[i] = planner.plan(op_of("ag_gemm", 8192 - 64 * static_cast<int64_t>(i % 2), 2560, 8192)); });
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 2; i < found.size(); ++i) EXPECT_EQ(found[i], found[i % 2]);
  EXPECT_EQ(found[0]->key, found[1]->key);
}

TEST(Planner, DecidesOncePerBucketOfRows) {
  Planner planner(h200());
  const auto low = planner.plan(op_of("ag_gemm", 8000, 2560, 8192)),
             high = planner.plan(op_of("ag_gemm", 8192, 2560, 8192));
  EXPECT_EQ(low->key, high->key);
  EXPECT_EQ(low->estimate.us, high->estimate.us);
  EXPECT_EQ(low->candidate, high->candidate);
  EXPECT_EQ(std::get<int64_t>(low->schedule.params.at("M")), 8000);
  EXPECT_NE(low->key, planner.plan(op_of("ag_gemm", 7000, 2560, 8192))->key);
  EXPECT_NE(planner.plan(op_of("ag_gemm", 200, 2560, 8192))->key, planner.plan(op_of("ag_gemm", 201, 2560, 8192))->key);
  OpSpec ragged = op_of("ag_gemm", 8192, 2560, 8192);
  ragged.row_offsets = {0, 4096, 4096, 8000, 8192};
  EXPECT_NE(planner.plan(ragged)->key, high->key);
}

TEST(Planner, BucketsEndAndAMachineWithoutCollectivesHasItsLibraryOnly) {
  Machine mute = h200();
  mute.collectives = {};
  Planner planner(mute);
  const auto plan = planner.plan(op_of("ag_gemm", 8192, 2560, 8192));
  EXPECT_EQ(plan->candidate.family, "library");
  EXPECT_NE(plan->reason.find("no model of the library"), std::string::npos) << plan->reason;
  for (const int64_t m : {257, 512, 513, 1024, 1025, 1 << 24})
    EXPECT_FALSE(planner.plan(op_of("gemm_rs", m, 8, 8), {.limit = Tier::rule})->key.empty()) << m;
  EXPECT_EQ(planner.plan(op_of("gemm_rs", 513, 8, 8))->key, planner.plan(op_of("gemm_rs", 576, 8, 8))->key);
  EXPECT_NE(planner.plan(op_of("gemm_rs", 512, 8, 8))->key, planner.plan(op_of("gemm_rs", 513, 8, 8))->key);
}

TEST(Planner, ASmallGainIsNone) {
  // Products and copies of nothing but rates; the library as fast as the best schedule, then 2.5 % slower.
  Machine machine;
  machine.ranks = 2;
  machine.gemm.tiles = {{1, 1, {0}, {0}}};
  machine.gemm.sustained_TFLOPs = {1};
  machine.copy.peer_GBps = machine.copy.all_GBps = machine.link.egress_GBps = {100};
  const OpSpec op = op_of("ag_gemm", 1000, 500, 1000, 2);  // 1000 us
  const auto library_at = [&](double us) {
    machine.collectives.all_gather_us = {{{1, us}, {2, us}}};
    return Planner(machine).plan(op)->candidate.family;
  };
  EXPECT_EQ(library_at(15), "library");
  EXPECT_NE(library_at(30), "library");
}

TEST(Planner, FallsBackToTheRuleWithoutNumbers) {
  Machine bare;
  bare.is_gpu = true;
  bare.ranks = 4;
  const auto plan = Planner(bare).plan(op_of("ag_gemm", 8192, 2560, 8192));
  EXPECT_EQ(plan->tier, Tier::rule);
  EXPECT_EQ(plan->candidate.family, "library");
  EXPECT_NE(plan->reason.find("unknown"), std::string::npos) << plan->reason;
  const auto lone = Planner(h200()).plan(op_of("ag_gemm", 8192, 2560, 8192, 1));
  EXPECT_EQ(lone->candidate.family, "library");
  const auto ruled = Planner(h200()).plan(op_of("ag_gemm", 8192, 2560, 8192), {.limit = Tier::rule});
  EXPECT_EQ(to_string(ruled->candidate), "hetero_unfused_1d q 1");
  EXPECT_EQ(ruled->tier, Tier::rule);
}

TEST(Planner, TakesThePapersRuleWhenAsked) {
  Planner planner(h200());
  const PlanOptions paper = {.paper_rule = true};
  EXPECT_EQ(to_string(planner.plan(op_of("ag_gemm", 4096, 2560, 8192), paper)->candidate), "uniform_fused_2d q 4");
  std::set<std::string> seen;
  for (const int64_t m : {2048, 8192, 65536, 262144})
    seen.insert(planner.plan(op_of("ag_gemm", m, 2048, 1024), paper)->candidate.family);
  EXPECT_GE(seen.size(), 2u) << "with growing intensity and traffic other schedules";
  EXPECT_EQ(seen.count("uniform_fused_2d"), 0u);
  for (const int64_t m : {2048, 8192, 262144})  // fewer families: the rule names none that there is not
    EXPECT_EQ(planner.plan(op_of("ag_wgrad", m, 2048, 1024), paper)->candidate.family, "hetero_unfused_1d") << m;
}

/// Says what it is told, by family.
struct ToldCosts final : spec::CostModel {
  std::map<std::string, double> us;
  mutable int calls = 0;
  base::Result<spec::Estimate> estimate(const spec::Schedule& schedule, const OpSpec&, const Machine&) const override {
    ++calls;
    const auto found = us.find(schedule.family);
    spec::Estimate out;
    out.us = found != us.end() ? found->second : 1000;
    return out;
  }
};

TEST(Planner, LetsASimulatorDecideAndDropsWhatItCannotSay) {
  ToldCosts told;
  told.us = {
      {"library", 500}, {"hetero_fused_1d", 300}, {"k_slab", std::numeric_limits<double>::quiet_NaN()}, {"serial", -1}};
  Planner planner(h200(), {.simulation = &told});
  const OpSpec op = op_of("ag_gemm", 8192, 2560, 8192);
  const auto plan = planner.plan(op, {.limit = Tier::simulation});
  EXPECT_EQ(plan->candidate.family, "hetero_fused_1d");
  EXPECT_EQ(plan->tier, Tier::simulation);
  EXPECT_DOUBLE_EQ(plan->estimate.us, 300);
  EXPECT_FALSE(has(*plan, "k_slab"));
  EXPECT_FALSE(has(*plan, "serial"));
  EXPECT_TRUE(has(*plan, "library"));
  EXPECT_LE(told.calls, 16);
  const int before = told.calls;
  EXPECT_EQ(planner.plan(op)->tier, Tier::recurrence) << "the default asks no simulator";
  EXPECT_EQ(told.calls, before);
}

TEST(Planner, BandsAreThoseOfTheModelThatEstimates) {
  Machine machine = h200();
  machine.errors["ag_gemm"]["library"] = {0.01, 0.5};
  machine.recurrence_errors["ag_gemm"]["library"] = {0.01, 0.25};
  const ToldCosts told;
  Planner planner(machine, {.simulation = &told});
  const OpSpec op = op_of("ag_gemm", 8192, 2560, 8192);
  for (const auto& [tier, error] : {std::pair{Tier::recurrence, 0.25}, {Tier::simulation, 0.5}}) {
    const auto plan = planner.plan(op, {.limit = tier});
    const auto library = std::find_if(plan->others.begin(), plan->others.end(),
                                      [](const Alternative& a) { return a.candidate.family == "library"; });
    ASSERT_NE(library, plan->others.end());
    EXPECT_DOUBLE_EQ(library->hi_us, library->us * (1 + error));
    EXPECT_DOUBLE_EQ(library->lo_us, library->us / (1 + error));
  }
}

/// By the figures of h200x2_calibrated, which its file names for them.
TEST(Planner, TakesOneShotForFewTokensOnGpus) {
  Planner planner(h200());
  for (const char* name : {"ag_gemm", "gemm_ar", "gemm_rs"}) {
    for (const int64_t m : {1, 16, 64}) {
      const OpSpec op = op_of(name, m, 8192, 2048, 2);
      const auto plan = planner.plan(op);
      EXPECT_EQ(plan->candidate.family, "one_shot") << name << " " << m << " " << plan->reason;
      double sum = 0;
      for (const auto& [part, us] : Recurrence(op, spec::find_machine("h200x2_calibrated")).waterfall(plan->candidate))
        sum += us;
      EXPECT_NEAR(sum, plan->estimate.us, 1e-6) << m;
    }
  }
  const auto has_one_shot = [](const OpSpec& op, const Machine& machine) {
    const std::vector<Candidate> all = candidates(op, machine);
    return std::any_of(all.begin(), all.end(), [](const Candidate& one) { return one.family == "one_shot"; });
  };
  EXPECT_FALSE(has_one_shot(op_of("gemm_ar", 65, 8192, 2048), h200()));
  EXPECT_FALSE(has_one_shot(op_of("gemm_rs", 65, 8192, 2048), h200()));
  EXPECT_FALSE(has_one_shot(op_of("gemm_ar", 8, 8192, 2048), spec::find_machine("cpu2")));
}

/// Its kernels take more than were measured with it: those are as if it were not there.
TEST(Planner, TakesOneShotForAsManyTokensAsTheMachineSaysWereMeasured) {
  const Machine measured = spec::find_machine("h200x2_calibrated");
  Machine usual = measured;
  usual.few_rows.measured_rows = {64};
  const auto families = [](const OpSpec& op, const Machine& machine) {
    std::set<std::string> out;
    for (const Candidate& one : candidates(op, machine)) out.insert(one.family);
    return out;
  };
  EXPECT_EQ(measured.few_rows.measured_rows.value, 256);
  EXPECT_EQ(h200().few_rows.measured_rows.value, 64) << "its file does not say";
  for (const char* name : {"gemm_ar", "gemm_rs"}) {
    for (const int64_t m : {65, 128, 129, 256}) {
      const OpSpec op = op_of(name, m, 8192, 2048, 2);
      ASSERT_TRUE(spec::has_few_tokens(op));
      EXPECT_EQ(families(op, usual).count("one_shot"), 0u) << m;
      const auto plan = Planner(usual).plan(op);
      EXPECT_NE(plan->candidate.family, "one_shot") << m;
      EXPECT_TRUE(plan->reason.ends_with(base::format("; one_shot takes M {} but was measured up to 64", m)))
          << plan->reason;
      EXPECT_EQ(Planner(h200()).plan(op)->candidate.family, "one_shot") << "by the figures of h200x2_calibrated";
      const OpSpec of_four = op_of(name, m, 8192, 2048, 4);
      EXPECT_EQ(families(of_four, measured).count("one_shot"), 0u) << "more than two ranks were not measured";
      EXPECT_EQ(families(op, measured), (std::set<std::string>{"library", "one_shot"})) << m;
      EXPECT_EQ(Planner(measured).plan(op)->candidate.family, "one_shot") << m;
    }
    const OpSpec more = op_of(name, 257, 8192, 2048, 2);
    EXPECT_EQ(families(more, measured), families(more, usual));
  }
}

/// Whatever the tier, the figures and the number of tokens; and the reason says so.
TEST(Planner, TakesNoKernelWhereTheGpusHaveNone) {
  const auto is_kernel = [](const OpSpec& op, const std::string& family) {
    using enum spec::ClosedForm;
    const spec::ClosedForm form = spec::form_of(op.op, family);
    return form == slab_kernel || form == tile_kernel || form == small_m_kernel;
  };
  for (const auto& [capability, text] : {std::pair{80, "8.0"}, {89, "8.9"}, {100, "10.0"}, {120, "12.0"}}) {
    Machine machine = h200();
    machine.compute_capability = capability;
    Planner planner(machine), hopper(h200());
    for (const auto& [name, kernels] :
         {std::pair{"ag_gemm", "k_slab"}, {"gemm_rs", "tma_slot"}, {"gemm_ar", "tma_slot"}}) {
      for (const int64_t m : {16, 8192}) {
        const OpSpec op = op_of(name, m, 8192, 2048);
        bool hopper_has = false;
        for (const Candidate& one : candidates(op, h200())) hopper_has = hopper_has || is_kernel(op, one.family);
        EXPECT_TRUE(hopper_has) << op.to_string();
        for (const Candidate& one : candidates(op, machine)) EXPECT_FALSE(is_kernel(op, one.family)) << one.family;
        for (const Tier tier : {Tier::rule, Tier::recurrence}) {
          const auto plan = planner.plan(op, {.limit = tier});
          EXPECT_FALSE(is_kernel(op, plan->candidate.family)) << plan->reason;
          for (const Alternative& other : plan->others) EXPECT_FALSE(is_kernel(op, other.candidate.family));
          const std::string why = base::format("; no {}, for compute capability 9.0 alone; here: compute capability {}",
                                               m == 16 ? "one_shot" : kernels, text);
          EXPECT_NE(plan->reason.find(why), std::string::npos) << plan->reason;
          const std::string there = hopper.plan(op, {.limit = tier})->reason;
          EXPECT_EQ(there.find("compute capability"), std::string::npos) << there;
        }
      }
    }
    OpSpec wide = op_of("ag_gemm", 8192, 8192, 2048);
    wide.dtype = wide.out_dtype = DType::fp32;
    const std::string reason = planner.plan(wide)->reason;
    EXPECT_EQ(reason.find("compute capability"), std::string::npos) << "nobody has kernels for it: " << reason;
  }
}

TEST(Planner, FewTokensHaveTheKernelAndTheLibraryOnHopperAndElsewhereWhatOthersHave) {
  const auto families = [](const OpSpec& op, const Machine& machine) {
    std::set<std::string> out;
    for (const Candidate& one : candidates(op, machine)) out.insert(one.family);
    return out;
  };
  Machine other = h200();
  other.compute_capability = 80;
  for (const char* name : {"ag_gemm", "gemm_rs", "gemm_ar"}) {
    const OpSpec few = op_of(name, 16, 8192, 2048);
    ASSERT_TRUE(spec::has_few_tokens(few));
    EXPECT_EQ(families(few, h200()), (std::set<std::string>{"library", "one_shot"})) << name;
    const std::set<std::string> here = families(few, other);
    EXPECT_EQ(here.count("library") + here.count("serial"), 2u) << name;
    EXPECT_GT(here.size(), 2u) << name << ": schedules of copies, too";
    OpSpec wide = few;
    wide.dtype = wide.out_dtype = DType::fp16;
    ASSERT_FALSE(spec::has_few_tokens(wide));
    EXPECT_EQ(here, families(wide, other)) << name;
    const auto plan = Planner(other).plan(few);
    EXPECT_EQ(plan->candidate.family, "library") << plan->reason;
    EXPECT_NE(plan->reason.find("too little to hide"), std::string::npos) << plan->reason;
  }
}

TEST(Planner, TakesLibraryGemmsForFp8AndSaysThatItsRateWasNotMeasured) {
  for (const char* name : {"ag_gemm", "gemm_rs", "gemm_ar"}) {
    spec::OpSpec op = op_of(name, 8192, 4096, 8192);
    const double wide_us = Recurrence(op, h200()).us({"library", 1}).value();
    for (const spec::Scales scales : {spec::Scales::tensor, spec::Scales::rows}) {
      const bool is_mixed = scales == spec::Scales::rows;
      op.scales = scales;
      op.dtype = is_mixed ? DType::e5m2 : DType::e4m3;
      if (is_mixed) op.b_dtype = DType::e4m3;
      for (const Candidate& one : candidates(op, h200()))
        EXPECT_TRUE(one.family != "k_slab" && one.family != "tma_slot" && one.family != "one_shot") << one.family;
      const auto slabs = [](const Candidate& one) { return one.family == "uniform_fused_2d"; };
      const std::vector<Candidate> all = candidates(op, h200());
      const bool adds_rows = scales == spec::Scales::rows && spec::gathers(op.op);
      EXPECT_EQ(std::any_of(all.begin(), all.end(), slabs), !adds_rows) << name;
      EXPECT_LT(Recurrence(op, h200()).us({"library", 1}).value(), 0.8 * wide_us) << name;
      Planner planner(h200());
      const std::shared_ptr<const Plan> plan = planner.plan(op);
      EXPECT_EQ(plan->tier, Tier::recurrence);
      const std::string rate = std::string(is_mixed ? "e5m2 x e4m3" : "e4m3") + " at 1.8 times the rate of 16 bits";
      EXPECT_NE(plan->reason.find(rate + ", which was not measured"), std::string::npos) << plan->reason;
      EXPECT_EQ(spec::scales_of(plan->schedule.params), scales);
      spec::Machine measured = h200();
      measured.gemm.fp8_speedup = {1.7, spec::Source::measured};
      EXPECT_EQ(Planner(measured).plan(op)->reason.find("not measured"), std::string::npos);
    }
  }
}

/// Also where the bucket's rows have their scales at 16 bytes and the call's have not, and where its own have but not
/// those of the bucket.
TEST(Planner, LeavesScalesOfOddRowsToProductsOfAllRowsOnGpus) {
  Planner planner(h200());
  for (const char* name : {"ag_gemm", "gemm_rs", "gemm_ar"})
    for (const int64_t m : {8192, 8194, 300, 5}) {
      spec::OpSpec op = op_of(name, m, 8192, 8192, 2);
      op.dtype = DType::e4m3;
      op.out_dtype = DType::bf16;
      op.scales = spec::Scales::rows;
      const std::string family = planner.plan(op)->candidate.family;
      const bool is_whole = family == spec::kLibrary || family == "serial";
      const bool is_odd = spec::row_offsets(op)[1] % 4 != 0;
      EXPECT_TRUE(is_whole || !is_odd) << name << " " << m << " " << family;
      EXPECT_TRUE(!is_whole || m != 8192) << name << " " << family;
    }
  spec::OpSpec far = op_of("ag_gemm", 8192, 8192, 8192, 4);
  far.dtype = DType::e4m3;
  far.out_dtype = DType::bf16;
  far.scales = spec::Scales::rows;
  spec::MachineRates rates;
  rates.link_bytes_per_s = 50e9;
  rates.flops_per_s = 2e12;
  rates.hosts = 2;
  EXPECT_NO_THROW((void)Planner(spec::rated_machine(rates)).plan(far)) << "scales of rows go no further than a host";
}

TEST(Planner, CandidatesFitTheShape) {
  for (const std::string& name : test::all_operators()) {
    for (const int64_t m : {1, 7, 300, 8192}) {
      const OpSpec op = op_of(name, m, 2560, 8192);
      for (const Candidate& candidate : candidates(op, h200())) {
        EXPECT_NO_THROW((void)spec::make_schedule(op, candidate.family, candidate.degree)) << to_string(candidate);
        const std::string& family = candidate.family;
        EXPECT_TRUE(family != "compute" && family != "comm" && family != "limit") << family;
      }
    }
  }
  OpSpec op = op_of("ag_gemm", 8192, 2560, 8192);
  const auto has_slab = [&] {
    for (const Candidate& candidate : candidates(op, h200()))
      if (candidate.family == "k_slab") return true;
    return false;
  };
  EXPECT_TRUE(has_slab());
  op.gathered = true;
  EXPECT_TRUE(has_slab());
  op.row_offsets = {0, 0, 2048, 4096, 8192};
  EXPECT_FALSE(has_slab()) << "its kernel keeps a gathered A only where every rank has rows";
}

}  // namespace
}  // namespace overlace::plan
