#include "overlace/device/barrier.cuh"
#include "src/runtime/backend/cuda_peer/check.h"
#include "src/runtime/backend/cuda_peer/nodes.h"
#include "src/runtime/backend/cuda_peer/preload.h"

namespace overlace::runtime::cuda_peer {
namespace {

constexpr int kWarp = 32;

__global__ __launch_bounds__(kWarp) void wait_node(const __grid_constant__ WaitList waits) {
  if (threadIdx.x >= waits.count) return;
  const WaitItem& item = waits.items[threadIdx.x];
  uint64_t expected = item.previous != 0 ? 0 : item.at_least;
  if (item.epoch != nullptr) expected += (*item.epoch - 1) * item.adds_per_epoch;
  const uint64_t* slot = item.slot;
  // A failed wait has left its record and set the abort word; the host throws at its next check.
  (void)device::poll_until(waits.team, {WaitKind::signal, item.peer, item.id, expected},
                           [slot, expected](uint64_t& seen) {
                             return device::reached(seen = device::ptx::load_acquire_sys(slot), expected);
                           });
}

__global__ __launch_bounds__(kWarp) void signal_node(const __grid_constant__ SignalList signals) {
  if (threadIdx.x >= signals.count) return;
  const SignalItem& item = signals.items[threadIdx.x];
  if (item.post == 0) {
    device::ptx::add_release_sys(item.slot, item.value);
    return;
  }
  uint64_t total = item.value;
  if (item.epoch != nullptr) total += (*item.epoch - 1) * item.adds_per_epoch;
  device::ptx::store_release_sys(item.slot, total);
}

__global__ __launch_bounds__(kWarp) void epoch_end_node(const __grid_constant__ EpochEnd end) {
  for (uint32_t i = threadIdx.x; i < end.count; i += kWarp) *end.tickets[i].word += end.tickets[i].add;
  if (threadIdx.x == 0 && end.epoch != nullptr) *end.epoch += 1;
}

__global__ __launch_bounds__(kWarp) void barrier_node(const __grid_constant__ ChannelPod channel) {
  (void)device::barrier_block(channel, channel.barrier_id);
}

template <class Argument>
base::Status launch(void (*kernel)(Argument), const Argument& argument, cudaStream_t stream, const char* name) {
  kernel<<<1, kWarp, 0, stream>>>(argument);
  return cuda_status(cudaGetLastError(), name);
}

template <class Argument>
const void* address(void (*kernel)(Argument)) {
  return reinterpret_cast<const void*>(kernel);
}

const RegisteredKernel kLoaded[] = {RegisteredKernel(address(&wait_node)), RegisteredKernel(address(&signal_node)),
                                    RegisteredKernel(address(&epoch_end_node)),
                                    RegisteredKernel(address(&barrier_node))};

}  // namespace

base::Status launch_wait(cudaStream_t stream, const WaitList& waits) {
  if (waits.count == 0) return {};
  if (waits.count > kMaxNodeItems)
    return base::invalid_argument("launch_wait: {} waits, wanted at most {}", waits.count, kMaxNodeItems);
  return launch(&wait_node, waits, stream, "wait_node");
}

base::Status launch_signal(cudaStream_t stream, const SignalList& signals) {
  if (signals.count == 0) return {};
  if (signals.count > kMaxNodeItems)
    return base::invalid_argument("launch_signal: {} signals, wanted at most {}", signals.count, kMaxNodeItems);
  return launch(&signal_node, signals, stream, "signal_node");
}

base::Status launch_epoch_end(cudaStream_t stream, const EpochEnd& end) {
  return launch(&epoch_end_node, end, stream, "epoch_end_node");
}

base::Status launch_barrier(cudaStream_t stream, const TeamPod& team, uint32_t barrier_id) {
  for (int peer = 0; peer < team.size; ++peer)
    if ((peer < kPodPeers ? team.heap[peer] : team.heap_more[peer]) == nullptr)
      return base::error(Errc::not_supported, "launch_barrier: loads and stores do not reach rank {} of the team",
                         peer);
  ChannelPod channel{};
  channel.team = team;
  channel.barrier_id = barrier_id;
  return launch(&barrier_node, channel, stream, "barrier_node");
}

uint64_t* slot_address(const TeamPod& team, int peer, uint32_t id, int sender) {
  OVERLACE_ASSERT(peer >= 0 && peer < team.size && sender >= 0 && sender < team.size && id < team.num_ids);
  char* base = peer < kPodPeers ? team.heap[peer] : team.heap_more[peer];
  OVERLACE_ASSERT(base != nullptr);
  const uint64_t index = static_cast<uint64_t>(id) * team.sig_stride + static_cast<uint64_t>(sender);
  return reinterpret_cast<uint64_t*>(base + team.sig_off + index * team.sig_pitch);
}

}  // namespace overlace::runtime::cuda_peer
