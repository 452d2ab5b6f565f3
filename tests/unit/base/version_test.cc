#include "src/base/version.h"

#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <sstream>
#include <string>

namespace overlace::base {
namespace {

TEST(Version, IsThatOfTheProjectAndNamesTheCommit) {
  std::ifstream file(std::string(OVERLACE_SOURCE_DIR) + "/CMakeLists.txt");
  std::stringstream text;
  text << file.rdbuf();
  std::smatch found;
  const std::string got = version();
  ASSERT_TRUE(std::regex_match(got, found, std::regex("(\\d+\\.\\d+\\.\\d+)(\\.dev\\d+(\\+g(.+))?)?"))) << got;
  EXPECT_NE(text.str().find("project(overlace VERSION " + found[1].str() + " "), std::string::npos) << got;
  if (found[4].matched) {
    const std::string named = std::regex_replace(found[4].str(), std::regex("\\."), "-");
    EXPECT_EQ(named, commit());
  }
}

}  // namespace
}  // namespace overlace::base
