#include "src/runtime/control_packet.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <mutex>
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

bool is_stream(int fd) {
  int type = SOCK_SEQPACKET;
  socklen_t size = sizeof type;
  ::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size);
  return type == SOCK_STREAM;
}

/// Whole packets of a byte stream: what is not complete stays where it is, and poll() is told how much to wait for.
Received receive_stream(int fd, int flags, std::vector<std::byte>& buffer, Packet& packet, size_t most) {
  buffer.resize(kMaxPacket);
  const auto look = [&](size_t bytes, int how) { return ::recv(fd, buffer.data(), bytes, how | MSG_DONTWAIT); };
  size_t wanted = sizeof(PacketHeader);
  ssize_t got = look(wanted, MSG_PEEK);
  if (got == static_cast<ssize_t>(wanted)) {
    std::memcpy(&packet.header, buffer.data(), sizeof(PacketHeader));
    if (packet.header.magic != PacketHeader::kMagic || packet.header.length > most) return Received::end;
    wanted += packet.header.length;
    got = look(wanted, MSG_PEEK);
  }
  if (got < 0) return errno == EAGAIN || errno == EINTR || errno == ECONNRESET ? Received::nothing : Received::end;
  if (got == 0) return Received::end;
  const bool is_whole = got == static_cast<ssize_t>(wanted);
  const int low = is_whole ? 1 : static_cast<int>(wanted);
  ::setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low);
  if (!is_whole) {
    pollfd entry = {fd, POLLRDHUP, 0};
    return ::poll(&entry, 1, 0) > 0 ? Received::end : Received::nothing;  // the rest never comes
  }
  packet.message.bytes.assign(buffer.begin() + sizeof(PacketHeader), buffer.begin() + got);
  packet.message.fd = -1;
  if ((flags & MSG_PEEK) == 0) (void)look(wanted, 0);
  return Received::packet;
}

Received receive(int fd, int flags, std::vector<std::byte>& buffer, Packet& packet, size_t most) {
  if (is_stream(fd)) return receive_stream(fd, flags, buffer, packet, most);
  buffer.resize(kMaxPacket);
  iovec part = {buffer.data(), buffer.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_LEN(sizeof(int));  // room for one: the kernel closes what else came
  const ssize_t got = ::recvmsg(fd, &message, flags | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  // A reset says that the other end closed with unread packets of ours; what it sent before is still in the queue.
  if (got < 0) return errno == EAGAIN || errno == EINTR || errno == ECONNRESET ? Received::nothing : Received::end;
  if (got == 0) return Received::end;
  UniqueFd passed(passed_descriptor(message));
  if (static_cast<size_t>(got) < sizeof(PacketHeader)) return Received::nothing;
  std::memcpy(&packet.header, buffer.data(), sizeof(PacketHeader));
  const size_t said = sizeof(PacketHeader) + packet.header.length;
  if (packet.header.magic != PacketHeader::kMagic || packet.header.length > most || said != static_cast<size_t>(got))
    return Received::nothing;
  packet.message.bytes.assign(buffer.begin() + sizeof(PacketHeader), buffer.begin() + got);
  packet.message.fd = passed.release();
  return Received::packet;
}

void skip(iovec (&parts)[2], size_t bytes) {
  for (iovec& part : parts) {
    const size_t n = std::min(part.iov_len, bytes);
    part.iov_base = static_cast<char*>(part.iov_base) + n;
    part.iov_len -= n;
    bytes -= n;
  }
}

}  // namespace

base::Status send_packet(int fd, const PacketHeader& given, std::span<const std::byte> bytes, int passed_fd,
                         int64_t deadline_ns) {
  PacketHeader header = given;
  header.length = static_cast<uint32_t>(bytes.size());
  iovec parts[2] = {{&header, sizeof header}, {const_cast<std::byte*>(bytes.data()), bytes.size()}};
  // A packet of a byte stream can be taken in parts: nobody else's may come in between.
  static std::mutex locks[64];
  const bool is_divisible = is_stream(fd);
  std::unique_lock<std::mutex> lock;
  if (is_divisible) lock = std::unique_lock(locks[static_cast<size_t>(fd) % std::size(locks)]);
  size_t left = sizeof header + bytes.size();
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
    const ssize_t sent = ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0 && (!is_divisible || static_cast<size_t>(sent) == left)) return {};
    if (sent > 0) {
      left -= static_cast<size_t>(sent);
      skip(parts, static_cast<size_t>(sent));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno == EPIPE || errno == ECONNRESET)
      return base::error(Errc::peer_lost, "cannot send: {}", std::strerror(errno));
    if (errno != EAGAIN) return base::error(Errc::io, "cannot send: {}", std::strerror(errno));
    const int64_t left_ns = deadline_ns - now_ns();
    if (left_ns <= 0) {
      // Half a packet would be taken for the beginning of the next one.
      if (left != sizeof header + bytes.size()) ::shutdown(fd, SHUT_RDWR);
      return base::error(Errc::timeout, "it takes nothing");
    }
    pollfd entry = {fd, POLLOUT, 0};
    ::poll(&entry, 1, static_cast<int>(std::min<int64_t>(left_ns / 1000000 + 1, 1000)));
  }
}

std::span<const std::byte> packet_text(const std::string& text) {
  return std::as_bytes(std::span(text.data(), std::min(text.size(), Control::kMaxBytes)));
}

Received receive_packet(int fd, std::vector<std::byte>& buffer, Packet& packet, size_t most) {
  return receive(fd, 0, buffer, packet, most);
}

Received peek_packet(int fd, std::vector<std::byte>& buffer, Packet& packet) {
  const Received received = receive(fd, MSG_PEEK, buffer, packet, Control::kMaxBytes);
  // A look at a packet duplicates its descriptor.
  if (received == Received::packet && packet.message.fd >= 0) ::close(std::exchange(packet.message.fd, -1));
  return received;
}

Errc errc_of(int32_t number) {
  return number > 0 && number <= static_cast<int32_t>(Errc::internal) ? static_cast<Errc>(number) : Errc::internal;
}

}  // namespace overlace::runtime
