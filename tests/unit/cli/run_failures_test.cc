#include "cli/run_failures.h"

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
  EXPECT_LE(encode_failure({0, Status(Errc::io, std::string(100000, 'x'))}).size(), size_t{PIPE_BUF});
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
