// Requests as calls of pread and pwrite, each blocking one of a pool of threads.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "src/io/queue.h"

namespace overlace::io {
namespace {

constexpr int kMostThreads = 64;

class ThreadQueue final : public Queue {
 public:
  explicit ThreadQueue(int depth) : capacity_(depth) {}
  /// As many as the system gives, at least one.
  base::Status start() {
    try {
      for (int i = 0; i < std::min(capacity_, kMostThreads); ++i) threads_.emplace_back([this] { work(); });
    } catch (const std::system_error& error) {
      if (threads_.empty())
        return base::error(Errc::out_of_memory, "pread: no thread of {} can start: {}",
                           std::min(capacity_, kMostThreads), error.what());
    }
    return {};
  }
  ~ThreadQueue() override {
    {
      const std::lock_guard lock(mutex_);
      waiting_.clear();
      is_closing_ = true;
    }
    has_work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  const char* name() const override { return "pread"; }
  int capacity() const override { return capacity_; }
  void push(const QueueRequest& request) override {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(request);
    }
    has_work_.notify_one();
  }
  base::Status submit() override { return {}; }
  base::Result<size_t> wait(std::span<QueueResult> results, int64_t timeout_ms) override {
    std::unique_lock lock(mutex_);
    const auto ready = [this] { return !done_.empty(); };
    if (!has_results_.wait_for(lock, std::chrono::milliseconds(timeout_ms), ready)) return size_t{0};
    const size_t n = std::min(results.size(), done_.size());
    std::copy_n(done_.begin(), n, results.begin());
    done_.erase(done_.begin(), done_.begin() + static_cast<ptrdiff_t>(n));
    return n;
  }

 private:
  static int64_t run(const QueueRequest& r) {
    const auto bytes = static_cast<size_t>(r.bytes);
    const ssize_t moved = r.is_write ? ::pwrite(r.fd, r.data, bytes, r.offset) : ::pread(r.fd, r.data, bytes, r.offset);
    return moved >= 0 ? moved : -int64_t{errno};
  }
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      has_work_.wait(lock, [this] { return is_closing_ || !waiting_.empty(); });
      if (is_closing_) return;
      const QueueRequest request = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      const int64_t result = run(request);
      lock.lock();
      done_.push_back({request.id, result});
      has_results_.notify_one();
    }
  }

  const int capacity_;
  std::mutex mutex_;
  std::condition_variable has_work_, has_results_;
  std::deque<QueueRequest> waiting_;
  std::deque<QueueResult> done_;
  bool is_closing_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

base::Result<std::unique_ptr<Queue>> open_threads(int depth) {
  auto queue = std::make_unique<ThreadQueue>(depth);
  OVERLACE_TRY(queue->start());
  return std::unique_ptr<Queue>(std::move(queue));
}

}  // namespace overlace::io
