// What a runtime proves at open about every ordered pair of ranks that load and store reach.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "overlace/handle_pod.h"
#include "src/base/status.h"
#include "src/runtime/backend/cuda_peer/device_heap.h"
#include "src/runtime/control.h"

namespace overlace::runtime::cuda_peer {

struct SelfTest {
  Control& control;
  const DeviceHeap& heap;
  std::vector<int> local;    // world ranks, ascending
  uint64_t user_offset = 0;  // scratch of the test; zero again afterwards
  uint64_t user_bytes = 0;
  bool test_atomics = false;
  bool test_order = true;                           // kernels of different ranks may run at once
  cudaStream_t stream = nullptr, second = nullptr;  // of my device, non-blocking
  int64_t timeout_ms = 0;
};

struct SelfTestResult {
  bool copy_then_flag = false;  // an 8-byte copy arrives after the copies queued before it, on all pairs
};

/// Collective. Stores, signals and (if asked) additions of all ranks on one word: an error on all ranks that names the
/// first failing pair. Order of copies: a capability.
base::Result<SelfTestResult> run_self_test(const SelfTest& test);

// ---- kernels (self_test.cu) ----

/// One block of scratch per sender: words at fixed places, then data.
struct TestBlock {
  static constexpr uint64_t kSignal = 0, kFlag = 8, kSum = 16, kBurstFlag = 24, kData = 256;
  static constexpr uint32_t kPieceBytes = 64;  // of a burst
  static constexpr uint32_t kStoreBytes = 4096;
};
inline constexpr uint32_t kBadData = 1, kBadSignal = 2, kBadSum = 4, kBadOrder = 8;

/// Writes the pattern of (sender, seed) to `data`, then adds 1 to `signal`; 32 lanes add 1 each to `sum` unless null.
base::Status launch_test_send(cudaStream_t stream, char* data, uint32_t bytes, uint32_t sender, uint32_t seed,
                              uint64_t* signal, uint64_t* sum);
/// Ors what is wrong with a sender's block into *verdict, pinned host memory.
base::Status launch_test_check(cudaStream_t stream, const char* data, uint32_t bytes, uint32_t sender, uint32_t seed,
                               const uint64_t* signal, const uint64_t* sum, uint64_t expected_sum, uint32_t* verdict);
/// Waits (scratch deadline in `team`) until *flag reaches `round`, then checks the data that was copied before it.
base::Status launch_test_order(cudaStream_t stream, const TeamPod& team, const char* data, uint32_t bytes,
                               uint32_t sender, uint32_t seed, const uint64_t* flag, uint64_t round, uint32_t* verdict);
/// A burst of each sender at once: `pieces` behind each other, each followed by its number in the flag. `blocks` are
/// mine, by sender; of `me` nothing is awaited. Whenever a flag has grown, all pieces up to it must be there.
struct TestBurst {
  const char* blocks = nullptr;
  uint64_t block_bytes = 0;
  uint32_t senders = 0, me = 0, pieces = 0, seed = 0;
};
base::Status launch_test_burst(cudaStream_t stream, const TeamPod& team, const TestBurst& burst, uint32_t* verdicts);

}  // namespace overlace::runtime::cuda_peer
