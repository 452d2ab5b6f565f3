// How ranks of several hosts met.
#include <gtest/gtest.h>

#include "overlace/bootstrap.h"
#include "tests/ranks/net/body.h"

namespace overlace::test {
namespace {

/// over=tcp or over=mpi.
TEST(Meet, Over) {
  const auto bootstrap = environment_bootstrap();
  const std::string over = parameters()["over"];
  EXPECT_EQ(bootstrap->token().substr(0, over.size()), over);
  EXPECT_EQ(bootstrap->address().empty(), over == "mpi") << bootstrap->address();
  EXPECT_FALSE(bootstrap->address().starts_with("127.")) << bootstrap->address();
  bootstrap->barrier(20000);
}

}  // namespace
}  // namespace overlace::test
