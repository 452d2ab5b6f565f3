#include "src/spec/names.h"

#include <gtest/gtest.h>

namespace overlace::spec {
namespace {

TEST(Families, AreNamedWithAnOptionalDegree) {
  EXPECT_EQ(parse_family("serial")->family, "serial");
  EXPECT_EQ(parse_family("serial")->degree, 1);
  EXPECT_EQ(parse_family("hetero_fused_1d:16")->family, "hetero_fused_1d");
  EXPECT_EQ(parse_family("hetero_fused_1d:16")->degree, 16);
  for (const char* bad : {"", ":", ":2", "a:", "a:0", "a:-1", "a:+1", "a: 1", "a:2x", "a:2:3", "a:99999999999"})
    EXPECT_FALSE(parse_family(bad)) << bad;
}

}  // namespace
}  // namespace overlace::spec
