// Schedules that nobody meant: they are refused or checked, never followed into the ground.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "overlace/error.h"
#include "src/spec/check.h"

namespace overlace::spec {
namespace {

std::string family_of(int64_t m, const char* loops, const char* slots, const char* count) {
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
  EXPECT_EQ(code_of(family_of(8, "[]", "1", "0")), "");
  EXPECT_EQ(code_of(family_of(8, R"([["a",0,9000000000000000000]])", "1", "0")), "S1");
  EXPECT_EQ(code_of(family_of(8, R"([["a",0,9000000000000000000],["b",0,0]])", "1", "0")), "S1") << "nothing inside";
  EXPECT_EQ(code_of(family_of(8, "[]", "9000000000000000000", "0")), "S1");
  EXPECT_EQ(code_of(family_of(9000000000000000000, "[]", "1", "0")), "S1") << "bytes overflow";
  EXPECT_EQ(code_of(family_of(8, "[]", "1", "9000000000000000000")), "S2");
  EXPECT_EQ(code_of(family_of(8, "[]", "1", "\"0-1\"")), "S2");
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
