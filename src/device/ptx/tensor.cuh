// Boxes of tensors, of two dimensions where nothing else is said, between global and shared memory, addressed through
// tensor maps. x counts elements of the contiguous dimension. What lies outside of the tensor is read as zero and not
// written.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace overlace::device::ptx {

__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
/// The bytes of the whole box arrive at `barrier`.
__device__ __forceinline__ void load_box(uint32_t shared, const CUtensorMap* map, int32_t x, int32_t y,
                                         uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
          "r"(shared),
      "l"(map), "r"(x), "r"(y), "r"(barrier)
      : "memory");
}
/// Loads a box of a tensor of four dimensions.
__device__ __forceinline__ void load_box(uint32_t shared, const CUtensorMap* map, int32_t x, int32_t y, int32_t z,
                                         int32_t w, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%2, %3, %4, %5}], [%6];" ::"r"(shared),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier)
      : "memory");
}
/// The box goes to the same place of every CTA of `ctas` (a bit per CTA of the cluster), as do the bytes' arrivals.
__device__ __forceinline__ void load_box_to(uint16_t ctas, uint32_t shared, const CUtensorMap* map, int32_t x,
                                            int32_t y, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%2, %3}], [%4], %5;" ::"r"(shared),
      "l"(map), "r"(x), "r"(y), "r"(barrier), "h"(ctas)
      : "memory");
}
/// Joins this thread's open group of bulk stores.
__device__ __forceinline__ void store_box(const CUtensorMap* map, int32_t x, int32_t y, uint32_t shared) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(x),
               "r"(y), "r"(shared)
               : "memory");
}
/// Stores a box of a tensor of four dimensions.
__device__ __forceinline__ void store_box(const CUtensorMap* map, int32_t x, int32_t y, int32_t z, int32_t w,
                                          uint32_t shared) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::"l"(map),
               "r"(x), "r"(y), "r"(z), "r"(w), "r"(shared)
               : "memory");
}

}  // namespace overlace::device::ptx
