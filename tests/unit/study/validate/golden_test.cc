#include "src/study/validate/golden.h"

#include <gtest/gtest.h>

#include <string>

namespace overlace::study {
namespace {

TEST(Golden, ReadsNamedCellsAndSkipsComments) {
  const auto golden = Golden::parse("# source: a paper\nm,name,us\n64,first,1.5\n\n128,,2e3\n", "x.csv");
  ASSERT_TRUE(golden.ok()) << golden.status().message();
  ASSERT_EQ(golden->rows(), 2U);
  EXPECT_EQ(golden->integer(1, "m"), 128);
  EXPECT_EQ(golden->number(1, "us"), 2000);
  EXPECT_EQ(golden->text(0, "name"), "first");
  EXPECT_TRUE(golden->has(0, "name"));
  EXPECT_FALSE(golden->has(1, "name"));
}

TEST(Golden, NamesWhatIsWrong) {
  EXPECT_EQ(Golden::parse("# nothing\na,b\n", "x.csv").status().code(), Errc::corrupt);
  const auto ragged = Golden::parse("a,b\n1,2\n3\n", "x.csv");
  ASSERT_FALSE(ragged.ok());
  EXPECT_EQ(ragged.status().message(), "x.csv:3: 1 cells, wanted 2");
  const auto words = Golden::parse("a,b\n1.5,two\n", "x.csv");
  ASSERT_TRUE(words.ok());
  EXPECT_THROW(words->number(0, "b"), IoError);
  EXPECT_THROW(words->integer(0, "a"), IoError);
  EXPECT_THROW(words->number(0, "c"), IoError);
}

TEST(Golden, MissingFileIsIo) { EXPECT_EQ(Golden::load("/nowhere/x.csv").status().code(), Errc::io); }

}  // namespace
}  // namespace overlace::study
