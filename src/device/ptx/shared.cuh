// Shared memory by 32-bit address: matrix stores and loads, values for another CTA of the cluster.
#pragma once

#include <cstdint>

namespace overlace::device::ptx {

/// Four 8 x 8 matrices of 16-bit elements. Lane l gives the address of row l % 8 of matrix l / 8 (16 bytes); r0..r3
/// hold this lane's two elements of matrix 0..3: row l / 4, columns 2 (l % 4) and the next.
__device__ __forceinline__ void store_matrices(uint32_t row_address, uint32_t r0, uint32_t r1, uint32_t r2,
                                               uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row_address), "r"(r0), "r"(r1),
               "r"(r2), "r"(r3)
               : "memory");
}
/// Stores as store_matrices does, but each matrix transposed: the row that lane l addresses is column l % 8 of the
/// registers' matrix l / 8.
__device__ __forceinline__ void store_matrices_transposed(uint32_t row_address, uint32_t r0, uint32_t r1, uint32_t r2,
                                                          uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row_address), "r"(r0),
               "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}
/// The inverse of store_matrices: lanes and registers as it has them.
__device__ __forceinline__ void load_matrices(uint32_t row_address, uint32_t (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row_address)
               : "memory");
}

/// A word of shared memory that threads of the CTA pass on.
__device__ __forceinline__ void store_release_cta(uint32_t address, uint32_t value) {
  asm volatile("st.release.cta.shared::cta.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
__device__ __forceinline__ uint32_t load_acquire_cta(uint32_t address) {
  uint32_t value;
  asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}

__device__ __forceinline__ void store_word(uint32_t address, uint32_t value) {
  asm volatile("st.shared::cta.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
/// At an address that cluster_address gave.
__device__ __forceinline__ void store_word_to(uint32_t address, uint32_t value) {
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
__device__ __forceinline__ uint32_t load_word(uint32_t address) {
  uint32_t value;
  asm volatile("ld.shared::cta.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}

__device__ __forceinline__ void store_pair(uint32_t address, float x, float y) {
  asm volatile("st.shared::cta.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(x), "f"(y) : "memory");
}
__device__ __forceinline__ void store_four_words(uint32_t address, const uint4& x) {
  asm volatile("st.shared::cta.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
               : "memory");
}
__device__ __forceinline__ uint4 load_four_words(uint32_t address) {
  uint4 x;
  asm volatile("ld.shared::cta.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(address)
               : "memory");
  return x;
}
__device__ __forceinline__ float4 load_four(uint32_t address) {
  float4 x;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(address)
               : "memory");
  return x;
}
/// Both are addresses of one CTA of the cluster; its `barrier` counts the 16 bytes when they are there.
__device__ __forceinline__ void store_four_words_to(uint32_t address, const uint4& x, uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.u32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
      "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void store_four_to(uint32_t address, const float4& x, uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
      "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "r"(barrier)
      : "memory");
}

}  // namespace overlace::device::ptx
