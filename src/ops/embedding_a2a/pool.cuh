// Bags of embeddings, pooled: a group of lanes for each bag, rows of the table in registers ahead of their sums.
#pragma once

#include <cstdint>

#include "src/device/math/convert.cuh"
#include "src/ops/embedding_a2a/launch.h"
#include "src/spec/families/bad_bag_pod.h"

namespace overlace::ops {

inline constexpr int kPoolThreads = 256, kPoolFeatures = 64;
inline constexpr int kInFlight = 8;  // rows that a group of lanes has asked for at a time

/// In device memory, zero between launches.
struct PoolWords {
  unsigned long long worst;  // of all bad bags the first: ~(number + 2); of offsets[0] ~0, of the last offset ~1
  unsigned int done;         // blocks
};
/// In pinned memory: a kernel writes where `is_full` is 0, the host makes it 0 again.
struct PoolRecord {
  uint32_t is_full;
  spec::BadBag bad;
};

/// i32 or i64.
struct PoolIntegers {
  const void* data;
  bool is_wide;
  __device__ __forceinline__ int64_t operator[](int64_t i) const {
    return is_wide ? __ldg(static_cast<const long long*>(data) + i) : __ldg(static_cast<const int*>(data) + i);
  }
};

struct PoolColumns {
  int64_t slice, rows, padding;
  int64_t first_bag;  // that of the launch's first sample
  int32_t width, column;
  int32_t lanes;  // of a group: a power of two, at most 32
  bool loads_wide, stores_wide;
};

template <class T>
struct PoolParams {
  PoolColumns features[kPoolFeatures];
  const T* weights;
  const T* factors;  // or null
  PoolIntegers indices, offsets;
  int64_t num_bags, num_entries;  // of the rank
  int64_t batch;                  // bags of a feature
  int64_t first_feature;          // of features[0] in the placement
  int64_t first_local;            // and among the rank's
  void* out;                      // of T, or of fp32
  int64_t pitch, rows;
  PoolWords* words;  // null: nothing is reported
  PoolRecord* record;
  PoolBounds bounds;
  bool is_mean, is_widened;
};

/// kCount elements that load and store as units of 16 bytes, or one element.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount < 16 ? sizeof(T) * kCount : 16) PoolGroup {
  T v[kCount];
};

template <class T, int kCount>
__device__ __forceinline__ PoolGroup<T, kCount> load_group(const T* from) {
  if constexpr (kCount == 1) {
    return {__ldg(from)};
  } else {
    static_assert(sizeof(T) * kCount == 16);
    const uint4 raw = __ldg(reinterpret_cast<const uint4*>(from));
    PoolGroup<T, kCount> out;
    *reinterpret_cast<uint4*>(&out) = raw;
    return out;
  }
}

/// Adds a product as CPU ranks do in fp64: a product and a sum, each rounded.
__device__ __forceinline__ double add_product(double factor, double value, double sum) {
  return __dadd_rn(sum, __dmul_rn(factor, value));
}
__device__ __forceinline__ float add_product(float factor, float value, float sum) {
  return __fmaf_rn(factor, value, sum);
}

/// The row that an index names; -1: none.
__device__ __forceinline__ int64_t row_of(int64_t index, const PoolColumns& f, PoolBounds bounds, bool* is_bad) {
  if (index == f.padding && index >= 0) return -1;
  const bool is_inside = index >= 0 && index < f.rows;
  if (is_inside || bounds == PoolBounds::none) return index;
  *is_bad = true;
  if (bounds == PoolBounds::clamp) return index < 0 ? 0 : f.rows - 1;
  return bounds == PoolBounds::zero_row ? 0 : -1;
}

template <class Out, int kCount, class Acc>
__device__ __forceinline__ void store_group(Out* to, const Acc (&sum)[kCount], bool is_wide) {
  PoolGroup<Out, kCount> out;
#pragma unroll
  for (int j = 0; j < kCount; ++j) out.v[j] = device::narrow<Out>(sum[j]);
  if (kCount == 1 || is_wide) {
    *reinterpret_cast<PoolGroup<Out, kCount>*>(to) = out;
  } else {
#pragma unroll
    for (int j = 0; j < kCount; ++j) to[j] = out.v[j];
  }
}

/// One bag, and what is wrong with it.
struct PoolBag {
  int64_t begin, end, row;  // entries; the row of the result
  bool is_bad;
};

/// Columns [column, column + kCount) of one bag. Sums are in the order of the entries.
template <class T, int kCount, bool kMax>
__device__ __forceinline__ void pool_columns(const PoolParams<T>& p, const PoolColumns& f, PoolBag& bag, int column) {
  using Acc = decltype(device::widen(T{}));
  const bool is_mine = column < f.width;
  const T* const from = p.weights + f.slice + column;
  Acc sum[kCount] = {};
  int64_t count = 0;
  for (int64_t i = bag.begin; i < bag.end; i += kInFlight) {
    uint32_t counts = 0;  // a bit for each entry that does
    PoolGroup<T, kCount> value[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int64_t at = i + u < bag.end ? row_of(p.indices[i + u], f, p.bounds, &bag.is_bad) : -1;
      counts |= at >= 0 ? 1u << u : 0u;
      if (at >= 0 && is_mine) value[u] = load_group<T, kCount>(from + at * f.width);
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      if ((counts >> u & 1u) == 0) continue;
      const Acc factor = kMax || p.factors == nullptr ? Acc{1} : device::widen(__ldg(p.factors + i + u));
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        const Acc v = device::widen(value[u].v[j]);
        if constexpr (kMax) {
          const bool is_larger = count == 0 || !(v <= sum[j]);  // NaN, too, and it stays
          sum[j] = is_larger && sum[j] == sum[j] ? v : sum[j];
        } else {
          sum[j] = add_product(factor, v, sum[j]);
        }
      }
      ++count;
    }
  }
  if (!is_mine) return;
  if (!kMax && p.is_mean && count > 0) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) sum[j] = sum[j] / static_cast<Acc>(count);
  }
  const int64_t to = bag.row * p.pitch + f.column + column;
  if (sizeof(T) == 2 && p.is_widened) {
    store_group<float, kCount>(static_cast<float*>(p.out) + to, sum, f.stores_wide);
  } else {
    store_group<T, kCount>(static_cast<T*>(p.out) + to, sum, f.stores_wide);
  }
}

/// What the bag of this number has that is none; one thread, of a bag that has.
template <class T>
__device__ spec::BadBag find_bad(const PoolParams<T>& p, int64_t number) {
  using spec::BadBagKind;
  if (number == -2) return {.kind = BadBagKind::first_offset, .value = p.offsets[0]};
  if (number == -1)
    return {
        .kind = BadBagKind::last_offset, .position = p.num_bags, .value = p.offsets[p.num_bags], .most = p.num_entries};
  const int64_t begin = p.offsets[number], end = p.offsets[number + 1];
  if (begin < 0 || begin > p.num_entries)  // the end of a bag that another launch pools
    return {.kind = BadBagKind::offset, .position = number, .value = begin, .most = p.num_entries};
  if (begin > end || end > p.num_entries)
    return {.kind = BadBagKind::offset, .position = number + 1, .value = end, .least = begin, .most = p.num_entries};
  const int64_t local = number / p.batch - p.first_local;
  const PoolColumns& f = p.features[local];
  spec::BadBag out{.feature = p.first_feature + local, .bag = number % p.batch, .most = f.rows - 1};
  for (int64_t i = begin; i < end; ++i) {
    out.position = i - begin;
    out.value = p.indices[i];
    if (out.value < 0 || out.value >= f.rows) break;
  }
  return out;
}

/// The last block tells the host, unless it has not read what an earlier launch said.
template <class T>
__device__ void report_bad(const PoolParams<T>& p) {
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) {
    if (p.offsets[0] != 0) atomicMax(&p.words->worst, ~0ull);
    if (p.offsets[p.num_bags] != p.num_entries) atomicMax(&p.words->worst, ~1ull);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence();
  if (atomicAdd(&p.words->done, 1u) != gridDim.x * gridDim.y - 1) return;
  __threadfence();
  const unsigned long long worst = atomicExch(&p.words->worst, 0ull);
  p.words->done = 0;
  if (worst == 0 || *reinterpret_cast<volatile uint32_t*>(&p.record->is_full) != 0) return;
  p.record->bad = find_bad(p, static_cast<int64_t>(~worst) - 2);
  __threadfence_system();
  *reinterpret_cast<volatile uint32_t*>(&p.record->is_full) = 1;
}

/// Grid: (runs of samples, features).
template <class T, bool kMax>
__global__ void __launch_bounds__(kPoolThreads, 2) pool_rows(const __grid_constant__ PoolParams<T> p) {
  constexpr int kWide = 16 / static_cast<int>(sizeof(T));
  const PoolColumns& f = p.features[blockIdx.y];
  const int lane = static_cast<int>(threadIdx.x) & (f.lanes - 1);
  const int groups = kPoolThreads / f.lanes, group = static_cast<int>(threadIdx.x) / f.lanes;
  const int64_t step = int64_t{gridDim.x} * groups;
  for (int64_t row = int64_t{blockIdx.x} * groups + group; row < p.rows; row += step) {
    const int64_t number = f.first_bag + row;
    PoolBag bag{p.offsets[number], p.offsets[number + 1], row, false};
    bag.is_bad = bag.begin < 0 || bag.begin > bag.end || bag.end > p.num_entries;
    if (bag.is_bad) bag.begin = bag.end = 0;
    if (f.loads_wide) {
      for (int first = 0; first < f.width; first += f.lanes * kWide)
        pool_columns<T, kWide, kMax>(p, f, bag, first + lane * kWide);
    } else {
      for (int first = 0; first < f.width; first += f.lanes) pool_columns<T, 1, kMax>(p, f, bag, first + lane);
    }
    if (bag.is_bad && lane == 0 && p.words != nullptr)
      atomicMax(&p.words->worst, ~static_cast<unsigned long long>(number + 2));
  }
  if (p.words != nullptr) report_bad(p);
}

}  // namespace overlace::ops
