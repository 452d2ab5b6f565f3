#include "src/exec/agree.h"

#include <gtest/gtest.h>

namespace overlace::exec {
namespace {

Bytes bytes_of(const std::string& text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

/// What each rank's entry makes of the call on rank `rank`.
base::Status outcome(const std::vector<base::Status>& ranks, const std::vector<std::string>& texts, size_t rank) {
  std::vector<Bytes> entries;
  for (size_t r = 0; r < ranks.size(); ++r) entries.push_back(bytes_of(agree_entry(ranks[r], texts[r])));
  return agree_outcome(read_agreement(entries, static_cast<int>(rank), ranks[rank], "tp"), "call", "tp");
}

TEST(Agree, EqualTextsOfAllRanksAreOk) {
  for (size_t rank : {0u, 1u, 2u}) EXPECT_TRUE(outcome({{}, {}, {}}, {"x", "x", "x"}, rank).ok());
  EXPECT_TRUE(outcome({{}, {}}, {"", ""}, 1).ok());
}

TEST(Agree, TextsThatDifferAreAMismatchWithBothOnAllRanks) {
  for (size_t rank : {0u, 1u, 2u}) {
    const base::Status status = outcome({{}, {}, {}}, {"M 8", "M 8", "M 9"}, rank);
    EXPECT_EQ(status.code(), Errc::plan_mismatch);
    EXPECT_EQ(status.message(), "call differs between ranks of team \"tp\": rank 0 has M 8, rank 2 has M 9");
  }
}

TEST(Agree, ARefusalReachesTheOthersUnderItsCodeAndRankAndStaysItsOwn) {
  const std::vector<base::Status> ranks = {
      {}, base::invalid_argument("a must be (4, 6)"), base::error(Errc::not_supported, "no engine")};
  const std::vector<std::string> texts = {"M 8", "", "M 8"};
  const base::Status first = outcome(ranks, texts, 0);
  EXPECT_EQ(first.code(), Errc::invalid_argument);
  EXPECT_EQ(first.message(), "rank 1 refused the call, so that no rank of team \"tp\" makes it: a must be (4, 6)");
  EXPECT_EQ(outcome(ranks, texts, 1).message(), "a must be (4, 6)");
  EXPECT_EQ(outcome(ranks, texts, 2).code(), Errc::not_supported);
  EXPECT_EQ(outcome(ranks, texts, 2).message(), "no engine");
}

TEST(Agree, ARankInAnotherCollectiveIsNamed) {
  for (const std::string& foreign : {std::string(), std::string("abc"), std::string("\0\0\0\0\0\0\0\0", 8)}) {
    const std::vector<Bytes> entries = {bytes_of(agree_entry({}, "M 8")), bytes_of(foreign)};
    const base::Status status = agree_outcome(read_agreement(entries, 0, {}, "tp"), "call", "tp");
    EXPECT_EQ(status.code(), Errc::plan_mismatch);
    EXPECT_NE(status.message().find("rank 1 refused"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("in another collective call"), std::string::npos) << status.message();
  }
}

TEST(Agree, LongRefusalsAreCutNotLost) {
  const base::Status status = base::invalid_argument("{}", std::string(100000, 'x'));
  EXPECT_LT(agree_entry(status, "").size(), 5000u);
  EXPECT_EQ(outcome({{}, status}, {"", ""}, 0).code(), Errc::invalid_argument);
}

}  // namespace
}  // namespace overlace::exec
