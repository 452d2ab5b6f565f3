// A slow link and a bad one, around any transport.
#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "overlace/async_collective.h"
#include "overlace/error.h"
#include "src/base/status.h"
#include "src/runtime/clock.h"

namespace overlace {
namespace {

using runtime::now_ns;

int64_t to_ns(double seconds) { return static_cast<int64_t>(seconds * 1e9); }

/// Sleeps until `due_ns`; Timeout if `deadline_ns` comes before.
void sleep_until(int64_t due_ns, int64_t deadline_ns, AsyncCollective& inner, const std::string& what) {
  const int64_t end_ns = std::min(due_ns, deadline_ns), now = now_ns();
  if (end_ns > now) std::this_thread::sleep_for(std::chrono::nanoseconds(end_ns - now));
  if (due_ns <= deadline_ns) return;
  inner.abort(Errc::timeout, what);
  throw_error(Errc::timeout, what);
}

/// Passes everything on.
class Decorator : public AsyncCollective {
 public:
  explicit Decorator(AsyncCollective& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  CollectiveCaps caps() const override {
    CollectiveCaps caps = inner_.caps();
    caps.stream_ordered = false;
    return caps;
  }
  void order_after(Ticket ticket, StreamRef stream) override {
    inner_.order_after(ticket, stream);
    wait(ticket, kOrderMs);
  }
  TicketTimes times(Ticket ticket) override { return inner_.times(ticket); }
  void abort(Errc code, std::string_view why) override { inner_.abort(code, why); }

 protected:
  static constexpr int64_t kOrderMs = 300000;
  AsyncCollective& inner_;
};

class Paced final : public Decorator {
 public:
  Paced(AsyncCollective& inner, const Pace& pace) : Decorator(inner), pace_(pace) {}
  std::string name() const override { return "paced " + inner_.name(); }

  Ticket all_reduce(const Bucket& bucket, StreamRef stream) override {
    const Ticket ticket = inner_.all_reduce(bucket, stream);
    const std::lock_guard lock(mutex_);
    waiting_[ticket.number] = wire_bytes(bucket);
    return ticket;
  }

  TicketState poll(Ticket ticket) override {
    const TicketState state = inner_.poll(ticket);
    if (state != TicketState::complete) return state;
    return now_ns() >= due_of(ticket) ? TicketState::complete : TicketState::pending;
  }

  void wait(Ticket ticket, int64_t timeout_ms) override {
    const int64_t deadline_ns = now_ns() + timeout_ms * 1000000;
    inner_.wait(ticket, timeout_ms);
    sleep_until(due_of(ticket), deadline_ns, inner_,
                base::format("paced all-reduce, ticket {}: not through the emulated link after {} ms", ticket.number,
                             timeout_ms));
  }

  TicketTimes times(Ticket ticket) override {
    TicketTimes times = inner_.times(ticket);
    if (times.complete_ns > 0) times.complete_ns = std::max(times.complete_ns, due_of(ticket));
    return times;
  }

 private:
  /// When a ticket complete inside is due. The link takes tickets in their order, each from when all ranks were there.
  int64_t due_of(Ticket ticket) {
    const std::lock_guard lock(mutex_);
    while (!waiting_.empty() && waiting_.begin()->first <= ticket.number) {
      const auto [number, bytes] = *waiting_.begin();
      waiting_.erase(waiting_.begin());
      const TicketTimes times = inner_.times({number});
      const int64_t begin = std::max({free_ns_, times.met_ns, times.launched_ns});
      const double n = size(), moved = 2 * (n - 1) / n * static_cast<double>(bytes);
      free_ns_ = begin + to_ns(pace_.latency_s + (pace_.bytes_per_s > 0 ? moved / pace_.bytes_per_s : 0));
      due_[number] = free_ns_;
      if (due_.size() > kKept) due_.erase(due_.begin());
    }
    const auto found = due_.find(ticket.number);
    return found == due_.end() ? 0 : found->second;
  }

  static constexpr size_t kKept = 4096;
  const Pace pace_;
  std::mutex mutex_;
  std::map<uint64_t, size_t> waiting_;  // bytes of tickets that have no time yet
  std::map<uint64_t, int64_t> due_;
  int64_t free_ns_ = 0;
};

class Faulty final : public Decorator {
 public:
  Faulty(AsyncCollective& inner, std::vector<CollectiveFault> faults) : Decorator(inner), faults_(std::move(faults)) {}
  std::string name() const override { return "faulty " + inner_.name(); }

  Ticket all_reduce(const Bucket& bucket, StreamRef stream) override {
    const Ticket ticket = inner_.all_reduce(bucket, stream);
    const std::lock_guard lock(mutex_);
    if (CollectiveFault* const fault = find(ticket)) struck_[ticket.number] = {bucket, now_ns(), *fault};
    return ticket;
  }

  TicketState poll(Ticket ticket) override {
    const TicketState state = inner_.poll(ticket);
    if (state != TicketState::complete) return state;
    const std::lock_guard lock(mutex_);
    const auto found = struck_.find(ticket.number);
    if (found == struck_.end()) return state;
    const Struck& struck = found->second;
    using Kind = CollectiveFault::Kind;
    if (struck.fault.kind == Kind::fail) return TicketState::failed;
    if (struck.fault.kind == Kind::never) return TicketState::pending;
    if (struck.fault.kind == Kind::delay && now_ns() < due_of(struck)) return TicketState::pending;
    strike(found->second);
    return state;
  }

  void wait(Ticket ticket, int64_t timeout_ms) override {
    const int64_t deadline_ns = now_ns() + timeout_ms * 1000000;
    inner_.wait(ticket, timeout_ms);
    std::unique_lock lock(mutex_);
    const auto found = struck_.find(ticket.number);
    if (found == struck_.end()) return;
    strike(found->second);
    const Struck struck = found->second;
    lock.unlock();
    const std::string what = base::format("faulty all-reduce of {}, ticket {}", struck.bucket.what, ticket.number);
    using Kind = CollectiveFault::Kind;
    if (struck.fault.kind == Kind::delay)
      sleep_until(due_of(struck), deadline_ns, inner_, base::format("{}: late by more than {} ms", what, timeout_ms));
    if (struck.fault.kind == Kind::never)
      sleep_until(INT64_MAX, deadline_ns, inner_, base::format("{}: nothing after {} ms", what, timeout_ms));
    if (struck.fault.kind == Kind::fail) {
      inner_.abort(Errc::engine, what);
      throw_error(Errc::engine, what + ": it was told to fail");
    }
  }

 private:
  struct Struck {
    Bucket bucket;
    int64_t launched_ns = 0;
    CollectiveFault fault;
    bool is_done = false;
  };

  CollectiveFault* find(Ticket ticket) {
    for (CollectiveFault& fault : faults_)
      if (fault.ticket == ticket.number) return &fault;
    return nullptr;
  }
  static int64_t due_of(const Struck& struck) { return struck.launched_ns + struck.fault.delay_ms * 1000000; }

  /// Flips the bit, once.
  static void strike(Struck& struck) {
    if (struck.is_done || struck.fault.kind != CollectiveFault::Kind::flip) return;
    struck.is_done = true;
    OVERLACE_ASSERT(struck.fault.bit / 8 < struck.bucket.count * dtype_bytes(struck.bucket.dtype));
    char& byte = static_cast<char*>(struck.bucket.data)[struck.fault.bit / 8];
    byte = static_cast<char>(byte ^ (1 << (struck.fault.bit % 8)));
  }

  std::vector<CollectiveFault> faults_;
  std::mutex mutex_;
  std::map<uint64_t, Struck> struck_;
};

}  // namespace

std::unique_ptr<AsyncCollective> paced_collective(AsyncCollective& inner, const Pace& pace) {
  if (!(pace.bytes_per_s >= 0) || !(pace.latency_s >= 0))
    throw_error(Errc::invalid_argument,
                base::format("pace: {} B/s and {} s, wanted: 0 or more", pace.bytes_per_s, pace.latency_s));
  return std::make_unique<Paced>(inner, pace);
}

std::unique_ptr<AsyncCollective> faulty_collective(AsyncCollective& inner, std::vector<CollectiveFault> faults) {
  return std::make_unique<Faulty>(inner, std::move(faults));
}

}  // namespace overlace
