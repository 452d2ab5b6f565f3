// AllGather and GEMM, GEMM and ReduceScatter, each in one kernel, beside what they must beat, on all GPUs of the host,
// bf16, normal data:
//   bench_fused [--smoke] [--shared] [--call-events] [--ops ag|rs] [--rows TEXT] [--rounds N] [--burst-ms X]
//               [--ranks N] [--out FILE]
// --shared: the ranks are threads on one GPU, each with its part of the SMs. Verified as ever; times compare variants
// with each other, nothing goes over a link. --call-events: each kernel a second time with an event behind each call,
// as operators record it, which may keep the next grid from being set up early.
// Each variant is verified on changing inputs (fp64 samples; every bit against the mainloop alone, or against the
// ordered sum of its partial products) before it is timed, and its last outputs are compared again afterwards. Times:
// worst rank, median of interleaved bursts. limit: GEMM beside the same copies without dependence. Exit 0: all right;
// 1: wrong; 3: too few GPUs.
#include <cstdio>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "bench/fused/rank.cuh"
#include "overlace/error.h"
#include "src/base/env.h"
#include "src/runtime/backend.h"

namespace overlace::bench {
namespace {

constexpr const char* kUsage =
    "usage: bench_fused [--smoke] [--shared] [--call-events] [--ops ag|rs] [--rows TEXT] [--rounds N] [--burst-ms X] "
    "[--ranks N] [--out FILE]\n";
constexpr int64_t kHostDeadlineMs = 20000;  // kernels have a shorter one

bool parse(int argc, char** argv, Options* o) {
  for (int i = 1; i < argc; ++i) {
    const std::string key = argv[i];
    if (key == "--shared") {
      o->shared = true;
      continue;
    }
    if (key == "--call-events") {
      o->call_events = true;
      continue;
    }
    if (key == "--smoke") {
      o->smoke = true;
      o->rounds = 3;
      o->burst_ms = 5;
      continue;
    }
    if (i + 1 == argc) return false;
    const char* value = argv[++i];
    if (key == "--ops") {
      o->ops = value;
    } else if (key == "--rows") {
      o->rows = value;
    } else if (key == "--out") {
      o->out = value;
    } else if (key == "--rounds") {
      o->rounds = std::atoi(value);
    } else if (key == "--ranks") {
      o->ranks = std::atoi(value);
    } else if (key == "--burst-ms") {
      o->burst_ms = std::atof(value);
    } else {
      return false;
    }
  }
  return o->rounds >= 0 && o->burst_ms > 0 && (o->ops.empty() || o->ops == "ag" || o->ops == "rs");
}

constexpr const char* kNarrow = "bf16_k_128x160_c21_s5";
constexpr const char* kHalves = "bf16_k_128x160_c11_s4_k2";
constexpr const char* kWide = "bf16_k_128x256_c21_s4";

std::vector<Case> smoke_cases(int ranks) {
  // Shards of other than whole tiles, one of them empty; K of other than whole slabs.
  const auto uneven = ranks == 2 ? std::vector<int64_t>{0, 300, 1000} : std::vector<int64_t>{0, 300, 300, 812, 1000};
  const auto empty = ranks == 2 ? std::vector<int64_t>{0, 0, 520} : std::vector<int64_t>{0, 0, 520, 520, 777};
  return {{Op::ag, "ragged", 1000, 2568, 1032, kNarrow, uneven},
          {Op::ag, "qkv", 1024, 2560, 8192, kNarrow},
          {Op::ag, "ragged", 1000, 2568, 1032, kWide, uneven},
          {Op::ag, "ragged", 1000, 2568, 1032, "bf16_k_128x128_c21_s6", uneven},
          {Op::ag, "ragged", 1000, 2568, 1032, "bf16_k_128x224_c21_s4", uneven},
          {Op::ag, "ragged", 1000, 2568, 1032, kHalves, uneven},
          {Op::ag, "square_ag", 4096, 1024, 4096, "bf16_k_128x192_c21_s4"},
          {Op::rs, "ragged", 1000, 2568, 1032, kWide, uneven},
          {Op::rs, "ragged", empty.back(), 1544, 200, "bf16_k_128x128_c21_s6", empty},
          {Op::rs, "o_proj", 1024, 8192, 2048, kWide}};
}

std::vector<Case> cases(const Options& o) {
  std::vector<Case> all = {{Op::ag, "qkv", 1024, 2560, 8192, kNarrow},
                           {Op::ag, "qkv", 2048, 2560, 8192, kNarrow},
                           {Op::ag, "qkv", 2048, 2560, 8192, kHalves},
                           {Op::ag, "qkv", 4096, 2560, 8192, kNarrow},
                           {Op::ag, "qkv", 8192, 2560, 8192, kWide},
                           {Op::ag, "gate_up", 1024, 14336, 8192, "bf16_k_128x128_c21_s6"},
                           {Op::ag, "gate_up", 1024, 14336, 8192, "bf16_k_128x224_c21_s4"},
                           {Op::ag, "gate_up", 1024, 14336, 8192, kWide},
                           {Op::ag, "square_ag", 4096, 1024, 4096, kWide},
                           {Op::rs, "o_proj", 1024, 8192, 2048, kWide},
                           {Op::rs, "o_proj", 2048, 8192, 2048, kWide},
                           {Op::rs, "o_proj", 4096, 8192, 2048, kWide},
                           {Op::rs, "o_proj", 8192, 8192, 2048, kWide},
                           {Op::rs, "down", 1024, 8192, 7168, kWide},
                           {Op::rs, "square_rs", 4096, 4096, 1024, kWide}};
  if (o.smoke) all = smoke_cases(o.ranks);
  std::erase_if(all, [&](const Case& c) {
    const bool is_other = !o.ops.empty() && (o.ops == "ag") != (c.op == Op::ag);
    return is_other || title(c).find(o.rows) == std::string::npos;
  });
  return all;
}

class Run {
 public:
  explicit Run(const Options& o) : options_(o), group_(o.ranks) {}

  int run() {
    auto bootstraps = thread_bootstraps(options_.ranks);
    std::vector<std::thread> threads;
    for (auto& one : bootstraps) threads.emplace_back([this, bootstrap = one.get()] { run_rank(*bootstrap); });
    for (std::thread& thread : threads) thread.join();
    if (!failure_.empty()) std::fprintf(stderr, "bench_fused: %s\n", failure_.c_str());
    return failure_.empty() ? 0 : 1;
  }

 private:
  void run_rank(Bootstrap& bootstrap) {
    try {
      RuntimeOptions options;
      options.backend = Backend::cuda_peer;
      options.heap_bytes = size_t{1} << 30;
      options.timeout_ms = kHostDeadlineMs;
      if (options_.shared) options.device = 0;
      Runtime runtime = Runtime::open(bootstrap, options);
      {
        FusedRank rank(runtime, group_, options_);
        for (const Case& c : cases(options_)) {
          Outcome outcome{c, rank.run(c)};
          if (bootstrap.rank() == 0) keep(std::move(outcome));
        }
        runtime.synchronize();
        group_.meet();
      }
      runtime.check_quiescent();
      runtime.close();
    } catch (const std::exception& error) {
      group_.fail();
      const std::lock_guard lock(mutex_);
      failure_ += base::format("{}rank {}: {}", failure_.empty() ? "" : "\n", bootstrap.rank(), error.what());
    }
  }

  void keep(Outcome outcome) {
    print(outcome);
    outcomes_.push_back(std::move(outcome));
    if (!options_.out.empty()) save(outcomes_, options_);
  }

  const Options& options_;
  Group group_;
  std::vector<Outcome> outcomes_;
  std::mutex mutex_;
  std::string failure_;
};

}  // namespace
}  // namespace overlace::bench

int main(int argc, char** argv) {
  overlace::bench::Options options;
  if (!overlace::bench::parse(argc, argv, &options)) {
    std::fputs(overlace::bench::kUsage, stderr);
    return 2;
  }
  overlace::base::set_environment_default("CUDA_DEVICE_MAX_CONNECTIONS", "32");
  std::string why;
  const int devices = overlace::runtime::cuda_device_count(&why);
  if (options.ranks == 0) options.ranks = devices >= 4 || options.shared ? 4 : devices;
  if (options.ranks < 2 || options.ranks > (options.shared ? overlace::kOrderShards : devices)) {
    std::fprintf(stderr, "bench_fused: %d ranks on %d GPUs; wanted: 2 or 4, one each. %s\n", options.ranks, devices,
                 why.c_str());
    return 3;
  }
  if (options.shared && cudaDeviceGetAttribute(&options.sms, cudaDevAttrMultiProcessorCount, 0) != cudaSuccess)
    return 3;
  options.sms /= options.ranks;
  overlace::bench::Run run(options);
  return run.run();
}
