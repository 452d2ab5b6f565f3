#include "src/runtime/backend/cpu/net_packet.h"

#include <algorithm>
#include <cstring>

#include "src/runtime/backend/cpu/wire.h"

namespace overlace::runtime::net {
namespace {

template <class... Args>
base::Status refused(std::string_view text, const Args&... args) {
  return base::error(Errc::engine, "engine mpi: {}", base::format(text, args...));
}

/// What programs and engines write to: behind the slots.
struct Writable {
  uint64_t begin, end;
  bool contains(uint64_t at, uint64_t bytes) const { return at >= begin && at <= end && bytes <= end - at; }
};

base::Status check_payload(const mpi::Message& message, const Writable& writable) {
  const auto& w = message.head.words;
  const uint64_t begin = w[begin_byte], end = w[end_byte];
  if (begin > end || end - begin != message.bytes)
    return refused("a message of {} bytes claims bytes {} to {} of a put, wanted as many as it has", message.bytes,
                   begin, end);
  if (begin == end) return {};
  if (w[row_bytes] == 0) return refused("a put of {} bytes has rows of 0 bytes, wanted at least 1", message.bytes);
  const uint64_t first = begin / w[row_bytes], last = (end - 1) / w[row_bytes];
  // The lowest and the highest byte that it touches; rows may lie on each other.
  const uint64_t first_column = first == last ? begin % w[row_bytes] : 0;
  const uint64_t last_bytes = first == last ? (end - 1) % w[row_bytes] + 1 : w[row_bytes];
  uint64_t low = 0, high = 0;
  const bool overflows =
      __builtin_mul_overflow(first, w[pitch], &low) || __builtin_add_overflow(low, w[offset], &low) ||
      __builtin_add_overflow(low, first_column, &low) || __builtin_mul_overflow(last, w[pitch], &high) ||
      __builtin_add_overflow(high, w[offset], &high) || __builtin_add_overflow(high, last_bytes, &high);
  if (!overflows && high >= low && writable.contains(low, high - low)) return {};
  return refused("a put to offset {} of rows {} to {} of {} bytes, {} apart, wanted all of them in bytes {} to {}",
                 w[offset], first, last, w[row_bytes], w[pitch], writable.begin, writable.end);
}

base::Status check_signal(const mpi::Message& message, const RuntimeLayout& layout) {
  const auto& w = message.head.words;
  if (w[id] >= layout.num_ids) return refused("signal {}, wanted one below {}", w[id], layout.num_ids);
  const uint64_t row = layout.slot_offset(static_cast<uint32_t>(w[id]), 0);
  const uint64_t row_end = row + uint64_t{layout.slot_stride} * layout.slot_pitch;
  if (w[target] < row || w[target] >= row_end || (w[target] - row) % layout.slot_pitch != 0)
    return refused("signal {} at offset {}, wanted a slot of it: {} to {} in steps of {}", w[id], w[target], row,
                   row_end - layout.slot_pitch, layout.slot_pitch);
  return {};
}

base::Status check_word(const mpi::Message& message, const Writable& writable) {
  const uint64_t at = message.head.words[target];
  if (at % sizeof(uint64_t) == 0 && writable.contains(at, sizeof(uint64_t))) return {};
  return refused("a word at offset {}, wanted a multiple of 8 in bytes {} to {}", at, writable.begin, writable.end);
}

}  // namespace

base::Status check_claims(const mpi::Message& message, const RuntimeLayout& layout, uint64_t heap_bytes) {
  const Writable writable{layout.staging.offset, heap_bytes};
  const uint32_t kind = message.head.kind;
  if (kind == kAsk || kind == kAnswer) {
    if (message.bytes == 0) return {};
    return refused("a question of {} bytes, wanted none", message.bytes);
  }
  if (kind > static_cast<uint32_t>(Arrival::Kind::word_release))
    return refused("a message of kind {}, wanted 0 to {}, {} or {}", kind,
                   static_cast<uint32_t>(Arrival::Kind::word_release), kAsk, kAnswer);
  OVERLACE_TRY(check_payload(message, writable));
  switch (static_cast<Arrival::Kind>(kind)) {
    case Arrival::Kind::none:
      return {};
    case Arrival::Kind::add:
    case Arrival::Kind::post:
      OVERLACE_TRY(check_signal(message, layout));
      break;
    case Arrival::Kind::word:
    case Arrival::Kind::word_release:
      OVERLACE_TRY(check_word(message, writable));
      break;
  }
  const uint64_t rung = message.head.words[bell];
  return rung <= kAnyBell ? base::Status() : refused("bell {}, wanted 0 to {}", rung, kAnyBell);
}

void store_payload(const mpi::Message& message, char* heap) {
  const auto& w = message.head.words;
  const char* next = message.data;
  for (uint64_t at = w[begin_byte]; at < w[end_byte];) {
    const uint64_t row = at / w[row_bytes], column = at % w[row_bytes];
    const uint64_t bytes = std::min(w[row_bytes] - column, w[end_byte] - at);
    std::memcpy(heap + w[offset] + row * w[pitch] + column, next, bytes);
    next += bytes;
    at += bytes;
  }
}

}  // namespace overlace::runtime::net
