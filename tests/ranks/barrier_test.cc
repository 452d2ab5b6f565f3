// Barriers of channels: nobody leaves before all have come, and what was written before is seen after.
#include <cstring>
#include <tuple>
#include <vector>

#include "overlace/handle_pod.h"
#include "tests/ranks/support/run_ranks.h"

namespace overlace::test {
namespace {

class BarrierTest : public testing::TestWithParam<std::tuple<int, Mode>> {};

TEST_P(BarrierTest, CoversStoresAndPuts) {
  const auto [n, mode] = GetParam();
  run_ranks(n, mode, [n = n](Runtime& runtime) {
    Team& team = runtime.world();
    const ChannelPod& channel = team.channel(StreamRef::cpu()).pod();
    const SymBuffer board = runtime.heap().alloc(sizeof(uint64_t) * static_cast<size_t>(n) * 2, 256, "board");
    team.barrier();
    std::vector<uint64_t> stamps(50);
    for (uint64_t round = 0; round < 50; ++round) {
      uint64_t& stamp = stamps[round] = round * 100 + static_cast<uint64_t>(team.rank());
      const size_t mine = static_cast<size_t>(team.rank()) * sizeof(uint64_t);
      for (int peer = 0; peer < n; ++peer) {
        std::memcpy(static_cast<char*>(team.peer_ptr(board, peer)) + mine, &stamp, sizeof stamp);
        const uint64_t place = static_cast<size_t>(n) * sizeof(uint64_t) + mine;
        if (peer == team.rank())  // a barrier says nothing about puts to oneself
          std::memcpy(static_cast<char*>(team.local_ptr(board)) + place, &stamp, sizeof stamp);
        else
          put(channel, peer, board.offset + place, &stamp, sizeof stamp);
      }
      ASSERT_EQ(barrier(channel), Errc::ok);
      std::vector<uint64_t> seen(static_cast<size_t>(n) * 2);
      std::memcpy(seen.data(), team.local_ptr(board), seen.size() * sizeof(uint64_t));
      for (size_t r = 0; r < static_cast<size_t>(n); ++r) {
        ASSERT_EQ(seen[r], round * 100 + r);
        ASSERT_EQ(seen[r + static_cast<size_t>(n)], round * 100 + r);
      }
      ASSERT_EQ(barrier(channel), Errc::ok);
    }
    ASSERT_EQ(flush(channel), Errc::ok);
  });
}

TEST_P(BarrierTest, ChannelsDoNotMix) {
  const auto [n, mode] = GetParam();
  run_ranks(n, mode, [](Runtime& runtime) {
    Team& team = runtime.world();
    Channel& one = team.channel(StreamRef::cpu());
    Channel& two = team.channel(StreamRef::cpu(), {.sm_budget = 1});
    ASSERT_NE(&one, &two);
    ASSERT_EQ(&one, &team.channel(StreamRef::cpu()));
    ASSERT_NE(one.pod().barrier_id, two.pod().barrier_id);
    for (int i = 0; i < 20; ++i) {
      ASSERT_EQ(barrier(one.pod()), Errc::ok);
      if (i % 3 != 0) continue;
      ASSERT_EQ(barrier(two.pod()), Errc::ok);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, BarrierTest,
                         testing::Combine(testing::Values(1, 2, 4, 9), testing::ValuesIn(all_modes())), mode_test_name);

}  // namespace
}  // namespace overlace::test
