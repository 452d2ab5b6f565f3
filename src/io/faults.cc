#include "src/io/faults.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <random>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/io/alignment.h"

namespace overlace::io {
namespace {

/// Others are delivered meanwhile, this many calls of wait() at most.
constexpr int kLongestDelay = 5;
constexpr int64_t kLookMs = 2;  // for stalled requests
constexpr std::byte kRubbish{0xA5};

using Clock = std::chrono::steady_clock;

class FaultQueue final : public Queue {
 public:
  FaultQueue(std::unique_ptr<Queue> inner, const FaultOptions& options, FaultCounts* counts)
      : inner_(std::move(inner)),
        options_(options),
        counts_(counts != nullptr ? counts : &own_),
        random_(options.seed) {}

  const char* name() const override { return inner_->name(); }
  int capacity() const override { return inner_->capacity(); }
  base::Status submit() override { return inner_->submit(); }
  base::Status use_memory(std::span<std::byte> memory) override { return inner_->use_memory(memory); }

  void push(const QueueRequest& request) override {
    ++counts_->requests;
    ++counts_->under_way;
    double left = std::uniform_real_distribution<double>(0, 1)(random_);
    const auto drawn = [&](double share, int64_t* count) {
      left -= share;
      if (left >= 0 || left + share < 0) return false;
      ++*count;
      return true;
    };
    if (drawn(options_.eio, &counts_->eio)) return refuse(request, EIO);
    if (drawn(options_.eagain, &counts_->eagain)) return refuse(request, EAGAIN);
    if (request.is_write && drawn(options_.enospc, &counts_->enospc)) return refuse(request, ENOSPC);
    if (drawn(options_.stalled, &counts_->stalled)) {
      stalled_.push_back({Clock::now() + std::chrono::milliseconds(options_.stall_ms), request});
      return;
    }
    QueueRequest passed = request;
    if (drawn(options_.short_moves, &counts_->short_moves)) {
      // A direct write must stay aligned; a read is made in full and then cut, see spoil().
      const int64_t step = request.is_write && request.bytes > kPageBytes ? kPageBytes : 1;
      const int64_t most = std::max<int64_t>((request.bytes - 1) / step, 0);
      const int64_t moved = most == 0 ? request.bytes : step * std::uniform_int_distribution<int64_t>(1, most)(random_);
      if (request.is_write && step > 1)
        passed.bytes = moved;
      else if (!request.is_write)
        spoiled_[request.id] = {request, moved};
    } else if (!request.is_write && drawn(options_.flipped, &counts_->flipped)) {
      spoiled_[request.id] = {request, -1};
    }
    if (drawn(options_.late, &counts_->late)) late_[request.id] = static_cast<int>(random_() % kLongestDelay) + 1;
    inner_->push(passed);
  }

  base::Result<size_t> wait(std::span<QueueResult> results, int64_t timeout_ms) override {
    begin_stalled();
    // Held results must not wait for the disk, nor stalled requests longer than they shall.
    if (!held_.empty()) timeout_ms = 0;
    if (!stalled_.empty()) timeout_ms = std::min(timeout_ms, kLookMs);
    arrived_.resize(static_cast<size_t>(capacity()));
    const base::Result<size_t> n = inner_->wait(arrived_, timeout_ms);
    if (!n.ok()) return n.status();
    for (size_t i = 0; i < *n; ++i) hold(arrived_[i]);
    if (options_.reorder) std::shuffle(held_.begin(), held_.end(), random_);
    size_t given = 0;
    std::vector<Held> kept;
    for (Held& held : held_) {
      if (held.delay > 0 || given == results.size()) {
        held.delay = std::max(held.delay - 1, 0);
        kept.push_back(held);
      } else {
        results[given++] = held.result;
      }
    }
    held_ = std::move(kept);
    counts_->under_way -= static_cast<int64_t>(given);
    return given;
  }

 private:
  struct Held {
    QueueResult result;
    int delay = 0;
  };
  struct Spoiled {
    QueueRequest request;
    int64_t moved = -1;  // < 0: all, with a flipped bit
  };

  struct Stalled {
    Clock::time_point due;
    QueueRequest request;
  };

  void begin_stalled() {
    const auto is_due = [now = Clock::now()](const Stalled& s) { return s.due <= now; };
    for (const Stalled& s : stalled_)
      if (is_due(s)) inner_->push(s.request);
    std::erase_if(stalled_, is_due);
  }

  void refuse(const QueueRequest& request, int code) { held_.push_back({{request.id, -int64_t{code}}, 0}); }

  void hold(QueueResult result) {
    if (const auto it = spoiled_.find(result.id); it != spoiled_.end()) {
      if (result.result > 0) spoil(it->second, &result);
      spoiled_.erase(it);
    }
    int delay = 0;
    if (const auto it = late_.find(result.id); it != late_.end()) {
      delay = it->second;
      late_.erase(it);
    }
    held_.push_back({result, delay});
  }

  void spoil(const Spoiled& spoiled, QueueResult* result) {
    std::byte* data = spoiled.request.data;
    if (spoiled.moved < 0) {
      const uint64_t bit = random_() % (static_cast<uint64_t>(result->result) * 8);
      data[bit / 8] ^= std::byte{1} << static_cast<int>(bit % 8);
      return;
    }
    const int64_t moved = std::min(spoiled.moved, result->result);
    std::fill(data + moved, data + result->result, kRubbish);
    result->result = moved;
  }

  std::unique_ptr<Queue> inner_;
  const FaultOptions options_;
  FaultCounts own_;
  FaultCounts* counts_;
  std::mt19937_64 random_;
  std::unordered_map<uint64_t, Spoiled> spoiled_;
  std::unordered_map<uint64_t, int> late_;
  std::vector<QueueResult> arrived_;
  std::vector<Held> held_;
  std::vector<Stalled> stalled_;
};

}  // namespace

std::function<std::unique_ptr<Queue>(std::unique_ptr<Queue>)> with_faults(FaultOptions options, FaultCounts* counts) {
  return [options, counts](std::unique_ptr<Queue> inner) {
    return std::make_unique<FaultQueue>(std::move(inner), options, counts);
  };
}

}  // namespace overlace::io
