// Who else uses what a cache keeps: captured graphs replay with its memory long after the call that captured them.
#pragma once

#include <atomic>
#include <memory>

namespace overlace::exec {

/// Counts holders. What is held is never given up to make room.
class Holds {
 public:
  /// Holds until the last copy of the result goes, on any thread. That may be after this object is gone.
  std::shared_ptr<void> take() {
    count_->fetch_add(1, std::memory_order_relaxed);
    return {nullptr, [count = count_](void*) { count->fetch_sub(1, std::memory_order_acq_rel); }};
  }
  int count() const { return count_->load(std::memory_order_acquire); }

 private:
  std::shared_ptr<std::atomic<int>> count_ = std::make_shared<std::atomic<int>>(0);
};

}  // namespace overlace::exec
