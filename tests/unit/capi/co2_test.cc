// CO2 through the C API: the planner of tau, a caller's transport, handles and bad input.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "overlace/capi_co2.h"
#include "src/train/co2/timing.h"

namespace overlace {
namespace {

template <class T>
T sized() {
  T value{};
  value.struct_size = sizeof(T);
  return value;
}

ovl_co2_plan plan_of(int groups, double step_ms) {
  auto plan = sized<ovl_co2_plan>();
  plan.parameters = 4e6;
  plan.shard_degree = 2;
  plan.groups = groups;
  plan.wire_bytes = 4;
  plan.step_ms = step_ms;
  plan.link_bytes_per_s = 1e9;
  plan.link_latency_us = 20;
  return plan;
}

TEST(CapiCo2Plan, HidesTheAllReduceFromTauMinOn) {
  for (const int groups : {1, 2, 3, 8})
    for (const double step_ms : {0.5, 3.0, 100.0}) {
      ovl_co2_plan plan = plan_of(groups, step_ms);
      ASSERT_EQ(ovl_co2_plan_tau(&plan), OVL_OK) << ovl_error_text();
      // A rank's half of 4e6 parameters of 4 bytes, at 1000 bytes a us.
      const double all_reduce_us = train::all_reduce_us({groups, 1000, 20}, 8e6);
      EXPECT_DOUBLE_EQ(plan.all_reduce_ms * 1e3, all_reduce_us);
      EXPECT_EQ(plan.tau_min, std::max(1.0, std::ceil(1.1 * plan.all_reduce_ms / step_ms)));
      EXPECT_EQ(plan.taus[2], plan.tau_min);
      for (int i = 0; i < 5; ++i) {
        const train::RoundTime round = train::co2_round(plan.taus[i], step_ms * 1e3, all_reduce_us, 0);
        EXPECT_DOUBLE_EQ(plan.exposed[i], round.exposed_us / round.us) << groups << " " << step_ms << " " << i;
        EXPECT_EQ(plan.exposed[i] == 0, all_reduce_us <= static_cast<double>(plan.taus[i]) * step_ms * 1e3);
      }
      EXPECT_EQ(plan.exposed[2], 0);
    }
}

TEST(CapiCo2Plan, RefusesWhatMakesNoSense) {
  ovl_co2_plan plan = plan_of(2, 1);
  plan.link_bytes_per_s = 0;
  EXPECT_EQ(ovl_co2_plan_tau(&plan), OVL_INVALID_ARGUMENT);
  plan = plan_of(0, 1);
  EXPECT_EQ(ovl_co2_plan_tau(&plan), OVL_INVALID_ARGUMENT);
  plan = plan_of(2, 0);
  EXPECT_EQ(ovl_co2_plan_tau(&plan), OVL_INVALID_ARGUMENT);
  EXPECT_NE(std::string(ovl_error_text()).find("step of 0 ms"), std::string::npos) << ovl_error_text();
  plan = plan_of(2, 1);
  plan.wire_bytes = NAN;
  EXPECT_EQ(ovl_co2_plan_tau(&plan), OVL_INVALID_ARGUMENT);
  plan = plan_of(2, 1);
  plan.struct_size = 8;
  EXPECT_EQ(ovl_co2_plan_tau(&plan), OVL_VERSION_MISMATCH);
  EXPECT_EQ(ovl_co2_plan_tau(nullptr), OVL_INVALID_ARGUMENT);
}

/// A transport of one rank: sums are what they were.
struct Alone {
  int launched = 0, waited = 0, code_of_wait = OVL_OK;
  static int all_reduce(void* user, void*, uint64_t, int32_t, const char*, uint64_t* ticket) {
    *ticket = static_cast<uint64_t>(++static_cast<Alone*>(user)->launched);
    return OVL_OK;
  }
  static int wait(void* user, uint64_t, int64_t) {
    Alone& self = *static_cast<Alone*>(user);
    ++self.waited;
    return self.code_of_wait;
  }
};

ovl_co2_options options_of() {
  auto options = sized<ovl_co2_options>();
  options.rule = OVL_CO2_CO2;
  options.clip = OVL_CO2_CLIP_RELATIVE;
  options.wire_dtype = OVL_FP32;
  options.tau = 2;
  options.outer_lr = options.outer_momentum = options.phi = -1;
  options.kappa = options.gap_value = 1;
  return options;
}

TEST(CapiCo2, RunsOverTheCallersTransport) {
  Alone alone;
  auto collective = sized<ovl_collective>();
  collective.size = 1;
  collective.all_reduce = Alone::all_reduce;
  collective.wait = Alone::wait;
  collective.user = &alone;
  std::vector<float> x = {1, 2, 3};
  const ovl_co2_parameter parameter = {"x", x.data(), 3, OVL_FP32};
  const ovl_co2_options options = options_of();
  ovl_co2* co2 = nullptr;
  ASSERT_EQ(ovl_co2_open_collective(&options, &parameter, 1, &collective, &co2), OVL_OK) << ovl_error_text();
  for (int i = 0; i < 6; ++i) {
    for (float& value : x) value -= 0.25f;
    ASSERT_EQ(ovl_co2_on_inner_step(co2, 0.1), OVL_OK) << ovl_error_text();
  }
  ASSERT_EQ(ovl_co2_flush(co2), OVL_OK);
  float anchor[3];
  EXPECT_EQ(ovl_co2_anchor(co2, anchor, 2), OVL_INVALID_ARGUMENT);
  ASSERT_EQ(ovl_co2_anchor(co2, anchor, 3), OVL_OK);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(anchor[i], x[i]);
  auto stats = sized<ovl_co2_stats>();
  ASSERT_EQ(ovl_co2_stats_last(co2, &stats), OVL_OK);
  EXPECT_EQ(stats.rounds, 3);
  EXPECT_EQ(stats.steps, 2);
  EXPECT_EQ(alone.launched, 2 + 3 * 2);
  EXPECT_EQ(alone.waited, alone.launched);
  EXPECT_EQ(ovl_co2_on_inner_step(co2, -1), OVL_INVALID_ARGUMENT);
  // A transport that fails: its code, and where.
  alone.code_of_wait = OVL_TIMEOUT;
  for (int i = 0; i < 3; ++i) ASSERT_EQ(ovl_co2_on_inner_step(co2, 0.1), OVL_OK);
  EXPECT_EQ(ovl_co2_on_inner_step(co2, 0.1), OVL_TIMEOUT);
  EXPECT_NE(std::string(ovl_error_text()).find("round 3, header"), std::string::npos) << ovl_error_text();
  EXPECT_EQ(ovl_co2_close(co2), OVL_OK);
  EXPECT_EQ(ovl_co2_flush(co2), OVL_CLOSED);
}

TEST(CapiCo2, RefusesBadOptionsBeforeItTalks) {
  Alone alone;
  auto collective = sized<ovl_collective>();
  collective.size = 1;
  collective.all_reduce = Alone::all_reduce;
  collective.wait = Alone::wait;
  collective.user = &alone;
  float x = 1;
  const ovl_co2_parameter parameter = {"x", &x, 1, OVL_FP32};
  ovl_co2* co2 = nullptr;
  const auto open = [&](const ovl_co2_options& options, const ovl_co2_parameter& of, uint64_t count) {
    return ovl_co2_open_collective(&options, &of, count, &collective, &co2);
  };
  ovl_co2_options options = options_of();
  options.tau = 0;
  EXPECT_EQ(open(options, parameter, 1), OVL_INVALID_ARGUMENT);
  options = options_of();
  options.rule = 4;
  EXPECT_EQ(open(options, parameter, 1), OVL_INVALID_ARGUMENT);
  options = options_of();
  options.struct_size = 1;
  EXPECT_EQ(open(options, parameter, 1), OVL_VERSION_MISMATCH);
  EXPECT_EQ(open(options_of(), parameter, 0), OVL_INVALID_ARGUMENT);
  EXPECT_EQ(open(options_of(), {"x", nullptr, 1, OVL_FP32}, 1), OVL_INVALID_ARGUMENT);
  EXPECT_EQ(open(options_of(), {"x", &x, 1, OVL_I32}, 1), OVL_INVALID_ARGUMENT);
  collective.size = 0;
  EXPECT_EQ(open(options_of(), parameter, 1), OVL_INVALID_ARGUMENT);
  EXPECT_EQ(alone.launched, 0);
  EXPECT_EQ(co2, nullptr);
}

}  // namespace
}  // namespace overlace
