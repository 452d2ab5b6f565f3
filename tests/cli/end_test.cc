// How a run ends when it is not allowed to finish: killed ranks, Ctrl-C. Nothing may stay behind.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <thread>

#include "tests/cli/support/command.h"

namespace overlace::cli_test {
namespace {

/// Long enough that it is still busy when the test interferes.
Command long_run(const Directory& directory, std::vector<std::string> more = {}) {
  Command command;
  command.args = {"run",      "-n",    "2",        "--tokens", "512",    "--repeat", "1000",
                  "--output", "y.npy", "--report", "r.html",   "--json", "r.json"};
  command.args.insert(command.args.end(), more.begin(), more.end());
  command.env = {{"CUDA_VISIBLE_DEVICES", ""}, {"OVERLACE_TIMEOUT_S", "20"}};
  command.directory = directory.path();
  return command;
}

/// The ranks, once they have opened (they hold the shared heaps of both).
std::vector<pid_t> wait_for_ranks(const Process& process, size_t count) {
  for (int i = 0; i < 3000; ++i) {
    const auto ranks = descendants(process.pid());
    if (ranks.size() == count) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1500));
      return ranks;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return {};
}

class Ending : public testing::Test {
 protected:
  void expect_nothing_left(const std::vector<pid_t>& ranks) {
    for (pid_t rank : ranks) EXPECT_FALSE(is_running(rank)) << rank;
    EXPECT_EQ(shared_memory(), memory_);
    EXPECT_TRUE(directory_.entries().empty());
  }
  Directory directory_;
  std::set<std::string> memory_ = shared_memory();
};

class KilledRank : public Ending, public testing::WithParamInterface<size_t> {};

TEST_P(KilledRank, EndsTheRunWithTheReason) {
  Process process(long_run(directory_));
  const auto ranks = wait_for_ranks(process, 2);
  ASSERT_EQ(ranks.size(), 2u);
  ASSERT_EQ(::kill(ranks[GetParam()], SIGKILL), 0);
  const Result result = process.wait();
  EXPECT_FALSE(result.timed_out);
  EXPECT_EQ(result.exit, 4) << result.err;
  EXPECT_LT(result.seconds, 30);
  EXPECT_EQ(result.err.rfind("overlace: error: ", 0), 0u) << result.err;
  expect_nothing_left(ranks);
}

INSTANTIATE_TEST_SUITE_P(First, KilledRank, testing::Values(0u));
INSTANTIATE_TEST_SUITE_P(Second, KilledRank, testing::Values(1u));

TEST_F(Ending, KilledLauncherTakesItsRanksAlong) {
  std::vector<pid_t> ranks;
  {
    Process process(long_run(directory_));
    ranks = wait_for_ranks(process, 2);
    ASSERT_EQ(ranks.size(), 2u);
    process.signal(SIGKILL);
    EXPECT_EQ(process.wait().exit, 128 + SIGKILL);
  }
  for (int i = 0; i < 500 && (is_running(ranks[0]) || is_running(ranks[1])); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  expect_nothing_left(ranks);
}

class Interrupted : public Ending, public testing::WithParamInterface<int> {};

TEST_P(Interrupted, EndsAllRanks) {
  Process process(long_run(directory_));
  const auto ranks = wait_for_ranks(process, 2);
  ASSERT_EQ(ranks.size(), 2u);
  process.signal(GetParam());
  const Result result = process.wait();
  EXPECT_EQ(result.exit, 130) << result.err;
  EXPECT_LT(result.seconds, 30);
  expect_nothing_left(ranks);
}

INSTANTIATE_TEST_SUITE_P(CtrlC, Interrupted, testing::Values(SIGINT));
INSTANTIATE_TEST_SUITE_P(Terminated, Interrupted, testing::Values(SIGTERM));

TEST_F(Ending, CtrlCEndsRankThreadsToo) {
  Process process(long_run(directory_, {"--threads"}));
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  process.signal(SIGINT);
  const Result result = process.wait();
  EXPECT_EQ(result.exit, 130) << result.err;
  expect_nothing_left({});
}

}  // namespace
}  // namespace overlace::cli_test
