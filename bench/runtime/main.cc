// What the runtime reaches on the GPUs of one host, beside a plain CUDA probe of the same in the same run:
//   bench_runtime [--ranks N] [--repetitions N] [--out records.jsonl] [--git COMMIT] [--verify-only]
// Exit 0: all rows verified; 1: a row was wrong; 3: no GPU.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <thread>

#include "bench/common/arguments.h"
#include "bench/runtime/harness.cuh"
#include "overlace/error.h"
#include "overlace/net_engine.h"
#include "src/base/env.h"
#include "src/runtime/backend.h"

namespace overlace::bench {
namespace {

constexpr int kMaxRanks = 4;  // 128 MiB of each peer fit an inbox

Options parse(int argc, char** argv) {
  Options options;
  Arguments arguments(&options.run);
  arguments.add("--verify-only", &options.verify_only);
  arguments.add("--ranks", &options.ranks, 2);
  arguments.add("--repetitions", &options.repetitions, 1);
  arguments.parse(argc, argv);
  return options;
}

RuntimeOptions runtime_options(const char* engine) {
  RuntimeOptions options;
  options.backend = Backend::cuda_peer;
  options.heap_bytes = size_t{1} << 30;
  options.timeout_ms = 20000;
  options.net_engine = engine;
  return options;
}

/// Runs `body` on a thread per rank; the first failure frees the others and is thrown again here.
void run_ranks(int n, Meeting& meeting, const std::function<void(Bootstrap&)>& body) {
  auto bootstraps = thread_bootstraps(n);
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::exception_ptr first;
  for (auto& one : bootstraps) {
    threads.emplace_back([&, bootstrap = one.get()] {
      try {
        body(*bootstrap);
      } catch (...) {
        meeting.fail();
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

/// Opening with contexts existing: worst rank, in us.
Row bench_open(const Options& options, const char* engine, const char* what, double target, int times,
               std::string* version) {
  Row row{"open", base::format("{} ranks, 1 GiB heap, {}", options.ranks, what), 0, target};
  std::vector<double> worst(static_cast<size_t>(options.ranks));
  for (int i = 0; i < times; ++i) {
    Meeting meeting(options.ranks);
    run_ranks(options.ranks, meeting, [&](Bootstrap& bootstrap) {
      meeting.meet();
      const auto begin = std::chrono::steady_clock::now();
      Runtime runtime = Runtime::open(bootstrap, runtime_options(engine));
      const auto end = std::chrono::steady_clock::now();
      worst[static_cast<size_t>(bootstrap.rank())] = std::chrono::duration<double, std::micro>(end - begin).count();
      if (bootstrap.rank() == 0 && version != nullptr && runtime.world().net() != nullptr)
        *version = runtime.world().net()->version();
      runtime.close();
    });
    row.ours_us.push_back(*std::max_element(worst.begin(), worst.end()));
  }
  return row;
}

int run_main(int argc, char** argv) {
  Options options = parse(argc, argv);
  std::string why;
  const int devices = runtime::cuda_device_count(&why);
  if (devices == 0) {
    std::fprintf(stderr, "bench_runtime: no usable GPU: %s\n", why.c_str());
    return 3;
  }
  if (options.ranks == 0) options.ranks = devices == 1 ? 2 : devices >= 4 ? 4 : 2;
  if (options.ranks > kMaxRanks)
    throw_error(Errc::invalid_argument, base::format("--ranks is {}, wanted 2 to {}", options.ranks, kMaxRanks));
  Shared shared(options.ranks);
  run_ranks(options.ranks, shared.meeting, [&](Bootstrap& bootstrap) {
    Runtime runtime = Runtime::open(bootstrap, runtime_options("none"));
    {
      BenchRank rank(runtime, shared, options);
      run_rows(rank);
      runtime.synchronize();
      shared.meeting.meet();
    }
    runtime.check_quiescent();
    runtime.close();
  });
  std::string nccl_version = "none";
  if (!options.verify_only) {
    shared.rows.push_back(bench_open(options, "none", "no network engine", 1.5e6, 5, nullptr));
    if (options.ranks <= devices)
      shared.rows.push_back(bench_open(options, "auto", "nccl warmed up", 0, 2, &nccl_version));
  }
  std::vector<std::unique_ptr<Gpu>> gpus;
  for (int device = 0; device < std::min(devices, options.ranks); ++device) gpus.push_back(Gpu::open(device).value());
  return report(options, shared.rows, gpus, devices, nccl_version) == 0 ? 0 : 1;
}

}  // namespace
}  // namespace overlace::bench

int main(int argc, char** argv) {
  // Ranks that share a device keep many streams busy at once.
  overlace::base::set_environment_default("CUDA_DEVICE_MAX_CONNECTIONS", "32");
  return overlace::bench::run_program("bench_runtime", argc, argv, overlace::bench::run_main);
}
