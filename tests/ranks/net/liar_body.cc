// A rank that sends another one what cannot be true.
#include <gtest/gtest.h>

#include <cstring>

#include "overlace/error.h"
#include "overlace/signal.h"
#include "src/runtime/backend/cpu/agent.h"
#include "src/runtime/backend/cpu/net_packet.h"
#include "src/runtime/backend/cpu/observer.h"
#include "src/runtime/backend/cpu/wire.h"
#include "src/runtime/hash.h"
#include "src/runtime/state.h"
#include "tests/ranks/net/body.h"

namespace overlace::test {
namespace {

/// The opposite of a lie: memory that came a moment ago is written to at once, while its owner may still be in the call
/// that added it.
TEST(Grown, IsBelievedAtOnce) {
  const auto bootstrap = environment_bootstrap();
  RuntimeOptions options = net_options();
  options.heap_bytes = size_t{1} << 20;
  options.max_heap_bytes = size_t{64} << 20;
  Runtime runtime = Runtime::open(*bootstrap, options);
  Team& team = runtime.world();
  const ChannelPod& pod = team.channel(StreamRef::cpu()).pod();
  const RuntimeLayout& layout = runtime::cpu_agent(runtime)->layout;
  const int peer = (team.rank() + team.size() / 2) % team.size();
  ASSERT_EQ(team.reach(peer), Reach::net);
  uint64_t end = options.heap_bytes;
  for (uint64_t round = 1; round <= 8; ++round) {
    ASSERT_TRUE(runtime.state().grow_heap(size_t{1} << 20).value());
    end = runtime.state().backend->user_bytes();
    const uint64_t last = layout.user.offset + end - sizeof round;
    put_word_release(pod, peer, last, (round << 32) | 5);
    uint32_t low = 0;
    ASSERT_EQ(wait_word(pod, last, static_cast<uint32_t>(round), &low), Errc::ok) << round;
    EXPECT_EQ(low, 5u);
  }
  runtime.close();
}

/// What the last rank tells rank 0 in the name of a put, by the parameter `lie`.
runtime::mpi::Head lie_of(const std::string& name, const RuntimeLayout& layout) {
  namespace net = runtime::net;
  runtime::mpi::Head head;
  head.kind = static_cast<uint32_t>(runtime::Arrival::Kind::add);
  head.words[net::offset] = layout.user.offset;
  head.words[net::pitch] = head.words[net::row_bytes] = head.words[net::end_byte] = 8;
  head.words[net::target] = layout.slot_offset(0, 0);
  if (name == "rows") head.words[net::row_bytes] = 0;
  if (name == "length") head.words[net::end_byte] = head.words[net::row_bytes] = uint64_t{1} << 20;
  if (name == "offset") head.words[net::offset] = layout.slots.offset;
  if (name == "wrap") head.words[net::offset] = ~uint64_t{0} - 3;
  if (name == "id") head.words[net::id] = layout.num_ids;
  if (name == "bell") head.words[net::bell] = 1 << 20;
  if (name == "kind") head.kind = 99;
  if (name == "answer") head.kind = net::kAnswer, head.words[net::number] = 1000;
  return head;
}

TEST(Liar, IsNamedAndNothingIsWritten) {
  const auto bootstrap = environment_bootstrap();
  Runtime runtime = Runtime::open(*bootstrap, net_options());
  Team& team = runtime.world();
  const ChannelPod& pod = team.channel(StreamRef::cpu()).pod();
  const SymBuffer buffer = runtime.heap().alloc(64);
  std::memset(team.local_ptr(buffer), 7, 64);
  const std::string name = parameters()["lie"];
  const int liar = team.size() - 1;
  team.barrier();
  // Whoever is still in the barrier when the lie comes would leave it by an exception.
  for (int rank = 0; rank < liar && team.rank() == liar; ++rank) ASSERT_EQ(wait_ge(pod, rank, 4, 1), Errc::ok) << rank;
  if (team.rank() != liar) signal_add(pod, liar, 4);
  runtime::CpuAgent& agent = *runtime::cpu_agent(runtime);
  if (team.rank() == liar) {
    runtime::mpi::Service& service = *runtime::mpi::Service::open(20000).value();
    runtime::mpi::Head head = lie_of(name, agent.layout);
    head.context = runtime::hash_text("puts", runtime.state().control->generation());
    const char data[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    const size_t bytes = head.kind == runtime::net::kAnswer ? 0 : sizeof data;
    service.send(service.rank() - liar, head, {{data, bytes}}, nullptr);
  }
  std::string told;
  Errc code = Errc::ok;
  try {
    // Nobody ever adds to it.
    const Errc waited = wait_ge(pod, liar, 3, 1);
    if (waited != Errc::ok) runtime.check();
  } catch (const Error& error) {
    told = error.what();
    code = error.code();
  }
  EXPECT_EQ(code, team.rank() == 0 ? Errc::engine : Errc::aborted) << told;
  EXPECT_NE(told.find("rank 0 refused what rank " + std::to_string(liar) + " sent: engine mpi: "), std::string::npos)
      << told;
  const char* const bytes = static_cast<const char*>(team.local_ptr(buffer));
  for (int i = 0; i < 64; ++i) EXPECT_EQ(bytes[i], 7) << i;
  runtime.close();
}

}  // namespace
}  // namespace overlace::test
