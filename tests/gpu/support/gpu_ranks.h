// Runs a function on n GPU ranks, as threads of this process (ranks may share a device) or as forked processes.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "overlace/error.h"
#include "overlace/runtime.h"
#include "src/runtime/backend/cuda_peer/state.h"
#include "src/runtime/state.h"

namespace overlace::test {

/// Usable devices, asked by a forked child: this process may still fork ranks afterwards.
int gpu_count();
/// Why there are none.
std::string no_gpu_reason();

#define OVERLACE_NEED_GPUS(n)                                                                \
  if (::overlace::test::gpu_count() < (n))                                                   \
  GTEST_SKIP() << "wants " << (n) << " GPUs, found " << ::overlace::test::gpu_count() << " " \
               << ::overlace::test::no_gpu_reason()

#define EXPECT_CUDA(call) EXPECT_EQ(cudaSuccess, (call)) << #call

struct GpuOptions {
  size_t heap_bytes = size_t{64} << 20;
  int64_t timeout_ms = 20000;
  uint32_t num_signal_ids = 512;
  std::string net_engine = "none";
  int device = -1;
  bool checks_end = true;  // after the body: synchronize, barrier, check_quiescent, verify, close
};
RuntimeOptions runtime_options(const GpuOptions& options);
/// Heap, signal ids and engine as a program gets them that asks for nothing.
GpuOptions default_options();

/// What a test body gets: an open runtime whose device is current, a stream, a channel on it, device memory.
class GpuRank {
 public:
  explicit GpuRank(Runtime& opened);
  ~GpuRank();
  GpuRank(const GpuRank&) = delete;
  GpuRank& operator=(const GpuRank&) = delete;

  Runtime& runtime;
  Team& team;
  int rank, size;
  cudaStream_t stream = nullptr;
  Channel& channel;

  const ChannelPod& pod() const { return channel.pod(); }
  runtime::cuda_peer::CudaPeerState& state() { return runtime::cuda_peer::cuda_peer_state(*runtime.state().backend); }
  /// Zeroed device memory, freed with this object.
  template <class T>
  T* device_array(size_t count) {
    return static_cast<T*>(allocate(count * sizeof(T)));
  }
  template <class T>
  T* pinned_array(size_t count) {
    return static_cast<T*>(allocate_pinned(count * sizeof(T)));
  }
  /// Waits for the stream, then copies.
  template <class T>
  T read(const T* device_word) {
    T value{};
    fetch(&value, device_word, sizeof(T));
    return value;
  }
  void fetch(void* host, const void* from, size_t bytes);
  void store(void* to, const void* host, size_t bytes);
  /// Waits for this rank's stream; unlike Runtime::synchronize it does not wait for other ranks of the device.
  void wait();

 private:
  static cudaStream_t make_stream(int device);
  void* allocate(size_t bytes);
  void* allocate_pinned(size_t bytes);
  std::vector<void*> memory_, pinned_;
};

/// Failures and exceptions of any rank fail the test; the others are aborted.
void run_gpu_threads(int n, const std::function<void(GpuRank&)>& body, const GpuOptions& options = {});
/// The body opens runtimes itself.
void run_gpu_bootstraps(int n, const std::function<void(Bootstrap&)>& body);

/// How a forked rank ended: its exit status, or minus the signal that killed it.
struct Ended {
  std::vector<int> status;
};
/// Forks n ranks; `variables` ("NAME=value") are set in the children before anything is read. A child whose assertions
/// failed ends with status 1. Nothing of CUDA may have run in this process.
Ended fork_ranks(int n, const std::vector<std::string>& variables, const std::function<void(Bootstrap&)>& body,
                 int64_t limit_ms = 120000);
/// Runs ranks as run_gpu_threads does, one process a rank; all must end with 0.
void run_gpu_processes(int n, const std::vector<std::string>& variables, const std::function<void(GpuRank&)>& body,
                       const GpuOptions& options = {});

}  // namespace overlace::test
