#include "overlace/device/signal.cuh"
#include "src/runtime/backend/cuda_peer/check.h"
#include "src/runtime/backend/cuda_peer/preload.h"
#include "src/runtime/backend/cuda_peer/self_test.h"

namespace overlace::runtime::cuda_peer {
namespace {

constexpr int kWarp = 32;

/// Differs by sender, round and place; never zero.
__device__ uint32_t pattern(uint32_t sender, uint32_t seed, uint32_t index) {
  uint32_t x = (index + 1) * 2654435761u + sender * 40503u + seed * 69069u;
  x ^= x >> 15;
  return x * 2246822519u | 1u;
}

__global__ __launch_bounds__(kWarp) void test_send(char* data, uint32_t bytes, uint32_t sender, uint32_t seed,
                                                   uint64_t* signal, uint64_t* sum) {
  auto* words = reinterpret_cast<uint32_t*>(data);
  for (uint32_t i = threadIdx.x; i < bytes / 4; i += kWarp) words[i] = pattern(sender, seed, i);
  __syncthreads();
  if (threadIdx.x == 0) device::ptx::add_release_sys(signal, 1);
  if (sum != nullptr) device::ptx::add_relaxed_sys(sum, 1);
}

__device__ uint32_t count_wrong(const char* data, uint32_t bytes, uint32_t sender, uint32_t seed) {
  const auto* words = reinterpret_cast<const volatile uint32_t*>(data);
  uint32_t wrong = 0;
  for (uint32_t i = threadIdx.x; i < bytes / 4; i += kWarp) wrong += words[i] != pattern(sender, seed, i);
  return wrong;
}

__global__ __launch_bounds__(kWarp) void test_check(const char* data, uint32_t bytes, uint32_t sender, uint32_t seed,
                                                    const uint64_t* signal, const uint64_t* sum, uint64_t expected_sum,
                                                    uint32_t* verdict) {
  const bool has_signal = device::ptx::load_acquire_sys(signal) == 1;
  const int wrong = __syncthreads_or(count_wrong(data, bytes, sender, seed) != 0);
  if (threadIdx.x != 0) return;
  uint32_t bits = wrong != 0 ? kBadData : 0;
  if (!has_signal) bits |= kBadSignal;
  if (sum != nullptr && device::ptx::load_acquire_sys(sum) != expected_sum) bits |= kBadSum;
  *verdict |= bits;
}

__global__ __launch_bounds__(kWarp) void test_order(const __grid_constant__ TeamPod team, const char* data,
                                                    uint32_t bytes, uint32_t sender, uint32_t seed,
                                                    const uint64_t* flag, uint64_t round, uint32_t* verdict) {
  const Errc code = device::poll_until(team, {WaitKind::stream, sender, 0, round}, [flag, round](uint64_t& seen) {
    return device::reached(seen = device::ptx::load_acquire_sys(flag), round);
  });
  const bool is_bad = code != Errc::ok || count_wrong(data, bytes, sender, seed) != 0;
  if (__syncthreads_or(is_bad) != 0 && threadIdx.x == 0) *verdict |= kBadOrder;
}

/// One warp per sender.
__global__ __launch_bounds__(kWarp) void test_burst(const __grid_constant__ TeamPod team,
                                                    const __grid_constant__ TestBurst burst, uint32_t* verdicts) {
  constexpr uint32_t kWords = TestBlock::kPieceBytes / 4;
  const uint32_t sender = blockIdx.x;
  if (sender == burst.me) return;
  const char* const block = burst.blocks + sender * burst.block_bytes;
  const auto* const flag = reinterpret_cast<const uint64_t*>(block + TestBlock::kBurstFlag);
  const auto* const words = reinterpret_cast<const volatile uint32_t*>(block + TestBlock::kData);
  bool is_bad = false;
  for (uint32_t done = 0; done < burst.pieces && !is_bad;) {
    uint64_t arrived = 0;
    const Errc code =
        device::poll_until(team, {WaitKind::stream, sender, 0, done + 1}, [flag, done, &arrived](uint64_t& seen) {
          arrived = seen = device::ptx::load_acquire_sys(flag);
          return seen > done;
        });
    // What all lanes have seen: each lane may read what it has acquired itself.
    const uint32_t until =
        __reduce_min_sync(0xffffffffu, arrived < burst.pieces ? static_cast<uint32_t>(arrived) : burst.pieces);
    bool is_wrong = code != Errc::ok;
    for (uint32_t i = done * kWords + threadIdx.x; i < until * kWords; i += kWarp)
      is_wrong |= words[i] != pattern(sender, burst.seed, i);
    is_bad = __syncthreads_or(is_wrong) != 0;
    done = until;
  }
  if (is_bad && threadIdx.x == 0) verdicts[sender] |= kBadOrder;
}

const RegisteredKernel kLoaded[] = {RegisteredKernel(reinterpret_cast<const void*>(&test_send)),
                                    RegisteredKernel(reinterpret_cast<const void*>(&test_check)),
                                    RegisteredKernel(reinterpret_cast<const void*>(&test_order)),
                                    RegisteredKernel(reinterpret_cast<const void*>(&test_burst))};

}  // namespace

base::Status launch_test_send(cudaStream_t stream, char* data, uint32_t bytes, uint32_t sender, uint32_t seed,
                              uint64_t* signal, uint64_t* sum) {
  test_send<<<1, kWarp, 0, stream>>>(data, bytes, sender, seed, signal, sum);
  return cuda_status(cudaGetLastError(), "test_send");
}

base::Status launch_test_check(cudaStream_t stream, const char* data, uint32_t bytes, uint32_t sender, uint32_t seed,
                               const uint64_t* signal, const uint64_t* sum, uint64_t expected_sum, uint32_t* verdict) {
  test_check<<<1, kWarp, 0, stream>>>(data, bytes, sender, seed, signal, sum, expected_sum, verdict);
  return cuda_status(cudaGetLastError(), "test_check");
}

base::Status launch_test_order(cudaStream_t stream, const TeamPod& team, const char* data, uint32_t bytes,
                               uint32_t sender, uint32_t seed, const uint64_t* flag, uint64_t round,
                               uint32_t* verdict) {
  test_order<<<1, kWarp, 0, stream>>>(team, data, bytes, sender, seed, flag, round, verdict);
  return cuda_status(cudaGetLastError(), "test_order");
}

base::Status launch_test_burst(cudaStream_t stream, const TeamPod& team, const TestBurst& burst, uint32_t* verdicts) {
  test_burst<<<burst.senders, kWarp, 0, stream>>>(team, burst, verdicts);
  return cuda_status(cudaGetLastError(), "test_burst");
}

}  // namespace overlace::runtime::cuda_peer
