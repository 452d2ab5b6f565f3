// Ranks as threads, each with a communicator of the NCCL that is played and a watcher as on a GPU.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "overlace/net_engine.h"
#include "src/base/format.h"
#include "src/runtime/clock.h"
#include "src/runtime/engine/nccl/engine.h"
#include "src/runtime/engine/watch.h"
#include "tests/ranks/nccl/stand_ins.h"
#include "tests/ranks/support/run_ranks.h"

namespace overlace::test::nccl {

using runtime::AbortCause;
using runtime::now_ns;

constexpr int64_t kSecondNs = 1'000'000'000;
/// Long enough on a busy machine; shorter than the deadline of the options, and than what hangs, which hangs for ever.
constexpr int64_t kSoonNs = 15 * kSecondNs;

/// In the process before the engine looks, as a program's own NCCL is.
inline Library& library() {
  static Library* const made = [] {
    void* const handle = ::dlopen(OVERLACE_TEST_NCCL, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return static_cast<Library*>(nullptr);
    return reinterpret_cast<Library* (*)()>(::dlsym(handle, "overlace_test_nccl"))();
  }();
  return *made;
}

template <class Condition>
bool holds_within(int64_t ns, const Condition& condition) {
  for (const int64_t until = now_ns() + ns; !condition();) {
    if (now_ns() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

/// What the watcher of a rank on a GPU does for its engines; `spread` tells the other ranks.
class Host final : public runtime::EngineHost {
 public:
  explicit Host(std::function<void(const AbortCause&)> spread)
      : spread_(std::move(spread)), watcher_([this] { watch(); }) {}
  ~Host() override {
    is_stopping_ = true;
    watcher_.join();
  }
  void add_engine(runtime::EngineWatch* engine) override { engines_.add(engine); }
  void remove_engine(runtime::EngineWatch* engine) override { engines_.remove(engine); }
  AbortCause cause() override {
    const std::lock_guard lock(mutex_);
    return cause_;
  }
  bool set_cause(const AbortCause& cause) {
    const std::lock_guard lock(mutex_);
    if (cause_.code != Errc::ok) return false;
    cause_ = cause;
    return true;
  }
  void abort(const AbortCause& cause) {
    if (set_cause(cause)) spread_(cause);
  }
  int64_t ticks() const { return ticks_; }

 private:
  void watch() {
    for (; !is_stopping_; ++ticks_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      if (cause().code != Errc::ok) {
        engines_.abort();
      } else if (const base::Status failed = engines_.poll(); !failed.ok()) {
        abort({failed.code(), failed.message()});
      }
    }
  }

  const std::function<void(const AbortCause&)> spread_;
  runtime::EngineList engines_;
  std::mutex mutex_;
  AbortCause cause_;
  std::atomic<bool> is_stopping_ = false;
  std::atomic<int64_t> ticks_ = 0;
  std::thread watcher_;
};

struct Options {
  int64_t timeout_ms = 20000;
  bool spreads = true;      // an abort reaches the other ranks
  bool is_required = true;  // the library
  int leaked = 0;           // communicators
};

/// What the body of a rank gets.
struct Rank {
  Team& team;
  Host& host;
  const Options& options;
  const int rank, size;
  cudaStream_t stream = nullptr;

  std::unique_ptr<NetEngine> engine{};

  base::Status open() {
    base::Result<std::unique_ptr<NetEngine>> opened =
        runtime::nccl::open_engine(team, {.timeout_ms = options.timeout_ms, .is_required = options.is_required}, host);
    if (!opened.ok()) host.abort({opened.status().code(), opened.status().message()});
    if (opened.ok()) engine = std::move(*opened);
    return opened.status();
  }
  /// Ends the engine as a runtime does.
  void close() {
    if (engine != nullptr && host.cause().code != Errc::ok) engine->abort();
    engine.reset();
  }
  /// The watcher has looked since.
  bool is_watched() const {
    const int64_t ticks = host.ticks();
    return holds_within(kSoonNs, [&] { return host.ticks() > ticks + 10; });
  }
  StreamRef ref() const { return StreamRef::cuda(stream); }
  bool ends(int64_t ns = kSoonNs) const {
    return holds_within(ns, [this] { return cudaStreamQuery(stream) == cudaSuccess; });
  }
};

/// Ranks as threads, each with a host and a stream. Behind them nothing may be left: no communicator but `leaked`, no
/// event, no open group, no use of what is gone.
inline void run(int n, const std::function<void(Rank&)>& body, const Options& options = {}) {
  Library& nccl = library();
  nccl.reset();
  nccl.set_streams(cuda::enqueue);
  std::vector<std::unique_ptr<Host>> hosts;
  for (int r = 0; r < n; ++r) {
    hosts.push_back(std::make_unique<Host>([&hosts, &options, r](const AbortCause& cause) {
      for (size_t to = 0; to < hosts.size() && options.spreads; ++to)
        (void)hosts[to]->set_cause({Errc::aborted, base::format("aborted by rank {}: {}", r, cause.message)});
    }));
  }
  RankOptions ranks;
  ranks.net_engine = "none";
  run_ranks(
      n, Mode::threads,
      [&](Runtime& runtime) {
        Team& team = runtime.world();
        Rank rank{team, *hosts[static_cast<size_t>(team.rank())], options, team.rank(), n};
        nccl.set_rank(rank.rank);
        EXPECT_EQ(cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking), cudaSuccess);
        body(rank);
        rank.close();
        EXPECT_EQ(nccl.group_depth(), 0);
        EXPECT_EQ(cudaStreamDestroy(rank.stream), cudaSuccess);
      },
      ranks);
  const Counts counts = nccl.counts();
  EXPECT_EQ(counts.opened - counts.destroyed - counts.aborted, options.leaked)
      << counts.opened << " opened, " << counts.destroyed << " destroyed, " << counts.aborted << " aborted";
  nccl.release();
  EXPECT_TRUE(holds_within(kSoonNs, [&] { return nccl.running() == 0; })) << "a call of NCCL still runs";
  EXPECT_EQ(nccl.faults_left(), 0) << "a call that was to fail was not made";
  EXPECT_EQ(nccl.misuses(), std::vector<std::string>());
  EXPECT_EQ(cuda::alive(), 0) << "streams, events and memory of CUDA";
}

/// The error of `body`, which must throw one of this code.
template <class Body>
std::string thrown(Errc code, const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(errc_name(error.code()), errc_name(code)) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown, wanted " << errc_name(code);
  return {};
}

inline void expect_text(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << '"' << part << "\" in: " << text;
}

inline void call_all(Rank& rank, NetEngine& engine, StreamRef stream) {
  char data[64] = {};
  engine.all_gather(data, data, 1, DType::fp32, stream);
  engine.reduce_scatter(data, data, 1, DType::fp32, stream);
  engine.all_reduce(data, data, 1, DType::bf16, stream);
  engine.all_to_all(data, data, 1, DType::fp32, stream);
  engine.broadcast(data, 1, DType::u8, rank.size - 1, stream);
  engine.reduce(data, data, 1, DType::i64, 0, stream);
  engine.group_begin("a ring");
  engine.group_begin("inside it");
  engine.send(data, 4, (rank.rank + 1) % rank.size, stream);
  engine.recv(data, 4, (rank.rank + rank.size - 1) % rank.size, stream);
  engine.group_end();
  engine.group_end();
}

}  // namespace overlace::test::nccl
