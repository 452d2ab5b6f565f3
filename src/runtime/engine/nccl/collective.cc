#include "src/runtime/engine/nccl/collective.h"

#include <cuda_runtime_api.h>

#include <chrono>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "src/runtime/backend/cuda_peer/check.h"
#include "src/runtime/clock.h"

namespace overlace::runtime::nccl {
namespace {

using cuda_peer::cuda_status;
using cuda_peer::DeviceGuard;

constexpr std::chrono::microseconds kPause(50);
// How long kernels of an aborted communicator may take to end.
constexpr int64_t kEndNs = 5'000'000'000;
constexpr size_t kKept = 4096;

void checked(cudaError_t code, const char* call) { cuda_status(code, call).or_throw(); }

class StreamCollective final : public AsyncCollective {
 public:
  explicit StreamCollective(CollectiveParts parts) : parts_(std::move(parts)) {
    const DeviceGuard guard(parts_.device);
    try {
      int least = 0, highest = 0;  // few CTAs, which should find room soon
      checked(cudaDeviceGetStreamPriorityRange(&least, &highest), "cudaDeviceGetStreamPriorityRange");
      checked(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, highest), "cudaStreamCreate");
      base_ = take_event();
      checked(cudaEventRecord(base_, stream_), "cudaEventRecord");
      while (!has_come(base_)) std::this_thread::sleep_for(kPause);  // of a stream that is empty
      base_ns_ = now_ns();
    } catch (...) {
      release();
      throw;
    }
  }
  ~StreamCollective() override {
    const DeviceGuard guard(parts_.device);
    if (std::uncaught_exceptions() > num_exceptions_)
      parts_.abort(Errc::aborted, base::format("rank {} left by an exception", parts_.rank));
    try {
      const std::lock_guard lock(mutex_);
      look();
    } catch (const std::exception&) {  // the device is lost
    }
    if (num_good_ + 1 < first_ + jobs_.size())
      parts_.abort(Errc::aborted, "the collective was destroyed with open tickets");
    if (ends_within(kEndNs)) release();
  }

  std::string name() const override { return "nccl"; }
  int rank() const override { return parts_.rank; }
  int size() const override { return parts_.size; }
  CollectiveCaps caps() const override {
    const std::lock_guard lock(mutex_);
    return {.stream_ordered = true, .progresses_alone = true, .deterministic = true, .frees_on_failure = !is_stuck_};
  }

  Ticket all_reduce(const Bucket& bucket, StreamRef stream) override {
    auto* const queue = stream_of(stream, "all_reduce");
    if (bucket.residual != nullptr)
      throw_error(Errc::not_supported,
                  base::format("all_reduce of {}: a residual over collective nccl; supported: host", bucket.what));
    const DeviceGuard guard(parts_.device);
    const std::lock_guard lock(mutex_);
    look();
    failure(bucket).or_throw();
    Job job{.bucket = bucket, .launched = take_event(), .begun = take_event(), .done = take_event()};
    try {
      checked(cudaEventRecord(job.launched, queue), "cudaEventRecord");
      checked(cudaStreamWaitEvent(stream_, job.launched, 0), "cudaStreamWaitEvent");
      checked(cudaEventRecord(job.begun, stream_), "cudaEventRecord");
      if (bucket.count > 0)
        parts_.net->all_reduce(bucket.data, bucket.data, bucket.count, bucket.dtype, StreamRef::cuda(stream_));
      checked(cudaEventRecord(job.done, stream_), "cudaEventRecord");
    } catch (...) {
      spare_.insert(spare_.end(), {job.launched, job.begun, job.done});
      throw;
    }
    jobs_.push_back(std::move(job));
    for (; jobs_.size() > kKept && first_ <= num_good_; ++first_) jobs_.pop_front();
    return {first_ + jobs_.size() - 1};
  }

  TicketState poll(Ticket ticket) override {
    const DeviceGuard guard(parts_.device);
    const std::lock_guard lock(mutex_);
    look();
    if (ticket.number <= num_good_) return TicketState::complete;
    return parts_.cause().ok() ? TicketState::pending : TicketState::failed;
  }

  void order_after(Ticket ticket, StreamRef stream) override {
    auto* const queue = stream_of(stream, "order_after");
    const DeviceGuard guard(parts_.device);
    const std::lock_guard lock(mutex_);
    look();
    if (ticket.number <= num_good_) return;
    Job* const job = find(ticket);
    OVERLACE_ASSERT(job != nullptr);
    failure(job->bucket).or_throw();
    checked(cudaStreamWaitEvent(queue, job->done, 0), "cudaStreamWaitEvent");
  }

  void wait(Ticket ticket, int64_t timeout_ms) override {
    const int64_t end_ns = now_ns() + timeout_ms * 1'000'000;
    TicketState state = poll(ticket);
    for (; state == TicketState::pending && now_ns() < end_ns; state = poll(ticket))
      std::this_thread::sleep_for(kPause);
    if (state == TicketState::complete) return;
    const Bucket bucket = bucket_of(ticket);
    if (state == TicketState::pending)
      parts_.abort(Errc::timeout, base::format("all-reduce of {}: rank {} of {} waited {} ms for {} bytes", bucket.what,
                                               parts_.rank, parts_.size, timeout_ms, wire_bytes(bucket)));
    const bool is_stuck = !ends_within(kEndNs);
    const std::lock_guard lock(mutex_);
    is_stuck_ = is_stuck || is_stuck_;
    failure(bucket).or_throw();
  }

  TicketTimes times(Ticket ticket) override {
    const DeviceGuard guard(parts_.device);
    const std::lock_guard lock(mutex_);
    look();
    const Job* const job = find(ticket);
    return job == nullptr ? TicketTimes{} : job->times;
  }

  void abort(Errc code, std::string_view why) override { parts_.abort(code, why); }

 private:
  struct Job {
    Bucket bucket;
    cudaEvent_t launched = nullptr, begun = nullptr, done = nullptr;
    TicketTimes times{};
  };

  cudaStream_t stream_of(StreamRef stream, const char* call) const {
    if (stream.kind != StreamRef::Kind::cuda)
      throw_error(Errc::not_supported,
                  base::format("{}: collective nccl on a stream of the CPU; supported: memory and streams of GPU {}",
                               call, parts_.device));
    return static_cast<cudaStream_t>(stream.cuda_stream);
  }
  static bool has_come(cudaEvent_t event) {
    const cudaError_t code = cudaEventQuery(event);
    if (code == cudaErrorNotReady) return false;
    checked(code, "cudaEventQuery");
    return true;
  }
  cudaEvent_t take_event() {
    cudaEvent_t event = nullptr;
    if (spare_.empty()) {
      checked(cudaEventCreateWithFlags(&event, cudaEventDefault), "cudaEventCreate");
    } else {
      event = spare_.back();
      spare_.pop_back();
    }
    return event;
  }
  /// From the launch before: of a long time milliseconds would have few digits.
  int64_t time_of(cudaEvent_t event) const {
    float since_ms = 0;
    checked(cudaEventElapsedTime(&since_ms, base_, event), "cudaEventElapsedTime");
    return base_ns_ + static_cast<int64_t>(static_cast<double>(since_ms) * 1e6);
  }
  Job* find(Ticket ticket) {
    const bool is_kept = ticket.number >= first_ && ticket.number < first_ + jobs_.size();
    return is_kept ? &jobs_[ticket.number - first_] : nullptr;
  }
  Bucket bucket_of(Ticket ticket) {
    const std::lock_guard lock(mutex_);
    const Job* const job = find(ticket);
    return job == nullptr ? Bucket{} : job->bucket;
  }
  base::Status failure(const Bucket& bucket) const {
    const base::Status cause = parts_.cause();
    return cause.ok() ? cause : base::error(cause.code(), "all-reduce of {}: {}", bucket.what, cause.message());
  }

  /// What is complete now. An abort ends kernels too, which then have summed nothing; its cause is there before.
  void look() {
    for (Job* job = find({num_good_ + 1}); job != nullptr; job = find({num_good_ + 1})) {
      if (!has_come(job->done) || !parts_.cause().ok()) return;
      base_ns_ = time_of(job->launched);
      spare_.push_back(std::exchange(base_, std::exchange(job->launched, nullptr)));
      job->times = {.launched_ns = base_ns_, .begun_ns = time_of(job->begun)};
      job->times.met_ns = job->times.begun_ns;
      job->times.complete_ns = time_of(job->done);
      for (cudaEvent_t* const event : {&job->begun, &job->done}) spare_.push_back(std::exchange(*event, nullptr));
      ++num_good_;
    }
  }
  bool ends_within(int64_t ns) const {
    const DeviceGuard guard(parts_.device);
    for (const int64_t end_ns = now_ns() + ns; cudaStreamQuery(stream_) == cudaErrorNotReady;) {
      if (now_ns() > end_ns) return false;
      std::this_thread::sleep_for(kPause);
    }
    return true;
  }
  void release() {
    for (const Job& job : jobs_)
      for (const cudaEvent_t event : {job.launched, job.begun, job.done})
        if (event != nullptr) spare_.push_back(event);
    if (base_ != nullptr) spare_.push_back(base_);
    for (const cudaEvent_t event : spare_) (void)cudaEventDestroy(event);
    if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
    (void)cudaGetLastError();
  }

  const CollectiveParts parts_;
  const int num_exceptions_ = std::uncaught_exceptions();  // under way where it was made
  cudaStream_t stream_ = nullptr;
  mutable std::mutex mutex_;
  std::deque<Job> jobs_;  // tickets first_, first_ + 1, ...
  uint64_t first_ = 1, num_good_ = 0;
  std::vector<cudaEvent_t> spare_;
  cudaEvent_t base_ = nullptr;
  int64_t base_ns_ = 0;  // when base_ was: the launch of the last ticket that is complete
  bool is_stuck_ = false;
};

}  // namespace

std::unique_ptr<AsyncCollective> make_collective(CollectiveParts parts) {
  return std::make_unique<StreamCollective>(std::move(parts));
}

}  // namespace overlace::runtime::nccl
