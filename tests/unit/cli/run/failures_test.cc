#include "cli/run/failures.h"

#include <gtest/gtest.h>

#include <climits>

namespace overlace::cli {
namespace {

using base::Status;

TEST(Failures, SurviveThePipe) {
  const RankFailure first{1, Status(Errc::out_of_memory, "line one\nline \"two\"")};
  const RankFailure second{0, Status(Errc::aborted, "rank 1 failed")};
  const auto back = decode_failures(encode_failure(first) + "garbage\n{\"rank\": 3}\n" + encode_failure(second));
  ASSERT_EQ(back.size(), 2u);
  EXPECT_EQ(back[0].rank, 1);
  EXPECT_EQ(back[0].status.code(), Errc::out_of_memory);
  EXPECT_EQ(back[0].status.message(), "line one\nline \"two\"");
  EXPECT_EQ(back[1].status.code(), Errc::aborted);
}

TEST(Failures, AreShortEnoughToArriveWhole) {
  for (const char c : {'x', '"', '\x01'}) {
    const std::string record = encode_failure({0, Status(Errc::io, std::string(100000, c))});
    EXPECT_LE(record.size(), size_t{PIPE_BUF}) << int{c};
    EXPECT_GT(record.size(), size_t{PIPE_BUF / 2}) << int{c};
    EXPECT_EQ(decode_failures(record).size(), 1u) << int{c};
  }
}

TEST(Failures, OfForeignWritersAreLeftOut) {
  const auto count = [](const std::string& rank, const std::string& code) {
    return decode_failures("{\"rank\":" + rank + ",\"code\":" + code + ",\"text\":\"x\"}\n").size();
  };
  EXPECT_EQ(count("1", "1"), 1u);
  EXPECT_EQ(count("1", "0"), 0u) << "not a failure: the status would be 0";
  EXPECT_EQ(count("1", "-3"), 0u);
  EXPECT_EQ(count("1", "99"), 0u);
  EXPECT_EQ(count("1", "4294967297"), 0u) << "its lower half is a code";
  EXPECT_EQ(count("-1", "1"), 0u);
  EXPECT_EQ(count("4294967297", "1"), 0u);
}

TEST(FirstCause, IsNotAConsequence) {
  const RankFailure lost{0, Status(Errc::peer_lost, "rank 1 is gone")};
  const RankFailure aborted{2, Status(Errc::aborted, "another rank failed")};
  const RankFailure cause{1, Status(Errc::corrupt, "model.safetensors is short")};
  EXPECT_EQ(first_cause({lost, aborted, cause})->rank, 1);
  EXPECT_EQ(first_cause({lost, aborted})->rank, 0);
  EXPECT_FALSE(first_cause({}).has_value());
}

TEST(FailureText, NamesTheRankUnlessAllAgree) {
  const RankFailure a{0, Status(Errc::io, "same")}, b{1, Status(Errc::io, "same")}, c{1, Status(Errc::io, "other")};
  EXPECT_EQ(failure_text(a, {a, b}), "same");
  EXPECT_EQ(failure_text(c, {a, c}), "rank 1: other");
  EXPECT_EQ(failure_text(c, {c}), "rank 1: other");
}

}  // namespace
}  // namespace overlace::cli
