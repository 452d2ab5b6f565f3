#include "src/sim/engine/engine.h"

#include <gtest/gtest.h>

#include <set>
#include <tuple>

namespace overlace::sim {
namespace {

TEST(EventQueue, PopsByTimeThenPriorityThenPush) {
  EventQueue queue;
  queue.push(30, 1);
  queue.push(10, 2, EventQueue::kLast);
  queue.push(10, 3);
  queue.push(10, 4, EventQueue::kUrgent);
  queue.push(10, 5);
  queue.push(20, 6);
  std::vector<uint32_t> handles;
  while (!queue.empty()) handles.push_back(queue.pop().handle);
  EXPECT_EQ(handles, (std::vector<uint32_t>{4, 3, 5, 2, 6, 1}));
  EXPECT_EQ(queue.now(), 30u);
  EXPECT_EQ(queue.num_popped(), 6u);
}

/// Random pushes and pops beside a set that is sorted by the same rule.
TEST(EventQueue, AgreesWithASortedSet) {
  EventQueue queue;
  std::set<std::tuple<Time, uint32_t, uint64_t, uint32_t>> oracle;
  uint64_t pushes = 0;
  for (uint64_t step = 0; step < 20000; ++step) {
    const uint64_t bits = random_bits(7, step, 0, 0);
    const bool grows = (step / 2000) % 2 == 0;
    if (queue.empty() || bits % 8 < (grows ? 5u : 3u)) {
      const Time t = queue.now() + bits / 8 % 50;
      const auto priority = static_cast<uint32_t>(bits / 1000 % 16), handle = static_cast<uint32_t>(step);
      queue.push(t, handle, priority);
      oracle.emplace(t, priority, pushes++, handle);
    } else {
      const Event event = queue.pop();
      ASSERT_EQ(event.t_ps, std::get<0>(*oracle.begin())) << step;
      ASSERT_EQ(event.handle, std::get<3>(*oracle.begin())) << step;
      oracle.erase(oracle.begin());
    }
    ASSERT_EQ(queue.size(), oracle.size());
  }
}

TEST(EventQueue, ClearsToTimeZero) {
  EventQueue queue;
  queue.push(5, 1);
  (void)queue.pop();
  queue.push(9, 2);
  queue.clear();
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.now(), 0u);
  queue.push(1, 3);
  EXPECT_EQ(queue.pop().handle, 3u);
}

/// After 2^28 pushes numbers start again; what is pending keeps its order.
TEST(EventQueue, KeepsItsOrderWhenNumbersStartAgain) {
  constexpr uint32_t kBefore = 20;  // of the 31 that are pushed here
  EventQueue queue(EventQueue::kMaxPushes - kBefore);
  for (uint32_t i = 0; i < 10; ++i) queue.push(1000, 100 + i);
  queue.push(1000, 99, EventQueue::kUrgent);
  for (uint32_t i = 0; i < 10; ++i) {
    queue.push(1, 0);
    (void)queue.pop();
  }
  for (uint32_t i = 10; i < 20; ++i) queue.push(1000, 100 + i);
  EXPECT_EQ(queue.pop().handle, 99u);
  for (uint32_t i = 0; i < 20; ++i) ASSERT_EQ(queue.pop().handle, 100 + i);
}

TEST(RunEvents, EndsWithTheLastEventOrAtALimit) {
  EventQueue queue;
  queue.push(1, 3);
  uint32_t handled = 0;
  const auto chain = [&](const Event& event) {
    ++handled;
    if (event.handle > 0) queue.push(event.t_ps + 10, event.handle - 1);
  };
  EXPECT_TRUE(run_events(queue, {}, chain).ok());
  EXPECT_EQ(handled, 4u);
  queue.clear();
  queue.push(1, 1000);
  const base::Status by_count = run_events(queue, {.events = 5}, chain);
  EXPECT_EQ(by_count.code(), Errc::not_supported);
  EXPECT_EQ(by_count.message().substr(0, 44), "simulation: limit reached after 5 events at ");
  EXPECT_EQ(handled, 9u);
  queue.clear();
  queue.push(1, 1000);
  EXPECT_FALSE(run_events(queue, {.events = 1000, .time_ps = 25}, chain).ok());
  EXPECT_EQ(handled, 12u);
}

TEST(Noise, DependsOnEachKeyAndNothingElse) {
  EXPECT_EQ(random_bits(1, 2, 3, 4), random_bits(1, 2, 3, 4));
  std::set<uint64_t> seen;
  for (uint64_t seed = 0; seed < 4; ++seed)
    for (uint64_t rank = 0; rank < 4; ++rank)
      for (uint64_t task = 0; task < 4; ++task)
        for (uint64_t draw = 0; draw < 4; ++draw) seen.insert(random_bits(seed, rank, task, draw));
  EXPECT_EQ(seen.size(), 256u);
}

TEST(Noise, IsNormal) {
  double sum = 0, squares = 0;
  const int n = 20000;
  for (int i = 0; i < n; ++i) {
    const double x = normal(5, static_cast<uint64_t>(i), 0, 0);
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / n, 0, 0.03);
  EXPECT_NEAR(squares / n, 1, 0.04);
}

}  // namespace
}  // namespace overlace::sim
