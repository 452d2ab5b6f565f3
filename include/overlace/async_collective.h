// All-reduces that go on while the caller does something else: launched now, waited for later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "overlace/bootstrap.h"
#include "overlace/dtype_pod.h"
#include "overlace/errc_pod.h"
#include "overlace/runtime.h"
#include "overlace/stream.h"

namespace overlace {

#pragma GCC visibility push(default)  // exported by liboverlace.so

/// Elements that share a scale where they travel as int8.
inline constexpr size_t kInt8Block = 256;

/// What one all-reduce moves. The memory belongs to the ticket until that is complete or failed.
struct Bucket {
  void* data = nullptr;
  size_t count = 0;
  DType dtype = DType::fp32;
  std::string what;           // "round 7, bucket 3": named where the all-reduce fails
  float* residual = nullptr;  // fp32 data travel as int8, a scale for kInt8Block: `count` values that rounding left out
                              // before, which are added, and then those that it leaves out now
};

/// Bytes of a bucket where it travels: 65/64 of a byte an element with a residual.
inline size_t wire_bytes(const Bucket& bucket) {
  if (bucket.residual == nullptr) return bucket.count * dtype_bytes(bucket.dtype);
  return bucket.count + (bucket.count + kInt8Block - 1) / kInt8Block * sizeof(float);
}

/// An all-reduce under way. Numbers count from 1 in the order of launches.
struct Ticket {
  uint64_t number = 0;
};

enum class TicketState { pending, complete, failed };

/// When a ticket was launched, taken up, joined by the last rank, and complete; ns of CLOCK_MONOTONIC, 0: not yet.
struct TicketTimes {
  int64_t launched_ns = 0, begun_ns = 0, met_ns = 0, complete_ns = 0;
  int last_rank = -1;      // who came last; -1: not known
  int64_t link_bytes = 0;  // that an emulated link has carried from this rank, by its own count; 0 without one
};

struct CollectiveCaps {
  bool stream_ordered = false;    // order_after does not block the host
  bool progresses_alone = false;  // tickets complete although nobody polls
  bool deterministic = false;     // the same bits on all ranks and in every run
  bool takes_residuals = false;   // buckets that travel as int8
  bool frees_on_failure = false;  // nobody touches the memory of a ticket any more once wait() has thrown
};

/// All-reduces over one team: each of its ranks makes equal calls in one order, from one thread. An object of this
/// class does not know what it moves nor why. Completion of a ticket happens before whatever is ordered after it.
class AsyncCollective {
 public:
  virtual ~AsyncCollective() = default;
  virtual std::string name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual CollectiveCaps caps() const = 0;
  /// Sums over all ranks, in place, what `bucket` holds once `stream` has come here. For a mean, whoever fills the
  /// bucket divides before. Does not block. Throws what an earlier ticket failed with, Unsupported for a residual
  /// without CollectiveCaps::takes_residuals, InvalidArgument for one beside data that are not fp32.
  virtual Ticket all_reduce(const Bucket& bucket, StreamRef stream) = 0;
  /// Does not block.
  virtual TicketState poll(Ticket ticket) = 0;
  /// Work queued on `stream` from now on sees the sum. A stream of the CPU: blocks like wait with the own deadline.
  virtual void order_after(Ticket ticket, StreamRef stream) = 0;
  /// Blocks until the sum is there. Throws Timeout after `timeout_ms` with who is missing, or what the ticket failed
  /// with; in both cases all tickets are failed from then on. Their memory: CollectiveCaps::frees_on_failure.
  virtual void wait(Ticket ticket, int64_t timeout_ms) = 0;
  virtual TicketTimes times(Ticket ticket) = 0;
  /// Any thread. All open tickets fail with this, here and at the other ranks. Does not block.
  virtual void abort(Errc code, std::string_view why) = 0;
};

struct HostCollectiveOptions {
  RuntimeOptions runtime;       // backend cpu; an emulated link is here
  int64_t meet_timeout_ms = 0;  // how far one rank may be behind another; 0: the runtime's deadline
};

/// Memory of the host. A worker thread opens, owns and alone uses a runtime of backend `cpu` over the ranks of
/// `bootstrap`, which only that thread uses and which must outlive what is returned. Tickets complete in order.
/// Collective. Throws what opening the runtime throws, Unsupported for another backend or no engine. Destroying it is
/// collective too unless it failed: it waits for the others, with the runtime's deadline.
std::unique_ptr<AsyncCollective> open_host_collective(Bootstrap& bootstrap, const HostCollectiveOptions& options);

struct Pace {
  double bytes_per_s = 0;  // of what a ring would move: 2 (n - 1) / n of a bucket; 0: no limit
  double latency_s = 0;    // of each ticket
};

/// Returns `inner` over a link that takes its time: one ticket after the other, from when all ranks have come.
/// Emulated: whatever is measured must say so. `inner` must outlive it.
std::unique_ptr<AsyncCollective> paced_collective(AsyncCollective& inner, const Pace& pace);

struct CollectiveFault {
  enum class Kind { delay, fail, never, flip } kind = Kind::delay;
  uint64_t ticket = 0;  // number of the ticket that it strikes
  int64_t delay_ms = 0;
  size_t bit = 0;  // of the sum, that is flipped
};

/// Returns `inner` with one injected fault: a ticket that completes late, fails, never completes, or has a wrong bit.
/// For tests. `inner` must outlive it.
std::unique_ptr<AsyncCollective> faulty_collective(AsyncCollective& inner, std::vector<CollectiveFault> faults);

#pragma GCC visibility pop

}  // namespace overlace
