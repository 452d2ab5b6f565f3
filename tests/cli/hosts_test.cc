// `overlace run` started by mpirun, and on emulated hosts.
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/cli/support/command.h"

namespace overlace::cli_test {
namespace {

const std::vector<std::string> kSmall = {"--layers", "1", "--tokens", "64", "--repeat", "1", "--json", "-"};

constexpr const char* kNoLeaks = "ASAN_OPTIONS=detect_leaks=0";  // MPI has some of its own

/// In a plain environment; the launcher starts any program.
Result start(const std::vector<std::string>& words) {
  std::vector<std::string> all = {"run", "-n", "1", "--", "env"};
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "OVERLACE_LAUNCH_SOCKET"})
    all.insert(all.end(), {"-u", name});
  all.insert(all.end(), {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", kNoLeaks});
  all.insert(all.end(), words.begin(), words.end());
  return run({.args = std::move(all)});
}

std::vector<std::string> with(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// Why ranks cannot be started with Open MPI; empty if they can.
std::string why_not() {
  if (::access("/usr/bin/mpirun.openmpi", X_OK) != 0) return "mpirun.openmpi is not installed";
  const bool is_built = run({.args = {"doctor", "--no-link-test"}}).out.find("openmpi") != std::string::npos;
  return is_built ? "" : "engine mpi was not built for openmpi";
}

void expect_good(const Result& result, const std::vector<std::string>& parts) {
  EXPECT_EQ(result.exit, 0) << result.out << result.err;
  for (const std::string& part : parts)
    EXPECT_NE(result.out.find(part), std::string::npos) << part << " in " << result.out << result.err;
}

TEST(Hosts, RanksOfMpirunAreOneRun) {
  if (const std::string why = why_not(); !why.empty()) GTEST_SKIP() << why;
  const Result result = start(with({"mpirun.openmpi", "--oversubscribe", "--bind-to", "none", "-n", "2",
                                    OVERLACE_PROGRAM, "run", "--backend", "cpu"},
                                   kSmall));
  expect_good(result, {"\"ok\": true", "\"ranks\": 2"});
}

TEST(Hosts, EmulatedOnesAreLabelled) {
  if (const std::string why = why_not(); !why.empty()) GTEST_SKIP() << why;
  const Result result =
      run({.args = with({"run", "--backend", "cpu", "-n", "4", "--emulate-hosts", "2", "--link", "none"}, kSmall),
           .env = {{"ASAN_OPTIONS", "detect_leaks=0"}}});
  expect_good(result, {"\"ok\": true", "\"ranks\": 4", "\"emulated\": true", "none (2 hosts on one machine)"});
}

TEST(Hosts, EachPieceCrossesOnceWhereThatIsAskedFor) {
  if (const std::string why = why_not(); !why.empty()) GTEST_SKIP() << why;
  const Result result = run({.args = with({"run", "--backend", "cpu", "-n", "4", "--emulate-hosts", "2", "--schedule",
                                           "hierarchical:2", "--link", "1GB/s,10us,hosts"},
                                          kSmall),
                             .env = {{"ASAN_OPTIONS", "detect_leaks=0"}}});
  expect_good(result, {"\"ok\": true", "\"hierarchical:2\"", "\"emulated\": true"});
}

TEST(Hosts, OfUnequalSizeAreRefused) {
  const Result result = run({.args = {"run", "--backend", "cpu", "-n", "4", "--emulate-hosts", "3"}});
  EXPECT_EQ(result.exit, 2);
  EXPECT_NE(result.err.find("--emulate-hosts is 3, wanted a divisor of the 4 ranks"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace overlace::cli_test
