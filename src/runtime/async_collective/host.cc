#include "src/runtime/async_collective/host.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "overlace/async_collective.h"
#include "overlace/error.h"
#include "overlace/net_engine.h"
#include "overlace/signal.h"
#include "src/base/status.h"
#include "src/runtime/async_collective/int8.h"
#include "src/runtime/async_collective/signs_of_life.h"
#include "src/runtime/backend/cpu/agent.h"
#include "src/runtime/clock.h"
#include "src/runtime/state.h"
#include "src/runtime/wait.h"

namespace overlace {
namespace {

using base::Status;
using runtime::now_ns;

// How long a failed wait lets the worker come out of what it does: its own waits end at once when the runtime aborts.
constexpr std::chrono::seconds kGrace(10);
// How long the worker may take to tell of its own wait that failed.
constexpr std::chrono::milliseconds kTelling(100);
// Times of tickets that are over are kept for a while.
constexpr size_t kKept = 4096;

/// What a rank says of a ticket when it comes to it: whatever differs would be summed as if it were the same.
struct Said {
  uint64_t count = 0;
  int32_t dtype = 0;
  char what[52] = {};  // cut, ends with 0

  bool operator==(const Said&) const = default;
  std::string to_string() const {
    return base::format("\"{}\" of {} x {}", what, count, dtype_name(static_cast<DType>(dtype)));
  }
};
static_assert(sizeof(Said) == 64);

class HostCollective final : public runtime::HostTransport {
 public:
  HostCollective(Bootstrap& bootstrap, const HostCollectiveOptions& options)
      : rank_(bootstrap.rank()), size_(bootstrap.size()), default_timeout_ms_(options.runtime.timeout_ms) {
    worker_ = std::thread([this, &bootstrap, options] { work(bootstrap, options); });
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_open_ || has_ended_; });  // opening has its own deadline
    if (is_open_) return;
    lock.unlock();
    worker_.join();
    failure_.or_throw();
  }

  ~HostCollective() override {
    bool is_busy = false;
    {
      const std::lock_guard lock(mutex_);
      is_busy = num_ended_ < first_ + jobs_.size() - 1;
      is_stopped_ = true;
    }
    // Whoever leaves by an exception will not come any more: the others are told instead of waited for.
    if (std::uncaught_exceptions() > num_exceptions_)
      abort(Errc::aborted, base::format("rank {} left by an exception", rank_));
    if (is_busy) abort(Errc::aborted, "the collective was destroyed with open tickets");
    changed_.notify_all();
    worker_.join();
  }

  std::string name() const override { return "host"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  CollectiveCaps caps() const override {
    const std::lock_guard lock(mutex_);
    return {.progresses_alone = true, .deterministic = true, .takes_residuals = true, .frees_on_failure = !is_stuck_};
  }

  Ticket all_reduce(const Bucket& bucket, StreamRef stream) override {
    check(stream, "all_reduce");
    if (bucket.residual != nullptr && bucket.dtype != DType::fp32)
      throw_error(Errc::invalid_argument, base::format("all_reduce of {}: {} with a residual, wanted: fp32",
                                                       bucket.what, dtype_name(bucket.dtype)));
    const std::lock_guard lock(mutex_);
    failure_.or_throw();
    jobs_.push_back({bucket, {.launched_ns = now_ns()}});
    while (jobs_.size() > kKept && first_ <= num_ended_) {
      jobs_.pop_front();
      ++first_;
    }
    changed_.notify_all();
    return {first_ + jobs_.size() - 1};
  }

  TicketState poll(Ticket ticket) override {
    const std::lock_guard lock(mutex_);
    return state_of(ticket);
  }

  void order_after(Ticket ticket, StreamRef stream) override {
    check(stream, "order_after");
    wait(ticket, default_timeout_ms_);
  }

  void wait(Ticket ticket, int64_t timeout_ms) override { finish_wait(ticket, timeout_ms, timeout_ms); }

  void finish_wait(Ticket ticket, int64_t timeout_ms, int64_t left_ms) override {
    std::unique_lock lock(mutex_);
    const auto has_ended = [&] { return num_ended_ >= ticket.number || (!failure_.ok() && !is_working_); };
    bool is_in_time = changed_.wait_for(lock, std::chrono::milliseconds(left_ms), has_ended);
    const int awaited = is_in_time || agent_ == nullptr ? -1 : agent_->waits_for.load(std::memory_order_relaxed);
    // The worker's own deadline may be over at the same moment: its error names who is missing, once it is told.
    if (!is_in_time && is_working_ && awaited < 0) is_in_time = changed_.wait_for(lock, kTelling, has_ended);
    const std::string silent = is_in_time ? "" : silent_ranks(lock);
    if (!is_in_time && !has_ended()) {
      fail(Status(Errc::timeout, timeout_text(ticket, timeout_ms, awaited, silent)));
      is_stuck_ = !changed_.wait_for(lock, kGrace, has_ended) || is_stuck_;
    }
    if (state_of(ticket) == TicketState::complete) return;
    const Status failure = failure_;
    throw_error(failure.code(), failure.message());
  }

  TicketTimes times(Ticket ticket) override {
    const std::lock_guard lock(mutex_);
    const Job* job = find(ticket);
    return job == nullptr ? TicketTimes{} : job->times;
  }

  void abort(Errc code, std::string_view why) override {
    const std::lock_guard lock(mutex_);
    fail(Status(code, std::string(why)));
    changed_.notify_all();
  }

 private:
  struct Job {
    Bucket bucket;
    TicketTimes times;
  };

  static void check(StreamRef stream, const char* call) {
    if (stream.kind != StreamRef::Kind::cpu)
      throw_error(Errc::not_supported,
                  base::format("{}: collective host on a stream of a GPU; supported: memory of the host", call));
  }

  Job* find(Ticket ticket) {
    const bool is_kept = ticket.number >= first_ && ticket.number < first_ + jobs_.size();
    return is_kept ? &jobs_[ticket.number - first_] : nullptr;
  }

  TicketState state_of(Ticket ticket) const {
    if (ticket.number <= num_good_) return TicketState::complete;
    return failure_.ok() ? TicketState::pending : TicketState::failed;
  }

  /// The first cause stays. Holding the mutex.
  void fail(const Status& status) {
    if (!failure_.ok()) return;
    failure_ = status;
    if (runtime_ != nullptr) runtime_->abort(status.code(), status.message());
  }

  /// Who says nothing any more, in words. Holding the mutex, but not while the others are asked.
  std::string silent_ranks(std::unique_lock<std::mutex>& lock) {
    runtime::SignsOfLife* const signs = signs_;  // there as long as somebody asks
    ++num_asking_;
    lock.unlock();
    std::string text = signs->missing_text();
    lock.lock();
    --num_asking_;
    changed_.notify_all();
    return text;
  }

  /// `awaited`: the rank that the worker waits for; -1: none. Holding the mutex.
  std::string timeout_text(Ticket ticket, int64_t timeout_ms, int awaited, const std::string& silent) {
    const Job* const job = find(ticket);
    const Job* const current = find({num_ended_ + 1});
    std::string missing;
    for (int peer = 0; is_working_ && peer < size_; ++peer)
      if (peer != rank_ && !has_come_[static_cast<size_t>(peer)].load(std::memory_order_relaxed))
        missing += (missing.empty() ? "" : ", ") + std::to_string(peer);
    std::string text = base::format("all-reduce of {}: rank {} of {} waited {} ms for {} bytes",
                                    job == nullptr ? "?" : job->bucket.what, rank_, size_, timeout_ms,
                                    job == nullptr ? 0 : wire_bytes(job->bucket));
    if (current != nullptr && current != job) text += "; before it is " + current->bucket.what;
    // A rank that has come late to this one, because it waits for who has stopped, is not to be blamed.
    if (!silent.empty()) return text + silent;
    if (!missing.empty()) return text + "; not seen: rank " + missing;
    if (awaited < 0 || awaited == rank_) return text + "; all ranks have come, the data have not";
    return text + base::format("; all ranks have come, the data of rank {} have not", awaited);
  }

  // ---- the worker ----

  void work(Bootstrap& bootstrap, const HostCollectiveOptions& options) {
    try {
      Runtime runtime = Runtime::open(bootstrap, options.runtime);
      if (runtime.backend() != Backend::cpu)
        throw_error(Errc::not_supported, "collective host: the runtime is not of backend cpu; supported: cpu");
      if (runtime.world().net() == nullptr)
        throw_error(Errc::not_supported, "collective host: the runtime has no engine; supported: reference, mpi");
      Channel& channel = runtime.world().channel(StreamRef::cpu());
      const SignalIds came = channel.ids(1, Domain::cpu, "async_collective.came");
      const ChannelPod& pod = channel.pod();
      const size_t said_bytes = 2 * static_cast<size_t>(size_) * sizeof(Said);
      said_offset_ = runtime.heap().alloc(said_bytes, sizeof(Said), "async_collective.said").offset;
      runtime.world().barrier();  // nobody writes into memory that another still uses
      meet_timeout_ms_ = options.meet_timeout_ms > 0 ? options.meet_timeout_ms : runtime.options().timeout_ms;
      runtime::SignsOfLife signs(*runtime.world().state().runtime->control);
      runtime::agent_of(pod).more_of_timeout = [&signs] { return signs.missing_text(); };
      runtime::set_transfer_sink(runtime, [this](int, int64_t, int64_t, size_t bytes) {
        link_bytes_.fetch_add(static_cast<int64_t>(bytes), std::memory_order_relaxed);
      });
      {
        const std::lock_guard lock(mutex_);
        runtime_ = &runtime;
        signs_ = &signs;
        agent_ = &runtime::agent_of(pod);
        default_timeout_ms_ = runtime.options().timeout_ms;
        is_open_ = true;
      }
      changed_.notify_all();
      serve(runtime, pod, came.first);
      {
        std::unique_lock lock(mutex_);
        runtime_ = nullptr;
        agent_ = nullptr;
        signs_ = nullptr;
        changed_.wait(lock, [this] { return num_asking_ == 0; });  // SignsOfLife::kPatience at most
      }
      runtime::agent_of(pod).more_of_timeout = nullptr;
      if (is_sound()) runtime.close();
    } catch (...) {
      record(base::status_of_current_exception());
    }
    const std::lock_guard lock(mutex_);
    runtime_ = nullptr;
    agent_ = nullptr;
    has_ended_ = true;
    changed_.notify_all();
  }

  bool is_sound() {
    const std::lock_guard lock(mutex_);
    return failure_.ok();
  }

  void record(const Status& status) {
    const std::lock_guard lock(mutex_);
    fail(status);
  }

  /// One job after the other until stopped. Each ends, with its sum or with the failure of all.
  void serve(Runtime& runtime, const ChannelPod& pod, uint32_t came) {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return is_stopped_ || !failure_.ok() || num_ended_ + 1 < first_ + jobs_.size(); });
      if (!failure_.ok()) break;
      if (num_ended_ + 1 >= first_ + jobs_.size()) break;  // stopped
      Job* job = find({num_ended_ + 1});
      job->times.begun_ns = now_ns();
      for (std::atomic<bool>& flag : has_come_) flag.store(false, std::memory_order_relaxed);
      is_working_ = true;
      const Bucket bucket = job->bucket;
      const int64_t carried = link_bytes_;
      lock.unlock();
      TicketTimes times;
      const Status status = reduce(runtime, pod, came, bucket, times);
      lock.lock();
      is_working_ = false;
      if (!status.ok()) fail(status);
      // NOTE: a ticket that failed has ended as well: whoever polls the number must never wait for ever.
      ++num_ended_;
      if (status.ok()) num_good_ = num_ended_;
      job = find({num_ended_});
      job->times.met_ns = times.met_ns;
      job->times.last_rank = times.last_rank;
      job->times.complete_ns = now_ns();
      job->times.link_bytes = link_bytes_ - carried;
      changed_.notify_all();
    }
  }

  Status reduce(Runtime& runtime, const ChannelPod& pod, uint32_t came, const Bucket& bucket, TicketTimes& times) {
    try {
      meet(pod, came, bucket, times);
      times.met_ns = now_ns();
      NetEngine& net = *runtime.world().net();
      if (bucket.residual != nullptr)
        runtime::all_reduce_int8(net, rank_, size_, static_cast<float*>(bucket.data), bucket.residual, bucket.count);
      else if (bucket.count > 0)
        net.all_reduce(bucket.data, bucket.data, bucket.count, bucket.dtype, StreamRef::cpu());
      return Status::success();
    } catch (...) {
      const Status status = base::status_of_current_exception();
      return base::error(status.code(), "all-reduce of {}: {}", bucket.what, status.message());
    }
  }

  /// Until all ranks have come to this ticket: so that who is missing is known, and who came last. Desync where one
  /// came to another all-reduce.
  void meet(const ChannelPod& pod, uint32_t came, const Bucket& bucket, TicketTimes& times) {
    ++num_met_;
    Said& mine = said_[num_met_ % 2];
    mine = {.count = bucket.count,
            .dtype = static_cast<int32_t>(bucket.residual == nullptr ? bucket.dtype : DType::i8)};
    bucket.what.copy(mine.what, sizeof mine.what - 1);
    // Ranks may be further apart than data may be late. Only this thread waits with the agent.
    const uint64_t timeout_ns = std::exchange(agent_->timeout_ns, static_cast<uint64_t>(meet_timeout_ms_) * 1000000);
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      put(pod, peer, said_at(rank_), &mine, sizeof mine);
      fence(pod, peer);
      signal_add(pod, peer, came);
    }
    for (int count = 1; count < size_; ++count) {
      runtime::WaitSite site{.kind = WaitKind::engine, .id = came, .expected = num_met_};
      site.peer = static_cast<uint32_t>(first_missing());
      const Errc code = runtime::poll_until(pod, site, [&] { return take_arrival(pod, came, times); });
      if (code == Errc::ok) continue;
      runtime_->check();  // throws the first cause
      throw_error(code, "a wait for the other ranks ended without a cause");
    }
    agent_->timeout_ns = timeout_ns;
    for (int peer = 0; peer < size_; ++peer)
      if (peer != rank_) consume(pod, peer, came, 1);
    compare(pod, mine);
  }

  /// Where `sender` writes what it says, of this ticket: who is two tickets ahead has heard that this one was read.
  uint64_t said_at(int sender) const {
    return said_offset_ + (num_met_ % 2 * static_cast<uint64_t>(size_) + static_cast<uint64_t>(sender)) * sizeof(Said);
  }

  void compare(const ChannelPod& pod, const Said& mine) const {
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      Said theirs;
      std::memcpy(static_cast<void*>(&theirs), runtime::own_heap(pod.team) + said_at(peer), sizeof theirs);
      if (theirs == mine) continue;
      theirs.what[sizeof theirs.what - 1] = 0;
      throw_error(Errc::desync, base::format("rank {} is at {}, rank {} at {}; wanted: the same on all ranks", rank_,
                                             mine.to_string(), peer, theirs.to_string()));
    }
  }

  int first_missing() const {
    for (int peer = 0; peer < size_; ++peer)
      if (peer != rank_ && !has_come_[static_cast<size_t>(peer)].load(std::memory_order_relaxed)) return peer;
    return rank_;
  }

  /// One more has come.
  bool take_arrival(const ChannelPod& pod, uint32_t came, TicketTimes& times) {
    for (int peer = 0; peer < size_; ++peer) {
      std::atomic<bool>& flag = has_come_[static_cast<size_t>(peer)];
      if (peer == rank_ || flag.load(std::memory_order_relaxed) || !test_ge(pod, peer, came, num_met_)) continue;
      flag.store(true, std::memory_order_relaxed);
      times.last_rank = peer;
      return true;
    }
    return false;
  }

  const int rank_, size_;
  const int num_exceptions_ = std::uncaught_exceptions();  // under way where it was made
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;  // tickets first_, first_ + 1, ...
  uint64_t first_ = 1;
  uint64_t num_ended_ = 0;   // tickets that are over, in order
  uint64_t num_good_ = 0;    // of these, before one failed
  bool is_stuck_ = false;    // it still was when a deadline and the time behind it were over
  bool is_working_ = false;  // the worker touches memory of ticket num_ended_ + 1
  bool is_open_ = false, is_stopped_ = false, has_ended_ = false;
  Status failure_;  // the first, of all tickets that have not completed
  int64_t default_timeout_ms_;
  // State of the worker; others read the first three, with the mutex.
  Runtime* runtime_ = nullptr;
  runtime::CpuAgent* agent_ = nullptr;
  runtime::SignsOfLife* signs_ = nullptr;
  int num_asking_ = 0;  // callers of it
  int64_t meet_timeout_ms_ = 0;
  std::atomic<int64_t> link_bytes_{0};  // counted by the thread of the emulated link
  uint64_t num_met_ = 0, said_offset_ = 0;
  Said said_[2];  // by the ticket's last bit
  std::deque<std::atomic<bool>> has_come_ = std::deque<std::atomic<bool>>(static_cast<size_t>(size_));
  std::thread worker_;
};

}  // namespace

std::unique_ptr<runtime::HostTransport> runtime::open_host_transport(Bootstrap& bootstrap,
                                                                     const HostCollectiveOptions& options) {
  return std::make_unique<HostCollective>(bootstrap, options);
}

std::unique_ptr<AsyncCollective> open_host_collective(Bootstrap& bootstrap, const HostCollectiveOptions& options) {
  if (options.device < 0) return runtime::open_host_transport(bootstrap, options);
  if (!device_transports().host)
    throw_error(Errc::not_supported,
                "collective host of device memory: this build has no CUDA (OVERLACE_CUDA=OFF, or nvcc was not found); "
                "supported: memory of the host");
  return runtime::stage_collective(runtime::open_host_transport(bootstrap, options), options);
}

#ifndef OVERLACE_HAS_CUDA
DeviceTransports device_transports() { return {}; }

std::unique_ptr<AsyncCollective> runtime::stage_collective(std::unique_ptr<HostTransport> host,
                                                           const HostCollectiveOptions&) {
  return host;  // nobody asks: device_transports()
}

std::unique_ptr<AsyncCollective> open_nccl_collective(Bootstrap&, const NcclCollectiveOptions&) {
  throw_error(Errc::not_supported,
              "collective nccl: this build has no CUDA (OVERLACE_CUDA=OFF, or nvcc was not found); supported: host");
}
#endif

}  // namespace overlace
