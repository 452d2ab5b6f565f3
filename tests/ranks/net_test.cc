// Ranks started by mpirun, on one host and on several. What they do stands in tests/ranks/net.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "src/base/file.h"
#include "tests/cli/support/command.h"
#include "tests/ranks/support/run_ranks.h"
#include "tests/ranks/support/seeds.h"

namespace overlace::test {
namespace {

using cli_test::Command;
using cli_test::Result;
using cli_test::run;

/// What root on Debian needs, which its MPI does not let start anything otherwise.
const std::map<std::string, std::string> kMpiEnv = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                                                    {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                                                    // MPI's own; what overlace leaks the other tests see.
                                                    {"ASAN_OPTIONS", "detect_leaks=0"}};

bool is_installed(const std::string& program) {
  for (const char* directory : {"/usr/bin/", "/usr/local/bin/", "/bin/", "/usr/sbin/", "/sbin/"})
    if (::access((directory + program).c_str(), X_OK) == 0) return true;
  return false;
}

/// Why ranks cannot be started with this launcher; empty if they can.
std::string why_no_mpi(const std::string& launcher, const std::string& library) {
  if (!kHasProcesses) return "ranks are threads under this sanitizer";
  if (!is_installed(launcher)) return launcher + " is not installed";
  if (std::string(OVERLACE_MPI_LIBRARIES).find(library) == std::string::npos)
    return "engine mpi was not built for " + library;
  return "";
}

std::vector<std::string> body(const std::string& filter, const std::vector<std::string>& parameters = {}) {
  std::vector<std::string> words = {OVERLACE_NET_BODIES, "--gtest_brief=1", "--gtest_filter=" + filter};
  words.insert(words.end(), parameters.begin(), parameters.end());
  return words;
}

void append(std::vector<std::string>& to, const std::vector<std::string>& words) {
  to.insert(to.end(), words.begin(), words.end());
}

std::string tail(const Result& result) {
  const std::string all = result.out + result.err;
  return all.size() > 6000 ? all.substr(all.size() - 6000) : all;
}

/// Open MPI on this machine, each host a name that its ranks give it; one host: none.
Command openmpi(int hosts, int ranks_each, const std::vector<std::string>& program) {
  Command command{.args = {"mpirun.openmpi", "--oversubscribe", "--bind-to", "none", "--mca", "plm", "isolated"},
                  .env = kMpiEnv};
  for (int host = 0; host < hosts; ++host) {
    if (host != 0) command.args.push_back(":");
    append(command.args, {"-n", std::to_string(ranks_each)});
    if (hosts > 1) append(command.args, {"-x", "OVERLACE_HOST_ID=host" + std::to_string(host)});
    append(command.args, program);
  }
  return command;
}

void expect_good(const Result& result) {
  EXPECT_FALSE(result.timed_out);
  EXPECT_EQ(result.exit, 0) << tail(result);
  EXPECT_EQ(result.out.find("0 tests from 0 test suites"), std::string::npos) << tail(result);
}

class NetEngineTest : public testing::TestWithParam<const char*> {};

TEST_P(NetEngineTest, OnTwoProcessesOfOpenMpi) {
  if (const std::string why = why_no_mpi("mpirun.openmpi", "openmpi"); !why.empty()) GTEST_SKIP() << why;
  Command command = openmpi(1, 2, body(GetParam()));
  command.env["OVERLACE_NET_ENGINE"] = "mpi";
  expect_good(run(command));
}

TEST_P(NetEngineTest, OnTwoProcessesOfMpich) {
  if (const std::string why = why_no_mpi("mpiexec.hydra", "mpich"); !why.empty()) GTEST_SKIP() << why;
  Command command{.args = {"mpiexec.hydra", "-n", "2"}, .env = kMpiEnv};
  command.env["OVERLACE_NET_ENGINE"] = "mpi";
  append(command.args, body(GetParam()));
  expect_good(run(command));
}

INSTANTIATE_TEST_SUITE_P(Cases, NetEngineTest,
                         testing::Values("Engine.StartedByTheCaller", "Engine.StartedByTheCallerForOneThread",
                                         "Engine.Collectives*", "Engine.Sums*", "Engine.Bad*", "Engine.Different*",
                                         "Engine.AMessage*"),
                         [](const auto& test) { return "Case" + std::to_string(test.index); });

/// Hosts are network namespaces with names of their own.
Command namespaces(int hosts, int ranks_each, const std::vector<std::string>& program) {
  Command command{.args = {OVERLACE_SOURCE_DIR "/tests/ranks/net/hosts.sh", "run", std::to_string(hosts),
                           std::to_string(ranks_each)},
                  .env = kMpiEnv};
  append(command.args, program);
  return command;
}

/// Why this machine cannot have them; empty if it can.
const std::string& why_no_namespaces() {
  static const std::string why = [] {
    if (const std::string no_mpi = why_no_mpi("mpirun.openmpi", "openmpi"); !no_mpi.empty()) return no_mpi;
    if (::geteuid() != 0) return std::string("network namespaces need root");
    if (!is_installed("ip") || !is_installed("unshare")) return std::string("ip or unshare is not installed");
    const Result result = run({.args = {OVERLACE_SOURCE_DIR "/tests/ranks/net/hosts.sh", "check"}});
    return result.exit == 0 ? std::string() : "this machine has no network namespaces: " + tail(result);
  }();
  return why;
}

bool is_loaded() {
  double load = 0;
  return ::getloadavg(&load, 1) != 1 || load > 3;
}

/// Ranks that run, with the word in their command line.
int count_ranks(const std::string& word) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const base::Result<std::string> read = base::read_file((entry.path() / "cmdline").string());
    const std::string words = read.ok() ? *read : "";
    count += words.rfind(OVERLACE_NET_BODIES, 0) == 0 && words.find(word) != std::string::npos ? 1 : 0;
  }
  return count;
}

/// Until there is a rank, or none is left. False after `limit_s`.
bool wait_for_ranks(const std::string& word, bool present, int limit_s) {
  for (int i = 0; i < limit_s * 50; ++i, ::usleep(20000))
    if ((count_ranks(word) != 0) == present) return true;
  return false;
}

struct Hosts {
  int hosts, ranks_each;
};

class NetHostsTest : public testing::TestWithParam<Hosts> {
 protected:
  void SetUp() override {
    if (!why_no_namespaces().empty()) GTEST_SKIP() << why_no_namespaces();
  }
  Command on_hosts(const std::vector<std::string>& program) const {
    return namespaces(GetParam().hosts, GetParam().ranks_each, program);
  }
};

TEST_P(NetHostsTest, EveryScheduleOfEveryOperator) {
  const int far = (GetParam().hosts - 1) * GetParam().ranks_each;
  expect_good(run(on_hosts(body("Operator.Every*", {"far=" + std::to_string(far)}))));
}

TEST_P(NetHostsTest, Puts) { expect_good(run(on_hosts(body("Put.*:Operator.What*")))); }

TEST_P(NetHostsTest, UnderTheAdversary) {
  Command command = on_hosts(body("Put.*"));
  command.env["OVERLACE_ADVERSARY"] = "seed=" + std::to_string(seeds().first);
  expect_good(run(command));
}

INSTANTIATE_TEST_SUITE_P(Hosts, NetHostsTest, testing::Values(Hosts{2, 1}, Hosts{2, 2}, Hosts{3, 1}),
                         [](const auto& test) {
                           return std::to_string(test.param.hosts) + "x" + std::to_string(test.param.ranks_each);
                         });

/// Other launchers' variables in place of mpirun's.
std::vector<std::string> started_as(const std::string& variables, std::vector<std::string> program) {
  program.insert(program.begin(), {"sh", "-c", "env " + variables + " \"$0\" \"$@\""});
  return program;
}

TEST(NetLaunch, VariablesOfTorchrun) {
  if (!why_no_namespaces().empty()) GTEST_SKIP() << why_no_namespaces();
  expect_good(run(namespaces(
      2, 2,
      started_as("RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=4 LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK LOCAL_WORLD_SIZE=2 "
                 "MASTER_ADDR=10.77.0.1 MASTER_PORT=29500",
                 body("Put.*")))));
}

TEST(NetLaunch, VariablesOfSrun) {
  if (!why_no_namespaces().empty()) GTEST_SKIP() << why_no_namespaces();
  expect_good(run(namespaces(
      2, 2,
      started_as(
          "-u OMPI_COMM_WORLD_SIZE SLURM_PROCID=$OMPI_COMM_WORLD_RANK SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=$OMPI_"
          "COMM_WORLD_LOCAL_RANK SLURM_STEP_NUM_NODES=2 SLURM_JOB_ID=7 SLURM_STEP_ID=0 "
          "SLURM_STEP_NODELIST=10.77.0.1,10.77.0.2",
          body("Put.*")))));
}

/// Ranks like torchrun's, of two hosts with two each, with more variables; `over`: how they are to meet.
Result meet_as_torchrun(const std::string& variables, const std::string& over) {
  return run(namespaces(
      2, 2,
      started_as(variables + " RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=4 LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK "
                             "LOCAL_WORLD_SIZE=2 MASTER_PORT=29500 MASTER_ADDR=10.77.0.1",
                 body("Meet.Over", {"over=" + over}))));
}

TEST(NetLaunch, ASecretLetsRanksMeetOverTcp) {
  if (!why_no_namespaces().empty()) GTEST_SKIP() << why_no_namespaces();
  const std::string secret = "OVERLACE_SECRET=known-to-these-ranks-only ";
  expect_good(meet_as_torchrun(secret, "tcp"));
  expect_good(meet_as_torchrun(secret + "OVERLACE_LISTEN=eth0", "tcp"));
  expect_good(run(namespaces(2, 2, started_as(secret + "MASTER_ADDR=10.77.0.1", body("Put.*")))));
}

TEST(NetLaunch, WithoutASecretTheyMeetOverMpiOrNotAtAll) {
  if (!why_no_namespaces().empty()) GTEST_SKIP() << why_no_namespaces();
  expect_good(meet_as_torchrun("", "mpi"));
  const Result refused = meet_as_torchrun("-u PMIX_RANK -u OMPI_COMM_WORLD_RANK", "tcp");
  EXPECT_NE(refused.exit, 0);
  const std::string all = refused.out + refused.err;
  EXPECT_NE(all.find("would meet over TCP on 10.77.0.1, with nothing that a stranger does not know"), std::string::npos)
      << tail(refused);
  EXPECT_NE(all.find("set OVERLACE_SECRET"), std::string::npos) << tail(refused);
}

class NetLiarTest : public testing::TestWithParam<const char*> {};

TEST_P(NetLiarTest, IsNamedAndNothingIsWritten) {
  if (const std::string why = why_no_mpi("mpirun.openmpi", "openmpi"); !why.empty()) GTEST_SKIP() << why;
  const Result result = run(openmpi(2, 1, body("Liar.*", {"lie=" + std::string(GetParam())})));
  EXPECT_FALSE(result.timed_out);
  // NOTE: not the exit code. After a failure MPI_Finalize has 400 ms, which a busy machine may need for less.
  const std::string passed = "[  PASSED  ] ";
  size_t count = 0;
  for (size_t at = result.out.find(passed); at != std::string::npos; at = result.out.find(passed, at + 1)) ++count;
  EXPECT_EQ(count, 2u) << tail(result);
  EXPECT_EQ(result.out.find("FAILED"), std::string::npos) << tail(result);
}

TEST(NetGrown, MemoryIsBelievedAtOnce) {
  if (const std::string why = why_no_mpi("mpirun.openmpi", "openmpi"); !why.empty()) GTEST_SKIP() << why;
  expect_good(run(openmpi(2, 2, body("Grown.*"))));
}

INSTANTIATE_TEST_SUITE_P(Lies, NetLiarTest,
                         testing::Values("rows", "length", "offset", "wrap", "id", "bell", "kind", "answer"),
                         [](const auto& test) { return std::string(test.param); });

struct FaultCase {
  const char *fault, *place;
};

/// What a rank printed about its end.
struct Told {
  int rank = -1, code = 0;
  int64_t ns = 0;
  std::string text;
};

class NetFaultTest : public testing::TestWithParam<FaultCase> {};

TEST_P(NetFaultTest, TheOthersAreTold) {
  if (!why_no_namespaces().empty()) GTEST_SKIP() << why_no_namespaces();
  const auto [fault, place] = GetParam();
  const cli_test::Directory directory;
  directory.write("log", "");
  const std::string marker = "marker=" + std::to_string(::getpid()) + fault + place;
  Command command = namespaces(2, 2,
                               body("Fault.*", {"fault=" + std::string(fault), "place=" + std::string(place),
                                                "culprit=1", "log=" + (directory / "log"), marker}));
  // Else mpirun ends the others before they can say anything. With it mpirun does not see the end of a job in which a
  // rank was killed.
  command.env["OVERLACE_TEST_MPIRUN"] = "--enable-recovery --mca orte_abort_on_non_zero_status 0";
  cli_test::Process process(command);
  EXPECT_TRUE(wait_for_ranks(marker, /*present=*/true, 20));
  EXPECT_TRUE(wait_for_ranks(marker, /*present=*/false, 20)) << count_ranks(marker) << " ranks are left";
  process.signal(SIGTERM);
  const Result result = process.wait();
  const std::string log = directory.read("log");
  const size_t at = log.find("fault at ");
  ASSERT_NE(at, std::string::npos) << tail(result);
  const int64_t fault_ns = std::stoll(log.substr(at + 9));
  int survivors = 0;
  for (size_t line = 0; (line = log.find("told ", line)) != std::string::npos; line += 5) {
    Told told;
    char text[2000] = {};
    ASSERT_EQ(std::sscanf(log.c_str() + line, "told rank %d code %d at %ld: %1999[^\n]", &told.rank, &told.code,
                          &told.ns, text),
              4);
    const std::string words = text;
    const auto code = static_cast<Errc>(told.code);
    const bool is_stop = std::string(fault) == "stop";
    const bool is_right = is_stop                        ? code == Errc::timeout || code == Errc::aborted
                          : std::string(fault) == "fail" ? code == Errc::aborted || code == Errc::io
                                                         : code == Errc::peer_lost || code == Errc::bootstrap ||
                                                               words.find("rank 1 is gone") != std::string::npos;
    EXPECT_TRUE(is_right) << errc_name(code) << ": " << words;
    const bool is_named = words.find("rank 1") != std::string::npos || words.find("ranks 0, 1") != std::string::npos;
    EXPECT_TRUE(std::string(fault) == "fail" ? words.find("the disk is full") != std::string::npos : is_named) << words;
    const double seconds = static_cast<double>(told.ns - fault_ns) * 1e-9;
    EXPECT_LE(seconds, (is_stop ? 1.0 : 0) + (is_loaded() ? 10 : 1)) << words;
    ++survivors;
  }
  EXPECT_EQ(survivors, 3) << log << tail(result);
}

INSTANTIATE_TEST_SUITE_P(Cases, NetFaultTest,
                         testing::Values(FaultCase{"kill", "connect"}, FaultCase{"kill", "heap"},
                                         FaultCase{"kill", "operator"}, FaultCase{"exit", "operator"},
                                         FaultCase{"stop", "hello"}, FaultCase{"stop", "operator"},
                                         FaultCase{"fail", "heap"}, FaultCase{"fail", "operator"}),
                         [](const auto& test) { return std::string(test.param.fault) + "_" + test.param.place; });

std::vector<std::string> bits_of(Command (*started)(int, int, const std::vector<std::string>&), int hosts, int each) {
  const cli_test::Directory directory;
  directory.write("log", "");
  expect_good(run(started(hosts, each, body("Operator.Bits", {"log=" + (directory / "log")}))));
  const std::string log = directory.read("log");
  std::vector<std::string> lines;
  for (size_t at = 0, end = 0; (end = log.find('\n', at)) != std::string::npos; at = end + 1)
    lines.push_back(log.substr(at, end - at));
  std::sort(lines.begin(), lines.end());
  return lines;
}

TEST(NetBits, AreThoseOfOneHost) {
  if (!why_no_namespaces().empty()) GTEST_SKIP() << why_no_namespaces();
  const std::vector<std::string> several = bits_of(namespaces, 2, 2);
  EXPECT_EQ(several, bits_of(openmpi, 1, 4));
  EXPECT_GT(several.size(), 100u);
}

TEST(NetEmulated, HostsThatAreOnlyNamesGiveTheBitsOfOneHost) {
  if (const std::string why = why_no_mpi("mpirun.openmpi", "openmpi"); !why.empty()) GTEST_SKIP() << why;
  for (const int each : {1, 2}) {
    const std::vector<std::string> several = bits_of(openmpi, 2, each);
    EXPECT_EQ(several, bits_of(openmpi, 1, 2 * each)) << each << " ranks of each host";
    EXPECT_GT(several.size(), 50u * static_cast<size_t>(each));
  }
}

TEST(NetEmulated, HostsThatAreOnlyNamesForMpich) {
  if (const std::string why = why_no_mpi("mpiexec.hydra", "mpich"); !why.empty()) GTEST_SKIP() << why;
  Command command{.args = {"mpiexec.hydra"}, .env = kMpiEnv};
  for (const char* host : {"OVERLACE_HOST_ID=a", "OVERLACE_HOST_ID=b"}) {
    if (command.args.size() > 1) command.args.push_back(":");
    append(command.args, {"-n", "2", "env", host});
    append(command.args, body("Operator.Every*", {"far=2"}));
  }
  expect_good(run(command));
}

TEST(NetEmulated, RanksOfAHostShareItsLink) {
  if (const std::string why = why_no_mpi("mpirun.openmpi", "openmpi"); !why.empty()) GTEST_SKIP() << why;
  expect_good(run(openmpi(2, 2, body("Link.*"))));
}

TEST(NetEmulated, HostsThatAreOnlyNames) {
  if (const std::string why = why_no_mpi("mpirun.openmpi", "openmpi"); !why.empty()) GTEST_SKIP() << why;
  expect_good(run(openmpi(2, 2, body("Put.*"))));
}

}  // namespace
}  // namespace overlace::test
