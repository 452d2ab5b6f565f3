// Ranks as threads of one process, one per GPU: what they share, how a sample is taken, how a row is kept.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "bench/runtime/kernels.cuh"
#include "bench/runtime/table.h"
#include "overlace/runtime.h"

namespace overlace::bench {

void check_cuda(cudaError_t code, const char* call);
#define BENCH_CUDA(call) ::overlace::bench::check_cuda((call), #call)

/// All ranks wait for each other without sleeping, so that they start together; a rank that fails frees the others.
class Meeting {
 public:
  explicit Meeting(int n) : n_(n) {}
  void meet();
  void fail() { is_failed_ = true; }

 private:
  const int n_;
  std::atomic<int> arrived_{0};
  std::atomic<uint32_t> phase_{0};
  std::atomic<bool> is_failed_{false};
};

/// What the ranks of the process share.
struct Shared {
  explicit Shared(int n) : meeting(n), elapsed(static_cast<size_t>(n)), wrong(static_cast<size_t>(n)) {}
  Meeting meeting;
  std::vector<double> elapsed;
  std::vector<uint64_t> wrong;
  PlainPeers plain{};  // the probe's buffers, by rank
  std::vector<Row> rows;
};

inline constexpr uint64_t kMiB = 1 << 20;
inline constexpr uint64_t kBuffer = 512 * kMiB;  // source, and inbox of a ring
inline constexpr uint64_t kWords = 64 * 1024;    // flags of the probe, behind its inbox

/// A rank's part of the bench; its device is current.
class BenchRank {
 public:
  BenchRank(Runtime& runtime, Shared& shared, const Options& options);
  ~BenchRank();
  BenchRank(const BenchRank&) = delete;
  BenchRank& operator=(const BenchRank&) = delete;

  using Work = std::function<void()>;
  /// Samples of both, alternating, each divided by `per`; `ours` and `plain` queue on `stream`.
  void measure(Row row, double per, const Work& ours, const Work& plain);
  /// `run` once, then `look` adds what is wrong to *wrong_; the same for all ranks. False: the row is kept as wrong.
  bool verify(Row& row, const Work& run, const Work& look);
  /// Worst rank's microseconds of one sample.
  double sample(const Work& work);
  void keep(Row row);

  Runtime& runtime;
  Team& team;
  Shared& shared;
  const Options& options;
  const int rank, size;
  cudaStream_t stream = nullptr, copies = nullptr;
  Channel& channel;
  SymBuffer inbox;
  uint32_t* source = nullptr;  // kBuffer of values of this rank
  char* plain = nullptr;       // kBuffer + kWords
  uint64_t* wrong = nullptr;
  int32_t* code = nullptr;

 private:
  static cudaStream_t make_stream(int device);
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

/// All rows but the opening times.
void run_rows(BenchRank& rank);
}  // namespace overlace::bench
