#include "src/runtime/interrupt.h"

#include <gtest/gtest.h>

#include <thread>

namespace overlace::runtime {
namespace {

int num_asked = 0, answer = 0;
int check() {
  ++num_asked;
  return answer;
}

class InterruptTest : public testing::Test {
 protected:
  InterruptTest() {
    num_asked = answer = 0;
    set_interrupt_check(&check);
  }
  ~InterruptTest() override { set_interrupt_check(nullptr); }
};

TEST_F(InterruptTest, IsAskedOncePerPeriod) {
  InterruptClock clock(1000);
  EXPECT_FALSE(clock.is_interrupted(1000 + InterruptClock::kPeriodNs - 1));
  EXPECT_EQ(num_asked, 0) << "a short wait asks nobody";
  EXPECT_FALSE(clock.is_interrupted(1000 + InterruptClock::kPeriodNs));
  EXPECT_FALSE(clock.is_interrupted(1001 + InterruptClock::kPeriodNs));
  EXPECT_EQ(num_asked, 1);
  answer = 1;
  EXPECT_TRUE(clock.is_interrupted(2000 + 2 * InterruptClock::kPeriodNs));
  EXPECT_EQ(num_asked, 2);
}

TEST_F(InterruptTest, OtherThreadsAreNotAsked) {
  answer = 1;
  std::thread([] {
    InterruptClock clock(0);
    EXPECT_FALSE(clock.is_interrupted(InterruptClock::kPeriodNs));
  }).join();
  EXPECT_EQ(num_asked, 0);
}

TEST_F(InterruptTest, WithoutACheckNothingIsInterrupted) {
  answer = 1;
  set_interrupt_check(nullptr);
  InterruptClock clock(0);
  EXPECT_FALSE(clock.is_interrupted(InterruptClock::kPeriodNs));
  EXPECT_EQ(num_asked, 0);
}

}  // namespace
}  // namespace overlace::runtime
