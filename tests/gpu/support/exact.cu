#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "overlace/ops/ag_gemm.h"
#include "overlace/ops/ag_wgrad.h"
#include "overlace/ops/common.h"
#include "overlace/ops/gemm_ar.h"
#include "overlace/ops/gemm_rs.h"
#include "overlace/team.h"
#include "src/base/format.h"
#include "src/spec/operators.h"
#include "tests/gpu/support/exact.h"
#include "tests/gpu/support/gpu_ranks.h"

namespace overlace::test {
namespace {

constexpr unsigned kThreads = 256;
enum Tensor : uint64_t { kA = 1, kB, kBias };

__host__ __device__ uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

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
  return static_cast<unsigned>(std::clamp<int64_t>((count + kThreads - 1) / kThreads, 1, most));
}

/// Memory that was given back is kept for the next operands: giving it to the driver would wait for the device.
void keep_pool() {
  int device = 0;
  cudaMemPool_t pool = nullptr;
  uint64_t most = UINT64_MAX;
  EXPECT_CUDA(cudaGetDevice(&device));
  EXPECT_CUDA(cudaDeviceGetDefaultMemPool(&pool, device));
  EXPECT_CUDA(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &most));
}

ExactPod::Op op_of(const std::string& name) {
  if (name == "ag_gemm") return ExactPod::Op::ag_gemm;
  if (name == "gemm_rs") return ExactPod::Op::gemm_rs;
  return name == "gemm_ar" ? ExactPod::Op::gemm_ar : ExactPod::Op::ag_wgrad;
}

ExactPod pod_of(const ExactProblem& p, const std::vector<int64_t>& offsets, int rank, int ranks) {
  const auto r = static_cast<size_t>(rank);
  ExactPod pod{.op = op_of(p.op), .rank = rank, .ranks = ranks, .m = p.m, .n = p.n, .k = p.k};
  pod.first = offsets[r], pod.mine = offsets[r + 1] - offsets[r];
  pod.rows = p.op == "gemm_rs" ? pod.mine : p.op == "ag_wgrad" ? p.k : p.m;
  pod.dtype = p.dtype, pod.is_nk = p.layout == spec::BLayout::nk, pod.has_bias = p.bias;
  pod.look_every = p.look_every;
  // Sums have a variance of terms / sparse^2: eight times the deviation of 800 is below 256.
  const double terms = static_cast<double>(p.op == "ag_wgrad" ? p.m : p.op == "ag_gemm" ? p.k : p.k * ranks);
  pod.sparse = static_cast<uint32_t>(std::max(2.0, std::ceil(std::sqrt(terms / 800))));
  return pod;
}

}  // namespace

std::string ExactProblem::text() const {
  std::string rows;
  for (const int64_t offset : offsets) rows += base::format(" {}", offset);
  return base::format("{} {} q {} M {} N {} K {} {} {}{}{}", op, family, degree, m, n, k, dtype_name(dtype),
                      layout == spec::BLayout::nk ? "nk" : "kn", bias ? " bias" : "",
                      rows.empty() ? "" : " rows" + rows);
}

spec::OpSpec op_spec_of(const ExactProblem& p, int ranks) {
  return {.op = p.op,
          .m = p.m,
          .n = p.n,
          .k = p.k,
          .ranks = ranks,
          .dtype = p.dtype,
          .out_dtype = p.dtype,
          .b_layout = p.layout,
          .bias = p.bias,
          .row_offsets = p.offsets};
}

ExactMemory::Bytes ExactMemory::need_of(const ExactProblem& p) {
  const auto element = static_cast<int64_t>(dtype_bytes(p.dtype));
  const bool is_wgrad = p.op == "ag_wgrad";
  return {.a = p.m * p.k * element,
          .b = (is_wgrad ? p.m : p.k) * p.n * element,
          .out = (is_wgrad ? p.k : p.m) * p.n * element,
          .bias = p.n * element};
}

bool ExactMemory::holds(const ExactProblem& problem) const {
  const Bytes need = need_of(problem);
  return need.a <= room_.a && need.b <= room_.b && need.out <= room_.out && need.bias <= room_.bias;
}

ExactMemory::ExactMemory(cudaStream_t stream, const ExactProblem& largest) : stream_(stream) {
  keep_pool();
  const auto allocate = [&](int64_t bytes) {
    void* memory = nullptr;
    EXPECT_CUDA(cudaMallocAsync(&memory, static_cast<size_t>(std::max<int64_t>(bytes, 256)), stream_));
    all_.push_back(memory);
    return memory;
  };
  room_ = need_of(largest);
  a = allocate(room_.a);
  b = allocate(room_.b);
  out = allocate(room_.out);
  bias = allocate(room_.bias);
  round = static_cast<uint64_t*>(allocate(2 * sizeof(uint64_t)));
  wrong = round + 1;
  EXPECT_CUDA(cudaMemsetAsync(round, 0, 2 * sizeof(uint64_t), stream_));
}

ExactMemory::~ExactMemory() {
  for (void* memory : all_) (void)cudaFreeAsync(memory, stream_);
}

ExactSite::ExactSite(Channel& channel, const ExactProblem& problem, std::shared_ptr<ExactMemory> memory)
    : channel_(channel), problem_(problem), memory_(std::move(memory)) {
  const Team& team = channel.team();
  const spec::OpSpec op = op_spec_of(problem, team.size());
  pod_ = pod_of(problem, spec::row_offsets(op), team.rank(), team.size());
  if (memory_ == nullptr) memory_ = std::make_shared<ExactMemory>(stream(), problem);
  EXPECT_TRUE(memory_->holds(problem)) << "the memory is too small for " << problem.text();
  const int64_t depth = problem.op == "ag_wgrad" ? problem.m : problem.k;
  a_ =
      TensorView::contiguous(memory_->a, problem.dtype, {spec::gathers(problem.op) ? pod_.mine : problem.m, problem.k});
  b_ = pod_.is_nk ? TensorView::contiguous(memory_->b, problem.dtype, {problem.n, depth}).transposed()
                  : TensorView::contiguous(memory_->b, problem.dtype, {depth, problem.n});
  out_ = TensorView::contiguous(memory_->out, problem.dtype, {pod_.rows, problem.n});
  if (problem.bias) bias_ = TensorView::contiguous(memory_->bias, problem.dtype, {problem.n});
  schedule_ = spec::make_schedule(op, problem.family, problem.degree);
}

std::string ExactSite::why_not() const {
  return ops::supports(channel_, op_spec_of(problem_, channel_.team().size()), schedule_).reason;
}

void ExactSite::run() { run(a_); }

void ExactSite::run_with_a_wrong_a() {
  TensorView wrong = a_;
  wrong.dtype = DType::i32;
  run(wrong);
}

void ExactSite::run(const TensorView& a) {
  const std::vector<int64_t>& rows = problem_.offsets;
  switch (pod_.op) {
    case ExactPod::Op::ag_gemm:
      return ops::run(channel_, ops::AgGemmArgs{.a_shard = a, .b = b_, .c = out_, .bias = bias_, .row_offsets = rows},
                      schedule_);
    case ExactPod::Op::ag_wgrad:
      return ops::run(channel_, ops::AgWgradArgs{.a_shard = a, .b = b_, .c = out_, .row_offsets = rows}, schedule_);
    case ExactPod::Op::gemm_rs:
      return ops::run(channel_, ops::GemmRsArgs{.a = a, .b = b_, .out = out_, .bias = bias_, .row_offsets = rows},
                      schedule_);
    case ExactPod::Op::gemm_ar:
      return ops::run(channel_, ops::GemmArArgs{.a = a, .b = b_, .out = out_, .bias = bias_}, schedule_);
  }
}

void ExactSite::call() {
  const int64_t elements = pod_.rows * pod_.n;
  next_round<<<1, 1, 0, stream()>>>(memory_->round);
  fill_operands<<<blocks_for(pod_.m * pod_.k), kThreads, 0, stream()>>>(pod_, memory_->a, memory_->b, memory_->bias,
                                                                        memory_->round);
  EXPECT_CUDA(cudaGetLastError());
  if (elements > 0) {
    EXPECT_CUDA(cudaMemsetAsync(memory_->out, 0xff, static_cast<size_t>(elements) * dtype_bytes(pod_.dtype), stream()));
  }
  run();
  look<<<blocks_for(elements), kThreads, 0, stream()>>>(pod_, memory_->out, memory_->round, memory_->wrong);
  EXPECT_CUDA(cudaGetLastError());
}

uint64_t ExactSite::wrong() {
  uint64_t count = 0;
  EXPECT_CUDA(cudaStreamSynchronize(stream()));  // a copy to pageable memory blocks in the driver
  EXPECT_CUDA(cudaMemcpyAsync(&count, memory_->wrong, sizeof count, cudaMemcpyDeviceToHost, stream()));
  EXPECT_CUDA(cudaStreamSynchronize(stream()));
  return count;
}

Replay::Replay(cudaStream_t stream, const std::function<void()>& body) : stream_(stream) {
  EXPECT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  try {
    body();
  } catch (...) {
    (void)cudaStreamEndCapture(stream, &graph_);
    if (graph_ != nullptr) (void)cudaGraphDestroy(graph_);
    (void)cudaGetLastError();
    throw;
  }
  EXPECT_CUDA(cudaStreamEndCapture(stream, &graph_));
  EXPECT_CUDA(cudaGraphInstantiate(&exec_, graph_, 0));
  EXPECT_CUDA(cudaGraphUpload(exec_, stream));  // not at the first launch, when a rank that shares the GPU may wait
  EXPECT_CUDA(cudaStreamSynchronize(stream));
}

Replay::~Replay() {
  if (exec_ != nullptr) (void)cudaGraphExecDestroy(exec_);
  if (graph_ != nullptr) (void)cudaGraphDestroy(graph_);
}

void Replay::launch() { EXPECT_CUDA(cudaGraphLaunch(exec_, stream_)); }

void launch_addends(cudaStream_t stream, float* data, int64_t count, int rank, uint32_t round) {
  fill_addends<<<blocks_for(count), kThreads, 0, stream>>>(data, count, rank, round);
  EXPECT_CUDA(cudaGetLastError());
}

void launch_look_at_sum(cudaStream_t stream, const float* data, int64_t count, int ranks, uint32_t round,
                        uint64_t* wrong) {
  look_at_sum<<<blocks_for(count), kThreads, 0, stream>>>(data, count, ranks, round, wrong);
  EXPECT_CUDA(cudaGetLastError());
}

void launch_heavy_copy(cudaStream_t stream, void* to, const void* from, uint64_t bytes) {
  const auto count = static_cast<int64_t>(bytes / sizeof(uint4));
  heavy_copy<<<blocks_for(count), kThreads, 0, stream>>>(static_cast<uint4*>(to), static_cast<const uint4*>(from),
                                                         count);
  EXPECT_CUDA(cudaGetLastError());
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

}  // namespace overlace::test
