#include "overlace/device/barrier.cuh"
#include "overlace/device/tma.cuh"
#include "tests/gpu/support/kernels.h"
#include "tests/gpu/support/put_by_tma.cuh"

namespace overlace::test {
namespace {

__device__ uint8_t device_pattern(uint32_t seed, uint64_t i) {
  const uint64_t x = (i + 1) * 0x9e3779b97f4a7c15ull + seed * 0xbf58476d1ce4e5b9ull;
  return static_cast<uint8_t>(x >> 37);
}

__global__ void fill(uint8_t* data, uint64_t bytes, uint32_t seed) {
  const uint64_t step = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < bytes; i += step)
    data[i] = device_pattern(seed, i);
}

__global__ void compare(const uint8_t* data, uint64_t bytes, uint32_t seed, uint64_t* wrong) {
  const uint64_t step = uint64_t{gridDim.x} * blockDim.x;
  uint64_t count = 0;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < bytes; i += step)
    count += data[i] != device_pattern(seed, i);
  if (count != 0) atomicAdd(reinterpret_cast<unsigned long long*>(wrong), static_cast<unsigned long long>(count));
}

__global__ void put_signal(const __grid_constant__ ChannelPod channel, Put how, int peer, uint64_t offset,
                           const char* src, uint64_t bytes, uint32_t id) {
  if (how == Put::cta) return device::put_signal(channel, peer, offset, src, bytes, id);
  if (how == Put::thread && threadIdx.x == 0) device::put_thread(channel, peer, offset, src, bytes);
  if (how == Put::warp && threadIdx.x < 32) device::put_warp(channel, peer, offset, src, bytes);
  if (how == Put::tma) put_by_tma(channel, peer, offset, src, bytes);
  __syncthreads();
  if (threadIdx.x != 0) return;
  device::fence();
  device::signal_add(channel, peer, id);
}

__global__ void wait_one(const __grid_constant__ ChannelPod channel, int sender, uint32_t id, uint32_t delta,
                         int32_t* code) {
  const Errc result = device::wait_ge(channel, sender, id, device::ticket(channel, sender, id) + delta);
  if (result == Errc::ok) device::consume(channel, sender, id, delta);
  *code = static_cast<int32_t>(result);
}

__global__ void rounds_kernel(const __grid_constant__ ChannelPod channel, Round how, uint32_t id, uint32_t rounds,
                              int32_t* code) {
  const int me = channel.team.rank, size = channel.team.size, lane = static_cast<int>(threadIdx.x);
  int failed = 0;
  for (uint32_t round = 1; round <= rounds && failed == 0; ++round) {
    if (how == Round::barrier_block) {
      failed = static_cast<int>(device::barrier_block(channel, id));
      continue;
    }
    if (how == Round::signal_add_all) {
      if (lane == 0) device::signal_add_all(channel, id);
    } else if (lane < size && lane != me) {
      if (how == Round::post) {
        device::signal_post(channel, lane, id, round);
      } else {
        device::signal_add(channel, lane, id);
      }
    }
    if (lane < size && lane != me) {
      const Errc result = device::wait_ge(channel, lane, id, device::ticket(channel, lane, id) + 1);
      if (result == Errc::ok) device::consume(channel, lane, id, 1);
      failed = static_cast<int>(result);
    }
    failed = __syncthreads_or(failed);
  }
  if (lane == 0) *code = failed;
}

__global__ void many_adds(const __grid_constant__ ChannelPod channel, int peer, uint32_t id, uint32_t adds) {
  if (threadIdx.x == 0)
    for (uint32_t i = 0; i < adds; ++i) device::signal_add(channel, peer, id);
}

__global__ void grid_rounds(const __grid_constant__ ChannelPod channel, uint32_t rounds, uint32_t* counter,
                            uint32_t* cells, uint32_t* wrong, int32_t* code) {
  uint32_t met = 0;
  Errc result = Errc::ok;
  for (uint32_t round = 1; round <= rounds && result == Errc::ok; ++round) {
    if (threadIdx.x == 0) cells[blockIdx.x] = round;
    result = device::barrier_grid(channel, counter, &met);
    for (uint32_t i = threadIdx.x; i < gridDim.x; i += blockDim.x)
      if (*static_cast<volatile uint32_t*>(&cells[i]) != round) atomicAdd(wrong, 1u);
    if (result == Errc::ok) result = device::barrier_grid(channel, counter, &met);
  }
  if (result != Errc::ok) *code = static_cast<int32_t>(result);
}

__device__ void pause_ns(uint64_t ns) {
  for (const uint64_t begin = device::ptx::global_ns(); device::ptx::global_ns() - begin < ns;) {
  }
}

constexpr uint64_t kPauseNs = 20000;

__device__ void litmus_signal(const LitmusArgs& a, int to, uint32_t round) {
  if (a.kind == Litmus::stores_word || a.kind == Litmus::broken_word_first) {
    device::put_word_release(a.channel, to, a.word_offset, device::make_word(round * 7, round));
  } else if (a.kind == Litmus::word_carries_value) {
    device::put_word(a.channel, to, a.word_offset, device::make_word(round * 7, round));
  } else {
    device::signal_add(a.channel, to, a.signal);
  }
}

/// All threads; the flag goes out by thread 0.
__device__ void litmus_send(const LitmusArgs& a, int to, uint32_t round, uint32_t* stage) {
  const bool flag_first = a.kind == Litmus::broken_signal_first || a.kind == Litmus::broken_word_first;
  const bool bulk = a.kind == Litmus::bulk_fence_signal || a.kind == Litmus::bulk_async_wait;
  if (flag_first && threadIdx.x == 0) {
    litmus_signal(a, to, round);
    pause_ns(kPauseNs);
  }
  __syncthreads();
  const uint32_t value = round * 2654435761u + static_cast<uint32_t>(a.channel.team.rank);
  auto* words = static_cast<uint32_t*>(device::peer_ptr(a.channel.team, to, a.data_offset));
  for (uint32_t i = threadIdx.x; i < kLitmusBytes / 4; i += blockDim.x) (bulk ? stage : words)[i] = value + i;
  if (bulk) device::ptx::fence_shared_to_bulk();
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (bulk) {
    device::put_tma(a.channel, to, a.data_offset, stage, kLitmusBytes);
    device::fence();
  }
  if (!flag_first) litmus_signal(a, to, round);
}

/// Thread 0; a word's value is checked here.
__device__ Errc litmus_wait(const LitmusArgs& a, int from, uint32_t round) {
  uint32_t low = 0;
  Errc result;
  if (a.kind == Litmus::word_carries_value) {
    result = device::wait_word_relaxed(a.channel, a.word_offset, round, &low);
  } else if (a.kind == Litmus::stores_word || a.kind == Litmus::broken_word_first) {
    result = device::wait_word(a.channel, a.word_offset, round, &low);
  } else if (a.kind == Litmus::bulk_async_wait) {
    return device::wait_ge_async(a.channel, from, a.signal, round);
  } else {
    return device::wait_ge(a.channel, from, a.signal, round);
  }
  if (result == Errc::ok && low != round * 7) atomicAdd(a.wrong, 1u);
  return result;
}

__global__ void litmus(const __grid_constant__ LitmusArgs a) {
  __shared__ alignas(128) uint32_t stage[kLitmusBytes / 4];
  const TeamPod& team = a.channel.team;
  const int to = (team.rank + 1) % team.size, from = (team.rank + team.size - 1) % team.size;
  const auto* words = static_cast<const volatile uint32_t*>(device::peer_ptr(team, team.rank, a.data_offset));
  const bool no_credit = a.kind == Litmus::broken_no_credit;
  int failed = 0;
  for (uint32_t round = 1; round <= a.rounds && failed == 0; ++round) {
    litmus_send(a, to, round, stage);
    if (threadIdx.x == 0) failed = static_cast<int>(litmus_wait(a, from, round));
    if (__syncthreads_or(failed) != 0) break;
    if (no_credit && threadIdx.x == 0 && team.rank % 2 == 1 && round % 4 == 0) pause_ns(kPauseNs);
    __syncthreads();
    const uint32_t value = round * 2654435761u + static_cast<uint32_t>(from);
    uint32_t wrong = 0;
    if (a.kind != Litmus::word_carries_value)
      for (uint32_t i = threadIdx.x; i < kLitmusBytes / 4; i += blockDim.x) wrong += words[i] != value + i;
    if (wrong != 0) atomicAdd(a.wrong, wrong);
    __syncthreads();
    if (threadIdx.x == 0) {
      device::signal_add(a.channel, from, a.credit);
      // Without credit the writer only keeps from running away by more than two rounds, so that the test ends.
      const uint32_t needed = no_credit ? (round > 2 ? round - 2 : 0) : round;
      failed = static_cast<int>(device::wait_ge(a.channel, to, a.credit, needed));
    }
    failed = __syncthreads_or(failed);
  }
  if (threadIdx.x != 0) return;
  if (failed == 0) failed = static_cast<int>(device::wait_ge(a.channel, to, a.credit, a.rounds));
  *a.code = failed;
  device::consume(a.channel, to, a.credit, a.rounds);
  const bool by_word =
      a.kind == Litmus::stores_word || a.kind == Litmus::word_carries_value || a.kind == Litmus::broken_word_first;
  if (!by_word) device::consume(a.channel, from, a.signal, a.rounds);
}

__global__ void hold(const uint32_t* word, uint32_t until, int64_t most_ns) {
  const uint64_t begin = device::ptx::global_ns();
  while (device::ptx::load_relaxed_sys(word) != until &&
         static_cast<int64_t>(device::ptx::global_ns() - begin) < most_ns) {
    __nanosleep(1000);
  }
}

}  // namespace

cudaError_t launch_hold(cudaStream_t stream, int pairs, const uint32_t* word, uint32_t until, int64_t most_ms) {
  constexpr int kShared = 200 * 1024;
  const cudaError_t set = cudaFuncSetAttribute(hold, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  if (set != cudaSuccess) return set;
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = 2;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(2 * pairs));
  config.blockDim = dim3(32);
  config.dynamicSmemBytes = kShared;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, hold, word, until, most_ms * 1'000'000);
}

void launch_fill(cudaStream_t stream, void* data, uint64_t bytes, uint32_t seed) {
  fill<<<64, 256, 0, stream>>>(static_cast<uint8_t*>(data), bytes, seed);
}

void launch_compare(cudaStream_t stream, const void* data, uint64_t bytes, uint32_t seed, uint64_t* wrong) {
  compare<<<64, 256, 0, stream>>>(static_cast<const uint8_t*>(data), bytes, seed, wrong);
}

void launch_put_signal(cudaStream_t stream, const ChannelPod& channel, Put how, int peer, uint64_t dst_offset,
                       const void* src, uint64_t bytes, uint32_t id) {
  put_signal<<<1, 256, 0, stream>>>(channel, how, peer, dst_offset, static_cast<const char*>(src), bytes, id);
}

void launch_wait(cudaStream_t stream, const ChannelPod& channel, int sender, uint32_t id, uint32_t delta,
                 int32_t* code) {
  wait_one<<<1, 1, 0, stream>>>(channel, sender, id, delta, code);
}

void launch_rounds(cudaStream_t stream, const ChannelPod& channel, Round how, uint32_t id, uint32_t rounds,
                   int32_t* code) {
  rounds_kernel<<<1, 32, 0, stream>>>(channel, how, id, rounds, code);
}

void launch_many_adds(cudaStream_t stream, const ChannelPod& channel, int peer, uint32_t id, uint32_t blocks,
                      uint32_t adds) {
  many_adds<<<blocks, 32, 0, stream>>>(channel, peer, id, adds);
}

void launch_grid_rounds(cudaStream_t stream, const ChannelPod& channel, uint32_t blocks, uint32_t rounds,
                        uint32_t* counter, uint32_t* cells, uint32_t* wrong, int32_t* code) {
  grid_rounds<<<blocks, 64, 0, stream>>>(channel, rounds, counter, cells, wrong, code);
}

void launch_litmus(cudaStream_t stream, const LitmusArgs& args) { litmus<<<1, 128, 0, stream>>>(args); }

cudaError_t load_kernels() {
  const void* const kernels[] = {
      reinterpret_cast<const void*>(&fill),          reinterpret_cast<const void*>(&compare),
      reinterpret_cast<const void*>(&put_signal),    reinterpret_cast<const void*>(&wait_one),
      reinterpret_cast<const void*>(&rounds_kernel), reinterpret_cast<const void*>(&many_adds),
      reinterpret_cast<const void*>(&grid_rounds),   reinterpret_cast<const void*>(&litmus)};
  for (const void* kernel : kernels) {
    cudaFuncAttributes attributes{};
    if (const cudaError_t code = cudaFuncGetAttributes(&attributes, kernel); code != cudaSuccess) return code;
  }
  return cudaSuccess;
}

}  // namespace overlace::test
