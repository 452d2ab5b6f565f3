// Calls of several channels of one GPU: side by side where their SM budgets fit, else one after the other by events.
#include <algorithm>

#include "src/runtime/backend/cuda_peer/state.h"
#include "src/runtime/residency.h"

namespace overlace::runtime::cuda_peer {
namespace {

cudaStream_t stream_of(StreamRef stream) { return static_cast<cudaStream_t>(stream.cuda_stream); }

/// What this thread asks of events and streams must not end captures of other streams.
class RelaxedCapture {
 public:
  RelaxedCapture() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace

bool CudaPeerState::is_capturing(StreamRef stream) const {
  const DeviceGuard guard(device_);
  const base::Result<bool> result = cuda_peer::is_capturing(stream_of(stream));
  return result.ok() && *result;
}

base::Status CudaPeerState::drain(StreamRef stream) {
  const DeviceGuard guard(device_);
  if (is_capturing(stream)) return {};
  OVERLACE_TRY(cuda_status(cudaStreamSynchronize(stream_of(stream)), "cudaStreamSynchronize"));
  return check_pipelines();
}

base::Status CudaPeerState::finish_calls(uint32_t channel) {
  const DeviceGuard guard(device_);
  for (LastCall& last : last_calls_) {
    if (last.channel != channel || !last.is_live) continue;
    OVERLACE_TRY(cuda_status(cudaEventSynchronize(last.done), "cudaEventSynchronize"));
    last.is_live = false;
  }
  return {};
}

CudaPeerState::LastCall& CudaPeerState::last_call(const CallSite& call) {
  const auto at = std::find_if(last_calls_.begin(), last_calls_.end(),
                               [&](const LastCall& last) { return last.channel == call.channel; });
  if (at != last_calls_.end()) return *at;
  LastCall fresh;
  fresh.channel = call.channel;
  return last_calls_.emplace_back(fresh);
}

void CudaPeerState::forget_ended_calls() {
  for (LastCall& last : last_calls_)
    if (last.is_live && cudaEventQuery(last.done) == cudaSuccess) last.is_live = false;
  (void)cudaGetLastError();
}

base::Status CudaPeerState::begin_call(const CallSite& call, Stats& stats) {
  LastCall& own = last_call(call);
  const cudaStream_t stream = stream_of(call.stream);
  const bool has_moved = own.is_live && own.stream != stream;
  if (last_calls_.size() == 1 && !has_moved) return {};
  const DeviceGuard guard(device_);
  const RelaxedCapture relaxed;
  forget_ended_calls();
  std::vector<LiveCall> live;
  std::vector<cudaEvent_t> events;
  for (const LastCall& last : last_calls_) {
    if (!last.is_live || last.channel == call.channel) continue;
    live.push_back({last.channel, last.sms});
    events.push_back(last.done);
  }
  const int sms = sms_of(call.sm_budget, sm_room_);
  const size_t waits = calls_to_wait_for(live, sms, sm_room_);
  const bool waits_for_own = has_moved && own.is_live;
  if (waits == 0 && !waits_for_own) return {};
  if (is_capturing(call.stream)) {
    if (waits_for_own)
      return base::error(Errc::co_residency,
                         "channel {} is captured on a stream while its calls on another one still run, and a capture "
                         "cannot wait for them; synchronize first",
                         call.channel);
    return base::error(Errc::co_residency,
                       "channel {} with {} SMs is captured while calls of channel {} with {} SMs run, room for {}, and "
                       "a capture cannot wait for them; synchronize first, or give both channels budgets that fit",
                       call.channel, sms, live[0].channel, live[0].sms, sm_room_);
  }
  for (size_t i = 0; i < waits; ++i)
    OVERLACE_TRY(cuda_status(cudaStreamWaitEvent(stream, events[i]), "cudaStreamWaitEvent"));
  if (waits_for_own) OVERLACE_TRY(cuda_status(cudaStreamWaitEvent(stream, own.done), "cudaStreamWaitEvent"));
  stats.serialised_calls += waits != 0 ? 1 : 0;
  stats.moved_calls += waits_for_own ? 1 : 0;
  return {};
}

base::Status CudaPeerState::end_call(const CallSite& call, std::optional<bool> is_captured) {
  const DeviceGuard guard(device_);
  if (is_captured ? *is_captured : is_capturing(call.stream)) return {};
  LastCall& own = last_call(call);
  if (own.done == nullptr)
    OVERLACE_TRY(cuda_status(cudaEventCreateWithFlags(&own.done, cudaEventDisableTiming), "cudaEventCreate"));
  own.stream = stream_of(call.stream);
  own.sms = sms_of(call.sm_budget, sm_room_);
  OVERLACE_TRY(cuda_status(cudaEventRecord(own.done, own.stream), "cudaEventRecord"));
  own.is_live = true;
  // Oldest first: this one is the youngest now.
  const auto at =
      std::find_if(last_calls_.begin(), last_calls_.end(), [&](const LastCall& last) { return &last == &own; });
  last_calls_.splice(last_calls_.end(), last_calls_, at);
  return {};
}

}  // namespace overlace::runtime::cuda_peer
