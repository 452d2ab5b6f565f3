#include "src/runtime/engine/mpi/service.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "src/base/env.h"
#include "src/base/log.h"
#include "src/base/plugin.h"
#include "src/runtime/clock.h"
#include "src/runtime/engine/mpi/api.h"

namespace overlace::runtime::mpi {
namespace {

using std::chrono::microseconds;

constexpr int64_t kFinalizeMs = 10000, kFinalizeAfterFailureMs = 400;
constexpr int kGlances = 30;  // rounds without news before the thread sleeps
constexpr int64_t kShortestNapUs = 20, kLongestNapUs = 500;

std::vector<const char*> candidates() {
  std::vector<const char*> order(std::begin(kLibraries), std::end(kLibraries));
  // A process has one MPI: the one that it has loaded already, else the one whose launcher started it.
  const bool has_mpich = ::dlopen("libmpich.so.12", RTLD_NOW | RTLD_NOLOAD | RTLD_LOCAL) != nullptr;
  const bool has_openmpi = ::dlopen("libmpi.so.40", RTLD_NOW | RTLD_NOLOAD | RTLD_LOCAL) != nullptr;
  if (has_mpich || (!has_openmpi && base::env().rank_source == "pmi")) std::swap(order[0], order[1]);
  return order;
}

/// Never closed: what MPI registered with the process stays there.
base::Result<const OverlaceMpiTable*> load() {
  std::string why;
  for (const char* library : candidates()) {
    for (const std::string& directory : base::plugin_directories()) {
      const std::string path = base::format("{}/liboverlace_mpi_{}.so", directory, library);
      if (::access(path.c_str(), R_OK) != 0) continue;
      // NOTE: global, since MPI opens parts of itself that look for symbols of the rest.
      void* const handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
      if (handle == nullptr) {
        if (const char* text = ::dlerror(); text != nullptr) why += base::format("; {}", text);
        break;
      }
      const auto open = reinterpret_cast<OverlaceMpiOpen>(::dlsym(handle, kTableFunction));
      if (open == nullptr) return base::error(Errc::not_supported, "engine mpi: {} has no {}", path, kTableFunction);
      const OverlaceMpiTable* const table = open();
      if (table->abi != OverlaceMpiTable::kAbi)
        return base::error(Errc::version_mismatch, "engine mpi: {} has interface {}, wanted {}", path, table->abi,
                           OverlaceMpiTable::kAbi);
      return table;
    }
  }
  return base::error(Errc::not_supported,
                     "engine mpi: no liboverlace_mpi_{{openmpi,mpich}}.so beside the program or the library{}", why);
}

const base::Result<const OverlaceMpiTable*>& table() {
  static const base::Result<const OverlaceMpiTable*> loaded = load();
  return loaded;
}

struct Outgoing {
  int to = 0;
  std::vector<char> bytes;
  std::shared_ptr<std::atomic<uint64_t>> unsent;
  uint64_t request = 0;
};

struct Incoming {
  int from = 0;
  std::vector<char> bytes;
  uint64_t request = 0;
  bool is_done = false;
};

class ServiceThread final : public Service {
 public:
  explicit ServiceThread(const OverlaceMpiTable& table) : table_(table), pid_(::getpid()) {
    thread_ = std::thread([this] { run(); });
  }

  base::Status wait_until_open(int64_t timeout_ms) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] { return is_open_ || !failure_.ok(); })) {
      has_given_up_ = true;
      return base::error(Errc::timeout,
                         "engine mpi: timeout after {:.1f} s: a process waited in MPI_Init for the others of its job",
                         static_cast<double>(timeout_ms) * 1e-3);
    }
    return failure_;
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string name() const override { return table_.name; }
  std::string version() const override { return table_.version; }

  void send(int to, const Head& head, const std::vector<std::pair<const char*, size_t>>& parts,
            const std::shared_ptr<std::atomic<uint64_t>>& unsent) override {
    Outgoing message{.to = to, .bytes = {}, .unsent = unsent};
    size_t bytes = sizeof head;
    for (const auto& [data, length] : parts) bytes += length;
    message.bytes.resize(bytes);
    std::memcpy(message.bytes.data(), &head, sizeof head);
    char* next = message.bytes.data() + sizeof head;
    for (const auto& [data, length] : parts) {
      if (length != 0) std::memcpy(next, data, length);
      next += length;
    }
    if (unsent) unsent->fetch_add(1, std::memory_order_relaxed);
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(message));
    if (is_napping_) changed_.notify_all();
  }

  void listen(uint64_t context, Listener listener) override {
    const std::lock_guard lock(listeners_mutex_);
    Listener& entry = listeners_[context] = std::move(listener);
    forgotten_.erase(context);
    std::vector<Incoming> early;
    for (auto it = early_.begin(); it != early_.end();) {
      if (head_of(*it).context != context) {
        ++it;
        continue;
      }
      early.push_back(std::move(*it));
      it = early_.erase(it);
    }
    for (const Incoming& message : early) give(entry, message);
    if (!broken_.ok() && entry.fail) entry.fail(broken_);
  }

  void forget(uint64_t context) override {
    const std::lock_guard lock(listeners_mutex_);
    listeners_.erase(context);
    forgotten_.insert(context);
    std::erase_if(early_, [&](const Incoming& message) { return head_of(message).context == context; });
  }

  void give_up() override { has_given_up_ = true; }

  /// At exit. The thread belongs to the process that started it.
  void end() {
    if (::getpid() != pid_) return;
    {
      // Somebody's runtime was not closed: its peers are in another state than this process.
      const std::lock_guard lock(listeners_mutex_);
      if (!listeners_.empty()) has_given_up_ = true;
    }
    std::unique_lock lock(mutex_);
    is_ending_ = true;
    changed_.notify_all();
    // A peer that died makes MPI_Finalize wait for ever; the process does not.
    const bool has_ended =
        changed_.wait_for(lock, std::chrono::milliseconds(has_given_up_ ? kFinalizeAfterFailureMs : kFinalizeMs),
                          [&] { return has_ended_; });
    lock.unlock();
    if (has_ended)
      thread_.join();
    else
      thread_.detach();
  }

 private:
  static Head head_of(const Incoming& message) {
    Head head;
    std::memcpy(&head, message.bytes.data(), sizeof head);
    return head;
  }
  static void give(const Listener& listener, const Incoming& message) {
    listener.take(message.from,
                  {head_of(message), message.bytes.data() + sizeof(Head), message.bytes.size() - sizeof(Head)});
  }

  base::Status check(int code, const char* call) const {
    if (code == 0) return {};
    char words[512] = {};
    table_.text(code, words, sizeof words);
    return base::error(Errc::engine, "engine mpi ({} {}): {} failed: {} (code {})", table_.name, table_.version, call,
                       words, code);
  }

  void run() {
    // The library writes to sockets of ranks that may be dead: an error of that call, not the end of this process. Its
    // own threads take the mask over.
    sigset_t broken_pipe;
    ::sigemptyset(&broken_pipe);
    ::sigaddset(&broken_pipe, SIGPIPE);
    (void)::pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
    ::prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0);
    base::Status status;
    if (table_.may_use_threads() == 0)
      status = base::error(Errc::not_supported,
                           "engine mpi: MPI was started by the caller without MPI_THREAD_MULTIPLE; wanted that level, "
                           "or that overlace starts it");
    if (status.ok()) status = check(table_.open(&rank_, &size_), "start");
    {
      const std::lock_guard lock(mutex_);
      failure_ = status;
      is_open_ = status.ok();
      changed_.notify_all();
    }
    int idle = 0;
    while (status.ok() && !is_over(idle)) {
      bool has_news = false;
      status = round(&has_news);
      idle = has_news ? 0 : idle + 1;
    }
    if (!status.ok()) break_all(status);
    if (status.ok()) (void)table_.close();
    const std::lock_guard lock(mutex_);
    has_ended_ = true;
    changed_.notify_all();
  }

  /// Sleeps the longer the less there is to do.
  bool is_over(int idle) {
    if (idle <= kGlances) return is_ending_ && is_drained();
    std::unique_lock lock(mutex_);
    const int64_t nap = std::clamp<int64_t>(idle, kShortestNapUs, kLongestNapUs);
    is_napping_ = true;
    changed_.wait_for(lock, microseconds(nap), [&] { return is_ending_.load() || !queue_.empty(); });
    is_napping_ = false;
    return is_ending_ && queue_.empty() && (sending_.empty() || has_given_up_);
  }
  bool is_drained() {
    const std::lock_guard lock(mutex_);
    return queue_.empty() && (sending_.empty() || has_given_up_);
  }

  base::Status round(bool* has_news) {
    std::deque<Outgoing> fresh;
    {
      const std::lock_guard lock(mutex_);
      fresh.swap(queue_);
    }
    for (Outgoing& message : fresh) {
      *has_news = true;
      sending_.push_back(std::move(message));
      Outgoing& sent = sending_.back();
      OVERLACE_TRY(check(table_.send(sent.to, sent.bytes.data(), static_cast<int>(sent.bytes.size()), &sent.request),
                         "MPI_Isend"));
    }
    for (auto it = sending_.begin(); it != sending_.end();) {
      int is_done = 0;
      OVERLACE_TRY(check(table_.test(&it->request, &is_done), "MPI_Test of a send"));
      if (is_done == 0) {
        ++it;
        continue;
      }
      *has_news = true;
      const Outgoing done = std::move(*it);
      it = sending_.erase(it);
      if (done.unsent) tell_sent(done);
    }
    return receive(has_news);
  }

  /// While nobody listens MPI is left alone, so that a caller who started it may end it.
  bool has_listeners() {
    const std::lock_guard lock(listeners_mutex_);
    return !listeners_.empty();
  }

  base::Status receive(bool* has_news) {
    for (int is_there = has_listeners() ? 1 : 0; is_there != 0;) {
      int from = 0, bytes = 0;
      uint64_t handle = 0;
      OVERLACE_TRY(check(table_.probe(&is_there, &from, &bytes, &handle), "MPI_Improbe"));
      if (is_there == 0) break;
      *has_news = true;
      Incoming& message = receiving_.emplace_back();
      message.from = from;
      message.bytes.resize(std::max(static_cast<size_t>(bytes), sizeof(Head)));
      OVERLACE_TRY(check(table_.receive(handle, message.bytes.data(), bytes, &message.request), "MPI_Imrecv"));
    }
    std::set<int> waiting;  // sources with an earlier message that is not complete
    for (auto it = receiving_.begin(); it != receiving_.end();) {
      int is_done = 1;
      if (!it->is_done) OVERLACE_TRY(check(table_.test(&it->request, &is_done), "MPI_Test of a receive"));
      it->is_done = is_done != 0;
      if (!it->is_done || waiting.count(it->from) != 0) {
        waiting.insert(it->from);
        ++it;
        continue;
      }
      *has_news = true;
      Incoming message = std::move(*it);
      it = receiving_.erase(it);
      hand_over(std::move(message));
    }
    return {};
  }

  void hand_over(Incoming message) {
    const Head head = head_of(message);
    if (head.magic != Head::kMagic) return;
    const std::lock_guard lock(listeners_mutex_);
    const auto listener = listeners_.find(head.context);
    if (listener != listeners_.end())
      give(listener->second, message);
    else if (forgotten_.count(head.context) == 0)
      early_.push_back(std::move(message));
  }

  void tell_sent(const Outgoing& done) {
    Head head;
    std::memcpy(&head, done.bytes.data(), sizeof head);
    const std::lock_guard lock(listeners_mutex_);
    done.unsent->fetch_sub(1, std::memory_order_release);
    const auto listener = listeners_.find(head.context);
    if (listener != listeners_.end() && listener->second.sent) listener->second.sent();
  }

  void break_all(const base::Status& why) {
    has_given_up_ = true;
    const std::lock_guard lock(listeners_mutex_);
    broken_ = why;
    for (const auto& [context, listener] : listeners_)
      if (listener.fail) listener.fail(why);
  }

  const OverlaceMpiTable& table_;
  const pid_t pid_;
  int rank_ = 0, size_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Outgoing> queue_;
  base::Status failure_;  // of the start
  bool is_open_ = false, is_napping_ = false, has_ended_ = false;
  std::atomic<bool> is_ending_{false}, has_given_up_{false};
  std::deque<Outgoing> sending_;    // the thread's
  std::deque<Incoming> receiving_;  // the thread's
  std::mutex listeners_mutex_;
  std::map<uint64_t, Listener> listeners_;
  std::set<uint64_t> forgotten_;
  std::vector<Incoming> early_;
  base::Status broken_;
  std::thread thread_;
};

ServiceThread* running = nullptr;  // of this process; never destroyed: MPI's end is the end of the process

}  // namespace

base::Result<std::string> Service::library() {
  if (!table().ok()) return table().status();
  return base::format("{} {}", (*table())->name, (*table())->version);
}

base::Result<Service*> Service::open(int64_t timeout_ms) {
  if (!table().ok()) return table().status();
  static const bool is_started = [] {
    running = new ServiceThread(**table());
    return std::atexit([] { running->end(); }) == 0;
  }();
  if (!is_started) return base::error(Errc::internal, "engine mpi: atexit failed");
  OVERLACE_TRY(running->wait_until_open(timeout_ms));
  return static_cast<Service*>(running);
}

}  // namespace overlace::runtime::mpi
