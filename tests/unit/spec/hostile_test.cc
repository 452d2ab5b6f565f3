// Schedules that nobody meant: they are refused or checked, never followed into the ground.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "overlace/error.h"
#include "src/spec/check.h"

namespace overlace::spec {
namespace {

std::string hostile_schedule(int64_t m, const char* loops, const char* slots, const char* count) {
  return R"({"overlace_schedule":1,"op":"other","family":"hostile","params":{"M":)" + std::to_string(m) +
         R"(},"buffers":[["X","symmetric","bf16",["M",8],1]],"signals":[["done",)" + slots +
         R"(]],"tasks":[{"id":"t","kind":"copy","engine":"ce","loops":)" + loops + R"(,"reads":[["X","r",[0,)" + count +
         R"(],[0,8]]],"writes":[["X","r",[0,)" + count + R"(],[0,8]]]}]})";
}

std::string code_of(const std::string& text) {
  const CheckReport report = check(Schedule::from_json(text), Machine{}, {.ranks = {2}, .coverage = true});
  return report.ok() ? "" : report.findings[0].code;
}

TEST(HostileSchedule, IsRefusedBeforeItTakesTimeOrMemory) {
  EXPECT_EQ(code_of(hostile_schedule(8, "[]", "1", "0")), "");
  EXPECT_EQ(code_of(hostile_schedule(8, R"([["a",0,9000000000000000000]])", "1", "0")), "S1");
  EXPECT_EQ(code_of(hostile_schedule(8, R"([["a",0,9000000000000000000],["b",0,0]])", "1", "0")), "S1")
      << "nothing inside";
  EXPECT_EQ(code_of(hostile_schedule(8, "[]", "9000000000000000000", "0")), "S1");
  EXPECT_EQ(code_of(hostile_schedule(9000000000000000000, "[]", "1", "0")), "S1") << "bytes overflow";
  EXPECT_EQ(code_of(hostile_schedule(8, "[]", "1", "9000000000000000000")), "S2");
  EXPECT_EQ(code_of(hostile_schedule(8, "[]", "1", "\"0-1\"")), "S2");
}

/// Small texts whose expansion would take gigabytes.
TEST(HostileSchedule, IsRefusedBeforeItsExpansionTakesMemory) {
  const std::string head =
      R"({"overlace_schedule":1,"op":"other","family":"hostile","buffers":[["X","symmetric","bf16",)"
      R"([8,8],1]],)";
  const auto message_of = [&](const std::string& rest, int ranks) {
    const CheckReport report = check(Schedule::from_json(head + rest), Machine{}, {.ranks = {ranks}, .coverage = true});
    return report.ok() ? "" : report.findings[0].code + ": " + report.findings[0].text;
  };
  const std::string copy = R"("kind":"copy","engine":"ce")";
  EXPECT_EQ(
      message_of(R"("tasks":[{"id":"t",)" + copy + R"(,"reads":[["X","r",[0,1],[0,8],{"each":["i",0,16000000]}]]}]})",
                 2),
      "S1: task t, rank 0 of 2: more than 1000000 regions, waits and sets");
  EXPECT_EQ(
      message_of(R"("tasks":[{"id":"t",)" + copy + R"(,"loops":[["s",0,90000]],"reads":[["X","r",[0,1],[0,8]]]}]})", 8),
      "S1: 8 ranks need more than 1000000 instances, regions, waits, sets, dependencies and words of signals");
  EXPECT_EQ(
      message_of(
          R"("signals":[["a",90000],["b",90000],["c",90000],["d",90000],["e",90000],["f",90000]],"tasks":[{"id":"t",)" +
              copy + "}]}",
          2),
      "S1: signals of 1080000 words and more, wanted at most 1000000");
  EXPECT_EQ(message_of(R"("tasks":[{"id":"a",)" + copy + R"(,"loops":[["s",0,3000]]},{"id":"b",)" + copy +
                           R"(,"loops":[["t",0,3000]],"deps":["a"]}]})",
                       2),
            "S1: task b: more than 1000000 dependencies");
}

/// All instances write the same row: five thousand million pairs.
TEST(HostileSchedule, IsNotComparedTwoByTwoWithoutEnd) {
  const CheckReport report = check(Schedule::from_json(hostile_schedule(8, R"([["a",0,99999]])", "1", "1")), Machine{},
                                   {.ranks = {1}, .coverage = true});
  EXPECT_TRUE(report.ok());
  EXPECT_NE(report.to_string().find("pairs of accesses to the same rows: S5 to S10 not checked"), std::string::npos)
      << report.to_string();
}

TEST(HostileSchedule, RandomEditsOfGoodOnesNeverEscapeTheChecks) {
  std::mt19937 random(20);
  OpSpec op;
  op.m = 13;
  op.n = 8;
  op.k = 16;
  op.ranks = 2;
  int num_refused = 0, num_found = 0;
  for (const char* name : {"ag_gemm", "gemm_rs", "gemm_ar"}) {
    op.op = name;
    const std::string good = make_schedule(op, "hetero_fused_1d", 2).to_json();
    for (int i = 0; i < 700; ++i) {
      std::string text = good;
      for (int edits = 1 + static_cast<int>(random() % 2); edits > 0; --edits) {
        constexpr std::string_view kAlphabet = "0123456789+-*/%()[]{},\"rGMNKpsq";
        text[random() % text.size()] = kAlphabet[random() % kAlphabet.size()];
      }
      try {
        const CheckReport report = check(Schedule::from_json(text), Machine{}, {.ranks = {2}, .coverage = true});
        num_found += report.ok() ? 0 : 1;
      } catch (const ScheduleError&) {
        ++num_refused;
      }
    }
  }
  EXPECT_GT(num_refused, 100);
  EXPECT_GT(num_found, 100);
}

}  // namespace
}  // namespace overlace::spec
