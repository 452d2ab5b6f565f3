// `overlace run` on emulated hosts, whose ranks it starts with mpirun.
#include <gtest/gtest.h>

#include "tests/cli/support/mpi.h"

namespace overlace::cli_test {
namespace {

Result emulate(const std::vector<std::string>& more, const std::map<std::string, std::string>& env = {}) {
  Command command{.args = {"run", "--backend", "cpu", "-n", "4", "--emulate-hosts", "2", "--layers", "1", "--tokens",
                           "64", "--repeat", "1", "--json", "-"},
                  .env = {{"ASAN_OPTIONS", "detect_leaks=0"}}};  // MPI has some of its own
  command.args.insert(command.args.end(), more.begin(), more.end());
  command.env.insert(env.begin(), env.end());
  return run(command);
}

void expect_good(const Result& result, const std::vector<std::string>& parts) {
  EXPECT_EQ(result.exit, 0) << result.out << result.err;
  for (const std::string& part : parts)
    EXPECT_NE(result.out.find(part), std::string::npos) << part << " in " << result.out << result.err;
}

TEST(Hosts, EmulatedOnesAreLabelled) {
  if (const std::string why = why_not(openmpi()); !why.empty()) GTEST_SKIP() << why;
  expect_good(emulate({"--link", "none"}),
              {"\"ok\": true", "\"ranks\": 4", "\"hosts\": 2", "\"emulated\": true", "none (2 hosts on one machine)"});
}

TEST(Hosts, EachPieceCrossesOnceWhereThatIsAskedFor) {
  if (const std::string why = why_not(openmpi()); !why.empty()) GTEST_SKIP() << why;
  expect_good(emulate({"--schedule", "hierarchical:2", "--link", "1GB/s,10us,hosts"}),
              {"\"ok\": true", "\"hierarchical:2\"", "\"emulated\": true"});
}

TEST(Hosts, OnAMachineWithoutSsh) {
  if (const std::string why = why_not(openmpi()); !why.empty()) GTEST_SKIP() << why;
  const Result result = emulate({"--link", "none"}, {{"OMPI_MCA_plm_rsh_agent", "/nonexistent"}});
  expect_good(result, {"\"ok\": true", "\"hosts\": 2"});
}

TEST(Hosts, AProgramOnTheCpuIsStartedByMpirun) {
  if (const std::string why = why_not(openmpi()); !why.empty()) GTEST_SKIP() << why;
  Command command{.args = {"run", "--backend", "cpu", "-n", "4", "--emulate-hosts", "2", "--", "/bin/sh", "-c",
                           "echo rank $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE: $OVERLACE_HOST_ID, $MASTER_ADDR, "
                           "port ${MASTER_PORT:+there}"}};
  expect_good(run(command), {"rank 0 of 4: emulated host 0, 127.0.0.1, port there", "rank 1 of 4: emulated host 0,",
                             "rank 2 of 4: emulated host 1, 127.0.0.1, port there", "rank 3 of 4: emulated host 1,"});
  command.args.back() += "; exit 3";
  EXPECT_EQ(run(command).exit, 3);
}

TEST(Hosts, OfUnequalSizeAreRefused) {
  const Result result = run({.args = {"run", "--backend", "cpu", "-n", "4", "--emulate-hosts", "3"}});
  EXPECT_EQ(result.exit, 2);
  EXPECT_NE(result.err.find("--emulate-hosts is 3, wanted a divisor of the 4 ranks"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace overlace::cli_test
