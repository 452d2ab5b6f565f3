// Deadlines of collectives that are queued: NCCL's kernels wait for their peers for ever.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <list>
#include <string>
#include <vector>

namespace overlace::runtime::nccl {

/// Time counts from when the stream has come to a collective, so what is queued before it does not matter. Captured
/// calls have none. One thread at a time.
class Deadlines {
 public:
  Deadlines() = default;
  ~Deadlines();
  Deadlines(const Deadlines&) = delete;
  Deadlines& operator=(const Deadlines&) = delete;

  /// Around what queues the collective `what`.
  void begin(std::string what, cudaStream_t stream);
  void end(cudaStream_t stream);
  /// The collective that has been running for longer than `timeout_ms`, or null.
  const std::string* overdue(int64_t timeout_ms);

 private:
  struct Watched {
    std::string what;
    cudaEvent_t reached, done;
    int64_t begin_ns;  // 0: not reached yet
    bool is_queued;    // `done` is recorded
  };
  cudaEvent_t take();

  std::list<Watched> watched_;  // in call order
  std::vector<cudaEvent_t> spare_;
};

}  // namespace overlace::runtime::nccl
