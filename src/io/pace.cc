#include "src/io/pace.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace overlace::io {
namespace {

using Clock = std::chrono::steady_clock;

class PacedQueue final : public Queue {
 public:
  PacedQueue(std::unique_ptr<Queue> inner, PaceOptions options) : inner_(std::move(inner)), options_(options) {
    arrived_.resize(static_cast<size_t>(inner_->capacity()));
  }

  const char* name() const override { return inner_->name(); }
  int capacity() const override { return inner_->capacity(); }
  base::Status submit() override { return inner_->submit(); }
  base::Status use_memory(std::span<std::byte> memory) override { return inner_->use_memory(memory); }

  void push(const QueueRequest& request) override {
    const double bytes_s =
        options_.bytes_per_s > 0 ? static_cast<double>(request.bytes) / static_cast<double>(options_.bytes_per_s) : 0;
    const std::chrono::duration<double> service(bytes_s + static_cast<double>(options_.start_us) * 1e-6);
    free_at_ = std::max(free_at_, Clock::now()) + std::chrono::duration_cast<Clock::duration>(service);
    due_[request.id] = free_at_;
    inner_->push(request);
  }

  base::Result<size_t> wait(std::span<QueueResult> results, int64_t timeout_ms) override {
    const Clock::time_point until = Clock::now() + std::chrono::milliseconds(timeout_ms);
    while (true) {
      // While results are held whose turn comes next, what has arrived is asked for without waiting.
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
      const bool waits_for_disk = held_.empty() || held_.front().due > earliest_outstanding();
      const base::Result<size_t> n = inner_->wait(arrived_, waits_for_disk ? std::max<int64_t>(left, 0) : 0);
      if (!n.ok()) return n.status();
      for (size_t i = 0; i < *n; ++i) hold(arrived_[i]);
      if (const size_t given = give(results); given > 0) return given;
      if (Clock::now() >= until) return size_t{0};
      if (!waits_for_disk) std::this_thread::sleep_until(std::min(held_.front().due, until));
    }
  }

 private:
  struct Held {
    Clock::time_point due;
    QueueResult result;
  };

  void hold(const QueueResult& result) {
    const auto found = due_.find(result.id);
    const Held held{found == due_.end() ? Clock::now() : found->second, result};
    if (found != due_.end()) due_.erase(found);
    const auto is_sooner = [](const Held& a, const Held& b) { return a.due < b.due; };
    held_.insert(std::upper_bound(held_.begin(), held_.end(), held, is_sooner), held);
  }

  /// When what the disk below still has is due; it may be late.
  Clock::time_point earliest_outstanding() const {
    Clock::time_point earliest = Clock::time_point::max();
    for (const auto& [id, due] : due_) earliest = std::min(earliest, due);
    return earliest;
  }

  /// What is due and has nothing before it that is still to come: requests are served in order.
  size_t give(std::span<QueueResult> results) {
    const Clock::time_point last = std::min(Clock::now(), earliest_outstanding());
    size_t given = 0;
    while (given < results.size() && given < held_.size() && held_[given].due <= last) {
      results[given] = held_[given].result;
      ++given;
    }
    held_.erase(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(given));
    return given;
  }

  std::unique_ptr<Queue> inner_;
  const PaceOptions options_;
  Clock::time_point free_at_{};  // of the disk that is played
  std::unordered_map<uint64_t, Clock::time_point> due_;
  std::vector<Held> held_;  // the soonest first
  std::vector<QueueResult> arrived_;
};

}  // namespace

std::function<std::unique_ptr<Queue>(std::unique_ptr<Queue>)> with_pace(PaceOptions options) {
  return [options](std::unique_ptr<Queue> inner) { return std::make_unique<PacedQueue>(std::move(inner), options); };
}

}  // namespace overlace::io
