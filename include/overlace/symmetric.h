// The symmetric heap: one region per rank, the same offsets on all of them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace overlace {

#pragma GCC visibility push(default)  // exported by liboverlace.so

/// A block at the same offset of every rank's heap. Plain data: valid as an argument of kernels.
struct SymBuffer {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  explicit operator bool() const { return bytes != 0; }
};

struct RuntimeState;

/// Sub-allocation is local arithmetic, but every rank must make the same calls in the same order; `verify` names the
/// first rank that did not. Not thread-safe.
class SymmetricHeap {
 public:
  /// Memory is filled with a NaN pattern in debug and adversary runs. Throws OutOfMemory (`heap_exhausted`) with the
  /// bytes asked, the largest free block, the total and `name`. align: a power of two <= 2 MiB.
  SymBuffer alloc(size_t bytes, size_t align = 256, const char* name = "");
  void free(SymBuffer buffer);
  /// Collective: all ranks made the same sequence of calls, or PlanMismatch naming the first rank that differs.
  void verify();
  size_t capacity() const;
  size_t in_use() const;

 private:
  friend struct RuntimeState;
  explicit SymmetricHeap(RuntimeState& state) : state_(&state) {}
  RuntimeState* state_;
};

#pragma GCC visibility pop

}  // namespace overlace
