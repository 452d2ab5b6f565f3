// CUDA graphs that hold calls of a communicator: NCCL destroys or aborts it only once they are gone, however long that
// is.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>

#include "src/base/status.h"

namespace overlace::runtime::nccl {

/// Counts by an object that the graph owns, and every graph made from it.
class Captures {
 public:
  /// Before a call on `stream`: nothing where that is not captured.
  base::Status note(cudaStream_t stream);
  /// Graphs that are alive; CUDA tells of their end a little later.
  int alive() const { return alive_->load(); }

 private:
  using Count = std::shared_ptr<std::atomic<int>>;
  Count alive_ = std::make_shared<std::atomic<int>>(0);
  unsigned long long last_ = 0;  // capture that was counted
};

}  // namespace overlace::runtime::nccl
