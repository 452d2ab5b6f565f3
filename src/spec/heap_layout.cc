#include "src/spec/heap_layout.h"

#include <algorithm>
#include <limits>

#include "src/base/ceil_div_pod.h"

namespace overlace::spec {
namespace {

constexpr uint64_t kAlign = 256;
constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();

uint64_t capped_product(uint64_t a, uint64_t b) {
  uint64_t out = 0;
  return __builtin_mul_overflow(a, b, &out) ? kMost : out;
}

uint64_t capped_sum(uint64_t a, uint64_t b) {
  uint64_t out = 0;
  return __builtin_add_overflow(a, b, &out) ? kMost : out;
}

}  // namespace

uint64_t HeapLayout::bytes() const { return capped_product(copy_bytes, static_cast<uint64_t>(copies)); }

HeapLayout heap_layout(const Schedule& schedule, const Expansion& expansion) {
  HeapLayout out;
  out.offsets.resize(schedule.buffers.size());
  for (size_t b = 0; b < schedule.buffers.size(); ++b) {
    const Buffer& buffer = schedule.buffers[b];
    if (buffer.space != Space::symmetric) continue;
    uint64_t bytes = dtype_bytes(buffer.dtype);
    for (const int64_t extent : expansion.buffer_shapes[b])
      bytes = capped_product(bytes, static_cast<uint64_t>(extent));
    out.offsets[b] = out.copy_bytes;
    const uint64_t end = capped_sum(out.copy_bytes, bytes);
    out.copy_bytes = end > kMost - kAlign ? kMost : base::round_up(end, kAlign);
    out.copies = std::max(out.copies, buffer.depth);
  }
  return out;
}

uint64_t heap_bytes(const Schedule& schedule, int ranks) {
  const base::Result<Expansion> first = expand(schedule, 0, ranks);
  return heap_layout(schedule, first.value()).bytes();
}

}  // namespace overlace::spec
