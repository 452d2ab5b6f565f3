// Where the memory that callers give lies, asked of the backend once per address: an operand on another processor is
// refused before anything moves.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

#include "src/base/status.h"

namespace overlace::runtime {

/// OperandPlaces beside CUDA ordinals. Every processor may use managed memory.
inline constexpr int kHostMemory = -1, kManagedMemory = -2;

/// One per runtime, used by its thread.
class OperandPlaces {
 public:
  using Find = std::function<base::Result<int>(const void* address)>;
  /// For so many checked addresses the answer is trusted, then all are asked for anew: memory may have been freed, and
  /// its address given to another processor.
  static constexpr uint32_t kTrusted = 1u << 16;

  /// Everything passes, nothing is asked: the host alone.
  OperandPlaces() = default;
  /// `home`: where operands must lie, a CUDA ordinal.
  OperandPlaces(int home, Find find) : home_(home), find_(std::move(find)) {}

  /// invalid_argument naming both places where `address` is neither at home nor managed.
  base::Status check(std::string_view op, std::string_view argument, const void* address, int rank) {
    return !find_ || is_known(address) ? base::Status() : ask(op, argument, address, rank);
  }

 private:
  static constexpr size_t kSlots = 1024;  // 8 KiB: as many operands as the layers of a large model have
  static size_t slot_of(const void* address) {
    return static_cast<size_t>(reinterpret_cast<uintptr_t>(address) * 0x9e3779b97f4a7c15ull >> 54);
  }
  bool is_known(const void* address) {
    if (++checked_ % kTrusted == 0) known_.fill(nullptr);
    return known_[slot_of(address)] == address;
  }
  base::Status ask(std::string_view op, std::string_view argument, const void* address, int rank);

  int home_ = kHostMemory;
  Find find_;
  uint32_t checked_ = 0;
  std::array<const void*, kSlots> known_{};  // at home, by slot_of
};

}  // namespace overlace::runtime
