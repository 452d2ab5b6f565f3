#include "src/runtime/engine/nccl/endings.h"

#include <cuda_runtime_api.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "src/runtime/backend/cuda_peer/check.h"
#include "src/runtime/clock.h"

namespace overlace::runtime::nccl {
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

struct Ending::State {
  bool is_done = false;  // under the mutex of all
};

bool Ending::wait_until(int64_t deadline_ns) const {
  if (!state_) return true;
  std::unique_lock lock(endings().mutex);
  return endings().changed.wait_for(lock, std::chrono::nanoseconds(deadline_ns - now_ns()),
                                    [this] { return state_->is_done; });
}

Ending end_in_thread(int device, std::function<void()> end) {
  Ending ending;
  ending.state_ = std::make_shared<Ending::State>();
  const std::lock_guard lock(endings().mutex);
  try {
    std::thread([device, end = std::move(end), state = ending.state_] {
      // Streams of other threads may be captured meanwhile: what NCCL frees here must not end their captures.
      cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
      (void)cudaThreadExchangeStreamCaptureMode(&mode);
      {
        const cuda_peer::DeviceGuard guard(device);
        end();
      }
      const std::lock_guard done(endings().mutex);
      state->is_done = true;
      --endings().running;
      endings().changed.notify_all();
    }).detach();
    ++endings().running;
  } catch (const std::system_error&) {
    ending.state_.reset();
  }
  return ending;
}

}  // namespace overlace::runtime::nccl
