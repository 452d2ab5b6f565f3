// Collectives of an existing library (NCCL, MPI) behind one interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "overlace/dtype_pod.h"
#include "overlace/stream.h"

namespace overlace {

#pragma GCC visibility push(default)  // exported by liboverlace.so

/// The engine of one team, fixed at the team's creation. Buffers are any memory of the backend's device; calls are
/// queued on `stream` in the same order on all ranks. Throws EngineError with rank, call, foreign code and text. An
/// error of send or recv inside a group ends the group: nothing of it runs, and its group_end is refused.
class NetEngine {
 public:
  virtual ~NetEngine() = default;
  virtual std::string name() const = 0;     // "nccl"
  virtual std::string version() const = 0;  // "2.28.9"
  /// recv (size * count) <- send (count) of every rank, in rank order.
  virtual void all_gather(const void* send, void* recv, size_t count, DType dtype, StreamRef stream) = 0;
  /// recv (count) <- sum over ranks of send[rank * count ...].
  virtual void reduce_scatter(const void* send, void* recv, size_t count, DType dtype, StreamRef stream) = 0;
  virtual void all_reduce(const void* send, void* recv, size_t count, DType dtype, StreamRef stream) = 0;
  /// Block p of send (count each) goes to rank p.
  virtual void all_to_all(const void* send, void* recv, size_t count, DType dtype, StreamRef stream) = 0;
  /// buffer (count) of `root` goes to all.
  virtual void broadcast(void* buffer, size_t count, DType dtype, int root, StreamRef stream) = 0;
  /// recv (count; used on `root` only) <- sum over ranks of send.
  virtual void reduce(const void* send, void* recv, size_t count, DType dtype, int root, StreamRef stream) = 0;
  /// Matched by recv on `peer`; pairs of one rank go between group_begin and group_end.
  virtual void send(const void* data, size_t bytes, int peer, StreamRef stream) = 0;
  virtual void recv(void* data, size_t bytes, int peer, StreamRef stream) = 0;
  /// `what`: what the group moves, in words; an error says it where the group misses its deadline.
  virtual void group_begin(std::string_view what = {}) = 0;
  virtual void group_end() = 0;
  virtual void abort() = 0;
  /// True if a CUDA graph that is alive holds calls: then the engine cannot end (NCCL would wait for that graph).
  virtual bool has_captures() { return false; }
  /// Leaves what the engine has to the process, until that ends.
  virtual void forget() {}
};

#pragma GCC visibility pop

}  // namespace overlace
