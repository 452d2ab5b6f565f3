#include "src/offload/filler.h"

#include <chrono>
#include <utility>

namespace overlace::offload {

using base::Status;

Filler::Filler() : thread_([this] { loop(); }) {}

Filler::~Filler() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  given_.notify_one();
  thread_.join();
}

void Filler::start(std::function<Status()> work, uint64_t tag) {
  {
    const std::lock_guard lock(mutex_);
    backlog_.push_back({std::move(work), tag});
    ++under_way_;
  }
  given_.notify_one();
}

std::vector<FillEnd> Filler::poll(int64_t wait_ms) {
  std::unique_lock lock(mutex_);
  if (wait_ms > 0 && under_way_ > 0)
    ended_.wait_for(lock, std::chrono::milliseconds(wait_ms), [&] { return !done_.empty(); });
  under_way_ -= std::ssize(done_);
  return std::exchange(done_, {});
}

double Filler::busy_s() const {
  const std::lock_guard lock(mutex_);
  return busy_s_;
}

void Filler::loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    given_.wait(lock, [&] { return is_ending_ || !backlog_.empty(); });  // the destructor ends it
    if (is_ending_) return;
    const Work work = std::move(backlog_.front());
    backlog_.pop_front();
    lock.unlock();
    const auto begin = std::chrono::steady_clock::now();
    Status status;
    try {
      status = work.run();
    } catch (...) {
      status = base::status_of_current_exception();
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    lock.lock();
    busy_s_ += took.count();
    done_.push_back({work.tag, std::move(status)});
    ended_.notify_one();
  }
}

}  // namespace overlace::offload
