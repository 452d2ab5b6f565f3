// The symmetric heap: one region per rank, the same offsets on all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace overlace {

struct RegionPod;
struct RegionState;
struct RuntimeState;
struct StripeState;

#pragma GCC visibility push(default)  // exported by liboverlace.so

/// A block at the same offset of every rank's heap. Plain data: valid as an argument of kernels.
struct SymBuffer {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  explicit operator bool() const { return bytes != 0; }
};

class Team;

/// Memory that somebody else made symmetric: a base address per rank instead of one offset. The puts of
/// overlace/signal.h take its pod in front of the peer; signals stay those of a channel. Cheap handle; lives as long as
/// the runtime.
class Region {
 public:
  const std::string& name() const;
  size_t bytes() const;
  /// Returns the base address of that rank of the world in this process; null where reach is net.
  void* base(int world_rank) const;
  /// Returns the pod for agents of `team`: peers are its ranks.
  RegionPod pod(const Team& team) const;
  explicit operator bool() const { return state_ != nullptr; }

  Region() = default;
  explicit Region(const RegionState* state) : state_(state) {}

 private:
  const RegionState* state_ = nullptr;
};

/// A part of a striped range: which rank of the world has the memory.
struct StripePart {
  int rank = 0;
  size_t bytes = 0;  // a multiple of SymmetricHeap::stripe_granule()
};

/// Where a part lies. In StripedRange::parts: `rank` has the memory, `data` is in my range. In StripedRange::owned:
/// `rank` has it in its range, `data` is how I reach it.
struct StripePiece {
  int rank = 0, part = 0;
  void* data = nullptr;
  size_t bytes = 0;
};

/// One range of addresses whose parts lie in the memory of several ranks. Cheap handle, until it is freed.
class StripedRange {
 public:
  void* data() const;
  size_t bytes() const;
  /// Returns the parts of my range, in order.
  std::span<const StripePiece> parts() const;
  /// Returns the parts of all ranks' ranges that lie in my memory, by rank and part. Stores of others are visible after
  /// their signals, as with peer_ptr.
  std::span<const StripePiece> owned() const;
  explicit operator bool() const { return state_ != nullptr; }

  StripedRange() = default;
  explicit StripedRange(StripeState* state) : state_(state) {}

 private:
  friend class SymmetricHeap;
  StripeState* state_ = nullptr;
};

/// Sub-allocation is local arithmetic, but every rank must make the same calls in the same order; `verify` names the
/// first rank that did not. Operators take their memory here, too, at a place that the ranks of their team agree on: so
/// allocate before teams that share no rank run operators of their own. Not thread-safe.
class SymmetricHeap {
 public:
  /// Peers may write into it after a barrier: before, a rank may still use the bytes for something else, and
  /// adversary runs fill fresh memory with a NaN pattern. Throws OutOfMemory (`heap_exhausted`) with the
  /// bytes asked, the largest free block, the total and `name`. align: a power of two <= 2 MiB.
  SymBuffer alloc(size_t bytes, size_t align = 256, const char* name = "");
  void free(SymBuffer buffer);
  /// Collective. Throws PlanMismatch, which names the first rank that differs, if ranks made other sequences of calls.
  void verify();
  /// Collective, at start and outside captures. `local` is my memory of `bytes`, peers[r] is where I reach that of rank
  /// r of the world (peers[my rank] == local; null only where reach is net). It belongs to the caller, who keeps it
  /// until the runtime is closed. Checks that peers[r] shows the memory of rank r, and leaves its contents as they
  /// were. Throws InvalidArgument, PlanMismatch on all ranks where name or bytes differ, or Internal naming the wrong
  /// pair.
  Region adopt(const char* name, void* local, size_t bytes, std::span<void* const> peers);
  /// Collective, outside captures, with the runtime's deadline; every rank gives the parts of its own range (at least
  /// one). Each part is an allocation of its own, zeroed. Throws InvalidArgument on all ranks with rank and part;
  /// Unsupported where pages cannot be mapped so (heaps of cudaIpc, ranks of other hosts); OutOfMemory.
  StripedRange stripe(std::span<const StripePart> parts, const char* name);
  /// Collective. Unmaps the range once all ranks have come here. Ranges that were not freed go at close.
  void free(const StripedRange& range);
  /// Returns the page size of striped ranges: 4 KiB on CPU ranks, 2 MiB on GPUs; 0 where there are none.
  size_t stripe_granule() const;
  size_t capacity() const;
  size_t in_use() const;

 private:
  friend struct RuntimeState;
  explicit SymmetricHeap(RuntimeState& state) : state_(&state) {}
  RuntimeState* state_;
};

#pragma GCC visibility pop

}  // namespace overlace
