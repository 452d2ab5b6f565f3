// One rank of the bench of fused operators: its operands, the variants that compute C from them, and their times.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <barrier>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/common/data.h"
#include "bench/fused/table.h"
#include "overlace/runtime.h"
#include "src/exec/cuda/cublaslt.h"
#include "src/ops/gemm_core/gather_launch.cuh"
#include "src/ops/gemm_core/launch.cuh"

namespace overlace::bench {

void check_cuda(cudaError_t code, const char* call);
#define BENCH_CUDA(call) ::overlace::bench::check_cuda((call), #call)

/// Ranks of the process. One that fails leaves, so that the others do not wait for it; they leave then too.
class Group {
 public:
  explicit Group(int n) : barrier_(n), elapsed(static_cast<size_t>(n)), host(static_cast<size_t>(n)) {}
  /// All ranks; throws where one has failed.
  void meet();
  void fail();

 private:
  std::barrier<> barrier_;
  std::atomic<bool> has_failed_{false};

 public:
  std::vector<double> elapsed, host;  // us of the last burst, by rank
};

struct Variant {
  std::string name;
  std::function<base::Status(int set)> enqueue;
  bool has_core_bits = false;  // its results are bit for bit those of the mainloop alone
  bool is_wrong = false;       // by intent: not verified
  Timed timed{};
};

class FusedRank {
 public:
  FusedRank(Runtime& runtime, Group& group, const Options& options);
  ~FusedRank();
  FusedRank(const FusedRank&) = delete;
  FusedRank& operator=(const FusedRank&) = delete;

  /// All ranks: operands, variants, verification, times. All get the same times.
  std::vector<Timed> run(const Case& c);

 private:
  /// Operands of one epoch; several sets, so that inputs change and caches do not help.
  struct Set {
    void *shard = nullptr, *whole = nullptr, *b = nullptr, *c = nullptr, *reference = nullptr;
  };
  void open_case(const Case& c);
  void close_case();
  void* allocate(int64_t bytes);
  void add_variants(std::vector<Variant>* list);
  struct Gathering {
    ops::gemm_core::GatherTransport transport;
    ops::gemm_core::Arrival arrival;
    int pieces;
    bool waits = true;
  };
  void add_gather(std::vector<Variant>* list, const Gathering& how);
  ops::gemm_core::GatherState state_of(ops::gemm_core::GatherTransport transport);
  base::Status copy_to_peers();
  base::Status limit(const std::function<base::Status(int)>& gemm, int set);
  void verify(Variant& variant);
  void compare_all(const Variant& variant);
  void time(std::vector<Variant>& list);
  double burst(Variant& variant, int calls);
  Normal left(int set) const;
  Normal right(int set) const;
  int64_t rows() const { return offsets_[static_cast<size_t>(rank_) + 1] - offsets_[static_cast<size_t>(rank_)]; }
  bool is_equal() const { return case_.offsets.empty(); }

  Runtime& runtime_;
  Team& team_;
  Group& group_;
  const Options& options_;
  const int rank_, size_;
  cudaStream_t stream_ = nullptr, copies_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr, fork_ = nullptr, join_ = nullptr;
  Channel& channel_;
  std::unique_ptr<exec::CublasLt> blas_;
  Counters arrivals_;
  SignalIds pushed_, copied_;   // written by CTAs, by streams
  ChannelPod pod_;              // with the deadline of this bench
  uint64_t* totals_ = nullptr;  // of copied_
  uint32_t* error_ = nullptr;

  // ---- of the case ----
  Case case_;
  std::vector<int64_t> offsets_;
  std::vector<Set> sets_;
  std::vector<void*> memory_;
  Inbox inbox_;
  SymBuffer scratch_;  // where the limit's copies go
  uint64_t epoch_ = 0;
  int turn_ = 0;
};

}  // namespace overlace::bench
