// `overlace run` as ranks that somebody else started: mpirun on one host and on several, srun's variables.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>

#include "src/base/json.h"
#include "tests/cli/support/mpi.h"

namespace overlace::cli_test {
namespace {

using base::Json;
using Words = std::vector<std::string>;

Words joined(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// What one rank wrote: the whole of stdout is one document.
Json report_of(const Result& result) {
  EXPECT_EQ(result.exit, 0) << result.out << result.err;
  const auto json = Json::parse(result.out, "stdout");
  EXPECT_TRUE(json.ok()) << result.out;
  return json.ok() ? *json : Json::object();
}

/// A value of the report as text.
std::string at(const Json& report, const char* key) {
  const Json* value = report.find(key);
  return value == nullptr ? "missing" : value->dump();
}

std::string schedules_of(const Json& report) {
  std::string out;
  const Json* sites = report.find("sites");
  for (size_t i = 0; sites != nullptr && i < sites->as_array().size(); ++i)
    out += sites->as_array()[i].find("schedule")->as_string() + " ";
  return out;
}

class Mpirun : public testing::TestWithParam<const Mpi*> {
 protected:
  void SetUp() override {
    if (const std::string why = why_not(mpi()); !why.empty()) GTEST_SKIP() << why;
  }
  const Mpi& mpi() const { return *GetParam(); }
  Result start(int ranks, const Words& words) { return run(plainly(ranks_of(mpi(), ranks, words))); }
};

TEST_P(Mpirun, RanksAreOneRunWithOneReport) {
  const Json report = report_of(start(4, small_run({"--json", "-"})));
  EXPECT_EQ(at(report, "ok"), "true");
  EXPECT_EQ(at(report, "ranks"), "4");
  EXPECT_EQ(at(report, "hosts"), "1");
}

TEST_P(Mpirun, RanksOfOneHostTakeEachOthersLink) {
  const Json report = report_of(start(2, small_run({"--json", "-", "--link", "1GB/s,10us", "-n", "2"})));
  EXPECT_EQ(at(report, "link"), "\"1GB/s,10us\"");
  EXPECT_EQ(at(report, "emulated"), "true");
}

TEST_P(Mpirun, OneRankIsARunToo) {
  const Json report = report_of(start(1, small_run({"--json", "-"})));
  EXPECT_EQ(at(report, "ranks"), "1");
  EXPECT_EQ(at(report, "emulated"), "false");
}

/// Our line once, the status that the same has without a launcher.
TEST_P(Mpirun, WhatAllRanksRefuseIsSaidOnce) {
  const Result result = start(4, small_run({"--schedule", "sideways"}));
  EXPECT_EQ(result.exit, 2) << result.err;
  const Words errors = errors_of(result);
  ASSERT_EQ(errors.size(), 1u) << result.out << result.err;
  EXPECT_NE(errors[0].find("sideways"), std::string::npos) << errors[0];
  EXPECT_EQ(errors[0].find("rank "), std::string::npos) << errors[0];
}

TEST_P(Mpirun, ARankThatRefusesIsNamed) {
  const Words bad = small_run({"--input", "/no/such/input.npy", "--json", "-"});
  Words words = ranks_of(mpi(), 1, small_run({"--json", "-"}));
  words = joined(joined(words, {":", "-n", "1"}), bad);
  const Result result = run(plainly(words));
  EXPECT_EQ(result.exit, 5) << result.err;
  const Words errors = errors_of(result);
  ASSERT_EQ(errors.size(), 1u) << result.out << result.err;
  EXPECT_EQ(errors[0].rfind("rank 1: ", 0), 0u) << errors[0];
  EXPECT_NE(errors[0].find("/no/such/input.npy"), std::string::npos) << errors[0];
}

TEST_P(Mpirun, AFailureAtTheEndIsSaidOnce) {
  const Result result = start(2, small_run({"--quiet", "--json", "/dev/full"}));
  EXPECT_EQ(result.exit, 5) << result.err;
  const Words errors = errors_of(result);
  ASSERT_EQ(errors.size(), 1u) << result.out << result.err;
  EXPECT_NE(errors[0].find("/dev/full"), std::string::npos) << errors[0];
}

TEST_P(Mpirun, HostsCanDifferButNotForHierarchical) {
  const auto ranks_on = [&](const Words& more) {
    Words words = ranks_of(mpi(), 1, {"env", "OVERLACE_HOST_ID=a"});
    words = joined(joined(words, small_run(more)), {":", "-n", "3", "env", "OVERLACE_HOST_ID=b"});
    return run(plainly(joined(words, small_run(more))));
  };
  const Json report = report_of(ranks_on({"--json", "-"}));
  EXPECT_EQ(at(report, "ok"), "true");
  EXPECT_EQ(at(report, "hosts"), "2");
  EXPECT_EQ(schedules_of(report).find("hierarchical"), std::string::npos);
  const Result refused = ranks_on({"--schedule", "hierarchical"});
  EXPECT_EQ(refused.exit, 2);
  ASSERT_EQ(errors_of(refused).size(), 1u) << refused.err;
  EXPECT_EQ(
      errors_of(refused)[0].rfind("--schedule is hierarchical, but the 4 ranks are on 2 hosts of unequal size", 0), 0u)
      << refused.err;
}

TEST_P(Mpirun, OptionsThatStartRanksAreRefused) {
  const std::string there =
      std::string("2 ranks were started already (") + (mpi().name == std::string("mpich") ? "pmi)" : "openmpi)");
  const std::vector<std::pair<Words, std::string>> cases = {
      {{"-n", "3"}, "--ranks is 3, but " + there},
      {{"--threads"}, "--threads: " + there + ", wanted one of both"},
      {{"--emulate-hosts", "2"}, "--emulate-hosts is 2, but " + there + ": it starts its own"},
      {{"--", "date"}, "-- date: " + there + ", wanted the program in place of overlace run"},
  };
  for (const auto& [options, text] : cases) {
    const Result result = start(2, joined({OVERLACE_PROGRAM, "run"}, options));
    EXPECT_EQ(result.exit, 2) << text;
    const Words errors = errors_of(result);
    ASSERT_FALSE(errors.empty()) << text;
    for (const std::string& error : errors) EXPECT_EQ(error, text);
  }
}

/// Processes that are ranks of the run with this seed, by rank.
std::map<int, pid_t> ranks_with(const std::string& seed) {
  namespace fs = std::filesystem;
  const auto slurp = [](const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();  // unlike iterators does not throw where a process ends meanwhile
    return text.str();
  };
  std::map<int, pid_t> out;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string words = slurp(entry.path() / "cmdline"), variables = slurp(entry.path() / "environ");
    if (words.rfind(OVERLACE_PROGRAM, 0) != 0 || words.find(std::string("--seed\0", 7) + seed) == std::string::npos)
      continue;
    for (const std::string variable : {"OMPI_COMM_WORLD_RANK=", "PMI_RANK="})
      if (const size_t found = variables.find(variable); found != std::string::npos)
        out[std::stoi(variables.substr(found + variable.size()))] = static_cast<pid_t>(std::stoi(name));
  }
  return out;
}

/// Until there are as many. False after 30 s.
bool wait_for_ranks(const std::string& seed, size_t count) {
  for (int i = 0; i < 600; ++i) {
    if (ranks_with(seed).size() == count) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return false;
}

/// Kills rank 1 of four in the middle of a long run and waits for its end. Who it was is said by the launcher, which
/// may end the others before they can say it: Open MPI by rank; MPICH by process, now and then one that it ended
/// itself.
void expect_end_by_kill(const Mpi& mpi, const std::string& seed,
                        const std::function<Words(const Words&)>& with_launcher) {
  const std::set<std::string> memory = shared_memory();
  Process process(plainly(with_launcher(
      {OVERLACE_PROGRAM, "run", "--backend", "cpu", "--tokens", "512", "--repeat", "1000", "--seed", seed})));
  ASSERT_TRUE(wait_for_ranks(seed, 4));
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // they have opened
  const auto ranks = ranks_with(seed);
  ASSERT_EQ(ranks.size(), 4u);
  ASSERT_EQ(::kill(ranks.at(1), SIGKILL), 0);
  EXPECT_TRUE(wait_for_ranks(seed, 0));
  const Result result = process.wait();
  EXPECT_FALSE(result.timed_out);
  EXPECT_NE(result.exit, 0);
  EXPECT_EQ(shared_memory(), memory);
  const std::string words = result.out + result.err;
  const std::string culprit = mpi.name == std::string("mpich") ? "EXIT CODE: 9" : "rank 1";
  EXPECT_NE(words.find(culprit), std::string::npos) << words;
}

TEST_P(Mpirun, ARankThatIsKilledEndsTheRun) {
  expect_end_by_kill(mpi(), std::to_string(::getpid()) + "1",
                     [&](const Words& words) { return ranks_of(mpi(), 4, words); });
}

INSTANTIATE_TEST_SUITE_P(Launchers, Mpirun, testing::Values(&openmpi(), &mpich()),
                         [](const auto& test) { return std::string(test.param->name); });

class MpirunOnHosts : public testing::TestWithParam<const Mpi*> {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_hosts(mpi()); !why.empty()) GTEST_SKIP() << why;
  }
  const Mpi& mpi() const { return *GetParam(); }
  Result start(int hosts, int ranks_each, const Words& words) {
    return run(plainly(ranks_on_hosts(mpi(), hosts, ranks_each, words)));
  }
};

TEST_P(MpirunOnHosts, RanksFindTheirHostsAndTheLinkBetweenThem) {
  const Json report = report_of(start(2, 2, small_run({"--json", "-"})));
  EXPECT_EQ(at(report, "ok"), "true");
  EXPECT_EQ(at(report, "ranks"), "4");
  EXPECT_EQ(at(report, "hosts"), "2");
  EXPECT_EQ(at(report, "emulated"), "true");  // one machine
  EXPECT_EQ(at(report, "link"), "\"none (2 hosts on one machine)\"");
  for (const Json& site : report.find("sites")->as_array())
    EXPECT_NE(site.find("reason")->as_string().find("transfer"), std::string::npos) << site.dump();
}

TEST_P(MpirunOnHosts, PiecesCrossOnce) {
  const Json report = report_of(start(2, 2, small_run({"--json", "-", "--schedule", "hierarchical:2"})));
  EXPECT_EQ(at(report, "ok"), "true");
  EXPECT_EQ(schedules_of(report), "hierarchical:2 hierarchical:2 hierarchical:2 hierarchical:2 ");
}

TEST_P(MpirunOnHosts, OneRankEach) {
  const Json report = report_of(start(2, 1, small_run({"--json", "-"})));
  EXPECT_EQ(at(report, "ok"), "true");
  EXPECT_EQ(at(report, "hosts"), "2");
}

TEST_P(MpirunOnHosts, AFailureIsSaidOnce) {
  const Result result = start(2, 2, small_run({"--quiet", "--json", "/dev/full"}));
  EXPECT_EQ(result.exit, 5) << result.err;
  ASSERT_EQ(errors_of(result).size(), 1u) << result.out << result.err;
  EXPECT_NE(errors_of(result)[0].find("/dev/full"), std::string::npos);
}

TEST_P(MpirunOnHosts, ARankThatIsKilledEndsTheRun) {
  expect_end_by_kill(mpi(), std::to_string(::getpid()) + "2",
                     [&](const Words& words) { return ranks_on_hosts(mpi(), 2, 2, words); });
}

INSTANTIATE_TEST_SUITE_P(Launchers, MpirunOnHosts, testing::Values(&openmpi(), &mpich()),
                         [](const auto& test) { return std::string(test.param->name); });

/// In the names of srun, which is not needed for it.
TEST(Srun, VariablesOfAJobOnOneHost) {
  Command command{
      .args = {"run", "-n", "2", "--", "sh", "-c",
               "exec env -u WORLD_SIZE -u RANK -u LOCAL_RANK -u OVERLACE_LAUNCH_SOCKET ASAN_OPTIONS=detect_leaks=0 "
               "SLURM_PROCID=$RANK SLURM_NTASKS=2 SLURM_LOCALID=$RANK SLURM_NODELIST=here \"$0\" \"$@\""}};
  command.args = joined(command.args, small_run({"--json", "-"}));
  const Json report = report_of(run(command));
  EXPECT_EQ(at(report, "ok"), "true");
  EXPECT_EQ(at(report, "ranks"), "2");
}

TEST(Srun, VariablesOfAJobOnTwoHosts) {
  if (const std::string why = why_no_hosts(openmpi()); !why.empty()) GTEST_SKIP() << why;
  const Words as_srun = {"sh", "-c",
                         "exec env -u OMPI_COMM_WORLD_SIZE SLURM_PROCID=$OMPI_COMM_WORLD_RANK SLURM_NTASKS=4 "
                         "SLURM_LOCALID=$OMPI_COMM_WORLD_LOCAL_RANK SLURM_NODELIST=10.77.0.1,10.77.0.2 \"$0\" \"$@\""};
  const Json report =
      report_of(run(plainly(ranks_on_hosts(openmpi(), 2, 2, joined(as_srun, small_run({"--json", "-"}))))));
  EXPECT_EQ(at(report, "ok"), "true");
  EXPECT_EQ(at(report, "ranks"), "4");
  EXPECT_EQ(at(report, "hosts"), "2");
}

TEST(Pmix, ARankWithoutANumberOfRanksIsRefused) {
  const Result result = run(plainly(joined({"PMIX_RANK=1"}, small_run())));
  EXPECT_EQ(result.exit, 4);
  ASSERT_EQ(errors_of(result).size(), 1u) << result.err;
  EXPECT_EQ(
      errors_of(result)[0].rfind("rank 1: bootstrap: rank is 1 (pmix), but no variable says how many there are", 0), 0u)
      << result.err;
}

}  // namespace
}  // namespace overlace::cli_test
