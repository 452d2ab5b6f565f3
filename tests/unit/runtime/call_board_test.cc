#include "src/runtime/call_board.h"

#include <gtest/gtest.h>

#include <memory>

namespace overlace::runtime {
namespace {

constexpr uint64_t kKey = 0xabcdef0123456789u, kOther = 0x1234560123456789u;

class CallBoardTest : public testing::Test {
 protected:
  std::optional<uint64_t> seen_from(const PostedCall& call) const { return board_->other_key(call); }
  const std::unique_ptr<CallBoard> board_ = std::unique_ptr<CallBoard>(new CallBoard());  // zero
};

TEST_F(CallBoardTest, NothingIsKnownOfAnEmptyBoard) {
  EXPECT_EQ(seen_from({.channel = 0, .number = 0, .key = kKey}), std::nullopt);
  EXPECT_EQ(seen_from({.channel = 7, .number = 123, .key = 0}), std::nullopt);
}

TEST_F(CallBoardTest, AnotherKeyOfTheSameCallIsSeen) {
  board_->post({.channel = 3, .number = 5, .key = kOther});
  EXPECT_EQ(seen_from({.channel = 3, .number = 5, .key = kKey}), CallBoard::key_bits(kOther));
  EXPECT_EQ(seen_from({.channel = 3, .number = 5, .key = kOther}), std::nullopt);
  board_->post({.channel = 3, .number = 6, .key = 0});
  EXPECT_EQ(seen_from({.channel = 3, .number = 6, .key = kKey}), 0u);
}

TEST_F(CallBoardTest, CallsBeforeAndBehindAndOtherChannelsAreNoDifference) {
  board_->post({.channel = 3, .number = 5, .key = kOther});
  for (const uint32_t number : {4u, 6u, 21u, 5u + 16 * 1000})
    EXPECT_EQ(seen_from({.channel = 3, .number = number, .key = kKey}), std::nullopt) << number;
  for (uint32_t channel = 0; channel < 65536; ++channel) {
    if (channel == 3) continue;
    ASSERT_EQ(seen_from({.channel = channel, .number = 5, .key = kKey}), std::nullopt) << channel;
  }
}

TEST_F(CallBoardTest, TheLastCallsAreKept) {
  for (uint32_t number = 0; number < 100; ++number) board_->post({.channel = 9, .number = number, .key = kOther});
  for (uint32_t number = 0; number < 100; ++number)
    EXPECT_EQ(seen_from({.channel = 9, .number = number, .key = kKey}).has_value(), number >= 84) << number;
}

/// The board keeps 24 bits of it.
TEST_F(CallBoardTest, NumbersMayBeLarge) {
  for (const uint32_t number : {(1u << 24) - 1, 1u << 24, 0xffffffffu}) {
    board_->post({.channel = 61, .number = number, .key = kOther});
    EXPECT_EQ(seen_from({.channel = 61, .number = number, .key = kKey}), CallBoard::key_bits(kOther));
    EXPECT_EQ(seen_from({.channel = 0, .number = number, .key = kKey}), std::nullopt);
  }
}

}  // namespace
}  // namespace overlace::runtime
