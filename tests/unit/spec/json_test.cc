#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "overlace/error.h"
#include "overlace/schedule.h"
#include "src/spec/digest.h"
#include "src/spec/expand.h"
#include "tests/unit/spec/operators.h"

namespace overlace::spec {
namespace {

OpSpec ragged_op(const std::string& name) {
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
std::string json_refusal(const std::string& text) {
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
      const Schedule schedule = make_schedule(ragged_op(name), family, 2);
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
  Schedule schedule = make_schedule(ragged_op("ag_gemm"), "library");
  schedule.params["x"] = 2.0;
  schedule.params["y"] = int64_t{2};
  schedule.params["z"] = false;
  EXPECT_EQ(Schedule::from_json(schedule.to_json()), schedule);
}

TEST(ScheduleJson, RefusesWithThePlaceTheValueAndWhatIsWanted) {
  const std::string good = make_schedule(ragged_op("ag_gemm"), "hetero_fused_1d", 2).to_json();
  ASSERT_EQ(json_refusal(good), "");
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
    const std::string message = json_refusal(replaced(good, c.from, c.to));
    EXPECT_NE(message.find(c.message), std::string::npos) << c.to << " gave: " << message;
  }
}

TEST(ScheduleJson, IgnoresExtensionKeys) {
  const Schedule schedule = make_schedule(ragged_op("gemm_rs"), "serial");
  const std::string text = replaced(schedule.to_json(), "{\"buffers\"", "{\"x-note\":[1,{}],\"buffers\"");
  EXPECT_EQ(Schedule::from_json(text), schedule);
  EXPECT_EQ(Schedule::from_json(replaced(text, "\"params\":{", "\"params\":{\"x-note\":[1],")), schedule);
}

TEST(ScheduleJson, SurvivesEveryTruncation) {
  const std::string good = make_schedule(ragged_op("gemm_ar"), "uniform_fused_2d", 2).to_json();
  for (size_t n = 0; n < good.size(); n += 7) EXPECT_NE(json_refusal(good.substr(0, n)), "") << n;
}

TEST(Digest, HasThePublishedValuesOfFnv1a) {
  EXPECT_EQ(hash128(""), "6c62272e07bb014262b821756295c58d");
  EXPECT_EQ(hash128("a"), "d228cb696f1a8caf78912b704e4a8964");
  EXPECT_EQ(hash128("foobar"), "343e1662793c64bf6f0d3597ba446f18");
}

TEST(Digest, DependsOnEveryField) {
  const Schedule schedule = make_schedule(ragged_op("ag_gemm"), "hetero_fused_1d", 2);
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

TEST(Fingerprint, DiffersWhereTheJsonDoesButForOneParameter) {
  std::map<std::string, std::string> json_of;
  for (const auto& [op, family] : {std::pair{"ag_gemm", "hetero_fused_1d"}, std::pair{"ag_gemm", "k_slab"},
                                   std::pair{"gemm_rs", "tma_slot"}, std::pair{"gemm_ar", "grouped_unfused_1d"}}) {
    for (const int degree : {1, 2, 3}) {
      for (const int64_t m : {64, 65, 66}) {
        OpSpec problem = ragged_op(op);
        problem.m = m;
        const Schedule schedule = make_schedule(problem, family, degree);
        const auto [at, is_new] = json_of.emplace(fingerprint(schedule), schedule.to_json());
        EXPECT_TRUE(is_new || at->second == schedule.to_json()) << at->second;
        EXPECT_EQ(fingerprint(Schedule::from_json(schedule.to_json())), fingerprint(schedule));
        Schedule other = schedule;
        other.params["N"] = int64_t{7777};
        EXPECT_EQ(fingerprint(other, "N"), fingerprint(schedule, "N"));
        EXPECT_NE(fingerprint(other, "K"), fingerprint(schedule, "K"));
        EXPECT_NE(fingerprint(other), fingerprint(schedule));
      }
    }
  }
}

TEST(Fingerprint, DependsOnEveryKindOfPart) {
  const Schedule schedule = make_schedule(ragged_op("ag_gemm"), "hetero_fused_1d", 2);
  const std::pair<const char*, void (*)(Schedule&)> changes[] = {
      {"version", [](Schedule& s) { ++s.version; }},
      {"op", [](Schedule& s) { s.op += "x"; }},
      {"family", [](Schedule& s) { s.family += "x"; }},
      {"type of a parameter", [](Schedule& s) { s.params["q"] = 2.0; }},
      {"const", [](Schedule& s) { s.consts["c"] = Expr("G+1"); }},
      {"table", [](Schedule& s) { s.tables["off"][1] += 1; }},
      {"deterministic", [](Schedule& s) { s.deterministic = false; }},
      {"depth", [](Schedule& s) { s.buffers.back().depth = 3; }},
      {"shape", [](Schedule& s) { s.buffers.back().shape.emplace_back(1); }},
      {"scope", [](Schedule& s) { s.signals[0].scope = Scope::device; }},
      {"wait", [](Schedule& s) { s.tasks[0].waits[0].previous = false; }},
      {"set", [](Schedule& s) { s.tasks[0].sets[0].add = 2; }},
      {"each",
       [](Schedule& s) {
         s.tasks[0].writes[0].each = Loop{"i", 0, 2};
       }},
      {"range", [](Schedule& s) { s.tasks[0].reads[0].dims[0].count = Expr("1"); }},
      {"loop", [](Schedule& s) { s.tasks[0].loops[0].end = Expr("q+1"); }},
      {"dep", [](Schedule& s) { s.tasks[0].deps.emplace_back("x"); }},
      {"engine", [](Schedule& s) { s.tasks[0].engine = Engine::io; }},
      {"order of tasks", [](Schedule& s) { std::swap(s.tasks[0], s.tasks[1]); }},
  };
  std::set<std::string> seen{fingerprint(schedule)};
  for (const auto& [what, change] : changes) {
    Schedule other = schedule;
    change(other);
    EXPECT_TRUE(seen.insert(fingerprint(other)).second) << what;
  }
}

TEST(SchedulePrint, ShowsLanesTasksAndWhoWaitsForWhom) {
  const std::string text = make_schedule(ragged_op("ag_gemm"), "hetero_fused_1d", 2).to_string();
  EXPECT_NE(text.find("ag_gemm hetero_fused_1d M 65 N 24 K 40 G 3 q 2 dtype bf16\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\n  buffers: A (off[r+1]-off[r], K) bf16 argument, B (N, K) bf16 argument, "), std::string::npos)
      << text;
  EXPECT_EQ(text.find(",\n"), std::string::npos) << text;
  EXPECT_NE(text.find("  ce 0: push[s=0..q, p=1..G]: copy A -> X@((r-p)%G); waits credit[0] of (r-p)%G"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("waits arrived[s] of (p+min"), std::string::npos) << text;
}

}  // namespace
}  // namespace overlace::spec
