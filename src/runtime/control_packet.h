// Packets between the processes of one runtime: one connection per pair, SOCK_SEQPACKET on one host, TCP between hosts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "overlace/bootstrap.h"
#include "src/base/status.h"
#include "src/runtime/bootstrap/secret.h"
#include "src/runtime/bootstrap/socket.h"
#include "src/runtime/control.h"

namespace overlace::runtime {

/// lifeline: a hello on a connection over which nothing else is said; its end says that the other process has ended.
enum class PacketType : uint32_t { hello, message, alive, abort, leave, lifeline, closing };

/// In front of every packet. A packet is at most Control::kMaxBytes + this.
struct PacketHeader {
  static constexpr uint32_t kMagic = 0x0B1ACE03;
  uint32_t magic = kMagic;
  PacketType type = PacketType::message;
  Tag tag{};            // message; hello, lifeline: group is the generation, and the secret follows
  int32_t value = 0;    // hello, lifeline: the rank; abort: the code; leave: 1 if in good order
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
/// Does not wait. `buffer` is scratch. A packet with more than `most` bytes behind its header ends a stream and is
/// dropped elsewhere; so is one that is not as long as it says.
Received receive_packet(int fd, std::vector<std::byte>& buffer, Packet& packet, size_t most = Control::kMaxBytes);
/// Receives as receive_packet() does, without taking the packet away.
Received peek_packet(int fd, std::vector<std::byte>& buffer, Packet& packet);

/// By rank: the connection (none for this one) and the process at its end.
struct Connections {
  std::vector<UniqueFd> sockets;
  std::vector<int64_t> pids;
};
/// What the ranks know of each other before they connect.
struct Meeting {
  uint64_t generation = 0;          // names sockets, which every process of a host can see
  Secret secret{};                  // drawn by rank 0 for this runtime; only its ranks know it
  std::vector<uint64_t> hosts;      // host_id() of each rank
  std::vector<std::string> others;  // addresses of the other hosts
};

/// Collective. Every end is authenticated by the secret, on one host by uid too. bootstrap naming the rank that died or
/// did not come; those that are connected already are told. Over TCP kMaxGuests may be connected beside ranks without
/// having said who they are, each for kGuestMs.
inline constexpr size_t kMaxGuests = 64;
inline constexpr int64_t kGuestMs = 10000;
base::Result<Connections> connect_ranks(Bootstrap& bootstrap, const Meeting& meeting, int64_t timeout_ms);

/// The code of a number that came from elsewhere; internal for one that is no code.
Errc errc_of(int32_t number);

}  // namespace overlace::runtime
