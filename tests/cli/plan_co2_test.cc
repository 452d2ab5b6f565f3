// `overlace plan co2`: by link, network and machine, as data, and what is refused.
#include <gtest/gtest.h>

#include "src/base/json.h"
#include "src/train/co2/timing.h"
#include "tests/cli/support/command.h"
#include "tests/cli/support/files.h"

namespace overlace::cli_test {
namespace {

using base::Json;

Result plan_co2(std::vector<std::string> args, const Directory& directory) {
  Command command;
  command.args = {"plan", "co2"};
  command.args.insert(command.args.end(), args.begin(), args.end());
  command.env = {{"CUDA_VISIBLE_DEVICES", ""}};
  command.directory = directory.path();
  return Process(command).wait();
}

double number(const Json& json, const char* key) { return json.find(key)->as_double(); }

TEST(PlanCo2, TakesTheClosedFormOverALink) {
  const Directory directory;
  const std::vector<std::string> words = {"--parameters", "1e6", "--step-ms", "50", "--link", "20MB/s,50us"};
  std::vector<std::string> as_data = words;
  as_data.insert(as_data.end(), {"--groups", "3", "--shards", "2", "--wire-bytes", "2", "--tau", "7", "--json", "-"});
  const Result result = plan_co2(as_data, directory);
  ASSERT_EQ(result.exit, 0) << result.err;
  const Json got = *Json::parse(result.out);
  const double wanted_us = train::all_reduce_us({3, 20, 50}, 1e6);  // half of 1e6 parameters, 2 bytes each
  EXPECT_DOUBLE_EQ(number(got, "all_reduce_us"), wanted_us);
  const train::TauPlan plan = train::plan_tau(50e3, wanted_us);
  EXPECT_EQ(got.find("tau_min")->as_int(), plan.tau_min);
  bool has_seven = false;
  for (const Json& row : got.find("taus")->as_array()) {
    const int64_t tau = row.find("tau")->as_int();
    has_seven = has_seven || tau == 7;
    EXPECT_DOUBLE_EQ(number(row, "exposed"), train::exposed_share(tau, 50e3, wanted_us));
  }
  EXPECT_TRUE(has_seven);

  const Result table = plan_co2(words, directory);
  ASSERT_EQ(table.exit, 0) << table.err;
  EXPECT_NE(table.out.find("2 groups of 1, 4.0 MB a rank over 20MB/s,50us"), std::string::npos) << table.out;
  EXPECT_NE(table.out.find("all-reduce 200.100 ms, step 50.000 ms"), std::string::npos) << table.out;
  EXPECT_NE(table.out.find(">        5     250.000       0.0 %"), std::string::npos) << table.out;
  EXPECT_NE(table.out.find("         1     200.100      75.0 %"), std::string::npos) << table.out;
}

TEST(PlanCo2, TakesTheMessagesOfANetwork) {
  const Directory directory;
  const Result result = plan_co2(
      {"--parameters", "1e9", "--step-ms", "100", "--network", "ring(8, 25)", "--shards", "2", "--json", "plan.json"},
      directory);
  ASSERT_EQ(result.exit, 0) << result.err;
  const Json got = *Json::parse(directory.read("plan.json"));
  EXPECT_EQ(got.find("groups")->as_int(), 4);
  // The same all-reduce as that of whole simulated steps.
  Command command;
  command.args = {"sim",         "graph",     "co2",    "--rule",   "co2", "--network",
                  "ring(8, 25)", "--group",   "2",      "--rounds", "4",   "--parameters",
                  "1e9",         "--step-us", "100000", "--json",   "-"};
  command.directory = directory.path();
  const Result simulated = Process(command).wait();
  ASSERT_EQ(simulated.exit, 0) << simulated.err;
  const Json rows = *Json::parse(simulated.out)->find("rows");
  EXPECT_DOUBLE_EQ(number(got, "all_reduce_us"), number(rows.as_array()[0], "all_reduce_us"));
  EXPECT_GT(number(got, "all_reduce_us"), 0);
}

TEST(PlanCo2, TakesWhatAMachineMeasured) {
  const Directory directory;
  const Result small =
      plan_co2({"--parameters", "1e6", "--step-ms", "1", "--machine", "h200x4", "--json", "-"}, directory);
  const Result large =
      plan_co2({"--parameters", "1e9", "--step-ms", "1", "--machine", "h200x4", "--json", "-"}, directory);
  ASSERT_EQ(small.exit, 0) << small.err;
  ASSERT_EQ(large.exit, 0) << large.err;
  const Json few = *Json::parse(small.out), many = *Json::parse(large.out);
  EXPECT_EQ(few.find("groups")->as_int(), 4);
  EXPECT_GT(number(many, "all_reduce_us"), 100 * number(few, "all_reduce_us"));
  EXPECT_GT(many.find("tau_min")->as_int(), few.find("tau_min")->as_int());
}

TEST(PlanCo2, RefusesWhatMakesNoSense) {
  const Directory directory;
  const auto expect = [&](std::vector<std::string> more, const std::string& message) {
    std::vector<std::string> words = {"--parameters", "1e6", "--step-ms", "50"};
    words.insert(words.end(), more.begin(), more.end());
    const Result result = plan_co2(words, directory);
    EXPECT_EQ(result.exit, 2) << result.err;
    EXPECT_EQ(result.err, "overlace: error: " + message + "\n");
    EXPECT_TRUE(directory.entries().empty());
  };
  expect({}, "0 of --link, --network and --machine are given, wanted one");
  expect({"--link", "1GB/s", "--machine", "h200x4"}, "2 of --link, --network and --machine are given, wanted one");
  expect({"--link", "none"}, "--link is none, wanted such as 1GB/s,50us");
  expect({"--link", "1GB/s,1us", "--groups", "-1"}, "--groups is -1, wanted 1 to 1048576");
  expect({"--link", "1GB/s,1us", "--shards", "0"}, "--shards is 0, wanted 1 to 1048576");
  expect({"--link", "1GB/s,1us", "--tau", "-2"}, "--tau is -2, wanted 0 to 1000000000");
  expect({"--network", "all"}, "--network is all, wanted one network");
  expect({"--network", "ring(8, 25)", "--shards", "3"}, "co2: groups of 3 ranks, wanted a divisor of 8");
  expect({"--network", "ring(8, 25)", "--groups", "2"},
         "--groups is given without --link, wanted: groups follow from the network or the machine and --shards");
  expect({"--machine", "h200x4", "--shards", "2"},
         "--shards is 2 with --machine, wanted 1: its all-reduce was measured over all of its ranks");
  const Result missing = plan_co2({"--step-ms", "50", "--link", "1GB/s"}, directory);
  EXPECT_EQ(missing.exit, 2);
  EXPECT_NE(missing.err.find("--parameters is required"), std::string::npos) << missing.err;
}

}  // namespace
}  // namespace overlace::cli_test
