// The watcher thread of a rank: finds the records of kernels and pipelines that stood still, keeps the deadlines of
// stream waits, polls engines.
#include <atomic>
#include <utility>

#include "src/runtime/backend/cuda_peer/state.h"
#include "src/runtime/clock.h"

namespace overlace::runtime::cuda_peer {
namespace {

constexpr auto kTick = std::chrono::milliseconds(2);
constexpr int kTicksPerEnginePoll = 10, kTicksPerPipelineLook = 500;

}  // namespace

void CudaPeerState::watch() {
  // Streams of other threads may be captured meanwhile: what this thread calls must not end their captures.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  (void)cudaThreadExchangeStreamCaptureMode(&mode);
  (void)cudaSetDevice(device_);
  bool was_aborted = false;
  for (int tick = 0;; ++tick) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, kTick, [&] { return is_stopping_ || (cause_.code != Errc::ok && !was_aborted); });
      if (is_stopping_) return;
    }
    const bool is_aborted = cause().code != Errc::ok;
    watch_streams(is_aborted);
    if (tick % kTicksPerPipelineLook == 0 && cudaStreamQuery(watch_stream_) == cudaSuccess) (void)fetch_pipeline_word();
    if (is_aborted != was_aborted || tick % kTicksPerEnginePoll == 0) {
      if (is_aborted) {
        engines_.abort();
      } else if (const base::Status failed = engines_.poll(); !failed.ok()) {
        set_cause_and_spread({failed.code(), failed.message()});
      }
    }
    was_aborted = is_aborted;
  }
}

void CudaPeerState::watch_streams(bool aborted) {
  std::unique_lock lock(mutex_);
  AbortCause timed_out;
  for (auto it = guarded_.begin(); it != guarded_.end();) {
    if (it->reached != nullptr && cudaEventQuery(it->reached) != cudaErrorNotReady) {
      spare_events_.push_back(std::exchange(it->reached, nullptr));
      it->begin_ns = now_ns();
    }
    if (it->reached == nullptr && cudaEventQuery(it->done) != cudaErrorNotReady) {
      spare_events_.push_back(it->done);
      it = guarded_.erase(it);
      continue;
    }
    const int64_t waited_ns = it->reached != nullptr ? 0 : now_ns() - it->begin_ns;
    if (!aborted && timed_out.code == Errc::ok && waited_ns > options_.timeout_ms * 1'000'000) {
      TimeoutRecord record;
      record.rank = static_cast<uint32_t>(rank_);
      record.peer = static_cast<uint32_t>(world_rank_of(it->wait.team, it->wait.peer));
      record.team = it->wait.team;
      record.id = it->wait.id;
      record.kind = WaitKind::stream;
      record.expected = it->wait.value;
      (void)cudaMemcpyAsync(&record.seen, it->wait.word, sizeof record.seen, cudaMemcpyDeviceToHost, watch_stream_);
      (void)cudaStreamSynchronize(watch_stream_);
      record.waited_ns = record.last_change_ns = static_cast<uint64_t>(waited_ns);
      timed_out = {Errc::timeout, names_.timeout_text(record, control_.peer_state(static_cast<int>(record.peer)))};
    }
    // A wait that its stream has not reached yet is released then: what comes before may set its word to 0 again.
    if ((aborted || timed_out.code != Errc::ok) && !it->released && it->reached == nullptr) release_word(*it);
    ++it;
  }
  (void)cudaGetLastError();
  lock.unlock();
  if (timed_out.code != Errc::ok) set_cause_and_spread(timed_out);
}

/// Lets the stream go on: its work is undefined from here on, but its queue drains.
void CudaPeerState::release_word(GuardedWait& guarded) {
  (void)cudaMemcpyAsync(guarded.wait.word, &guarded.wait.value, sizeof guarded.wait.value, cudaMemcpyHostToDevice,
                        watch_stream_);
  (void)cudaStreamSynchronize(watch_stream_);
  guarded.released = true;
}

base::Status CudaPeerState::guard_stream_wait(cudaStream_t stream, const StreamWait& wait) {
  const DeviceGuard guard(device_);
  const std::lock_guard lock(mutex_);
  GuardedWait guarded;
  guarded.wait = wait;
  guarded.begin_ns = now_ns();
  OVERLACE_TRY(record_event(stream, &guarded.done));
  guarded_.push_back(guarded);
  return {};
}

base::Status CudaPeerState::wait_in_stream(cudaStream_t stream, const StreamWait& wait) {
  const DeviceGuard guard(device_);
  GuardedWait guarded;
  guarded.wait = wait;
  {
    const std::lock_guard lock(mutex_);
    OVERLACE_TRY(spare_event(&guarded.reached));
    if (base::Status status = spare_event(&guarded.done); !status.ok()) {
      spare_events_.push_back(guarded.reached);
      return status;
    }
  }
  // NOTE: not under the lock, which the watcher takes: a stream whose queue is full keeps its caller here.
  base::Status status = cuda_status(cudaEventRecord(guarded.reached, stream), "cudaEventRecord");
  if (status.ok()) status = stream_wait(wait.word, wait.value, /*written_by_peer=*/false, stream_caps_, stream);
  if (status.ok()) status = cuda_status(cudaEventRecord(guarded.done, stream), "cudaEventRecord");
  const std::lock_guard lock(mutex_);
  if (status.ok()) {
    guarded_.push_back(guarded);
  } else {
    spare_events_.push_back(guarded.reached);
    spare_events_.push_back(guarded.done);
  }
  return status;
}

/// One that is spare, or a new one.
base::Status CudaPeerState::spare_event(cudaEvent_t* out) {
  if (spare_events_.empty())
    return cuda_status(cudaEventCreateWithFlags(out, cudaEventDisableTiming), "cudaEventCreate");
  *out = spare_events_.back();
  spare_events_.pop_back();
  return {};
}

base::Status CudaPeerState::record_event(cudaStream_t stream, cudaEvent_t* out) {
  OVERLACE_TRY(spare_event(out));
  base::Status status = cuda_status(cudaEventRecord(*out, stream), "cudaEventRecord");
  if (!status.ok()) spare_events_.push_back(std::exchange(*out, nullptr));
  return status;
}

}  // namespace overlace::runtime::cuda_peer
