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

/// A rank that ends, and one that no longer answers: exit status 4, as a lost peer and a deadline have.
struct Fate {
  const char* name;
  size_t rank;
  int signal;
  const char* timeout_s;
};
void PrintTo(const Fate& fate, std::ostream* out) { *out << fate.name; }

class LostRank : public Ending, public testing::WithParamInterface<Fate> {};

TEST_P(LostRank, EndsTheRunWithTheReason) {
  Command command = long_run(directory_);
  command.env["OVERLACE_TIMEOUT_S"] = GetParam().timeout_s;
  Process process(command);
  const auto ranks = wait_for_ranks(process, 2);
  ASSERT_EQ(ranks.size(), 2u);
  ASSERT_EQ(::kill(ranks[GetParam().rank], GetParam().signal), 0);
  const Result result = process.wait();
  EXPECT_FALSE(result.timed_out);
  EXPECT_EQ(result.exit, 4) << result.err;
  EXPECT_LT(result.seconds, 30);
  EXPECT_EQ(result.err.rfind("overlace: error: ", 0), 0u) << result.err;
  EXPECT_NE(result.err.find("rank " + std::to_string(GetParam().rank)), std::string::npos) << result.err;
  // The words of the rank that is left: also while it computes the oracle, which it then gives up.
  EXPECT_NE(result.err.find("rank " + std::to_string(1 - GetParam().rank) + ": "), std::string::npos) << result.err;
  expect_nothing_left(ranks);
}

INSTANTIATE_TEST_SUITE_P(Fates, LostRank,
                         testing::Values(Fate{"first_killed", 0, SIGKILL, "20"},
                                         Fate{"second_killed", 1, SIGKILL, "20"},
                                         Fate{"first_aborted", 0, SIGABRT, "20"},
                                         Fate{"second_stopped", 1, SIGSTOP, "3"}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_F(Ending, AProgramsStatusIsTheRunsStatus) {
  const auto status_of = [&](const std::string& script) {
    Command command;
    command.args = {"run", "-n", "3", "--", "/bin/sh", "-c", script};
    command.directory = directory_.path();
    return run(command).exit;
  };
  EXPECT_EQ(status_of("exit 0"), 0);
  EXPECT_EQ(status_of("[ $RANK = 1 ] && exit 7; sleep 60"), 7);
  EXPECT_EQ(status_of("[ $RANK = 2 ] && kill -KILL $$; sleep 60"), 128 + SIGKILL);
  expect_nothing_left({});
}

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
