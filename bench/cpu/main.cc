// What the runtime reaches between CPU ranks that are processes of one host, beside plain code of the same in the same
// run:
//   overlace run -n 2 -- bench_cpu [--repetitions N] [--out records.jsonl] [--git COMMIT] [--pin] [--verify-only]
// Two ranks: the cost of puts and the one-way time of a signal. More: the time of a hop of a token around the ring.
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "bench/common/arguments.h"
#include "bench/common/device.h"
#include "bench/common/record.h"
#include "overlace/bootstrap.h"
#include "overlace/error.h"
#include "overlace/runtime.h"
#include "overlace/signal.h"
#include "src/base/format.h"
#include "src/base/statistics.h"
#include "src/base/timing.h"

namespace overlace::bench {
namespace {

using base::Json;

constexpr size_t kMiB = size_t{1} << 20;
constexpr uint32_t kMaxSpins = 2000000000;  // of the plain probes, which have no deadline

struct Options {
  int repetitions = 101;
  bool pin = false, verify_only = false;
  int cores = 0;  // that the ranks may use together
  RunFacts run;
};

Options parse(int argc, char** argv) {
  Options options;
  Arguments arguments(&options.run);
  arguments.add("--pin", &options.pin);
  arguments.add("--verify-only", &options.verify_only);
  arguments.add("--repetitions", &options.repetitions, 1);
  arguments.parse(argc, argv);
  if (options.verify_only) options.repetitions = 1;
  return options;
}

/// This thread onto the n-th core it may use. After open, which counts the cores.
void pin_to_core(int n) {
  cpu_set_t allowed, one;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  int left = n % CPU_COUNT(&allowed);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed) || left-- != 0) continue;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    (void)::sched_setaffinity(0, sizeof one, &one);
    return;
  }
}

struct Row {
  std::string name, what;
  double target_us = 0;  // 0: none
  std::vector<double> ours_us{}, plain_us{};
};

class Bench {
 public:
  Bench(Runtime& runtime, const Options& options)
      : runtime_(runtime),
        team_(runtime.world()),
        channel_(team_.channel(StreamRef::cpu())),
        pod_(channel_.pod()),
        options_(options) {
    source_ = runtime.heap().alloc(kMiB, 4096, "bench source");
    inbox_ = runtime.heap().alloc(kMiB, 4096, "bench inbox");
    words_ = runtime.heap().alloc(4096, 4096, "bench words");
    ids_ = channel_.ids(2, Domain::cpu, "bench");
    team_.barrier();  // fresh memory may be filled with a pattern: not under these bytes
    auto* bytes = static_cast<unsigned char*>(team_.local_ptr(source_));
    for (size_t i = 0; i < kMiB; ++i) bytes[i] = static_cast<unsigned char>(i * 7 + 13 * size_t(team_.rank()) + 1);
    std::memset(team_.local_ptr(words_), 0, 4096);
    team_.barrier();
  }

  void run() {
    if (team_.size() == 2) {
      measure_put(8, 2000, 0.1);
      measure_put(64 * 1024, 100, 1.5);
      measure_put(kMiB, 10, 24);
      measure_ring(options_.pin ? 0.2 : 0, 2000);
    } else {
      measure_ring(team_.size() > options_.cores ? 8 : 0, 200);
    }
  }

  const std::vector<Row>& rows() const { return rows_; }

 private:
  void expect_ok(Errc code) {
    if (code == Errc::ok) return;
    runtime_.check();
    throw_error(code, "bench_cpu: a wait failed");
  }

  /// What rank 0 spends on a put with its signal; rank 1 checks every byte at the end.
  void measure_put(size_t bytes, int puts, double target_us) {
    Row row{"cpu_put", base::format("{} B and its signal, time of the sender", bytes), target_us};
    const void* source = team_.local_ptr(source_);
    const auto total = static_cast<uint64_t>(puts) * static_cast<uint64_t>(options_.repetitions + 3);
    if (team_.rank() == 0) {
      char* there = static_cast<char*>(team_.peer_ptr(inbox_, 1));
      std::atomic_ref count(*static_cast<uint64_t*>(team_.peer_ptr(words_, 1)));
      const auto ours = [&] {
        for (int i = 0; i < puts; ++i) put_signal(pod_, 1, inbox_.offset, source, bytes, ids_.first);
      };
      const auto plain = [&] {
        for (int i = 0; i < puts; ++i) {
          std::memcpy(there, source, bytes);
          count.fetch_add(1, std::memory_order_release);
        }
      };
      for (int i = -3; i < options_.repetitions; ++i) {
        const double a = base::us_of(ours), b = base::us_of(plain);
        if (i < 0) continue;
        row.ours_us.push_back(a / puts);
        row.plain_us.push_back(b / puts);
      }
      expect_ok(flush(pod_));
    }
    team_.barrier();  // rank 1 sleeps here meanwhile: nobody is woken per signal
    if (team_.rank() == 1) {
      expect_ok(wait_ge(pod_, 0, ids_.first, ticket(pod_, 0, ids_.first) + total));
      consume(pod_, 0, ids_.first, total);
      check(bytes);
    }
    team_.barrier();
    rows_.push_back(std::move(row));
  }

  void check(size_t bytes) {
    const auto* got = static_cast<const unsigned char*>(team_.local_ptr(inbox_));
    for (size_t i = 0; i < bytes; ++i)
      if (got[i] != static_cast<unsigned char>(i * 7 + 1))
        throw_error(Errc::invalid_argument, base::format("bench_cpu: byte {} of {} is wrong", i, bytes));
  }

  /// A token of 8 bytes goes around; time of a hop. The plain probe spins on a word.
  void measure_ring(double target_us, int rounds) {
    const int size = team_.size(), rank = team_.rank(), next = (rank + 1) % size, before = (rank + size - 1) % size;
    const bool is_over = size > options_.cores;
    Row row{"cpu_hop",
            base::format("{} ranks on {} cores{}, 8 B put with signal to seen", size, options_.cores,
                         options_.pin ? ", pinned" : ""),
            target_us};
    const void* source = team_.local_ptr(source_);
    const uint32_t id = ids_.first + 1;
    const auto ours = [&] {
      for (int i = 0; i < rounds; ++i) {
        if (rank == 0) put_signal(pod_, next, inbox_.offset, source, 8, id);
        expect_ok(wait_ge(pod_, before, id, ticket(pod_, before, id) + 1));
        consume(pod_, before, id, 1);
        if (rank != 0) put_signal(pod_, next, inbox_.offset, source, 8, id);
      }
    };
    std::atomic_ref mine(static_cast<uint64_t*>(team_.local_ptr(words_))[8]);
    std::atomic_ref theirs(static_cast<uint64_t*>(team_.peer_ptr(words_, next))[8]);
    uint64_t turn = 0;
    const auto plain = [&] {
      for (int i = 0; i < rounds; ++i) {
        ++turn;
        if (rank == 0) theirs.store(turn, std::memory_order_release);
        for (uint32_t spins = 0; mine.load(std::memory_order_acquire) < turn && spins < kMaxSpins; ++spins) {
        }
        if (rank != 0) theirs.store(turn, std::memory_order_release);
      }
    };
    const int repetitions = is_over ? std::min(options_.repetitions, 21) : options_.repetitions;
    for (int i = -3; i < repetitions; ++i) {
      team_.barrier();
      const double a = base::us_of(ours);
      team_.barrier();
      // Spinning with fewer cores than ranks takes a time slice per hop: not worth showing.
      const double b = is_over ? 0 : base::us_of(plain);
      if (i < 0) continue;
      row.ours_us.push_back(a / rounds / size);
      if (!is_over) row.plain_us.push_back(b / rounds / size);
    }
    team_.barrier();
    rows_.push_back(std::move(row));
  }

  Runtime& runtime_;
  Team& team_;
  Channel& channel_;
  const ChannelPod& pod_;
  const Options& options_;
  SymBuffer source_{}, inbox_{}, words_{};
  SignalIds ids_{};
  std::vector<Row> rows_;
};

void report(const Options& options, const RecordHead& head, const std::vector<Row>& rows, int ranks) {
  std::vector<Json> records;
  for (const Row& row : rows) {
    const double ours = base::median(row.ours_us), plain = row.plain_us.empty() ? 0 : base::median(row.plain_us);
    std::printf("%-10s %-60s %9.3f us %9.3f plain", row.name.c_str(), row.what.c_str(), ours, plain);
    if (row.target_us > 0) std::printf("  <= %g %s", row.target_us, ours <= row.target_us ? "yes" : "NO");
    std::printf("\n");
    for (const bool is_ours : {true, false}) {
      const std::vector<double>& samples = is_ours ? row.ours_us : row.plain_us;
      if (samples.empty()) continue;
      Json shape = Json::object(), method = Json::object();
      shape.set("name", row.name).set("what", row.what);
      method.set("repetitions", static_cast<int64_t>(samples.size())).set("processes", true);
      method.set("pinned", options.pin);
      Json record = new_record(head, "cpu", std::move(shape), is_ours ? "overlace" : "plain");
      Json verify = Json::object();
      verify.set("ok", true).set("oracle", "every byte and every signal");
      if (is_ours) record.set("verify", verify);
      record.set("team", ranks).set("method", method).set("target", row.target_us).set("status", "ok");
      if (!options.verify_only) record.set("time_us", time_json(samples));
      records.push_back(std::move(record));
    }
  }
  append_records(options.run, records).or_throw();
}

int run_main(int argc, char** argv) {
  Options options = parse(argc, argv);
  const std::unique_ptr<Bootstrap> bootstrap = environment_bootstrap();
  RuntimeOptions runtime_options = RuntimeOptions::from_environment();
  runtime_options.backend = Backend::cpu;
  Runtime runtime = Runtime::open(*bootstrap, runtime_options);
  options.cores = usable_cores();
  const RecordHead head{options.run, machine_json(*cpu_device(), bootstrap->size())};
  if (options.pin) pin_to_core(bootstrap->rank());
  Bench bench(runtime, options);
  bench.run();
  runtime.synchronize();
  runtime.world().barrier();
  if (bootstrap->rank() == 0) report(options, head, bench.rows(), bootstrap->size());
  runtime.close();
  return 0;
}

}  // namespace
}  // namespace overlace::bench

int main(int argc, char** argv) {
  return overlace::bench::run_program("bench_cpu", argc, argv, overlace::bench::run_main);
}
