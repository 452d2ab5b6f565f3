// Marks of traced calls on streams: timing events, and the host's time of each once the device has passed them all.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "src/base/status.h"
#include "src/exec/timeline.h"

namespace overlace::exec {

/// All calls with the device current.
class Recorder {
 public:
  Recorder() = default;
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;
  /// Makes events ahead, so that marks of a traced call cost no more than recording one.
  base::Status reserve();
  /// The number of the mark that is now queued on `stream`. Not inside capture.
  base::Status mark(cudaStream_t stream, size_t* number);
  /// What names the marks made so far.
  Recording recording;
  /// Synchronises the device; what was recorded since the last time, with times on CLOCK_MONOTONIC.
  base::Result<base::Trace> collect(cudaStream_t reference);

 private:
  std::vector<cudaEvent_t> marks_, free_;
};

}  // namespace overlace::exec
