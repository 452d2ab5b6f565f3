// Control plane of ranks that are processes: one SOCK_SEQPACKET connection per pair, a thread that receives.
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "src/runtime/bootstrap/socket.h"
#include "src/runtime/clock.h"
#include "src/runtime/lives.h"
#include "src/runtime/mailbox.h"

namespace overlace::runtime {
namespace {

enum class PacketType : uint32_t { hello, message, alive, abort, leave };

/// In front of every packet. A packet is at most kMaxBytes + this.
struct Header {
  static constexpr uint32_t kMagic = 0x0B1ACE03;
  uint32_t magic = kMagic;
  PacketType type = PacketType::message;
  Tag tag{};          // message; hello: group is the generation
  int32_t value = 0;  // hello: the rank; abort: the code; leave: 1 if in good order
};

constexpr size_t kMaxPacket = Control::kMaxBytes + sizeof(Header);
constexpr int64_t kMaxConnectMs = 30000;
constexpr int kProbeMs = 20, kHelloMs = 1000;

base::Status send_packet(int fd, const Header& header, std::span<const std::byte> bytes, int passed_fd) {
  iovec parts[2] = {{const_cast<Header*>(&header), sizeof header},
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
    const ssize_t sent = ::sendmsg(fd, &message, MSG_NOSIGNAL);
    if (sent >= 0) return {};
    if (errno != EINTR) return base::error(Errc::peer_lost, "cannot send: {}", std::strerror(errno));
  }
}

struct Packet {
  Header header;
  Message message;
};

enum class Received { packet, nothing, end };

Received receive_packet(int fd, int flags, std::vector<std::byte>& buffer, Packet& packet) {
  buffer.resize(kMaxPacket);
  iovec part = {buffer.data(), buffer.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = ::recvmsg(fd, &message, flags | MSG_CMSG_CLOEXEC);
  // A reset says that the other end closed with unread packets of ours; what it sent before is still in the queue.
  if (got < 0) return errno == EAGAIN || errno == EINTR || errno == ECONNRESET ? Received::nothing : Received::end;
  packet.message.fd = -1;
  if (const cmsghdr* rights = CMSG_FIRSTHDR(&message);
      rights != nullptr && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS)
    std::memcpy(&packet.message.fd, CMSG_DATA(rights), sizeof(int));
  if (got == 0) return Received::end;
  if (static_cast<size_t>(got) < sizeof(Header)) return Received::nothing;
  std::memcpy(&packet.header, buffer.data(), sizeof(Header));
  packet.message.bytes.assign(buffer.begin() + sizeof(Header), buffer.begin() + got);
  return packet.header.magic == Header::kMagic ? Received::packet : Received::nothing;
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), std::min(text.size(), Control::kMaxBytes)));
}

class SocketControl final : public MailboxControl {
 public:
  SocketControl(int rank, int size, uint64_t generation, std::vector<UniqueFd> sockets)
      : MailboxControl(rank, size, generation), sockets_(std::move(sockets)), stop_(::eventfd(0, EFD_CLOEXEC)) {
    for (int peer = 0; peer < size; ++peer) {
      const int fd = socket(peer);
      if (fd < 0) {
        set_peer(peer, ::getpid(), RankState::starting);
        continue;
      }
      if (base::Result<PeerCredentials> other = credentials_of(fd); other.ok())
        set_peer(peer, other->pid, RankState::starting);
      add_descriptor(fd);
    }
    add_descriptor(stop_.get());
    watcher_ = std::thread([this] { watch(); });
  }

  ~SocketControl() override {
    leave(false);
    for (const UniqueFd& fd : sockets_)
      if (fd) remove_descriptor(fd.get());
    remove_descriptor(stop_.get());
  }
  bool in_process() const override { return false; }

  base::Status send(int to, const Tag& tag, std::span<const std::byte> bytes, int fd) override {
    if (bytes.size() > kMaxBytes)
      return base::invalid_argument("control message: {} bytes, wanted at most {}", bytes.size(), kMaxBytes);
    const base::Status status = send_packet(socket(to), {.tag = tag}, bytes, fd);
    if (status.ok()) return status;
    return base::error(Errc::peer_lost, "lost rank {} (pid {}, last state {}): {}", to, pid(to), peer_state(to),
                       status.message());
  }

  void spread(const AbortCause& cause) override {
    fail(cause, false);
    send_to_all({.type = PacketType::abort, .value = static_cast<int32_t>(cause.code)}, cause.message);
  }
  void set_alive() override { send_to_all({.type = PacketType::alive}, ""); }

  void leave(bool clean) override {
    if (has_left_.exchange(true)) return;
    send_to_all({.type = PacketType::leave, .value = clean ? 1 : 0}, "");
    const uint64_t one = 1;
    if (::write(stop_.get(), &one, sizeof one) != sizeof one) std::terminate();  // an eventfd takes 2^64 - 2 of them
    watcher_.join();
    for (const UniqueFd& fd : sockets_)
      if (fd) ::shutdown(fd.get(), SHUT_RDWR);
  }

 private:
  int socket(int peer) const { return sockets_[static_cast<size_t>(peer)].get(); }

  /// Peers that cannot be told are gone, and the watcher sees that.
  void send_to_all(const Header& header, const std::string& text) {
    for (const UniqueFd& fd : sockets_)
      if (fd) (void)send_packet(fd.get(), header, bytes_of(text), -1);
  }

  void watch() {
    std::vector<pollfd> entries;
    for (const UniqueFd& fd : sockets_) entries.push_back({fd.get(), POLLIN, 0});  // negative ones are skipped
    entries.push_back({stop_.get(), POLLIN, 0});
    std::vector<std::byte> buffer;
    while (true) {
      if (::poll(entries.data(), entries.size(), -1) < 0 && errno != EINTR) return;
      for (size_t peer = 0; peer + 1 < entries.size(); ++peer)
        if (entries[peer].fd >= 0 && entries[peer].revents != 0 &&
            !receive_from(static_cast<int>(peer), entries[peer].fd, buffer))
          entries[peer].fd = -1;
      if (entries.back().revents != 0) return;
    }
  }

  /// False at the end of the connection.
  bool receive_from(int peer, int fd, std::vector<std::byte>& buffer) {
    Packet packet;
    const Received received = receive_packet(fd, MSG_DONTWAIT, buffer, packet);
    if (received == Received::end) {
      peer_gone(peer, "its process ended");
      return false;
    }
    if (received == Received::nothing) return true;
    const std::string text(reinterpret_cast<const char*>(packet.message.bytes.data()), packet.message.bytes.size());
    switch (packet.header.type) {
      case PacketType::hello:
        break;
      case PacketType::message:
        arrived(peer, packet.header.tag, std::move(packet.message));
        break;
      case PacketType::alive:
        set_peer(peer, 0, RankState::alive);
        break;
      case PacketType::abort:
        peer_aborted(peer, {static_cast<Errc>(packet.header.value), text});
        break;
      case PacketType::leave:
        peer_left(peer, packet.header.value == 1);
        break;
    }
    return true;
  }

  const std::vector<UniqueFd> sockets_;  // by rank, none for this one
  const UniqueFd stop_;
  std::atomic<bool> has_left_{false};
  std::thread watcher_;
};

std::string socket_name(uint64_t generation, int rank) {
  return base::format("overlace.control.{:016x}.{}", generation, rank);
}

base::Status gone(int rank, size_t size, int peer) {
  return base::error(Errc::bootstrap, "bootstrap: rank {} of {}: rank {} is gone", rank, size, peer);
}

/// Takes one connection; false if there is none. Strangers are sent away; the ranks still come.
bool accept_one(int listener, int rank, uint64_t generation, int wait_ms, std::vector<UniqueFd>& sockets) {
  pollfd entry = {listener, POLLIN, 0};
  if (::poll(&entry, 1, wait_ms) <= 0) return false;
  UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  if (!fd || !check_peer_uid(fd.get()).ok()) return true;
  std::vector<std::byte> buffer;
  Packet hello;
  pollfd first = {fd.get(), POLLIN, 0};
  if (::poll(&first, 1, kHelloMs) <= 0 || receive_packet(fd.get(), MSG_DONTWAIT, buffer, hello) != Received::packet)
    return true;
  const int peer = hello.header.value;
  if (hello.header.type != PacketType::hello || hello.header.tag.group != generation || peer <= rank ||
      static_cast<size_t>(peer) >= sockets.size() || sockets[static_cast<size_t>(peer)])
    return true;
  sockets[static_cast<size_t>(peer)] = std::move(fd);
  return true;
}

/// Waits for the connections of the ranks above this one. Each of them listens until it has all its connections, so one
/// that neither has come nor listens is dead.
base::Status accept_peers(int listener, int rank, uint64_t generation, int64_t deadline_ns,
                          std::vector<UniqueFd>& sockets) {
  for (size_t peer = static_cast<size_t>(rank) + 1; peer < sockets.size();) {
    if (sockets[peer]) {
      ++peer;
      continue;
    }
    if (now_ns() >= deadline_ns)
      return base::error(Errc::bootstrap, "bootstrap: rank {} of {}: rank {} did not connect in time", rank,
                         sockets.size(), peer);
    const bool is_listening = connect_to(socket_name(generation, static_cast<int>(peer)), SOCK_SEQPACKET, 0).ok();
    if (is_listening) {
      accept_one(listener, rank, generation, kProbeMs, sockets);
      continue;
    }
    while (accept_one(listener, rank, generation, 0, sockets)) continue;
    if (!sockets[peer]) return gone(rank, sockets.size(), static_cast<int>(peer));
  }
  return {};
}

/// To the ranks below this one; all of them listen.
base::Status connect_peers(int rank, uint64_t generation, std::vector<UniqueFd>& sockets) {
  for (int peer = 0; peer < rank; ++peer) {
    base::Result<UniqueFd> fd = connect_to(socket_name(generation, peer), SOCK_SEQPACKET, 0);
    if (!fd.ok()) return gone(rank, sockets.size(), peer);
    OVERLACE_TRY(check_peer_uid(fd->get()));
    const Header hello{.type = PacketType::hello, .tag = {generation, 0, 0}, .value = rank};
    OVERLACE_TRY(send_packet(fd->get(), hello, {}, -1));
    sockets[static_cast<size_t>(peer)] = std::move(*fd);
  }
  return {};
}

}  // namespace

base::Result<std::unique_ptr<Control>> open_socket_control(Bootstrap& bootstrap, uint64_t generation,
                                                           int64_t timeout_ms) {
  const int rank = bootstrap.rank(), size = bootstrap.size();
  base::Result<UniqueFd> listener = listen_on(socket_name(generation, rank), SOCK_SEQPACKET);
  const std::string failure = listener.ok() ? "" : listener.status().message();
  const std::vector<Bytes> all = bootstrap.allgather(bytes_of(failure), timeout_ms);
  for (size_t r = 0; r < all.size(); ++r)
    if (!all[r].empty())
      return base::error(Errc::bootstrap, "rank {}: {}", r,
                         std::string(reinterpret_cast<const char*>(all[r].data()), all[r].size()));
  std::vector<UniqueFd> sockets(static_cast<size_t>(size));
  const int64_t deadline_ns = now_ns() + std::min(timeout_ms, kMaxConnectMs) * 1000000;
  OVERLACE_TRY(connect_peers(rank, generation, sockets));
  OVERLACE_TRY(accept_peers(listener->get(), rank, generation, deadline_ns, sockets));
  return std::unique_ptr<Control>(std::make_unique<SocketControl>(rank, size, generation, std::move(sockets)));
}

}  // namespace overlace::runtime
