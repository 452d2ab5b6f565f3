#include "cli/run/started.h"

#include <gtest/gtest.h>

namespace overlace::cli {
namespace {

/// Each rank's host by a letter; a capital one is on the machine of its small one.
Placement placed(const std::string& hosts, int rank) {
  std::vector<HostMark> marks;
  for (const char host : hosts) marks.push_back({static_cast<uint64_t>(host), static_cast<uint64_t>(host | 0x20)});
  return place(marks, rank);
}

TEST(Started, KnowsWhereTheRanksAre) {
  const Placement one = placed("aaaa", 3);
  EXPECT_EQ(one.hosts, 1);
  EXPECT_EQ(one.ranks_here, 4);
  EXPECT_TRUE(one.is_regular);
  EXPECT_FALSE(one.is_emulated);
  const Placement two = placed("bbaa", 2);
  EXPECT_EQ(two.hosts, 2);
  EXPECT_EQ(two.ranks_here, 2);
  EXPECT_TRUE(two.is_regular);
  EXPECT_FALSE(two.is_emulated);
  EXPECT_TRUE(placed("abcd", 0).is_regular);
  EXPECT_EQ(placed("abcd", 0).ranks_here, 1);
}

TEST(Started, SeesHostsThatSchedulesCannotUse) {
  EXPECT_FALSE(placed("abbb", 0).is_regular);
  EXPECT_EQ(placed("abbb", 0).ranks_here, 1);
  EXPECT_EQ(placed("abbb", 3).ranks_here, 3);
  EXPECT_FALSE(placed("abab", 0).is_regular);
  EXPECT_FALSE(placed("aabbba", 2).is_regular);
  EXPECT_FALSE(placed("aabbbcc", 0).is_regular);
  EXPECT_FALSE(placed("aabbbcc", 3).is_regular);
}

TEST(Started, CallsHostsOfOneMachineEmulated) {
  EXPECT_TRUE(placed("aaAA", 0).is_emulated);
  EXPECT_EQ(placed("aaAA", 0).hosts, 2);
  EXPECT_TRUE(placed("abAB", 0).is_emulated);
}

std::string start_refusal(const RunOptions& options, const std::vector<std::string>& block) {
  const base::Env env = base::Env::parse(block).value();
  const base::Status status = check_started(options, env, look_around(env));
  EXPECT_TRUE(status.ok() || status.code() == Errc::invalid_argument);
  return status.message();
}

const std::vector<std::string> kTwo = {"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2"};

TEST(Started, TakesNoOptionsThatStartRanks) {
  RunOptions options;
  EXPECT_EQ(start_refusal(options, kTwo), "");
  options.ranks = 2;
  EXPECT_EQ(start_refusal(options, kTwo), "");
  options.ranks = 4;
  EXPECT_EQ(start_refusal(options, kTwo), "--ranks is 4, but 2 ranks were started already (openmpi)");
  EXPECT_EQ(start_refusal(options, {"SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=1"}),
            "--ranks is 4, but 1 rank was started already (slurm)");
  options = {};
  options.threads = true;
  EXPECT_EQ(start_refusal(options, kTwo), "--threads: 2 ranks were started already (openmpi), wanted one of both");
  options = {};
  options.program = {"date"};
  EXPECT_EQ(start_refusal(options, kTwo),
            "-- date: 2 ranks were started already (openmpi), wanted the program in place of overlace run");
  options = {};
  options.emulate_hosts = 2;
  EXPECT_EQ(start_refusal(options, kTwo),
            "--emulate-hosts is 2, but 2 ranks were started already (openmpi): it starts its own");
  EXPECT_EQ(start_refusal(options, {"PMI_RANK=0", "PMI_SIZE=2", "OVERLACE_HOST_ID=emulated host 1"}), "");
}

}  // namespace
}  // namespace overlace::cli
