// Deadlines of collectives that are queued: NCCL's kernels wait for their peers for ever.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <list>
#include <mutex>
#include <string>
#include <vector>

namespace overlace::runtime::nccl {

/// Time counts from when the stream has come to a collective, so what is queued before it does not matter. Captured
/// calls have none. Any thread.
class Deadlines {
 public:
  Deadlines() = default;
  ~Deadlines();
  Deadlines(const Deadlines&) = delete;
  Deadlines& operator=(const Deadlines&) = delete;

  /// Around what queues the collective `what`; `drop` where that failed, or nothing of it would be timed any more.
  void begin(std::string what, cudaStream_t stream);
  void end(cudaStream_t stream);
  void drop();
  /// The collective that has been running for longer than `timeout_ms`, or nothing.
  std::string overdue(int64_t timeout_ms) { return running_for(timeout_ms * 1'000'000); }
  /// The first one that is running, or nothing.
  std::string running() { return running_for(-1); }

 private:
  struct Watched {
    std::string what;
    cudaEvent_t reached, done;
    int64_t begin_ns;  // 0: not reached yet
    bool is_queued;    // `done` is recorded
  };
  cudaEvent_t take();
  void drop_last();
  std::string running_for(int64_t ns);

  std::mutex mutex_;
  std::list<Watched> watched_;  // in call order
  std::vector<cudaEvent_t> spare_;
};

}  // namespace overlace::runtime::nccl
