// The probe: the least code that does the same, without handles, deadlines or checks.
#include "bench/runtime/kernels.cuh"
#include "bench/runtime/pattern.cuh"

namespace overlace::bench {
namespace {

__global__ __launch_bounds__(1024) void plain_store(int peers, int rank, int ranks,
                                                    const __grid_constant__ PlainPeers to, uint64_t peer_stride,
                                                    const uint4* src, uint64_t count) {
  const uint64_t step = uint64_t{gridDim.x} * blockDim.x;
  for (int k = 1; k <= peers; ++k) {
    auto* dst = reinterpret_cast<uint4*>(to.base[(rank + k) % ranks] + rank * peer_stride);
    uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    for (; i + 3 * step < count; i += 4 * step) {
      const uint4 a = src[i], b = src[i + step], c = src[i + 2 * step], d = src[i + 3 * step];
      dst[i] = a, dst[i + step] = b, dst[i + 2 * step] = c, dst[i + 3 * step] = d;
    }
    for (; i < count; i += step) dst[i] = src[i];
  }
}

__global__ __launch_bounds__(128) void plain_bulk(bool add, int rank, char* dst, uint64_t bytes) {
  __shared__ alignas(128) uint32_t stage[kBulkBytes / 4];
  for (uint32_t i = threadIdx.x; i < kBulkBytes / 4; i += blockDim.x)
    stage[i] = value_of(i, static_cast<uint32_t>(rank));
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x != 0) return;
  const auto from = static_cast<uint32_t>(__cvta_generic_to_shared(stage));
  for (uint64_t at = uint64_t{blockIdx.x} * kBulkBytes; at < bytes; at += uint64_t{gridDim.x} * kBulkBytes) {
    if (add) {
      asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.bf16 [%0], [%1], %2;" ::"l"(dst + at),
                   "r"(from), "r"(kBulkBytes)
                   : "memory");
    } else {
      asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst + at), "r"(from),
                   "r"(kBulkBytes)
                   : "memory");
    }
    asm volatile("cp.async.bulk.commit_group;\n\tcp.async.bulk.wait_group.read 8;" ::: "memory");
  }
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

__device__ void post(uint64_t* word, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
__device__ uint64_t look(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}
/// A probe without deadlines could hang the machine: it gives up after far more polls than a round can take.
__device__ bool spin(const uint64_t* word, uint64_t value) {
  for (uint32_t polls = 0; polls < 50000000u; ++polls)
    if (look(word) >= value) return true;
  return false;
}

__device__ void plain_put(uint4* data, const uint4* src, uint32_t bytes, uint64_t* theirs, uint64_t round) {
  for (uint32_t i = threadIdx.x; i < bytes / 16; i += blockDim.x) data[i] = src[i];
  if (bytes != 0) __syncthreads();
  if (threadIdx.x == 0) post(theirs, round);
}

__global__ void plain_bounce(uint64_t* mine, uint64_t* theirs, uint4* data, const uint4* src, uint32_t bytes,
                             bool first, uint32_t rounds) {
  for (uint64_t round = 1; round <= rounds; ++round) {
    if (first) plain_put(data, src, bytes, theirs, round);
    bool ok = threadIdx.x != 0 || spin(mine, round);
    if (bytes != 0) ok = __syncthreads_and(ok);
    if (!ok) return;
    if (!first) plain_put(data, src, bytes, theirs, round);
  }
}

__global__ void plain_barriers(const __grid_constant__ PlainPeers words, int rank, int ranks, uint32_t rounds) {
  const int lane = static_cast<int>(threadIdx.x);
  for (uint64_t round = 1; round <= rounds; ++round) {
    if (lane < ranks) post(reinterpret_cast<uint64_t*>(words.base[lane] + rank * 128), round);
    if (lane < ranks && !spin(reinterpret_cast<uint64_t*>(words.base[rank] + lane * 128), round)) return;
    __syncwarp();
  }
}

}  // namespace

void launch_plain_store(cudaStream_t stream, int ctas, int peers, int rank, int ranks, const PlainPeers& to,
                        uint64_t peer_stride, const void* src, uint64_t bytes) {
  plain_store<<<ctas, 1024, 0, stream>>>(peers, rank, ranks, to, peer_stride, static_cast<const uint4*>(src),
                                         bytes / 16);
}
void launch_plain_bulk(cudaStream_t stream, bool add, int ctas, int rank, void* dst, uint64_t bytes) {
  plain_bulk<<<ctas, 128, 0, stream>>>(add, rank, static_cast<char*>(dst), bytes);
}
void launch_plain_bounce(cudaStream_t stream, uint64_t* mine, uint64_t* theirs, void* data, const void* src,
                         uint32_t bytes, bool first, uint32_t rounds) {
  plain_bounce<<<1, bytes == 0 ? 1 : 256, 0, stream>>>(mine, theirs, static_cast<uint4*>(data),
                                                       static_cast<const uint4*>(src), bytes, first, rounds);
}
void launch_plain_barriers(cudaStream_t stream, const PlainPeers& words, int rank, int ranks, uint32_t rounds) {
  plain_barriers<<<1, 32, 0, stream>>>(words, rank, ranks, rounds);
}

cudaError_t load_plain_kernels();
cudaError_t load_plain_kernels() {
  const void* const kernels[] = {
      reinterpret_cast<const void*>(&plain_store), reinterpret_cast<const void*>(&plain_bulk),
      reinterpret_cast<const void*>(&plain_bounce), reinterpret_cast<const void*>(&plain_barriers)};
  for (const void* kernel : kernels) {
    cudaFuncAttributes attributes{};
    if (const cudaError_t code = cudaFuncGetAttributes(&attributes, kernel); code != cudaSuccess) return code;
  }
  return cudaSuccess;
}

}  // namespace overlace::bench
