#include "src/runtime/bootstrap/socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>

#include "src/runtime/clock.h"

namespace overlace::runtime {
namespace {

constexpr int64_t kRetryNs = 5000000;
constexpr timeval kSendTimeout = {5, 0};

base::Status failed(const char* call, const std::string& name) {
  return base::error(Errc::bootstrap, "bootstrap: {} of socket \"{}\" failed: {}", call, name, std::strerror(errno));
}

struct Address {
  explicit Address(const std::string& name) {
    address.sun_family = AF_UNIX;
    // A leading zero byte: the name lives in the network namespace, not in a file system.
    const size_t length = std::min(name.size(), sizeof(address.sun_path) - 1);
    std::memcpy(address.sun_path + 1, name.data(), length);
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
  sockaddr_un address{};
  socklen_t size = 0;
};

void bound_sends(int fd) { ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &kSendTimeout, sizeof kSendTimeout); }

}  // namespace

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this == &other) return *this;
  reset();
  fd_ = std::exchange(other.fd_, -1);
  return *this;
}

void UniqueFd::reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

base::Result<UniqueFd> listen_on(const std::string& name, int type, bool* in_use) {
  if (in_use != nullptr) *in_use = false;
  UniqueFd fd(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  if (!fd) return failed("creation", name);
  const Address address(name);
  if (::bind(fd.get(), address.get(), address.size) != 0) {
    if (in_use != nullptr) *in_use = errno == EADDRINUSE;
    return failed("bind", name);
  }
  if (::listen(fd.get(), SOMAXCONN) != 0) return failed("listen", name);
  return fd;
}

base::Result<UniqueFd> connect_to(const std::string& name, int type, int64_t deadline_ns) {
  const Address address(name);
  while (true) {
    UniqueFd fd(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
    if (!fd) return failed("creation", name);
    bound_sends(fd.get());
    if (::connect(fd.get(), address.get(), address.size) == 0) return fd;
    const bool may_retry = errno == ECONNREFUSED || errno == ENOENT || errno == EAGAIN || errno == EINTR;
    if (!may_retry || now_ns() >= deadline_ns) return failed("connect", name);
    ::poll(nullptr, 0, static_cast<int>(kRetryNs / 1000000));
  }
}

base::Result<PeerCredentials> credentials_of(int fd) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return failed("SO_PEERCRED", "peer");
  return PeerCredentials{credentials.pid, credentials.uid};
}

base::Status check_peer_uid(int fd) {
  base::Result<PeerCredentials> peer = credentials_of(fd);
  if (!peer.ok()) return peer.status();
  if (peer->uid == ::geteuid()) return {};
  return base::error(Errc::bootstrap, "bootstrap: process {} of uid {} tried to join; wanted uid {}", peer->pid,
                     peer->uid, ::geteuid());
}

base::Status send_all(int fd, const void* data, size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes != 0) {
    const ssize_t sent = ::send(fd, next, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return failed("send", "peer");
    next += sent;
    bytes -= static_cast<size_t>(sent);
  }
  return {};
}

base::Status receive_all(int fd, void* data, size_t bytes, int64_t deadline_ns) {
  char* next = static_cast<char*>(data);
  while (bytes != 0) {
    const int64_t left_ns = deadline_ns - now_ns();
    if (left_ns <= 0) return base::error(Errc::timeout, "no answer before the deadline");
    pollfd entry = {fd, POLLIN, 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(std::min<int64_t>(left_ns / 1000000 + 1, 3600000)));
    if (ready <= 0) continue;
    const ssize_t got = ::recv(fd, next, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failed("receive", "peer");
    if (got == 0) return base::error(Errc::bootstrap, "the other end closed the connection");
    next += got;
    bytes -= static_cast<size_t>(got);
  }
  return {};
}

std::string random_token() {
  std::random_device device;
  std::string token;
  for (int i = 0; i < 4; ++i) token += base::format("{:08x}", device());
  return token;
}

}  // namespace overlace::runtime
