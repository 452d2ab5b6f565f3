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
#include "bench/common/plain_gemm.cuh"
#include "bench/fused/table.h"
#include "overlace/runtime.h"
#include "src/exec/cuda/cublaslt.h"
#include "src/ops/fused/gather_launch.cuh"
#include "src/ops/fused/scatter_launch.cuh"

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

/// Operands of one epoch; several sets, so that inputs change and caches do not help.
struct Set {
  void *shard = nullptr, *whole = nullptr, *b = nullptr;  // A: rows of this rank (ag); all rows
  void *c = nullptr, *out = nullptr;                      // (M, N); rs: (rows of this rank, N)
  // What results are bit for bit, by variant: the mainloop alone, the ordered sum of rounded partials, the same
  // scaled and with a bias.
  void *core = nullptr, *rounded = nullptr, *biased = nullptr;
};

struct Variant {
  std::string name;
  std::function<base::Status(int set)> enqueue;
  void* Set::*bits = nullptr;  // its results are compared with these
  bool sets_bits = false;      // or are these
  bool is_shard = false;       // rs: the result is `out`, a sum over ranks
  bool is_sampled = true;      // against fp64
  bool is_timed = true;
  bool is_kernel = false;  // one launch, the next of which may be set up early
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
  void open_case(const Case& c);
  void close_case();
  void* allocate(int64_t bytes);
  void* allocate_filled(int64_t rows, int64_t cols, const Normal& values);
  void open_gather();
  void open_scatter();
  void add_variants(std::vector<Variant>* list);
  void add_gathers(std::vector<Variant>* list);
  void add_scatters(std::vector<Variant>* list);
  struct Gathering {
    ops::fused::GatherTransport transport;
    ops::fused::Arrival arrival;
    int pieces;
    bool waits = true, has_bias = false;
  };
  void add_gather(std::vector<Variant>* list, const Gathering& how);
  /// Each kernel again, with what an eager call of an operator records behind it.
  void add_call_events(std::vector<Variant>* list);
  struct Scattering {
    std::string name, instance;
    int groups = kMaxGroups;
    bool has_bias = false;
  };
  Variant make_scatter(const Scattering& how);
  void make_sums();
  /// What all variants of both operators share.
  void fill(const Set& set, void* c, ops::fused::FusedArgs* args) const;
  void fill(const SignalIds& ids, ops::fused::ExchangeState* state) const;
  ops::fused::GatherState state_of(ops::fused::GatherTransport transport);
  base::Status copy_to_peers();
  base::Status limit(const std::function<base::Status(int)>& gemm, int set);
  base::Status library(int set, const exec::LtGemm& gemm, NetEngine& net, void* gathered);
  TensorView output(const Variant& variant, const Set& set) const;
  void check(Variant& variant, int set);
  void verify(Variant& variant);
  void compare_all(const Variant& variant);
  void time(const std::vector<Variant*>& list);
  double burst(Variant& variant, int calls);
  Normal left(int set, int rank) const;
  Normal right(int set, int rank) const;
  int64_t rows() const { return ops::fused::rows_of(offsets_, rank_); }
  int64_t first_row() const { return offsets_[static_cast<size_t>(rank_)]; }
  bool is_gather() const { return case_.op == Op::ag; }
  bool is_equal() const { return case_.offsets.empty(); }

  Runtime& runtime_;
  Team& team_;
  Group& group_;
  const Options& options_;
  const int rank_, size_;
  cudaStream_t stream_ = nullptr, copies_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr, fork_ = nullptr, join_ = nullptr, call_ = nullptr;
  Channel& channel_;
  std::unique_ptr<exec::CublasLt> blas_;
  Counters counters_;
  mutable ops::fused::ItemLists lists_;  // a cache
  SignalIds pushed_, copied_;            // written by CTAs, by streams
  ChannelPod pod_;                       // with the deadline of this bench
  uint64_t* gather_totals_ = nullptr;    // of copied_
  uint32_t* error_ = nullptr;

  // ---- of the case ----
  Case case_;
  std::vector<int64_t> offsets_;
  std::vector<Set> sets_;
  std::vector<void*> memory_;
  Inbox inbox_;
  SymBuffer scratch_;  // where the limit's copies go
  void* bias_ = nullptr;
  uint64_t epoch_ = 0;
  int turn_ = 0;
};

}  // namespace overlace::bench
