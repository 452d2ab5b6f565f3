// What a backend brings. RuntimeState (state.h) owns one; runtime.cc, team.cc and heap.cc are the same for all
// backends.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "overlace/bootstrap.h"
#include "overlace/channel.h"
#include "overlace/handle_pod.h"
#include "overlace/net_engine.h"
#include "overlace/runtime.h"
#include "src/base/status.h"
#include "src/runtime/call_board.h"
#include "src/runtime/control.h"
#include "src/runtime/names.h"
#include "src/runtime/operand_places.h"
#include "src/spec/layout_pod.h"

namespace overlace::runtime {

/// What one rank tells the others at open; a difference in the fields that must agree is layout_mismatch. Exchanged and
/// compared by runtime.cc (hello.h) before the backend opens.
struct Hello {
  uint32_t abi = 0;
  int32_t rank = 0, world = 0;
  uint64_t host_id = 0, machine_id = 0;
  int64_t pid = 0;
  uint64_t heap_bytes = 0;
  uint32_t num_ids = 0;
  char device_uuid[16] = {};
  uint64_t options_hash = 0;
};

/// What a backend is opened with. All references outlive the backend but `bootstrap`, which is valid during open only.
/// runtime.cc made the control plane (sockets between processes, watcher thread, descriptors: fd_exchange.h), compared
/// the Hellos and filled in the defaults of `options`; after open it listens for peers that died and calls abort().
struct OpenContext {
  Bootstrap& bootstrap;
  Control& control;
  Names& names;  // words a TimeoutRecord: names.timeout_text(record, control.peer_state(world rank))
  const RuntimeOptions& options;
  const std::vector<Hello>& hellos;  // by rank
};

/// One call of an operator on a channel.
struct CallSite {
  uint32_t channel = 0;
  StreamRef stream;
  int sm_budget = 0;  // 0: all
};

/// What all ranks want of a striped range, by rank of the world.
struct StripePlan {
  std::string name;
  uint64_t number = 0;  // of this runtime's ranges; the same on all ranks
  std::vector<std::vector<StripePart>> parts;
  int64_t timeout_ms = 0;
};

/// Mapped pages of a striped range; unmapped with the last copy of the pointer.
struct StripeMemory {
  char* data = nullptr;            // my range
  std::vector<StripePiece> owned;  // as StripedRange::owned
  std::shared_ptr<void> mapping;
};

/// One per rank. All calls but abort come from the thread that opened the runtime.
class BackendState {
 public:
  virtual ~BackendState() = default;
  virtual Backend kind() const = 0;
  virtual int device() const { return -1; }
  /// What the vendor calls the GPU of this rank; empty on CPU ranks.
  virtual std::string device_name() const { return {}; }
  /// Where memory that a caller gives lies (operand_places.h). Asked on GPUs only, also while streams are captured.
  virtual base::Result<int> place_of(const void*) { return kHostMemory; }
  virtual Caps caps(int world_rank) const = 0;
  virtual Reach reach(int world_rank) const = 0;
  /// My mapping of that rank's heap (control block, slots, user space); null where reach is net.
  virtual char* heap_base(int world_rank) const = 0;
  /// Where that rank says which call it is in; null where this rank cannot see it.
  virtual CallBoard* call_board(int) { return nullptr; }
  /// Offset of the user space in every heap (runtime_layout).
  virtual uint64_t user_offset() const = 0;
  virtual uint64_t user_bytes() const = 0;
  /// Collective: user_bytes() becomes `bytes`, rounded up to pages, at every rank, or stays as it was at all of them:
  /// ends with an agreement. At most RuntimeOptions::max_heap_bytes. not_supported where memory cannot be added.
  virtual base::Status grow_heap(uint64_t bytes) = 0;
  /// Fills bases, slots, private arrays, abort word, deadline; `members` are world ranks, `rank` is my rank in the
  /// team. Teams get disjoint ranges of the world's ids.
  virtual TeamPod make_pod(const std::vector<int>& members, int rank, uint32_t team_id) = 0;
  /// The collectives engine of a new team; null if there is none. Collective.
  virtual std::unique_ptr<NetEngine> make_engine(Team& team, int max_ctas) = 0;
  /// Zeroed memory that only this rank's agents use, given back at close at the latest. `capture` where `stream` is
  /// captured.
  virtual base::Result<void*> allocate_local(size_t bytes, StreamRef stream) = 0;
  virtual void free_local(void* memory) = 0;
  /// In stream order.
  virtual base::Status zero_local(void* memory, size_t bytes, StreamRef stream) = 0;
  /// `bases` as the pods of agents take them beyond kPodPeers; valid until close.
  virtual base::Result<char* const*> make_table(std::span<char* const> bases) = 0;
  /// Between host memory and any memory of this rank or mapped from a peer; done on return.
  virtual base::Status copy(void* dst, const void* src, size_t bytes) = 0;
  /// 0 with the reason in `why` where ranges cannot be striped.
  virtual uint64_t stripe_granule(std::string* why) const = 0;
  /// Collective; the parts have been checked. Ends with an agreement: all ranks have theirs, or none.
  virtual base::Result<StripeMemory> stripe(const StripePlan& plan) = 0;
  /// Word of device memory that a kernel sets for good whose own pipeline stood still; its later waits end at once, so
  /// that results are wrong from then on. synchronize() and drain() read it, and a watcher now and then; cause() says
  /// so. Null on CPU ranks.
  virtual uint32_t* pipeline_word() { return nullptr; }
  /// SMs that channels of this rank share; 0: no such limit.
  virtual int sm_room() const = 0;
  /// Around the work that a call queues: what must run before it is waited for in stream order. co_residency in a
  /// capture that cannot wait. Counts in `stats`.
  virtual base::Status begin_call(const CallSite& call, Stats& stats) = 0;
  virtual base::Status end_call(const CallSite& call, std::optional<bool> is_captured) = 0;
  virtual bool is_capturing(StreamRef stream) const = 0;
  /// Waits for the calls of a channel that have ended with end_call, on whatever streams; not for what else runs there.
  virtual base::Status finish_calls(uint32_t channel) = 0;
  /// What this rank queued on the stream has run; nothing where it is captured.
  virtual base::Status drain(StreamRef stream) = 0;
  virtual base::Status synchronize() = 0;
  /// `internal` naming the first slot that differs from its ticket.
  virtual base::Status check_quiescent() = 0;
  /// Fresh memory gets a NaN pattern where the backend poisons (adversary, debug).
  virtual void poison(uint64_t offset, uint64_t bytes) = 0;
  /// Makes all waits of this rank return; the first cause stays. Any thread. The caller tells the peers
  /// (Control::spread); a backend that finds a cause itself (timeout, engine error) calls spread on its own.
  virtual void abort(const AbortCause& cause) = 0;
  /// First cause seen by this rank so far (ok if none): own abort, a TimeoutRecord, a lost peer.
  virtual AbortCause cause() = 0;
  /// `aborted`: skip barriers.
  virtual void close(bool aborted) = 0;
};

base::Result<std::unique_ptr<BackendState>> open_cpu(const OpenContext& context);
/// not_supported with the reason where the build or the machine has no CUDA.
base::Result<std::unique_ptr<BackendState>> open_cuda_peer(const OpenContext& context);
/// Number of usable CUDA devices; 0 with the reason in `why` where there is no driver, no device or no build support.
int cuda_device_count(std::string* why);
/// Facts of the CUDA device `ordinal` of this process and of the CUDA runtime; zeros where they are not to be had.
struct CudaDevice {
  int sms = 0;
  int64_t l2_bytes = 0;
  int version = 0;             // 13000: 13.0
  int compute_capability = 0;  // 90: 9.0
};
CudaDevice cuda_device(int ordinal);

}  // namespace overlace::runtime
