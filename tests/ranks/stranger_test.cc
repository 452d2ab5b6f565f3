// Ranks of two hosts (here: of one that has two names) meet over TCP while somebody who is no rank connects: says
// nothing, garbage, a huge length, and all that can be known of a job without its secret.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "overlace/bootstrap.h"
#include "src/base/env.h"
#include "src/base/format.h"
#include "src/runtime/bootstrap/launcher.h"
#include "src/runtime/bootstrap/remote.h"
#include "src/runtime/bootstrap/socket.h"
#include "src/runtime/clock.h"
#include "src/runtime/control.h"
#include "src/runtime/phases.h"
#include "tests/ranks/support/run_ranks.h"

namespace overlace::runtime {
namespace {

constexpr int64_t kSecondNs = 1000000000;
constexpr char kSecret[] = "known-to-the-ranks-of-this-test-only";

/// The header of the relay's protocol, byte by byte.
struct Frame {
  uint32_t magic = 0x0B1ACE02, type = 0;  // 0: hello, 1: welcome, 4: failure
  uint64_t number = 0;
  int64_t value = 0;
  uint64_t length = 0;
};

/// The header of the control plane's protocol, as far as a stranger can make it.
struct Hello {
  uint32_t magic = 0x0B1ACE03, type = 0;
  uint64_t group = 0;
  uint32_t kind = 0, number = 0;
  int32_t value = 1;
  uint32_t length = 0;
};

struct Listener {
  std::string address;
  int port = 0;
};

/// Numbers of this process's sockets.
std::set<uint64_t> own_sockets() {
  std::set<uint64_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code code;
    const std::string target = std::filesystem::read_symlink(entry.path(), code).string();
    uint64_t number = 0;
    if (std::sscanf(target.c_str(), "socket:[%lu]", &number) == 1) found.insert(number);
  }
  return found;
}

/// TCP sockets of this process that listen, a line each, and the generation that stands in the name of its other one.
std::string own_listeners() {
  const std::set<uint64_t> own = own_sockets();
  std::string lines, line;
  for (std::ifstream file("/proc/self/net/tcp"); std::getline(file, line);) {
    unsigned address = 0, port = 0, state = 0;
    uint64_t number = 0;
    const int count = std::sscanf(line.c_str(), " %*d: %8X:%4X %*8X:%*4X %2X %*8X:%*8X %*2X:%*8X %*8X %*d %*d %lu",
                                  &address, &port, &state, &number);
    if (count == 4 && state == 0x0A && own.count(number) != 0)
      lines += base::format("{} {}\n", text_of_number(address), port);
  }
  constexpr std::string_view kName = "@overlace.control.";
  for (std::ifstream file("/proc/self/net/unix"); std::getline(file, line);) {
    const size_t at = line.find(kName);
    uint64_t number = 0;
    if (at != std::string::npos && std::sscanf(line.c_str(), "%*s %*s %*s %*s %*s %*s %lu", &number) == 1 &&
        own.count(number) != 0)
      lines += base::format("generation {}\n", std::stoull(line.substr(at + kName.size(), 16), nullptr, 16));
  }
  return lines;
}

UniqueFd connect_stranger(int port) {
  base::Result<UniqueFd> fd = connect_to(base::format("{}127.0.0.1:{}", kTcp, port), SOCK_STREAM, 0);
  return fd.ok() ? std::move(*fd) : UniqueFd();
}

template <class Value>
void say(const UniqueFd& fd, const Value& value) {
  (void)::send(fd.get(), &value, sizeof value, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/// The type of the answer to a hello with this token; -1 for none.
int answer_to(int port, int rank, int size, const std::string& token) {
  const UniqueFd fd = connect_stranger(port);
  if (!fd) return -1;
  say(fd, Frame{.number = static_cast<uint64_t>(rank), .value = size, .length = token.size()});
  (void)send_all(fd.get(), token.data(), token.size());
  Frame answer;
  const bool has_come = receive_all(fd.get(), &answer, sizeof answer, now_ns() + 5 * kSecondNs).ok();
  return has_come ? static_cast<int>(answer.type) : -1;
}

/// True if the other end hangs up within `limit_s`.
bool is_hung_up(const UniqueFd& fd, int64_t limit_s) {
  char byte = 0;
  const base::Status status = receive_all(fd.get(), &byte, 1, now_ns() + limit_s * kSecondNs);
  return status.code() != Errc::timeout;
}

void wait_for(const std::string& directory, const std::string& file) {
  for (const int64_t deadline_ns = now_ns() + 60 * kSecondNs; now_ns() < deadline_ns; ::usleep(2000))
    if (::access((directory + "/" + file).c_str(), F_OK) == 0) return;
  FAIL() << file << " never came";
}

/// Two ranks of two hosts, started by something like torchrun.
class StrangerTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::kHasProcesses) GTEST_SKIP() << "ranks are threads under this sanitizer";
    std::string name = (std::filesystem::temp_directory_path() / "overlace-stranger-XXXXXX").string();
    directory_ = ::mkdtemp(name.data());
    run_id_ = std::to_string(::getpid()) + "." + std::to_string(now_ns() % 1000000);
  }
  void TearDown() override {
    if (job_ > 0) ::kill(job_, SIGTERM);
    if (job_ > 0) ::waitpid(job_, nullptr, 0);
    if (!directory_.empty()) std::filesystem::remove_all(directory_);
  }

  /// What a launcher tells its ranks, as they put it together (environment.cc).
  std::string job() const { return base::format("torchrun 2 127.0.0.1 29500 {}", run_id_); }

  void start(const std::string& test) {
    const std::vector<std::string> self = {"/proc/self/exe", "--gtest_also_run_disabled_tests", "--gtest_brief=1",
                                           "--gtest_filter=" + test};
    job_ = ::fork();
    if (job_ != 0) return;
    std::filesystem::current_path(directory_);
    ::_exit(launch(2, self, [&](int rank) {
      return Variables{{"OVERLACE_LAUNCH_SOCKET", ""},
                       {"LOCAL_RANK", "0"},
                       {"LOCAL_WORLD_SIZE", "1"},
                       {"MASTER_ADDR", "127.0.0.1"},
                       {"MASTER_PORT", "29500"},
                       {"TORCHELASTIC_RUN_ID", run_id_},
                       {"OVERLACE_TIMEOUT_S", "60"},
                       {"OVERLACE_SECRET", kSecret},
                       {"OVERLACE_HOST_ID", base::format("stranger test {}", rank)}};
    }));
  }

  void go(const char* step) const { std::ofstream(directory_ + "/" + step) << "go\n"; }

  /// What a rank wrote about its listening sockets.
  std::vector<Listener> listeners_of(const std::string& file, uint64_t* generation = nullptr) const {
    std::vector<Listener> found;
    wait_for(directory_, file);
    std::ifstream lines(directory_ + "/" + file);
    for (std::string word, number; lines >> word >> number;) {
      if (word != "generation") found.push_back({word, std::stoi(number)});
      if (word == "generation" && generation != nullptr) *generation = std::stoull(number);
    }
    return found;
  }

  int status_of_job() {
    int status = -1;
    ::waitpid(job_, &status, 0);
    job_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  }

  std::string directory_, run_id_;
  pid_t job_ = 0;
};

/// A file that is there is whole.
void write_listeners(const std::string& directory, const std::string& file) {
  std::ofstream(directory + "/" + file + ".part") << own_listeners();
  std::filesystem::rename(directory + "/" + file + ".part", directory + "/" + file);
}

TEST(StrangerRank, DISABLED_Meets) {
  const int rank = base::env().rank;
  const std::string directory = std::filesystem::current_path().string();
  set_phase_hook([&](Phase phase, int) {
    if (phase == Phase::bootstrap && rank == 0) write_listeners(directory, "meeting");
    if (phase != Phase::connect) return;
    write_listeners(directory, base::format("doors.{}", rank));
    if (rank == 1) wait_for(directory, "connect");
  });
  if (rank == 1) wait_for(directory, "meet");
  const auto bootstrap = environment_bootstrap();
  auto control = Control::open(*bootstrap, 60000);
  ASSERT_TRUE(control.ok()) << control.status().message();
  for (int round = 0; round < 3; ++round) {
    const int mine = rank * 10 + round;
    const auto all = (*control)->exchange((*control)->all_ranks(), std::as_bytes(std::span(&mine, 1)), 60000, "test");
    ASSERT_TRUE(all.ok()) << all.status().message();
    for (int r = 0; r < 2; ++r) {
      int theirs = -1;
      std::memcpy(&theirs, (*all)[static_cast<size_t>(r)].data(), sizeof theirs);
      EXPECT_EQ(theirs, r * 10 + round);
    }
  }
  (*control)->leave(true);
}

TEST_F(StrangerTest, CannotJoinDelayOrEndAMeeting) {
  start("StrangerRank.DISABLED_Meets");
  const std::vector<Listener> found = listeners_of("meeting");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].address, "127.0.0.1") << "the address that was given";
  const int port = found[0].port;

  // All that is public, and what was enough once: a hash of it.
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : job()) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  const std::string computed = base::format("{:016x}", hash);
  for (const std::string& token : {computed, std::string("not-the-secret ") + computed, std::string()})
    EXPECT_EQ(answer_to(port, 1, 2, token), 4) << token;

  // Greetings that are none. Each is hung up on at once.
  const UniqueFd garbage = connect_stranger(port), huge = connect_stranger(port), early = connect_stranger(port);
  say(garbage, "GET / HTTP/1.1\r\nHost: overlace\r\nAccept: */*\r\n\r\n");
  say(huge, Frame{.number = 1, .value = 2, .length = uint64_t{1} << 40});
  say(early, Frame{.type = 2, .number = 1, .value = 60000});
  for (const UniqueFd* fd : {&garbage, &huge, &early}) EXPECT_TRUE(is_hung_up(*fd, 5));

  // Silence, more of it than anybody needs, and half a greeting.
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(connect_stranger(port));
  say(silent.back(), uint32_t{0x0B1ACE02});
  const int64_t begin_ns = now_ns();
  EXPECT_TRUE(is_hung_up(silent.front(), 20)) << "nobody waits for it for ever";
  EXPECT_TRUE(is_hung_up(silent.back(), 20));

  // Who knows the secret, but is no rank, or one that is there already.
  const std::string token = std::string(kSecret) + " " + computed;
  EXPECT_EQ(answer_to(port, 7, 2, token), 4) << "no such rank";
  EXPECT_EQ(answer_to(port, 1, 3, token), 4) << "another number of ranks";
  EXPECT_EQ(answer_to(port, 0, 2, token), 4) << "taken";

  // The ranks meet while new ones come as fast as they can.
  std::atomic<bool> is_over{false};
  std::thread flood([&] {
    for (size_t i = 0; !is_over; ++i) silent[i % silent.size()] = connect_stranger(port);
  });
  go("meet");
  go("connect");
  EXPECT_EQ(status_of_job(), 0);
  is_over = true;
  flood.join();
  EXPECT_LT(now_ns() - begin_ns, 40 * kSecondNs);
}

TEST_F(StrangerTest, CannotEnterTheControlPlane) {
  start("StrangerRank.DISABLED_Meets");
  go("meet");
  uint64_t generation = 0;
  const std::vector<Listener> doors = listeners_of("doors.0", &generation);
  ASSERT_EQ(doors.size(), 2u) << "the meeting and one door";
  ASSERT_NE(generation, 0u) << "every process of a host sees it in the names of sockets";
  for (const Listener& one : doors) EXPECT_EQ(one.address, "127.0.0.1") << one.port;
  for (const Listener& one : listeners_of("doors.1")) EXPECT_EQ(one.address, "127.0.0.1") << one.port;
  const int first = first_port(job());
  const Listener& door = doors[0].port >= first && doors[0].port < first + 16 ? doors[1] : doors[0];

  // Nobody takes anything out of the queue of rank 1, which has not got that far: it is full now.
  const std::vector<Listener> doors_of_1 = listeners_of("doors.1");
  ASSERT_EQ(doors_of_1.size(), 1u);
  std::vector<UniqueFd> silent(300), refused;
  for (size_t i = 0; i < 5000; ++i) {
    silent[i % silent.size()] = connect_stranger(doors_of_1[0].port);
    if (!silent[i % silent.size()]) break;
  }
  silent.clear();
  for (int i = 0; i < 300; ++i) silent.push_back(connect_stranger(door.port));
  const auto greet = [&](const Hello& hello, const std::string& rest) {
    refused.push_back(connect_stranger(door.port));
    say(refused.back(), hello);
    (void)send_all(refused.back().get(), rest.data(), rest.size());
  };
  greet({.group = generation}, "");
  greet({.group = generation, .length = 32}, std::string(32, '\0'));
  greet({.type = 5, .group = generation, .value = 0, .length = 32}, std::string(32, 'x'));
  greet({.group = generation, .length = 64 * 1024}, "");
  greet({.magic = 7, .group = generation}, "");
  for (const UniqueFd& fd : refused) EXPECT_TRUE(is_hung_up(fd, 5)) << &fd - refused.data();
  EXPECT_TRUE(is_hung_up(silent.front(), 5)) << "only so many may say nothing";
  const int64_t begin_ns = now_ns();
  go("connect");
  EXPECT_EQ(status_of_job(), 0);
  EXPECT_LT(now_ns() - begin_ns, 15 * kSecondNs);
}

}  // namespace
}  // namespace overlace::runtime
