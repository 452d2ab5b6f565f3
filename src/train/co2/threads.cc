#include "src/train/co2/threads.h"

#include <algorithm>

namespace overlace::train {

Threads::Threads(int count) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  const int all = count > 0 ? count : std::clamp(cores / 2, 1, 8);
  for (int i = 1; i < all; ++i) workers_.emplace_back([this] { work(); });
}

Threads::~Threads() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  begun_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Threads::run(int64_t n, const std::function<void(int64_t)>& item) {
  if (workers_.empty() || n < 2) {
    for (int64_t i = 0; i < n; ++i) item(i);
    return;
  }
  std::unique_lock lock(mutex_);
  item_ = &item;
  next_ = 0;
  end_ = n;
  begun_.notify_all();
  take_items(lock);
  done_.wait(lock, [this] { return busy_ == 0; });
  item_ = nullptr;
}

void Threads::take_items(std::unique_lock<std::mutex>& lock) {
  while (next_ < end_) {
    const int64_t mine = next_++;
    const auto& item = *item_;
    ++busy_;
    lock.unlock();
    item(mine);
    lock.lock();
    --busy_;
  }
}

void Threads::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    begun_.wait(lock, [this] { return is_over_ || next_ < end_; });
    if (is_over_) return;
    take_items(lock);
    if (busy_ == 0) done_.notify_all();
  }
}

}  // namespace overlace::train
