// The engine of a team: collectives of an existing library (NCCL, MPI) behind one interface.
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

/// The engine of one team, fixed when the team is made. Counts are in elements. Buffers are any memory of the backend's
/// device, and calls are queued on `stream` in equal order on all ranks. Throws EngineError with rank, call, foreign
/// code and text. An error of send or recv inside a group ends the group: none of its calls runs, and its group_end is
/// refused.
class NetEngine {
 public:
  virtual ~NetEngine() = default;
  virtual std::string name() const = 0;     // "nccl"
  virtual std::string version() const = 0;  // "2.28.9"
  /// Gathers: recv (size * count) <- send (count) of every rank, in rank order.
  virtual void all_gather(const void* send, void* recv, size_t count, DType dtype, StreamRef stream) = 0;
  /// Reduces and scatters: recv (count) <- sum over ranks of send[rank * count ...].
  virtual void reduce_scatter(const void* send, void* recv, size_t count, DType dtype, StreamRef stream) = 0;
  /// Reduces to all: recv (count) <- sum over ranks of send (count).
  virtual void all_reduce(const void* send, void* recv, size_t count, DType dtype, StreamRef stream) = 0;
  /// Exchanges: block p of send (count each) goes to rank p; recv takes the received blocks in rank order.
  virtual void all_to_all(const void* send, void* recv, size_t count, DType dtype, StreamRef stream) = 0;
  /// Broadcasts: buffer (count) of rank `root` goes to all.
  virtual void broadcast(void* buffer, size_t count, DType dtype, int root, StreamRef stream) = 0;
  /// Reduces to one: recv (count; used on `root` only) <- sum over ranks of send. Several may stand in a group, which
  /// NCCL queues as one; other engines do them in turn.
  virtual void reduce(const void* send, void* recv, size_t count, DType dtype, int root, StreamRef stream) = 0;
  /// Sends bytes that recv on `peer` matches; pairs of one rank go between group_begin and group_end.
  virtual void send(const void* data, size_t bytes, int peer, StreamRef stream) = 0;
  virtual void recv(void* data, size_t bytes, int peer, StreamRef stream) = 0;
  /// Begins a group. `what` says in words what the group moves; an error shows it if the group misses its deadline.
  virtual void group_begin(std::string_view what = {}) = 0;
  virtual void group_end() = 0;
  virtual void abort() = 0;
  /// True if a live CUDA graph holds calls of the engine; then it cannot end, as NCCL would wait for that graph.
  virtual bool has_captures() { return false; }
  /// Leaves the resources of the engine to the process until that ends.
  virtual void forget() {}
};

#pragma GCC visibility pop

}  // namespace overlace
