#include "src/runtime/engine/nccl/deadlines.h"

#include <utility>

#include "src/runtime/clock.h"

namespace overlace::runtime::nccl {

Deadlines::~Deadlines() {
  for (const Watched& w : watched_) {
    (void)cudaEventDestroy(w.reached);
    (void)cudaEventDestroy(w.done);
  }
  for (const cudaEvent_t event : spare_) (void)cudaEventDestroy(event);
}

cudaEvent_t Deadlines::take() {
  cudaEvent_t event = nullptr;
  if (spare_.empty()) {
    (void)cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  } else {
    event = spare_.back();
    spare_.pop_back();
  }
  return event;
}

void Deadlines::begin(std::string what, cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &status) != cudaSuccess || status != cudaStreamCaptureStatusNone) return;
  const std::lock_guard lock(mutex_);
  Watched w{std::move(what), take(), take(), 0, false};
  if (w.reached != nullptr && w.done != nullptr && cudaEventRecord(w.reached, stream) == cudaSuccess) {
    watched_.push_back(std::move(w));
    return;
  }
  (void)cudaGetLastError();
  for (const cudaEvent_t event : {w.reached, w.done})
    if (event != nullptr) spare_.push_back(event);
}

void Deadlines::end(cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  if (watched_.empty() || watched_.back().is_queued) return;
  watched_.back().is_queued = cudaEventRecord(watched_.back().done, stream) == cudaSuccess;
  if (watched_.back().is_queued) return;
  (void)cudaGetLastError();
  drop_last();
}

void Deadlines::drop() {
  const std::lock_guard lock(mutex_);
  if (!watched_.empty() && !watched_.back().is_queued) drop_last();
}

void Deadlines::drop_last() {
  spare_.insert(spare_.end(), {watched_.back().reached, watched_.back().done});
  watched_.pop_back();
}

std::string Deadlines::running_for(int64_t ns) {
  const std::lock_guard lock(mutex_);
  std::string found;
  for (auto it = watched_.begin(); it != watched_.end() && found.empty();) {
    if (!it->is_queued) break;
    if (cudaEventQuery(it->done) != cudaErrorNotReady) {
      spare_.insert(spare_.end(), {it->reached, it->done});
      it = watched_.erase(it);
      continue;
    }
    const int64_t now = now_ns();
    if (it->begin_ns == 0 && cudaEventQuery(it->reached) != cudaErrorNotReady) it->begin_ns = now;
    if (it->begin_ns != 0 && now - it->begin_ns > ns) found = it->what;
    ++it;
  }
  (void)cudaGetLastError();
  return found;
}

}  // namespace overlace::runtime::nccl
