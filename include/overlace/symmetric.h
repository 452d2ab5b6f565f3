// The symmetric heap: one region per rank, with equal offsets on all ranks.
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

/// A block at one offset of every rank's heap. It is plain data and a valid argument of kernels.
struct SymBuffer {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  explicit operator bool() const { return bytes != 0; }
};

class Team;

/// Memory that the program made symmetric: a base address per rank instead of one offset. The puts of overlace/signal.h
/// take its pod as an additional argument; signals remain those of a channel. A cheap handle that lives as long as the
/// runtime.
class Region {
 public:
  const std::string& name() const;
  size_t bytes() const;
  /// Returns the base address of rank `world_rank` of the world in this process, or null if its reach is net.
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

/// The place of a part. In StripedRange::parts `rank` has the memory and `data` is its address in this rank's range. In
/// StripedRange::owned `rank` has the part in its range and `data` is the address at which this rank reaches it.
struct StripePiece {
  int rank = 0, part = 0;
  void* data = nullptr;
  size_t bytes = 0;
};

/// One range of addresses whose parts lie in the memory of several ranks. A cheap handle that is valid until the range
/// is freed.
class StripedRange {
 public:
  void* data() const;
  size_t bytes() const;
  /// Returns the parts of this rank's range, in order.
  std::span<const StripePiece> parts() const;
  /// Returns the parts of all ranks' ranges that lie in this rank's memory, by rank and part. Stores of other ranks are
  /// visible after their signals, as with peer_ptr.
  std::span<const StripePiece> owned() const;
  explicit operator bool() const { return state_ != nullptr; }

  StripedRange() = default;
  explicit StripedRange(StripeState* state) : state_(state) {}

 private:
  friend class SymmetricHeap;
  StripeState* state_ = nullptr;
};

/// The heap of a runtime. Allocation is local arithmetic, but every rank must make equal calls in the same order;
/// `verify` names the first rank that did not. Operators also take their memory here, at a place on which the ranks of
/// their team agree; therefore allocate before teams that share no rank run operators of their own. Not thread-safe.
class SymmetricHeap {
 public:
  /// Allocates `bytes` bytes. Peers may write into the block after a barrier; before it a rank may still use the bytes
  /// for something else, and adversary runs fill fresh memory with a NaN pattern. `align` is a power of two up to 2
  /// MiB. Throws OutOfMemory (`heap_exhausted`) with the bytes asked for, the largest free block, the total and `name`.
  SymBuffer alloc(size_t bytes, size_t align = 256, const char* name = "");
  /// Frees a block that `alloc` returned. Local, but all ranks make the same calls.
  void free(SymBuffer buffer);
  /// Collective. Throws PlanMismatch, which names the first rank that differs, if ranks made different sequences of
  /// calls.
  void verify();
  /// Registers memory that the program made symmetric. Collective, before operators run and outside captures. `local`
  /// is this rank's memory of `bytes` bytes, and peers[r] is the address at which this rank reaches that of rank r of
  /// the world (peers[own rank] == local; null only if reach is net). The memory belongs to the caller, who keeps it
  /// until the runtime is closed. The call checks that peers[r] shows the memory of rank r and leaves its contents
  /// unchanged. Throws InvalidArgument; PlanMismatch on all ranks if name or bytes differ; Internal with the pair of
  /// ranks whose mapping is wrong.
  Region adopt(const char* name, void* local, size_t bytes, std::span<void* const> peers);
  /// Makes a striped range. Collective, outside captures, with the runtime's deadline. Every rank gives the parts of
  /// its own range, at least one. Each part is an allocation of its own and is zeroed. Throws InvalidArgument on all
  /// ranks with rank and part; Unsupported if pages cannot be mapped so (heaps of cudaIpc, ranks of other hosts);
  /// OutOfMemory.
  StripedRange stripe(std::span<const StripePart> parts, const char* name);
  /// Unmaps the range after all ranks have called this. Collective. Ranges that were not freed end at close.
  void free(const StripedRange& range);
  /// Returns the page size of striped ranges: 4 KiB on CPU ranks, 2 MiB on GPUs; 0 if there are no striped ranges.
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
