// Packets over both kinds of sockets: in parts, in disorder, to who does not read, from who is no rank.
#include "src/runtime/control_packet.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <thread>

#include "src/runtime/clock.h"

namespace overlace::runtime {
namespace {

struct Pair {
  explicit Pair(int type) {
    int fds[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, type, 0, fds), 0);
    near = UniqueFd(fds[0]);
    far = UniqueFd(fds[1]);
  }
  UniqueFd near, far;
};

int64_t in_ms(int64_t ms) { return now_ns() + ms * 1000000; }

/// Different at every place.
Bytes patterned(size_t count, unsigned seed) {
  Bytes out(count);
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<std::byte>((i * 131 + seed * 17 + i / 256) % 251);
  return out;
}

PacketHeader header_of(uint32_t number) {
  PacketHeader header;
  header.tag = {7, 3, number};
  return header;
}

class Packets : public testing::TestWithParam<int> {};

TEST_P(Packets, ArriveWholeAndInOrder) {
  Pair pair(GetParam());
  std::vector<std::byte> buffer;
  Packet packet;
  EXPECT_EQ(receive_packet(pair.far.get(), buffer, packet), Received::nothing);
  for (uint32_t i = 0; i < 3; ++i)
    ASSERT_TRUE(send_packet(pair.near.get(), header_of(i), patterned(i * 1000, i), -1, in_ms(1000)).ok());
  ASSERT_EQ(peek_packet(pair.far.get(), buffer, packet), Received::packet);
  EXPECT_EQ(packet.header.tag.number, 0u);
  for (uint32_t i = 0; i < 3; ++i) {
    ASSERT_EQ(receive_packet(pair.far.get(), buffer, packet), Received::packet);
    EXPECT_EQ(packet.header.tag, (Tag{7, 3, i}));
    EXPECT_EQ(packet.message.bytes, patterned(i * 1000, i));
    EXPECT_EQ(packet.message.fd, -1);
  }
  EXPECT_EQ(receive_packet(pair.far.get(), buffer, packet), Received::nothing);
  pair.near.reset();
  EXPECT_EQ(receive_packet(pair.far.get(), buffer, packet), Received::end);
}

TEST_P(Packets, AReaderThatTakesNothingIsATimeout) {
  Pair pair(GetParam());
  base::Status status;
  const int64_t begin = now_ns();
  for (uint32_t i = 0; i < 1000 && status.ok(); ++i)
    status = send_packet(pair.near.get(), header_of(i), patterned(Control::kMaxBytes, i), -1, in_ms(50));
  EXPECT_EQ(status.code(), Errc::timeout);
  EXPECT_EQ(status.message(), "it takes nothing");
  EXPECT_GE(now_ns() - begin, 50000000);
  // Without a deadline it is not waited for at all.
  EXPECT_EQ(send_packet(pair.near.get(), header_of(0), patterned(Control::kMaxBytes, 0), -1, 0).code(),
            GetParam() == SOCK_STREAM ? Errc::peer_lost : Errc::timeout);
}

TEST_P(Packets, AReaderThatIsGoneIsLost) {
  Pair pair(GetParam());
  pair.far.reset();
  EXPECT_EQ(send_packet(pair.near.get(), header_of(0), {}, -1, in_ms(1000)).code(), Errc::peer_lost);
  EXPECT_EQ(send_packet(-1, header_of(0), {}, -1, in_ms(1000)).code(), Errc::io);
}

INSTANTIATE_TEST_SUITE_P(Kinds, Packets, testing::Values(SOCK_STREAM, SOCK_SEQPACKET), [](const auto& test) {
  return std::string(test.param == SOCK_STREAM ? "Stream" : "Packets");
});

TEST(PacketsOfAStream, AreTakenWhenTheyAreComplete) {
  Pair pair(SOCK_STREAM);
  PacketHeader header = header_of(5);
  const Bytes body = patterned(300, 5);
  header.length = static_cast<uint32_t>(body.size());
  std::string wire(sizeof header + body.size(), '\0');
  std::memcpy(wire.data(), &header, sizeof header);
  std::memcpy(wire.data() + sizeof header, body.data(), body.size());
  std::vector<std::byte> buffer;
  Packet packet;
  size_t sent = 0;
  for (const size_t until : {size_t{1}, sizeof header, sizeof header + 200}) {
    ASSERT_EQ(::write(pair.near.get(), wire.data() + sent, until - sent), static_cast<ssize_t>(until - sent));
    sent = until;
    EXPECT_EQ(receive_packet(pair.far.get(), buffer, packet), Received::nothing) << until;
  }
  ASSERT_EQ(::write(pair.near.get(), wire.data() + sent, wire.size() - sent), static_cast<ssize_t>(wire.size() - sent));
  ASSERT_EQ(receive_packet(pair.far.get(), buffer, packet), Received::packet);
  EXPECT_EQ(packet.message.bytes, body);
  // The next one never becomes whole.
  ASSERT_EQ(::write(pair.near.get(), wire.data(), 100), 100);
  pair.near.reset();
  EXPECT_EQ(receive_packet(pair.far.get(), buffer, packet), Received::end);
}

TEST(PacketsOfAStream, OfStrangersEndTheConnection) {
  std::vector<std::byte> buffer;
  Packet packet;
  const auto receive = [&](const PacketHeader& header) {
    Pair pair(SOCK_STREAM);
    EXPECT_EQ(::write(pair.near.get(), &header, sizeof header), static_cast<ssize_t>(sizeof header));
    return receive_packet(pair.far.get(), buffer, packet);
  };
  PacketHeader header = header_of(0);
  EXPECT_EQ(receive(header), Received::packet);
  header.magic ^= 1;
  EXPECT_EQ(receive(header), Received::end);
  header = header_of(0);
  header.length = static_cast<uint32_t>(Control::kMaxBytes) + 1;
  EXPECT_EQ(receive(header), Received::end);
}

TEST(PacketsOfAStream, AreNotMixedByThreads) {
  Pair pair(SOCK_STREAM);
  constexpr uint32_t kThreads = 4, kEach = 20;
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (uint32_t i = 0; i < kEach; ++i)
        EXPECT_TRUE(send_packet(pair.near.get(), header_of(t), patterned(40000 + t, t), -1, in_ms(20000)).ok());
    });
  }
  std::vector<std::byte> buffer;
  std::array<uint32_t, kThreads> count{};
  Packet packet;
  const int64_t deadline_ns = in_ms(20000);
  for (uint32_t received = 0; received < kThreads * kEach && now_ns() < deadline_ns;) {
    const Received what = receive_packet(pair.far.get(), buffer, packet);
    ASSERT_NE(what, Received::end);
    if (what == Received::nothing) {
      std::this_thread::yield();
      continue;
    }
    ++received;
    const uint32_t t = packet.header.tag.number;
    ASSERT_LT(t, kThreads);
    ++count[t];
    ASSERT_EQ(packet.message.bytes, patterned(40000 + t, t));
  }
  for (std::thread& thread : threads) thread.join();
  for (const uint32_t n : count) EXPECT_EQ(n, kEach);
}

TEST(PacketsOfOneHost, CarryADescriptor) {
  Pair pair(SOCK_SEQPACKET);
  int pipe[2] = {-1, -1};
  ASSERT_EQ(::pipe(pipe), 0);
  UniqueFd read_end(pipe[0]), write_end(pipe[1]);
  ASSERT_TRUE(send_packet(pair.near.get(), header_of(1), patterned(8, 1), read_end.get(), in_ms(1000)).ok());
  read_end.reset();
  std::vector<std::byte> buffer;
  Packet packet;
  ASSERT_EQ(receive_packet(pair.far.get(), buffer, packet), Received::packet);
  UniqueFd passed(packet.message.fd);
  ASSERT_TRUE(passed);
  ASSERT_EQ(::write(write_end.get(), "!", 1), 1);
  char got = 0;
  EXPECT_EQ(::read(passed.get(), &got, 1), 1);
  EXPECT_EQ(got, '!');
}

TEST(PacketsOfOneHost, OfStrangersAreDropped) {
  Pair pair(SOCK_SEQPACKET);
  PacketHeader header = header_of(9);
  ASSERT_EQ(::write(pair.near.get(), "short", 5), 5);
  header.magic ^= 1;
  ASSERT_EQ(::write(pair.near.get(), &header, sizeof header), static_cast<ssize_t>(sizeof header));
  header = header_of(9);
  header.length = 5;  // and nothing comes
  ASSERT_EQ(::write(pair.near.get(), &header, sizeof header), static_cast<ssize_t>(sizeof header));
  constexpr size_t kMost = 8;
  ASSERT_TRUE(send_packet(pair.near.get(), header_of(9), patterned(kMost + 1, 1), -1, in_ms(1000)).ok());
  ASSERT_TRUE(send_packet(pair.near.get(), header_of(9), patterned(kMost, 2), -1, in_ms(1000)).ok());
  std::vector<std::byte> buffer;
  Packet packet;
  for (const char* what : {"short", "magic", "shorter than it says", "longer than wanted"})
    EXPECT_EQ(receive_packet(pair.far.get(), buffer, packet, kMost), Received::nothing) << what;
  ASSERT_EQ(receive_packet(pair.far.get(), buffer, packet, kMost), Received::packet);
  EXPECT_EQ(packet.header.tag.number, 9u);
  EXPECT_EQ(packet.message.bytes, patterned(kMost, 2));
}

TEST(PacketText, IsCutToWhatAPacketCarries) {
  EXPECT_EQ(packet_text("words").size(), 5u);
  EXPECT_EQ(packet_text(std::string(2 * Control::kMaxBytes, 'x')).size(), Control::kMaxBytes);
}

}  // namespace
}  // namespace overlace::runtime
