// Signals over a long life: wrap, many epochs, several writers of one slot, more waiters than cores.
#include <atomic>
#include <thread>
#include <tuple>
#include <vector>

#include "overlace/handle_pod.h"
#include "src/runtime/wait.h"
#include "tests/ranks/support/run_ranks.h"

namespace overlace::test {
namespace {

class SignalTest : public testing::TestWithParam<std::tuple<int, Mode>> {};

/// Sets words to what they are after `total` adds that were all consumed.
void preset(const ChannelPod& channel, uint32_t id, uint64_t total) {
  const TeamPod& pod = channel.team;
  for (int sender = 0; sender < pod.size; ++sender) {
    char* heap = pod.heap_more == nullptr ? pod.heap[pod.rank] : pod.heap_more[pod.rank];
    const uint64_t cell = uint64_t{id} * pod.sig_stride + static_cast<uint64_t>(sender);
    std::atomic_ref(*reinterpret_cast<uint64_t*>(heap + pod.sig_off + cell * pod.sig_pitch)).store(total);
    consume(channel, sender, id, total - ticket(channel, sender, id));
  }
}

TEST_P(SignalTest, WrapsAroundAtBothEnds) {
  const auto [n, mode] = GetParam();
  run_ranks(n, mode, [n = n](Runtime& runtime) {
    Team& team = runtime.world();
    Channel& owner = team.channel(StreamRef::cpu());
    const ChannelPod& channel = owner.pod();
    const uint32_t id = owner.ids(1, Domain::cpu, "wrap.signal").first;
    for (const uint64_t start : {(uint64_t{1} << 63) - 100, ~uint64_t{0} - 100}) {
      preset(channel, id, start);
      team.barrier();
      const int to = (team.rank() + 1) % n, from = (team.rank() + n - 1) % n;
      for (int epoch = 0; epoch < 300; ++epoch) {
        signal_add(channel, to, id);
        const uint64_t wanted = ticket(channel, from, id) + 1;
        ASSERT_EQ(wait_ge(channel, from, id, wanted), Errc::ok);
        ASSERT_FALSE(test_ge(channel, from, id, wanted + 1000));
        consume(channel, from, id, 1);
      }
      ASSERT_EQ(ticket(channel, from, id), start + 300);
      runtime.synchronize();
      team.barrier();
    }
    preset(channel, id, 0);
  });
}

TEST_P(SignalTest, AMillionEpochs) {
  const auto [n, mode] = GetParam();
  if (n != 2 || mode == Mode::threads_adversary) GTEST_SKIP() << "two ranks without a wire are enough";
#if defined(__SANITIZE_THREAD__)
  const uint64_t epochs = 20000;
#else
  const uint64_t epochs = 1000000;
#endif
  run_ranks(2, mode, [epochs](Runtime& runtime) {
    Team& team = runtime.world();
    Channel& owner = team.channel(StreamRef::cpu());
    const ChannelPod& channel = owner.pod();
    const uint32_t id = owner.ids(1, Domain::cpu, "million.signal").first;
    const int peer = 1 - team.rank();
    for (uint64_t epoch = 0; epoch < epochs; epoch += 500) {
      for (int i = 0; i < 500; ++i) signal_add(channel, peer, id);
      ASSERT_EQ(wait_ge(channel, peer, id, ticket(channel, peer, id) + 500), Errc::ok);
      consume(channel, peer, id, 500);
    }
    ASSERT_EQ(ticket(channel, peer, id), epochs);
  });
}

TEST_P(SignalTest, PostsAreMonotonic) {
  const auto [n, mode] = GetParam();
  run_ranks(n, mode, [n = n](Runtime& runtime) {
    Team& team = runtime.world();
    Channel& owner = team.channel(StreamRef::cpu());
    const ChannelPod& channel = owner.pod();
    const uint32_t id = owner.ids(1, Domain::cpu, "post.signal").first;
    const int to = (team.rank() + 1) % n, from = (team.rank() + n - 1) % n;
    for (uint64_t total = 1; total <= 200; ++total) signal_post(channel, to, id, total);
    for (uint64_t total = 1; total <= 200; ++total) ASSERT_EQ(wait_ge(channel, from, id, total), Errc::ok);
    consume(channel, from, id, 200);
  });
}

TEST_P(SignalTest, SeveralThreadsOfOneSenderAddToOneSlot) {
  const auto [n, mode] = GetParam();
  run_ranks(n, mode, [n = n](Runtime& runtime) {
    Team& team = runtime.world();
    Channel& owner = team.channel(StreamRef::cpu());
    const ChannelPod& channel = owner.pod();
    const uint32_t id = owner.ids(1, Domain::cpu, "threads.signal").first;
    const int to = (team.rank() + 1) % n, from = (team.rank() + n - 1) % n;
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < 3; ++t)
      threads.emplace_back([&, t] {
        for (int i = 0; i < 100; ++i) signal_add(channel, to, id, t + 1);
      });
    const Errc code = wait_ge(channel, from, id, 600);
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(code, Errc::ok);
    ASSERT_FALSE(test_ge(channel, from, id, 601));
    consume(channel, from, id, 600);
  });
}

/// A lane that waits for a signal, and one that waits for either of two things at once.
TEST_P(SignalTest, WaitsForSeveralConditions) {
  const auto [n, mode] = GetParam();
  run_ranks(n, mode, [n = n](Runtime& runtime) {
    Team& team = runtime.world();
    Channel& owner = team.channel(StreamRef::cpu());
    const ChannelPod& channel = owner.pod();
    const SignalIds ids = owner.ids(2, Domain::cpu, "several.signal");
    const int to = (team.rank() + 1) % n, from = (team.rank() + n - 1) % n;
    std::atomic<int> stage{0};
    Errc lane_code = Errc::internal;
    std::thread lane([&] {
      lane_code = runtime::poll_until(channel, {}, [&] { return stage.load(std::memory_order_acquire) == 1; });
      signal_add(channel, to, ids.first + 1);
    });
    signal_add(channel, to, ids.first);
    const Errc first = runtime::poll_until(
        channel, {}, [&] { return test_ge(channel, from, ids.first, 1) || test_ge(channel, from, ids.first + 1, 1); });
    stage.store(1, std::memory_order_release);
    runtime::notify(channel);
    const Errc second = wait_ge(channel, from, ids.first + 1, 1);
    lane.join();
    ASSERT_EQ(lane_code, Errc::ok);
    ASSERT_EQ(first, Errc::ok);
    ASSERT_EQ(second, Errc::ok);
    ASSERT_EQ(wait_ge(channel, from, ids.first, 1), Errc::ok);
    consume(channel, from, ids.first, 1);
    consume(channel, from, ids.first + 1, 1);
  });
}

/// Rings with each wait policy; with 9 ranks there are more waiters than cores anywhere this runs.
TEST_P(SignalTest, RingUnderEachWaitPolicy) {
  const auto [n, mode] = GetParam();
  for (const WaitPolicy policy : {WaitPolicy::automatic, WaitPolicy::futex, WaitPolicy::spin}) {
    if (policy == WaitPolicy::spin && n > 2) continue;  // correct, but slow on few cores
    RankOptions options;
    options.wait = policy;
    run_ranks(
        n, mode,
        [n = n](Runtime& runtime) {
          Team& team = runtime.world();
          Channel& owner = team.channel(StreamRef::cpu());
          const ChannelPod& channel = owner.pod();
          const uint32_t id = owner.ids(1, Domain::cpu, "ring.signal").first;
          const int to = (team.rank() + 1) % n, from = (team.rank() + n - 1) % n;
          for (int round = 0; round < 100; ++round) {
            if (team.rank() == 0) signal_add(channel, to, id);
            ASSERT_EQ(wait_ge(channel, from, id, ticket(channel, from, id) + 1), Errc::ok);
            consume(channel, from, id, 1);
            if (team.rank() != 0) signal_add(channel, to, id);
          }
        },
        options);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, SignalTest,
                         testing::Combine(testing::Values(1, 2, 3, 9), testing::ValuesIn(all_modes())), mode_test_name);

}  // namespace
}  // namespace overlace::test
