#include "src/exec/cpu/queues.h"

#include <gtest/gtest.h>

#include <vector>

namespace overlace::exec {
namespace {

/// A lane of two copies (instances 0 and 1) and a list of six items: instance 2 in three, of which the second follows
/// the first, instance 3 in one, instance 4 in two that belong together.
Queues some_queues() {
  Queues queues;
  queues.lanes.push_back({.lane = {}, .steps = {{0}, {1}}, .is_transfer = true});
  queues.list = {{2, 0}, {2, 1}, {3, 2}, {2, 3}, {4, 4}, {4, 5}};
  queues.follows = {0, 1, 0, 0, 0, 1};
  queues.num_steps = {1, 1, 3, 1, 2};
  return queues;
}

std::vector<int> items_of_queue(Heads* heads, size_t queue) {
  std::vector<int> out;
  for (const Step* step = heads->head(queue); step != nullptr; step = heads->head(queue)) {
    out.push_back(step->item);
    heads->advance(queue);
  }
  return out;
}

TEST(Queues, OneWorkerTakesTheListInItsOrder) {
  const Queues queues = some_queues();
  Heads heads(queues, 1);
  ASSERT_EQ(heads.size(), 2u);
  EXPECT_TRUE(heads.is_transfer(0));
  EXPECT_FALSE(heads.is_transfer(1));
  EXPECT_EQ(items_of_queue(&heads, 1), (std::vector<int>{0, 1, 2, 3, 4, 5}));
  ASSERT_NE(heads.head(0), nullptr);
  EXPECT_EQ(heads.head(0)->instance, 0);
  heads.advance(0);
  EXPECT_EQ(heads.head(0)->instance, 1);
  heads.advance(0);
  EXPECT_EQ(heads.head(0), nullptr);
}

TEST(Queues, AWorkerKeepsWhatItHasDrawnWithWhatFollows) {
  const Queues queues = some_queues();
  Heads heads(queues, 3);
  ASSERT_EQ(heads.size(), 4u);
  EXPECT_EQ(heads.head(1)->item, 0);
  EXPECT_EQ(heads.head(2)->item, 2);  // 1 follows 0
  EXPECT_EQ(heads.head(3)->item, 3);
  EXPECT_EQ(heads.head(1)->item, 0) << "looking draws nothing twice";
  heads.advance(3);
  EXPECT_EQ(items_of_queue(&heads, 3), (std::vector<int>{4, 5}));
  EXPECT_EQ(heads.head(2)->item, 2) << "held while another one goes on";
  EXPECT_EQ(items_of_queue(&heads, 1), (std::vector<int>{0, 1}));
  heads.advance(2);
  EXPECT_EQ(heads.head(2), nullptr);
}

TEST(Queues, AnInstanceIsDoneWithItsLastStepWhicheverThatIs) {
  const Queues queues = some_queues();
  Heads heads(queues, 2);
  EXPECT_TRUE(heads.is_last_of(0));
  EXPECT_FALSE(heads.is_last_of(2));
  EXPECT_TRUE(heads.is_last_of(3));
  EXPECT_FALSE(heads.is_last_of(2));
  EXPECT_FALSE(heads.is_last_of(4));
  EXPECT_TRUE(heads.is_last_of(2));
  EXPECT_TRUE(heads.is_last_of(4));
}

TEST(Queues, WithoutAListThereIsNoWorker) {
  Queues queues = some_queues();
  queues.list.clear();
  queues.follows.clear();
  EXPECT_EQ(Heads(queues, 3).size(), 1u);
}

}  // namespace
}  // namespace overlace::exec
