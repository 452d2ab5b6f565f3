// A packet of the control connection between two processes, on one host and on two.
// Sources: src/runtime/control_packet
#include <sys/socket.h>

#include "src/runtime/control_packet.h"
#include "tests/fuzz/fuzz.h"

namespace overlace::fuzz {

namespace {

/// The same bytes from another host: as many packets as they are, of a rank or of somebody who may send a greeting
/// only.
void run_stream(std::string_view input, size_t most) {
  int ends[2];
  FUZZ_REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  runtime::UniqueFd from(ends[0]);
  const runtime::UniqueFd to(ends[1]);
  if (::send(from.get(), input.data(), input.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) return;
  from.reset();
  static std::vector<std::byte> buffer;
  runtime::Packet packet;
  size_t bytes = 0;
  while (runtime::receive_packet(to.get(), buffer, packet, most) == runtime::Received::packet) {
    FUZZ_REQUIRE(packet.message.bytes.size() <= most && packet.message.bytes.size() == packet.header.length);
    FUZZ_REQUIRE(packet.message.fd == -1);
    bytes += sizeof packet.header + packet.message.bytes.size();
  }
  FUZZ_REQUIRE(bytes <= input.size());
}

}  // namespace

void run(std::string_view input) {
  run_stream(input, runtime::Control::kMaxBytes);
  run_stream(input, sizeof(runtime::Secret));
  int ends[2];
  FUZZ_REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
  const runtime::UniqueFd from(ends[0]), to(ends[1]);
  if (::send(from.get(), input.data(), input.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) return;
  static std::vector<std::byte> buffer;
  runtime::Packet peeked, packet;
  const runtime::Received first = runtime::peek_packet(to.get(), buffer, peeked);
  FUZZ_REQUIRE(runtime::receive_packet(to.get(), buffer, packet) == first);
  if (first != runtime::Received::packet) return;
  FUZZ_REQUIRE(packet.message.bytes.size() + sizeof(runtime::PacketHeader) == input.size());
  FUZZ_REQUIRE(packet.message.bytes.size() == packet.header.length);
  FUZZ_REQUIRE(packet.message.bytes == peeked.message.bytes && packet.message.fd == -1);
}

}  // namespace overlace::fuzz
