// What ends communicators: NCCL waits there for graphs, peers and kernels, however long that is.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace overlace::runtime::nccl {

/// A call under way in a thread of its own. Any thread.
class Ending {
 public:
  /// False at the deadline: it runs on, and what it ends stays with the process until then.
  bool wait_until(int64_t deadline_ns) const;

 private:
  friend Ending end_in_thread(int device, std::function<void()> end);
  struct State;
  std::shared_ptr<State> state_;
};

/// Runs `end` with `device` current; where there is no thread to be had, not at all: what it ends stays with the
/// process then. The end of the process waits for all that run, a second at most: NCCL's own objects are gone soon
/// after.
Ending end_in_thread(int device, std::function<void()> end);

}  // namespace overlace::runtime::nccl
