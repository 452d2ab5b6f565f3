// Packets between the processes of one runtime: one SOCK_SEQPACKET connection per pair.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "overlace/bootstrap.h"
#include "src/base/status.h"
#include "src/runtime/bootstrap/socket.h"
#include "src/runtime/control.h"

namespace overlace::runtime {

enum class PacketType : uint32_t { hello, message, alive, abort, leave };

/// In front of every packet. A packet is at most Control::kMaxBytes + this.
struct PacketHeader {
  static constexpr uint32_t kMagic = 0x0B1ACE03;
  uint32_t magic = kMagic;
  PacketType type = PacketType::message;
  Tag tag{};          // message; hello: group is the generation
  int32_t value = 0;  // hello: the rank; abort: the code; leave: 1 if in good order
};

struct Packet {
  PacketHeader header;
  Message message;
};

/// Waits for room until the deadline (0: not at all). timeout; peer_lost if the other end is gone; io.
base::Status send_packet(int fd, const PacketHeader& header, std::span<const std::byte> bytes, int passed_fd,
                         int64_t deadline_ns);
/// Bytes of a text, cut to what a packet carries.
std::span<const std::byte> packet_text(const std::string& text);

enum class Received { packet, nothing, end };
/// Does not wait. `buffer` is scratch.
Received receive_packet(int fd, std::vector<std::byte>& buffer, Packet& packet);
/// The same without taking it away.
Received peek_packet(int fd, std::vector<std::byte>& buffer, Packet& packet);

/// Collective. Sockets to all other ranks by rank, none for this one; every end is authenticated by uid and
/// generation. bootstrap naming the rank that died or did not come; those that are connected already are told.
base::Result<std::vector<UniqueFd>> connect_ranks(Bootstrap& bootstrap, uint64_t generation, int64_t timeout_ms);

}  // namespace overlace::runtime
