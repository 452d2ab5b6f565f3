// Inboxes: buffers that peers fill in turn, guarded by credits. Reuse without credit is caught.
#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "overlace/handle_pod.h"
#include "tests/ranks/support/run_ranks.h"

namespace overlace::test {
namespace {

constexpr size_t kWords = 96;  // long enough to be split
constexpr size_t kBytes = kWords * sizeof(uint32_t);

/// Differs by sender, receiver, epoch and index; never the poison.
uint32_t value(int from, int to, uint64_t epoch, size_t i) {
  return static_cast<uint32_t>(((epoch * 16 + static_cast<uint64_t>(from)) * 16 + static_cast<uint64_t>(to)) * 128 + i);
}

std::vector<uint32_t> payload(int from, int to, uint64_t epoch) {
  std::vector<uint32_t> data(kWords);
  for (size_t i = 0; i < kWords; ++i) data[i] = value(from, to, epoch, i);
  return data;
}

int count_wrong(const void* memory, int from, int to, uint64_t epoch) {
  std::vector<uint32_t> seen(kWords);
  std::memcpy(seen.data(), memory, kBytes);
  int wrong = 0;
  for (size_t i = 0; i < kWords; ++i) wrong += seen[i] != value(from, to, epoch, i);
  return wrong;
}

template <class Exception, class Function>
std::string refusal(Function function) {
  try {
    function();
  } catch (const Exception& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another exception: ") + error.what();
  }
  return "nothing was thrown";
}

/// One rank's side: who sends to whom in which epoch is a function of (from, to, epoch).
struct Exchange {
  using Sends = bool (*)(int from, int to, uint64_t epoch);

  Exchange(Team& used_team, int k)
      : team(used_team),
        owner(team.channel(StreamRef::cpu())),
        inbox(owner.inbox(kBytes * static_cast<size_t>(team.size()), k)),
        rank(team.rank()) {}

  int run_epoch(Sends sends, bool is_broken = false) {
    const ChannelPod& channel = owner.pod();
    const InboxPod& pod = inbox.pod();
    const uint64_t epoch = inbox_epoch(pod);
    for (int step = 1; step <= team.size(); ++step) {
      const int to = (rank + step) % team.size();
      if (!sends(rank, to, epoch)) continue;
      if (!is_broken && inbox_wait_credit(channel, pod, to) != Errc::ok) return 0;
      sources.push_back(payload(rank, to, epoch));
      inbox_put(channel, pod, to, static_cast<size_t>(rank) * kBytes, sources.back().data(), kBytes);
      inbox_sent(channel, pod, to);
    }
    int wrong = 0;
    const char* mine = static_cast<const char*>(team.local_ptr(inbox.memory)) - inbox.memory.offset;
    for (int from = 0; from < team.size(); ++from) {
      if (!sends(from, rank, epoch)) continue;
      if (inbox_wait_data(channel, pod, from) != Errc::ok) return wrong;
      wrong += count_wrong(mine + inbox_offset(pod) + static_cast<size_t>(from) * kBytes, from, rank, epoch);
      inbox_release(channel, pod, from);
    }
    inbox_advance(pod);
    return wrong;
  }

  Team& team;
  Channel& owner;
  const Inbox inbox;
  const int rank;
  std::vector<std::vector<uint32_t>> sources;  // live until flush
};

bool to_all(int, int, uint64_t) { return true; }
bool to_next_of_four(int from, int to, uint64_t) { return to == (from + 1) % 4; }
/// Some send often, some hardly ever.
bool now_and_then(int from, int to, uint64_t epoch) {
  return (epoch * 2654435761u + static_cast<uint64_t>(from * 7 + to * 3)) % static_cast<uint64_t>(2 + from + to) == 0;
}

class InboxTest : public testing::TestWithParam<std::tuple<int, Mode>> {};

TEST_P(InboxTest, EveryEpochArrivesWhole) {
  const auto [n, mode] = GetParam();
  run_ranks(n, mode, [](Runtime& runtime) {
    for (const int k : {1, 2, 5}) {
      Exchange exchange(runtime.world(), k);
      for (int epoch = 1; epoch <= 40; ++epoch) ASSERT_EQ(exchange.run_epoch(to_all), 0) << "k " << k << ", " << epoch;
      ASSERT_EQ(flush(exchange.owner.pod()), Errc::ok);
      runtime.synchronize();
      runtime.world().barrier();
      runtime.check_quiescent();
      // The next one gets the same ids, whose slots are not at zero.
      exchange.owner.release(exchange.inbox);
    }
  });
}

TEST_P(InboxTest, OnlyWhoWasSentToGivesCredit) {
  const auto [n, mode] = GetParam();
  run_ranks(n, mode, [n = n](Runtime& runtime) {
    for (const Exchange::Sends sends : {now_and_then, to_next_of_four}) {
      if (sends == to_next_of_four && n != 4) continue;
      Exchange exchange(runtime.world(), 2);
      for (int epoch = 1; epoch <= 60; ++epoch) ASSERT_EQ(exchange.run_epoch(sends), 0) << "epoch " << epoch;
      ASSERT_EQ(flush(exchange.owner.pod()), Errc::ok);
      exchange.owner.release(exchange.inbox);
    }
  });
}

/// Every team makes the same heap calls; each has signals of its own.
TEST_P(InboxTest, HalvesExchangeSideBySide) {
  const auto [n, mode] = GetParam();
  if (n != 4) GTEST_SKIP() << "two halves of two";
  run_ranks(n, mode, [](Runtime& runtime) {
    const int low[] = {1, 0}, high[] = {2, 3};
    Team first = runtime.world().sub(low, {.name = "low"}), second = runtime.world().sub(high, {.name = "high"});
    Team& mine = first.size() != 0 ? first : second;
    Exchange exchange(mine, 2);
    for (int epoch = 1; epoch <= 50; ++epoch) ASSERT_EQ(exchange.run_epoch(to_all), 0) << "epoch " << epoch;
    ASSERT_EQ(flush(exchange.owner.pod()), Errc::ok);
    exchange.owner.release(exchange.inbox);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, InboxTest, testing::Combine(testing::Values(1, 2, 4), testing::ValuesIn(all_modes())),
                         mode_test_name);

/// Rank 0 sends in each epoch, rank 1 reads. Rank 1 is slow in every 8th epoch, so that only a credit holds rank 0
/// back.
int one_way(Runtime& runtime, bool is_broken) {
  Exchange exchange(runtime.world(), 2);
  int wrong = 0;
  for (int epoch = 1; epoch <= 150; ++epoch)
    wrong += exchange.run_epoch([](int from, int to, uint64_t) { return from == 0 && to == 1; }, is_broken);
  (void)flush(exchange.owner.pod());
  return wrong;
}

TEST(InboxLitmusTest, ReuseWithCreditHolds) {
  run_ranks(2, Mode::threads_adversary, [](Runtime& runtime) { EXPECT_EQ(one_way(runtime, false), 0); },
            {.min_seeds = 10});
}

TEST(InboxLitmusTest, ReuseWithoutCreditIsCaught) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the broken twin is a data race";
#endif
  std::atomic<int> wrong{0};
  const auto body = [&](Runtime& runtime) { wrong += one_way(runtime, true); };
  for (int round = 0; round < 20 && wrong == 0; ++round) run_ranks(2, Mode::threads_adversary, body, {.max_seeds = 1});
  EXPECT_GT(wrong, 0) << "nobody overwrote a buffer that was still being read";
}

class InboxErrorTest : public testing::TestWithParam<Mode> {};

TEST_P(InboxErrorTest, DifferencesAreNamedOnAllRanks) {
  run_ranks(
      3, GetParam(),
      [](Runtime& runtime) {
        Team& team = runtime.world();
        Channel& channel = team.channel(StreamRef::cpu());
        const size_t before = runtime.heap().in_use();
        const std::string what =
            refusal<PlanMismatch>([&] { (void)channel.inbox(team.rank() == 2 ? 512 : 256, 2, "slots"); });
        EXPECT_NE(
            what.find("channel.inbox \"slots\" differs between ranks of team \"world\": rank 0 has 2 buffers of 256 "
                      "bytes at offset "),
            std::string::npos)
            << what;
        EXPECT_NE(what.find("rank 2 has 2 buffers of 512 bytes at offset "), std::string::npos) << what;
        EXPECT_EQ(runtime.heap().in_use(), before);
        runtime.close();
      },
      {.checks_end = false});
}

TEST_P(InboxErrorTest, WhatOneRankCannotDoAllLearn) {
  run_ranks(2, GetParam(),
            [](Runtime& runtime) {
              Team& team = runtime.world();
              Channel& channel = team.channel(StreamRef::cpu());
              if (team.rank() == 1) {
                EXPECT_EQ(refusal<InvalidArgument>([&] { (void)channel.inbox(256, 0, "slots"); }),
                          "channel.inbox \"slots\": k is 0, wanted 1 to 64 buffers");
              } else {
                const std::string what = refusal<PlanMismatch>([&] { (void)channel.inbox(256, 2, "slots"); });
                EXPECT_NE(what.find("rank 1 has refused: channel.inbox \"slots\": k is 0"), std::string::npos) << what;
              }
              EXPECT_NE(refusal<OutOfMemory>([&] {
                          (void)channel.inbox(size_t{64} << 20, 2, "large");
                        }).find("symmetric heap exhausted: \"large\" asked 134217728 bytes"),
                        std::string::npos);
              EXPECT_EQ(runtime.heap().in_use(), 0u);
              const Inbox inbox = channel.inbox(100, 3, "kept");
              EXPECT_EQ(inbox.pitch, 256u);
              EXPECT_EQ(inbox.memory.bytes, 768u);
              EXPECT_NE(refusal<InvalidArgument>([&] {
                          inbox_put(channel.pod(), inbox.pod(), 0, 200, &inbox, 57);
                        }).find("inbox_put: bytes 200 to 257, wanted at most 256"),
                        std::string::npos);
              EXPECT_NE(refusal<InvalidArgument>([&] {
                          (void)inbox_wait_credit(channel.pod(), inbox.pod(), 2);
                        }).find("wanted 0 to 1"),
                        std::string::npos);
              channel.release(inbox);
              EXPECT_NE(
                  refusal<InvalidArgument>([&] { channel.release(inbox); }).find("is not one that this channel made"),
                  std::string::npos);
              EXPECT_EQ(runtime.heap().in_use(), 0u);
              runtime.close();
            },
            {.checks_end = false});
}

TEST_P(InboxErrorTest, AWithheldCreditIsATimeoutThatNamesIt) {
  run_ranks(2, GetParam(),
            [](Runtime& runtime) {
              Team& team = runtime.world();
              Channel& channel = team.channel(StreamRef::cpu());
              const Inbox inbox = channel.inbox(256, 2, "slots");
              if (team.rank() == 1) {
                // Stays, without a deadline of its own, until rank 0 has given up.
                std::string what = "nothing was thrown";
                for (int i = 0; i < 2000 && what == "nothing was thrown"; ++i) {
                  std::this_thread::sleep_for(std::chrono::milliseconds(5));
                  what = refusal<PeerLost>([&] { runtime.check(); });
                }
                EXPECT_NE(what.find("slots.credit"), std::string::npos) << what;
                return;
              }
              const uint32_t word = 7;
              for (int epoch = 1; epoch <= 3; ++epoch) {
                const Errc code = inbox_wait_credit(channel.pod(), inbox.pod(), 1);
                ASSERT_EQ(code, epoch <= 2 ? Errc::ok : Errc::timeout) << "epoch " << epoch;
                if (code != Errc::ok) break;
                inbox_put(channel.pod(), inbox.pod(), 1, 0, &word, sizeof word);
                inbox_sent(channel.pod(), inbox.pod(), 1);
                inbox_advance(inbox.pod());
              }
              const std::string what = refusal<Timeout>([&] { runtime.check(); });
              EXPECT_NE(what.find("rank 0 waited for rank 1"), std::string::npos) << what;
              EXPECT_NE(what.find("slots.credit"), std::string::npos) << what;
              EXPECT_NE(what.find("expected >= 1, seen 0"), std::string::npos) << what;
            },
            {.timeout_ms = 1000, .checks_end = false});
}

INSTANTIATE_TEST_SUITE_P(Modes, InboxErrorTest, testing::ValuesIn(all_modes()),
                         [](const auto& test) { return mode_name(test.param); });

}  // namespace
}  // namespace overlace::test
