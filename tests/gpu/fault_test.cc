// A GPU rank dies, leaves, stops or fails in open or beside a call, with copies, kernels, stream waits and NCCL in
// flight: what the others see, how soon. Ranks are processes; this one stays without a CUDA context.
#include <cuda_runtime_api.h>

#include <string>
#include <tuple>

#include "overlace/ops/ag_gemm.h"
#include "overlace/ops/gemm_ar.h"
#include "overlace/ops/gemm_rs.h"
#include "src/runtime/phases.h"
#include "tests/gpu/support/gpu_ranks.h"
#include "tests/ranks/support/faults.h"

namespace overlace::test {
namespace {

using runtime::Phase;

constexpr int kCulprit = 1;
constexpr int64_t kStopTimeoutMs = 6000;  // of open too, in which CUDA and NCCL start
/// What a survivor takes on top to abort NCCL and to free its GPU's memory before it ends: 0.9 to 1.6 s on two H200.
constexpr double kClosingSeconds = 2;

int ranks() { return gpu_count() >= 4 ? 4 : 2; }

GpuOptions options_for(Fault fault, const char* net_engine) {
  GpuOptions options;
  if (fault == Fault::stop) options.timeout_ms = kStopTimeoutMs;
  options.net_engine = net_engine;
  return options;
}

/// Contexts take up to seconds, differently long, and longer beside other programs; a deadline begins when a rank
/// begins to wait.
void make_contexts(Bootstrap& bootstrap) {
  EXPECT_CUDA(cudaSetDevice(bootstrap.rank() % gpu_count()));
  EXPECT_CUDA(cudaFree(nullptr));
  bootstrap.barrier(40000);
}

void expect_told_in_time(std::vector<Survivor> survivors, Fault fault, const std::vector<Errc>& codes,
                         const std::string& where) {
  // NOTE: the CUDA driver keeps descriptors, threads and maps until a process ends, so they say nothing here.
  for (Survivor& s : survivors) s.left.clear();
  expect_told(survivors, kCulprit, allowed_seconds(fault, kStopTimeoutMs) + kClosingSeconds, codes, where);
}

// ---- open ----

struct Place {
  Phase phase;
  const char* name;
};

class GpuFaultOpenTest : public testing::TestWithParam<std::tuple<Place, Fault>> {};

TEST_P(GpuFaultOpenTest, TheOthersAreTold) {
  OVERLACE_NEED_GPUS(2);
  const auto [place, fault] = GetParam();
  const auto body = [phase = place.phase, how = fault](std::unique_ptr<Bootstrap> bootstrap,
                                                       const std::function<void()>& happen) {
    runtime::set_phase_hook([&](Phase now, int rank) {
      if (now == phase && rank == kCulprit) happen();
    });
    make_contexts(*bootstrap);
    Runtime runtime = Runtime::open(*bootstrap, runtime_options(options_for(how, "auto")));
    runtime.world().barrier();
    runtime.world().barrier();
    runtime.synchronize();
  };
  expect_told_in_time(run_with_fault(ranks(), kCulprit, fault, body), fault,
                      {Errc::bootstrap, Errc::peer_lost, Errc::timeout, Errc::aborted},
                      std::string(place.name) + " " + fault_name(fault));
}

INSTANTIATE_TEST_SUITE_P(Phases, GpuFaultOpenTest,
                         testing::Combine(testing::Values(Place{Phase::backend, "backend"}, Place{Phase::heap, "heap"},
                                                          Place{Phase::descriptors, "descriptors"},
                                                          Place{Phase::team, "team"}, Place{Phase::barrier, "barrier"},
                                                          Place{Phase::open, "open"}),
                                          testing::Values(Fault::kill, Fault::exit, Fault::stop, Fault::fail)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param).name) + "_" + fault_name(std::get<1>(test.param));
                         });

// ---- calls ----

/// before: the others queue a call that the culprit does not. queued: it goes while its own call is in flight.
enum class When { before, queued };

struct Op {
  const char *op, *family;
  int degree;
  int64_t rows = 2048;
  /// Copies and kernels ask no engine for anything; opening NCCL is most of what such a case would take.
  const char* net_engine() const { return std::string(family) == "library" ? "auto" : "none"; }
};

class GpuFaultCallTest : public testing::TestWithParam<std::tuple<Op, When, Fault>> {};

/// One rank's call; what it computes does not matter.
class Call {
 public:
  Call(Runtime& runtime, const Op& op) : op_(op.op) {
    EXPECT_CUDA(cudaSetDevice(runtime.device()));
    EXPECT_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    channel_ = &runtime.world().channel(StreamRef::cuda(stream_));
    spec::OpSpec spec;
    spec.op = op_;
    const int64_t rows = op.rows;
    spec.m = rows;
    spec.n = spec.k = kCols;
    spec.ranks = runtime.world().size();
    const int64_t own = rows / spec.ranks;
    a_ = zeros(op_ == "ag_gemm" ? own : rows);
    b_ = zeros(kCols);
    out_ = zeros(op_ == "gemm_rs" ? own : rows);
    schedule_ = spec::make_schedule(spec, op.family, op.degree);
  }

  void run() {
    if (op_ == "ag_gemm") {
      ops::run(*channel_, ops::AgGemmArgs{.a_shard = a_, .b = b_.transposed(), .c = out_}, schedule_);
    } else if (op_ == "gemm_rs") {
      ops::run(*channel_, ops::GemmRsArgs{.a = a_, .b = b_.transposed(), .out = out_}, schedule_);
    } else {
      ops::run(*channel_, ops::GemmArArgs{.a = a_, .b = b_.transposed(), .out = out_}, schedule_);
    }
  }

 private:
  static constexpr int64_t kCols = 1024;
  static TensorView zeros(int64_t rows) {
    void* memory = nullptr;
    const auto bytes = static_cast<size_t>(rows * kCols * 2);
    EXPECT_CUDA(cudaMalloc(&memory, bytes));
    EXPECT_CUDA(cudaMemset(memory, 0, bytes));
    return TensorView::contiguous(memory, DType::bf16, {rows, kCols});
  }
  std::string op_;
  cudaStream_t stream_ = nullptr;
  Channel* channel_ = nullptr;
  TensorView a_, b_, out_;
  spec::Schedule schedule_;
};

TEST_P(GpuFaultCallTest, TheOthersAreTold) {
  OVERLACE_NEED_GPUS(2);
  const auto [op, when, fault] = GetParam();
  const auto body = [which = op, where = when, how = fault](std::unique_ptr<Bootstrap> bootstrap,
                                                            const std::function<void()>& happen) {
    make_contexts(*bootstrap);
    Runtime runtime = Runtime::open(*bootstrap, runtime_options(options_for(how, which.net_engine())));
    Call call(runtime, which);
    const auto fail_here = [&] {
      if (how == Fault::fail) runtime.abort(Errc::io, kFailure);
      happen();
    };
    for (int i = 0; i < 1000; ++i) {
      const bool is_time = i == 3 && runtime.world().rank() == kCulprit;
      if (is_time && where == When::before) fail_here();
      call.run();
      if (is_time && where == When::queued) fail_here();
      runtime.synchronize();
    }
  };
  const std::vector<Errc> codes = fault == Fault::stop   ? std::vector{Errc::timeout, Errc::aborted}
                                  : fault == Fault::fail ? std::vector{Errc::aborted}
                                                         : std::vector{Errc::peer_lost, Errc::aborted};
  const std::string name = std::string(op.op) + " " + op.family + " " + (when == When::before ? "before" : "queued") +
                           " " + fault_name(fault);
  const std::vector<Survivor> survivors = run_with_fault(ranks(), kCulprit, fault, body);
  expect_told_in_time(survivors, fault, codes, name);
  for (const Survivor& s : survivors) {
    const char* part = fault == Fault::fail ? kFailure : fault == Fault::stop ? "timeout" : "rank 1";
    EXPECT_NE(s.text.find(part), std::string::npos) << name << ": " << s.text;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Calls, GpuFaultCallTest,
    testing::Combine(testing::Values(Op{"ag_gemm", "hetero_unfused_1d", 1}, Op{"gemm_rs", "hetero_fused_1d", 2},
                                     Op{"gemm_ar", "library", 1}, Op{"gemm_ar", "tma_slot", 2},
                                     Op{"gemm_ar", "one_shot", 1, 64}, Op{"gemm_rs", "one_shot", 1, 64},
                                     Op{"ag_gemm", "one_shot", 1, 64}),
                     testing::Values(When::before, When::queued),
                     testing::Values(Fault::kill, Fault::exit, Fault::stop, Fault::fail)),
    [](const auto& test) {
      const Op& op = std::get<0>(test.param);
      return std::string(op.op) + "_" + op.family +
             (std::get<1>(test.param) == When::before ? "_before_" : "_queued_") + fault_name(std::get<2>(test.param));
    });

}  // namespace
}  // namespace overlace::test
