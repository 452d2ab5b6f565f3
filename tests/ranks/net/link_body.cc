// The emulated link between hosts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "overlace/signal.h"
#include "overlace/team.h"
#include "src/runtime/state.h"
#include "tests/ranks/net/body.h"

namespace overlace::test {
namespace {

/// One from host to host: what two ranks send to the two of the other host passes one after the other, and what ranks
/// of one host exchange does not pass it.
TEST(Link, RanksOfAHostShareTheirs) {
  const auto bootstrap = environment_bootstrap();
  RuntimeOptions options = net_options();
  options.link = LinkOptions::parse("40MB/s,10us,hosts");
  Runtime runtime = Runtime::open(*bootstrap, options);
  Team& team = runtime.world();
  struct Span {
    int64_t begin, end;
    int peer;
  };
  std::vector<Span> mine;
  runtime::set_transfer_sink(runtime, [&](int peer, int64_t begin, int64_t end, size_t bytes) {
    if (bytes > 1000) mine.push_back({begin, end, peer});
  });
  Channel& channel = team.channel(StreamRef::cpu());
  const uint32_t id = channel.ids(1, Domain::cpu, "link.signal").first;
  constexpr size_t kBytes = 200000;
  const SymBuffer inbox = runtime.heap().alloc(kBytes * static_cast<size_t>(team.size()));
  team.barrier();
  const std::vector<char> source(kBytes, static_cast<char>(team.rank() + 1));
  const uint64_t place = inbox.offset + static_cast<uint64_t>(team.rank()) * kBytes;
  for (int peer = 0; peer < team.size(); ++peer)
    if (peer != team.rank()) put_signal(channel.pod(), peer, place, source.data(), kBytes, id);
  for (int from = 0; from < team.size(); ++from) {
    if (from == team.rank()) continue;
    ASSERT_EQ(wait_ge(channel.pod(), from, id, 1), Errc::ok);
    consume(channel.pod(), from, id, 1);
    const char* got = static_cast<char*>(team.local_ptr(inbox)) + static_cast<size_t>(from) * kBytes;
    EXPECT_EQ(std::count(got, got + kBytes, static_cast<char>(from + 1)), static_cast<int64_t>(kBytes));
  }
  runtime.synchronize();
  runtime::set_transfer_sink(runtime, {});
  for (const Span& span : mine) EXPECT_EQ(team.reach(span.peer), Reach::net);

  std::vector<Span> all;
  const std::vector<Bytes> parts = team.exchange(std::as_bytes(std::span(mine)));
  for (int rank = 0; rank < team.size(); ++rank) {
    if (team.reach(rank) == Reach::net) continue;
    const Bytes& part = parts[static_cast<size_t>(rank)];
    ASSERT_EQ(part.size(), 2 * sizeof(Span)) << rank;
    all.resize(all.size() + 2);
    std::memcpy(&all[all.size() - 2], part.data(), part.size());
  }
  ASSERT_EQ(all.size(), 4u);
  std::sort(all.begin(), all.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < all.size(); ++i) EXPECT_GE(all[i].begin, all[i - 1].end) << "transfers overlap";
  runtime.close();
}

}  // namespace
}  // namespace overlace::test
