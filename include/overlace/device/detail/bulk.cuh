// Bulk copies and bulk additions from shared to global memory, a peer's included. One thread issues, commits and waits.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace overlace::device::ptx {

/// Returns the address of shared memory as instructions take it.
__device__ __forceinline__ uint32_t shared_address(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}
/// Copies shared to global memory. Addresses are 16-byte aligned, and `bytes` is a multiple of 16.
__device__ __forceinline__ void bulk_store(void* global, const void* shared, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared_address(shared)),
               "r"(bytes)
               : "memory");
}
/// Adds elementwise at the destination; each element is added whole.
__device__ __forceinline__ void bulk_add(float* global, const float* shared, uint32_t bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(global),
               "r"(shared_address(shared)), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void bulk_add(__nv_bfloat16* global, const __nv_bfloat16* shared, uint32_t bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.bf16 [%0], [%1], %2;" ::"l"(global),
               "r"(shared_address(shared)), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void bulk_add(__half* global, const __half* shared, uint32_t bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.f16 [%0], [%1], %2;" ::"l"(global),
               "r"(shared_address(shared)), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Waits until at most kPending committed groups are incomplete: the others are written at the destination.
template <int kPending>
__device__ __forceinline__ void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}
/// Waits until at most kPending committed groups have not been read yet: the shared memory of the others may be reused,
/// but none of them need be visible.
template <int kPending>
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
/// Orders ordinary stores of this thread to shared memory before bulk copies that read it; a CTA barrier follows.
__device__ __forceinline__ void fence_shared_to_bulk() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace overlace::device::ptx
