// What a plan of cuBLASLt is made for, without CUDA.
#pragma once

#include <cstdint>
#include <optional>

#include "overlace/dtype_pod.h"
#include "overlace/schedule.h"

namespace overlace::exec {

/// What cuBLASLt tells apart: algorithms may load as many bytes at once as operands are aligned to.
inline constexpr uint32_t kMaxLtAlignment = 256;

/// The largest power of two, at most kMaxLtAlignment, that divides the address; of null that limit.
inline uint32_t lt_alignment(const void* address) {
  const auto bits = reinterpret_cast<uintptr_t>(address) | kMaxLtAlignment;
  return static_cast<uint32_t>(bits & (~bits + 1));
}

/// c (+)= a b, row-major, `batch` equally spaced products that share b. Leading dimensions and strides in elements.
struct LtGemm {
  int64_t m = 0, n = 0, k = 0;
  int64_t lda = 0, ldb = 0, ldc = 0;
  int64_t batch = 1, batch_stride_a = 0, batch_stride_c = 0;
  DType in = DType::bf16, out = DType::bf16;  // fp32 and fp64 inputs keep their type
  std::optional<DType> b_in = {};             // of b where that is the other type of fp8
  bool a_is_km = false;                       // a is stored (k, m), lda apart; else (m, k)
  spec::BLayout b_layout = spec::BLayout::nk;
  bool accumulate = false;
  bool bias = false;                                                                         // (n), type of c
  spec::Scales scales = spec::Scales::none;                                                  // rows: batch 1
  uint32_t align_a = kMaxLtAlignment, align_b = kMaxLtAlignment, align_c = kMaxLtAlignment;  // of addresses, in bytes
  auto operator<=>(const LtGemm&) const = default;

  /// The product with the alignments of operands that lie there.
  LtGemm at(const void* a, const void* b, const void* c) const {
    LtGemm placed = *this;
    placed.align_a = lt_alignment(a);
    placed.align_b = lt_alignment(b);
    placed.align_c = lt_alignment(c);
    return placed;
  }
};

/// The memory of a product. Scales are fp32, one each or one for each row of a and for each column of c.
struct LtOperands {
  const void *a = nullptr, *b = nullptr, *bias = nullptr;
  void* c = nullptr;
  const void *a_scale = nullptr, *b_scale = nullptr;
};

}  // namespace overlace::exec
