#include "src/runtime/engine/nccl/captures.h"

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "src/runtime/backend/cuda_peer/state.h"

namespace overlace::runtime::nccl {

using cuda_peer::cuda_status;

namespace {

/// Threads that run; never destroyed, since one may outlive all else.
struct Endings {
  std::mutex mutex;
  std::condition_variable changed;
  int running = 0;
};

Endings& endings() {
  static Endings* const made = [] {
    (void)std::atexit([] {  // NCCL was loaded before: what it registered then comes behind this
      constexpr std::chrono::seconds kLongest{1};
      std::unique_lock lock(endings().mutex);
      endings().changed.wait_for(lock, kLongest, [] { return endings().running == 0; });
    });
    return new Endings;
  }();
  return *made;
}

}  // namespace

void end_behind_graphs(std::function<void()> end) {
  const std::lock_guard lock(endings().mutex);
  try {
    std::thread([end = std::move(end)] {
      end();
      const std::lock_guard done(endings().mutex);
      --endings().running;
      endings().changed.notify_all();
    }).detach();
    ++endings().running;
  } catch (const std::system_error&) {  // what the communicator has stays with the process
  }
}

base::Status Captures::note(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long capture = 0;
  cudaGraph_t graph = nullptr;
  OVERLACE_TRY(cuda_status(cudaStreamGetCaptureInfo(stream, &status, &capture, &graph), "cudaStreamGetCaptureInfo"));
  if (status != cudaStreamCaptureStatusActive || capture == last_) return {};
  auto* const count = new Count(alive_);
  const auto end = [](void* object) {
    const std::unique_ptr<Count> ended(static_cast<Count*>(object));
    --**ended;
  };
  ++*alive_;
  cudaUserObject_t object = nullptr;
  if (const cudaError_t code = cudaUserObjectCreate(&object, count, end, 1, cudaUserObjectNoDestructorSync);
      code != cudaSuccess) {
    end(count);
    return cuda_status(code, "cudaUserObjectCreate");
  }
  if (const cudaError_t code = cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove);
      code != cudaSuccess) {
    (void)cudaUserObjectRelease(object, 1);  // ends it
    return cuda_status(code, "cudaGraphRetainUserObject");
  }
  last_ = capture;
  return {};
}

}  // namespace overlace::runtime::nccl
