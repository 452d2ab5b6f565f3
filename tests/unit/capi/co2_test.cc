// CO2 through the C API: the planner of tau, a caller's transport, handles and bad input.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "overlace/capi_co2.h"
#include "src/base/trace.h"
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
      plan.tau = 7;
      ASSERT_EQ(ovl_co2_plan_tau(&plan), OVL_OK) << ovl_error_text();
      const train::RoundTime seven = train::co2_round(7, step_ms * 1e3, all_reduce_us, 0);
      EXPECT_DOUBLE_EQ(plan.exposed_of_tau, seven.exposed_us / seven.us);
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
  plan.tau = -1;
  EXPECT_EQ(ovl_co2_plan_tau(&plan), OVL_INVALID_ARGUMENT);
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
  std::string aborted;
  static int abort(void* user, int code, const char* why) {
    static_cast<Alone*>(user)->aborted = std::string(ovl_error_name(code)) + ": " + why;
    return OVL_OK;
  }
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

ovl_collective collective_of(Alone& alone) {
  auto collective = sized<ovl_collective>();
  collective.size = 1;
  collective.all_reduce = Alone::all_reduce;
  collective.wait = Alone::wait;
  collective.abort = Alone::abort;
  collective.user = &alone;
  return collective;
}

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

TEST(CapiCo2, MemoryOfAGpuIsForTransportsThatTakeIt) {
  int32_t host = -1, nccl = -1;
  ASSERT_EQ(ovl_co2_device_transports(&host, &nccl), OVL_OK) << ovl_error_text();
  EXPECT_TRUE(host == 0 || host == 1);
  EXPECT_LE(nccl, host);
  EXPECT_EQ(ovl_co2_device_transports(nullptr, &nccl), OVL_INVALID_ARGUMENT);
  Alone alone;
  const ovl_collective collective = collective_of(alone);
  float value = 1;
  ovl_co2_parameter parameter{"p", &value, 1, OVL_FP32, 0};
  ovl_co2_options options = options_of();
  ovl_co2* co2 = nullptr;
  EXPECT_EQ(ovl_co2_open_nccl(&options, &parameter, 1, nullptr, 0, &co2), OVL_INVALID_ARGUMENT);
  EXPECT_NE(std::string(ovl_error_text()).find("on_device is 0, wanted 1"), std::string::npos) << ovl_error_text();
  options.on_device = 1;
  EXPECT_EQ(ovl_co2_open_collective(&options, &parameter, 1, &collective, &co2), OVL_INVALID_ARGUMENT);
  EXPECT_NE(std::string(ovl_error_text()).find("on_device is 1, wanted 0"), std::string::npos) << ovl_error_text();
  options.device = -1;
  EXPECT_EQ(ovl_co2_open_collective(&options, &parameter, 1, &collective, &co2), OVL_INVALID_ARGUMENT);
  options.on_device = 2;
  EXPECT_EQ(ovl_co2_open_collective(&options, &parameter, 1, &collective, &co2), OVL_INVALID_ARGUMENT);
  EXPECT_EQ(alone.launched, 0);
}

TEST(CapiCo2, AnAbortTellsTheTransportWhy) {
  Alone alone;
  const ovl_collective collective = collective_of(alone);
  float x = 1;
  const ovl_co2_parameter parameter = {"x", &x, 1, OVL_FP32, 0};
  const ovl_co2_options options = options_of();
  ovl_co2* co2 = nullptr;
  ASSERT_EQ(ovl_co2_open_collective(&options, &parameter, 1, &collective, &co2), OVL_OK) << ovl_error_text();
  EXPECT_EQ(ovl_co2_abort(co2, nullptr), OVL_INVALID_ARGUMENT);
  EXPECT_EQ(alone.aborted, "");
  EXPECT_EQ(ovl_co2_abort(co2, "the loss exploded"), OVL_OK);
  EXPECT_EQ(alone.aborted, "aborted: rank 0 of 1: the loss exploded");
  EXPECT_EQ(ovl_co2_close(co2), OVL_OK);
  EXPECT_EQ(ovl_co2_abort(co2, "again"), OVL_CLOSED);
}

TEST(CapiCo2, ManyBucketsAreOnTheirWayAtOnce) {
  Alone alone;
  const ovl_collective collective = collective_of(alone);
  std::vector<float> x(5000, 1.0f);
  std::vector<ovl_co2_parameter> parameters;
  for (float& value : x) parameters.push_back({"x", &value, 1, OVL_FP32, 0});
  ovl_co2_options options = options_of();
  options.tau = 1;
  options.bucket_bytes = 4;
  ovl_co2* co2 = nullptr;
  ASSERT_EQ(ovl_co2_open_collective(&options, parameters.data(), parameters.size(), &collective, &co2), OVL_OK)
      << ovl_error_text();
  for (int i = 0; i < 3; ++i) ASSERT_EQ(ovl_co2_on_inner_step(co2, 0.1), OVL_OK) << ovl_error_text();
  ASSERT_EQ(ovl_co2_flush(co2), OVL_OK);
  EXPECT_EQ(alone.launched, 2 + 3 * 5001);
  EXPECT_EQ(alone.waited, alone.launched);
  EXPECT_EQ(ovl_co2_close(co2), OVL_OK);
}

TEST(CapiCo2, RunsOverTheCallersTransport) {
  Alone alone;
  const ovl_collective collective = collective_of(alone);
  std::vector<float> x = {1, 2, 3};
  const ovl_co2_parameter parameter = {"x", x.data(), 3, OVL_FP32, 0};
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
  int64_t round = -1;
  ASSERT_EQ(ovl_co2_round(co2, &round), OVL_OK);
  EXPECT_EQ(round, 3);
  EXPECT_EQ(ovl_co2_round(co2, nullptr), OVL_INVALID_ARGUMENT);
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

/// One rank of a group of two, whose other rank holds five elements and always adds ones to the sums.
TEST(CapiCo2, AddsUpInsideTheGroup) {
  Alone alone;
  const ovl_collective collective = collective_of(alone);
  std::vector<float> x = {1, 2, 3};
  const ovl_co2_parameter parameters[] = {{"x", x.data(), 3, OVL_FP32, 8}, {"y", nullptr, 0, OVL_FP32, 2}};
  ovl_co2_options options = options_of();
  options.shard_degree = 2;
  int code = OVL_OK;
  options.user = &code;
  options.reduce_in_group = [](void* user, double* values, uint64_t count) {
    EXPECT_EQ(count, 10u);  // five sums of each parameter
    for (uint64_t i = 0; i < count; i += 5) values[i + 1] += 1;
    return *static_cast<int*>(user);
  };
  ovl_co2* co2 = nullptr;
  ASSERT_EQ(ovl_co2_open_collective(&options, parameters, 2, &collective, &co2), OVL_OK) << ovl_error_text();
  int64_t writes = -1;
  for (int i = 0; i < 4; ++i) {
    for (float& value : x) value -= 0.25f;
    ASSERT_EQ(ovl_co2_on_inner_step(co2, 0.1), OVL_OK) << ovl_error_text();
    ASSERT_EQ(ovl_co2_writes(co2, &writes), OVL_OK);
    EXPECT_EQ(writes, (i + 1) / 2) << i;
  }
  auto stats = sized<ovl_co2_stats>();
  ASSERT_EQ(ovl_co2_stats_last(co2, &stats), OVL_OK);
  EXPECT_DOUBLE_EQ(stats.increment_norm, std::sqrt(3 * 0.25 + 2));  // (2 * 0.25)^2 of each of three, and the ones
  EXPECT_EQ(ovl_co2_writes(co2, nullptr), OVL_INVALID_ARGUMENT);
  code = 7;
  ASSERT_EQ(ovl_co2_on_inner_step(co2, 0.1), OVL_OK);
  EXPECT_EQ(ovl_co2_on_inner_step(co2, 0.1), OVL_ENGINE);
  EXPECT_NE(std::string(ovl_error_text()).find("reduce_in_group of the caller returned 7"), std::string::npos);
  EXPECT_EQ(ovl_co2_close(co2), OVL_OK);
}

TEST(CapiCo2, TracesRoundsOfTheCallersTransport) {
  Alone alone;
  const ovl_collective collective = collective_of(alone);
  std::vector<float> x = {1, 2, 3};
  const ovl_co2_parameter parameter = {"x", x.data(), 3, OVL_FP32, 0};
  const ovl_co2_options options = options_of();
  ovl_co2* co2 = nullptr;
  ASSERT_EQ(ovl_co2_open_collective(&options, &parameter, 1, &collective, &co2), OVL_OK) << ovl_error_text();
  for (int i = 0; i < 7; ++i) ASSERT_EQ(ovl_co2_on_inner_step(co2, 0.1), OVL_OK) << ovl_error_text();
  const char* text = nullptr;
  EXPECT_EQ(ovl_co2_trace(co2, -1, &text), OVL_INVALID_ARGUMENT);
  EXPECT_EQ(ovl_co2_trace(co2, 5, nullptr), OVL_INVALID_ARGUMENT);
  ASSERT_EQ(ovl_co2_trace(co2, 5, &text), OVL_OK) << ovl_error_text();
  const base::Trace trace = base::Trace::from_json(text).value();
  EXPECT_EQ(trace.title, "rounds of co2, measured");
  EXPECT_FALSE(trace.emulated);
  std::map<std::string, int> names;
  int64_t begin = 0;
  for (const base::Span& span : trace.spans) {
    EXPECT_EQ(span.rank, 5);
    EXPECT_LE(span.begin_ns, span.end_ns);
    EXPECT_EQ(span.bytes, span.name == "all_reduce" ? 12 : 0);
    if (span.name != "steps") continue;
    EXPECT_GE(span.begin_ns, begin);
    begin = span.end_ns;
    ++names["steps in order"];
  }
  for (const base::Span& span : trace.spans) ++names[span.name];
  // Three rounds of two steps; the exchange of the third is on its way, the seventh step in none.
  EXPECT_EQ(names["steps"], 3);
  EXPECT_EQ(names["update"], 3);
  EXPECT_EQ(names["all_reduce"], 2);
  const std::string kept = text;
  const char* texts[] = {kept.c_str(), "{"};
  EXPECT_EQ(ovl_co2_trace_write(texts, 0, "/tmp/none.json"), OVL_INVALID_ARGUMENT);
  EXPECT_EQ(ovl_co2_trace_write(texts, 1, "/tmp/none.txt"), OVL_INVALID_ARGUMENT) << ovl_error_text();
  EXPECT_NE(ovl_co2_trace_write(texts, 2, "/tmp/none.json"), OVL_OK);
  EXPECT_NE(std::string(ovl_error_text()).find("texts[1]"), std::string::npos) << ovl_error_text();
  EXPECT_EQ(ovl_co2_close(co2), OVL_OK);
}

TEST(CapiCo2, RoundsHaveTheKnobsOfTheSchedule) {
  Alone alone;
  const ovl_collective collective = collective_of(alone);
  float x = 1;
  const ovl_co2_parameter parameter = {"x", &x, 1, OVL_FP32, 0};
  ovl_co2_options options = options_of();
  {
    const ovl_co2_knobs schedule[] = {{1, -1, -1}, {3, 0.5, 0.1}};  // read at opening
    options.schedule = schedule;
    options.num_scheduled = 2;
    ovl_co2* co2 = nullptr;
    ASSERT_EQ(ovl_co2_open_collective(&options, &parameter, 1, &collective, &co2), OVL_OK) << ovl_error_text();
    std::vector<int64_t> rounds;
    for (int i = 0; i < 8; ++i) {
      rounds.push_back(-1);
      ASSERT_EQ(ovl_co2_round(co2, &rounds.back()), OVL_OK);
      ASSERT_EQ(ovl_co2_on_inner_step(co2, 0.1), OVL_OK) << ovl_error_text();
    }
    EXPECT_EQ(rounds, (std::vector<int64_t>{0, 1, 1, 1, 2, 2, 3, 3}));
    EXPECT_EQ(ovl_co2_flush(co2), OVL_OK);
    EXPECT_EQ(ovl_co2_close(co2), OVL_OK);
  }
  ovl_co2* co2 = nullptr;
  options.schedule = nullptr;
  EXPECT_EQ(ovl_co2_open_collective(&options, &parameter, 1, &collective, &co2), OVL_INVALID_ARGUMENT);
  EXPECT_NE(std::string(ovl_error_text()).find("options.schedule"), std::string::npos) << ovl_error_text();
  options.num_scheduled = 0;
  options.momentum_over_lr = 2;
  EXPECT_EQ(ovl_co2_open_collective(&options, &parameter, 1, &collective, &co2), OVL_INVALID_ARGUMENT);
  options.momentum_over_lr = 1;  // with rule co2
  EXPECT_EQ(ovl_co2_open_collective(&options, &parameter, 1, &collective, &co2), OVL_INVALID_ARGUMENT);
  EXPECT_NE(std::string(ovl_error_text()).find("momentum_over_lr is set with rule co2"), std::string::npos);
}

TEST(CapiCo2, RefusesBadOptionsBeforeItTalks) {
  Alone alone;
  ovl_collective collective = collective_of(alone);
  float x = 1;
  const ovl_co2_parameter parameter = {"x", &x, 1, OVL_FP32, 0};
  ovl_co2* co2 = nullptr;
  const auto open = [&](const ovl_co2_options& options, const ovl_co2_parameter& of, uint64_t count) {
    return ovl_co2_open_collective(&options, &of, count, &collective, &co2);
  };
  ovl_co2_options options = options_of();
  options.tau = 0;
  EXPECT_EQ(open(options, parameter, 1), OVL_INVALID_ARGUMENT);
  options = options_of();
  options.rule = 99;
  EXPECT_EQ(open(options, parameter, 1), OVL_INVALID_ARGUMENT);
  options = options_of();
  options.struct_size = 1;
  EXPECT_EQ(open(options, parameter, 1), OVL_VERSION_MISMATCH);
  EXPECT_EQ(open(options_of(), parameter, 0), OVL_INVALID_ARGUMENT);
  EXPECT_EQ(open(options_of(), {"x", &x, 2, OVL_FP32, 1}, 1), OVL_INVALID_ARGUMENT);
  options = options_of();
  options.shard_degree = 2;
  EXPECT_EQ(open(options, parameter, 1), OVL_INVALID_ARGUMENT);
  EXPECT_NE(std::string(ovl_error_text()).find("reduce_in_group is missing"), std::string::npos) << ovl_error_text();
  options = options_of();
  options.whole_boundaries = 2;
  EXPECT_EQ(open(options, parameter, 1), OVL_INVALID_ARGUMENT);
  EXPECT_NE(std::string(ovl_error_text()).find("options.whole_boundaries is 2, wanted 0 to 1"), std::string::npos)
      << ovl_error_text();
  EXPECT_EQ(open(options_of(), {"x", nullptr, 1, OVL_FP32, 0}, 1), OVL_INVALID_ARGUMENT);
  EXPECT_EQ(open(options_of(), {"x", &x, 1, OVL_I32, 0}, 1), OVL_INVALID_ARGUMENT);
  collective.size = 0;
  EXPECT_EQ(open(options_of(), parameter, 1), OVL_INVALID_ARGUMENT);
  EXPECT_EQ(alone.launched, 0);
  EXPECT_EQ(co2, nullptr);
}

}  // namespace
}  // namespace overlace
