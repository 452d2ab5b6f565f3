// A few threads that share the items of a loop.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace overlace::train {

class Threads {
 public:
  /// `count` with the caller; 0: one for each two cores, at most 8.
  explicit Threads(int count = 0);
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  int count() const { return static_cast<int>(workers_.size()) + 1; }
  /// item(0) to item(n - 1), in any order, on the caller and the workers; returns when all are done. One caller at a
  /// time. `item` must not throw.
  void run(int64_t n, const std::function<void(int64_t)>& item);

 private:
  void work();
  void take_items(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable begun_, done_;
  const std::function<void(int64_t)>* item_ = nullptr;
  int64_t next_ = 0, end_ = 0, busy_ = 0;
  bool is_over_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace overlace::train
