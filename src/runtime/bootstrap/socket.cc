#include "src/runtime/bootstrap/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "src/runtime/clock.h"

namespace overlace::runtime {
namespace {

constexpr int64_t kRetryNs = 5000000;
constexpr timeval kSendTimeout = {5, 0};
constexpr int kConnectMs = 1000;  // one attempt over TCP
// A host that lost its power or its network says nothing: it is gone after 10 + 3 * 5 s.
constexpr int kKeepIdleS = 10, kKeepIntervalS = 5, kKeepCount = 3;
constexpr int kTcpBuffer = 1 << 20;  // a packet of the control plane and more

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

bool is_tcp(const std::string& name) { return name.rfind(kTcp, 0) == 0; }

/// The address of "tcp:HOST:PORT"; HOST may be a name. Only IPv4.
base::Result<sockaddr_in> resolve(const std::string& name) {
  const size_t begin = sizeof kTcp - 1, colon = name.rfind(':');
  const std::string host = name.substr(begin, colon - begin), port = name.substr(colon + 1);
  addrinfo hints{}, *found = nullptr;
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = host == "*" ? AI_PASSIVE : 0;
  const int code = ::getaddrinfo(host == "*" ? nullptr : host.c_str(), port.c_str(), &hints, &found);
  if (code != 0 || found == nullptr)
    return base::error(Errc::bootstrap, "bootstrap: cannot find host and port of \"{}\": {}", name,
                       ::gai_strerror(code));
  sockaddr_in address{};
  std::memcpy(&address, found->ai_addr, sizeof address);
  ::freeaddrinfo(found);
  return address;
}

std::string text_of(const sockaddr_in& address) {
  char text[INET_ADDRSTRLEN] = {};
  ::inet_ntop(AF_INET, &address.sin_addr, text, sizeof text);
  return text;
}

/// Zero for a socket that is none of IPv4.
sockaddr_in own_end_of(int fd) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  sockaddr_in address{};
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &size) == 0 && storage.ss_family == AF_INET)
    std::memcpy(&address, &storage, sizeof address);
  return address;
}

void set_option(int fd, int level, int option, int value) { ::setsockopt(fd, level, option, &value, sizeof value); }

void set_tcp_options(int fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, kKeepIdleS);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, kKeepIntervalS);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, kKeepCount);
  set_option(fd, SOL_SOCKET, SO_RCVBUF, kTcpBuffer);
  set_option(fd, SOL_SOCKET, SO_SNDBUF, kTcpBuffer);
}

base::Result<UniqueFd> listen_tcp(const std::string& name, bool* in_use) {
  const base::Result<sockaddr_in> address = resolve(name);
  if (!address.ok()) return address.status();
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return failed("creation", name);
  set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  set_tcp_options(fd.get());  // what is accepted inherits them
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0) {
    if (in_use != nullptr) *in_use = errno == EADDRINUSE;
    return failed("bind", name);
  }
  if (::listen(fd.get(), SOMAXCONN) != 0) return failed("listen", name);
  return fd;
}

/// errno of connect(), 0 once connected.
int try_connect(int fd, const sockaddr_in& address) {
  const int flags = ::fcntl(fd, F_GETFL);
  ::fcntl(fd, F_SETFL, flags | O_NONBLOCK);
  int code = ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ? 0 : errno;
  if (code == EINPROGRESS) {
    pollfd entry = {fd, POLLOUT, 0};
    socklen_t size = sizeof code;
    if (::poll(&entry, 1, kConnectMs) <= 0)
      code = ETIMEDOUT;
    else
      ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &size);
  }
  ::fcntl(fd, F_SETFL, flags);
  return code;
}

base::Result<UniqueFd> connect_tcp(const std::string& name, int64_t deadline_ns) {
  while (true) {
    const base::Result<sockaddr_in> address = resolve(name);
    if (!address.ok()) return address.status();
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!fd) return failed("creation", name);
    set_tcp_options(fd.get());
    ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &kSendTimeout, sizeof kSendTimeout);
    const int code = try_connect(fd.get(), *address);
    if (code == 0) return fd;
    errno = code;
    if (now_ns() >= deadline_ns) {
      const base::Status why = failed("connect", name);
      return code == ETIMEDOUT ? base::Status(Errc::timeout, why.message()) : why;
    }
    ::poll(nullptr, 0, static_cast<int>(kRetryNs / 1000000));
  }
}

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
  if (is_tcp(name)) return listen_tcp(name, in_use);
  UniqueFd fd(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
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
  if (is_tcp(name)) return connect_tcp(name, deadline_ns);
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

bool is_open_to_strangers(int fd) {
  int domain = AF_UNIX;
  socklen_t size = sizeof domain;
  ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size);
  return domain != AF_UNIX;
}

base::Status check_peer_uid(int fd) {
  if (is_open_to_strangers(fd)) return {};
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

int port_of(int fd) { return ntohs(own_end_of(fd).sin_port); }

std::string address_of(int fd) {
  const sockaddr_in address = own_end_of(fd);
  return address.sin_family == AF_INET ? text_of(address) : "";
}

uint32_t number_of(const std::string& address) {
  in_addr number{};
  return ::inet_pton(AF_INET, address.c_str(), &number) == 1 ? number.s_addr : 0;
}

std::string text_of_number(uint32_t address) {
  sockaddr_in whole{};
  whole.sin_addr.s_addr = address;
  return text_of(whole);
}

base::Result<std::string> resolve_host(const std::string& host) {
  const base::Result<sockaddr_in> address = resolve(base::format("{}{}:0", kTcp, host));
  if (!address.ok()) return address.status();
  return text_of(*address);
}

std::vector<std::string> own_addresses(const std::string& interface) {
  std::vector<std::string> found, loopback;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {"127.0.0.1"};
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET || (entry->ifa_flags & IFF_UP) == 0)
      continue;
    if (!interface.empty() && interface != entry->ifa_name) continue;
    sockaddr_in address{};
    std::memcpy(&address, entry->ifa_addr, sizeof address);
    ((entry->ifa_flags & IFF_LOOPBACK) != 0 ? loopback : found).push_back(text_of(address));
  }
  ::freeifaddrs(list);
  return found.empty() ? loopback : found;
}

}  // namespace overlace::runtime
