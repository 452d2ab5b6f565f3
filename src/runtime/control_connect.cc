// How the processes of one runtime get a connection per pair: each connects to the ranks below it and accepts those
// above it.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "src/runtime/clock.h"
#include "src/runtime/control_packet.h"
#include "src/runtime/phases.h"

namespace overlace::runtime {
namespace {

constexpr int64_t kMaxConnectMs = 30000;
constexpr int64_t kTellNs = 700000000;  // part of the second that survivors may take beyond their deadline

std::string socket_name(uint64_t generation, int rank) {
  return base::format("overlace.control.{:016x}.{}", generation, rank);
}

/// What a rank says about itself before anybody connects: where it can be reached from other hosts.
struct Place {
  static constexpr size_t kMaxAddresses = 8, kAddressBytes = 16;
  int64_t pid = 0;
  int32_t port = 0, num_addresses = 0;
  char addresses[kMaxAddresses][kAddressBytes] = {};
};

class Connector {
 public:
  Connector(int rank, uint64_t generation, std::vector<UniqueFd> listeners, std::vector<Place> far, int64_t timeout_ms)
      : rank_(rank),
        generation_(generation),
        timeout_ms_(std::min(timeout_ms, kMaxConnectMs)),
        deadline_ns_(now_ns() + timeout_ms_ * 1000000),
        listeners_(std::move(listeners)),
        far_(std::move(far)),
        sockets_(far_.size()),
        lifelines_(sockets_.size()),
        has_spoken_(sockets_.size()) {}

  /// The ranks below have been listening since before the bootstrap's last all-gather.
  base::Status connect_below() {
    for (int peer = 0; peer < rank_; ++peer) {
      base::Result<UniqueFd> fd = connect(peer);
      if (!fd.ok()) return gone(peer);
      OVERLACE_TRY(check_peer_uid(fd->get()));
      come_past(Phase::introduce, rank_);
      OVERLACE_TRY(introduce_to(peer, std::move(*fd)));
    }
    return {};
  }

  base::Status accept_above() {
    // NOTE: a rank listens until it has all its connections. A connection to its listener that nobody answers ends when
    // the listener does: then its hello is here, or never comes.
    open_lifelines();
    while (true) {
      take_arrivals();
      for (size_t peer = above(); peer < sockets_.size(); ++peer) {
        if (sockets_[peer] || is_listening(peer)) continue;
        take_arrivals();  // what came before its listener ended
        if (!sockets_[peer]) return gone(static_cast<int>(peer));
      }
      const auto missing = std::find_if(sockets_.begin() + static_cast<std::ptrdiff_t>(above()), sockets_.end(),
                                        [](const UniqueFd& fd) { return !fd; });
      if (missing == sockets_.end()) return {};
      OVERLACE_TRY(look_at_connected());
      if (now_ns() >= deadline_ns_)
        return base::error(Errc::bootstrap, "bootstrap: rank {} of {}: rank {} did not connect within {:.1f} s", rank_,
                           sockets_.size(), missing - sockets_.begin(), static_cast<double>(timeout_ms_) * 1e-3);
      wait();
    }
  }

  /// Why this rank leaves, to those that are connected, and to those that are about to be.
  void tell(const base::Status& why) {
    if (now_ns() < deadline_ns_) {
      deadline_ns_ = std::min(deadline_ns_, now_ns() + kTellNs);
      for (int peer = 0; peer < rank_; ++peer) {
        if (sockets_[static_cast<size_t>(peer)]) continue;
        base::Result<UniqueFd> fd = connect(peer);
        if (fd.ok() && check_peer_uid(fd->get()).ok()) (void)introduce_to(peer, std::move(*fd));
      }
      open_lifelines();
      const auto may_come = [&](size_t peer) { return !sockets_[peer] && is_listening(peer); };
      for (size_t peer = above(); peer < sockets_.size(); ++peer)
        for (take_arrivals(); may_come(peer) && now_ns() < deadline_ns_; take_arrivals()) wait();
    }
    const PacketHeader header{.type = PacketType::abort, .value = static_cast<int32_t>(why.code())};
    for (const UniqueFd& fd : sockets_)
      if (fd) (void)send_packet(fd.get(), header, packet_text(why.message()), -1, deadline_ns_);
  }

  std::vector<UniqueFd> take() { return std::move(sockets_); }

 private:
  size_t above() const { return static_cast<size_t>(rank_) + 1; }
  /// To the rank's listener, without waiting for it.
  base::Result<UniqueFd> connect(int peer) const {
    const Place& place = far_[static_cast<size_t>(peer)];
    if (place.port == 0) return connect_to(socket_name(generation_, peer), SOCK_SEQPACKET, 0);
    base::Status why = base::error(Errc::bootstrap, "bootstrap: rank {} has no address", peer);
    for (int i = 0; i < place.num_addresses; ++i) {
      const std::string name = base::format("{}{}:{}", kTcp, place.addresses[i], place.port);
      base::Result<UniqueFd> fd = connect_to(name, SOCK_STREAM, 0);
      if (fd.ok()) return fd;
      why = fd.status();
    }
    return why;
  }
  base::Status gone(int peer) const {
    return base::error(Errc::bootstrap, "bootstrap: rank {} of {}: rank {} is gone", rank_, sockets_.size(), peer);
  }

  base::Status introduce_to(int peer, UniqueFd fd) {
    const PacketHeader hello{.type = PacketType::hello, .tag = {generation_, 0, 0}, .value = rank_};
    if (!send_packet(fd.get(), hello, {}, -1, deadline_ns_).ok()) return gone(peer);
    sockets_[static_cast<size_t>(peer)] = std::move(fd);
    return {};
  }

  void open_lifelines() {
    for (size_t peer = above(); peer < sockets_.size(); ++peer) {
      if (lifelines_[peer]) continue;
      if (base::Result<UniqueFd> fd = connect(static_cast<int>(peer)); fd.ok()) lifelines_[peer] = std::move(*fd);
    }
  }

  /// The rank's listener exists.
  bool is_listening(size_t peer) {
    if (!lifelines_[peer]) return false;
    Packet packet;
    if (receive_packet(lifelines_[peer].get(), buffer_, packet) == Received::end) lifelines_[peer].reset();
    return static_cast<bool>(lifelines_[peer]);
  }

  /// Everybody who has connected. Who is who says the first packet, which may come much later: a rank can lose its
  /// processor between the two.
  void take_arrivals() {
    for (const UniqueFd& listener : listeners_) {
      pollfd entry = {listener.get(), POLLIN, 0};
      while (::poll(&entry, 1, 0) > 0) {
        UniqueFd fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!fd) break;
        if (check_peer_uid(fd.get()).ok()) unknown_.push_back(std::move(fd));
      }
    }
    for (UniqueFd& fd : unknown_) {
      Packet hello;
      const Received received = receive_packet(fd.get(), buffer_, hello);
      if (received == Received::packet) welcome(std::move(fd), hello.header);
      if (received == Received::end) fd.reset();
    }
    std::erase_if(unknown_, [](const UniqueFd& fd) { return !fd; });
  }

  /// Strangers are sent away.
  void welcome(UniqueFd fd, const PacketHeader& hello) {
    const int peer = hello.value;
    if (hello.type != PacketType::hello || hello.tag.group != generation_ || peer <= rank_ ||
        static_cast<size_t>(peer) >= sockets_.size() || sockets_[static_cast<size_t>(peer)])
      return;
    sockets_[static_cast<size_t>(peer)] = std::move(fd);
  }

  /// A rank that is connected may fail while others are still being waited for, and says why. Its first ordinary packet
  /// says that it has all its connections, and stays where it is.
  base::Status look_at_connected() {
    for (size_t peer = 0; peer < sockets_.size(); ++peer) {
      if (!sockets_[peer] || has_spoken_[peer]) continue;
      Packet packet;
      const Received received = peek_packet(sockets_[peer].get(), buffer_, packet);
      if (received == Received::end) return gone(static_cast<int>(peer));
      if (received == Received::nothing) continue;
      has_spoken_[peer] = true;
      if (packet.header.type != PacketType::abort) continue;
      const Bytes& text = packet.message.bytes;
      const std::string why(reinterpret_cast<const char*>(text.data()), text.size());
      const auto code = static_cast<Errc>(packet.header.value);
      if (code == Errc::bootstrap || code == Errc::peer_lost) return {code, why};
      return base::error(Errc::aborted, "aborted by rank {}: {}", peer, why);
    }
    return {};
  }

  void wait() const {
    std::vector<pollfd> entries;
    const auto add = [&](const UniqueFd& fd) { entries.push_back({fd.get(), POLLIN, 0}); };
    for (const UniqueFd& fd : listeners_) add(fd);
    for (const UniqueFd& fd : unknown_) add(fd);
    for (size_t peer = 0; peer < sockets_.size(); ++peer) {
      if (sockets_[peer] && !has_spoken_[peer]) add(sockets_[peer]);
      if (!sockets_[peer] && lifelines_[peer]) add(lifelines_[peer]);
    }
    const int64_t left_ms = std::max<int64_t>((deadline_ns_ - now_ns()) / 1000000 + 1, 0);
    ::poll(entries.data(), entries.size(), static_cast<int>(left_ms));
  }

  const int rank_;
  const uint64_t generation_;
  const int64_t timeout_ms_;
  int64_t deadline_ns_;
  const std::vector<UniqueFd> listeners_;
  const std::vector<Place> far_;     // by rank; port 0: on this host
  std::vector<UniqueFd> sockets_;    // by rank
  std::vector<UniqueFd> lifelines_;  // by rank: to the listeners of the ranks above
  std::vector<UniqueFd> unknown_;    // have not said who they are: ranks, lifelines of the ranks below, strangers
  std::vector<bool> has_spoken_;     // by rank
  std::vector<std::byte> buffer_;
};

/// A door for ranks of other hosts; the listener joins the others.
Place place_behind(UniqueFd door, std::vector<UniqueFd>& listeners) {
  Place place{.pid = ::getpid(), .port = port_of(door.get())};
  for (const std::string& address : own_addresses()) {
    if (place.num_addresses == Place::kMaxAddresses) break;
    std::strncpy(place.addresses[place.num_addresses++], address.c_str(), Place::kAddressBytes - 1);
  }
  listeners.push_back(std::move(door));
  return place;
}

}  // namespace

base::Result<Connections> connect_ranks(Bootstrap& bootstrap, uint64_t generation, const std::vector<uint64_t>& hosts,
                                        int64_t timeout_ms) {
  const int rank = bootstrap.rank();
  const uint64_t own_host = hosts[static_cast<size_t>(rank)];
  std::vector<UniqueFd> listeners;
  base::Result<UniqueFd> listener = listen_on(socket_name(generation, rank), SOCK_SEQPACKET);
  if (listener.ok()) listeners.push_back(std::move(*listener));
  base::Status failure = listener.status();
  Place mine{.pid = ::getpid()};
  if (failure.ok() && std::count(hosts.begin(), hosts.end(), own_host) != static_cast<std::ptrdiff_t>(hosts.size())) {
    base::Result<UniqueFd> door = listen_on(base::format("{}*:0", kTcp), SOCK_STREAM);
    failure = door.status();
    if (door.ok()) mine = place_behind(std::move(*door), listeners);
  }
  Bytes said(sizeof mine + failure.message().size());
  std::memcpy(said.data(), &mine, sizeof mine);
  std::memcpy(said.data() + sizeof mine, failure.message().data(), failure.message().size());
  const std::vector<Bytes> all = bootstrap.allgather(said, timeout_ms);
  Connections connections;
  std::vector<Place> far;
  for (size_t r = 0; r < all.size(); ++r) {
    Place place;
    if (all[r].size() < sizeof place) return base::error(Errc::bootstrap, "rank {} does not say where it is", r);
    std::memcpy(&place, all[r].data(), sizeof place);
    if (all[r].size() > sizeof place)
      return base::error(
          Errc::bootstrap, "rank {}: {}", r,
          std::string(reinterpret_cast<const char*>(all[r].data()) + sizeof place, all[r].size() - sizeof place));
    connections.pids.push_back(place.pid);
    if (hosts[r] == own_host) place.port = 0;
    far.push_back(place);
  }
  Connector connector(rank, generation, std::move(listeners), std::move(far), timeout_ms);
  try {
    come_past(Phase::connect, rank);
    base::Status status = connector.connect_below();
    if (status.ok()) come_past(Phase::accept, rank);
    if (status.ok()) status = connector.accept_above();
    if (!status.ok()) {
      connector.tell(status);
      return status;
    }
    connections.sockets = connector.take();
    return connections;
  } catch (...) {
    connector.tell(base::status_of_current_exception());
    throw;
  }
}

}  // namespace overlace::runtime
