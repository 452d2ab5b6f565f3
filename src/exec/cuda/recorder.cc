#include "src/exec/cuda/recorder.h"

#include <ctime>
#include <utility>

#include "src/exec/cuda/streams.h"

namespace overlace::exec {
namespace {

constexpr size_t kReserved = 2048;  // of two decoder layers with four sites
constexpr size_t kClockSamples = 16;

int64_t host_ns() {
  timespec clock{};
  clock_gettime(CLOCK_MONOTONIC, &clock);
  return int64_t{clock.tv_sec} * 1000000000 + clock.tv_nsec;
}

/// From `first` to `second`, negative where that was passed earlier.
base::Status elapsed_ns(cudaEvent_t first, cudaEvent_t second, double* out) {
  float ms = 0;
  OVERLACE_TRY(cuda_status(cudaEventElapsedTime(&ms, first, second), "cudaEventElapsedTime"));
  *out = static_cast<double>(ms) * 1e6;
  return {};
}

/// On an idle device, with events[0 .. kClockSamples): each sample lies between two looks at the host's clock.
base::Status sample_clock(cudaStream_t stream, const std::vector<cudaEvent_t>& events,
                          std::vector<ClockSample>* samples) {
  for (size_t i = 0; i < kClockSamples; ++i) {
    ClockSample sample;
    sample.before_ns = host_ns();
    OVERLACE_TRY(cuda_status(cudaEventRecord(events[i], stream), "cudaEventRecord"));
    cudaError_t state = cudaErrorNotReady;
    while (state == cudaErrorNotReady) state = cudaEventQuery(events[i]);
    OVERLACE_TRY(cuda_status(state, "cudaEventQuery"));
    sample.after_ns = host_ns();
    OVERLACE_TRY(elapsed_ns(events[0], events[i], &sample.device_ns));
    samples->push_back(sample);
  }
  return {};
}

}  // namespace

Recorder::~Recorder() {
  free_.insert(free_.end(), marks_.begin(), marks_.end());
  for (cudaEvent_t event : free_) (void)cudaEventDestroy(event);
}

base::Status Recorder::reserve() {
  while (free_.size() < kReserved) {
    cudaEvent_t event = nullptr;
    OVERLACE_TRY(cuda_status(cudaEventCreate(&event), "cudaEventCreate"));
    free_.push_back(event);
  }
  return {};
}

base::Status Recorder::mark(cudaStream_t stream, size_t* number) {
  cudaEvent_t event = nullptr;
  if (free_.empty()) {
    OVERLACE_TRY(cuda_status(cudaEventCreate(&event), "cudaEventCreate"));
  } else {
    event = free_.back();
    free_.pop_back();
  }
  marks_.push_back(event);
  *number = marks_.size() - 1;
  return cuda_status(cudaEventRecord(event, stream), "cudaEventRecord");
}

base::Result<base::Trace> Recorder::collect(cudaStream_t reference) {
  if (marks_.empty()) return base::Trace{};
  OVERLACE_TRY(cuda_status(cudaDeviceSynchronize(), "cudaDeviceSynchronize"));
  OVERLACE_TRY(reserve());
  const std::vector<cudaEvent_t> marks = std::exchange(marks_, {});
  Recording recorded = std::exchange(recording, {});
  free_.insert(free_.end(), marks.begin(), marks.end());  // behind those that take the clock's samples
  std::vector<ClockSample> samples;
  OVERLACE_TRY(sample_clock(reference, free_, &samples));
  const int64_t origin_ns = host_time_of_origin(samples);
  std::vector<int64_t> mark_ns;
  mark_ns.reserve(marks.size());
  for (cudaEvent_t event : marks) {
    double before_origin = 0;
    OVERLACE_TRY(elapsed_ns(event, free_[0], &before_origin));
    mark_ns.push_back(origin_ns - static_cast<int64_t>(before_origin));
  }
  return timed(std::move(recorded), mark_ns);
}

}  // namespace overlace::exec
