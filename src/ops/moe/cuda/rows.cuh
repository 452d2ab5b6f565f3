// A warp and a row: the copies of a token that this rank computes, rows into the pool, sums of copies.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "src/ops/moe/cuda/kernels.h"

namespace overlace::ops::moe {

constexpr uint32_t kAll = 0xffffffffu;
constexpr int kPerUnit = 8;  // elements of 16 bytes

template <class T>
__device__ __forceinline__ T* at(const LayerPod& p, int rank, uint64_t offset) {
  return reinterpret_cast<T*>(p.heap[rank] + offset);
}
__device__ __forceinline__ int32_t lane_of() { return static_cast<int32_t>(threadIdx.x % 32); }

// ---- copies ----
// Where the ranks did not meet, as one of them has failed, kernels run on until the host is told, and a peer's heap
// holds anything: so what peers say is held within bounds before it becomes an address.

/// The copies of a token that this rank computes: a bit for each choice, whose expert, of this rank's, and row of the
/// pool its lane has.
struct Copies {
  uint32_t choices;
  int32_t expert;
  int64_t row;
  float weight;
};
/// Called by a whole warp. `entries`: those of the tokens of `source`, here or in its heap.
__device__ __forceinline__ Copies copies_of(const LayerPod& p, const Entry* entries, int source, int64_t token) {
  const int32_t lane = lane_of(), local = local_experts(p);
  Entry entry{-1, 0, 0, 0};
  if (lane < p.top_k) entry = entries[token * p.top_k + lane];
  Copies out{0, entry.expert - p.begin[p.rank], 0, entry.weight};
  bool is_mine = out.expert >= 0 && out.expert < local && entry.expert >= 0;
  if (is_mine) out.row = p.first[int64_t{source} * local + out.expert] + entry.slot;
  is_mine = is_mine && out.row >= 0 && out.row < p.pool_rows;
  out.choices = __ballot_sync(kAll, is_mine);
  return out;
}

/// Rows to the places of their copies, all at once. kFlight loads of a lane and row are under way at a time.
template <int kFlight, int kRows>
__device__ __forceinline__ void expand_rows(const LayerPod& p, const uint4* const (&from)[kRows],
                                            const Copies (&copies)[kRows], uint4* pool) {
  const int32_t lane = lane_of();
  for (int32_t first = 0; first < p.row_units; first += 32 * kFlight) {
    uint4 held[kRows][kFlight];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < kFlight; ++i) {
        const int32_t unit = first + i * 32 + lane;
        if (copies[r].choices != 0 && unit < p.row_units) held[r][i] = from[r][unit];
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      for (uint32_t left = copies[r].choices; left != 0; left &= left - 1) {
        const int64_t row = __shfl_sync(kAll, copies[r].row, __ffs(static_cast<int>(left)) - 1);
        uint4* const to = pool + row * p.row_units;
#pragma unroll
        for (int i = 0; i < kFlight; ++i) {
          const int32_t unit = first + i * 32 + lane;
          if (unit < p.row_units) to[unit] = held[r][i];
        }
      }
    }
  }
}

// ---- elements ----

__device__ __forceinline__ float2 widen(uint32_t pair, __nv_bfloat16) {
  return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(pair));
}
__device__ __forceinline__ float2 widen(uint32_t pair, __half) {
  return __half22float2(reinterpret_cast<const __half2&>(pair));
}
__device__ __forceinline__ uint32_t narrow(float low, float high, __nv_bfloat16) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}
__device__ __forceinline__ uint32_t narrow(float low, float high, __half) {
  const __half2 pair = __floats2half2_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

template <class Element>
__device__ __forceinline__ uint4 rounded(const float (&values)[kPerUnit]) {
  return {narrow(values[0], values[1], Element{}), narrow(values[2], values[3], Element{}),
          narrow(values[4], values[5], Element{}), narrow(values[6], values[7], Element{})};
}

// ---- sums ----

template <class Element>
__device__ __forceinline__ void add(const uint4& unit, float (&sum)[kPerUnit]) {
  const uint32_t words[4] = {unit.x, unit.y, unit.z, unit.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = widen(words[i], Element{});
    sum[2 * i] += pair.x;
    sum[2 * i + 1] += pair.y;
  }
}

/// The copies of `kUnits` units, the first of them `unit`, 32 apart, in the order of choices. kAtOnce copies are under
/// way at a time.
template <class Element, int kAtOnce, int kUnits>
__device__ __forceinline__ void add_copies(const LayerPod& p, const Copies& copies, int32_t unit,
                                           float (&sums)[kUnits][kPerUnit]) {
  for (uint32_t left = copies.choices; left != 0;) {
    uint4 held[kAtOnce][kUnits];
    int count = 0;
#pragma unroll
    for (int copy = 0; copy < kAtOnce; ++copy) {
      if (left == 0) continue;
      const int64_t row = __shfl_sync(kAll, copies.row, __ffs(static_cast<int>(left)) - 1);
      const uint4* const from = p.results + row * p.row_units + unit;
#pragma unroll
      for (int i = 0; i < kUnits; ++i)
        if (unit + i * 32 < p.row_units) held[copy][i] = from[i * 32];
      left &= left - 1;
      count = copy + 1;
    }
#pragma unroll
    for (int copy = 0; copy < kAtOnce; ++copy) {
#pragma unroll
      for (int i = 0; i < kUnits; ++i)
        if (copy < count && unit + i * 32 < p.row_units) add<Element>(held[copy][i], sums[i]);
    }
  }
}

/// Eight results of an output row, which begins at a multiple of 16 bytes.
template <class Element>
__device__ __forceinline__ void store_result(const TokensPod& call, int64_t token, int32_t unit,
                                             const float (&sum)[kPerUnit]) {
  if (call.is_out_fp32 != 0) {
    auto* const to = reinterpret_cast<float4*>(static_cast<float*>(call.out) + token * call.out_pitch);
    to[unit * 2] = {sum[0], sum[1], sum[2], sum[3]};
    to[unit * 2 + 1] = {sum[4], sum[5], sum[6], sum[7]};
  } else {
    auto* const to = reinterpret_cast<uint4*>(static_cast<Element*>(call.out) + token * call.out_pitch);
    to[unit] = rounded<Element>(sum);
  }
}

}  // namespace overlace::ops::moe
