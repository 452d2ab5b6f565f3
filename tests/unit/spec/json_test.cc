#include <gtest/gtest.h>

#include <string>

#include "overlace/error.h"
#include "overlace/schedule.h"
#include "src/spec/digest.h"
#include "src/spec/expand.h"
#include "tests/unit/spec/operators.h"

namespace overlace::spec {
namespace {

OpSpec sample(const std::string& name) {
  OpSpec op;
  op.op = name;
  op.m = 65;
  op.n = 24;
  op.k = 40;
  op.ranks = 3;
  op.bias = name != "ag_wgrad";
  return op;
}

/// The message of the refusal; empty if the text is accepted.
std::string refusal(const std::string& text) {
  try {
    Schedule::from_json(text);
  } catch (const ScheduleError& error) {
    return error.what();
  }
  return "";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

TEST(ScheduleJson, RoundTripsEveryFamily) {
  for (const std::string& name : test::all_operators()) {
    for (const std::string& family : families(name)) {
      const Schedule schedule = make_schedule(sample(name), family, 2);
      const std::string text = schedule.to_json();
      const Schedule back = Schedule::from_json(text);
      EXPECT_EQ(back, schedule) << family;
      EXPECT_EQ(back.to_json(), text) << family;
      EXPECT_LE(text.size(), 4096u) << family;
      EXPECT_EQ(text.find(' '), std::string::npos) << family;
    }
  }
}

TEST(ScheduleJson, KeepsTypesOfParams) {
  Schedule schedule = make_schedule(sample("ag_gemm"), "library");
  schedule.params["x"] = 2.0;
  schedule.params["y"] = int64_t{2};
  schedule.params["z"] = false;
  EXPECT_EQ(Schedule::from_json(schedule.to_json()), schedule);
}

TEST(ScheduleJson, RefusesWithThePlaceTheValueAndWhatIsWanted) {
  const std::string good = make_schedule(sample("ag_gemm"), "hetero_fused_1d", 2).to_json();
  ASSERT_EQ(refusal(good), "");
  const struct {
    const char *from, *to, *message;
  } cases[] = {
      {"\"kind\":\"gemm\"", "\"kind\":\"gem\"", "/tasks/1/kind: got \"gem\", wanted one of gemm, tiles, copy"},
      {"\"op\":", "\"opp\":", "/opp"},
      {"\"overlace_schedule\":1", "\"overlace_schedule\":2",
       "/overlace_schedule: got 2, wanted an integer from 1 to 1"},
      {"\"order\":\"s*G+p\"", "\"order\":\"s*G+\"", "/tasks/0/order: expression \"s*G+\", column 5"},
      {"\"order\":\"s*G+p\"", "\"order\":1.5", "/tasks/0/order: got 1.5, wanted an integer or an expression"},
      {"[\"credit\",1,\"system\"]", "[\"credit\",1,\"galaxy\"]", "/signals/1/2: got \"galaxy\""},
      {"[\"M\",\"K\"],2]", "[\"M\",\"K\"],0]", "/buffers/4/4: got 0, wanted an integer from 1"},
      {"\"deterministic\":true", "\"deterministic\":1", "/deterministic: got 1, wanted true or false"},
      {"\"off\":[0,", "\"off\":[0.5,", "/tables/off/0: got 0.5"},
      {"\"previous\":true", "\"previus\":true", "/tasks/0/waits/0/4/previus"},
      {"[\"p\",1,\"G\"]", "[\"p\",1]", "wanted [variable, begin, end]"},
      {"[\"p\",1,\"G\"]", "[\"1p\",1,\"G\"]", "wanted a name"},
      {"{\"buffers\"", "[{\"buffers\"", "schedule"},
  };
  for (const auto& c : cases) {
    const std::string message = refusal(replaced(good, c.from, c.to));
    EXPECT_NE(message.find(c.message), std::string::npos) << c.to << " gave: " << message;
  }
}

TEST(ScheduleJson, IgnoresExtensionKeys) {
  const Schedule schedule = make_schedule(sample("gemm_rs"), "serial");
  const std::string text = replaced(schedule.to_json(), "{\"buffers\"", "{\"x-note\":[1,{}],\"buffers\"");
  EXPECT_EQ(Schedule::from_json(text), schedule);
}

TEST(ScheduleJson, SurvivesEveryTruncation) {
  const std::string good = make_schedule(sample("gemm_ar"), "uniform_fused_2d", 2).to_json();
  for (size_t n = 0; n < good.size(); n += 7) EXPECT_NE(refusal(good.substr(0, n)), "") << n;
}

TEST(Digest, HasThePublishedValuesOfFnv1a) {
  EXPECT_EQ(hash128(""), "6c62272e07bb014262b821756295c58d");
  EXPECT_EQ(hash128("a"), "d228cb696f1a8caf78912b704e4a8964");
  EXPECT_EQ(hash128("foobar"), "343e1662793c64bf6f0d3597ba446f18");
}

TEST(Digest, DependsOnEveryField) {
  const Schedule schedule = make_schedule(sample("ag_gemm"), "hetero_fused_1d", 2);
  const std::string before = digest(schedule);
  EXPECT_EQ(digest(Schedule::from_json(schedule.to_json())), before);
  Schedule other = schedule;
  other.tables["off"][1] += 1;
  EXPECT_NE(digest(other), before);
  other = schedule;
  other.tasks[0].waits[0].previous = false;
  EXPECT_NE(digest(other), before);
  other = schedule;
  other.buffers.back().depth = 3;
  EXPECT_NE(digest(other), before);
}

TEST(SchedulePrint, ShowsLanesTasksAndWhoWaitsForWhom) {
  const std::string text = make_schedule(sample("ag_gemm"), "hetero_fused_1d", 2).to_string();
  EXPECT_NE(text.find("ag_gemm hetero_fused_1d M 65 N 24 K 40 G 3 q 2 dtype bf16\n"), std::string::npos) << text;
  EXPECT_NE(text.find("  ce 0: push[s=0..q, p=1..G]: copy A -> X@((r-p)%G); waits credit[0] of (r-p)%G"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("waits arrived[s] of (p+min"), std::string::npos) << text;
}

}  // namespace
}  // namespace overlace::spec
