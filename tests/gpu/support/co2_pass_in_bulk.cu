#include "overlace/device/detail/bulk.cuh"
#include "src/device/ptx/mbarrier.cuh"
#include "src/train/co2/cuda/pass_pieces.cuh"
#include "tests/gpu/support/co2_pass_in_bulk.h"

namespace overlace::test {
namespace {

using train::kPerThread;
using train::kThreads;

// A CTA has kStages chunks of each array in shared memory: on their way there, computed on, or on their way back.
constexpr int kStages = 6;
constexpr int64_t kChunk = int64_t{kThreads} * kPerThread;

struct Stage {
  float x[kChunk], a[kChunk], kept[kChunk], wire[kChunk];
};

base::Status status_of(cudaError_t code) {
  return code == cudaSuccess ? base::Status::success() : base::error(Errc::cuda, "pass: {}", cudaGetErrorString(code));
}

__device__ void bulk_load(void* shared, const void* global, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   device::ptx::shared_address(shared)),
               "l"(global), "r"(bytes), "r"(barrier)
               : "memory");
}

__device__ void wait_for(uint32_t barrier, uint32_t parity) {
  for (int64_t tries = 0; !device::ptx::mbarrier_try_wait(barrier, parity); ++tries)
    if (tries > int64_t{1} << 24) __trap();
}

/// Brings a chunk of each array. By one thread.
__device__ void bring(Stage& stage, const train::Arrays<float, float>& of, int64_t begin, uint32_t bytes,
                      uint32_t barrier) {
  device::ptx::mbarrier_arrive_expect(barrier, 4 * bytes);
  bulk_load(stage.x, of.x + begin, bytes, barrier);
  bulk_load(stage.a, of.a + begin, bytes, barrier);
  bulk_load(stage.kept, of.kept + begin, bytes, barrier);
  bulk_load(stage.wire, of.wire + begin, bytes, barrier);
}

__device__ void take_away(const Stage& stage, const train::Arrays<float, float>& of, int64_t begin, uint32_t bytes) {
  device::ptx::bulk_store(of.x + begin, stage.x, bytes);
  device::ptx::bulk_store(of.a + begin, stage.a, bytes);
  device::ptx::bulk_store(of.kept + begin, stage.kept, bytes);
  device::ptx::bulk_store(of.wire + begin, stage.wire, bytes);
  device::ptx::bulk_commit();
}

/// Four neighbours in shared memory.
__device__ void compute(const train::PassPod& pass, float groups, float bound, Stage& stage, train::Sums& sums) {
  const int64_t i = int64_t{threadIdx.x} * kPerThread;
  auto x = train::load<kPerThread>(stage.x, i);
  auto a = train::load<kPerThread>(stage.a, i);
  auto kept = train::load<kPerThread>(stage.kept, i);
  auto wire = train::load<kPerThread>(stage.wire, i);
  for (int k = 0; k < kPerThread; ++k) {
    train::Element e{x.values[k], a.values[k], 0, kept.values[k], wire.values[k], 0, true};
    train::step<float, train::PassMode::fused>(pass, bound, groups, e, sums);
    x.values[k] = e.x;
    a.values[k] = e.a;
    kept.values[k] = e.kept;
    wire.values[k] = e.wire;
  }
  train::store(stage.x, i, x);
  train::store(stage.a, i, a);
  train::store(stage.kept, i, kept);
  train::store(stage.wire, i, wire);
}

/// The pass without momentum, with what is kept, by the unit that copies in bulk. Pieces are multiples of 4 elements.
__global__ void __launch_bounds__(kThreads, 2) pass_in_bulk(train::CudaArrays p, float groups, int64_t first) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) char memory[];
  __shared__ uint64_t barriers[kStages];
  Stage* const stages = reinterpret_cast<Stage*>(memory);
  const train::CudaPiece piece = p.pieces[first + blockIdx.x];
  const train::PassTensor tensor = p.tensors[piece.tensor];
  const train::PassPod pass = p.control->pass;
  const float bound = p.bounds[piece.tensor].bound;
  const int64_t flat = tensor.begin + piece.begin;
  const train::Arrays<float, float> of{static_cast<float*>(tensor.x) + piece.begin,
                                       static_cast<float*>(p.memory.wire) + flat,
                                       p.memory.anchor + flat,
                                       nullptr,
                                       p.memory.kept + flat,
                                       nullptr};
  const auto barrier_of = [&](int64_t chunk) { return device::ptx::shared_address(&barriers[chunk % kStages]); };
  const auto count_of = [&](int64_t chunk) {
    const int64_t left = piece.count - chunk * kChunk;
    return left < kChunk ? left : kChunk;
  };
  const auto begin = [&](int64_t chunk) {
    if (chunk * kChunk < piece.count)
      bring(stages[chunk % kStages], of, chunk * kChunk, static_cast<uint32_t>(count_of(chunk) * 4), barrier_of(chunk));
  };
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) device::ptx::mbarrier_init(barrier_of(i), 1);
    device::ptx::mbarrier_init_fence();
    for (int i = 0; i + 1 < kStages; ++i) begin(i);
  }
  __syncthreads();
  train::Sums sums;
  for (int64_t chunk = 0; chunk * kChunk < piece.count; ++chunk) {
    Stage& stage = stages[chunk % kStages];
    wait_for(barrier_of(chunk), static_cast<uint32_t>(chunk / kStages % 2));
    if (int64_t{threadIdx.x} * kPerThread < count_of(chunk)) compute(pass, groups, bound, stage, sums);
    device::ptx::fence_shared_to_bulk();
    __syncthreads();
    if (threadIdx.x != 0) continue;
    take_away(stage, of, chunk * kChunk, static_cast<uint32_t>(count_of(chunk) * 4));
    device::ptx::bulk_wait_read<1>();  // the stage before this one may be filled again
    begin(chunk + kStages - 1);
  }
  if (threadIdx.x == 0) device::ptx::bulk_wait<0>();
  const train::SumsPod total = train::block_sums({.m2 = sums.m2,
                                                  .w2 = sums.w2,
                                                  .v2 = sums.v2,
                                                  .bad = static_cast<double>(sums.bad),
                                                  .clipped = static_cast<double>(sums.clipped)});
  if (threadIdx.x == 0) p.parts[first + blockIdx.x] = total;
#endif
}

}  // namespace

base::Status queue_pass_in_bulk(const train::CudaArrays& arrays, float groups, const train::CudaRun& run,
                                void* stream) {
  constexpr int kBytes = kStages * static_cast<int>(sizeof(Stage));
  static const cudaError_t kIsThere =
      cudaFuncSetAttribute(&pass_in_bulk, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  OVERLACE_TRY(status_of(kIsThere));
  pass_in_bulk<<<static_cast<unsigned>(run.count), kThreads, kBytes, static_cast<cudaStream_t>(stream)>>>(
      arrays, groups, run.first);
  return status_of(cudaGetLastError());
}

}  // namespace overlace::test
