#include "src/model/cuda/copy_lane.h"

#include <chrono>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "src/exec/cuda/recorder.h"
#include "src/exec/cuda/streams.h"

namespace overlace::model {
namespace {

using base::Status;
using exec::cuda_status;

/// True once the device has passed the event.
base::Result<bool> has_passed(cudaEvent_t event) {
  const cudaError_t state = cudaEventQuery(event);
  if (state == cudaSuccess) return true;
  if (state != cudaErrorNotReady) return cuda_status(state, "cudaEventQuery");
  (void)cudaGetLastError();  // else the next check of a launch would find it
  return false;
}

/// Seconds between pairs of points of a stream that the device has passed. Any thread.
class Stopwatch {
 public:
  Stopwatch() = default;
  ~Stopwatch() {
    for (const auto& [begin, end] : running_) free_.insert(free_.end(), {begin, end});
    if (begin_ != nullptr) free_.push_back(begin_);
    for (cudaEvent_t event : free_) (void)cudaEventDestroy(event);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  Status start(cudaStream_t stream) {
    const std::lock_guard lock(mutex_);
    if (begin_ == nullptr) OVERLACE_TRY(make(&begin_));
    return cuda_status(cudaEventRecord(begin_, stream), "cudaEventRecord");
  }
  /// Behind a start().
  Status stop(cudaStream_t stream) {
    const std::lock_guard lock(mutex_);
    if (begin_ == nullptr) return {};
    cudaEvent_t end = nullptr;
    OVERLACE_TRY(make(&end));
    running_.emplace_back(std::exchange(begin_, nullptr), end);
    OVERLACE_TRY(cuda_status(cudaEventRecord(end, stream), "cudaEventRecord"));
    return count();
  }
  double seconds() {
    const std::lock_guard lock(mutex_);
    const Status ignored = count();  // an error of the device comes out of the next call that can return it
    static_cast<void>(ignored);
    return seconds_;
  }

 private:
  Status make(cudaEvent_t* event) {
    if (free_.empty()) return cuda_status(cudaEventCreate(event), "cudaEventCreate");
    *event = free_.back();
    free_.pop_back();
    return {};
  }
  Status count() {
    while (!running_.empty()) {
      const auto [begin, end] = running_.front();
      const base::Result<bool> is_over = has_passed(end);
      if (!is_over.ok()) return is_over.status();
      if (!*is_over) return {};
      float ms = 0;
      OVERLACE_TRY(cuda_status(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime"));
      seconds_ += static_cast<double>(ms) * 1e-3;
      free_.insert(free_.end(), {begin, end});
      running_.pop_front();
    }
    return {};
  }

  std::mutex mutex_;
  cudaEvent_t begin_ = nullptr;
  std::deque<std::pair<cudaEvent_t, cudaEvent_t>> running_;
  std::vector<cudaEvent_t> free_;
  double seconds_ = 0;
};

class CudaCopyLane final : public CopyLane {
 public:
  CudaCopyLane(int device, cudaStream_t stream, int64_t timeout_ms)
      : device_(device), computation_(stream), timeout_ms_(timeout_ms) {}
  ~CudaCopyLane() override {
    (void)cudaSetDevice(device_);
    if (copies_ != nullptr) (void)cudaStreamSynchronize(copies_);
    for (cudaEvent_t event : events_) (void)cudaEventDestroy(event);
    if (copies_ != nullptr) (void)cudaStreamDestroy(copies_);
  }

  Status open(int events) {
    OVERLACE_TRY(use_device());
    // The channel's stream may be the default one, which others would wait for.
    OVERLACE_TRY(cuda_status(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking), "cudaStreamCreate"));
    for (int i = 0; i < events; ++i) {
      cudaEvent_t event = nullptr;
      OVERLACE_TRY(cuda_status(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate"));
      events_.push_back(event);
    }
    return {};
  }

  /// Streams of other threads may be captured meanwhile: what this thread calls must not end their captures.
  Status enter() override {
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    return cuda_status(cudaThreadExchangeStreamCaptureMode(&mode), "cudaThreadExchangeStreamCaptureMode");
  }

  Status copy(const void* from, void* to, int64_t bytes, base::Span span) override {
    OVERLACE_TRY(use_device());
    const std::lock_guard lock(spans_mutex_);
    const bool is_shown = takes_spans_ && recorder_.recording.spans.size() < kMostTransfers;
    size_t begin = 0, end = 0;
    if (is_shown) OVERLACE_TRY(recorder_.mark(copies_, &begin));
    OVERLACE_TRY(copying_.start(copies_));
    OVERLACE_TRY(cuda_status(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, copies_),
                             "cudaMemcpyAsync between pinned memory and device"));
    OVERLACE_TRY(copying_.stop(copies_));
    if (!is_shown) return {};
    OVERLACE_TRY(recorder_.mark(copies_, &end));
    recorder_.recording.spans.push_back({std::move(span), begin, end});
    return {};
  }

  Status record(Queue queue, int event) override {
    OVERLACE_TRY(use_device());
    return cuda_status(cudaEventRecord(events_[static_cast<size_t>(event)], stream_of(queue)), "cudaEventRecord");
  }
  Status wait(Queue queue, int event) override {
    OVERLACE_TRY(use_device());
    OVERLACE_TRY(cuda_status(cudaStreamWaitEvent(stream_of(queue), events_[static_cast<size_t>(event)], 0),
                             "cudaStreamWaitEvent"));
    return queue == Queue::computation ? waiting_.stop(computation_) : Status();
  }
  Status begin_wait() override {
    OVERLACE_TRY(use_device());
    return waiting_.start(computation_);
  }

  Status synchronize(int event) override {
    OVERLACE_TRY(use_device());
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms_);
    constexpr auto kBeat = std::chrono::microseconds(50);
    while (true) {
      const base::Result<bool> is_over = has_passed(events_[static_cast<size_t>(event)]);
      if (!is_over.ok()) return is_over.status();
      if (*is_over) return {};
      if (std::chrono::steady_clock::now() > deadline)
        return base::error(Errc::timeout, "a copy to or from device {} did not end within {} ms", device_, timeout_ms_);
      std::this_thread::sleep_for(kBeat);
    }
  }

  Times times() override { return {copying_.seconds(), waiting_.seconds()}; }

  base::Result<std::vector<base::Span>> take_spans() override {
    OVERLACE_TRY(use_device());
    const std::lock_guard lock(spans_mutex_);
    if (!std::exchange(takes_spans_, true)) return std::vector<base::Span>();
    auto trace = recorder_.collect(copies_);
    if (!trace.ok()) return trace.status();
    return std::move(trace->spans);
  }

 private:
  /// Not put back: a thread that fills slots has no other, and to make its first one current again would open that.
  Status use_device() const { return cuda_status(cudaSetDevice(device_), "cudaSetDevice"); }
  cudaStream_t stream_of(Queue queue) const { return queue == Queue::copies ? copies_ : computation_; }

  const int device_;
  const cudaStream_t computation_;
  const int64_t timeout_ms_;
  cudaStream_t copies_ = nullptr;
  std::vector<cudaEvent_t> events_;
  Stopwatch copying_, waiting_;
  std::mutex spans_mutex_;  // of what follows
  bool takes_spans_ = false;
  exec::Recorder recorder_;
};

}  // namespace

base::Result<std::unique_ptr<CopyLane>> make_cuda_copy_lane(int device, cudaStream_t stream, int events,
                                                            int64_t timeout_ms) {
  auto lane = std::make_unique<CudaCopyLane>(device, stream, timeout_ms);
  OVERLACE_TRY(lane->open(events));
  return std::unique_ptr<CopyLane>(std::move(lane));
}

}  // namespace overlace::model
