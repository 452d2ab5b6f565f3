#include "src/study/network/reserve.h"

#include <gtest/gtest.h>

namespace overlace::study {
namespace {

TEST(ReserveLinks, MessagesHoldALinkInTurn) {
  ReserveLinks links;
  const uint32_t link = links.add(1000, 7);  // 1 ps per byte
  const auto first = links.reserve(link, 100, 50), second = links.reserve(link, 120, 30);
  EXPECT_EQ(first.begin, 100u);
  EXPECT_EQ(first.end, 150u);
  EXPECT_EQ(first.arrival, 157u);
  EXPECT_EQ(second.begin, 150u);
  EXPECT_EQ(second.arrival, 187u);
  EXPECT_EQ(links.bytes(link), 80u);
}

TEST(ReserveLinks, AWayIsAsSlowAsItsSlowestLink) {
  ReserveLinks links;
  const uint32_t path[] = {links.add(1000, 5), links.add(250, 11)};
  (void)links.reserve(path[1], 0, 10);  // until 40
  const auto passage = links.reserve_path(path, 0, 100);
  EXPECT_EQ(passage.begin, 40u);
  EXPECT_EQ(passage.end, 440u);
  EXPECT_EQ(passage.arrival, 456u);
  EXPECT_EQ(links.free_at(path[0]), 140u);  // cut-through: the fast link is free earlier
}

}  // namespace
}  // namespace overlace::study
