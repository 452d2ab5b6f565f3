// All-reduces among threads of a test that finish in a drawn order and spoil what must not be read or written
// meanwhile.
#pragma once

#include <condition_variable>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "overlace/async_collective.h"
#include "src/base/half.h"
#include "src/base/status.h"

namespace overlace::train::test {

/// While a ticket is open its memory holds a pattern; the sum comes only if the pattern is still there.
class HostileGroup {
 public:
  explicit HostileGroup(int size, uint64_t seed = 0) : size_(size), draw_(seed), is_hostile_(seed != 0) {}

  class Member : public AsyncCollective {
   public:
    Member(HostileGroup& group, int rank) : group_(group), rank_(rank) {}
    std::string name() const override { return "hostile"; }
    int rank() const override { return rank_; }
    int size() const override { return group_.size_; }
    CollectiveCaps caps() const override { return {.deterministic = true}; }
    Ticket all_reduce(const Bucket& bucket, StreamRef) override { return group_.launch(rank_, launched_++, bucket); }
    TicketState poll(Ticket ticket) override { return group_.poll(ticket.number); }
    void order_after(Ticket ticket, StreamRef) override { wait(ticket, 20000); }
    void wait(Ticket ticket, int64_t timeout_ms) override { group_.wait(ticket.number, timeout_ms); }
    TicketTimes times(Ticket) override { return {}; }
    void abort(Errc, std::string_view why) override { group_.abort(std::string(why)); }

   private:
    HostileGroup& group_;
    const int rank_;
    uint64_t launched_ = 0;
  };

 private:
  struct Job {
    std::vector<Bucket> buckets;  // by rank
    std::vector<std::vector<char>> sent;
    int joined = 0;
    bool is_done = false;
  };
  static constexpr char kPattern = '\x7b';

  Ticket launch(int rank, uint64_t index, const Bucket& bucket) {
    const std::lock_guard lock(mutex_);
    if (index == jobs_.size()) {
      jobs_.push_back(std::make_unique<Job>());
      jobs_.back()->buckets.resize(static_cast<size_t>(size_));
      jobs_.back()->sent.resize(static_cast<size_t>(size_));
    }
    Job& job = *jobs_[index];
    const char* data = static_cast<const char*>(bucket.data);
    job.buckets[static_cast<size_t>(rank)] = bucket;
    job.sent[static_cast<size_t>(rank)].assign(data, data + bytes_of(bucket));
    if (bytes_of(bucket) > 0) std::memset(bucket.data, kPattern, bytes_of(bucket));
    if (++job.joined == size_) ready_.push_back(index);
    if (!is_hostile_ || draw_() % 2 == 0) finish_some(is_hostile_ ? draw_() % 3 : ready_.size());
    changed_.notify_all();
    return {index + 1};
  }

  static size_t bytes_of(const Bucket& bucket) { return bucket.count * dtype_bytes(bucket.dtype); }

  void finish_some(size_t n) {
    for (; n > 0 && !ready_.empty(); --n) {
      const size_t drawn = is_hostile_ ? draw_() % ready_.size() : 0;
      finish(*jobs_[ready_[drawn]]);
      ready_.erase(ready_.begin() + static_cast<std::ptrdiff_t>(drawn));
    }
  }

  template <class T>
  static void add(std::vector<char>& sum, const std::vector<char>& sent) {
    for (size_t i = 0; i + sizeof(T) <= sum.size(); i += sizeof(T)) {
      T a, b;
      std::memcpy(&a, sum.data() + i, sizeof a);
      std::memcpy(&b, sent.data() + i, sizeof b);
      a += b;
      std::memcpy(sum.data() + i, &a, sizeof a);
    }
  }

  void finish(Job& job) {
    std::vector<char> sum = job.sent[0];
    for (size_t r = 1; r < job.sent.size(); ++r) {
      OVERLACE_ASSERT(job.sent[r].size() == sum.size());
      const DType dtype = job.buckets[r].dtype;
      if (dtype == DType::fp64) add<double>(sum, job.sent[r]);
      if (dtype == DType::fp32) add<float>(sum, job.sent[r]);
      if (dtype == DType::bf16)
        for (size_t i = 0; i < sum.size() / 2; ++i) {
          const int64_t at = static_cast<int64_t>(i);
          base::store_element(
              sum.data(), dtype, at,
              base::load_element(sum.data(), dtype, at) + base::load_element(job.sent[r].data(), dtype, at));
        }
    }
    for (const Bucket& bucket : job.buckets) {
      const char* data = static_cast<const char*>(bucket.data);
      for (size_t i = 0; i < sum.size(); ++i)
        if (data[i] != kPattern) spoilt_ = "memory of an open ticket was written: " + bucket.what;
      if (!sum.empty()) std::memcpy(bucket.data, sum.data(), sum.size());
    }
    job.is_done = true;
  }

  TicketState poll(uint64_t number) {
    const std::lock_guard lock(mutex_);
    return jobs_[number - 1]->is_done ? TicketState::complete : TicketState::pending;
  }

  void wait(uint64_t number, int64_t timeout_ms) {
    std::unique_lock lock(mutex_);
    const Job& job = *jobs_[number - 1];
    const auto is_over = [&] {
      if (job.is_done || !why_.empty()) return true;
      if (job.joined == size_)
        while (!job.is_done) finish_some(1);
      return job.is_done;
    };
    const bool in_time = changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), is_over);
    changed_.notify_all();
    if (!spoilt_.empty()) throw_error(Errc::internal, spoilt_);
    if (!job.is_done && !why_.empty()) throw_error(Errc::aborted, why_);
    if (!in_time) throw_error(Errc::timeout, "hostile: nobody came for " + job.buckets[0].what);
  }

  void abort(const std::string& why) {
    const std::lock_guard lock(mutex_);
    why_ = why.empty() ? "aborted" : why;
    changed_.notify_all();
  }

  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Job>> jobs_;
  std::vector<uint64_t> ready_;
  std::mt19937_64 draw_;
  const bool is_hostile_;
  std::string why_, spoilt_;
};

/// body(member) on a thread each; the first exception comes back.
inline void run_members(int size, uint64_t seed, const std::function<void(AsyncCollective&)>& body) {
  HostileGroup group(size, seed);
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      HostileGroup::Member member(group, rank);
      try {
        body(member);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
        member.abort(Errc::aborted, "another member of the test failed");
      }
    });
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace overlace::train::test
