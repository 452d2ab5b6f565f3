#include <cuda_fp16.h>

#include "tests/gpu/support/operands.h"

namespace overlace::test {
namespace {

constexpr unsigned kThreads = 256;
enum Tensor : uint64_t { kA = 1, kB, kBias };

/// What is the same for all elements of an operand in a round.
__device__ uint64_t key_of(Tensor tensor, int owner, uint64_t round) {
  return mixed(round * 0x9e3779b97f4a7c15ull + tensor * 4096 + static_cast<uint64_t>(owner) + 1);
}

/// -1, 0 or 1.
__device__ int value_of(uint64_t key, int64_t row, int64_t column, uint32_t sparse) {
  const uint64_t h = mixed(key + static_cast<uint64_t>(row) * 0xc2b2ae3d27d4eb4full + static_cast<uint64_t>(column));
  if (static_cast<uint32_t>(h) % sparse != 0) return 0;
  return (h >> 40 & 1) != 0 ? 1 : -1;
}

__device__ void store(void* data, DType dtype, int64_t i, float value) {
  if (dtype == DType::bf16) static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16_rn(value);
  if (dtype == DType::fp16) static_cast<__half*>(data)[i] = __float2half_rn(value);
  if (dtype == DType::fp32) static_cast<float*>(data)[i] = value;
}

__device__ float load(const void* data, DType dtype, int64_t i) {
  if (dtype == DType::bf16) return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
  if (dtype == DType::fp16) return __half2float(static_cast<const __half*>(data)[i]);
  return static_cast<const float*>(data)[i];
}

__device__ bool gathers(const ExactPod& p) { return p.op == ExactPod::Op::ag_gemm || p.op == ExactPod::Op::ag_wgrad; }
__device__ int64_t first_index() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ int64_t index_step() { return int64_t{gridDim.x} * blockDim.x; }

__global__ void next_round(uint64_t* round) { ++*round; }

/// A of the whole has one owner where it is gathered, else each rank has its own.
__global__ void fill_operands(const ExactPod p, void* a, void* b, void* bias, const uint64_t* round) {
  const bool is_gather = gathers(p);
  const int64_t a_rows = is_gather ? p.mine : p.m, a_first = is_gather ? p.first : 0;
  const int64_t depth = p.op == ExactPod::Op::ag_wgrad ? p.m : p.k;
  const uint64_t of_a = key_of(kA, is_gather ? 0 : p.rank, *round), of_b = key_of(kB, p.rank, *round);
  const uint64_t of_bias = key_of(kBias, is_gather ? p.rank : 0, *round);
  for (int64_t i = first_index(); i < a_rows * p.k; i += index_step())
    store(a, p.dtype, i, static_cast<float>(value_of(of_a, a_first + i / p.k, i % p.k, p.sparse)));
  const int64_t pitch = p.is_nk ? depth : p.n;
  for (int64_t i = first_index(); i < depth * p.n; i += index_step()) {
    const int64_t row = p.is_nk ? i % pitch : i / pitch, column = p.is_nk ? i / pitch : i % pitch;
    store(b, p.dtype, i, static_cast<float>(value_of(of_b, row, column, p.sparse)));
  }
  for (int64_t j = first_index(); p.has_bias && j < p.n; j += index_step())
    store(bias, p.dtype, j, static_cast<float>(value_of(of_bias, 0, j, p.sparse)));
}

/// One element of the result, from the definition of the operator.
__device__ int wanted(const ExactPod& p, int64_t row, int64_t column, uint64_t round) {
  const bool is_gather = gathers(p), sums_rows = p.op == ExactPod::Op::ag_wgrad;
  const int64_t depth = sums_rows ? p.m : p.k, at = p.op == ExactPod::Op::gemm_rs ? p.first + row : row;
  int sum = p.has_bias ? value_of(key_of(kBias, is_gather ? p.rank : 0, round), 0, column, p.sparse) : 0;
  for (int s = is_gather ? p.rank : 0; s < (is_gather ? p.rank + 1 : p.ranks); ++s) {
    const uint64_t of_a = key_of(kA, is_gather ? 0 : s, round), of_b = key_of(kB, s, round);
    for (int64_t d = 0; d < depth; ++d) {
      const int a = sums_rows ? value_of(of_a, d, at, p.sparse) : value_of(of_a, at, d, p.sparse);
      if (a != 0) sum += a * value_of(of_b, d, column, p.sparse);
    }
  }
  return sum;
}

__global__ void look(const ExactPod p, const void* out, const uint64_t* round, uint64_t* wrong) {
  const int64_t skipped = static_cast<int64_t>(*round % static_cast<uint64_t>(p.look_every));
  const int64_t rows = p.rows > skipped ? (p.rows - skipped + p.look_every - 1) / p.look_every : 0;
  unsigned long long count = 0;
  for (int64_t i = first_index(); i < rows * p.n; i += index_step()) {
    const int64_t row = skipped + i / p.n * p.look_every, column = i % p.n;
    count += load(out, p.dtype, row * p.n + column) != static_cast<float>(wanted(p, row, column, *round));
  }
  if (count != 0) atomicAdd(reinterpret_cast<unsigned long long*>(wrong), count);
}

__device__ float addend(int rank, int64_t i, uint32_t round) {
  return static_cast<float>(
      mixed(static_cast<uint64_t>(i) * 64 + static_cast<uint64_t>(rank) + (uint64_t{round} << 40)) % 1000);
}

__global__ void fill_addends(float* data, int64_t count, int rank, uint32_t round) {
  for (int64_t i = first_index(); i < count; i += index_step()) data[i] = addend(rank, i, round);
}

__global__ void look_at_sum(const float* data, int64_t count, int ranks, uint32_t round, uint64_t* wrong) {
  unsigned long long bad = 0;
  for (int64_t i = first_index(); i < count; i += index_step()) {
    float sum = 0;
    for (int r = 0; r < ranks; ++r) sum += addend(r, i, round);
    bad += data[i] != sum;
  }
  if (bad != 0) atomicAdd(reinterpret_cast<unsigned long long*>(wrong), bad);
}

__global__ void heavy_copy(uint4* to, const uint4* from, int64_t count) {
  for (int64_t i = first_index(); i < count; i += index_step()) to[i] = from[i];
}

unsigned blocks_for(int64_t count, int64_t most = 4096) {
  const int64_t blocks = (count + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks > most ? most : blocks);
}

/// Sum of four uniform values: about normal, variance 1/3.
__global__ void values(__nv_bfloat16* data, int64_t count, uint64_t seed) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const uint64_t bits = mixed(seed * 0x9e3779b97f4a7c15ull + static_cast<uint64_t>(i) + 1);
  float sum = -2;
  for (int part = 0; part < 4; ++part) sum += static_cast<float>(bits >> (16 * part) & 0xffff) / 65536.0f;
  data[i] = __float2bfloat16_rn(sum);
}

__global__ void differences(const uint16_t* data, const uint16_t* wanted, int64_t count, uint64_t* wrong) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count && data[i] != wanted[i]) atomicAdd(reinterpret_cast<unsigned long long*>(wrong), 1ull);
}

__global__ void delay(uint64_t ns) {
  uint64_t begin = 0, now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < ns);
}

unsigned blocks_of(int64_t count) { return static_cast<unsigned>((count + kThreads - 1) / kThreads); }

}  // namespace

cudaError_t launch_next_operands(cudaStream_t stream, const ExactPod& problem, void* a, void* b, void* bias,
                                 uint64_t* round) {
  next_round<<<1, 1, 0, stream>>>(round);
  fill_operands<<<blocks_for(problem.m * problem.k), kThreads, 0, stream>>>(problem, a, b, bias, round);
  return cudaGetLastError();
}

cudaError_t launch_look(cudaStream_t stream, const ExactPod& problem, const void* out, const uint64_t* round,
                        uint64_t* wrong) {
  look<<<blocks_for(problem.rows * problem.n), kThreads, 0, stream>>>(problem, out, round, wrong);
  return cudaGetLastError();
}

cudaError_t launch_addends(cudaStream_t stream, float* data, int64_t count, int rank, uint32_t round) {
  fill_addends<<<blocks_for(count), kThreads, 0, stream>>>(data, count, rank, round);
  return cudaGetLastError();
}

cudaError_t launch_look_at_sum(cudaStream_t stream, const float* data, int64_t count, int ranks, uint32_t round,
                               uint64_t* wrong) {
  look_at_sum<<<blocks_for(count), kThreads, 0, stream>>>(data, count, ranks, round, wrong);
  return cudaGetLastError();
}

cudaError_t launch_heavy_copy(cudaStream_t stream, void* to, const void* from, uint64_t bytes) {
  const auto count = static_cast<int64_t>(bytes / sizeof(uint4));
  heavy_copy<<<blocks_for(count), kThreads, 0, stream>>>(static_cast<uint4*>(to), static_cast<const uint4*>(from),
                                                         count);
  return cudaGetLastError();
}

cudaError_t load_exact_kernels() {
  cudaFuncAttributes attributes{};
  for (const void* kernel : {reinterpret_cast<const void*>(next_round), reinterpret_cast<const void*>(fill_operands),
                             reinterpret_cast<const void*>(look), reinterpret_cast<const void*>(fill_addends),
                             reinterpret_cast<const void*>(look_at_sum), reinterpret_cast<const void*>(heavy_copy)}) {
    if (const cudaError_t e = cudaFuncGetAttributes(&attributes, kernel); e != cudaSuccess) return e;
  }
  return cudaSuccess;
}

cudaError_t launch_values(cudaStream_t stream, __nv_bfloat16* data, int64_t count, uint64_t seed) {
  values<<<blocks_of(count), kThreads, 0, stream>>>(data, count, seed);
  return cudaGetLastError();
}

cudaError_t launch_count_differences(cudaStream_t stream, const uint16_t* data, const uint16_t* wanted, int64_t count,
                                     uint64_t* wrong) {
  differences<<<blocks_of(count), kThreads, 0, stream>>>(data, wanted, count, wrong);
  return cudaGetLastError();
}

cudaError_t launch_delay(cudaStream_t stream, uint64_t ns) {
  delay<<<1, 1, 0, stream>>>(ns);
  return cudaGetLastError();
}

}  // namespace overlace::test
