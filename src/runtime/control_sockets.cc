// Control plane of ranks that are processes: one SOCK_SEQPACKET connection per pair, a thread that receives.
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <thread>

#include "src/runtime/clock.h"
#include "src/runtime/control_packet.h"
#include "src/runtime/lives.h"
#include "src/runtime/mailbox.h"

namespace overlace::runtime {
namespace {

constexpr int64_t kNewsNs = 400000000;  // longest that news for one peer may delay what this rank does

class SocketControl final : public MailboxControl {
 public:
  SocketControl(int rank, uint64_t generation, Connections connections, int64_t timeout_ms)
      : MailboxControl(rank, static_cast<int>(connections.sockets.size()), generation),
        timeout_ns_(timeout_ms * 1000000),
        sockets_(std::move(connections.sockets)),
        stop_(::eventfd(0, EFD_CLOEXEC)) {
    for (size_t peer = 0; peer < sockets_.size(); ++peer) {
      set_peer(static_cast<int>(peer), connections.pids[peer], RankState::starting);
      if (sockets_[peer]) add_descriptor(sockets_[peer].get());
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
    const base::Status status = send_packet(socket(to), {.tag = tag}, bytes, fd, now_ns() + timeout_ns_);
    // Whoever waits for this peer's answer is told why it is gone.
    if (status.ok() || status.code() == Errc::peer_lost) return {};
    return base::error(status.code(), "rank {} cannot reach rank {} (pid {}, last state {}): {}", rank(), to, pid(to),
                       peer_state(to), status.message());
  }

  void spread(const AbortCause& cause) override {
    fail(cause, false);
    send_to_all({.type = PacketType::abort, .value = static_cast<int32_t>(cause.code)}, cause.message);
  }
  void set_alive() override {
    send_to_all({.type = PacketType::alive}, "");
    start_failing();
  }

  void set_closing() override { send_to_all({.type = PacketType::closing}, ""); }

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

  /// Peers that cannot be told are gone, and the watcher sees that, or have stopped.
  void send_to_all(const PacketHeader& header, const std::string& text) {
    std::vector<int> full;
    for (const UniqueFd& fd : sockets_)
      if (fd && send_packet(fd.get(), header, packet_text(text), -1, 0).code() == Errc::timeout)
        full.push_back(fd.get());
    const int64_t deadline_ns = now_ns() + kNewsNs;
    for (const int fd : full) (void)send_packet(fd, header, packet_text(text), -1, deadline_ns);
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
    const Received received = receive_packet(fd, buffer, packet);
    if (received == Received::end) {
      peer_gone(peer, "its process ended");
      return false;
    }
    if (received == Received::nothing) return true;
    const std::string text(reinterpret_cast<const char*>(packet.message.bytes.data()), packet.message.bytes.size());
    switch (packet.header.type) {
      case PacketType::message:
        arrived(peer, packet.header.tag, std::move(packet.message));
        break;
      case PacketType::alive:
        set_peer(peer, 0, RankState::alive);
        break;
      case PacketType::closing:
        set_peer(peer, 0, RankState::closing);
        break;
      case PacketType::abort:
        peer_aborted(peer, {errc_of(packet.header.value), text});
        break;
      case PacketType::leave:
        peer_left(peer, packet.header.value == 1);
        break;
      default:
        peer_gone(peer, base::format("it sent a packet of type {}, which no rank sends",
                                     static_cast<uint32_t>(packet.header.type)));
        return false;
    }
    return true;
  }

  const int64_t timeout_ns_;
  const std::vector<UniqueFd> sockets_;  // by rank, none for this one
  const UniqueFd stop_;
  std::atomic<bool> has_left_{false};
  std::thread watcher_;
};

}  // namespace

base::Result<std::unique_ptr<Control>> open_socket_control(Bootstrap& bootstrap, const Meeting& meeting,
                                                           int64_t timeout_ms) {
  base::Result<Connections> connections = connect_ranks(bootstrap, meeting, timeout_ms);
  if (!connections.ok()) return connections.status();
  return std::unique_ptr<Control>(
      std::make_unique<SocketControl>(bootstrap.rank(), meeting.generation, std::move(*connections), timeout_ms));
}

}  // namespace overlace::runtime
