// All-gathers of threads, of relay clients, and who is turned away.
#include "overlace/bootstrap.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <future>
#include <string>
#include <thread>

#include "overlace/error.h"
#include "src/base/format.h"
#include "src/runtime/bootstrap/relay.h"
#include "src/runtime/bootstrap/secret.h"
#include "src/runtime/bootstrap/socket.h"
#include "src/runtime/clock.h"
#include "src/runtime/control.h"

namespace overlace::runtime {
namespace {

std::string text_of(const Bytes& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

std::string unique_name(const char* what) { return "overlace.test." + std::string(what) + "." + random_token(); }

/// Texts of different lengths, several rounds, on every rank.
void gather_rounds(Bootstrap& bootstrap) {
  for (int round = 0; round < 20; ++round) {
    const auto text_for = [&](int rank) {
      return std::string(static_cast<size_t>(rank * 7 + round), static_cast<char>('a' + rank));
    };
    const std::vector<Bytes> all = bootstrap.allgather(bytes_of(text_for(bootstrap.rank())), 20000);
    ASSERT_EQ(all.size(), static_cast<size_t>(bootstrap.size()));
    for (int r = 0; r < bootstrap.size(); ++r) ASSERT_EQ(text_of(all[static_cast<size_t>(r)]), text_for(r));
  }
}

TEST(ThreadBootstrap, GathersInRankOrder) {
  auto all = thread_bootstraps(5);
  std::vector<std::thread> threads;
  for (auto& one : all) threads.emplace_back([&] { gather_rounds(*one); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(all[0]->token(), all[4]->token());
}

TEST(ThreadBootstrap, NamesWhoIsMissing) {
  auto all = thread_bootstraps(3);
  try {
    (void)all[1]->allgather({}, 50);
    FAIL() << "nothing was thrown";
  } catch (const PeerLost& error) {
    EXPECT_EQ(error.code(), Errc::bootstrap);
    EXPECT_STREQ(error.what(), "bootstrap: rank 1 of 3 misses rank 0, 2 after 0.1 s");
  }
}

TEST(ThreadBootstrap, NoticesARankThatIsGone) {
  auto all = thread_bootstraps(2);
  all[0].reset();
  try {
    (void)all[1]->allgather({}, 20000);
    FAIL() << "nothing was thrown";
  } catch (const PeerLost& error) {
    EXPECT_STREQ(error.what(), "bootstrap: rank 1 of 2 misses rank 0 because it is gone");
  }
}

TEST(Relay, GathersInRankOrder) {
  const std::string name = unique_name("gather");
  auto server = RelayServer::open(name, "secret", 4);
  ASSERT_TRUE(server.ok());
  const RelayThread serving(std::move(*server));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank)
    threads.emplace_back([&, rank] {
      auto bootstrap = relay_bootstrap(name, "secret", rank, 4, 20000);
      ASSERT_TRUE(bootstrap.ok()) << bootstrap.status().message();
      gather_rounds(**bootstrap);
      const std::string big(3 << 20, static_cast<char>('0' + rank));
      const std::vector<Bytes> all = (*bootstrap)->allgather(bytes_of(big), 20000);
      for (int r = 0; r < 4; ++r)
        ASSERT_EQ(text_of(all[static_cast<size_t>(r)]), std::string(3 << 20, static_cast<char>('0' + r)));
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(Relay, TurnsAwayWrongTokensSizesAndRanks) {
  const std::string name = unique_name("strangers");
  auto server = RelayServer::open(name, "secret", 2);
  ASSERT_TRUE(server.ok());
  const RelayThread serving(std::move(*server));
  const auto refusal = [&](const char* token, int rank, int size) {
    auto bootstrap = relay_bootstrap(name, token, rank, size, 20000);
    EXPECT_FALSE(bootstrap.ok());
    EXPECT_EQ(bootstrap.status().code(), Errc::bootstrap);
    return bootstrap.status().message();
  };
  EXPECT_EQ(refusal("guess", 0, 2), "bootstrap: wrong token; wanted the one of this job's launcher");
  EXPECT_EQ(refusal("secret", 0, 3), "bootstrap: rank 0 says that there are 3 ranks, wanted 2");
  EXPECT_EQ(refusal("secret", 7, 2), "bootstrap: rank is 7, wanted 0 to 1");
  EXPECT_EQ(refusal("secret", 2, 2), "bootstrap: rank is 2, wanted 0 to 1");
  auto first = relay_bootstrap(name, "secret", 1, 2, 20000);
  ASSERT_TRUE(first.ok());
  EXPECT_NE(refusal("secret", 1, 2).find("bootstrap: rank 1 is taken by process"), std::string::npos);
}

TEST(Relay, KeepsTheDeadlineAndNamesTheMissing) {
  const std::string name = unique_name("late");
  auto server = RelayServer::open(name, "", 3);
  ASSERT_TRUE(server.ok());
  const RelayThread serving(std::move(*server));
  auto one = relay_bootstrap(name, "", 1, 3, 20000);
  ASSERT_TRUE(one.ok());
  try {
    (void)(*one)->allgather({}, 100);
    FAIL() << "nothing was thrown";
  } catch (const PeerLost& error) {
    EXPECT_STREQ(error.what(), "bootstrap: rank 1 of 3: rank 0, 2 is missing after 0.1 s");
  }
}

TEST(Relay, NoticesARankThatIsGone) {
  const std::string name = unique_name("gone");
  auto server = RelayServer::open(name, "", 2);
  ASSERT_TRUE(server.ok());
  const RelayThread serving(std::move(*server));
  auto zero = relay_bootstrap(name, "", 0, 2, 20000), one = relay_bootstrap(name, "", 1, 2, 20000);
  ASSERT_TRUE(zero.ok() && one.ok());
  auto waiting = std::async(std::launch::async, [&] { return (*one)->allgather({}, 20000); });
  zero->reset();
  try {
    (void)waiting.get();
    FAIL() << "nothing was thrown";
  } catch (const PeerLost& error) {
    EXPECT_NE(std::string(error.what()).find("rank 0 (pid "), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("is gone"), std::string::npos) << error.what();
  }
}

TEST(Relay, SaysThatNobodyListens) {
  auto bootstrap = relay_bootstrap(unique_name("nobody"), "", 1, 2, 50);
  ASSERT_FALSE(bootstrap.ok());
  EXPECT_EQ(bootstrap.status().code(), Errc::bootstrap);
  EXPECT_NE(bootstrap.status().message().find("rank 1 of 2 found nobody after 0.1 s"), std::string::npos);
  EXPECT_NE(bootstrap.status().message().find("Ranks on several hosts need a callback"), std::string::npos);
}

TEST(Relay, SecondServerOfANameIsRefused) {
  const std::string name = unique_name("twice");
  auto first = RelayServer::open(name, "", 1);
  ASSERT_TRUE(first.ok());
  bool in_use = false;
  EXPECT_FALSE(RelayServer::open(name, "", 1, &in_use).ok());
  EXPECT_TRUE(in_use);
}

/// What a client sends, byte by byte.
struct RawFrame {
  uint32_t magic = 0x0B1ACE02, type = 0;  // 0: hello, 2: give
  uint64_t number = 0;
  int64_t value = 0;
  uint64_t length = 0;
};

/// True if the server hangs up on a client that sends these frames, after the hello of rank 0 if `is_member`.
bool hangs_up(RelayServer& server, const std::string& name, bool is_member, const RawFrame& frame) {
  const UniqueFd fd = connect_to(name, SOCK_STREAM, now_ns() + 1000000000).value();
  std::vector<RawFrame> frames = {frame};
  if (is_member) frames.insert(frames.begin(), {.value = 2});
  EXPECT_TRUE(send_all(fd.get(), frames.data(), frames.size() * sizeof frame).ok());
  for (int i = 0; i < 3; ++i) server.serve();
  RawFrame welcome;
  if (is_member) {
    EXPECT_TRUE(receive_all(fd.get(), &welcome, sizeof welcome, now_ns() + 1000000000).ok());
  }
  char byte = 0;
  return ::recv(fd.get(), &byte, 1, MSG_DONTWAIT) == 0;
}

/// Ranks that a server by hand has welcomed, and what it tells them.
struct Welcomed {
  explicit Welcomed(int size) : name(unique_name("hand")), server(RelayServer::open(name, "", size).value()) {
    for (int rank = 0; rank < size; ++rank) {
      fds.push_back(connect_to(name, SOCK_STREAM, now_ns() + 1000000000).value());
      say(rank, {.number = static_cast<uint64_t>(rank), .value = size});
      EXPECT_EQ(heard(rank), "1:");
    }
  }
  void say(int rank, RawFrame frame, const std::string& text = "") {
    frame.length = text.size();
    EXPECT_TRUE(send_all(fds[static_cast<size_t>(rank)].get(), &frame, sizeof frame).ok());
    EXPECT_TRUE(send_all(fds[static_cast<size_t>(rank)].get(), text.data(), text.size()).ok());
    for (int i = 0; i < 3; ++i) server->serve();
  }
  void give(int rank, const std::string& text) { say(rank, {.type = 2, .number = 1, .value = 20000}, text); }
  void leave(int rank) {
    fds[static_cast<size_t>(rank)].reset();
    for (int i = 0; i < 3; ++i) server->serve();
  }
  /// "TYPE:text", or "nothing".
  std::string heard(int rank) {
    const int fd = fds[static_cast<size_t>(rank)].get();
    RawFrame frame;
    if (::recv(fd, &frame, sizeof frame, MSG_DONTWAIT) != sizeof frame) return "nothing";
    std::string text(frame.length, '?');
    EXPECT_TRUE(receive_all(fd, text.data(), text.size(), now_ns() + 1000000000).ok());
    return std::to_string(frame.type) + ":" + text;
  }
  std::string name;
  std::unique_ptr<RelayServer> server;
  std::vector<UniqueFd> fds;
};

std::string gone(int rank) { return base::format("4:rank {} (pid {}) is gone", rank, ::getpid()); }

TEST(Relay, WhoIsGoneEndsWhatItHasNotGiven) {
  Welcomed ranks(3);
  ranks.give(1, "one");
  ranks.leave(0);
  EXPECT_EQ(ranks.heard(1), gone(0));
  EXPECT_EQ(ranks.heard(2), "nothing") << "it does not wait yet";
  ranks.give(2, "two");
  EXPECT_EQ(ranks.heard(2), gone(0));
  ranks.leave(2);
  EXPECT_EQ(ranks.heard(1), "nothing") << "it has been told";
}

TEST(Relay, WhatWasGivenStaysWhenWhoGaveItIsGone) {
  Welcomed ranks(2);
  ranks.give(0, "a");
  ranks.give(0, "b");  // only the first counts
  EXPECT_EQ(ranks.heard(0), "nothing");
  ranks.leave(0);
  ranks.give(1, "cd");
  const auto length = [](char n) { return n + std::string(7, '\0'); };
  EXPECT_EQ(ranks.heard(1), "3:" + length(1) + "a" + length(2) + "cd");
}

TEST(Relay, HangsUpOnFramesThatNoClientSends) {
  const std::string name = unique_name("frames");
  auto server = RelayServer::open(name, "", 2);
  ASSERT_TRUE(server.ok());
  const auto ends = [&](bool is_member, const RawFrame& frame) { return hangs_up(**server, name, is_member, frame); };
  EXPECT_FALSE(ends(true, {.type = 2, .number = 1, .value = 20000}));
  EXPECT_FALSE(ends(true, {.type = 2, .number = 5, .value = 0}));
  EXPECT_FALSE(ends(true, {.type = 2, .number = 6, .value = 86400000})) << "the longest deadline";
  EXPECT_TRUE(ends(true, {.type = 2, .number = 7, .value = 86400001}));
  EXPECT_TRUE(ends(true, {.type = 2, .number = 2, .value = int64_t{1} << 62})) << "a deadline beyond time";
  EXPECT_TRUE(ends(true, {.type = 2, .number = 3, .value = -1}));
  EXPECT_TRUE(ends(true, {.number = 1, .value = 2})) << "a second hello, as another rank";
  EXPECT_TRUE(ends(true, {.magic = 1, .type = 2}));
  EXPECT_TRUE(ends(true, {.type = 1}));
  EXPECT_TRUE(ends(false, {.type = 2, .number = 4, .value = 20000})) << "no hello before";
  EXPECT_TRUE(ends(false, {.value = 2, .length = uint64_t{1} << 20})) << "more memory than a token takes";
}

/// What rank 0 of 2 has of its first all-gather where the server says these frames behind its welcome.
std::string gathered(const std::vector<std::pair<RawFrame, std::string>>& said) {
  int fds[2] = {-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  UniqueFd server(fds[0]), client(fds[1]);
  const RawFrame welcome{.type = 1};
  EXPECT_TRUE(send_all(server.get(), &welcome, sizeof welcome).ok());
  for (auto [frame, text] : said) {
    if (frame.length == 0) frame.length = text.size();
    EXPECT_TRUE(send_all(server.get(), &frame, sizeof frame).ok());
    EXPECT_TRUE(send_all(server.get(), text.data(), text.size()).ok());
  }
  auto bootstrap = join_relay(std::move(client), "name", "", 0, 2, now_ns() + 5000000000, "the server");
  EXPECT_TRUE(bootstrap.ok()) << bootstrap.status().message();
  try {
    std::string all;
    for (const Bytes& entry : (*bootstrap)->allgather({}, 1000)) all += text_of(entry) + ";";
    return all;
  } catch (const PeerLost& error) {
    return error.what();
  }
}

TEST(Relay, AnAnswerThatIsNoneIsRefused) {
  const auto entry = [](uint64_t length, const std::string& text) {
    return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
  };
  const RawFrame result{.type = 3, .number = 1}, failure{.type = 4, .number = 1};
  const std::string good = entry(3, "one") + entry(0, "");
  EXPECT_EQ(gathered({{result, good}}), "one;;");
  EXPECT_EQ(gathered({{result, good + entry(3, "two")}}), "one;;") << "no rank has said it";
  EXPECT_EQ(gathered({{{.type = 3, .number = 0}, entry(3, "old") + entry(3, "old")}, {result, good}}), "one;;")
      << "of an all-gather that is over";
  EXPECT_EQ(gathered({{failure, "it rains"}}), "bootstrap: rank 0 of 2: it rains");
  const auto foreign = [](const char* magic, uint64_t bytes) {
    return base::format(
        "bootstrap: rank 0 of 2: the server speaks another protocol: {} and {} bytes, wanted 0xb1ace02 and at most "
        "134217728 bytes",
        magic, bytes);
  };
  EXPECT_EQ(gathered({{{.magic = 7, .type = 3, .number = 1}, good}}), foreign("0x7", good.size()));
  EXPECT_EQ(gathered({{{.type = 3, .number = 1, .length = (uint64_t{128} << 20) + 1}, ""}}),
            foreign("0xb1ace02", (uint64_t{128} << 20) + 1))
      << "more than 64 MiB of each rank";
  const auto sent = [](int count) { return base::format("bootstrap: the server sent {} entries, wanted 2", count); };
  EXPECT_EQ(gathered({{result, entry(3, "one")}}), sent(1));
  EXPECT_EQ(gathered({{result, entry(3, "one") + entry(0, "").substr(1)}}), sent(1));
  EXPECT_EQ(gathered({{result, entry(3, "one") + entry(2, "t")}}), sent(1));
  EXPECT_EQ(gathered({{result, entry(~uint64_t{0}, "one")}}), sent(0));
  EXPECT_EQ(gathered({{result, "1234567"}}), sent(0));
}

TEST(Relay, StrangersOverTcpGetFewPlacesAndRanksTheirs) {
  std::unique_ptr<RelayServer> server;
  std::string name;
  for (int port = 20000 + ::getpid() % 12000; !server && port < 33000; ++port) {
    name = base::format("{}127.0.0.1:{}", kTcp, port);
    if (auto opened = RelayServer::open(name, "secret", 2); opened.ok()) server = std::move(*opened);
  }
  ASSERT_TRUE(server);
  const auto connect = [&] { return connect_to(name, SOCK_STREAM, now_ns() + 1000000000).value(); };
  const UniqueFd rank = connect();
  server->serve();
  EXPECT_EQ(server->num_strangers(), 1u);
  const RawFrame hello{.number = 0, .value = 2, .length = 6};
  EXPECT_TRUE(send_all(rank.get(), &hello, sizeof hello).ok());
  EXPECT_TRUE(send_all(rank.get(), "secret", 6).ok());
  server->serve();
  EXPECT_EQ(server->num_strangers(), 0u) << "rank 0 is one of the ranks";
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 200; ++i) {
    silent.push_back(connect());
    server->serve();
  }
  EXPECT_EQ(server->num_strangers(), RelayServer::kMaxStrangers + 2);
  char byte = 0;
  EXPECT_EQ(::recv(silent.front().get(), &byte, 1, MSG_DONTWAIT), 0) << "the oldest had to go";
  EXPECT_LT(::recv(silent.back().get(), &byte, 1, MSG_DONTWAIT), 0) << "the newest has not";
  RawFrame welcome;
  EXPECT_TRUE(receive_all(rank.get(), &welcome, sizeof welcome, now_ns() + 1000000000).ok());
  EXPECT_EQ(welcome.type, 1u) << "who has said the secret stays";
  EXPECT_LT(::recv(rank.get(), &byte, 1, MSG_DONTWAIT), 0);
  // As much as a greeting may have and more: it is not read any further.
  const std::string much(1 << 16, 'x');
  const RawFrame longest{.number = 1, .value = 2, .length = RelayServer::kGreetingBytes};
  EXPECT_TRUE(send_all(silent.back().get(), &longest, sizeof longest).ok());
  (void)::send(silent.back().get(), much.data(), much.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  for (int i = 0; i < 3; ++i) server->serve();
  EXPECT_EQ(server->num_strangers(), RelayServer::kMaxStrangers + 1);
}

TEST(Sockets, AreWaitedForUntilTheDeadline) {
  const std::string name = unique_name("later");
  auto connecting =
      std::async(std::launch::async, [&] { return connect_to(name, SOCK_STREAM, now_ns() + 20000000000); });
  ::usleep(20000);  // so that it tries in vain first
  const base::Result<UniqueFd> listener = listen_on(name, SOCK_STREAM);
  ASSERT_TRUE(listener.ok());
  EXPECT_TRUE(connecting.get().ok());
  const base::Result<UniqueFd> no_port = listen_on("tcp:127.0.0.1:no port", SOCK_STREAM);
  EXPECT_EQ(no_port.status().code(), Errc::bootstrap);
}

TEST(Sockets, StayOpenWhenTheyAreMovedToThemselves) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM, 0));
  UniqueFd& same = fd;
  fd = std::move(same);
  EXPECT_GE(fd.get(), 0);
}

TEST(ReceiveAll, TakesWhatCameWhateverFailedBefore) {
  int fds[2] = {-1, -1};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  const UniqueFd near(fds[0]), far(fds[1]);
  ASSERT_TRUE(send_all(near.get(), "four", 4).ok());
  char got[4] = {};
  errno = EINTR;  // of a call that is over
  EXPECT_TRUE(receive_all(far.get(), got, sizeof got, now_ns() + 5000000000).ok());
  EXPECT_EQ(std::string(got, sizeof got), "four");
}

TEST(ReceiveAll, SaysThatTheOtherEndIsGone) {
  int fds[2] = {-1, -1};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  UniqueFd near(fds[0]), far(fds[1]);
  ASSERT_TRUE(send_all(near.get(), "tw", 2).ok());
  near.reset();
  char got[4] = {};
  errno = EINTR;  // of a call that is over
  const base::Status status = receive_all(far.get(), got, sizeof got, now_ns() + 1000000000);
  EXPECT_EQ(status.code(), Errc::bootstrap);
  EXPECT_EQ(status.message(), "the other end closed the connection");
}

TEST(ReceiveAll, SaysWhatFailed) {
  int fds[2] = {-1, -1};
  ASSERT_EQ(::pipe(fds), 0);
  const UniqueFd read_end(fds[0]), write_end(fds[1]);
  ASSERT_EQ(::write(write_end.get(), "four", 4), 4);
  char got[4] = {};
  const base::Status status = receive_all(read_end.get(), got, sizeof got, now_ns() + 1000000000);
  EXPECT_NE(status.code(), Errc::timeout) << "a pipe is no socket";
  EXPECT_NE(status.message().find("receive"), std::string::npos) << status.message();
}

TEST(Relay, ForeignUidIsRejected) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to become somebody else";
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "forks beside a thread";
#endif
  const std::string name = unique_name("uid");
  auto server = RelayServer::open(name, "secret", 1);
  ASSERT_TRUE(server.ok());
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setuid(65534) != 0) ::_exit(3);
    auto bootstrap = relay_bootstrap(name, "secret", 0, 1, 5000);
    ::_exit(!bootstrap.ok() && bootstrap.status().code() == Errc::bootstrap ? 0 : 4);
  }
  int status = -1;
  const int64_t deadline = now_ns() + 20000000000;
  while (::waitpid(child, &status, WNOHANG) == 0 && now_ns() < deadline) {
    (*server)->serve();
    ::usleep(1000);
  }
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  (*server)->serve();
  EXPECT_EQ((*server)->num_rejected(), 1);
}

}  // namespace
}  // namespace overlace::runtime
