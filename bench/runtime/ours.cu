#include "bench/runtime/kernels.cuh"
#include "bench/runtime/pattern.cuh"
#include "overlace/device/barrier.cuh"
#include "overlace/device/put.cuh"

namespace overlace::bench {
namespace {

__global__ void values(uint32_t* data, uint64_t words, uint32_t from) {
  const uint64_t step = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words; i += step) data[i] = value_of(i, from);
}

__global__ void check(const uint32_t* data, uint64_t words, uint64_t period, uint32_t from, bool twice,
                      uint64_t* wrong) {
  const uint64_t step = uint64_t{gridDim.x} * blockDim.x;
  uint64_t count = 0;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words; i += step) {
    const uint32_t once = value_of(period != 0 ? i % period : i, from);
    count += data[i] != (twice ? doubled(once) : once);
  }
  if (count != 0) atomicAdd(reinterpret_cast<unsigned long long*>(wrong), static_cast<unsigned long long>(count));
}

__global__ void bounce(const __grid_constant__ ChannelPod channel, uint32_t id, uint64_t offset, const char* src,
                       uint32_t bytes, uint32_t rounds, int32_t* code) {
  const int peer = channel.team.rank ^ 1;
  const bool first = channel.team.rank % 2 == 0;
  const uint64_t start = device::ticket(channel, peer, id);
  int failed = 0;
  for (uint32_t round = 1; round <= rounds && failed == 0; ++round) {
    if (first) device::put_signal(channel, peer, offset, src, bytes, id);
    if (threadIdx.x == 0) failed = static_cast<int>(device::wait_ge(channel, peer, id, start + round));
    if (blockDim.x > 1) failed = __syncthreads_or(failed);
    if (!first) device::put_signal(channel, peer, offset, src, bytes, id);
  }
  if (threadIdx.x != 0) return;
  device::consume(channel, peer, id, rounds);
  *code = failed;
}

__global__ void flag_bounce(const __grid_constant__ ChannelPod channel, uint32_t id, uint32_t rounds, int32_t* code) {
  const int peer = channel.team.rank ^ 1;
  const bool first = channel.team.rank % 2 == 0;
  const uint64_t start = device::ticket(channel, peer, id);
  Errc failed = Errc::ok;
  for (uint32_t round = 1; round <= rounds && failed == Errc::ok; ++round) {
    if (first) device::signal_post(channel, peer, id, start + round);
    failed = device::wait_ge(channel, peer, id, start + round);
    if (!first) device::signal_post(channel, peer, id, start + round);
  }
  device::consume(channel, peer, id, rounds);
  *code = static_cast<int32_t>(failed);
}

__global__ void barriers(const __grid_constant__ ChannelPod channel, uint32_t id, uint32_t rounds, int32_t* code) {
  Errc failed = Errc::ok;
  for (uint32_t round = 0; round < rounds && failed == Errc::ok; ++round) failed = device::barrier_block(channel, id);
  if (threadIdx.x == 0) *code = static_cast<int32_t>(failed);
}

__global__ void release(const __grid_constant__ ChannelPod channel, uint64_t* counter, int peer, uint32_t ack,
                        uint32_t rounds, int32_t* code) {
  const uint64_t start = device::ticket(channel, peer, ack);
  Errc failed = Errc::ok;
  for (uint32_t round = 1; round <= rounds && failed == Errc::ok; ++round) {
    device::ptx::store_release_sys(counter, round);
    failed = device::wait_ge(channel, peer, ack, start + round);
  }
  // After a failure the stream's waits must still end.
  if (failed != Errc::ok) device::ptx::store_release_sys(counter, uint64_t{rounds});
  device::consume(channel, peer, ack, rounds);
  *code = static_cast<int32_t>(failed);
}

__global__ void answer(const __grid_constant__ ChannelPod channel, int peer, uint32_t flag, uint32_t ack,
                       uint32_t rounds, int32_t* code) {
  const uint64_t start = device::ticket(channel, peer, flag);
  Errc failed = Errc::ok;
  for (uint32_t round = 1; round <= rounds && failed == Errc::ok; ++round) {
    failed = device::wait_ge(channel, peer, flag, start + round);
    device::signal_add(channel, peer, ack);
  }
  device::consume(channel, peer, flag, rounds);
  *code = static_cast<int32_t>(failed);
}

}  // namespace

void launch_values(cudaStream_t stream, uint32_t* data, uint64_t words, uint32_t from) {
  values<<<264, 512, 0, stream>>>(data, words, from);
}
void launch_check(cudaStream_t stream, const uint32_t* data, uint64_t words, uint64_t period, uint32_t from,
                  uint64_t* wrong) {
  check<<<264, 512, 0, stream>>>(data, words, period, from, false, wrong);
}
void launch_check_twice(cudaStream_t stream, const uint32_t* data, uint64_t words, uint64_t period, uint32_t from,
                        uint64_t* wrong) {
  check<<<264, 512, 0, stream>>>(data, words, period, from, true, wrong);
}
void launch_bounce(cudaStream_t stream, const ChannelPod& channel, uint32_t id, uint64_t offset, const void* src,
                   uint32_t bytes, uint32_t rounds, int32_t* code) {
  if (bytes == 0) {
    flag_bounce<<<1, 1, 0, stream>>>(channel, id, rounds, code);
  } else {
    bounce<<<1, 256, 0, stream>>>(channel, id, offset, static_cast<const char*>(src), bytes, rounds, code);
  }
}
void launch_barriers(cudaStream_t stream, const ChannelPod& channel, uint32_t id, uint32_t rounds, int32_t* code) {
  barriers<<<1, 32, 0, stream>>>(channel, id, rounds, code);
}
void launch_release(cudaStream_t stream, const ChannelPod& channel, uint64_t* counter, int peer, uint32_t ack,
                    uint32_t rounds, int32_t* code) {
  release<<<1, 1, 0, stream>>>(channel, counter, peer, ack, rounds, code);
}
void launch_answer(cudaStream_t stream, const ChannelPod& channel, int peer, uint32_t flag, uint32_t ack,
                   uint32_t rounds, int32_t* code) {
  answer<<<1, 1, 0, stream>>>(channel, peer, flag, ack, rounds, code);
}

cudaError_t load_plain_kernels();

cudaError_t load_runtime_kernels() {
  const void* const kernels[] = {reinterpret_cast<const void*>(&values),  reinterpret_cast<const void*>(&check),
                                 reinterpret_cast<const void*>(&bounce),  reinterpret_cast<const void*>(&flag_bounce),
                                 reinterpret_cast<const void*>(&release), reinterpret_cast<const void*>(&answer),
                                 reinterpret_cast<const void*>(&barriers)};
  for (const void* kernel : kernels) {
    cudaFuncAttributes attributes{};
    if (const cudaError_t code = cudaFuncGetAttributes(&attributes, kernel); code != cudaSuccess) return code;
  }
  return load_plain_kernels();
}

}  // namespace overlace::bench
