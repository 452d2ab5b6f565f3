// Ranks that are threads of this process meet in one object.
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "overlace/bootstrap.h"
#include "overlace/error.h"
#include "src/base/format.h"
#include "src/runtime/clock.h"

namespace overlace {
namespace {

struct Meeting {
  explicit Meeting(int n)
      : size(static_cast<size_t>(n)),
        has_given(size),
        is_gone(size),
        given(size),
        token(base::format("threads.{}.{}", ::getpid(), runtime::now_ns())) {}

  std::vector<Bytes> allgather(size_t rank, std::span<const std::byte> mine, int64_t timeout_ms) {
    std::unique_lock lock(mutex);
    const uint64_t my_round = round;
    given[rank].assign(mine.begin(), mine.end());
    has_given[rank] = true;
    if (++count == size) {
      result = given;
      has_given.assign(size, false);
      count = 0;
      ++round;
      changed.notify_all();
      return result;
    }
    const auto ended = [&] { return round != my_round || missing(true) != ""; };
    changed.wait_for(lock, std::chrono::milliseconds(timeout_ms), ended);
    if (round != my_round) return result;
    const std::string gone = missing(true);
    const std::string who = gone.empty() ? missing(false) : gone;
    const std::string why = gone.empty() ? base::format("after {:.1f} s", static_cast<double>(timeout_ms) * 1e-3)
                                         : std::string("because it is gone");
    throw PeerLost(Errc::bootstrap, base::format("bootstrap: rank {} of {} misses rank {} {}", rank, size, who, why));
  }

  void leave(size_t rank) {
    const std::lock_guard lock(mutex);
    is_gone[rank] = true;
    changed.notify_all();
  }

  /// "1, 3": who has not given yet (and never will).
  std::string missing(bool only_gone) const {
    std::string text;
    for (size_t r = 0; r < size; ++r)
      if (!has_given[r] && (is_gone[r] || !only_gone)) text += (text.empty() ? "" : ", ") + base::format("{}", r);
    return text;
  }

  const size_t size;
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t round = 0;
  size_t count = 0;
  std::vector<bool> has_given, is_gone;
  std::vector<Bytes> given, result;
  const std::string token;
};

class ThreadBootstrap final : public Bootstrap {
 public:
  ThreadBootstrap(size_t rank, std::shared_ptr<Meeting> meeting) : rank_(rank), meeting_(std::move(meeting)) {}
  ~ThreadBootstrap() override { meeting_->leave(rank_); }
  int rank() const override { return static_cast<int>(rank_); }
  int size() const override { return static_cast<int>(meeting_->size); }
  std::vector<Bytes> allgather(std::span<const std::byte> mine, int64_t timeout_ms) override {
    return meeting_->allgather(rank_, mine, timeout_ms);
  }
  std::string token() const override { return meeting_->token; }
  bool in_process() const override { return true; }

 private:
  const size_t rank_;
  const std::shared_ptr<Meeting> meeting_;
};

}  // namespace

std::vector<std::unique_ptr<Bootstrap>> thread_bootstraps(int n) {
  if (n < 1) throw InvalidArgument(Errc::invalid_argument, base::format("thread_bootstraps: n is {}, wanted >= 1", n));
  const auto meeting = std::make_shared<Meeting>(n);
  std::vector<std::unique_ptr<Bootstrap>> all;
  for (size_t r = 0; r < meeting->size; ++r) all.push_back(std::make_unique<ThreadBootstrap>(r, meeting));
  return all;
}

}  // namespace overlace
