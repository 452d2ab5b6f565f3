#include "cli/doctor/link.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cli/thread_ranks.h"
#include "overlace/signal.h"
#include "src/base/statistics.h"

namespace overlace::cli {
namespace {

using base::Json;
using base::Status;
using Clock = std::chrono::steady_clock;

constexpr size_t kMessage = size_t{1} << 20;
constexpr int kBatch = 8, kMaxGpus = 8;

struct Finding {
  Caps caps;
  std::vector<std::vector<std::string>> reach;  // by rank and peer
  double latency_us = 0, bandwidth_gb_s = 0;
  Status status;
};

/// Rounds of `batch` messages to rank 1 and an answer, until `limit` has passed or `max_rounds` are done.
struct PingPong {
  size_t bytes;
  int batch, max_rounds;
  double limit_s;
};

/// Throws the first cause where a wait failed.
void expect_ok(Runtime& runtime, Errc code) {
  if (code == Errc::ok) return;
  runtime.check();
  throw_error(code, "link test: a wait failed");
}

/// Median time of a round in seconds, on rank 0. Rank 1 stops at a message whose first word is not zero.
double ping_pong(Runtime& runtime, const PingPong& p) {
  Team& team = runtime.world();
  Channel& channel = team.channel(StreamRef::cpu());
  const ChannelPod& pod = channel.pod();
  const SymBuffer outbox = runtime.heap().alloc(p.bytes, 256, "doctor.outbox");
  const SymBuffer inbox = runtime.heap().alloc(p.bytes * static_cast<size_t>(p.batch), 256, "doctor.inbox");
  const SignalIds ids = channel.ids(2, Domain::cpu, "doctor");
  const uint32_t ping = ids.first, pong = ids.first + 1;
  team.barrier();  // fresh memory may be filled with a pattern: not under a message
  std::vector<double> rounds;
  const auto begin = Clock::now();
  uint64_t is_last = 0;
  if (team.rank() == 0) {
    std::memset(team.local_ptr(outbox), 0, p.bytes);
    while (is_last == 0) {
      const auto round_begin = Clock::now();
      const bool is_late = std::chrono::duration<double>(round_begin - begin).count() > p.limit_s;
      is_last = is_late || static_cast<int>(rounds.size()) + 1 >= p.max_rounds ? 1 : 0;
      std::memcpy(team.local_ptr(outbox), &is_last, sizeof is_last);
      for (int i = 0; i < p.batch; ++i)
        put_signal(pod, 1, inbox.offset + p.bytes * static_cast<size_t>(i), team.local_ptr(outbox), p.bytes, ping);
      expect_ok(runtime, wait_ge(pod, 1, pong, ticket(pod, 1, pong) + 1));
      consume(pod, 1, pong, 1);
      expect_ok(runtime, flush(pod));
      rounds.push_back(std::chrono::duration<double>(Clock::now() - round_begin).count());
    }
  } else if (team.rank() == 1) {
    while (is_last == 0) {
      const auto batch = static_cast<uint64_t>(p.batch);
      expect_ok(runtime, wait_ge(pod, 0, ping, ticket(pod, 0, ping) + batch));
      consume(pod, 0, ping, batch);
      std::memcpy(&is_last, team.local_ptr(inbox), sizeof is_last);
      signal_add(pod, 0, pong);
    }
  }
  team.barrier();
  channel.release(ids);
  runtime.heap().free(inbox);
  runtime.heap().free(outbox);
  return rounds.empty() ? 0 : base::median(rounds);
}

const char* reach_name(Reach reach) { return reach == Reach::self ? "self" : reach == Reach::lsa ? "lsa" : "net"; }

/// One rank: opens, looks around, measures where the host can put, closes.
void examine(Bootstrap& bootstrap, RuntimeOptions options, Finding& finding, std::mutex& mutex) {
  const auto rank = static_cast<size_t>(bootstrap.rank());
  if (options.backend == Backend::cuda_peer) options.device = bootstrap.rank();
  Runtime runtime = Runtime::open(bootstrap, options);
  Team& team = runtime.world();
  {
    const std::lock_guard lock(mutex);
    for (int peer = 0; peer < team.size(); ++peer) finding.reach[rank].push_back(reach_name(team.reach(peer)));
    if (rank == 0) finding.caps = runtime.caps(team.size() > 1 ? 1 : 0);
  }
  if (options.backend == Backend::cpu) {
    pin_to_core(rank);
    const double latency = ping_pong(runtime, {.bytes = 8, .batch = 1, .max_rounds = 2000, .limit_s = 0.3}) / 2;
    const double batch = ping_pong(runtime, {.bytes = kMessage, .batch = kBatch, .max_rounds = 40, .limit_s = 0.5});
    if (rank == 0) {
      finding.latency_us = latency * 1e6;
      finding.bandwidth_gb_s = static_cast<double>(kMessage * kBatch) / batch * 1e-9;
    }
  }
  runtime.close();
}

Finding examine_all(const RuntimeOptions& options, int num_ranks) {
  Finding finding;
  finding.reach.resize(static_cast<size_t>(num_ranks));
  std::mutex mutex;
  const auto bootstraps = thread_bootstraps(num_ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        examine(*bootstraps[static_cast<size_t>(rank)], options, finding, mutex);
      } catch (...) {
        Status status = base::status_of_current_exception();
        const std::lock_guard lock(mutex);
        // The rank that failed first says why; the others only that somebody did.
        const bool is_echo = status.code() == Errc::aborted || status.code() == Errc::peer_lost;
        if (finding.status.ok() || (!is_echo && finding.status.code() == Errc::aborted)) finding.status = status;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return finding;
}

Json caps_json(const Caps& caps) {
  return Json::Object{{"load_store", caps.load_store},
                      {"device_initiated", caps.device_initiated},
                      {"multi_writer_signals", caps.multi_writer_signals},
                      {"remote_add", caps.remote_add},
                      {"copy_engine", caps.copy_engine},
                      {"stream_wait", caps.stream_wait},
                      {"collectives", caps.collectives}};
}

Json test_json(const char* backend, const RuntimeOptions& options, int num_ranks) {
  const Finding finding = examine_all(options, num_ranks);
  const bool is_emulated = options.backend == Backend::cpu && (options.link.enabled || options.adversary.enabled);
  Json test = Json::object();
  test.set("backend", backend).set("ranks", num_ranks).set("emulated", is_emulated);
  test.set("error", finding.status.ok() ? Json() : Json(finding.status.message()));
  if (!finding.status.ok()) return test;
  if (options.backend == Backend::cpu)
    test.set("latency_us", finding.latency_us).set("bandwidth_gb_s", finding.bandwidth_gb_s);
  Json reach = Json::array();
  for (const auto& row : finding.reach) {
    Json cells = Json::array();
    for (const std::string& cell : row) cells.push_back(cell);
    reach.push_back(std::move(cells));
  }
  test.set("caps", caps_json(finding.caps)).set("reach", std::move(reach));
  return test;
}

}  // namespace

Json link_tests(const RuntimeOptions& options, int num_gpus, int64_t timeout_ms) {
  Json tests = Json::array();
  RuntimeOptions tested = options;
  tested.timeout_ms = std::min(options.timeout_ms > 0 ? options.timeout_ms : timeout_ms, timeout_ms);
  tested.backend = Backend::cpu;
  tested.heap_bytes = 4 * kMessage * kBatch;
  tests.push_back(test_json("cpu", tested, 2));
  if (num_gpus > 0 && options.backend != Backend::cpu) {
    tested.backend = Backend::cuda_peer;
    tests.push_back(test_json("cuda_peer", tested, std::min(num_gpus, kMaxGpus)));
  }
  return tests;
}

}  // namespace overlace::cli
