// Memory that somebody else made symmetric: threads give their peers' addresses, processes what they mapped.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "overlace/handle_pod.h"
#include "src/runtime/bootstrap/fd_exchange.h"
#include "src/runtime/state.h"
#include "tests/ranks/support/run_ranks.h"

namespace overlace::test {
namespace {

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

/// The donor: `bytes` per rank, an address for each of them in this process. Outlives the runtime of its rank.
struct Donor {
  Donor(Runtime& runtime, size_t donated) : bytes(donated) {
    Team& team = runtime.world();
    const int fd = ::memfd_create("donor", MFD_CLOEXEC);
    EXPECT_EQ(::ftruncate(fd, static_cast<off_t>(bytes)), 0);
    runtime::Control& control = *runtime.state().control;
    auto fds = runtime::exchange_fds(control, control.all_ranks(), fd, 20000);
    ::close(fd);
    peers.resize(static_cast<size_t>(team.size()));
    const bool is_shared = runtime.state().control->in_process();
    for (size_t r = 0; r < peers.size(); ++r) {
      if (static_cast<int>(r) == team.rank() || !is_shared)
        peers[r] = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, (*fds)[r], 0);
      ::close((*fds)[r]);
    }
    local = peers[static_cast<size_t>(team.rank())];
    if (!is_shared) return;
    // Threads: one address for each byte.
    const std::vector<Bytes> all = team.exchange(std::as_bytes(std::span(&local, 1)));
    for (size_t r = 0; r < peers.size(); ++r) std::memcpy(&peers[r], all[r].data(), sizeof(void*));
  }
  size_t bytes;
  void* local = nullptr;
  std::vector<void*> peers;  // never unmapped: the wire may be busy until the runtime is closed
};

uint32_t value(int from, int to, size_t i, int round) {
  return static_cast<uint32_t>(round * 1000003 + from * 65536 + to * 4096) + static_cast<uint32_t>(i);
}

class AdoptTest : public testing::TestWithParam<std::tuple<int, Mode>> {};

TEST_P(AdoptTest, PutsOfAllPairsArrive) {
  const auto [n, mode] = GetParam();
  run_ranks(n, mode, [n = n](Runtime& runtime) {
    constexpr size_t kWords = 5000;
    Team& team = runtime.world();
    Donor donor(runtime, kWords * 4 * static_cast<size_t>(n) + 3);
    std::memset(donor.local, 0x11 + team.rank(), donor.bytes);
    const Region region = runtime.heap().adopt("donor", donor.local, donor.bytes, donor.peers);
    EXPECT_EQ(region.name(), "donor");
    EXPECT_EQ(region.bytes(), donor.bytes);
    EXPECT_EQ(region.base(team.rank()), donor.local);
    for (size_t i = 0; i < donor.bytes; ++i)  // the check of the mapping leaves no trace
      ASSERT_EQ(static_cast<unsigned char*>(donor.local)[i], 0x11 + team.rank()) << "byte " << i;
    team.barrier();

    Channel& channel = team.channel(StreamRef::cpu());
    const SignalIds ids = channel.ids(2, Domain::cpu, "adopt");
    const RegionPod pod = region.pod(team);
    for (int round = 0; round < 3; ++round) {
      std::vector<std::vector<uint32_t>> sources(static_cast<size_t>(n), std::vector<uint32_t>(kWords));
      const uint64_t mine = static_cast<uint64_t>(team.rank()) * kWords * 4 + 3;  // unaligned
      for (int to = 0; to < n; ++to) {
        std::vector<uint32_t>& source = sources[static_cast<size_t>(to)];
        for (size_t i = 0; i < kWords; ++i) source[i] = value(team.rank(), to, i, round);
        if (round == 0) {
          put_signal(channel.pod(), pod, to, mine, source.data(), kWords * 4, ids.first);
        } else if (round == 1) {
          put_2d(channel.pod(), pod, to, mine, 1000, source.data(), 1000, 1000, kWords * 4 / 1000);
          fence(channel.pod(), to);
          signal_add(channel.pod(), to, ids.first);
        } else {
          std::memcpy(peer_ptr(pod, to, mine), source.data(), kWords * 4);
          signal_add(channel.pod(), to, ids.first);
        }
      }
      for (int from = 0; from < n; ++from) {
        ASSERT_EQ(wait_ge(channel.pod(), from, ids.first, ticket(channel.pod(), from, ids.first) + 1), Errc::ok);
        consume(channel.pod(), from, ids.first, 1);
        std::vector<uint32_t> seen(kWords);
        std::memcpy(seen.data(), static_cast<char*>(donor.local) + static_cast<size_t>(from) * kWords * 4 + 3,
                    kWords * 4);
        for (size_t i = 0; i < kWords; ++i) ASSERT_EQ(seen[i], value(from, team.rank(), i, round)) << "from " << from;
      }
      ASSERT_EQ(flush(channel.pod()), Errc::ok);
      ASSERT_EQ(barrier(channel.pod()), Errc::ok);
      const int next = (team.rank() + 1) % n;
      uint32_t word = 0;
      ASSERT_EQ(get(channel.pod(), pod, next, mine + 4 * 77, &word, 4), Errc::ok);
      ASSERT_EQ(word, value(team.rank(), next, 77, round));
      ASSERT_EQ(barrier(channel.pod()), Errc::ok);
    }
    EXPECT_EQ(refusal<InvalidArgument>([&] { put(channel.pod(), pod, 0, donor.bytes - 3, &donor, 4); }),
              "adopted memory: bytes " + std::to_string(donor.bytes - 3) + " to " + std::to_string(donor.bytes + 1) +
                  ", wanted at most " + std::to_string(donor.bytes));
  });
}

/// Peers of the pod are ranks of the team it was made for.
TEST_P(AdoptTest, SubTeamsHaveTheirOwnTables) {
  const auto [n, mode] = GetParam();
  if (n < 2) GTEST_SKIP() << "one rank is no team of others";
  run_ranks(n, mode, [n = n](Runtime& runtime) {
    Donor donor(runtime, 4096);
    const Region region = runtime.heap().adopt("donor", donor.local, donor.bytes, donor.peers);
    std::vector<int> reversed;
    for (int r = n - 1; r >= 0; --r) reversed.push_back(r);
    Team team = runtime.world().sub(reversed, {.name = "reversed"});
    const RegionPod pod = region.pod(team);
    for (int peer = 0; peer < n; ++peer)
      EXPECT_EQ(peer_ptr(pod, peer, 8), static_cast<char*>(donor.peers[static_cast<size_t>(n - 1 - peer)]) + 8);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, AdoptTest,
                         testing::Combine(testing::Values(1, 2, 4, 9), testing::ValuesIn(all_modes())), mode_test_name);

class AdoptErrorTest : public testing::TestWithParam<Mode> {};

TEST_P(AdoptErrorTest, ArgumentsAndDifferencesAreNamedOnAllRanks) {
  run_ranks(2, GetParam(), [](Runtime& runtime) {
    Team& team = runtime.world();
    SymmetricHeap& heap = runtime.heap();
    Donor donor(runtime, 4096);
    const bool is_first = team.rank() == 0;
    const std::string other = is_first ? "rank 1: " : "";
    EXPECT_EQ(refusal<InvalidArgument>([&] { (void)heap.adopt("d", donor.local, is_first ? 4096 : 0, donor.peers); }),
              other + "heap.adopt \"d\": local is set, bytes is 0; wanted memory of at least one byte");
    EXPECT_EQ(refusal<InvalidArgument>(
                  [&] { (void)heap.adopt("d", donor.local, 4096, std::span(donor.peers).first(is_first ? 2 : 1)); }),
              other + "heap.adopt \"d\": 1 peer addresses, wanted one for each of the 2 ranks of the world");
    std::vector<void*> swapped = donor.peers;
    if (!is_first) std::swap(swapped[0], swapped[1]);
    EXPECT_EQ(refusal<InvalidArgument>([&] { (void)heap.adopt("d", donor.local, 4096, swapped); }),
              other + "heap.adopt \"d\": peers[1] is this rank's own and must be `local`");
    std::vector<void*> missing = donor.peers;
    if (!is_first) missing[0] = nullptr;
    EXPECT_EQ(refusal<InvalidArgument>([&] { (void)heap.adopt("d", donor.local, 4096, missing); }),
              other + "heap.adopt \"d\": peers[0] is null, wanted an address: loads and stores reach it");
    EXPECT_EQ(refusal<PlanMismatch>(
                  [&] { (void)heap.adopt("d", donor.local, is_first ? size_t{4096} : size_t{2048}, donor.peers); }),
              "heap.adopt differs between ranks of team \"world\": rank 0 has \"d\" of 4096 bytes, rank 1 has \"d\" of "
              "2048 bytes");
    (void)heap.adopt("d", donor.local, 4096, donor.peers);
  });
}

TEST_P(AdoptErrorTest, APermutationOfPeersIsFound) {
  run_ranks(3, GetParam(), [](Runtime& runtime) {
    Donor donor(runtime, 64);
    std::memset(donor.local, 0x30 + runtime.world().rank(), donor.bytes);
    std::vector<void*> swapped = donor.peers;
    if (runtime.world().rank() == 1) std::swap(swapped[0], swapped[2]);
    const std::string what = refusal<Internal>([&] { (void)runtime.heap().adopt("d", donor.local, 64, swapped); });
    EXPECT_EQ(what, std::string(runtime.world().rank() == 1 ? "" : "rank 1: ") +
                        "heap.adopt \"d\": peers[0] shows the memory of rank 2");
    for (size_t i = 0; i < donor.bytes; ++i)
      ASSERT_EQ(static_cast<unsigned char*>(donor.local)[i], 0x30 + runtime.world().rank());
  });
}

INSTANTIATE_TEST_SUITE_P(Modes, AdoptErrorTest, testing::ValuesIn(all_modes()),
                         [](const auto& test) { return mode_name(test.param); });

}  // namespace
}  // namespace overlace::test
