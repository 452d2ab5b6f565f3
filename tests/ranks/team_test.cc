// Teams, host exchanges, the heap's bookkeeping across ranks, several runtimes in one process.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "src/runtime/state.h"
#include "tests/ranks/support/run_ranks.h"

namespace overlace::test {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string text_of(const Bytes& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

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

class TeamTest : public testing::TestWithParam<std::tuple<int, Mode>> {};

TEST_P(TeamTest, ExchangeAndReach) {
  const auto [n, mode] = GetParam();
  run_ranks(n, mode, [n = n](Runtime& runtime) {
    Team& team = runtime.world();
    ASSERT_EQ(team.size(), n);
    for (int round = 0; round < 5; ++round) {
      const std::string mine(static_cast<size_t>(team.rank() * 100 + round), 'x');
      const std::vector<Bytes> all = team.exchange(bytes_of(mine));
      for (int r = 0; r < n; ++r) ASSERT_EQ(all[static_cast<size_t>(r)].size(), static_cast<size_t>(r * 100 + round));
    }
    const std::vector<Bytes> all = team.exchange(bytes_of(std::string(65536, static_cast<char>('a' + team.rank()))));
    for (int r = 0; r < n; ++r)
      ASSERT_EQ(text_of(all[static_cast<size_t>(r)]), std::string(65536, static_cast<char>('a' + r)));
    for (int r = 0; r < n; ++r) {
      ASSERT_EQ(team.reach(r), r == team.rank() ? Reach::self : Reach::lsa);
      ASSERT_TRUE(runtime.caps(r).load_store);
      ASSERT_FALSE(runtime.caps(r).copy_engine);
    }
    EXPECT_EQ(refusal<InvalidArgument>([&] { (void)team.exchange(bytes_of(std::string(65537, 'x'))); }),
              "team.exchange: 65537 bytes, wanted at most 65536 a rank");
    EXPECT_EQ(
        refusal<InvalidArgument>([&] { (void)team.reach(n); }),
        "team.reach: peer is " + std::to_string(n) + ", wanted 0 to " + std::to_string(n - 1) + " (team \"world\")");
  });
}

TEST_P(TeamTest, AgreeNamesTheRankThatDiffers) {
  const auto [n, mode] = GetParam();
  if (n < 2) GTEST_SKIP() << "one rank agrees with itself";
  run_ranks(n, mode, [n = n](Runtime& runtime) {
    Team& team = runtime.world();
    team.agree("same", "test");
    const std::string what =
        refusal<PlanMismatch>([&] { team.agree(team.rank() == n - 1 ? "M=9" : "M=8", "gemm_rs"); });
    EXPECT_EQ(what, "gemm_rs differs between ranks of team \"world\": rank 0 has M=8, rank " + std::to_string(n - 1) +
                        " has M=9");
    team.agree("same again", "test");
  });
}

/// Even and odd ranks, each in reverse order, and a team of the first two.
TEST_P(TeamTest, SubTeamsHaveTheirOwnRanksAndSignals) {
  const auto [n, mode] = GetParam();
  run_ranks(n, mode, [n = n](Runtime& runtime) {
    Team& world = runtime.world();
    std::vector<std::vector<int>> lists(2);
    for (int r = n - 1; r >= 0; --r) lists[static_cast<size_t>(r % 2)].push_back(r);
    std::vector<Team> teams;
    for (const std::vector<int>& list : lists) {
      Team team = world.sub(list, {.name = "half"});
      const bool is_member = std::find(list.begin(), list.end(), world.rank()) != list.end();
      ASSERT_EQ(team.size(), is_member ? static_cast<int>(list.size()) : 0);
      if (!is_member) continue;
      ASSERT_EQ(list[static_cast<size_t>(team.rank())], world.rank());
      teams.push_back(team);
    }
    ASSERT_EQ(teams.size(), 1u);
    Team& half = teams[0];
    const SymBuffer board = runtime.heap().alloc(sizeof(int32_t) * static_cast<size_t>(n), 256, "board");
    world.barrier();
    Channel& channel = half.channel(StreamRef::cpu());
    const uint32_t id = channel.ids(1, Domain::cpu, "half.signal").first;
    ASSERT_GE(id, runtime.options().num_signal_ids / 2) << "ids of sub-teams lie apart from the world's";
    const int32_t mine = world.rank() + 1000;
    for (int peer = 0; peer < half.size(); ++peer)
      put_signal(channel.pod(), peer, board.offset + static_cast<size_t>(half.rank()) * 4, &mine, 4, id);
    for (int peer = 0; peer < half.size(); ++peer) {
      ASSERT_EQ(wait_ge(channel.pod(), peer, id, 1), Errc::ok);
      consume(channel.pod(), peer, id, 1);
      int32_t got = 0;
      std::memcpy(&got, static_cast<char*>(half.local_ptr(board)) + peer * 4, 4);
      ASSERT_EQ(got, half.world_rank(peer) + 1000);
    }
    ASSERT_EQ(barrier(channel.pod()), Errc::ok);
    half.barrier();
    ASSERT_EQ(flush(channel.pod()), Errc::ok);
    // A team of a team.
    const int first[] = {0};
    Team one = half.sub(first, {.name = "one"});
    ASSERT_EQ(one.size(), half.rank() == 0 ? 1 : 0);
  });
}

TEST_P(TeamTest, SubRefusesNonsenseAndDisagreement) {
  const auto [n, mode] = GetParam();
  run_ranks(n, mode, [n = n](Runtime& runtime) {
    Team& team = runtime.world();
    const int twice[] = {0, 0}, outside[] = {n};
    EXPECT_EQ(refusal<InvalidArgument>([&] { (void)team.sub(twice, {.name = "t"}); }),
              "team.sub \"t\": rank 0 is named twice in [0,0]");
    EXPECT_NE(refusal<InvalidArgument>([&] { (void)team.sub(outside); }).find("team.sub: peer is"), std::string::npos);
    if (n < 2) return;
    const int zero[] = {0}, one[] = {1};
    const std::string what =
        refusal<PlanMismatch>([&] { (void)team.sub(team.rank() == 0 ? zero : one, {.name = "t"}); });
    EXPECT_EQ(what, "team.sub differs between ranks of team \"world\": rank 0 has [0] \"t\" 0, rank 1 has [1] \"t\" 0");
  });
}

TEST_P(TeamTest, HeapVerifyNamesTheDeviatingRank) {
  const auto [n, mode] = GetParam();
  if (n < 3) GTEST_SKIP() << "a majority needs three";
  RankOptions options;
  options.checks_end = false;
  run_ranks(
      n, mode,
      [](Runtime& runtime) {
        const SymBuffer kept = runtime.heap().alloc(1000, 256, "kept");
        runtime.heap().verify();
        (void)runtime.heap().alloc(runtime.world().rank() == 1 ? 4096 : 2048, 256, "odd");
        const std::string what = refusal<PlanMismatch>([&] { runtime.heap().verify(); });
        EXPECT_NE(what.find("heap.verify: rank 1 made other heap calls: 2 calls"), std::string::npos) << what;
        EXPECT_NE(what.find("last alloc 4096 256 \"odd\"; wanted, as the others: 2 calls"), std::string::npos) << what;
        runtime.heap().free(kept);
        runtime.close();
      },
      options);
}

TEST_P(TeamTest, HeapAndIdsSayWhatIsMissing) {
  const auto [n, mode] = GetParam();
  run_ranks(n, mode, [](Runtime& runtime) {
    SymmetricHeap& heap = runtime.heap();
    ASSERT_EQ(heap.capacity(), size_t{8} << 20);
    const SymBuffer block = heap.alloc(1 << 20, 2 << 20, "block");
    EXPECT_EQ(block.offset % (2 << 20), 0u);
    const std::string what = refusal<OutOfMemory>([&] { (void)heap.alloc(8 << 20, 256, "activations"); });
    EXPECT_NE(what.find("symmetric heap exhausted: \"activations\" asked 8388608 bytes, largest free block "),
              std::string::npos)
        << what;
    EXPECT_NE(what.find("total 8388608, in use 1048576"), std::string::npos) << what;
    EXPECT_EQ(refusal<InvalidArgument>([&] { (void)heap.alloc(8, 3, "odd"); }),
              "heap.alloc \"odd\": align is 3, wanted a power of two <= 2 MiB");
    heap.free(block);
    EXPECT_NE(refusal<InvalidArgument>([&] { heap.free(block); }).find("no block starts at offset"), std::string::npos);
    EXPECT_FALSE(heap.alloc(0, 256, "empty"));
    EXPECT_EQ(heap.in_use(), 0u);

    Channel& channel = runtime.world().channel(StreamRef::cpu());
    EXPECT_NE(refusal<OutOfMemory>([&] {
                (void)channel.ids(100000, Domain::cpu, "many");
              }).find("signal ids exhausted: \"many\" asked 100000, largest free range "),
              std::string::npos);
    EXPECT_EQ(refusal<InvalidArgument>([&] { (void)channel.ids(1, Domain::device, "wrong"); }),
              "channel.ids \"wrong\": domain is device, wanted cpu on CPU ranks");
    const SignalIds ids = channel.ids(3, Domain::cpu, "three");
    channel.release(ids);
    EXPECT_NE(refusal<InvalidArgument>([&] { channel.release(ids); }).find("are not a range that this channel owns"),
              std::string::npos);
    EXPECT_EQ(channel.ids(3, Domain::cpu, "again").first, ids.first);
  });
}

TEST_P(TeamTest, FreshMemoryIsPoisonedUnderTheAdversary) {
  const auto [n, mode] = GetParam();
  if (mode != Mode::threads_adversary) GTEST_SKIP() << "only the adversary promises it";
  run_ranks(n, mode, [](Runtime& runtime) {
    const SymBuffer block = runtime.heap().alloc(1024, 256, "fresh");
    const auto* values = static_cast<const float*>(runtime.world().local_ptr(block));
    for (int i = 0; i < 256; ++i) ASSERT_TRUE(std::isnan(values[i])) << i;
    std::memset(runtime.world().local_ptr(block), 0, 1024);
    runtime.heap().free(block);
    for (int i = 0; i < 256; ++i) ASSERT_TRUE(std::isnan(values[i])) << i;
  });
}

TEST_P(TeamTest, TwoRuntimesInOneProcess) {
  const auto [n, mode] = GetParam();
  const RuntimeOptions options = runtime_options(mode, {});
  run_bootstraps(n, mode, [&options, n = n](Bootstrap& bootstrap) {
    Runtime one = Runtime::open(bootstrap, options);
    Runtime two = Runtime::open(bootstrap, options);
    ASSERT_NE(one.state().control->generation(), two.state().control->generation());
    std::vector<int32_t> values(2);
    Runtime* runtimes[] = {&one, &two};
    SymBuffer boards[2];
    uint32_t ids[2];
    for (int i = 0; i < 2; ++i) {
      boards[i] = runtimes[i]->heap().alloc(64, 256, "board");
      ids[i] = runtimes[i]->world().channel(StreamRef::cpu()).ids(1, Domain::cpu, "two.signal").first;
      runtimes[i]->world().barrier();
    }
    for (int i = 0; i < 2; ++i) {
      Team& team = runtimes[i]->world();
      const ChannelPod& channel = team.channel(StreamRef::cpu()).pod();
      values[static_cast<size_t>(i)] = team.rank() * 10 + i;
      put_signal(channel, (team.rank() + 1) % n, boards[i].offset, &values[static_cast<size_t>(i)], 4, ids[i]);
    }
    for (int i = 1; i >= 0; --i) {
      Team& team = runtimes[i]->world();
      const ChannelPod& channel = team.channel(StreamRef::cpu()).pod();
      const int from = (team.rank() + n - 1) % n;
      ASSERT_EQ(wait_ge(channel, from, ids[i], 1), Errc::ok);
      consume(channel, from, ids[i], 1);
      ASSERT_EQ(*static_cast<int32_t*>(team.local_ptr(boards[i])), from * 10 + i);
      ASSERT_EQ(flush(channel), Errc::ok);
    }
    Runtime moved = std::move(one);
    ASSERT_EQ(&moved.world().runtime(), &moved);
    moved.close();
    two.world().barrier();
    two.check_quiescent();
    two.close();
    EXPECT_EQ(refusal<InvalidArgument>([&] { two.world().barrier(); }), "the runtime was closed; open a new one");
  });
}

TEST_P(TeamTest, AHeapThatDoesNotFitIsRefused) {
  const auto [n, mode] = GetParam();
  run_bootstraps(n, mode, [n = n, mode = mode](Bootstrap& bootstrap) {
    RuntimeOptions options = runtime_options(mode == Mode::processes ? mode : Mode::threads, {});
    options.heap_bytes = size_t{1} << 45;
    const std::string what = refusal<OutOfMemory>([&] { (void)Runtime::open(bootstrap, options); });
    EXPECT_EQ(what.find("symmetric heap: " + std::to_string(n) + " ranks with 351843"), 0u) << what;
    EXPECT_NE(what.find("bytes of available memory; lower heap_bytes"), std::string::npos) << what;
    // The bootstrap is still good for another try.
    options.heap_bytes = 1 << 20;
    Runtime runtime = Runtime::open(bootstrap, options);
    runtime.close();
  });
}

TEST_P(TeamTest, DifferentOptionsAreNamed) {
  const auto [n, mode] = GetParam();
  if (n < 2) GTEST_SKIP() << "one rank agrees with itself";
  run_bootstraps(n, mode, [n = n, mode = mode](Bootstrap& bootstrap) {
    RuntimeOptions options = runtime_options(mode == Mode::processes ? mode : Mode::threads, {});
    if (bootstrap.rank() == n - 1) options.heap_bytes *= 2;
    const std::string what = refusal<InvalidArgument>([&] { (void)Runtime::open(bootstrap, options); });
    EXPECT_EQ(what, "ranks 0 and " + std::to_string(n - 1) + " disagree: rank 0 has heap_bytes=8388608, rank " +
                        std::to_string(n - 1) + " has heap_bytes=16777216");
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, TeamTest, testing::Combine(testing::Values(1, 2, 4, 9), testing::ValuesIn(all_modes())),
                         mode_test_name);

}  // namespace
}  // namespace overlace::test
