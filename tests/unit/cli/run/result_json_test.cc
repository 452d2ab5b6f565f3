#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "cli/run/result.h"

namespace overlace::cli {
namespace {

spec::OpSpec problem(const char* op, int64_t m, int64_t n, int64_t k) {
  spec::OpSpec out;
  out.op = op;
  out.m = m;
  out.n = n;
  out.k = k;
  out.ranks = 2;
  out.dtype = out.out_dtype = DType::fp32;
  return out;
}

SiteResult site(const char* name, const char* op, int64_t n, int64_t k, SiteTimes times) {
  SiteResult out;
  out.name = name;
  out.op = problem(op, 1024, n, k);
  out.layers = 2;
  out.chosen = "hetero_fused_1d:4";
  out.reason = std::string("because of ") + name;
  out.times = times;
  return out;
}

RunResult example() {
  RunResult r;
  r.version = "0.1.0";
  r.backend = "cpu";
  r.provider = "reference";
  r.link = "200MB/s,20us";
  r.ranks = 2;
  r.model = "tiny";
  r.layers = 2;
  r.tokens = 1024;
  r.sequence_length = 256;
  r.seed = 7;
  r.repetitions = 5;
  r.sites = {site("qkv", "ag_gemm", 512, 512, {9000, 5000, 9500, 14500, 14000, 10000}),
             site("down", "gemm_rs", 512, 768, {12000, 6000, 12500, 18000, 18000, 13500})};
  r.total_serial_us = 80000;
  r.total_overlapped_us = 64000;
  r.stack_limit_us = 60500;
  r.error = 2e-6;
  r.baseline_error = 1.5e-6;
  r.error_limit = 3.1e-6;
  r.ok = true;
  return r;
}

TEST(SiteTimes, HiddenIsTheSavedShareOfTheShorterSide) {
  EXPECT_DOUBLE_EQ(*example().sites[0].times.hidden(), 4000.0 / 5000);
  SiteTimes slower{9000, 5000, 0, 14000, 14000, 14500};
  EXPECT_DOUBLE_EQ(*slower.hidden(), -0.1);  // nothing is clipped
  SiteTimes alone{9000, 0, 9000, 9000, 9000, 9000};
  EXPECT_FALSE(alone.hidden().has_value());
  SiteTimes no_room{9000, 170, 9100, 9170, 9170, 9500};  // noise of the large side, as a share of next to nothing
  EXPECT_FALSE(no_room.hidden().has_value());
  no_room.comm_us = 190;
  EXPECT_TRUE(no_room.hidden().has_value());
}

TEST(RunResult, TotalsCountEverySite) {
  const RunResult r = example();
  EXPECT_DOUBLE_EQ(*r.total_hidden(), (4000.0 + 4500.0) / (5000.0 + 6000.0));
}

TEST(RunResult, ASiteCountsAsOftenAsThereAreLayersThatHaveIt) {
  RunResult r = example();
  r.sites[1].layers = 1;
  EXPECT_DOUBLE_EQ(*r.total_hidden(), (2 * 4000.0 + 4500.0) / (2 * 5000.0 + 6000.0));
  EXPECT_DOUBLE_EQ(r.sites_limit_us(), 80000 - 2 * (14000.0 - 9500) - (18000.0 - 12500));
  EXPECT_EQ(to_json(r).find("sites")->as_array()[1].find("layers")->as_int(), 1);
}

TEST(RunResult, ExpertsHaveATimeAndNothingToHide) {
  RunResult r = example();
  const RunResult without = r;
  SiteResult moe = site("moe", "moe", 256, 384, {.serial_us = 7000, .overlapped_us = 7000});
  moe.experts = ExpertsResult{10, 2, 1.25};
  r.sites.push_back(moe);
  EXPECT_EQ(r.sites_limit_us(), without.sites_limit_us());
  EXPECT_EQ(r.total_hidden(), without.total_hidden());
  const base::Json json = to_json(r);
  const base::Json& last = json.find("sites")->as_array().back();
  EXPECT_EQ(last.find("experts")->as_int(), 10);
  EXPECT_EQ(last.find("top_k")->as_int(), 2);
  EXPECT_EQ(last.find("load")->as_double(), 1.25);
  EXPECT_EQ(last.find("serial_us")->as_double(), 7000);
  EXPECT_TRUE(last.find("limit_us")->is_null());
  EXPECT_TRUE(last.find("hidden")->is_null());
  EXPECT_EQ(json.find("sites")->as_array().front().find("experts"), nullptr);
}

TEST(RunResult, LimitsOfSitesAreNoLimitOfAllLayers) {
  const RunResult r = example();
  EXPECT_DOUBLE_EQ(r.sites_limit_us(), 80000 - 2 * ((14000.0 - 9500) + (18000.0 - 12500)));
  EXPECT_NE(r.sites_limit_us(), r.stack_limit_us);
}

TEST(RunResultJson, HasTheSchemaThatOthersRead) {
  const base::Json json = to_json(example());
  EXPECT_EQ(json.find("schema")->as_string(), "overlace.run/1");
  EXPECT_TRUE(json.find("ok")->as_bool());
  EXPECT_EQ(json.find("backend")->as_string(), "cpu");
  EXPECT_TRUE(json.find("emulated")->as_bool());
  EXPECT_EQ(json.find("ranks")->as_int(), 2);
  EXPECT_EQ(json.find("model")->as_string(), "tiny");
  EXPECT_DOUBLE_EQ(json.find("error")->as_double(), 2e-6);
  EXPECT_DOUBLE_EQ(json.find("baseline_error")->as_double(), 1.5e-6);
  ASSERT_EQ(json.find("sites")->as_array().size(), 2u);
  const base::Json& down = json.find("sites")->as_array()[1];
  EXPECT_EQ(down.find("name")->as_string(), "down");
  EXPECT_EQ(down.find("op")->as_string(), "gemm_rs");
  EXPECT_EQ(down.find("m")->as_int(), 1024);
  EXPECT_EQ(down.find("n")->as_int(), 512);
  EXPECT_EQ(down.find("k")->as_int(), 768);
  EXPECT_EQ(down.find("schedule")->as_string(), "hetero_fused_1d:4");
  EXPECT_DOUBLE_EQ(down.find("serial_us")->as_double(), 18000);
  EXPECT_DOUBLE_EQ(down.find("overlapped_us")->as_double(), 13500);
  EXPECT_DOUBLE_EQ(down.find("limit_us")->as_double(), 12500);
  EXPECT_DOUBLE_EQ(down.find("hidden")->as_double(), 0.75);
  for (const char* key : {"serial_us", "overlapped_us", "limit_us", "hidden"})
    EXPECT_TRUE(json.find("total")->find(key)->is_number()) << key;
  EXPECT_DOUBLE_EQ(json.find("total")->find("limit_us")->as_double(), 60000) << "what the sites could hide";
  EXPECT_DOUBLE_EQ(json.find("total")->find("stack_limit_us")->as_double(), 60500) << "measured";
}

TEST(RunResultJson, SaysNothingAboutWhatWasNotTimed) {
  RunResult r = example();
  for (SiteResult& s : r.sites) s.times = {};
  r.total_serial_us = r.total_overlapped_us = r.stack_limit_us = 0;
  r.ok = false;
  r.error = INFINITY;
  r.why_not = "not finite";
  const auto json = base::Json::parse(to_json(r).dump());
  ASSERT_TRUE(json.ok());
  EXPECT_TRUE(json->find("sites")->as_array()[0].find("serial_us")->is_null());
  EXPECT_TRUE(json->find("sites")->as_array()[0].find("hidden")->is_null());
  EXPECT_TRUE(json->find("total")->find("limit_us")->is_null());
  EXPECT_TRUE(json->find("total")->find("stack_limit_us")->is_null());
  EXPECT_TRUE(json->find("error")->is_null());
  EXPECT_FALSE(json->find("ok")->as_bool());
}

TEST(RunResultTable, IsTheCommittedOne) {
  std::ifstream file(std::string(OVERLACE_SOURCE_DIR) + "/tests/golden/run_table.txt");
  std::stringstream want;
  want << file.rdbuf();
  EXPECT_EQ(to_table(example()), want.str());
}

TEST(RunResultJson, SaysWhatStreamsAndWhatBinds) {
  RunResult r = example();
  EXPECT_TRUE(to_json(r).find("weights")->is_null());
  r.weights = WeightsResult{"disk", 1 << 20, 1000, 2, 4, 8000, 2000, 7000};
  const base::Json json = to_json(r);
  const base::Json& w = *json.find("weights");
  EXPECT_EQ(w.find("source")->as_string(), "disk");
  EXPECT_EQ(w.find("device_bytes")->as_int(), 1 << 20);
  EXPECT_EQ(w.find("layer_bytes")->as_int(), 1000);
  EXPECT_EQ(w.find("resident_layers")->as_int(), 2);
  EXPECT_EQ(w.find("streamed_layers")->as_int(), 4);
  EXPECT_DOUBLE_EQ(w.find("transfer_us")->as_double(), 8000);
  EXPECT_DOUBLE_EQ(w.find("waited_us")->as_double(), 2000);
  EXPECT_DOUBLE_EQ(w.find("hidden")->as_double(), 0.75);
  EXPECT_EQ(w.find("binds")->as_string(), "disk");
  r.weights->disk_us = 3000;
  EXPECT_EQ(r.weights->binds(), "host memory");
  r.weights->waited_us = 300;
  EXPECT_EQ(r.weights->binds(), "compute");
  const std::string table = to_table(r);
  EXPECT_NE(table.find("compute binds"), std::string::npos) << table;
  EXPECT_NE(
      table.find("weights: 4 of 6 layers of 1000 bytes stream from disk, 8000 us a pass, of which the layers wait "
                 "300 us; compute binds\n"),
      std::string::npos)
      << table;
  r.weights->streamed_layers = 0;
  EXPECT_FALSE(r.weights->hidden().has_value());
  EXPECT_NE(to_table(r).find("weights: all 2 layers fit into 1048576 bytes\n"), std::string::npos);
}

TEST(RunResultJson, SaysWhatRestsInHostMemory) {
  RunResult r = example();
  EXPECT_TRUE(to_json(r).find("activations")->is_null());
  r.activations = ActivationsResult{4096, 800, 200};
  const base::Json json = to_json(r);
  const base::Json& a = *json.find("activations");
  EXPECT_EQ(a.find("resting_bytes")->as_int(), 4096);
  EXPECT_DOUBLE_EQ(a.find("transfer_us")->as_double(), 800);
  EXPECT_DOUBLE_EQ(a.find("waited_us")->as_double(), 200);
  EXPECT_DOUBLE_EQ(a.find("hidden")->as_double(), 0.75);
  const std::string table = to_table(r);
  EXPECT_NE(table.find("\nactivations  host"), std::string::npos) << table;
  EXPECT_NE(table.find("activations: 4096 bytes of a rank rest in host memory, 800 us a pass, of which the layers "
                       "wait 200 us\n"),
            std::string::npos)
      << table;
}

TEST(RunResultTable, LabelsEmulationAndWrongResults) {
  RunResult r = example();
  EXPECT_NE(to_table(r).find("EMULATED link between ranks: 200MB/s,20us"), std::string::npos);
  r.link.clear();
  EXPECT_EQ(to_table(r).find("EMULATED"), std::string::npos);
  r.ok = false;
  r.why_not = "a reason";
  EXPECT_NE(to_table(r).find("WRONG: a reason"), std::string::npos);
}

TEST(ScheduleName, IsFamilyWithoutSuffixAndDegree) {
  spec::OpSpec op = problem("gemm_rs", 64, 32, 16);
  EXPECT_EQ(schedule_name(spec::make_schedule(op, "library")), "library");
  EXPECT_EQ(schedule_name(spec::make_schedule(op, "hetero_fused_1d", 4)), "hetero_fused_1d:4");
  op.op = "ag_gemm";
  EXPECT_EQ(schedule_name(spec::make_schedule(op, "uniform_fused_1d", 2)), "uniform_fused_1d:2");
}

}  // namespace
}  // namespace overlace::cli
