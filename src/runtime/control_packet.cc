#include "src/runtime/control_packet.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "src/runtime/clock.h"

namespace overlace::runtime {
namespace {

constexpr size_t kMaxPacket = Control::kMaxBytes + sizeof(PacketHeader);

/// The descriptor that came along, -1 if none.
int passed_descriptor(msghdr& message) {
  int fd = -1;
  if (const cmsghdr* rights = CMSG_FIRSTHDR(&message);
      rights != nullptr && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS)
    std::memcpy(&fd, CMSG_DATA(rights), sizeof fd);
  return fd;
}

Received receive(int fd, int flags, std::vector<std::byte>& buffer, Packet& packet) {
  buffer.resize(kMaxPacket);
  iovec part = {buffer.data(), buffer.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = ::recvmsg(fd, &message, flags | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  // A reset says that the other end closed with unread packets of ours; what it sent before is still in the queue.
  if (got < 0) return errno == EAGAIN || errno == EINTR || errno == ECONNRESET ? Received::nothing : Received::end;
  if (got == 0) return Received::end;
  UniqueFd passed(passed_descriptor(message));
  if (static_cast<size_t>(got) < sizeof(PacketHeader)) return Received::nothing;
  std::memcpy(&packet.header, buffer.data(), sizeof(PacketHeader));
  if (packet.header.magic != PacketHeader::kMagic) return Received::nothing;
  packet.message.bytes.assign(buffer.begin() + sizeof(PacketHeader), buffer.begin() + got);
  packet.message.fd = passed.release();
  return Received::packet;
}

}  // namespace

base::Status send_packet(int fd, const PacketHeader& header, std::span<const std::byte> bytes, int passed_fd,
                         int64_t deadline_ns) {
  iovec parts[2] = {{const_cast<PacketHeader*>(&header), sizeof header},
                    {const_cast<std::byte*>(bytes.data()), bytes.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (passed_fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &passed_fd, sizeof passed_fd);
  }
  while (true) {
    if (::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return {};
    if (errno == EINTR) continue;
    if (errno == EPIPE || errno == ECONNRESET)
      return base::error(Errc::peer_lost, "cannot send: {}", std::strerror(errno));
    if (errno != EAGAIN) return base::error(Errc::io, "cannot send: {}", std::strerror(errno));
    const int64_t left_ns = deadline_ns - now_ns();
    if (left_ns <= 0) return base::error(Errc::timeout, "it takes nothing");
    pollfd entry = {fd, POLLOUT, 0};
    ::poll(&entry, 1, static_cast<int>(std::min<int64_t>(left_ns / 1000000 + 1, 1000)));
  }
}

std::span<const std::byte> packet_text(const std::string& text) {
  return std::as_bytes(std::span(text.data(), std::min(text.size(), Control::kMaxBytes)));
}

Received receive_packet(int fd, std::vector<std::byte>& buffer, Packet& packet) {
  return receive(fd, 0, buffer, packet);
}

Received peek_packet(int fd, std::vector<std::byte>& buffer, Packet& packet) {
  const Received received = receive(fd, MSG_PEEK, buffer, packet);
  // A look at a packet duplicates its descriptor.
  if (received == Received::packet && packet.message.fd >= 0) ::close(std::exchange(packet.message.fd, -1));
  return received;
}

}  // namespace overlace::runtime
