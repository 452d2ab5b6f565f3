#include "tests/gpu/support/exact.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "overlace/ops/ag_gemm.h"
#include "overlace/ops/ag_wgrad.h"
#include "overlace/ops/common.h"
#include "overlace/ops/gemm_ar.h"
#include "overlace/ops/gemm_rs.h"
#include "overlace/team.h"
#include "src/base/format.h"
#include "src/spec/operators.h"
#include "tests/gpu/support/gpu_ranks.h"

namespace overlace::test {
namespace {

/// Memory that was given back is kept for the next operands: giving it to the driver would wait for the device.
void keep_pool() {
  int device = 0;
  cudaMemPool_t pool = nullptr;
  uint64_t most = UINT64_MAX;
  EXPECT_CUDA(cudaGetDevice(&device));
  EXPECT_CUDA(cudaDeviceGetDefaultMemPool(&pool, device));
  EXPECT_CUDA(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &most));
}

ExactPod::Op op_of(const std::string& name) {
  if (name == "ag_gemm") return ExactPod::Op::ag_gemm;
  if (name == "gemm_rs") return ExactPod::Op::gemm_rs;
  return name == "gemm_ar" ? ExactPod::Op::gemm_ar : ExactPod::Op::ag_wgrad;
}

ExactPod pod_of(const ExactProblem& p, const std::vector<int64_t>& offsets, int rank, int ranks) {
  const auto r = static_cast<size_t>(rank);
  ExactPod pod{};
  pod.op = op_of(p.op), pod.rank = rank, pod.ranks = ranks;
  pod.m = p.m, pod.n = p.n, pod.k = p.k;
  pod.first = offsets[r], pod.mine = offsets[r + 1] - offsets[r];
  pod.rows = p.op == "gemm_rs" ? pod.mine : p.op == "ag_wgrad" ? p.k : p.m;
  pod.dtype = p.dtype, pod.is_nk = p.layout == spec::BLayout::nk, pod.has_bias = p.bias;
  pod.look_every = p.look_every;
  // Sums have a variance of terms / sparse^2: eight times the deviation of 800 is below 256.
  const double terms = static_cast<double>(p.op == "ag_wgrad" ? p.m : p.op == "ag_gemm" ? p.k : p.k * ranks);
  pod.sparse = static_cast<uint32_t>(std::max(2.0, std::ceil(std::sqrt(terms / 800))));
  return pod;
}

}  // namespace

std::string ExactProblem::text() const {
  std::string rows;
  for (const int64_t offset : offsets) rows += base::format(" {}", offset);
  return base::format("{} {} q {} M {} N {} K {} {} {}{}{}", op, family, degree, m, n, k, dtype_name(dtype),
                      layout == spec::BLayout::nk ? "nk" : "kn", bias ? " bias" : "",
                      rows.empty() ? "" : " rows" + rows);
}

spec::OpSpec op_spec_of(const ExactProblem& p, int ranks) {
  return {.op = p.op,
          .m = p.m,
          .n = p.n,
          .k = p.k,
          .ranks = ranks,
          .dtype = p.dtype,
          .out_dtype = p.dtype,
          .b_layout = p.layout,
          .bias = p.bias,
          .row_offsets = p.offsets};
}

ExactMemory::Bytes ExactMemory::need_of(const ExactProblem& p) {
  const auto element = static_cast<int64_t>(dtype_bytes(p.dtype));
  const bool is_wgrad = p.op == "ag_wgrad";
  return {.a = p.m * p.k * element,
          .b = (is_wgrad ? p.m : p.k) * p.n * element,
          .out = (is_wgrad ? p.k : p.m) * p.n * element,
          .bias = p.n * element};
}

bool ExactMemory::holds(const ExactProblem& problem) const {
  const Bytes need = need_of(problem);
  return need.a <= room_.a && need.b <= room_.b && need.out <= room_.out && need.bias <= room_.bias;
}

ExactMemory::ExactMemory(cudaStream_t stream, const ExactProblem& largest) : stream_(stream) {
  keep_pool();
  const auto allocate = [&](int64_t bytes) {
    void* memory = nullptr;
    EXPECT_CUDA(cudaMallocAsync(&memory, static_cast<size_t>(std::max<int64_t>(bytes, 256)), stream_));
    all_.push_back(memory);
    return memory;
  };
  room_ = need_of(largest);
  a = allocate(room_.a);
  b = allocate(room_.b);
  out = allocate(room_.out);
  bias = allocate(room_.bias);
  round = static_cast<uint64_t*>(allocate(2 * sizeof(uint64_t)));
  wrong = round + 1;
  EXPECT_CUDA(cudaMemsetAsync(round, 0, 2 * sizeof(uint64_t), stream_));
}

ExactMemory::~ExactMemory() {
  for (void* memory : all_) (void)cudaFreeAsync(memory, stream_);
}

ExactSite::ExactSite(Channel& channel, const ExactProblem& problem, std::shared_ptr<ExactMemory> memory)
    : channel_(channel), problem_(problem), memory_(std::move(memory)) {
  const Team& team = channel.team();
  const spec::OpSpec op = op_spec_of(problem, team.size());
  pod_ = pod_of(problem, spec::row_offsets(op), team.rank(), team.size());
  if (memory_ == nullptr) memory_ = std::make_shared<ExactMemory>(stream(), problem);
  EXPECT_TRUE(memory_->holds(problem)) << "the memory is too small for " << problem.text();
  const int64_t depth = problem.op == "ag_wgrad" ? problem.m : problem.k;
  a_ =
      TensorView::contiguous(memory_->a, problem.dtype, {spec::gathers(problem.op) ? pod_.mine : problem.m, problem.k});
  b_ = pod_.is_nk ? TensorView::contiguous(memory_->b, problem.dtype, {problem.n, depth}).transposed()
                  : TensorView::contiguous(memory_->b, problem.dtype, {depth, problem.n});
  out_ = TensorView::contiguous(memory_->out, problem.dtype, {pod_.rows, problem.n});
  if (problem.bias) bias_ = TensorView::contiguous(memory_->bias, problem.dtype, {problem.n});
  schedule_ = spec::make_schedule(op, problem.family, problem.degree);
}

std::string ExactSite::why_not() const {
  return ops::supports(channel_, op_spec_of(problem_, channel_.team().size()), schedule_).reason;
}

void ExactSite::run() { run(a_); }

void ExactSite::run_with_a_wrong_a() {
  TensorView wrong = a_;
  wrong.dtype = DType::i32;
  run(wrong);
}

void ExactSite::run(const TensorView& a) {
  const std::vector<int64_t>& rows = problem_.offsets;
  switch (pod_.op) {
    case ExactPod::Op::ag_gemm:
      return ops::run(channel_, ops::AgGemmArgs{.a_shard = a, .b = b_, .c = out_, .bias = bias_, .row_offsets = rows},
                      schedule_);
    case ExactPod::Op::ag_wgrad:
      return ops::run(channel_, ops::AgWgradArgs{.a_shard = a, .b = b_, .c = out_, .row_offsets = rows}, schedule_);
    case ExactPod::Op::gemm_rs:
      return ops::run(channel_, ops::GemmRsArgs{.a = a, .b = b_, .out = out_, .bias = bias_, .row_offsets = rows},
                      schedule_);
    case ExactPod::Op::gemm_ar:
      return ops::run(channel_, ops::GemmArArgs{.a = a, .b = b_, .out = out_, .bias = bias_}, schedule_);
  }
}

void ExactSite::call() {
  const int64_t elements = pod_.rows * pod_.n;
  EXPECT_CUDA(launch_next_operands(stream(), pod_, memory_->a, memory_->b, memory_->bias, memory_->round));
  if (elements > 0) {
    EXPECT_CUDA(cudaMemsetAsync(memory_->out, 0xff, static_cast<size_t>(elements) * dtype_bytes(pod_.dtype), stream()));
  }
  run();
  EXPECT_CUDA(launch_look(stream(), pod_, memory_->out, memory_->round, memory_->wrong));
}

uint64_t ExactSite::wrong() {
  uint64_t count = 0;
  EXPECT_CUDA(cudaStreamSynchronize(stream()));  // a copy to pageable memory blocks in the driver
  EXPECT_CUDA(cudaMemcpyAsync(&count, memory_->wrong, sizeof count, cudaMemcpyDeviceToHost, stream()));
  EXPECT_CUDA(cudaStreamSynchronize(stream()));
  return count;
}

Replay::Replay(cudaStream_t stream, const std::function<void()>& body) : stream_(stream) {
  EXPECT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  try {
    body();
  } catch (...) {
    (void)cudaStreamEndCapture(stream, &graph_);
    if (graph_ != nullptr) (void)cudaGraphDestroy(graph_);
    (void)cudaGetLastError();
    throw;
  }
  EXPECT_CUDA(cudaStreamEndCapture(stream, &graph_));
  EXPECT_CUDA(cudaGraphInstantiate(&exec_, graph_, 0));
  EXPECT_CUDA(cudaGraphUpload(exec_, stream));  // not at the first launch, when a rank that shares the GPU may wait
  EXPECT_CUDA(cudaStreamSynchronize(stream));
}

Replay::~Replay() {
  if (exec_ != nullptr) (void)cudaGraphExecDestroy(exec_);
  if (graph_ != nullptr) (void)cudaGraphDestroy(graph_);
}

void Replay::launch() { EXPECT_CUDA(cudaGraphLaunch(exec_, stream_)); }

}  // namespace overlace::test
