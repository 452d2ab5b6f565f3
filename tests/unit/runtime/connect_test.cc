// How ranks of two hosts connect while somebody who knows their secret says what cannot be true, and while one of them
// does. Both ranks are threads.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <functional>
#include <thread>

#include "overlace/bootstrap.h"
#include "src/runtime/clock.h"
#include "src/runtime/control_packet.h"

namespace overlace::runtime {
namespace {

constexpr int64_t kConnectTimeoutMs = 20000;

/// Where a rank's message has what it sends: number of a process, doors, address and port of the first door.
constexpr size_t kNumDoors = 8, kAddress = 12, kPort = 28;

int32_t number_at(const Bytes& bytes, size_t at) {
  int32_t number = 0;
  std::memcpy(&number, bytes.data() + at, sizeof number);
  return number;
}

Meeting meeting_of_two_hosts() {
  Meeting meeting;
  draw_random(std::as_writable_bytes(std::span(&meeting.generation, 1))).or_throw();
  draw_random(meeting.secret).or_throw();
  meeting.hosts = {1, 2};
  meeting.others = {"127.0.0.1"};
  return meeting;
}

/// What rank 1 does between the all-gather and its connection; it may change what rank 0 said.
using Between = std::function<void(std::vector<Bytes>& places)>;

struct Two {
  base::Result<Connections> ends[2] = {base::error(Errc::internal, "not run"), base::error(Errc::internal, "not run")};
};

Two connect_two(const Meeting& meeting, const Between& between) {
  auto all = thread_bootstraps(2);
  Two two;
  const auto rank_body = [&](int rank) {
    const auto gather = [&](std::span<const std::byte> mine) {
      std::vector<Bytes> places = all[static_cast<size_t>(rank)]->allgather(mine, kConnectTimeoutMs);
      if (rank == 1) between(places);
      return places;
    };
    const auto bootstrap = callback_bootstrap(rank, 2, "", gather);
    try {
      two.ends[rank] = connect_ranks(*bootstrap, meeting, kConnectTimeoutMs);
    } catch (...) {
      two.ends[rank] = base::status_of_current_exception();
    }
  };
  std::thread other(rank_body, 1);
  rank_body(0);
  other.join();
  return two;
}

bool is_hung_up(const UniqueFd& fd) {
  char byte = 0;
  return receive_all(fd.get(), &byte, 1, now_ns() + 10000000000).code() != Errc::timeout;
}

TEST(Connect, ThoseWhoKnowTheSecretAreStillTheRanksThatCanCome) {
  const Meeting meeting = meeting_of_two_hosts();
  const Two two = connect_two(meeting, [&](const std::vector<Bytes>& places) {
    ASSERT_EQ(number_at(places[0], kNumDoors), 1);
    EXPECT_STREQ(reinterpret_cast<const char*>(places[0].data()) + kAddress, "127.0.0.1");
    const std::string name = base::format("{}127.0.0.1:{}", kTcp, number_at(places[0], kPort));
    const auto greet = [&](PacketType type, int32_t value, uint64_t group, std::span<const std::byte> rest) {
      UniqueFd fd = connect_to(name, SOCK_STREAM, 0).value();
      EXPECT_TRUE(
          send_packet(fd.get(), {.type = type, .tag = {group, 0, 0}, .value = value}, rest, -1, now_ns() + 1000000000)
              .ok());
      return is_hung_up(fd);
    };
    for (const int32_t rank : {-1, 0, 2, 1 << 30}) {
      EXPECT_TRUE(greet(PacketType::hello, rank, meeting.generation, meeting.secret)) << rank;
      EXPECT_TRUE(greet(PacketType::lifeline, rank, meeting.generation, meeting.secret)) << rank;
    }
    EXPECT_TRUE(greet(PacketType::lifeline, 1, meeting.generation, meeting.secret)) << "those above have none";
    EXPECT_TRUE(greet(PacketType::message, 1, meeting.generation, meeting.secret));
    EXPECT_TRUE(greet(PacketType::hello, 1, meeting.generation + 1, meeting.secret));
    EXPECT_TRUE(greet(PacketType::hello, 1, meeting.generation, std::span(meeting.secret).first(31)));
    Secret other = meeting.secret;
    other[31] ^= std::byte{1};
    EXPECT_TRUE(greet(PacketType::hello, 1, meeting.generation, other));
  });
  ASSERT_TRUE(two.ends[0].ok()) << two.ends[0].status().message();
  ASSERT_TRUE(two.ends[1].ok()) << two.ends[1].status().message();
  const PacketHeader header{.tag = {1, 2, 3}};
  ASSERT_TRUE(send_packet(two.ends[1]->sockets[0].get(), header, {}, -1, now_ns() + 1000000000).ok());
  std::vector<std::byte> buffer;
  Packet packet;
  Received received = Received::nothing;
  for (const int64_t deadline_ns = now_ns() + 10000000000; received == Received::nothing && now_ns() < deadline_ns;)
    received = receive_packet(two.ends[0]->sockets[1].get(), buffer, packet);
  ASSERT_EQ(received, Received::packet);
  EXPECT_EQ(packet.header.tag, (Tag{1, 2, 3}));
}

TEST(Connect, ARankThatCannotBeWhereItSaysIsNamed) {
  struct Lie {
    std::function<void(Bytes&)> tell;
    const char* words;
  };
  const auto set = [](size_t at, int32_t to) {
    return [=](Bytes& place) { std::memcpy(place.data() + at, &to, sizeof to); };
  };
  const Lie lies[] = {
      {set(kNumDoors, 9), "rank 0 says that it listens on 9 addresses, wanted 0 to 8"},
      {set(kNumDoors, 8), "rank 0 says that it listens on what is no address (port 0)"},  // as many as there may be
      {set(kNumDoors, -1), "rank 0 says that it listens on -1 addresses"},
      {set(kNumDoors, 0), "rank 0 is on another host and says no address"},
      {set(kPort, 0), "rank 0 says that it listens on what is no address (port 0)"},
      {set(kPort, 65536), "rank 0 says that it listens on what is no address (port 65536)"},
      {[](Bytes& place) { std::memset(place.data() + kAddress, '1', 16); }, "on what is no address"},
      {[](Bytes& place) { place.resize(20); }, "rank 0 does not say where it is"},
  };
  for (const Lie& lie : lies) {
    Meeting meeting = meeting_of_two_hosts();
    auto both = thread_bootstraps(2);
    // Rank 0 only says where it is: it goes before anybody connects.
    std::thread rank_0([&] {
      const auto bootstrap = callback_bootstrap(0, 2, "", [&](std::span<const std::byte> mine) {
        (void)both[0]->allgather(mine, kConnectTimeoutMs);
        return std::vector<Bytes>(2);
      });
      EXPECT_FALSE(connect_ranks(*bootstrap, meeting, kConnectTimeoutMs).ok());
    });
    const auto bootstrap = callback_bootstrap(1, 2, "", [&](std::span<const std::byte> mine) {
      std::vector<Bytes> places = both[1]->allgather(mine, kConnectTimeoutMs);
      lie.tell(places[0]);
      return places;
    });
    const base::Result<Connections> end = connect_ranks(*bootstrap, meeting, kConnectTimeoutMs);
    rank_0.join();
    ASSERT_FALSE(end.ok()) << lie.words;
    EXPECT_EQ(end.status().code(), Errc::bootstrap);
    EXPECT_NE(end.status().message().find(lie.words), std::string::npos) << end.status().message();
  }
}

}  // namespace
}  // namespace overlace::runtime
