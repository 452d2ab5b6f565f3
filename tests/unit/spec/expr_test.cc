#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "overlace/error.h"
#include "overlace/schedule.h"

namespace overlace::spec {
namespace {

std::string refusal(const std::string& text, const Env& env = {}, const Tables& tables = {}) {
  try {
    Expr(text).eval(env, tables);
  } catch (const ScheduleError& error) {
    return error.what();
  }
  return "";
}

TEST(Expr, FollowsPrecedenceAndParentheses) {
  const Env env = {{"r", 3}, {"G", 4}, {"p", 2}};
  EXPECT_EQ(Expr("1+2*3").eval(env), 7);
  EXPECT_EQ(Expr("(1+2)*3").eval(env), 9);
  EXPECT_EQ(Expr("10-4-3").eval(env), 3);
  EXPECT_EQ(Expr("12/3/2").eval(env), 2);
  EXPECT_EQ(Expr("(r+p)%G*10").eval(env), 10);
  EXPECT_EQ(Expr(" - r + - 2 ").eval(env), -5);
  EXPECT_EQ(Expr("min(r, p) * max(r,p) + ceildiv(7,2)").eval(env), 10);
  EXPECT_EQ(Expr(5).eval(env), 5);
  EXPECT_EQ(Expr(-5).text(), "-5");
  EXPECT_EQ(Expr().eval({}), 0);
}

TEST(Expr, RemainderIsNeverNegative) {
  EXPECT_EQ(Expr("(0-1)%4").eval({}), 3);
  EXPECT_EQ(Expr("(0-8)%4").eval({}), 0);
  EXPECT_EQ(Expr("(0-7)%(0-4)").eval({}), 1);
  EXPECT_EQ(Expr("ceildiv(0-7,2)").eval({}), -3);
  EXPECT_EQ(Expr("ceildiv(0-7,0-2)").eval({}), 4);
}

TEST(Expr, IndexesTables) {
  const Tables tables = {{"off", {0, 5, 9}}};
  EXPECT_EQ(Expr("off[r+1]-off[r]").eval({{"r", 1}}, tables), 4);
  EXPECT_NE(refusal("off[3]", {}, tables).find("outside its table"), std::string::npos);
  EXPECT_NE(refusal("off[0-1]", {}, tables).find("outside its table"), std::string::npos);
  EXPECT_NE(refusal("cut[0]", {}, tables).find("unknown table 'cut'"), std::string::npos);
}

TEST(Expr, RefusesWhatHasNoValue) {
  EXPECT_NE(refusal("7/2").find("\"7/2\": division is not exact"), std::string::npos);
  EXPECT_NE(refusal("7/0").find("division by zero"), std::string::npos);
  EXPECT_NE(refusal("7%0").find("division by zero"), std::string::npos);
  EXPECT_NE(refusal("ceildiv(1,0)").find("division by zero"), std::string::npos);
  EXPECT_NE(refusal("M+1").find("unknown name 'M'"), std::string::npos);
  EXPECT_NE(refusal("9223372036854775807+1").find("overflow"), std::string::npos);
  EXPECT_NE(refusal("9223372036854775807*2").find("overflow"), std::string::npos);
  EXPECT_NE(refusal("(0-9223372036854775807-1)/(0-1)").find("overflow"), std::string::npos);
  EXPECT_NE(refusal("(0-9223372036854775807-1)%(0-1)").find("overflow"), std::string::npos);
}

TEST(Expr, MayBeNestedToALimit) {
  const auto nested = [](int depth, const std::string& open, std::string text) {
    for (int i = 0; i < depth; ++i) text = open + text + ")";
    return text;
  };
  EXPECT_EQ(Expr(nested(31, "(", "1")).eval({}, {}), 1);
  EXPECT_NE(refusal(nested(32, "(", "1")).find("too deeply nested"), std::string::npos);
  // Two operands wait at each bracket: with the last ones the stack is full, or too small.
  EXPECT_EQ(Expr(nested(31, "1+1*(", "1+1")).eval({}, {}), 33);
  EXPECT_NE(refusal(nested(31, "1+1*(", "1+1*1")).find("too deeply nested"), std::string::npos);
}

TEST(Expr, ManyTextsOfManyThreadsKeepTheirMeaning) {
  constexpr int64_t kTexts = 6000;  // more than are kept parsed
  const Expr first("7 * x + 1");
  std::vector<std::thread> threads;
  std::atomic<int64_t> wrong = 0;
  for (int64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int64_t i = thread / 2; i < kTexts; i += 2) {  // two threads parse each
        const Expr expr(std::to_string(i) + " * x + 1");
        if (expr.eval({{"x", 3}}) != 3 * i + 1 || Expr(expr.text()) != expr) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(first.eval({{"x", 2}}), 15);
  EXPECT_EQ(Expr().eval({}), 0);
  EXPECT_EQ(Expr(), Expr("0"));
}

TEST(Expr, RefusesBadTextWithItsPosition) {
  EXPECT_NE(refusal("").find("column 1: wanted a number"), std::string::npos);
  EXPECT_NE(refusal("1+").find("column 3"), std::string::npos);
  EXPECT_NE(refusal("(1").find("wanted ')'"), std::string::npos);
  EXPECT_NE(refusal("1 2").find("column 3: unexpected"), std::string::npos);
  EXPECT_NE(refusal("off[1").find("wanted ']'"), std::string::npos);
  EXPECT_NE(refusal("min(1)").find("wanted ','"), std::string::npos);
  EXPECT_NE(refusal("abs(1)").find("unknown function 'abs'"), std::string::npos);
  EXPECT_NE(refusal("9223372036854775808").find("beyond 64 bits"), std::string::npos);
  EXPECT_NE(refusal("a$b").find("unexpected"), std::string::npos);
  EXPECT_NE(refusal(std::string(100000, '(')).find("too deeply nested"), std::string::npos);
  EXPECT_NE(refusal(std::string(100000, '-') + "1").find("too deeply nested"), std::string::npos);
}

}  // namespace
}  // namespace overlace::spec
