// Rows by their numbers: a warp's lanes hold the addresses of up to 32 rows and copy all of them together.
#pragma once

#include <cstdint>

namespace overlace::device {

inline constexpr int kMaxRowSources = 16;

/// Tables whose rows are numbered one table behind the other. The memory is whatever the device reads: its own, pinned
/// memory of the host, a peer's.
struct RowSources {
  uint64_t data[kMaxRowSources];  // addresses
  int64_t end[kMaxRowSources];    // number of the first row behind those of the source
  int32_t count;
  int64_t row_bytes;
};

/// How the lanes of a warp share the units (loads of 1 to 16 bytes) of its rows.
struct RowUnits {
  int32_t units;      // of a row
  int32_t pitch;      // lanes that a row takes: `units`, or more where its lines are kept whole
  int32_t line_mask;  // units of a line less 1 where each line is to be read by neighbouring lanes, else 0
};

/// A lane's first place in the rows of its warp, and how far it is to its next one.
struct RowLane {
  int row, at, step_rows, step;
};
__device__ __forceinline__ RowLane row_lane(const RowUnits& shape) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return {lane / shape.pitch, lane % shape.pitch, 32 / shape.pitch, 32 % shape.pitch};
}

/// Address of row `id`; 0 if there is none.
__device__ __forceinline__ uint64_t row_address(const RowSources& sources, int64_t id) {
  if (id < 0) return 0;
  int64_t begin = 0;
  for (int i = 0; i < sources.count; ++i) {
    if (id < sources.end[i]) return sources.data[i] + static_cast<uint64_t>((id - begin) * sources.row_bytes);
    begin = sources.end[i];
  }
  return 0;
}

/// Where the rows of a warp's lanes go: one behind the other, or each to the place that its lane says.
struct InARow {
  __device__ __forceinline__ int operator()(int row) const { return row; }
};
struct EachToItsPlace {
  int place;  // of this lane's row
  __device__ __forceinline__ int operator()(int row) const { return __shfl_sync(0xffffffffu, place, row); }
};

/// Row places(i) of `to` becomes the row at the address that lane i has in `from`, for the first `rows` lanes. A row
/// whose address is 0 is left as it is. Called by whole warps with equal `rows`, `shape` and `to`; kFlight units of
/// each lane are under way at a time.
template <int kFlight, class Unit, class Places>
__device__ __forceinline__ void copy_rows_of_warp(uint64_t from, int rows, const RowUnits& shape, const RowLane& lane,
                                                  Places places, Unit* to) {
  constexpr uint32_t kAll = 0xffffffffu;
  int row = lane.row, at = lane.at;
  for (int begin = 0; begin < rows * shape.pitch; begin += 32 * kFlight) {
    const Unit* source[kFlight];
    int place[kFlight];
    Unit held[kFlight];
    // NOTE: addresses, loads and stores apart: a shuffle between two loads would wait for the first one.
#pragma unroll
    for (int k = 0; k < kFlight; ++k) {
      const uint64_t address = __shfl_sync(kAll, static_cast<unsigned long long>(from), row);
      const int unit = at - (static_cast<int>(static_cast<uint32_t>(address) / sizeof(Unit)) & shape.line_mask);
      const bool is_wanted = row < rows && address != 0 && unit >= 0 && unit < shape.units;
      source[k] = is_wanted ? reinterpret_cast<const Unit*>(address) + unit : nullptr;
      place[k] = places(row) * shape.units + unit;
      row += lane.step_rows;
      at += lane.step;
      if (at >= shape.pitch) {
        at -= shape.pitch;
        ++row;
      }
    }
#pragma unroll
    for (int k = 0; k < kFlight; ++k) held[k] = source[k] != nullptr ? __ldg(source[k]) : Unit{};
#pragma unroll
    for (int k = 0; k < kFlight; ++k)
      if (source[k] != nullptr) to[place[k]] = held[k];
  }
}

}  // namespace overlace::device
