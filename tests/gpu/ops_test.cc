// The dense operators on real GPUs: every family against exact sums, repeated, captured, ragged. Ranks are threads of
// this process, one GPU each; with one GPU they share it (virtual ranks).
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "overlace/error.h"
#include "overlace/ops/ag_gemm.h"
#include "overlace/ops/common.h"
#include "overlace/ops/gemm_ar.h"
#include "overlace/ops/gemm_rs.h"
#include "overlace/runtime.h"
#include "src/base/half.h"
#include "src/base/status.h"
#include "src/ops/ag_gemm/impl.h"
#include "src/ops/gemm_core/choose.h"
#include "src/ops/gemm_rs/impl.h"
#include "src/runtime/backend.h"
#include "src/spec/fused_pod.h"

namespace overlace {
namespace {

/// Ranks that share a device keep many streams busy at once: with fewer hardware queues one could wait behind another.
const bool kManyQueues = (::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0), true);

int device_count() {
  static const int count = runtime::cuda_device_count(nullptr);
  return count;
}

constexpr int kTeamSizes[] = {1, 2, 4};  // where there are fewer GPUs, ranks share them
/// With calls behind each other, whose kernels fill the GPU: two ranks on one GPU, else as many as there are GPUs.
std::vector<int> team_sizes() {
  if (device_count() >= 4) return {1, 2, 4};
  return {1, 2};
}

void cuda_ok(cudaError_t e) {
  if (e != cudaSuccess) throw std::runtime_error(cudaGetErrorString(e));
}

/// Host values and their device copy.
class Matrix {
 public:
  Matrix(int64_t rows, int64_t cols, DType dtype) : rows_(rows), cols_(cols), dtype_(dtype) {
    host_.resize(static_cast<size_t>(rows * cols) * dtype_bytes(dtype), 0xff);
    cuda_ok(cudaMalloc(&device_, std::max<size_t>(host_.size(), 16)));
    upload();
  }
  ~Matrix() { (void)cudaFree(device_); }
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;
  void set(int64_t i, double value) { base::store_element(host_.data(), dtype_, i, value); }
  double get(int64_t i) const { return base::load_element(host_.data(), dtype_, i); }
  void upload() { cuda_ok(cudaMemcpy(device_, host_.data(), host_.size(), cudaMemcpyHostToDevice)); }
  void download() { cuda_ok(cudaMemcpy(host_.data(), device_, host_.size(), cudaMemcpyDeviceToHost)); }
  void poison() { cuda_ok(cudaMemset(device_, 0xff, host_.size())); }
  TensorView device() { return TensorView::contiguous(device_, dtype_, {rows_, cols_}); }
  TensorView host() { return TensorView::contiguous(host_.data(), dtype_, {rows_, cols_}); }
  int64_t size() const { return rows_ * cols_; }
  const std::vector<unsigned char>& bytes() const { return host_; }

 private:
  int64_t rows_, cols_;
  DType dtype_;
  std::vector<unsigned char> host_;
  void* device_ = nullptr;
};

/// -1, 0 or 1, different for every tensor, rank and index: sums stay far below 256, where bf16 is exact in any order.
double exact_value(int tensor, int rank, int64_t i) {
  uint64_t x = static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15ull +
               static_cast<uint64_t>(tensor * 64 + rank) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 29)) * 0x94d049bb133111ebull;
  return static_cast<double>((x >> 40) % 3) - 1;
}

void fill(Matrix& m, int tensor, int rank) {
  for (int64_t i = 0; i < m.size(); ++i) m.set(i, exact_value(tensor, rank, i));
  m.upload();
}

struct Problem {
  std::string op;
  int64_t m = 0, n = 0, k = 0;
  DType dtype = DType::bf16;
  spec::BLayout layout = spec::BLayout::nk;
  bool bias = false;
  std::vector<int64_t> row_offsets{};
};

/// One rank's operands and call.
class Site {
 public:
  Site(const Problem& p, Channel& channel) : p_(p), channel_(channel), rank_(channel.team().rank()) {
    spec::OpSpec op;
    op.op = p.op;
    op.m = p.m;
    op.n = p.n;
    op.k = p.k;
    op.ranks = channel.team().size();
    op.dtype = op.out_dtype = p.dtype;
    op.b_layout = p.layout;
    op.bias = p.bias;
    op.row_offsets = p.row_offsets;
    op_ = op;
    off_ = spec::row_offsets(op);
    a_ = make_a(rank_);
    b_ = make_b(rank_);
    bias_ = std::make_unique<Matrix>(1, p.n, p.dtype);
    fill(*bias_, 3, 0);
    out_ = std::make_unique<Matrix>(out_rows(), p.n, p.dtype);
    want_ = reference();  // frees device memory, which waits for the device: not beside a peer's call
  }

  const spec::OpSpec& op() const { return op_; }
  Matrix& out() { return *out_; }
  int64_t mine() const { return off_[static_cast<size_t>(rank_) + 1] - off_[static_cast<size_t>(rank_)]; }

  void run(const spec::Schedule& schedule) {
    TensorView bias;
    if (p_.bias) {
      bias = bias_->device();
      bias = TensorView::contiguous(bias.data, p_.dtype, {p_.n});
    }
    const TensorView b = p_.layout == spec::BLayout::nk ? b_->device().transposed() : b_->device();
    if (p_.op == "ag_gemm") {
      ops::run(channel_,
               ops::AgGemmArgs{.a_shard = a_->device(),
                               .b = b,
                               .c = out_->device(),
                               .bias = bias,
                               .a = {},
                               .row_offsets = p_.row_offsets},
               schedule);
    } else if (p_.op == "gemm_rs") {
      ops::run(channel_,
               ops::GemmRsArgs{
                   .a = a_->device(), .b = b, .out = out_->device(), .bias = bias, .row_offsets = p_.row_offsets},
               schedule);
    } else {
      ops::run(channel_, ops::GemmArArgs{.a = a_->device(), .b = b, .out = out_->device(), .bias = bias}, schedule);
    }
  }

  /// Empty if every element is exact.
  std::string mismatch() {
    out_->download();
    const int64_t first = p_.op == "gemm_rs" ? off_[static_cast<size_t>(rank_)] * p_.n : 0;
    for (int64_t i = 0; i < out_->size(); ++i) {
      const double w = want_[static_cast<size_t>(first + i)], got = out_->get(i);
      if (!(got == w)) {
        return base::format("rank {} element ({}, {}): got {}, want {}", rank_, i / p_.n, i % p_.n, got, w);
      }
    }
    return {};
  }

 private:
  int64_t out_rows() const { return p_.op == "gemm_rs" ? mine() : p_.m; }
  std::unique_ptr<Matrix> make_a(int rank) {
    const bool is_ag = p_.op == "ag_gemm";
    const size_t r = static_cast<size_t>(rank);
    auto a = std::make_unique<Matrix>(is_ag ? off_[r + 1] - off_[r] : p_.m, p_.k, p_.dtype);
    fill(*a, 1, rank);
    return a;
  }
  std::unique_ptr<Matrix> make_b(int rank) {
    const bool nk = p_.layout == spec::BLayout::nk;
    auto b = std::make_unique<Matrix>(nk ? p_.n : p_.k, nk ? p_.k : p_.n, p_.dtype);
    fill(*b, 2, rank);
    return b;
  }
  std::vector<double> reference() {
    std::vector<std::unique_ptr<Matrix>> a, b;
    std::vector<TensorView> a_views, b_views;
    for (int r = 0; r < op_.ranks; ++r) {
      a.push_back(make_a(r));
      b.push_back(make_b(p_.op == "ag_gemm" ? rank_ : r));
      a_views.push_back(a.back()->host());
      b_views.push_back(p_.layout == spec::BLayout::nk ? b.back()->host().transposed() : b.back()->host());
    }
    TensorView bias;
    if (p_.bias) bias = TensorView::contiguous(bias_->host().data, p_.dtype, {p_.n});
    return p_.op == "ag_gemm" ? ops::ag_gemm_reference(a_views, b_views[0], bias)
                              : ops::gemm_sum_reference(a_views, b_views, bias);
  }

  Problem p_;
  Channel& channel_;
  int rank_;
  spec::OpSpec op_;
  std::vector<int64_t> off_;
  std::unique_ptr<Matrix> a_, b_, bias_, out_;
  std::vector<double> want_;
};

/// Runs `body` on n rank threads and gives the first failure's text.
std::string on_ranks(int n, const std::function<void(Runtime&, cudaStream_t)>& body,
                     size_t heap_bytes = size_t{512} << 20) {
  std::vector<std::unique_ptr<Bootstrap>> bootstraps = thread_bootstraps(n);
  std::mutex mutex;
  std::string failure;
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r) {
    threads.emplace_back([&, r] {
      try {
        cuda_ok(cudaSetDevice(r % device_count()));
        RuntimeOptions options;
        options.backend = Backend::cuda_peer;
        options.device = r % device_count();
        options.heap_bytes = heap_bytes;
        options.timeout_ms = 20000;
        Runtime runtime = Runtime::open(*bootstraps[static_cast<size_t>(r)], options);
        cudaStream_t stream = nullptr;
        cuda_ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        try {
          body(runtime, stream);
          runtime.synchronize();
        } catch (const std::exception& e) {
          runtime.abort(Errc::internal, e.what());
          throw;
        }
        runtime.close();
        (void)cudaStreamDestroy(stream);
      } catch (const std::exception& e) {
        const std::lock_guard<std::mutex> lock(mutex);
        if (failure.empty()) failure = base::format("rank {}: {}", r, e.what());
      }
    });
  }
  for (std::thread& t : threads) t.join();
  return failure;
}

/// Waits for this rank's GPU; where ranks share one, for all of them: waiting for a GPU must not meet a peer's next
/// call.
void settle(Runtime& runtime) {
  runtime.synchronize();
  if (runtime.world().size() > device_count()) runtime.world().barrier();
}

void require(const std::string& mismatch, const std::string& where) {
  if (!mismatch.empty()) throw std::runtime_error(where + ": " + mismatch);
}

class GpuOps : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (runtime::cuda_device_count(&why) == 0) GTEST_SKIP() << why;
  }

  /// Every family and degree of the problem, three calls each, then quiescence.
  void run_all(const Problem& problem, const std::vector<int>& degrees) {
    for (int n : kTeamSizes) {
      if (!problem.row_offsets.empty() && static_cast<int>(problem.row_offsets.size()) != n + 1) continue;
      const std::string failure = on_ranks(n, [&](Runtime& runtime, cudaStream_t stream) {
        Channel& channel = runtime.world().channel(StreamRef::cuda(stream));
        Site site(problem, channel);
        for (const std::string& family : spec::families(problem.op)) {
          if (family == "compute" || family == "comm" || family == "limit") continue;
          for (int degree : degrees) {
            const spec::Schedule schedule = spec::make_schedule(site.op(), family, degree);
            if (!ops::supports(channel, site.op(), schedule).ok()) continue;  // a fused kernel: FusedKernels* wants it
            const std::string where = base::format("{} {} q {} on {} ranks", problem.op, family, degree, n);
            for (int call = 0; call < 3; ++call) {
              site.out().poison();
              site.run(schedule);
              runtime.synchronize();
              require(site.mismatch(), where);
              // What waits for a GPU must not meet the next call of a rank that shares it.
              if (n > device_count()) runtime.world().barrier();
            }
            runtime.world().barrier();
            runtime.check_quiescent();
            runtime.world().barrier();  // nobody signals again before all have looked
          }
        }
      });
      EXPECT_EQ(failure, "");
    }
  }
};

TEST_F(GpuOps, AgGemmBf16) { run_all({.op = "ag_gemm", .m = 512, .n = 256, .k = 320}, {1, 2, 4}); }
TEST_F(GpuOps, AgGemmBf16BiasKn) {
  run_all({.op = "ag_gemm", .m = 256, .n = 192, .k = 128, .layout = spec::BLayout::kn, .bias = true}, {1, 3});
}
TEST_F(GpuOps, AgGemmFp16Ragged) {
  run_all({.op = "ag_gemm", .m = 301, .n = 64, .k = 128, .dtype = DType::fp16}, {1, 2});
}
TEST_F(GpuOps, AgGemmFp32) { run_all({.op = "ag_gemm", .m = 128, .n = 64, .k = 96, .dtype = DType::fp32}, {1, 2}); }
TEST_F(GpuOps, AgGemmEmptyShards) {
  run_all({.op = "ag_gemm", .m = 100, .n = 64, .k = 64, .row_offsets = {0, 0, 100}}, {1, 2});
  run_all({.op = "ag_gemm", .m = 100, .n = 64, .k = 64, .row_offsets = {0, 60, 60, 60, 100}}, {2});
}
TEST_F(GpuOps, AgGemmFewRows) {
  run_all({.op = "ag_gemm", .m = 1, .n = 64, .k = 64}, {1, 2});
  run_all({.op = "ag_gemm", .m = 0, .n = 64, .k = 64}, {1});
}
TEST_F(GpuOps, GemmRsBf16) { run_all({.op = "gemm_rs", .m = 512, .n = 256, .k = 320}, {1, 2, 4}); }
TEST_F(GpuOps, GemmRsFp16BiasKnRagged) {
  run_all(
      {.op = "gemm_rs", .m = 203, .n = 192, .k = 64, .dtype = DType::fp16, .layout = spec::BLayout::kn, .bias = true},
      {1, 3});
}
TEST_F(GpuOps, GemmRsFp32) { run_all({.op = "gemm_rs", .m = 128, .n = 64, .k = 96, .dtype = DType::fp32}, {1, 2}); }
TEST_F(GpuOps, GemmRsEmptyShards) {
  run_all({.op = "gemm_rs", .m = 100, .n = 64, .k = 64, .row_offsets = {0, 100, 100}}, {1, 2});
  run_all({.op = "gemm_rs", .m = 1, .n = 64, .k = 64}, {1});
}
TEST_F(GpuOps, GemmArBf16) { run_all({.op = "gemm_ar", .m = 512, .n = 256, .k = 320}, {1, 2, 4}); }
TEST_F(GpuOps, GemmArFewRows) {
  run_all({.op = "gemm_ar", .m = 5, .n = 64, .k = 64}, {1, 4});
  run_all({.op = "gemm_ar", .m = 0, .n = 64, .k = 64}, {2});
}
TEST_F(GpuOps, GemmArBiasRagged) { run_all({.op = "gemm_ar", .m = 203, .n = 64, .k = 64, .bias = true}, {1, 2}); }

/// The schedules whose calls can be captured: all but those of the library's collectives are ours.
TEST_F(GpuOps, CapturedCallsReplayWithTheSameBits) {
  for (const char* op : {"ag_gemm", "gemm_rs", "gemm_ar"}) {
    const std::vector<std::string> known = spec::families(op);
    for (const char* family : {"serial", "hetero_fused_1d", "uniform_fused_1d", "grouped_fused_1d",
                               "grouped_unfused_1d", "k_slab", "tma_slot"}) {
      if (std::find(known.begin(), known.end(), family) == known.end()) continue;
      const std::string failure = on_ranks(team_sizes().back(), [&](Runtime& runtime, cudaStream_t stream) {
        Channel& channel = runtime.world().channel(StreamRef::cuda(stream));
        Site site({.op = op, .m = 512, .n = 256, .k = 320}, channel);
        const spec::Schedule schedule = spec::make_schedule(site.op(), family, 2);
        site.run(schedule);
        settle(runtime);
        site.out().download();
        const std::vector<unsigned char> eager = site.out().bytes();
        cuda_ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        site.run(schedule);
        site.run(schedule);
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t exec = nullptr;
        cuda_ok(cudaStreamEndCapture(stream, &graph));
        cuda_ok(cudaGraphInstantiate(&exec, graph, 0));
        for (int replay = 0; replay < 50; ++replay) {
          if (replay % 10 == 0) site.out().poison();
          cuda_ok(cudaGraphLaunch(exec, stream));
        }
        settle(runtime);
        site.out().download();
        if (site.out().bytes() != eager)
          throw std::runtime_error(base::format("{} {}: a replay gave other bits", op, family));
        site.run(schedule);  // eager after replays
        settle(runtime);
        site.out().download();
        if (site.out().bytes() != eager)
          throw std::runtime_error(base::format("{} {}: eager after replay gave other bits", op, family));
        runtime.world().barrier();
        runtime.check_quiescent();
        (void)cudaGraphExecDestroy(exec);
        (void)cudaGraphDestroy(graph);
      });
      EXPECT_EQ(failure, "");
    }
  }
}

/// Degrees from one piece to as many as there can be; shards of other than whole tiles, one of them empty; calls that
/// are queued behind each other without a look; on all SMs and on a part of them.
struct FusedCase {
  Problem problem;
  const char* family;
};
std::vector<FusedCase> fused_cases(int ranks) {
  const std::vector<int64_t> uneven =
      ranks == 2 ? std::vector<int64_t>{0, 0, 600} : std::vector<int64_t>{0, 300, 300, 412, 600};
  return {{{.op = "ag_gemm", .m = 1024, .n = 264, .k = 520}, "k_slab"},
          {{.op = "ag_gemm", .m = 600, .n = 392, .k = 264, .row_offsets = uneven}, "k_slab"},
          {{.op = "gemm_rs", .m = 1024, .n = 264, .k = 72, .bias = true}, "tma_slot"},
          {{.op = "gemm_rs", .m = 600, .n = 392, .k = 136, .row_offsets = uneven}, "tma_slot"}};
}

/// One call alone, then many behind each other.
void call_often(Runtime& runtime, cudaStream_t stream, Site& site, const spec::Schedule& schedule,
                const std::string& where) {
  site.out().poison();
  site.run(schedule);
  settle(runtime);
  require(site.mismatch(), where);
  const std::vector<unsigned char> bits = site.out().bytes();
  for (int call = 0; call < 20; ++call) {
    if (call % 4 == 0) cuda_ok(cudaMemsetAsync(site.out().device().data, 0xff, bits.size(), stream));
    site.run(schedule);
  }
  settle(runtime);
  site.out().download();
  if (site.out().bytes() != bits) throw std::runtime_error(where + ": other bits in a later call");
  runtime.world().barrier();
  runtime.check_quiescent();
  runtime.world().barrier();
}

TEST_F(GpuOps, FusedKernelsGiveTheExactResultAndTheSameBitsInCallsBehindEachOther) {
  for (int n : team_sizes()) {
    if (n == 1) continue;
    const std::string failure = on_ranks(n, [&](Runtime& runtime, cudaStream_t stream) {
      Channel& whole = runtime.world().channel(StreamRef::cuda(stream));
      Channel& part = runtime.world().channel(StreamRef::cuda(stream), {.sm_budget = 24});
      for (const FusedCase& one : fused_cases(n)) {
        for (Channel* channel : {&whole, &part}) {
          Site site(one.problem, *channel);
          for (const int degree : {1, 3, 8, 64}) {
            const spec::Schedule schedule = spec::make_schedule(site.op(), one.family, degree);
            require(ops::supports(*channel, site.op(), schedule).reason, one.family);
            call_often(runtime, stream, site, schedule, base::format("{} q {} on {} ranks", one.family, degree, n));
          }
        }
      }
    });
    EXPECT_EQ(failure, "");
  }
}

/// Where choose_instance takes it: 12 clusters of its tiles, the last of each row clipped, are one wave of 24 SMs.
struct InstanceCase {
  ops::gemm_core::FusedSpec instance;
  Problem problem;
  const char* family;
  spec::Params options;
};
std::vector<InstanceCase> instance_cases() {
  std::vector<InstanceCase> out;
  const auto add = [&](const char* op, const char* family, const ops::gemm_core::FusedSpec& one, spec::Params options) {
    const ops::gemm_core::ConfigSpec& s = one.spec;
    const auto layout = s.b_major == ops::gemm_core::BMajor::k ? spec::BLayout::nk : spec::BLayout::kn;
    Problem p = {.op = op, .m = 1024, .n = 3 * s.tile_n - 8, .k = 136, .dtype = s.dtype, .layout = layout};
    out.push_back({one, p, family, options});
    p.bias = true;
    out.push_back({one, p, family, options});
  };
  for (const auto& one : ops::gemm_core::gather_specs())
    if (one.spec.split_k == 1) add("ag_gemm", "k_slab", one, {});
  for (const auto& one : ops::gemm_core::scatter_specs())
    if (ops::gemm_core::find_scatter(one.spec.dtype, one.spec.b_major, kSlotTileRows, one.spec.tile_n) == &one)
      add("gemm_rs", "tma_slot", one, {{"align_n", int64_t{one.spec.tile_n}}});
  return out;
}

TEST_F(GpuOps, EveryFusedInstanceGivesTheExactResultWithAndWithoutABias) {
  constexpr int kSms = 24, kDegree = 3;
  for (int n : team_sizes()) {
    if (n == 1) continue;
    const std::string failure = on_ranks(n, [&](Runtime& runtime, cudaStream_t stream) {
      Channel& channel = runtime.world().channel(StreamRef::cuda(stream), {.sm_budget = kSms});
      for (const InstanceCase& one : instance_cases()) {
        Site site(one.problem, channel);
        const spec::Schedule schedule = spec::make_schedule(site.op(), one.family, kDegree, one.options);
        const auto taken = ops::gemm_core::choose_instance(schedule, kSms);
        require(taken.ok() ? "" : taken.status().message(), one.family);
        if ((*taken)->name != one.instance.name) throw std::runtime_error("taken: " + std::string((*taken)->name));
        call_often(runtime, stream, site, schedule,
                   base::format("{} of {}{} on {} ranks", one.instance.name, one.family,
                                one.problem.bias ? " with a bias" : "", n));
      }
    });
    EXPECT_EQ(failure, "");
  }
}

/// Ranks come late to the first calls of new shapes, while others wait on their GPUs: what a first call loads and
/// allocates must not be held up by kernels that wait.
TEST_F(GpuOps, FirstCallsOfNewShapesWhileOthersWait) {
  constexpr int kShapes = 12, kLateMs = 15;
  const int n = team_sizes().back();
  const std::string failure = on_ranks(n, [&](Runtime& runtime, cudaStream_t stream) {
    Channel& channel = runtime.world().channel(StreamRef::cuda(stream));
    std::vector<std::unique_ptr<Site>> sites;
    for (int i = 0; i < kShapes; ++i) {
      const bool is_gather = i % 2 == 0;
      sites.push_back(std::make_unique<Site>(
          Problem{.op = is_gather ? "ag_gemm" : "gemm_rs", .m = 64 + 32 * i, .n = 64 + 24 * i, .k = 64 + 40 * i},
          channel));
    }
    for (int i = 0; i < kShapes; ++i) {
      Site& site = *sites[static_cast<size_t>(i)];
      if (channel.team().rank() == i % n) std::this_thread::sleep_for(std::chrono::milliseconds(kLateMs));
      const char* family = i % 4 < 2 ? "hetero_unfused_1d" : "hetero_fused_1d";
      site.run(spec::make_schedule(site.op(), family, 2));
    }
    settle(runtime);
    for (int i = 0; i < kShapes; ++i) require(sites[static_cast<size_t>(i)]->mismatch(), base::format("shape {}", i));
  });
  EXPECT_EQ(failure, "");
}

/// What no kernel is compiled for is refused on all ranks before anything moves, and says so.
TEST_F(GpuOps, FusedKernelsThatAreMissingAreRefused) {
  const std::string failure = on_ranks(2, [&](Runtime& runtime, cudaStream_t stream) {
    Channel& channel = runtime.world().channel(StreamRef::cuda(stream));
    const auto refused = [&](const Problem& problem, const char* family, const char* want,
                             Errc code = Errc::not_supported, const spec::Params& options = {}) {
      Site site(problem, channel);
      const spec::Schedule schedule = spec::make_schedule(site.op(), family, 2, options);
      try {
        site.run(schedule);
        throw std::runtime_error(std::string(want) + ": was not refused");
      } catch (const Error& e) {
        const std::string what = e.what();
        if (e.code() != code || what.find(want) == std::string::npos)
          throw std::runtime_error(base::format("wanted {}, got {}", want, what));
      }
      const bool is_known = ops::supports(channel, site.op(), schedule).ok();
      if (is_known != (code != Errc::not_supported))
        throw std::runtime_error(std::string(want) + ": supports() differs");
    };
    refused({.op = "ag_gemm", .m = 64, .n = 64, .k = 64, .dtype = DType::fp32}, "k_slab", "no kernel for fp32 -> fp32");
    refused({.op = "ag_gemm", .m = 64, .n = 65, .k = 64}, "k_slab", "N 65, K 64");
    refused({.op = "gemm_rs", .m = 64, .n = 64, .k = 60}, "tma_slot", "N 64, K 60; wanted: multiples of 8");
    refused({.op = "ag_gemm", .m = 64, .n = 64, .k = 64}, "k_slab", "slabs of other than multiples of 64",
            Errc::not_supported, {{"align_k", int64_t{8}}});
    refused({.op = "gemm_rs", .m = 64, .n = 64, .k = 64, .dtype = DType::fp32, .layout = spec::BLayout::kn}, "tma_slot",
            "no kernel for fp32 -> fp32, b kn");
    refused({.op = "gemm_rs", .m = 64, .n = 64, .k = 64}, "tma_slot", "tiles 64x128", Errc::not_supported,
            {{"align", int64_t{64}}});
    refused({.op = "gemm_rs", .m = 64, .n = 64, .k = 64}, "tma_slot", "compiled for the tasks", Errc::bad_schedule,
            {{"credits", false}});
    Site site({.op = "gemm_rs", .m = 64, .n = 64, .k = 64}, channel);
    Matrix a(64, 72, DType::bf16), b(64, 64, DType::bf16);
    TensorView odd = a.device();
    odd.data = static_cast<char*>(odd.data) + 2;
    odd.sizes[1] = 64;
    try {
      ops::run(channel, ops::GemmRsArgs{.a = odd, .b = b.device().transposed(), .out = site.out().device()},
               spec::make_schedule(site.op(), "tma_slot", 2));
      throw std::runtime_error("an odd address was not refused");
    } catch (const Error& e) {
      const char* want = "no kernel for a at an address 2 past a multiple of 16, rows 72 elements apart; wanted: a";
      if (e.code() != Errc::not_supported) throw;
      require(std::string(e.what()).find(want) == std::string::npos ? e.what() : "", "odd address");
    }
    site.run(spec::make_schedule(site.op(), "tma_slot", 2));
    settle(runtime);
    require(site.mismatch(), "after refusals");
  });
  EXPECT_EQ(failure, "");
}

/// The heap holds few of these schedules at once: memory and signal words of those given up are used again.
TEST_F(GpuOps, SchedulesThatTakeTurnsOnASmallHeapStayExact) {
  const std::string failure = on_ranks(
      team_sizes().back(),
      [&](Runtime& runtime, cudaStream_t stream) {
        Channel& channel = runtime.world().channel(StreamRef::cuda(stream));
        for (int turn = 0; turn < 3; ++turn) {
          for (int64_t m : {256, 384, 512}) {
            for (const char* op : {"ag_gemm", "gemm_rs"}) {
              Site site({.op = op, .m = m, .n = 256, .k = 320}, channel);
              for (const char* family : {"serial", "hetero_unfused_1d", "uniform_fused_1d"}) {
                const spec::Schedule schedule = spec::make_schedule(site.op(), family, 2);
                for (int call = 0; call < 3; ++call) {
                  site.out().poison();
                  site.run(schedule);
                  settle(runtime);
                  require(site.mismatch(), base::format("{} {} m {} turn {}", op, family, m, turn));
                }
              }
            }
          }
        }
      },
      size_t{6} << 20);
  EXPECT_EQ(failure, "");
}

TEST_F(GpuOps, FirstCallInCaptureIsRefused) {
  const std::string failure = on_ranks(1, [&](Runtime& runtime, cudaStream_t stream) {
    Channel& channel = runtime.world().channel(StreamRef::cuda(stream));
    Site site({.op = "ag_gemm", .m = 64, .n = 64, .k = 64}, channel);
    site.run(spec::make_schedule(site.op(), "library", 1));
    settle(runtime);
    cuda_ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    Errc code = Errc::ok;
    try {
      site.run(spec::make_schedule(site.op(), "serial", 1));
    } catch (const Error& e) {
      code = e.code();
    }
    cudaGraph_t graph = nullptr;
    (void)cudaStreamEndCapture(stream, &graph);
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
    if (code != Errc::capture) throw std::runtime_error("wanted capture, got " + std::string(errc_name(code)));
  });
  EXPECT_EQ(failure, "");
}

}  // namespace
}  // namespace overlace
