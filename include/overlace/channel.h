// A channel is a team and a stream. It owns signal ids and is the unit of concurrency.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "overlace/stream.h"
#include "overlace/symmetric.h"

namespace overlace {

struct ChannelPod;
struct ChannelState;
struct CountersPod;
struct InboxPod;

#pragma GCC visibility push(default)  // exported by liboverlace.so

class Team;  // the first declaration of a class decides whether it is exported

/// A range of signal ids, the same on all ranks of the team.
struct SignalIds {
  uint32_t first = 0;
  uint32_t count = 0;
};

/// The kind of agent that writes the slots of an id. It is fixed at allocation, and kinds are never mixed.
enum class Domain { cpu, stream, device };

struct ChannelOptions {
  int sm_budget = 0;  // SMs that its calls may fill; 0: all. Channels whose budgets fit run side by side.
};

/// Buffers in every rank's heap that peers fill in turn, and the signals that belong to them (overlace/signal.h,
/// inbox_*). A buffer of epoch e is used again in epoch e + buffers, after the credit for e. A cheap handle.
struct Inbox {
  SymBuffer memory{};  // all buffers
  uint64_t pitch = 0;  // bytes from a buffer to the next; >= the bytes asked for
  int buffers = 0;     // number of buffers
  SignalIds data{};    // one id: counts what arrived
  SignalIds credit{};  // one id: counts epochs that may be overwritten
  const InboxPod& pod() const { return *handle; }

  const InboxPod* handle = nullptr;  // owned by the channel, valid until it is released
};

/// Local words that this rank's agents count up and wait for (tile triggers), 32 bytes apart. Peers never write them.
struct Counters {
  uint32_t count = 0;
  const CountersPod& pod() const { return *handle; }

  const CountersPod* handle = nullptr;  // owned by the channel, valid until they are released
};

/// Calls on one channel run in the order in which they were made, which must be the same on all ranks. On GPUs calls of
/// several channels of a rank whose SM budgets do not fit side by side run one after the other, in call order; inside a
/// capture, where that order cannot be kept, such a call is refused (Unsupported, `co_residency`).
class Channel {
 public:
  virtual ~Channel() = default;
  virtual Team& team() const = 0;
  virtual StreamRef stream() const = 0;
  /// Queues later calls on another stream of this kind, behind the earlier ones (Stats::moved_calls counts the moves).
  virtual void use(StreamRef stream) = 0;
  virtual const ChannelOptions& options() const = 0;
  /// Limits the SMs that fused kernels of later calls fill to `sms`, rounded down to clusters of two; 0: to the budget.
  /// Local, ranks may differ; what was captured keeps its own. Returns the limit that was. Throws InvalidArgument.
  virtual int limit_sms(int sms) = 0;
  virtual int sm_limit() const = 0;
  /// Returns `count` signal ids. Ids are given in the order of calls, without communication, so all ranks make equal
  /// calls. Throws OutOfMemory (`heap_exhausted`) if no ids are left.
  virtual SignalIds ids(uint32_t count, Domain domain, const char* name) = 0;
  virtual void release(SignalIds ids) = 0;
  /// Makes an inbox of `k` buffers of `bytes` bytes. Collective on the team and a heap allocation (SymmetricHeap: the
  /// ranks of other teams make it too), outside captures. The operator decides who writes where in a buffer. Throws
  /// InvalidArgument (k), OutOfMemory, or PlanMismatch on all ranks if they differ.
  virtual Inbox inbox(size_t bytes, int k = 2, const char* name = "inbox") = 0;
  /// Frees heap memory and ids of an inbox. Collective on the team; all that was sent must have been released, and the
  /// epoch advanced.
  virtual void release(const Inbox& inbox) = 0;
  /// Makes `count` counters, which are 0. Local, outside captures. Throws InvalidArgument, OutOfMemory, or `capture`.
  virtual Counters counters(uint32_t count, const char* name) = 0;
  /// Sets the counters to 0 in stream order, on CPU ranks at once. No agent may count or wait meanwhile. Capturable.
  virtual void reset(const Counters& counters) = 0;
  virtual void release(const Counters& counters) = 0;
  virtual const ChannelPod& pod() const = 0;
  /// Returns the type-erased cache of the layer above (prepared schedules), which is destroyed before the heap.
  virtual std::shared_ptr<void>& attachment() = 0;
};

#pragma GCC visibility pop

}  // namespace overlace
