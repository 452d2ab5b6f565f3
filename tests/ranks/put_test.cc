// Puts of every size, aligned or not, between all pairs of ranks.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>
#include <tuple>
#include <vector>

#include "src/runtime/backend/cpu/agent.h"
#include "src/runtime/state.h"
#include "tests/ranks/support/run_ranks.h"

namespace overlace::test {
namespace {

/// Differs by sender, receiver and index, so that a swapped rank or a shifted byte shows.
std::byte pattern(int from, int to, size_t i, int round) {
  return static_cast<std::byte>((i * 131 + static_cast<size_t>(from * 29 + to * 7 + round * 3) + 1) & 0xff);
}

class PutTest : public testing::TestWithParam<std::tuple<int, Mode>> {};

TEST_P(PutTest, EveryPairEverySizeUnaligned) {
  const auto [n, mode] = GetParam();
  run_ranks(n, mode, [n = n](Runtime& runtime) {
    Team& team = runtime.world();
    const ChannelPod& channel = team.channel(StreamRef::cpu()).pod();
    const SignalIds ids = team.channel(StreamRef::cpu()).ids(1, Domain::cpu, "put.arrive");
    constexpr size_t kRoom = 70000;
    const SymBuffer inbox = runtime.heap().alloc(kRoom * static_cast<size_t>(n), 256, "inbox");
    team.barrier();
    const size_t sizes[] = {1, 2, 3, 7, 8, 63, 64, 65, 255, 4096, 4099, 65537};
    int round = 0;
    for (const size_t bytes : sizes) {
      const size_t shift = static_cast<size_t>(round) % 8;
      std::vector<std::vector<std::byte>> sources(static_cast<size_t>(n));
      for (int peer = 0; peer < n; ++peer) {
        std::vector<std::byte>& source = sources[static_cast<size_t>(peer)];
        for (size_t i = 0; i < bytes; ++i) source.push_back(pattern(team.rank(), peer, i, round));
        put_signal(channel, peer, inbox.offset + static_cast<size_t>(team.rank()) * kRoom + shift, source.data(), bytes,
                   ids.first);
      }
      for (int peer = 0; peer < n; ++peer) {
        ASSERT_EQ(wait_ge(channel, peer, ids.first, ticket(channel, peer, ids.first) + 1), Errc::ok);
        consume(channel, peer, ids.first, 1);
        const auto* got =
            static_cast<const std::byte*>(team.local_ptr(inbox)) + static_cast<size_t>(peer) * kRoom + shift;
        for (size_t i = 0; i < bytes; ++i)
          ASSERT_EQ(got[i], pattern(peer, team.rank(), i, round))
              << "from " << peer << " byte " << i << " of " << bytes;
      }
      ASSERT_EQ(flush(channel), Errc::ok);
      ASSERT_EQ(barrier(channel), Errc::ok);
      ++round;
    }
  });
}

TEST_P(PutTest, RowsWithPitches) {
  const auto [n, mode] = GetParam();
  run_ranks(n, mode, [n = n](Runtime& runtime) {
    Team& team = runtime.world();
    const ChannelPod& channel = team.channel(StreamRef::cpu()).pod();
    const SignalIds ids = team.channel(StreamRef::cpu()).ids(1, Domain::cpu, "put.rows");
    const SymBuffer inbox = runtime.heap().alloc(40 * 100, 256, "inbox");
    auto* mine = static_cast<std::byte*>(team.local_ptr(inbox));
    std::memset(mine, 0x55, 4000);
    team.barrier();
    const int to = (team.rank() + 1) % n, from = (team.rank() + n - 1) % n;
    std::vector<std::byte> source(30 * 50);
    for (size_t i = 0; i < source.size(); ++i) source[i] = pattern(team.rank(), to, i, 0);
    put_2d(channel, to, inbox.offset + 5, 100, source.data() + 3, 50, 13, 30);
    put_2d(channel, to, inbox.offset, 100, source.data(), 50, 0, 30);  // nothing
    put_2d(channel, to, inbox.offset, 100, source.data(), 50, 13, 0);
    fence(channel, to);
    signal_add(channel, to, ids.first);
    ASSERT_EQ(wait_ge(channel, from, ids.first, 1), Errc::ok);
    consume(channel, from, ids.first, 1);
    for (size_t row = 0; row < 40; ++row)
      for (size_t i = 0; i < 100; ++i) {
        const bool is_inside = row < 30 && i >= 5 && i < 18;
        const std::byte want = is_inside ? pattern(from, team.rank(), row * 50 + 3 + i - 5, 0) : std::byte{0x55};
        ASSERT_EQ(mine[row * 100 + i], want) << "row " << row << " byte " << i;
      }
    ASSERT_EQ(flush(channel), Errc::ok);
  });
}

TEST_P(PutTest, QuietMakesEverythingVisible) {
  const auto [n, mode] = GetParam();
  run_ranks(n, mode, [n = n](Runtime& runtime) {
    Team& team = runtime.world();
    const ChannelPod& channel = team.channel(StreamRef::cpu()).pod();
    const SymBuffer inbox = runtime.heap().alloc(sizeof(int32_t) * 64 * static_cast<size_t>(n), 256, "inbox");
    team.barrier();
    std::vector<int32_t> source(64);
    for (int i = 0; i < 64; ++i) source[static_cast<size_t>(i)] = team.rank() * 100 + i;
    for (int peer = 0; peer < n; ++peer)
      put(channel, peer, inbox.offset + static_cast<size_t>(team.rank()) * 256, source.data(), 256);
    ASSERT_EQ(quiet(channel), Errc::ok);
    team.barrier();
    const auto* got = static_cast<const int32_t*>(team.local_ptr(inbox));
    for (int peer = 0; peer < n; ++peer)
      for (int i = 0; i < 64; ++i) ASSERT_EQ(got[peer * 64 + i], peer * 100 + i);
    const int peer = (team.rank() + 1) % n;
    std::vector<int32_t> read(64);
    ASSERT_EQ(get(channel, peer, inbox.offset + static_cast<size_t>(team.rank()) * 256, read.data(), 256), Errc::ok);
    for (int i = 0; i < 64; ++i) ASSERT_EQ(read[static_cast<size_t>(i)], team.rank() * 100 + i);
    team.barrier();
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, PutTest,
                         testing::Combine(testing::Values(1, 2, 3, 5, 9), testing::ValuesIn(all_modes())),
                         mode_test_name);

/// What rank 0 gets from `body` where a kilobyte takes a second and a wait ends after 50 ms.
Errc on_slow_link(const std::function<Errc(Runtime&, const ChannelPod&, const SymBuffer& inbox)>& body) {
  std::atomic<bool> is_over{false};
  Errc code = Errc::internal;
  run_bootstraps(2, Mode::threads, [&](Bootstrap& bootstrap) {
    RankOptions options;
    options.link = LinkOptions::parse("1KB/s,0s");
    Runtime runtime = Runtime::open(bootstrap, runtime_options(Mode::threads, options));
    const ChannelPod& channel = runtime.world().channel(StreamRef::cpu()).pod();
    const SymBuffer inbox = runtime.heap().alloc(size_t{1} << 20, 256, "inbox");
    runtime.world().barrier();
    if (bootstrap.rank() == 0) {
      runtime::agent_of(channel).timeout_ns = 50'000'000;
      code = body(runtime, channel, inbox);
      is_over = true;
    }
    while (!is_over) std::this_thread::yield();
  });
  return code;
}

TEST(PutOnASlowLink, IsATimeoutOfWhoWaitsForIt) {
  const auto wait_with = [](const std::function<Errc(Runtime&, const ChannelPod&)>& call) {
    return on_slow_link([&](Runtime& runtime, const ChannelPod& channel, const SymBuffer& inbox) {
      const std::vector<std::byte> source(inbox.bytes, std::byte{1});
      put(channel, 1, inbox.offset, source.data(), source.size());
      return call(runtime, channel);
    });
  };
  EXPECT_EQ(wait_with([](Runtime&, const ChannelPod& channel) { return flush(channel); }), Errc::timeout);
  EXPECT_EQ(wait_with([](Runtime&, const ChannelPod& channel) { return quiet(channel); }), Errc::timeout);
  EXPECT_EQ(wait_with([](Runtime& runtime, const ChannelPod&) {
              return runtime.world().state().runtime->backend->synchronize().code();
            }),
            Errc::timeout);
}

TEST(PutOnASlowLink, OfNothingTakesNoTime) {
  EXPECT_EQ(on_slow_link([](Runtime&, const ChannelPod& channel, const SymBuffer& inbox) {
              const std::byte source{1};
              for (int i = 0; i < 100; ++i) {  // as words they would take 1.6 s
                put(channel, 1, inbox.offset, &source, 0);
                put_2d(channel, 1, inbox.offset, 1, &source, 1, 0, 7);
              }
              return quiet(channel);
            }),
            Errc::ok);
}

/// The wire is in the middle of a piece when the rank is aborted: flush() must not return before the piece is over.
TEST(PutOfAnAbortedRank, IsNotReadBehindTheFlushThatFails) {
  constexpr size_t kBytes = size_t{64} << 20;
  RankOptions options;
  options.adversary = AdversaryOptions::parse("seed=1,delay_us=0,pieces=1");
  options.checks_end = false;
  options.heap_bytes = kBytes + (size_t{8} << 20);
  std::atomic<bool> is_over{false};
  run_bootstraps(2, Mode::threads_adversary, [&](Bootstrap& bootstrap) {
    Runtime runtime = Runtime::open(bootstrap, runtime_options(Mode::threads_adversary, options));
    Team& team = runtime.world();
    const ChannelPod& channel = team.channel(StreamRef::cpu()).pod();
    const SymBuffer inbox = runtime.heap().alloc(kBytes, 256, "inbox");
    auto* const mine = static_cast<std::byte*>(team.local_ptr(inbox));
    std::memset(mine, 0, kBytes);
    team.barrier();
    if (team.rank() == 1) {
      while (!is_over) std::this_thread::yield();
      EXPECT_EQ(std::count(mine, mine + kBytes, std::byte{2}), 0) << "bytes of the source as it was behind flush()";
      return;
    }
    std::vector<std::byte> source(kBytes, std::byte{1});
    put(channel, 1, inbox.offset, source.data(), kBytes);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // the copy takes more than 10
    runtime.abort(Errc::aborted, "in the middle");
    EXPECT_EQ(flush(channel), Errc::aborted);
    std::memset(source.data(), 2, kBytes);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    is_over = true;
  });
}

}  // namespace
}  // namespace overlace::test
