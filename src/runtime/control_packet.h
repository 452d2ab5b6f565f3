// Packets between the processes of one runtime: one connection per pair, SOCK_SEQPACKET on one host, TCP between hosts.
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
  Tag tag{};            // message; hello: group is the generation
  int32_t value = 0;    // hello: the rank; abort: the code; leave: 1 if in good order
  uint32_t length = 0;  // of what follows; set by send_packet
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

/// By rank: the connection (none for this one) and the process at its end.
struct Connections {
  std::vector<UniqueFd> sockets;
  std::vector<int64_t> pids;
};
/// Collective. Every end is authenticated by generation, on one host by uid too. `hosts`: host_id() of each rank.
/// bootstrap naming the rank that died or did not come; those that are connected already are told.
base::Result<Connections> connect_ranks(Bootstrap& bootstrap, uint64_t generation, const std::vector<uint64_t>& hosts,
                                        int64_t timeout_ms);

}  // namespace overlace::runtime
