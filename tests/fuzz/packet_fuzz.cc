// A packet of the control connection between two processes.
// Sources: src/runtime/control_packet
#include <sys/socket.h>

#include "src/runtime/control_packet.h"
#include "tests/fuzz/fuzz.h"

namespace overlace::fuzz {

void run(std::string_view input) {
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
  FUZZ_REQUIRE(packet.message.bytes == peeked.message.bytes && packet.message.fd == -1);
}

}  // namespace overlace::fuzz
