// What survivors see: withheld signals, killed ranks, ranks that leave, aborts, forks.
#include <sys/wait.h>
#include <unistd.h>

#include <cctype>
#include <chrono>
#include <thread>
#include <tuple>

#include "overlace/handle_pod.h"
#include "src/runtime/wait.h"
#include "tests/ranks/support/faults.h"
#include "tests/ranks/support/process.h"
#include "tests/ranks/support/run_ranks.h"

namespace overlace::test {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

/// The text with every number of seconds as "T s" and every pid as "P": what depends on the machine's load.
std::string steady(std::string text) {
  for (size_t at = 0; (at = text.find(" s", at)) != std::string::npos; ++at) {
    size_t begin = at;
    while (begin > 0 && (std::isdigit(text[begin - 1]) != 0 || text[begin - 1] == '.')) --begin;
    if (begin < at) text.replace(begin, at - begin, "T"), at = begin;
  }
  const std::string pid = "(pid ";
  for (size_t at = 0; (at = text.find(pid, at)) != std::string::npos; ++at) {
    const size_t begin = at + pid.size();
    text.replace(begin, text.find_first_not_of("0123456789", begin) - begin, "P");
  }
  return text;
}

class FaultTest : public testing::TestWithParam<std::tuple<int, Mode>> {};

RankOptions failing(int64_t timeout_ms = 20000) {
  RankOptions options;
  options.timeout_ms = timeout_ms;
  options.checks_end = false;
  return options;
}

/// Code and text of what check() throws, ok if nothing.
std::pair<Errc, std::string> verdict(Runtime& runtime) {
  try {
    runtime.check();
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  return {Errc::ok, ""};
}

TEST_P(FaultTest, WithheldSignalIsNamedExactly) {
  const auto [n, mode] = GetParam();
  run_ranks(
      n, mode,
      [n = n](Runtime& runtime) {
        Team& team = runtime.world();
        Channel& owner = team.channel(StreamRef::cpu());
        const ChannelPod& channel = owner.pod();
        const uint32_t id = owner.ids(4, Domain::cpu, "test.arrive").first + 2;
        team.barrier();
        const int waiter = n - 1;
        if (team.rank() == 0) signal_add(channel, waiter, id, 2);
        if (team.rank() != waiter) {
          // Everybody else waits too, and is told.
          Errc code = Errc::ok;
          while (code == Errc::ok) code = runtime::sleep_until(channel, INT64_MAX);
          ASSERT_EQ(code, Errc::aborted);
          const auto [why, text] = verdict(runtime);
          ASSERT_EQ(why, Errc::aborted);
          ASSERT_EQ(text.find("aborted by rank " + std::to_string(waiter) + ": timeout after "), 0u) << text;
          return;
        }
        const Errc code = wait_ge(channel, 0, id, 3);
        ASSERT_EQ(code, Errc::timeout);
        const auto [why, text] = verdict(runtime);
        ASSERT_EQ(why, Errc::timeout);
        ASSERT_EQ(steady(text),
                  "timeout after T s: rank " + std::to_string(waiter) + " waited for rank 0, team \"world\", signal " +
                      std::to_string(id) +
                      " (test.arrive, block 0): expected >= 3, seen 2, last change T s ago; peer state alive");
        const TimeoutRecord& record = *channel.team.record;
        ASSERT_EQ(record.magic, TimeoutRecord::kMagic);
        ASSERT_EQ(record.kind, WaitKind::signal);
        ASSERT_EQ(record.expected, 3u);
        ASSERT_EQ(record.seen, 2u);
        ASSERT_EQ(record.id, id);
        // After that every wait returns without a deadline of its own.
        ASSERT_EQ(wait_ge(channel, 0, id, 4), Errc::aborted);
        ASSERT_EQ(barrier(channel), Errc::aborted);
        ASSERT_EQ(flush(channel), Errc::aborted);
        ASSERT_EQ(quiet(channel), Errc::aborted);
      },
      failing(short_deadline_ms()));
}

TEST_P(FaultTest, HostBarrierTimesOut) {
  const auto [n, mode] = GetParam();
  run_ranks(
      n, mode,
      [](Runtime& runtime) {
        Team& team = runtime.world();
        if (team.rank() == 0) {
          std::this_thread::sleep_for(std::chrono::milliseconds(3 * runtime.options().timeout_ms));
          EXPECT_NE(verdict(runtime).first, Errc::ok);
          return;
        }
        try {
          team.barrier();
          FAIL() << "rank 0 never came";
        } catch (const Error& error) {
          const std::string text = error.what();
          EXPECT_TRUE(error.code() == Errc::timeout || error.code() == Errc::aborted) << text;
          EXPECT_NE(text.find("waited for rank 0, team \"world\", barrier; peer state alive"), std::string::npos)
              << text;
        }
      },
      failing(short_deadline_ms()));
}

TEST_P(FaultTest, AbortReachesEveryWait) {
  const auto [n, mode] = GetParam();
  run_ranks(
      n, mode,
      [n = n](Runtime& runtime) {
        Team& team = runtime.world();
        Channel& owner = team.channel(StreamRef::cpu());
        const uint32_t id = owner.ids(1, Domain::cpu, "abort.never").first;
        team.barrier();
        const auto begin = Clock::now();
        if (team.rank() == n - 1) {
          // Not while others are still in the barrier, which would end with the abort too.
          for (int r = 0; r < n - 1; ++r) ASSERT_EQ(wait_ge(owner.pod(), r, id, 1), Errc::ok);
          runtime.abort(Errc::io, "the disk is full");
          const auto [code, text] = verdict(runtime);
          EXPECT_EQ(code, Errc::io);
          EXPECT_EQ(text, "the disk is full");
        } else {
          signal_add(owner.pod(), n - 1, id);
          EXPECT_EQ(wait_ge(owner.pod(), n - 1, id, 1), Errc::aborted);
          const auto [code, text] = verdict(runtime);
          EXPECT_EQ(code, Errc::aborted);
          EXPECT_EQ(text, "aborted by rank " + std::to_string(n - 1) + ": the disk is full");
        }
        EXPECT_LT(seconds_since(begin), 10);
        runtime.close();  // an aborted runtime can be closed, without a barrier
        runtime.close();
      },
      failing());
}

TEST_P(FaultTest, LeavingWithoutCloseIsSeen) {
  const auto [n, mode] = GetParam();
  const RuntimeOptions options = runtime_options(mode, failing());
  run_bootstraps(n, mode, [&options, n = n](Bootstrap& bootstrap) {
    Runtime runtime = Runtime::open(bootstrap, options);
    Team& team = runtime.world();
    Channel& channel = team.channel(StreamRef::cpu());
    const uint32_t id = channel.ids(1, Domain::cpu, "leave.never").first;
    try {
      team.barrier();
    } catch (const PeerLost&) {
      // Others have left it already.
    }
    if (team.rank() == n - 1) return;  // the destructor runs, close() does not
    EXPECT_EQ(wait_ge(channel.pod(), n - 1, id, 1), Errc::aborted);
    const auto [code, text] = verdict(runtime);
    EXPECT_EQ(code, Errc::peer_lost);
    // All ranks that leave are seen; which one first is a matter of time.
    const std::string seen = steady(text);
    EXPECT_EQ(seen.find("lost rank "), 0u) << text;
    EXPECT_TRUE(seen.ends_with(" (pid P, last state left): it ended without close()")) << text;
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, FaultTest, testing::Combine(testing::Values(2, 4), testing::ValuesIn(all_modes())),
                         mode_test_name);

#if !defined(__SANITIZE_THREAD__)

TEST(Kill, InAWaitABarrierAndUnderTheLink) {
  for (int phase = 0; phase < 3; ++phase) {
    const auto body = [phase](std::unique_ptr<Bootstrap> bootstrap, const std::function<void()>& happen) {
      RankOptions rank_options = failing();
      if (phase == 2) rank_options.link = LinkOptions::parse("1MB/s,20us");
      Runtime runtime = Runtime::open(*bootstrap, runtime_options(Mode::processes, rank_options));
      Team& team = runtime.world();
      const ChannelPod& channel = team.channel(StreamRef::cpu()).pod();
      const uint32_t id = team.channel(StreamRef::cpu()).ids(1, Domain::cpu, "kill.never").first;
      const SymBuffer inbox = runtime.heap().alloc(1 << 20, 256, "inbox");
      std::vector<char> source(1 << 20);
      team.barrier();
      if (phase == 2 && team.rank() != 2) put_signal(channel, 2, inbox.offset, source.data(), source.size(), id);
      if (team.rank() == 2) happen();
      const Errc code = phase == 0 ? wait_ge(channel, 2, id, 1) : phase == 1 ? barrier(channel) : flush(channel);
      EXPECT_EQ(code, Errc::aborted);
      try {
        runtime.check();
      } catch (...) {
        runtime.close();  // closes although a rank is gone
        throw;
      }
    };
    const std::vector<Survivor> survivors = run_with_fault(3, 2, Fault::kill, body);
    expect_told(survivors, 2, allowed_seconds(Fault::kill, 0), {Errc::peer_lost}, "phase " + std::to_string(phase));
    for (const Survivor& s : survivors) {
      const std::string text = steady(s.text);
      EXPECT_TRUE(text == "lost rank 2 (pid P, last state alive): its process ended" ||
                  text == "lost rank 2 (pid P, last state starting): its process ended")
          << s.text;
    }
  }
}

/// What the fault tests rest on: what a survivor leaves behind is seen.
TEST(Leaks, AreSeenByTheFaultTests) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ranks that die are processes; under this sanitizer threads";
#else
  const auto body = [](std::unique_ptr<Bootstrap> bootstrap, const std::function<void()>& happen) {
    if (bootstrap->rank() == 1) happen();
    EXPECT_TRUE(bootstrap->rank() != 2 || ::dup(0) >= 0);
    bootstrap->barrier(20000);
  };
  const std::vector<Survivor> survivors = run_with_fault(3, 1, Fault::exit, body);
  ASSERT_EQ(survivors.size(), 2u);
  EXPECT_EQ(survivors[0].left, "");
  EXPECT_EQ(survivors[1].rank, 2);
  EXPECT_NE(survivors[1].left.find(" descriptors instead of "), std::string::npos) << survivors[1].left;
#endif
}

TEST(Leaks, OpenAndCloseLeaveNoDescriptorBehind) {
  run_bootstraps(3, Mode::processes, [](Bootstrap& bootstrap) {
    const RuntimeOptions options = runtime_options(Mode::processes, {});
    size_t before = 0;
    for (int i = 0; i < 4; ++i) {
      {
        Runtime runtime = Runtime::open(bootstrap, options);
        runtime.world().barrier();
        runtime.close();
      }
      if (i == 0) before = held().descriptors;  // the first open may make some for the process's life
    }
    EXPECT_EQ(held().descriptors, before);
  });
}

TEST(Fork, TheChildIsRefusedAndTheParentGoesOn) {
  run_ranks(2, Mode::processes, [](Runtime& runtime) {
    Team& team = runtime.world();
    const SymBuffer buffer = runtime.heap().alloc(64, 256, "buffer");
    const pid_t parent = ::getpid();
    const pid_t child = ::fork();
    if (child == 0) {
      int status = 1;
      try {
        team.barrier();
      } catch (const InvalidArgument& error) {
        const std::string wanted = "this runtime belongs to process " + std::to_string(parent) + "; process " +
                                   std::to_string(::getpid()) + " was forked from it and cannot use it";
        status = error.code() == Errc::forked && error.what() == wanted ? 0 : 2;
      }
      ::_exit(status);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
    team.barrier();
    runtime.heap().free(buffer);
  });
}

/// A data-loader worker outlives the rank that forked it; the peers still see at once that the rank died.
TEST(Fork, AWorkerDoesNotHideTheDeathOfItsRank) {
  const auto body = [](std::unique_ptr<Bootstrap> bootstrap, const std::function<void()>& happen) {
    Runtime runtime = Runtime::open(*bootstrap, runtime_options(Mode::processes, failing()));
    Team& team = runtime.world();
    const uint32_t id = team.channel(StreamRef::cpu()).ids(1, Domain::cpu, "worker.never").first;
    team.barrier();
    if (team.rank() == 1) {
      if (::fork() == 0) {
        ::setpgid(0, 0);  // out of the launcher's reach, as a daemon would be
        ::sleep(8);
        ::_exit(0);
      }
      ::usleep(50000);
      happen();
    }
    EXPECT_EQ(wait_ge(team.channel(StreamRef::cpu()).pod(), 1, id, 1), Errc::aborted);
    runtime.check();
  };
  expect_told(run_with_fault(2, 1, Fault::kill, body), 1, allowed_seconds(Fault::kill, 0), {Errc::peer_lost}, "worker");
}

/// Child destructors do nothing: the runtime of the parent survives a child that returns from its scope.
TEST(Fork, DestructorsInTheChildDoNothing) {
  auto bootstrap = std::move(thread_bootstraps(1)[0]);
  auto runtime = std::make_unique<Runtime>(Runtime::open(*bootstrap, runtime_options(Mode::threads, {})));
  const pid_t child = ::fork();
  if (child == 0) {
    runtime.reset();
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  runtime->world().barrier();
  runtime->check_quiescent();
  runtime->close();
}

#endif

}  // namespace
}  // namespace overlace::test
