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

/// The number of elements that share a scale if they travel as int8.
inline constexpr size_t kInt8Block = 256;

/// The memory that one all-reduce sums: `count` elements of `dtype` at `data`. It belongs to the ticket until that is
/// complete or failed.
struct Bucket {
  void* data = nullptr;
  size_t count = 0;
  DType dtype = DType::fp32;
  std::string what;           // "round 7, bucket 3": the name that errors show
  float* residual = nullptr;  // if given, fp32 data travel as int8, with a scale for each kInt8Block elements: `count`
                              // values that earlier rounding left out, which are added and replaced by those of now
};

/// Bytes of a bucket where it travels: 65/64 of a byte an element with a residual.
size_t wire_bytes(const Bucket& bucket);

/// An all-reduce under way. Numbers count from 1 in the order of launches.
struct Ticket {
  uint64_t number = 0;
};

enum class TicketState { pending, complete, failed };

/// The times at which a ticket was launched, taken up, joined by the last rank, and complete, in ns of CLOCK_MONOTONIC.
/// 0 means not yet.
struct TicketTimes {
  int64_t launched_ns = 0, begun_ns = 0, met_ns = 0, complete_ns = 0;
  int last_rank = -1;      // rank that joined last; -1: not known
  int64_t link_bytes = 0;  // bytes that an emulated link has carried from this rank, by its own count; 0 without one
};

struct CollectiveCaps {
  bool stream_ordered = false;    // order_after does not block the host
  bool progresses_alone = false;  // tickets complete although nobody polls
  bool deterministic = false;     // equal bits on all ranks and in every run
  bool takes_residuals = false;   // buckets may travel as int8
  bool frees_on_failure = false;  // after wait() has thrown nothing accesses the memory of a ticket
};

/// All-reduces over one team. Each rank makes equal calls in one order, from one thread. An object of this class does
/// not know what it moves or why. The completion of a ticket happens before whatever is ordered after it.
class AsyncCollective {
 public:
  virtual ~AsyncCollective() = default;
  virtual std::string name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual CollectiveCaps caps() const = 0;
  /// Sums `bucket` over all ranks, in place, after the work that `stream` holds now. For a mean, the caller divides
  /// before it calls. Does not block. Throws the error of an earlier ticket that failed, Unsupported for a residual
  /// without CollectiveCaps::takes_residuals, InvalidArgument for a residual beside data that are not fp32.
  virtual Ticket all_reduce(const Bucket& bucket, StreamRef stream) = 0;
  /// Returns the state of a ticket. Does not block.
  virtual TicketState poll(Ticket ticket) = 0;
  /// Makes work that is queued on `stream` from now on see the sum. On a stream of the CPU it blocks as `wait` does,
  /// with the object's own deadline.
  virtual void order_after(Ticket ticket, StreamRef stream) = 0;
  /// Blocks until the sum is complete. Throws Timeout after `timeout_ms` with the missing rank, or the error of the
  /// ticket. In both cases all tickets are failed from then on; CollectiveCaps::frees_on_failure says what holds for
  /// their memory.
  virtual void wait(Ticket ticket, int64_t timeout_ms) = 0;
  virtual TicketTimes times(Ticket ticket) = 0;
  /// Makes all open tickets fail with this error, here and at the other ranks. Any thread may call it. Does not block.
  virtual void abort(Errc code, std::string_view why) = 0;
};

struct HostCollectiveOptions {
  RuntimeOptions runtime;                // backend cpu; RuntimeOptions::link emulates a link
  int64_t meet_timeout_ms = 0;           // longest that one rank may be behind another; 0: the runtime's deadline
  int device = -1;                       // buckets are memory of this GPU and streams are CUDA streams; -1: of the host
  size_t slot_bytes = size_t{32} << 20;  // pinned memory through which a piece of a bucket goes, with a device
  int slots = 4;                         // how many such pieces there is room for
};

/// Opens all-reduces that the host sums. Collective. A worker thread opens, owns and alone uses a runtime of backend
/// `cpu` over the ranks of `bootstrap`, which only that thread uses and which must outlive the returned object. Tickets
/// complete in order. With a device, copy engines bring buckets to pinned memory and back on streams of their own, and
/// a stream waits for a word that is written once they are back, and also where a ticket fails; a wait of a stream
/// has the runtime's deadline, from when the stream has come to it. Throws what opening the runtime throws, and
/// Unsupported for another backend, without an engine, or with a device in a build without CUDA. The destructor is
/// collective too, unless the object failed: it waits for the other ranks, with the runtime's deadline.
std::unique_ptr<AsyncCollective> open_host_collective(Bootstrap& bootstrap, const HostCollectiveOptions& options);

/// What may open all-reduces of memory of GPUs here: a build with CUDA, and NCCL in the process or on the machine.
struct DeviceTransports {
  bool host = false, nccl = false;
};
DeviceTransports device_transports();

struct NcclCollectiveOptions {
  int device = 0;          // CUDA ordinal; each rank has one for itself
  int max_ctas = 2;        // that an all-reduce may hold until the slowest rank has come
  int64_t timeout_ms = 0;  // deadline, from when the stream has come to an all-reduce; 0: as in RuntimeOptions
};

/// Opens all-reduces of memory of GPUs by NCCL, with a communicator and a stream of their own. Collective over the
/// ranks of `bootstrap`, which must outlive the returned object. Throws what opening a runtime of backend `cuda_peer`
/// with engine `nccl` throws: Unsupported without CUDA, without NCCL, or where two ranks share a GPU. The destructor is
/// collective too, unless the object failed.
std::unique_ptr<AsyncCollective> open_nccl_collective(Bootstrap& bootstrap, const NcclCollectiveOptions& options);

struct Pace {
  double bytes_per_s = 0;  // rate for the bytes of a ring, 2 (n - 1) / n of a bucket; 0: no limit
  double latency_s = 0;    // added to each ticket
};

/// Returns `inner` over an emulated link: tickets pass one after the other, each from when all ranks have joined. Every
/// measurement with it must be labelled emulated. `inner` must outlive the returned object.
std::unique_ptr<AsyncCollective> paced_collective(AsyncCollective& inner, const Pace& pace);

struct CollectiveFault {
  enum class Kind { delay, fail, never, flip } kind = Kind::delay;
  uint64_t ticket = 0;  // number of the ticket that it strikes
  int64_t delay_ms = 0;
  size_t bit = 0;  // bit of the sum that is flipped
};

/// Returns `inner` with injected faults, for tests: a ticket that completes late, fails, never completes, or has a
/// wrong bit. `inner` must outlive the returned object.
std::unique_ptr<AsyncCollective> faulty_collective(AsyncCollective& inner, std::vector<CollectiveFault> faults);

#pragma GCC visibility pop

}  // namespace overlace
