#include "src/runtime/bootstrap/secret.h"

#include <gtest/gtest.h>

#include <set>

namespace overlace::runtime {
namespace {

TEST(Secret, IsDrawnAnewEachTime) {
  std::set<std::string> seen;
  for (int i = 0; i < 100; ++i) {
    const std::string token = random_token();
    EXPECT_EQ(token.size(), 64u);
    EXPECT_EQ(token.find_first_not_of("0123456789abcdef"), std::string::npos) << token;
    EXPECT_TRUE(seen.insert(token).second);
  }
  Secret first{}, second{};
  ASSERT_TRUE(draw_random(first).ok() && draw_random(second).ok());
  EXPECT_FALSE(is_equal_secret(first, second));
}

TEST(Secret, DiffersInEveryByteAndLength) {
  const std::string wanted = random_token();
  EXPECT_TRUE(is_equal_secret(wanted, std::string(wanted)));
  for (size_t i = 0; i < wanted.size(); ++i) {
    std::string other = wanted;
    other[i] = static_cast<char>(other[i] ^ 1);
    EXPECT_FALSE(is_equal_secret(other, wanted)) << i;
  }
  EXPECT_FALSE(is_equal_secret(wanted.substr(1), wanted));
  EXPECT_FALSE(is_equal_secret(wanted + "0", wanted));
  EXPECT_FALSE(is_equal_secret("", wanted));
  EXPECT_TRUE(is_equal_secret("", std::string_view()));
}

TEST(Secret, OfTheUserIsLongEnoughAndNeverShown) {
  EXPECT_TRUE(check_secret(random_token()).ok());
  EXPECT_TRUE(check_secret(std::string(128, 'x')).ok());
  EXPECT_TRUE(check_secret("shortest~of~all!").ok());
  const std::string blank = "sixteen letters and blanks";
  for (const std::string& text :
       {std::string(), std::string("hunter2"), std::string("one~too~short!!"), std::string(129, 'x'), blank}) {
    const base::Status status = check_secret(text);
    EXPECT_EQ(status.code(), Errc::invalid_argument) << text;
    EXPECT_NE(status.message().find("wanted 16 to 128"), std::string::npos) << status.message();
    if (text.empty()) continue;
    EXPECT_EQ(status.message().find(text), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace overlace::runtime
