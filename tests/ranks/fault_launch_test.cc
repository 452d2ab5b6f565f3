// The launcher: statuses, environment, interrupts, orphans.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "overlace/bootstrap.h"
#include "overlace/error.h"
#include "overlace/runtime.h"
#include "src/runtime/bootstrap/launcher.h"

namespace overlace::runtime {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

std::vector<std::string> shell(const std::string& script) { return {"/bin/sh", "-c", script}; }

/// This program again, one test of it, as a rank.
std::vector<std::string> self(const std::string& test) {
  return {"/proc/self/exe", "--gtest_also_run_disabled_tests", "--gtest_brief=1", "--gtest_filter=" + test};
}

std::filesystem::path scratch() {
  std::string name = (std::filesystem::temp_directory_path() / "overlace-launch-XXXXXX").string();
  return ::mkdtemp(name.data());
}

bool is_alive(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  return !text.empty() && text.find(") Z ") == std::string::npos;
}

/// Pids that the ranks wrote into files of this directory, once there are `count`.
std::vector<pid_t> pids_in(const std::filesystem::path& directory, size_t count) {
  std::vector<pid_t> pids;
  for (const auto begin = Clock::now(); seconds_since(begin) < 20; ::usleep(10000)) {
    pids.clear();
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      if (entry.path().extension() == ".part") continue;
      std::ifstream file(entry.path());
      pid_t pid = 0;
      while (file >> pid) pids.push_back(pid);
    }
    if (pids.size() >= count) break;
  }
  return pids;
}

bool all_end(const std::vector<pid_t>& pids) {
  for (const auto begin = Clock::now(); seconds_since(begin) < 10; ::usleep(10000)) {
    bool is_any = false;
    for (const pid_t pid : pids) is_any = is_any || is_alive(pid);
    if (!is_any) return true;
  }
  return false;
}

TEST(Launch, ReturnsZeroOrTheFirstFailure) {
  EXPECT_EQ(launch(3, shell("exit 0")), 0);
  EXPECT_EQ(launch(3, shell("[ $RANK = 1 ] && exit 7; exit 0")), 7);
  int first_failed = -1;
  EXPECT_EQ(launch(2, shell("[ $RANK = 1 ] && kill -SEGV $$; exit 0"), {}, &first_failed), 128 + SIGSEGV);
  EXPECT_EQ(first_failed, 1);
  const auto extra = [](int rank) { return runtime::Variables{{"EXTRA", "of rank " + std::to_string(rank)}}; };
  EXPECT_EQ(launch(2, shell("[ \"$WORLD_SIZE $LOCAL_RANK $EXTRA\" = \"2 $RANK of rank $RANK\" ]"), extra), 0);
}

TEST(Launch, SaysWhereTorchMeetsUnlessTheCallerDoes) {
  ASSERT_TRUE(std::getenv("MASTER_ADDR") == nullptr && std::getenv("MASTER_PORT") == nullptr);
  const std::string file = testing::TempDir() + "meeting_place";
  EXPECT_EQ(launch(2, shell("echo $MASTER_ADDR $MASTER_PORT >> " + file)), 0);
  std::ifstream said(file);
  std::string first, second;
  ASSERT_TRUE(std::getline(said, first) && std::getline(said, second));
  EXPECT_EQ(first, second) << "all ranks meet at one place";
  ASSERT_TRUE(first.starts_with("127.0.0.1 ")) << first;
  EXPECT_GT(std::stoi(first.substr(first.find(' '))), 0);
  std::remove(file.c_str());
  ::setenv("MASTER_ADDR", "somewhere", 1);
  EXPECT_EQ(launch(1, shell("[ \"$MASTER_ADDR$MASTER_PORT\" = somewhere ]")), 0);
  ::unsetenv("MASTER_ADDR");
}

TEST(Launch, SleepsWhileARankThatEndedIsNotAlone) {
  int fds[2] = {-1, -1};
  ASSERT_EQ(::pipe(fds), 0);
  const auto begin = Clock::now();
  int ticks = 0;
  // Rank 0 ends at once, rank 1 when the parent has come by so often that most of it was sleep.
  const auto child = [&](int rank, const std::string&) {
    char byte = 0;
    return rank == 0 || ::read(fds[0], &byte, 1) == 1 ? 0 : 1;
  };
  EXPECT_EQ(launch_forked(2, child, [&] { EXPECT_EQ(++ticks == 8 ? ::write(fds[1], "!", 1) : 1, 1); }), 0);
  EXPECT_GE(seconds_since(begin), 0.15);
  ::close(fds[0]);
  ::close(fds[1]);
}

TEST(Launch, SaysWhatCannotBeStarted) {
  try {
    (void)launch(2, {"/nonexistent/program"});
    FAIL() << "nothing was thrown";
  } catch (const IoError& error) {
    EXPECT_STREQ(error.what(), "launch: cannot start \"/nonexistent/program\": No such file or directory");
  }
  EXPECT_THROW((void)launch(0, shell("exit 0")), InvalidArgument);
  EXPECT_THROW((void)launch(1, {}), InvalidArgument);
}

TEST(Launch, AnExceptionOfTheCallerEndsTheGroup) {
  const auto begin = Clock::now();
  EXPECT_THROW((void)launch_forked(
                   2,
                   [](int, const std::string&) {
                     ::sleep(60);
                     return 0;
                   },
                   [] { throw std::runtime_error("enough"); }),
               std::runtime_error);
  EXPECT_LT(seconds_since(begin), 40);
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "no child is left";
}

TEST(Launch, EndsTheGroupAfterAFailure) {
  const std::filesystem::path directory = scratch();
  const auto begin = Clock::now();
  // The others ignore SIGTERM and have children of their own.
  EXPECT_EQ(launch(3, shell("[ $RANK = 0 ] && exit 9; trap '' TERM; sleep 60 & echo $! $$ > " + directory.string() +
                            "/$RANK; wait; sleep 60")),
            9);
  EXPECT_LT(seconds_since(begin), 40);  // not the 60 s for which they sleep
  EXPECT_TRUE(all_end(pids_in(directory, 4)));
  std::filesystem::remove_all(directory);
}

/// The launcher in a process of its own, so that it can be interrupted.
pid_t start_launcher(const std::filesystem::path& directory) {
  const pid_t launcher = ::fork();
  if (launcher == 0)
    ::_exit(launch(2, shell("sleep 60 & echo $! $$ > " + directory.string() + "/$RANK.part; mv " + directory.string() +
                            "/$RANK.part " + directory.string() + "/$RANK; wait")));
  return launcher;
}

TEST(Launch, InterruptsEndAllRanksWith130) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const std::filesystem::path directory = scratch();
    const pid_t launcher = start_launcher(directory);
    const std::vector<pid_t> pids = pids_in(directory, 4);
    EXPECT_EQ(pids.size(), 4u);
    const auto begin = Clock::now();
    ::kill(launcher, signal);
    int status = -1;
    ASSERT_EQ(::waitpid(launcher, &status, 0), launcher);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 130);
    EXPECT_LT(seconds_since(begin), 40);  // not the 60 s for which they sleep
    EXPECT_TRUE(all_end(pids));
    std::filesystem::remove_all(directory);
  }
}

TEST(Launch, AKilledLauncherLeavesNoRanks) {
  const std::filesystem::path directory = scratch();
  const pid_t launcher = start_launcher(directory);
  (void)pids_in(directory, 4);
  std::vector<pid_t> ranks;
  for (const char* rank : {"0", "1"}) {
    std::ifstream file(directory / rank);
    pid_t sleeper = 0, shell_pid = 0;
    ASSERT_TRUE(file >> sleeper >> shell_pid);
    ASSERT_GT(shell_pid, 1);
    ranks.push_back(shell_pid);
  }
  ::kill(launcher, SIGKILL);
  ASSERT_EQ(::waitpid(launcher, nullptr, 0), launcher);
  EXPECT_TRUE(all_end(ranks));
  for (const pid_t rank : ranks) ::kill(-rank, SIGKILL);  // what the shells had started
  std::filesystem::remove_all(directory);
}

// ---- ranks that find each other through the environment ----

TEST(EnvironmentRank, DISABLED_OpensAndExchanges) {
  const auto bootstrap = environment_bootstrap();
  RuntimeOptions options;
  options.backend = Backend::cpu;
  options.heap_bytes = 1 << 20;
  options.timeout_ms = 20000;
  Runtime runtime = Runtime::open(*bootstrap, options);
  const int mine = runtime.world().rank();
  const std::vector<Bytes> all = runtime.world().exchange(std::as_bytes(std::span(&mine, 1)));
  ASSERT_EQ(all.size(), 3u);
  for (int r = 0; r < 3; ++r) ASSERT_EQ(static_cast<int>(all[static_cast<size_t>(r)][0]), r);
  runtime.close();
}

TEST(EnvironmentRank, DISABLED_IsRefused) {
  try {
    (void)environment_bootstrap();
    FAIL() << "nothing was thrown";
  } catch (const PeerLost& error) {
    EXPECT_EQ(error.code(), Errc::bootstrap);
    EXPECT_NE(std::string(error.what()).find("accepted: overlace run -n N, torchrun"), std::string::npos);
    const char* const words = std::getenv("WANTED_WORDS");
    EXPECT_NE(std::string(error.what()).find(words == nullptr ? "" : words), std::string::npos) << error.what();
  }
}

std::function<Variables(int)> for_all(const Variables& variables) {
  return [variables](int) { return variables; };
}

TEST(Environment, LauncherTorchrunAndMpirun) {
  const auto test = self("EnvironmentRank.DISABLED_OpensAndExchanges");
  EXPECT_EQ(launch(3, test), 0);
  EXPECT_EQ(launch(3, test,
                   for_all({{"OVERLACE_LAUNCH_SOCKET", ""},
                            {"MASTER_ADDR", "127.0.0.1"},
                            {"MASTER_PORT", "29500"},
                            {"TORCHELASTIC_RUN_ID", std::to_string(::getpid())}})),
            0);
}

TEST(Environment, TwoJobsWithEqualPortsOnOneHost) {
  const auto test = self("EnvironmentRank.DISABLED_OpensAndExchanges");
  const pid_t other = ::fork();
  const auto job = [&](const std::string& id) {
    return launch(3, test,
                  for_all({{"OVERLACE_LAUNCH_SOCKET", ""},
                           {"MASTER_ADDR", "127.0.0.1"},
                           {"MASTER_PORT", "29501"},
                           {"TORCHELASTIC_RUN_ID", id + std::to_string(::getppid())}}));
  };
  if (other == 0) ::_exit(job("other"));
  EXPECT_EQ(job("this"), 0);
  int status = -1;
  ASSERT_EQ(::waitpid(other, &status, 0), other);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(Environment, ContradictionsAndSeveralHostsAreRefused) {
  const auto test = self("EnvironmentRank.DISABLED_IsRefused");
  const auto said = [](const char* words) { return std::pair<std::string, std::string>("WANTED_WORDS", words); };
  EXPECT_EQ(launch(1, test, for_all({{"RANK", "5"}, {"WORLD_SIZE", "2"}, said("rank is 5 of 2 (overlace)")})), 0);
  EXPECT_EQ(launch(1, test, for_all({{"RANK", "0"}, {"WORLD_SIZE", "0"}, said("rank is 0 of 0 (overlace)")})), 0);
  const auto several =
      for_all({{"OVERLACE_LAUNCH_SOCKET", ""}, {"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}});
  EXPECT_EQ(launch(1, test, several), 0);
  // Over TCP with nothing but what everybody can know.
  const auto public_facts = for_all({{"OVERLACE_LAUNCH_SOCKET", ""},
                                     {"WORLD_SIZE", "2"},
                                     {"LOCAL_WORLD_SIZE", "1"},
                                     {"OVERLACE_SECRET", ""},
                                     {"MASTER_ADDR", "127.0.0.1"}});
  EXPECT_EQ(launch(1, test, public_facts), 0);
}

}  // namespace
}  // namespace overlace::runtime
