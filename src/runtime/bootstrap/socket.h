// Abstract UNIX sockets: the only kind that the runtime opens itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

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

/// `type`: SOCK_STREAM or SOCK_SEQPACKET. Close-on-exec. bootstrap with the reason; `in_use` says that the name is
/// taken.
base::Result<UniqueFd> listen_on(const std::string& name, int type, bool* in_use = nullptr);
/// Tries again until somebody listens.
base::Result<UniqueFd> connect_to(const std::string& name, int type, int64_t deadline_ns);
/// Of the process at the other end, as the kernel says.
base::Result<PeerCredentials> credentials_of(int fd);
/// peer_lost naming both uids unless the other end runs as we do.
base::Status check_peer_uid(int fd);

/// All bytes or an error: bootstrap (closed, or why), timeout.
base::Status send_all(int fd, const void* data, size_t bytes);
base::Status receive_all(int fd, void* data, size_t bytes, int64_t deadline_ns);

/// 32 random hexadecimal digits.
std::string random_token();

}  // namespace overlace::runtime
