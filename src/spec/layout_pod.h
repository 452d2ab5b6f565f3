// Where things lie in a symmetric heap: one function serves the host, devices, both backends and the tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "src/base/ceil_div_pod.h"

namespace overlace {

inline constexpr uint32_t kHeapMagic = 0x0B1ACE5E;
inline constexpr uint32_t kHeapAbi = 3;
inline constexpr uint64_t kControlBytes = 64 * 1024;
inline constexpr uint32_t kSlotPitchCpu = 64;   // a cache line: neighbours never share one
inline constexpr uint32_t kSlotPitchCuda = 32;  // a sector
inline constexpr uint64_t kHeapAlign = 256;     // unit of allocation

enum class RankState : uint32_t { starting, alive, left, aborted, closing };

constexpr const char* rank_state_name(RankState state) {
  switch (state) {
    case RankState::starting:
      return "starting";
    case RankState::alive:
      return "alive";
    case RankState::left:
      return "left";
    case RankState::aborted:
      return "aborted";
    case RankState::closing:
      return "closing";
  }
  return "unknown";
}

/// First bytes of every heap; the rest of the 64 KiB belongs to the backend.
struct ControlBlock {
  uint32_t magic = kHeapMagic, abi = kHeapAbi;
  uint64_t layout_hash = 0, generation = 0;
  int64_t pid = 0;
  int32_t rank = 0;
  uint32_t state = 0;  // RankState; written by its owner
  uint32_t abort_word = 0;
};
static_assert(std::is_trivially_copyable_v<ControlBlock> && sizeof(ControlBlock) <= 4096);

struct LayoutRegion {
  const char* name = "";
  uint64_t offset = 0, bytes = 0;
};

/// control | slots | staging | user, in this order. Offsets count from the base of a rank's heap.
struct RuntimeLayout {
  LayoutRegion control, slots, staging, user;
  uint32_t slot_pitch = 0, slot_stride = 0, num_ids = 0;
  uint64_t total_bytes = 0;

  /// The offset of the slot that `sender` advances.
  constexpr uint64_t slot_offset(uint32_t id, uint32_t sender) const {
    return slots.offset + (uint64_t{id} * slot_stride + sender) * slot_pitch;
  }
  /// Equal layouts have equal hashes.
  constexpr uint64_t hash() const {
    const uint64_t words[] = {kHeapAbi,    control.bytes, slots.offset, slots.bytes, staging.offset, staging.bytes,
                              user.offset, user.bytes,    slot_pitch,   slot_stride, num_ids,        total_bytes};
    uint64_t h = 0xcbf29ce484222325ull;
    for (uint64_t word : words)
      for (int i = 0; i < 8; ++i) h = (h ^ ((word >> (8 * i)) & 0xff)) * 0x100000001b3ull;
    return h;
  }
};

constexpr uint64_t align_up(uint64_t value, uint64_t align) { return base::round_up(value, align); }

/// `granule`: page or allocation granule of the backend, a power of two; the user space starts and ends at multiples of
/// it. `staging_bytes`: room of the backend's own collectives.
constexpr RuntimeLayout runtime_layout(uint32_t world, uint32_t num_ids, uint32_t slot_pitch, uint64_t user_bytes,
                                       uint64_t granule, uint64_t staging_bytes = 0) {
  RuntimeLayout layout;
  layout.slot_pitch = slot_pitch;
  layout.slot_stride = world;
  layout.num_ids = num_ids;
  uint64_t end = 0;
  const auto place = [&](const char* name, uint64_t bytes, uint64_t align) {
    const LayoutRegion region{name, align_up(end, align), bytes};
    end = region.offset + bytes;
    return region;
  };
  layout.control = place("control", kControlBytes, granule);
  layout.slots = place("slots", uint64_t{num_ids} * world * slot_pitch, 4096);
  layout.staging = place("staging", staging_bytes, 4096);
  layout.user = place("user", align_up(user_bytes, granule), granule);
  layout.total_bytes = end;
  return layout;
}

}  // namespace overlace
