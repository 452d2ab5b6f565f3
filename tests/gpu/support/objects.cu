#include "overlace/device/barrier.cuh"
#include "overlace/device/counter.cuh"
#include "overlace/device/inbox.cuh"
#include "overlace/device/region.cuh"
#include "tests/gpu/support/objects.h"
#include "tests/gpu/support/put_by_tma.cuh"

namespace overlace::test {
namespace {

constexpr uint64_t kPauseNs = 20000;

__device__ void pause_ns(uint64_t ns) {
  for (const uint64_t begin = device::ptx::global_ns(); device::ptx::global_ns() - begin < ns;) {
  }
}

__device__ bool sends(InboxPattern pattern, int from, int to) {
  if (pattern == InboxPattern::all_to_all) return from != to;
  return from % 2 == 0 && to == from + 1;
}

__device__ uint32_t word_of(int from, int to, uint64_t epoch, uint32_t i) {
  return static_cast<uint32_t>(epoch) * 2654435761u + static_cast<uint32_t>(from * 64 + to) * 40503u + i;
}

/// All threads get the first failure.
__device__ int send_all(const InboxArgs& a, uint64_t epoch) {
  const TeamPod& team = a.channel.team;
  for (int step = 1; step < team.size; ++step) {
    const int to = (team.rank + step) % team.size;
    if (!sends(a.pattern, team.rank, to)) continue;
    int failed = 0;
    if (threadIdx.x == 0 && a.pattern != InboxPattern::one_way_without_credit)
      failed = static_cast<int>(device::inbox_wait_credit(a.channel, a.inbox, to));
    if (__syncthreads_or(failed) != 0) return 1;
    const uint64_t place = device::inbox_offset(a.inbox) + static_cast<uint64_t>(team.rank) * a.part_bytes;
    auto* words = static_cast<uint32_t*>(device::peer_ptr(team, to, place));
    for (uint32_t i = threadIdx.x; i < a.part_bytes / 4; i += blockDim.x) words[i] = word_of(team.rank, to, epoch, i);
    __syncthreads();
    if (threadIdx.x != 0) continue;
    device::signal_add(a.channel, to, a.inbox.data_id);
    device::inbox_sent(a.channel, a.inbox, to);
  }
  return 0;
}

__device__ int receive_all(const InboxArgs& a, uint64_t epoch) {
  const TeamPod& team = a.channel.team;
  for (int from = 0; from < team.size; ++from) {
    if (!sends(a.pattern, from, team.rank)) continue;
    int failed = 0;
    if (threadIdx.x == 0) failed = static_cast<int>(device::inbox_wait_data(a.channel, a.inbox, from));
    if (__syncthreads_or(failed) != 0) return 1;
    if (a.pattern != InboxPattern::all_to_all && threadIdx.x == 0 && epoch % 4 == 0) pause_ns(kPauseNs);
    __syncthreads();
    const uint64_t place = device::inbox_offset(a.inbox) + static_cast<uint64_t>(from) * a.part_bytes;
    const auto* words = static_cast<const volatile uint32_t*>(device::peer_ptr(team, team.rank, place));
    uint32_t wrong = 0;
    for (uint32_t i = threadIdx.x; i < a.part_bytes / 4; i += blockDim.x)
      wrong += words[i] != word_of(from, team.rank, epoch, i);
    if (wrong != 0) atomicAdd(a.wrong, wrong);
    __syncthreads();
    if (threadIdx.x == 0) device::inbox_release(a.channel, a.inbox, from);
  }
  return 0;
}

__global__ void inbox_kernel(const __grid_constant__ InboxArgs a) {
  for (uint32_t round = 0; round < a.rounds; ++round) {
    const uint64_t epoch = device::inbox_epoch(a.inbox);
    if (send_all(a, epoch) != 0 || receive_all(a, epoch) != 0) {
      if (threadIdx.x == 0) *a.code = static_cast<int32_t>(Errc::aborted);
      return;
    }
    __syncthreads();
    if (threadIdx.x == 0) device::inbox_advance(a.inbox);
    __syncthreads();
  }
}

__global__ void last_arriver(const __grid_constant__ CountersPod counters, uint32_t* words, uint64_t* sum) {
  words[blockIdx.x] = 1000 + blockIdx.x;
  if (device::counter_arrive(counters, 0) % gridDim.x != 0) return;
  uint64_t total = 0;
  for (uint32_t i = 0; i < gridDim.x; ++i) total += *static_cast<volatile uint32_t*>(&words[i]);
  *sum = total;
}

__global__ void counted_tiles(const __grid_constant__ TeamPod team, const __grid_constant__ CountersPod counters,
                              uint32_t* words, uint64_t* sum, int32_t* code) {
  if (blockIdx.x != 0) {
    words[blockIdx.x] = 2000 + blockIdx.x;
    device::counter_add(counters, 1);
    return;
  }
  const Errc result = device::counter_wait_ge(team, counters, 1, gridDim.x - 1);
  *code = static_cast<int32_t>(result);
  uint64_t total = 0;
  for (uint32_t i = 1; i < gridDim.x; ++i) total += *static_cast<volatile uint32_t*>(&words[i]);
  *sum = total;
}

__global__ void counter_wait(const __grid_constant__ TeamPod team, const __grid_constant__ CountersPod counters,
                             uint32_t index, uint64_t value, int32_t* code) {
  *code = static_cast<int32_t>(device::counter_wait_ge(team, counters, index, value));
}

__global__ void fill_and_count(uint8_t* data, uint32_t bytes, uint32_t seed,
                               const __grid_constant__ CountersPod counters, uint32_t index) {
  for (uint32_t i = threadIdx.x; i < bytes; i += blockDim.x) {
    const uint64_t x = (i + uint64_t{1}) * 0x9e3779b97f4a7c15ull + seed * 0xbf58476d1ce4e5b9ull;
    data[i] = static_cast<uint8_t>(x >> 37);
  }
  __syncthreads();
  if (threadIdx.x == 0) device::counter_add_system(counters, index);
}

__global__ void region_put(const __grid_constant__ ChannelPod channel, const __grid_constant__ RegionPod region,
                           Put how, int peer, uint64_t offset, const char* src, uint64_t bytes, uint32_t id) {
  if (how == Put::cta) return device::put_signal(channel, region, peer, offset, src, bytes, id);
  if (how == Put::thread && threadIdx.x == 0) device::put_thread(region, peer, offset, src, bytes);
  if (how == Put::warp && threadIdx.x < 32) device::put_warp(region, peer, offset, src, bytes);
  if (how == Put::tma) put_by_tma(region, peer, offset, src, bytes);
  __syncthreads();
  if (threadIdx.x != 0) return;
  device::fence();
  device::signal_add(channel, peer, id);
}

template <class... Arguments>
const void* address(void (*kernel)(Arguments...)) {
  return reinterpret_cast<const void*>(kernel);
}

}  // namespace

void launch_inbox(cudaStream_t stream, const InboxArgs& args) { inbox_kernel<<<1, 128, 0, stream>>>(args); }

void launch_last_arriver(cudaStream_t stream, const CountersPod& counters, uint32_t blocks, uint32_t* words,
                         uint64_t* sum) {
  last_arriver<<<blocks, 1, 0, stream>>>(counters, words, sum);
}

void launch_counted_tiles(cudaStream_t stream, const TeamPod& team, const CountersPod& counters, uint32_t blocks,
                          uint32_t* words, uint64_t* sum, int32_t* code) {
  counted_tiles<<<blocks, 1, 0, stream>>>(team, counters, words, sum, code);
}

void launch_counter_wait(cudaStream_t stream, const TeamPod& team, const CountersPod& counters, uint32_t index,
                         uint64_t value, int32_t* code) {
  counter_wait<<<1, 1, 0, stream>>>(team, counters, index, value, code);
}

void launch_fill_and_count(cudaStream_t stream, uint8_t* data, uint32_t bytes, uint32_t seed,
                           const CountersPod& counters, uint32_t index) {
  fill_and_count<<<1, 256, 0, stream>>>(data, bytes, seed, counters, index);
}

void launch_region_put(cudaStream_t stream, const ChannelPod& channel, const RegionPod& region, Put how, int peer,
                       uint64_t dst_offset, const void* src, uint64_t bytes, uint32_t id) {
  region_put<<<1, 256, 0, stream>>>(channel, region, how, peer, dst_offset, static_cast<const char*>(src), bytes, id);
}

cudaError_t load_object_kernels() {
  const void* const kernels[] = {address(&inbox_kernel), address(&last_arriver),   address(&counted_tiles),
                                 address(&counter_wait), address(&fill_and_count), address(&region_put)};
  for (const void* kernel : kernels) {
    cudaFuncAttributes attributes{};
    if (const cudaError_t code = cudaFuncGetAttributes(&attributes, kernel); code != cudaSuccess) return code;
  }
  return cudaSuccess;
}

}  // namespace overlace::test
