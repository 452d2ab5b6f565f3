// How the processes of one runtime get a connection per pair: each connects to the ranks below it and accepts those
// above it.
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "src/base/env.h"
#include "src/runtime/bootstrap/doors.h"
#include "src/runtime/clock.h"
#include "src/runtime/control_packet.h"
#include "src/runtime/phases.h"

namespace overlace::runtime {
namespace {

constexpr int64_t kMaxConnectMs = 30000;
constexpr size_t kBacklog = 8192;       // more than a listener holds
constexpr int64_t kGuestTickMs = 500;   // how late a deadline of a guest may be seen
constexpr int64_t kTellNs = 700000000;  // part of the second that survivors may take beyond their deadline

std::string socket_name(uint64_t generation, int rank) {
  return base::format("overlace.control.{:016x}.{}", generation, rank);
}

/// Where a rank listens for ranks of other hosts.
struct Door {
  char address[16] = {};
  int32_t port = 0;
};

/// What a rank says about itself before anybody connects: where it can be reached from other hosts.
struct Place {
  static constexpr int32_t kMaxDoors = 8;
  int64_t pid = 0;
  int32_t num_doors = 0;  // 0: on this host only
  Door doors[kMaxDoors] = {};
};

/// Who has connected and has not said who that is.
struct Guest {
  UniqueFd fd;
  int64_t deadline_ns = 0;  // 0: of this host and of this uid; it has the time that the ranks have
};

class Connector {
 public:
  Connector(int rank, const Meeting& meeting, std::vector<UniqueFd> listeners, std::vector<Place> far,
            int64_t timeout_ms)
      : rank_(rank),
        generation_(meeting.generation),
        secret_(meeting.secret),
        timeout_ms_(std::min(timeout_ms, kMaxConnectMs)),
        deadline_ns_(now_ns() + timeout_ms_ * 1000000),
        listeners_(std::move(listeners)),
        far_(std::move(far)),
        sockets_(far_.size()),
        lifelines_(sockets_.size()),
        visitors_(sockets_.size()),
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
  /// To the rank's listener, without waiting for it to come: one that refuses is gone. Where strangers have filled its
  /// queue there is no answer until it takes them out.
  base::Result<UniqueFd> connect(int peer) const {
    const Place& place = far_[static_cast<size_t>(peer)];
    if (place.num_doors == 0) return connect_to(socket_name(generation_, peer), SOCK_SEQPACKET, 0);
    base::Status why;
    bool is_silent = true;
    while (is_silent && (why.ok() || now_ns() < deadline_ns_)) {
      is_silent = false;
      for (const Door& door : std::span(place.doors, static_cast<size_t>(place.num_doors))) {
        const std::string name = base::format("{}{}:{}", kTcp, door.address, door.port);
        base::Result<UniqueFd> fd = connect_to(name, SOCK_STREAM, 0);
        if (fd.ok()) return fd;
        why = fd.status();
        is_silent = is_silent || why.code() == Errc::timeout;
      }
    }
    return why;
  }
  base::Status gone(int peer) const {
    return base::error(Errc::bootstrap, "bootstrap: rank {} of {}: rank {} is gone", rank_, sockets_.size(), peer);
  }

  base::Status greet(int fd, PacketType type) const {
    return send_packet(fd, {.type = type, .tag = {generation_, 0, 0}, .value = rank_}, secret_, -1, deadline_ns_);
  }

  base::Status introduce_to(int peer, UniqueFd fd) {
    if (!greet(fd.get(), PacketType::hello).ok()) return gone(peer);
    sockets_[static_cast<size_t>(peer)] = std::move(fd);
    return {};
  }

  void open_lifelines() {
    for (size_t peer = above(); peer < sockets_.size(); ++peer) {
      if (lifelines_[peer]) continue;
      base::Result<UniqueFd> fd = connect(static_cast<int>(peer));
      const bool is_ours = fd.ok() && check_peer_uid(fd->get()).ok();  // before it is shown the secret
      if (is_ours && greet(fd->get(), PacketType::lifeline).ok()) lifelines_[peer] = std::move(*fd);
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
    // As many as can have been waiting when this began.
    for (size_t taken = 0; taken < kBacklog && take_some(); taken += kMaxGuests) continue;
  }

  /// False where nobody was waiting.
  bool take_some() {
    bool has_taken = false;
    for (const UniqueFd& listener : listeners_) {
      for (size_t i = 0; i < kMaxGuests; ++i) {
        UniqueFd fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!fd) break;
        has_taken = true;
        if (!check_peer_uid(fd.get()).ok()) continue;
        const int64_t deadline_ns = is_open_to_strangers(fd.get()) ? now_ns() + kGuestMs * 1000000 : 0;
        guests_.push_back({std::move(fd), deadline_ns});
      }
    }
    for (Guest& guest : guests_) {
      Packet hello;
      const Received received = receive_packet(guest.fd.get(), buffer_, hello, sizeof secret_);
      const bool is_late = guest.deadline_ns != 0 && now_ns() >= guest.deadline_ns;
      if (received == Received::packet) welcome(std::move(guest.fd), hello);
      if (received == Received::end || is_late) guest.fd.reset();
    }
    std::erase_if(guests_, [](const Guest& guest) { return !guest.fd; });
    send_strangers_away();
    return has_taken;
  }

  /// The oldest of those who may be anybody, where there are too many.
  void send_strangers_away() {
    const auto may_be_anybody = [](const Guest& guest) { return guest.deadline_ns != 0; };
    auto count = std::count_if(guests_.begin(), guests_.end(), may_be_anybody);
    const auto most = static_cast<std::ptrdiff_t>(kMaxGuests + 2 * sockets_.size());
    std::erase_if(guests_, [&](const Guest& guest) { return may_be_anybody(guest) && count-- > most; });
  }

  /// Strangers are sent away, and so is who claims to be a rank that cannot come or has come.
  void welcome(UniqueFd fd, const Packet& packet) {
    const PacketHeader& hello = packet.header;
    if (!is_equal_secret(packet.message.bytes, secret_) || hello.tag.group != generation_ || hello.value < 0 ||
        static_cast<size_t>(hello.value) >= sockets_.size())
      return;
    const auto peer = static_cast<size_t>(hello.value);
    if (hello.type == PacketType::hello && hello.value > rank_ && !sockets_[peer]) sockets_[peer] = std::move(fd);
    if (hello.type == PacketType::lifeline && hello.value < rank_ && !visitors_[peer]) visitors_[peer] = std::move(fd);
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
      const Errc code = errc_of(packet.header.value);
      if (code == Errc::bootstrap || code == Errc::peer_lost) return {code, why};
      return base::error(Errc::aborted, "aborted by rank {}: {}", peer, why);
    }
    return {};
  }

  void wait() const {
    std::vector<pollfd> entries;
    const auto add = [&](const UniqueFd& fd) { entries.push_back({fd.get(), POLLIN, 0}); };
    for (const UniqueFd& fd : listeners_) add(fd);
    for (const Guest& guest : guests_) add(guest.fd);
    for (size_t peer = 0; peer < sockets_.size(); ++peer) {
      if (sockets_[peer] && !has_spoken_[peer]) add(sockets_[peer]);
      if (!sockets_[peer] && lifelines_[peer]) add(lifelines_[peer]);
    }
    int64_t left_ms = std::max<int64_t>((deadline_ns_ - now_ns()) / 1000000 + 1, 0);
    if (!guests_.empty()) left_ms = std::min(left_ms, kGuestTickMs);
    ::poll(entries.data(), entries.size(), static_cast<int>(left_ms));
  }

  const int rank_;
  const uint64_t generation_;
  const Secret secret_;
  const int64_t timeout_ms_;
  int64_t deadline_ns_;
  const std::vector<UniqueFd> listeners_;
  const std::vector<Place> far_;     // by rank; no doors: on this host
  std::vector<UniqueFd> sockets_;    // by rank
  std::vector<UniqueFd> lifelines_;  // by rank: to the listeners of the ranks above
  std::vector<UniqueFd> visitors_;   // by rank: lifelines of the ranks below, which end with this object
  std::vector<Guest> guests_;        // ranks, lifelines, strangers
  std::vector<bool> has_spoken_;     // by rank
  std::vector<std::byte> buffer_;
};

/// Listens for ranks of other hosts, on no more addresses than they need; the listeners join the others.
base::Status open_doors(const Meeting& meeting, const std::string& met, Place& place,
                        std::vector<UniqueFd>& listeners) {
  const std::string& listen = base::env().listen;
  base::Result<std::vector<std::string>> addresses = addresses_of_doors(listen, met, meeting.others);
  if (!addresses.ok()) return addresses.status();
  for (const std::string& address : *addresses) {
    base::Result<UniqueFd> listener = listen_on(base::format("{}{}:0", kTcp, address), SOCK_STREAM);
    if (!listener.ok()) return listener.status();
    for (const std::string& reached : address == "*" ? own_addresses() : std::vector<std::string>{address}) {
      if (place.num_doors == Place::kMaxDoors) break;
      Door& door = place.doors[place.num_doors++];
      std::strncpy(door.address, reached.c_str(), sizeof door.address - 1);
      door.port = port_of(listener->get());
    }
    listeners.push_back(std::move(*listener));
  }
  return {};
}

/// What rank `r` says of itself, as far as it can be true.
base::Result<Place> read_place(const Bytes& said, size_t r) {
  Place place;
  if (said.size() < sizeof place) return base::error(Errc::bootstrap, "rank {} does not say where it is", r);
  std::memcpy(&place, said.data(), sizeof place);
  if (said.size() > sizeof place)
    return base::error(
        Errc::bootstrap, "rank {}: {}", r,
        std::string(reinterpret_cast<const char*>(said.data()) + sizeof place, said.size() - sizeof place));
  if (place.num_doors < 0 || place.num_doors > Place::kMaxDoors)
    return base::error(Errc::bootstrap, "rank {} says that it listens on {} addresses, wanted 0 to {}", r,
                       place.num_doors, Place::kMaxDoors);
  for (const Door& door : std::span(place.doors, static_cast<size_t>(place.num_doors)))
    if (door.address[sizeof door.address - 1] != '\0' || number_of(door.address) == 0 || door.port < 1 ||
        door.port > 65535)
      return base::error(Errc::bootstrap, "rank {} says that it listens on what is no address (port {})", r, door.port);
  return place;
}

}  // namespace

base::Result<Connections> connect_ranks(Bootstrap& bootstrap, const Meeting& meeting, int64_t timeout_ms) {
  const int rank = bootstrap.rank();
  const std::vector<uint64_t>& hosts = meeting.hosts;
  const uint64_t own_host = hosts[static_cast<size_t>(rank)];
  std::vector<UniqueFd> listeners;
  base::Result<UniqueFd> listener = listen_on(socket_name(meeting.generation, rank), SOCK_SEQPACKET);
  if (listener.ok()) listeners.push_back(std::move(*listener));
  base::Status failure = listener.status();
  Place mine{.pid = ::getpid()};
  if (failure.ok() && std::count(hosts.begin(), hosts.end(), own_host) != static_cast<std::ptrdiff_t>(hosts.size()))
    failure = open_doors(meeting, bootstrap.address(), mine, listeners);
  Bytes said(sizeof mine + failure.message().size());
  std::memcpy(said.data(), &mine, sizeof mine);
  std::memcpy(said.data() + sizeof mine, failure.message().data(), failure.message().size());
  const std::vector<Bytes> all = bootstrap.allgather(said, timeout_ms);
  Connections connections;
  std::vector<Place> far;
  for (size_t r = 0; r < all.size(); ++r) {
    base::Result<Place> place = read_place(all[r], r);
    if (!place.ok()) return place.status();
    connections.pids.push_back(place->pid);
    if (hosts[r] == own_host) place->num_doors = 0;
    if (hosts[r] != own_host && place->num_doors == 0)
      return base::error(Errc::bootstrap, "rank {} is on another host and says no address", r);
    far.push_back(*place);
  }
  Connector connector(rank, meeting, std::move(listeners), std::move(far), timeout_ms);
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
