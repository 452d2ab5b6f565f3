#include "src/runtime/bootstrap/relay.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "src/runtime/bootstrap/secret.h"
#include "src/runtime/clock.h"

namespace overlace::runtime {

enum class FrameType : uint32_t { hello, welcome, give, result, failure };

/// In front of every message, both ways.
struct RelayServer::Frame {
  static constexpr uint32_t kMagic = 0x0B1ACE02;
  uint32_t magic = kMagic;
  FrameType type = FrameType::hello;
  uint64_t number = 0;  // of the all-gather; hello: the rank
  int64_t value = 0;    // give: timeout in ms; hello: the size
  uint64_t length = 0;  // of what follows
};

namespace {

constexpr uint64_t kMaxFrame = uint64_t{64} << 20;
constexpr uint64_t kMaxHello = RelayServer::kGreetingBytes - sizeof(RelayServer::Frame);
constexpr uint64_t kMaxWords = 4096;  // of an answer, before a client has been welcomed
constexpr int64_t kMaxTimeoutMs = 86400000;
constexpr int kServeMs = 50;
constexpr int64_t kFallbackNs = 800000000;

std::string list_text(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + base::format("{}", rank);
  return text;
}

template <class Frame>
base::Status send_frame(int fd, Frame frame, const void* payload, size_t bytes) {
  frame.length = bytes;
  OVERLACE_TRY(send_all(fd, &frame, sizeof frame));
  return bytes == 0 ? base::Status() : send_all(fd, payload, bytes);
}

void watch(int epoll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

}  // namespace

base::Result<std::unique_ptr<RelayServer>> RelayServer::open(const std::string& name, const std::string& token,
                                                             int size, bool* in_use) {
  base::Result<UniqueFd> listener = listen_on(name, SOCK_STREAM, in_use);
  if (!listener.ok()) return listener.status();
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return base::error(Errc::bootstrap, "bootstrap: epoll failed: {}", std::strerror(errno));
  watch(epoll.get(), listener->get());
  return std::unique_ptr<RelayServer>(new RelayServer(std::move(*listener), std::move(epoll), token, size));
}

RelayServer::RelayServer(UniqueFd listener, UniqueFd epoll, std::string token, int size)
    : listener_(std::move(listener)),
      epoll_(std::move(epoll)),
      token_(std::move(token)),
      size_(static_cast<size_t>(size)) {}

RelayServer::~RelayServer() = default;

void RelayServer::serve() {
  epoll_event events[16];
  const int count = ::epoll_wait(epoll_.get(), events, 16, 0);
  for (int i = 0; i < count; ++i) {
    if (events[i].data.fd == listener_.get()) {
      for (size_t taken = 0; taken < kMaxStrangers && accept_one(); ++taken) continue;
      continue;
    }
    const auto it = clients_.find(events[i].data.fd);
    if (it != clients_.end() && !read_from(*it->second)) drop(it->first);
  }
  send_late_strangers_away();
  keep_deadlines();
}

void RelayServer::drop(int fd) {
  const auto it = clients_.find(fd);
  const std::unique_ptr<Client> client = std::move(it->second);
  clients_.erase(it);
  if (client->rank >= 0) lose(client->rank, client->pid);
}

size_t RelayServer::num_strangers() const {
  return static_cast<size_t>(
      std::count_if(clients_.begin(), clients_.end(), [](const auto& entry) { return entry.second->rank < 0; }));
}

/// Only those who may be anybody: on one host the kernel has said whose processes they are.
void RelayServer::send_late_strangers_away() {
  const int64_t now = now_ns();
  size_t count = 0;
  int oldest = -1;
  int64_t earliest = 0;
  for (auto it = clients_.begin(); it != clients_.end();) {
    const auto& [fd, client] = *it++;
    if (client->rank >= 0 || client->deadline_ns == 0) continue;
    if (now >= client->deadline_ns) {
      drop(fd);
      continue;
    }
    ++count;
    if (oldest < 0 || client->deadline_ns < earliest) oldest = fd, earliest = client->deadline_ns;
  }
  // A rank that had to go comes again.
  if (count > kMaxStrangers + size_) drop(oldest);
}

void RelayServer::keep_deadlines() {
  const int64_t now = now_ns();
  for (auto it = rounds_.begin(); it != rounds_.end();) {
    auto& [number, round] = *it++;
    if (!round.failure.empty() || now < round.deadline_ns) continue;
    std::vector<int> missing;
    for (size_t r = 0; r < size_; ++r)
      if (!round.given[r]) missing.push_back(static_cast<int>(r));
    fail(number, round,
         base::format("rank {} is missing after {:.1f} s", list_text(missing),
                      static_cast<double>(round.timeout_ms) * 1e-3));
  }
}

/// False if nobody is waiting.
bool RelayServer::accept_one() {
  UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!fd) return false;
  const timeval bound = {5, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &bound, sizeof bound);
  if (const base::Status status = check_peer_uid(fd.get()); !status.ok()) {
    ++num_rejected_;
    (void)send_frame(fd.get(), Frame{.type = FrameType::failure}, status.message().data(), status.message().size());
    return true;
  }
  auto client = std::make_unique<Client>();
  if (base::Result<PeerCredentials> peer = credentials_of(fd.get()); peer.ok()) client->pid = peer->pid;
  if (is_open_to_strangers(fd.get())) client->deadline_ns = now_ns() + kGreetingMs * 1000000;
  client->fd = std::move(fd);
  const int number = client->fd.get();
  watch(epoll_.get(), number);
  Client& entered = *clients_.emplace(number, std::move(client)).first->second;
  // A rank that had to wait for its turn has said its greeting already: it leaves the places of strangers at once.
  if (!read_from(entered)) drop(number);
  send_late_strangers_away();
  return true;
}

/// False once the client is of no more use.
bool RelayServer::read_from(Client& client) {
  char buffer[65536];
  // A stranger's greeting and not a byte more.
  const size_t room = client.rank >= 0 ? sizeof buffer : kGreetingBytes - client.input.size();
  const ssize_t got = ::recv(client.fd.get(), buffer, room, MSG_DONTWAIT);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  if (got == 0) return false;
  client.input.insert(client.input.end(), buffer, buffer + got);
  size_t used = 0;
  while (client.input.size() - used >= sizeof(Frame)) {
    Frame frame;
    std::memcpy(&frame, client.input.data() + used, sizeof frame);
    if (frame.magic != Frame::kMagic || frame.length > (client.rank < 0 ? kMaxHello : kMaxFrame)) return false;
    if (client.input.size() - used < sizeof frame + frame.length) break;
    if (!handle(client, frame, client.input.data() + used + sizeof frame)) return false;
    used += sizeof frame + frame.length;
  }
  client.input.erase(client.input.begin(), client.input.begin() + static_cast<std::ptrdiff_t>(used));
  return true;
}

bool RelayServer::handle(Client& client, const Frame& frame, const char* payload) {
  if (client.rank < 0) return frame.type == FrameType::hello && welcome(client, frame, payload);
  if (frame.type != FrameType::give || frame.value < 0 || frame.value > kMaxTimeoutMs) return false;
  give(client, frame, payload);
  return true;
}

bool RelayServer::welcome(Client& client, const Frame& frame, const char* payload) {
  const int rank = static_cast<int>(frame.number);
  std::string why;
  if (!is_equal_secret(std::string_view(payload, frame.length), token_))
    why = "bootstrap: wrong token; wanted the one of this job's launcher";
  else if (frame.value != static_cast<int64_t>(size_))
    why = base::format("bootstrap: rank {} says that there are {} ranks, wanted {}", rank, frame.value, size_);
  else if (frame.number >= size_)
    why = base::format("bootstrap: rank is {}, wanted 0 to {}", frame.number, size_ - 1);
  else if (const Client* other = client_of(rank); other != nullptr)
    why = base::format("bootstrap: rank {} is taken by process {}; another job uses the same name", rank, other->pid);
  if (!why.empty()) {
    ++num_rejected_;
    (void)send_frame(client.fd.get(), Frame{.type = FrameType::failure}, why.data(), why.size());
    return false;
  }
  client.rank = rank;
  gone_.erase(rank);
  return send_frame(client.fd.get(), Frame{.type = FrameType::welcome}, nullptr, 0).ok();
}

void RelayServer::give(Client& client, const Frame& frame, const char* payload) {
  Round& round = rounds_[frame.number];
  if (round.given.empty()) {
    round.given.resize(size_);
    round.timeout_ms = frame.value;
    round.deadline_ns = now_ns() + frame.value * 1000000;
  }
  std::optional<Bytes>& entry = round.given[static_cast<size_t>(client.rank)];
  if (entry) return;
  const auto* bytes = reinterpret_cast<const std::byte*>(payload);
  entry.emplace(bytes, bytes + frame.length);
  ++round.count;
  if (!round.failure.empty()) {
    const std::string why = round.failure;
    (void)send_frame(client.fd.get(), Frame{.type = FrameType::failure, .number = frame.number}, why.data(),
                     why.size());
    return;
  }
  if (static_cast<size_t>(round.count) == size_) return finish(frame.number, round);
  for (const auto& [rank, pid] : gone_)
    if (!round.given[static_cast<size_t>(rank)])
      return fail(frame.number, round, base::format("rank {} (pid {}) is gone", rank, pid));
}

void RelayServer::finish(uint64_t number, Round& round) {
  std::vector<char> all;
  for (const std::optional<Bytes>& entry : round.given) {
    const uint64_t length = entry->size();
    const auto* header = reinterpret_cast<const char*>(&length);
    all.insert(all.end(), header, header + sizeof length);
    const auto* data = reinterpret_cast<const char*>(entry->data());
    all.insert(all.end(), data, data + length);
  }
  for (auto& [fd, client] : clients_)
    if (client->rank >= 0)
      (void)send_frame(fd, Frame{.type = FrameType::result, .number = number}, all.data(), all.size());
  rounds_.erase(number);
}

/// Tells those who wait; the others learn it when they come.
void RelayServer::fail(uint64_t number, Round& round, const std::string& why) {
  round.failure = why;
  for (auto& [fd, client] : clients_)
    if (client->rank >= 0 && round.given[static_cast<size_t>(client->rank)])
      (void)send_frame(fd, Frame{.type = FrameType::failure, .number = number}, why.data(), why.size());
}

void RelayServer::lose(int rank, int64_t pid) {
  gone_[rank] = pid;
  for (auto& [number, round] : rounds_)
    if (round.failure.empty() && !round.given[static_cast<size_t>(rank)])
      fail(number, round, base::format("rank {} (pid {}) is gone", rank, pid));
}

RelayServer::Client* RelayServer::client_of(int rank) {
  for (auto& [fd, client] : clients_)
    if (client->rank == rank) return client.get();
  return nullptr;
}

RelayThread::RelayThread(std::unique_ptr<RelayServer> server)
    : server_(std::move(server)), stop_(::eventfd(0, EFD_CLOEXEC)) {
  thread_ = std::thread([this] {
    pollfd entries[2] = {{server_->fd(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    while (true) {
      ::poll(entries, 2, kServeMs);
      if ((entries[1].revents & POLLIN) != 0) return;
      server_->serve();
    }
  });
}

RelayThread::~RelayThread() {
  const uint64_t one = 1;
  if (::write(stop_.get(), &one, sizeof one) != sizeof one) std::terminate();  // an eventfd takes 2^64 - 2 of them
  thread_.join();
}

namespace {

class RelayBootstrap final : public Bootstrap {
 public:
  using Frame = RelayServer::Frame;
  RelayBootstrap(UniqueFd fd, std::string name, int rank, int size, std::string server)
      : fd_(std::move(fd)), name_(std::move(name)), rank_(rank), size_(size), server_(std::move(server)) {
    if (const base::Result<PeerCredentials> peer = credentials_of(fd_.get()); peer.ok())
      server_ += base::format(" (pid {})", peer->pid);
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string token() const override { return name_; }
  std::string address() const override { return address_of(fd_.get()); }

  base::Status join(const std::string& token, int64_t deadline_ns) {
    OVERLACE_TRY(send_frame(fd_.get(), Frame{.number = static_cast<uint64_t>(rank_), .value = size_}, token.data(),
                            token.size()));
    base::Result<std::vector<char>> answer = receive(FrameType::welcome, 0, kMaxWords, deadline_ns);
    return answer.ok() ? base::Status() : answer.status();
  }

  std::vector<Bytes> allgather(std::span<const std::byte> mine, int64_t timeout_ms) override {
    const uint64_t number = next_++;
    // The server keeps the deadline and knows who is missing; ours is the fallback.
    const int64_t deadline_ns = now_ns() + timeout_ms * 1000000 + kFallbackNs;
    send_frame(fd_.get(), Frame{.type = FrameType::give, .number = number, .value = timeout_ms}, mine.data(),
               mine.size())
        .or_throw();
    base::Result<std::vector<char>> answer =
        receive(FrameType::result, number, kMaxFrame * static_cast<uint64_t>(size_), deadline_ns);
    if (!answer.ok())
      throw PeerLost(Errc::bootstrap,
                     base::format("bootstrap: rank {} of {}: {}", rank_, size_, answer.status().message()));
    return parse(*answer);
  }

 private:
  base::Status take(void* data, size_t bytes, int64_t deadline_ns) {
    const base::Status status = receive_all(fd_.get(), data, bytes, deadline_ns);
    return status.ok() ? status
                       : base::error(status.code(), "{}, which serves the ranks: {}", server_, status.message());
  }

  base::Result<std::vector<char>> receive(FrameType wanted, uint64_t number, uint64_t most, int64_t deadline_ns) {
    while (true) {
      Frame frame;
      OVERLACE_TRY(take(&frame, sizeof frame, deadline_ns));
      if (frame.magic != Frame::kMagic || frame.length > most)
        return base::error(Errc::bootstrap,
                           "the server speaks another protocol: {:#x} and {} bytes, wanted {:#x} and at most {} bytes",
                           frame.magic, frame.length, Frame::kMagic, most);
      std::vector<char> payload(frame.length);
      OVERLACE_TRY(take(payload.data(), payload.size(), deadline_ns));
      if (frame.number != number) continue;  // of an all-gather that we gave up
      if (frame.type == wanted) return payload;
      return base::Status(Errc::bootstrap, std::string(payload.begin(), payload.end()));
    }
  }

  std::vector<Bytes> parse(const std::vector<char>& text) const {
    std::vector<Bytes> all;
    size_t at = 0;
    for (int r = 0; r < size_; ++r) {
      uint64_t length = 0;
      if (text.size() - at < sizeof length) break;
      std::memcpy(&length, text.data() + at, sizeof length);
      at += sizeof length;
      if (length > text.size() - at) break;
      const auto* data = reinterpret_cast<const std::byte*>(text.data() + at);
      all.emplace_back(data, data + length);
      at += length;
    }
    if (all.size() != static_cast<size_t>(size_))
      throw PeerLost(Errc::bootstrap,
                     base::format("bootstrap: the server sent {} entries, wanted {}", all.size(), size_));
    return all;
  }

  const UniqueFd fd_;
  const std::string name_;
  const int rank_, size_;
  std::string server_;
  uint64_t next_ = 1;
};

}  // namespace

base::Result<std::unique_ptr<Bootstrap>> relay_bootstrap(const std::string& name, const std::string& token, int rank,
                                                         int size, int64_t timeout_ms, const std::string& server) {
  const int64_t deadline_ns = now_ns() + timeout_ms * 1000000;
  base::Result<UniqueFd> fd = connect_to(name, SOCK_STREAM, deadline_ns);
  if (!fd.ok())
    return base::error(Errc::bootstrap,
                       "bootstrap: rank {} of {} found nobody after {:.1f} s ({}). Ranks on several hosts need a "
                       "callback (a torch process group) or MPI",
                       rank, size, static_cast<double>(timeout_ms) * 1e-3, fd.status().message());
  return join_relay(std::move(*fd), name, token, rank, size, deadline_ns, server);
}

base::Result<std::unique_ptr<Bootstrap>> join_relay(UniqueFd fd, const std::string& name, const std::string& token,
                                                    int rank, int size, int64_t deadline_ns,
                                                    const std::string& server) {
  OVERLACE_TRY(check_peer_uid(fd.get()));
  auto bootstrap = std::make_unique<RelayBootstrap>(std::move(fd), name, rank, size, server);
  OVERLACE_TRY(bootstrap->join(token, deadline_ns));
  return std::unique_ptr<Bootstrap>(std::move(bootstrap));
}

}  // namespace overlace::runtime
