// Variables of ranks that claim to be on several hosts.
#include "src/runtime/bootstrap/emulated.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

namespace overlace::runtime {
namespace {

TEST(Emulated, HostsDifferForOverlaceAndForNccl) {
  const Variables first = emulated_host(0), second = emulated_host(1);
  const std::map<std::string, std::string> a(first.begin(), first.end()), b(second.begin(), second.end());
  EXPECT_EQ(a.at("OVERLACE_HOST_ID"), "emulated host 0");
  for (const char* name : {"OVERLACE_HOST_ID", "NCCL_HOSTID"}) EXPECT_NE(a.at(name), b.at(name)) << name;
}

TEST(Emulated, VariablesThatAreSetStay) {
  ASSERT_EQ(::setenv("NCCL_MNNVL_ENABLE", "2", 1), 0);
  keep_nccl_to_sockets();
  EXPECT_STREQ(::getenv("NCCL_IB_DISABLE"), "1");
  EXPECT_STREQ(::getenv("NCCL_MNNVL_ENABLE"), "2");
}

}  // namespace
}  // namespace overlace::runtime
