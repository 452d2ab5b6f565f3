// One-warp kernels that wait, signal and count on a stream: for captured graphs and beside persistent kernels. Each
// needs <= 32 registers a thread and no shared memory, so that it fits where a GEMM fills the rest of an SM.
//
// Epochs live in device memory: a cell holds the number of the call that runs now, from 1; launch_epoch_end adds 1.
// What is awaited follows from the cell, so a replayed graph waits for the values of its own call.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "overlace/handle_pod.h"
#include "src/base/status.h"

namespace overlace::runtime::cuda_peer {

inline constexpr int kMaxNodeItems = 32;
/// Bit of TeamPod::caps: an 8-byte copy may signal (stream_post), as the opening self-test proved.
inline constexpr uint32_t kCapCopyThenFlag = 1;

/// Holds once int64(*slot - expected) >= 0, where expected is
///   at_least                                       without an epoch cell,
///   (*epoch - 1) * adds_per_epoch + at_least       with one,
///   (*epoch - 1) * adds_per_epoch                  with `previous`: all of the calls before this one.
struct WaitItem {
  const uint64_t* slot = nullptr;
  const uint64_t* epoch = nullptr;
  uint64_t adds_per_epoch = 0;
  uint64_t at_least = 0;
  uint32_t previous = 0;
  uint32_t peer = 0;  // team rank that is waited for, for the record
  uint32_t id = 0;    // signal id, for the record
};

/// Acquire: what was released by the awaited signals is visible to later work of the stream.
struct WaitList {
  TeamPod team{};
  WaitItem items[kMaxNodeItems];
  uint32_t count = 0;
};

/// Release: earlier work of the stream is visible to who acquires the new value.
struct SignalItem {
  uint64_t* slot = nullptr;         // a peer's slot, or one of my own
  const uint64_t* epoch = nullptr;  // of a post: total = (*epoch - 1) * adds_per_epoch + value
  uint64_t adds_per_epoch = 0;
  uint64_t value = 1;  // of an add: the delta
  uint32_t post = 0;   // 0: add. 1: store of the new total; the slot has no other writer
};

struct SignalList {
  SignalItem items[kMaxNodeItems];
  uint32_t count = 0;
};

/// *word += add; one per slot that the call consumed.
struct TicketAdd {
  uint64_t* word = nullptr;
  uint64_t add = 0;
};

/// End of a call: tickets first, then *epoch += 1 (epoch may be null).
struct EpochEnd {
  uint64_t* epoch = nullptr;
  const TicketAdd* tickets = nullptr;  // device memory
  uint32_t count = 0;
};

/// Queue the kernel (the stream's device is current); `cuda` with the launch error. A wait that fails (deadline, abort)
/// ends the kernel, leaves its record and sets the abort word: later work of the stream runs on and its output is
/// undefined (Runtime::check throws).
base::Status launch_wait(cudaStream_t stream, const WaitList& waits);
base::Status launch_signal(cudaStream_t stream, const SignalList& signals);
base::Status launch_epoch_end(cudaStream_t stream, const EpochEnd& end);
/// All ranks of the team: release and acquire, all to all, through the slots of `barrier_id`; consumes its signals.
/// not_supported where loads and stores do not reach one of them.
base::Status launch_barrier(cudaStream_t stream, const TeamPod& team, uint32_t barrier_id);

/// Address of slot (id, sender) at `peer`, in my mapping. Precondition: reach(peer) != net.
uint64_t* slot_address(const TeamPod& team, int peer, uint32_t id, int sender);

}  // namespace overlace::runtime::cuda_peer
