// Sockets by name: abstract UNIX sockets between processes of one host, TCP ("tcp:HOST:PORT") between hosts, where
// ranks meet and tell each other of failures. Payload never passes through them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "src/base/status.h"

namespace overlace::runtime {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  ~UniqueFd() { reset(); }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset();
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

struct PeerCredentials {
  int64_t pid = 0;
  uint32_t uid = 0;
};

/// `type`: SOCK_STREAM or SOCK_SEQPACKET (TCP: always the former). Close-on-exec, and accept() does not wait.
/// "tcp:*:PORT" listens on all interfaces, port 0 on any port. bootstrap with the reason; `in_use` says that the name
/// is taken.
base::Result<UniqueFd> listen_on(const std::string& name, int type, bool* in_use = nullptr);
/// Tries again until somebody listens. bootstrap with the reason; timeout where TCP got no answer at all.
base::Result<UniqueFd> connect_to(const std::string& name, int type, int64_t deadline_ns);
/// Credentials of the process at the other end, as the kernel says.
base::Result<PeerCredentials> credentials_of(int fd);
/// The other end may be any process that reaches this host: TCP, of which the kernel knows no uid.
bool is_open_to_strangers(int fd);
/// bootstrap naming both uids unless the other end runs as we do; ok for TCP, where only what it says can be checked.
base::Status check_peer_uid(int fd);

/// All bytes or an error: bootstrap (closed, or why), timeout.
base::Status send_all(int fd, const void* data, size_t bytes);
base::Status receive_all(int fd, void* data, size_t bytes, int64_t deadline_ns);

inline constexpr char kTcp[] = "tcp:";
/// That a listening TCP socket got.
int port_of(int fd);
/// IPv4 address of this end of a TCP connection; empty for other sockets.
std::string address_of(int fd);
/// The number of an IPv4 address as text, in network order; 0 for what is none. And back.
uint32_t number_of(const std::string& address);
std::string text_of_number(uint32_t address);
/// IPv4 address of a host by name or number.
base::Result<std::string> resolve_host(const std::string& host);
/// IPv4 addresses of this host's interfaces, loopback only where there is no other. `interface`: of that one only.
std::vector<std::string> own_addresses(const std::string& interface = "");

}  // namespace overlace::runtime
