#include "src/exec/cuda/streams.h"

#include <algorithm>
#include <ctime>
#include <random>

#include "src/base/half.h"

namespace overlace::exec {

base::Status cuda_status(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return {};
  return base::error(Errc::cuda, "{}: {}", call, cudaGetErrorString(error));
}

base::Status fill_normal(void* device, size_t bytes, DType dtype) {
  const size_t element = dtype_bytes(dtype), block = std::min(bytes, size_t{4} << 20) / element * element;
  std::vector<unsigned char> host(block);
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal;
  for (size_t i = 0; i < block / element; ++i) {
    base::store_element(host.data(), dtype, static_cast<int64_t>(i), normal(random));
  }
  for (size_t at = 0; at < bytes; at += block) {
    OVERLACE_TRY(cuda_status(
        cudaMemcpy(static_cast<char*>(device) + at, host.data(), std::min(block, bytes - at), cudaMemcpyHostToDevice),
        "cudaMemcpy"));
  }
  return {};
}

LaneStreams::~LaneStreams() {
  for (auto& [lane, stream] : streams_) (void)cudaStreamDestroy(stream);
}

base::Status LaneStreams::get(const spec::Lane& lane, cudaStream_t* out) {
  auto [it, is_new] = streams_.try_emplace(lane, nullptr);
  if (is_new) {
    int lowest = 0, highest = 0;
    OVERLACE_TRY(cuda_status(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "cudaDeviceGetStreamPriorityRange"));
    OVERLACE_TRY(cuda_status(cudaStreamCreateWithPriority(&it->second, cudaStreamNonBlocking, highest),
                             "cudaStreamCreateWithPriority"));
  }
  *out = it->second;
  return {};
}

Events::~Events() {
  for (cudaEvent_t event : events_) {
    if (event != nullptr) (void)cudaEventDestroy(event);
  }
}

base::Status Events::make(size_t i) {
  if (events_[i] != nullptr) return {};
  return cuda_status(cudaEventCreateWithFlags(&events_[i], cudaEventDisableTiming), "cudaEventCreateWithFlags");
}

SpanRecorder::~SpanRecorder() {
  for (Pending& p : pending_) free_.insert(free_.end(), {p.begin, p.end});
  for (cudaEvent_t event : free_) (void)cudaEventDestroy(event);
}

base::Status SpanRecorder::take_event(cudaEvent_t* out) {
  if (free_.empty()) return cuda_status(cudaEventCreate(out), "cudaEventCreate");
  *out = free_.back();
  free_.pop_back();
  return {};
}

base::Status SpanRecorder::begin(cudaStream_t stream, base::Span span) {
  Pending p;
  p.span = std::move(span);
  p.stream = stream;
  OVERLACE_TRY(take_event(&p.begin));
  OVERLACE_TRY(take_event(&p.end));
  pending_.push_back(std::move(p));
  return cuda_status(cudaEventRecord(pending_.back().begin, stream), "cudaEventRecord");
}

base::Status SpanRecorder::end(cudaStream_t stream) {
  for (size_t i = pending_.size(); i-- > 0;) {
    if (pending_[i].stream == stream) return cuda_status(cudaEventRecord(pending_[i].end, stream), "cudaEventRecord");
  }
  return base::error(Errc::internal, "a span ends on a stream where none began");
}

base::Status SpanRecorder::collect(cudaStream_t reference, base::Trace* out) {
  cudaEvent_t now = nullptr;
  OVERLACE_TRY(cuda_status(cudaDeviceSynchronize(), "cudaDeviceSynchronize"));
  OVERLACE_TRY(take_event(&now));
  free_.push_back(now);
  OVERLACE_TRY(cuda_status(cudaEventRecord(now, reference), "cudaEventRecord"));
  OVERLACE_TRY(cuda_status(cudaEventSynchronize(now), "cudaEventSynchronize"));
  timespec clock{};
  clock_gettime(CLOCK_MONOTONIC, &clock);
  const int64_t host_ns = int64_t{clock.tv_sec} * 1000000000 + clock.tv_nsec;
  for (Pending& p : pending_) {
    float before_begin = 0, before_end = 0;  // ms from the span's events to `now`
    OVERLACE_TRY(cuda_status(cudaEventElapsedTime(&before_begin, p.begin, now), "cudaEventElapsedTime"));
    OVERLACE_TRY(cuda_status(cudaEventElapsedTime(&before_end, p.end, now), "cudaEventElapsedTime"));
    p.span.begin_ns = host_ns - static_cast<int64_t>(static_cast<double>(before_begin) * 1e6);
    p.span.end_ns = host_ns - static_cast<int64_t>(static_cast<double>(before_end) * 1e6);
    out->spans.push_back(std::move(p.span));
    free_.insert(free_.end(), {p.begin, p.end});
  }
  pending_.clear();
  return {};
}

}  // namespace overlace::exec
