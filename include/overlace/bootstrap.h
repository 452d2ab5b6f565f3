// The bootstrap: how ranks find each other before there is a team, by an all-gather of bytes and a barrier, each with a
// deadline.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace overlace {

#pragma GCC visibility push(default)  // exported by liboverlace.so

using Bytes = std::vector<std::byte>;

class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Returns the bytes of all ranks in rank order; lengths may differ. Collective. Throws PeerLost (`bootstrap`) with
  /// the missing rank at the deadline, or when a rank has ended.
  virtual std::vector<Bytes> allgather(std::span<const std::byte> mine, int64_t timeout_ms) = 0;
  virtual void barrier(int64_t timeout_ms) { (void)allgather({}, timeout_ms); }
  /// Returns a name that all ranks of a job share and no other job or generation has; sockets bear it.
  virtual std::string token() const = 0;
  /// True if ranks are threads of this process, which share one address space.
  virtual bool in_process() const { return false; }
  /// Returns the IPv4 address of this host by which the ranks met, or an empty text if they did not meet over TCP.
  virtual std::string address() const { return {}; }
};

/// Returns `n` bootstraps for n threads of this process; element r belongs to rank r.
std::vector<std::unique_ptr<Bootstrap>> thread_bootstraps(int n);

/// Returns a bootstrap whose all-gather the caller supplies (by a torch process group, say).
std::unique_ptr<Bootstrap> callback_bootstrap(int rank, int size, std::string token,
                                              std::function<std::vector<Bytes>(std::span<const std::byte>)> allgather);

/// Returns the bootstrap that the variables of `overlace run`'s launcher (one host), torchrun, mpirun or srun describe;
/// a single rank if none is set. Throws PeerLost (`bootstrap`) with the accepted ways when the variables contradict
/// each other.
std::unique_ptr<Bootstrap> environment_bootstrap();

#pragma GCC visibility pop

}  // namespace overlace
