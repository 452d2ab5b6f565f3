#include "src/runtime/async_collective/cuda/staged.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "src/base/log.h"
#include "src/runtime/backend/cuda_peer/check.h"
#include "src/runtime/backend/cuda_peer/stream_ops.h"
#include "src/runtime/clock.h"

namespace overlace {
namespace {

using base::Status;
using runtime::now_ns;
using runtime::cuda_peer::cuda_status;
using runtime::cuda_peer::DeviceGuard;

// How often the mover looks while something is under way: less and less often while nothing moves.
constexpr std::chrono::microseconds kLook(30), kLongestLook(1000);
// How often the mover looks whether it was aborted while nothing is under way, and how often the watchdog looks at it.
constexpr std::chrono::milliseconds kIdleLook(50), kWatchLook(20);
// How long a failed wait lets the mover end what is under way.
constexpr std::chrono::seconds kGrace(15);
constexpr int64_t kQuietNs = 10'000'000'000;
constexpr size_t kKept = 4096;
// Behind the numbers of all tickets.
constexpr uint64_t kAllTickets = uint64_t{1} << 62;

void check(cudaError_t code, const char* call) { cuda_status(code, call).or_throw(); }

bool is_done(cudaEvent_t event) {
  const cudaError_t code = cudaEventQuery(event);
  if (code == cudaErrorNotReady) return false;
  check(code, "cudaEventQuery");
  return true;
}

/// Why tickets fail: the first cause stays. Any thread, also while others are in calls of CUDA.
class Failure {
 public:
  bool ok() const { return !is_set_.load(std::memory_order_acquire); }
  Status get() const {
    const std::lock_guard lock(mutex_);
    return status_;
  }
  void or_throw() const {
    if (!ok()) get().or_throw();
  }
  /// Whether it was the first.
  bool set(const Status& status) {
    const std::lock_guard lock(mutex_);
    if (!status_.ok()) return false;
    status_ = status;
    is_set_.store(true, std::memory_order_release);
    return true;
  }

 private:
  mutable std::mutex mutex_;
  Status status_;
  std::atomic<bool> is_set_ = false;
};

class StagedCollective final : public AsyncCollective {
 public:
  StagedCollective(std::unique_ptr<runtime::HostTransport> host, const HostCollectiveOptions& options)
      : host_(std::move(host)),
        device_(options.device),
        slot_bytes_(std::max<size_t>(options.slot_bytes / kUnit * kUnit, kUnit)),
        timeout_ms_(options.runtime.timeout_ms > 0 ? options.runtime.timeout_ms : kTimeoutMs),
        caps_(runtime::cuda_peer::query_stream_caps(options.device)),
        slots_(static_cast<size_t>(std::max(options.slots, 1))) {
    const DeviceGuard guard(device_);
    try {
      // The highest priority: so their copies share no hardware queue with streams of a program that wait for them.
      int least = 0, highest = 0;
      check(cudaDeviceGetStreamPriorityRange(&least, &highest), "cudaDeviceGetStreamPriorityRange");
      for (cudaStream_t* const stream : {&down_, &up_})
        check(cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, highest), "cudaStreamCreate");
      void* memory = nullptr;
      check(cudaHostAlloc(&memory, kWordBytes + slots_.size() * slot_bytes_, cudaHostAllocDefault), "cudaHostAlloc");
      pinned_ = static_cast<char*>(memory);
      std::atomic_ref(*word()).store(0, std::memory_order_release);
      for (Slot& slot : slots_) check(cudaEventCreateWithFlags(&slot.event, cudaEventDisableTiming), "cudaEventCreate");
    } catch (...) {
      release();
      throw;
    }
    mover_ = std::thread([this] { move(); });
  }

  ~StagedCollective() override {
    bool is_busy = false;
    {
      const std::lock_guard lock(mutex_);
      is_busy = num_ended_ < first_ + jobs_.size() - 1;
    }
    if (std::uncaught_exceptions() > num_exceptions_)
      abort(Errc::aborted, base::format("rank {} left by an exception", rank()));
    if (is_busy) abort(Errc::aborted, "the collective was destroyed with open tickets");
    {
      const std::lock_guard lock(mutex_);
      is_stopped_ = true;
    }
    changed_.notify_all();
    mover_.join();
    host_.reset();
    const DeviceGuard guard(device_);
    release();
  }

  std::string name() const override { return "host"; }
  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  CollectiveCaps caps() const override {
    const std::lock_guard lock(mutex_);
    return {.stream_ordered = caps_.wait_value,
            .progresses_alone = true,
            .deterministic = true,
            .takes_residuals = true,
            .frees_on_failure = !is_stuck_};
  }

  Ticket all_reduce(const Bucket& bucket, StreamRef stream) override {
    auto* const queue = stream_of(stream, "all_reduce");
    if (bucket.residual != nullptr && bucket.dtype != DType::fp32)
      throw_error(Errc::invalid_argument, base::format("all_reduce of {}: {} with a residual, wanted: fp32",
                                                       bucket.what, dtype_name(bucket.dtype)));
    const DeviceGuard guard(device_);
    const std::lock_guard lock(mutex_);
    failure_.or_throw();
    Job job{.bucket = bucket, .ready = take_event()};
    check(cudaEventRecord(job.ready, queue), "cudaEventRecord");
    jobs_.push_back(std::move(job));
    while (jobs_.size() > kKept && first_ <= num_ended_) {
      jobs_.pop_front();
      ++first_;
    }
    changed_.notify_all();
    return {first_ + jobs_.size() - 1};
  }

  TicketState poll(Ticket ticket) override {
    const std::lock_guard lock(mutex_);
    if (ticket.number <= num_ended_) return TicketState::complete;
    return failure_.ok() ? TicketState::pending : TicketState::failed;
  }

  void order_after(Ticket ticket, StreamRef stream) override {
    auto* const queue = stream_of(stream, "order_after");
    if (!caps_.wait_value) {
      base::warn_once("collective host",
                      "streams of this GPU cannot wait for words (CUDA_DEVICE_MAX_CONNECTIONS is 1, or the device has "
                      "none): the host waits in their place");
      return wait(ticket, timeout_ms_);
    }
    const DeviceGuard guard(device_);
    const std::lock_guard lock(mutex_);
    if (ticket.number <= num_ended_) return;
    failure_.or_throw();
    Job* const job = find(ticket);
    OVERLACE_ASSERT(job != nullptr);
    if (job->reached == nullptr && job->wanted_ns == 0) {
      job->reached = take_event();
      check(cudaEventRecord(job->reached, queue), "cudaEventRecord");
    }
    runtime::cuda_peer::stream_wait(word(), ticket.number, false, caps_, queue).or_throw();
  }

  void wait(Ticket ticket, int64_t timeout_ms) override {
    std::unique_lock lock(mutex_);
    const auto has_ended = [&] { return num_ended_ >= ticket.number || is_over_; };
    const auto may_end = [&] { return has_ended() || !failure_.ok(); };
    if (!changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), may_end)) overdue(lock, ticket, timeout_ms);
    is_stuck_ = !changed_.wait_for(lock, kGrace, has_ended) || is_stuck_;
    if (num_ended_ >= ticket.number) return;
    failure_.or_throw();
  }

  TicketTimes times(Ticket ticket) override {
    const std::lock_guard lock(mutex_);
    const Job* job = find(ticket);
    return job == nullptr ? TicketTimes{} : job->times;
  }

  void abort(Errc code, std::string_view why) override { fail(Status(code, std::string(why))); }

 private:
  static constexpr int64_t kTimeoutMs = 300000;
  static constexpr size_t kUnit =
      2 * kInt8Block * sizeof(double);  // of a slot: whole blocks of any dtype, and residuals
  static constexpr size_t kWordBytes = 4096;
  struct Job {
    Bucket bucket;
    TicketTimes times{};
    cudaEvent_t ready = nullptr;    // what was queued before the launch is done
    cudaEvent_t reached = nullptr;  // a stream has come to a wait for it
    int64_t wanted_ns = 0;          // when it had; 0: not yet
    size_t sent = 0;                // elements that have left
    bool has_left = false;          // all of them
    Ticket inner{};                 // of the piece that was summed last, or is
  };
  /// A piece of a bucket on its way.
  struct Piece {
    uint64_t ticket = 0;
    size_t begin = 0, count = 0, slot = 0;
    enum class Stage { leaves, is_summed, returns } stage = Stage::leaves;
    Ticket inner{};
    bool is_last = false;
  };
  struct Slot {
    cudaEvent_t event = nullptr;
    bool is_taken = false;
  };

  cudaStream_t stream_of(StreamRef stream, const char* call) const {
    if (stream.kind != StreamRef::Kind::cuda)
      throw_error(Errc::not_supported,
                  base::format("{}: collective host of GPU {} on a stream of the CPU; supported: memory and streams of "
                               "that GPU",
                               call, device_));
    return static_cast<cudaStream_t>(stream.cuda_stream);
  }
  uint64_t* word() const { return reinterpret_cast<uint64_t*>(pinned_); }
  /// It never falls: the watchdog may have been before.
  void raise_word(uint64_t value) {
    const std::atomic_ref now(*word());
    uint64_t seen = now.load(std::memory_order_relaxed);
    while (seen < value && !now.compare_exchange_weak(seen, value, std::memory_order_release)) continue;
  }
  /// The mover and the watchdog do the rest.
  void fail(const Status& status) {
    if (!failure_.set(status)) return;
    host_->abort(status.code(), status.message());
    changed_.notify_all();
  }

  // With the mutex, from here to the mover.
  cudaEvent_t take_event() {
    cudaEvent_t event = nullptr;
    if (spare_.empty()) {
      check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
    } else {
      event = spare_.back();
      spare_.pop_back();
    }
    return event;
  }
  void give_event(cudaEvent_t& event) {
    if (event != nullptr) spare_.push_back(std::exchange(event, nullptr));
  }
  Job* find(Ticket ticket) {
    const bool is_kept = ticket.number >= first_ && ticket.number < first_ + jobs_.size();
    return is_kept ? &jobs_[ticket.number - first_] : nullptr;
  }
  /// A wait for this ticket has had its deadline: the worker's transport knows who is missing.
  void overdue(std::unique_lock<std::mutex>& lock, Ticket ticket, int64_t timeout_ms) {
    const Job* const job = find(ticket);
    const Ticket inner = job == nullptr ? Ticket{} : job->inner;
    Status status(Errc::timeout,
                  base::format("all-reduce of {}: rank {} of {} waited {} ms for {} bytes, which have not left the GPU",
                               job == nullptr ? "?" : job->bucket.what, rank(), size(), timeout_ms,
                               job == nullptr ? 0 : wire_bytes(job->bucket)));
    lock.unlock();
    try {
      if (inner.number != 0) host_->finish_wait(inner, timeout_ms, 1);
    } catch (...) {
      status = base::status_of_current_exception();
    }
    lock.lock();
    if (num_ended_ < ticket.number) fail(status);
  }

  // ---- the mover ----

  void move() {
    const DeviceGuard guard(device_);
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;  // streams of other threads may be captured meanwhile
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    std::thread watchdog;
    std::unique_lock lock(mutex_);
    std::chrono::microseconds pause = kLook;
    try {
      watchdog = std::thread([this] { watch_mover(); });
      while (failure_.ok()) {
        const bool is_idle = num_ended_ + 1 >= first_ + jobs_.size();
        if (is_idle && is_stopped_) break;
        beat_ns_ = is_idle ? 0 : now_ns();
        if (is_idle) {
          changed_.wait_for(lock, kIdleLook);
          continue;
        }
        const uint64_t before = num_moves_;
        send();
        advance();
        watch(lock);
        pause = num_moves_ == before ? std::min(2 * pause, kLongestLook) : kLook;
        if (failure_.ok()) changed_.wait_for(lock, pause);
      }
    } catch (...) {
      fail(base::status_of_current_exception());
    }
    beat_ns_ = 0;
    if (!failure_.ok()) end_all(lock);
    is_over_ = true;
    changed_.notify_all();
    lock.unlock();
    is_watched_ = false;
    if (watchdog.joinable()) watchdog.join();
  }

  /// A thread that makes no call of CUDA and takes no mutex that is held in one: such a call of the mover may wait for
  /// a stream that waits for the word. Streams go on where the mover has not moved for the deadline, or all has failed.
  void watch_mover() {
    for (; is_watched_; std::this_thread::sleep_for(kWatchLook)) {
      const int64_t beat_ns = beat_ns_;
      if (beat_ns != 0 && now_ns() - beat_ns > timeout_ms_ * 1'000'000)
        fail(Status(Errc::timeout, base::format("rank {} of {}: a call of CUDA that copies buckets has not come back "
                                                "after {} ms",
                                                rank(), size(), timeout_ms_)));
      if (!failure_.ok()) raise_word(kAllTickets);
    }
  }

  /// Pieces of the next buckets whose memory is ready into the slots that are free. No copy is queued before: a stream
  /// of ours that waited could hold others back, with which it shares a hardware queue.
  void send() {
    for (uint64_t number = num_sent_ + 1; number < first_ + jobs_.size(); ++number) {
      Job& job = *find({number});
      if (job.ready != nullptr) {
        if (!is_done(job.ready)) return;
        job.times.launched_ns = now_ns();
        give_event(job.ready);
      }
      const size_t unit = dtype_bytes(job.bucket.dtype), share = job.bucket.residual == nullptr ? 1 : 2;
      const size_t most = slot_bytes_ / share / unit;
      while (!job.has_left) {
        const auto slot = std::find_if(slots_.begin(), slots_.end(), [](const Slot& one) { return !one.is_taken; });
        if (slot == slots_.end()) return;
        Piece piece{.ticket = number, .begin = job.sent, .slot = static_cast<size_t>(slot - slots_.begin())};
        piece.count = std::min(job.bucket.count - job.sent, most);
        job.sent += piece.count;
        piece.is_last = job.has_left = job.sent == job.bucket.count;
        copy(job, piece, down_);
        check(cudaEventRecord(slot->event, down_), "cudaEventRecord");
        slot->is_taken = true;
        pieces_.push_back(piece);
        ++num_moves_;
      }
      num_sent_ = number;
    }
  }

  char* memory_of(const Piece& piece) const { return pinned_ + kWordBytes + piece.slot * slot_bytes_; }
  float* residual_of(const Piece& piece) const { return reinterpret_cast<float*>(memory_of(piece) + slot_bytes_ / 2); }
  void copy(const Job& job, const Piece& piece, cudaStream_t stream) const {
    if (piece.count == 0) return;
    const size_t unit = dtype_bytes(job.bucket.dtype);
    const auto one = [&](char* there, char* here, size_t bytes) {
      const bool is_down = stream == down_;
      check(cudaMemcpyAsync(is_down ? here : there, is_down ? there : here, bytes,
                            is_down ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, stream),
            "cudaMemcpyAsync");
    };
    one(static_cast<char*>(job.bucket.data) + piece.begin * unit, memory_of(piece), piece.count * unit);
    if (job.bucket.residual != nullptr)
      one(reinterpret_cast<char*>(job.bucket.residual + piece.begin), reinterpret_cast<char*>(residual_of(piece)),
          piece.count * sizeof(float));
  }

  /// What is on its way goes on, each stage in the order of the tickets.
  void advance() {
    bool may_sum = true, may_return = true;
    for (Piece& piece : pieces_) {
      Job& job = *find({piece.ticket});
      if (piece.stage == Piece::Stage::leaves) {
        may_return = false;
        if (!may_sum || !is_done(slots_[piece.slot].event)) break;
        const bool has_residual = job.bucket.residual != nullptr;
        piece.inner = job.inner = host_->all_reduce({memory_of(piece), piece.count, job.bucket.dtype, job.bucket.what,
                                                     has_residual ? residual_of(piece) : nullptr},
                                                    StreamRef::cpu());
        piece.stage = Piece::Stage::is_summed;
        ++num_moves_;
      }
      if (piece.stage == Piece::Stage::is_summed && may_return) {
        const TicketState state = host_->poll(piece.inner);
        if (state == TicketState::failed) host_->wait(piece.inner, 1);  // throws the cause
        may_return = state == TicketState::complete;
        if (!may_return) continue;
        note_times(job, piece);
        copy(job, piece, up_);
        check(cudaEventRecord(slots_[piece.slot].event, up_), "cudaEventRecord");
        piece.stage = Piece::Stage::returns;
        ++num_moves_;
      }
    }
    while (!pieces_.empty() && pieces_.front().stage == Piece::Stage::returns &&
           is_done(slots_[pieces_.front().slot].event)) {
      const Piece piece = pieces_.front();
      pieces_.pop_front();
      ++num_moves_;
      slots_[piece.slot].is_taken = false;
      if (!piece.is_last) continue;
      Job& job = *find({piece.ticket});
      job.times.complete_ns = now_ns();
      give_event(job.reached);
      num_ended_ = piece.ticket;
      raise_word(num_ended_);
      changed_.notify_all();
    }
  }

  void note_times(Job& job, const Piece& piece) {
    const TicketTimes times = host_->times(piece.inner);
    if (piece.begin == 0) {
      job.times.begun_ns = times.begun_ns;
      job.times.met_ns = times.met_ns;
      job.times.last_rank = times.last_rank;
    }
    job.times.link_bytes += times.link_bytes;
  }

  /// Deadlines of streams that wait.
  void watch(std::unique_lock<std::mutex>& lock) {
    for (uint64_t number = num_ended_ + 1; number < first_ + jobs_.size(); ++number) {
      Job& job = *find({number});
      if (job.reached != nullptr && is_done(job.reached)) {
        job.wanted_ns = now_ns();
        give_event(job.reached);
      }
      if (job.wanted_ns == 0 || now_ns() - job.wanted_ns < timeout_ms_ * 1'000'000) continue;
      return overdue(lock, {number}, timeout_ms_);
    }
  }

  /// After a failure: no stream waits any more, and nothing is written to memory of tickets.
  void end_all(std::unique_lock<std::mutex>& lock) {
    raise_word(kAllTickets);
    lock.unlock();
    const bool is_free = is_quiet(up_) && is_quiet(down_);
    (void)cudaGetLastError();
    lock.lock();
    is_stuck_ = !is_free || is_stuck_;
  }
  /// Copies end by themselves, unless the device is lost.
  static bool is_quiet(cudaStream_t stream) {
    const int64_t end_ns = now_ns() + kQuietNs;
    cudaError_t code = cudaStreamQuery(stream);
    for (; code == cudaErrorNotReady && now_ns() < end_ns; code = cudaStreamQuery(stream))
      std::this_thread::sleep_for(kLook);
    return code == cudaSuccess;
  }

  void release() {
    if (is_stuck_) return;  // it stays with the process
    for (Job& job : jobs_)
      for (cudaEvent_t* const event : {&job.ready, &job.reached}) give_event(*event);
    for (const cudaEvent_t event : spare_) (void)cudaEventDestroy(event);
    for (const Slot& slot : slots_)
      if (slot.event != nullptr) (void)cudaEventDestroy(slot.event);
    if (pinned_ != nullptr) (void)cudaFreeHost(pinned_);
    for (cudaStream_t const stream : {down_, up_})
      if (stream != nullptr) (void)cudaStreamDestroy(stream);
    (void)cudaGetLastError();
  }

  std::unique_ptr<runtime::HostTransport> host_;
  const int device_;
  const size_t slot_bytes_;
  const int64_t timeout_ms_;
  const runtime::cuda_peer::StreamCaps caps_;
  const int num_exceptions_ = std::uncaught_exceptions();  // under way where it was made
  cudaStream_t down_ = nullptr, up_ = nullptr;
  char* pinned_ = nullptr;  // the word, then the slots
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Slot> slots_;
  std::deque<Job> jobs_;  // tickets first_, first_ + 1, ...
  std::deque<Piece> pieces_;
  std::vector<cudaEvent_t> spare_;
  uint64_t first_ = 1, num_sent_ = 0, num_ended_ = 0;  // num_ended_: complete, in order
  uint64_t num_moves_ = 0;                             // of pieces, from stage to stage
  bool is_stopped_ = false, is_over_ = false;          // the mover has left, and nothing is under way
  bool is_stuck_ = false;
  Failure failure_;                      // of all tickets that have not completed
  std::atomic<int64_t> beat_ns_ = 0;     // when the mover last began to look; 0: it has nothing to do
  std::atomic<bool> is_watched_ = true;  // the mover runs
  std::thread mover_;
};

}  // namespace

std::unique_ptr<AsyncCollective> runtime::make_staged(std::unique_ptr<HostTransport> host,
                                                      const HostCollectiveOptions& options) {
  return std::make_unique<StagedCollective>(std::move(host), options);
}

}  // namespace overlace
