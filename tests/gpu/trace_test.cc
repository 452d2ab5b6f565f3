// Timelines of calls on GPUs: the spans and arrows that CPU ranks give, on one clock.
#include "src/base/trace.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "overlace/ops/ag_gemm.h"
#include "src/exec/program.h"
#include "src/exec/run.h"
#include "src/model/stack.h"
#include "tests/gpu/support/gpu_ranks.h"

namespace overlace::test {
namespace {

/// ag_gemm on zeroed memory; what it computes is tested elsewhere.
struct Gather {
  explicit Gather(GpuRank& gpu) {
    spec::OpSpec op;
    op.op = "ag_gemm";
    op.m = 2048, op.n = 512, op.k = 1024;
    op.ranks = gpu.size;
    op.dtype = op.out_dtype = DType::bf16;
    schedule = spec::make_schedule(op, "hetero_fused_1d", 2);
    const int64_t rows = op.m / gpu.size;
    args.a_shard = matrix(gpu, rows, op.k);
    args.b = matrix(gpu, op.n, op.k).transposed();
    args.c = matrix(gpu, op.m, op.n);
  }
  static TensorView matrix(GpuRank& gpu, int64_t rows, int64_t cols) {
    return TensorView::contiguous(gpu.device_array<uint16_t>(static_cast<size_t>(rows * cols)), DType::bf16,
                                  {rows, cols});
  }
  ops::AgGemmArgs args;
  spec::Schedule schedule;
};

/// All ranks' traces in one, its arrows joined.
class Merged {
 public:
  void add(base::Trace trace) {
    const std::lock_guard lock(mutex_);
    trace_.merge(std::move(trace));
  }
  const base::Trace& joined() {
    exec::join_arrows(trace_);
    return trace_;
  }

 private:
  std::mutex mutex_;
  base::Trace trace_;
};

int64_t count_of(const base::Trace& trace, int rank, const std::string& lane, const std::string& name,
                 const std::string& category) {
  return std::count_if(trace.spans.begin(), trace.spans.end(), [&](const base::Span& s) {
    return s.rank == rank && s.lane == lane && s.name == name && s.category == category;
  });
}

TEST(GpuTrace, EveryInstanceWaitAndArrowOfBothRanksIsThere) {
  OVERLACE_NEED_GPUS(2);
  Merged merged;
  run_gpu_threads(2, [&](GpuRank& gpu) {
    Gather gather(gpu);
    ops::run(gpu.channel, gather.args, gather.schedule);
    base::Trace unused;
    exec::set_trace(gpu.channel, &unused);
    exec::set_trace_label(gpu.channel, "qkv");
    ops::run(gpu.channel, gather.args, gather.schedule);
    exec::set_trace(gpu.channel, nullptr);
    ops::run(gpu.channel, gather.args, gather.schedule);  // not traced
    auto recorded = exec::collect_trace(gpu.channel);
    ASSERT_TRUE(recorded.ok()) << recorded.status().message();
    EXPECT_TRUE(unused.spans.empty());
    EXPECT_TRUE(exec::collect_trace(gpu.channel).value().spans.empty());
    merged.add(std::move(*recorded));
  });
  const base::Trace& trace = merged.joined();
  for (const int rank : {0, 1}) {
    EXPECT_EQ(count_of(trace, rank, "ce 0", "qkv push[s=0,p=1]", "copy"), 1) << rank;
    EXPECT_EQ(count_of(trace, rank, "ce 0", "qkv push[s=1,p=1]", "copy"), 1) << rank;
    EXPECT_EQ(count_of(trace, rank, "sm 0", "qkv gemm_own", "gemm"), 1) << rank;
    EXPECT_EQ(count_of(trace, rank, "sm 0", "qkv gemm_remote[s=0]", "gemm"), 1) << rank;
    EXPECT_EQ(count_of(trace, rank, "sm 0", "qkv gemm_remote[s=1]", "gemm"), 1) << rank;
    EXPECT_EQ(count_of(trace, rank, "sm 0", "qkv wait credit[0]", "wait"), 1) << rank;
    EXPECT_EQ(count_of(trace, rank, "sm 0", "qkv wait arrived[0]", "wait"), 1) << rank;
    EXPECT_EQ(count_of(trace, rank, "sm 0", "qkv wait arrived[1]", "wait"), 1) << rank;
  }
  EXPECT_EQ(trace.spans.size(), 16u);
  for (const base::Span& s : trace.spans) {
    EXPECT_LE(s.begin_ns, s.end_ns) << s.name;
    if (s.category == "copy") {
      EXPECT_EQ(s.bytes, 512 * 1024 * 2) << s.name;
      EXPECT_GT(s.end_ns - s.begin_ns, 1000) << s.name;  // 1 MiB at less than 1 TB/s
    }
    if (s.category == "gemm") {
      EXPECT_GT(s.flops, 0) << s.name;
      EXPECT_GT(s.end_ns, s.begin_ns) << s.name;
    }
  }
  ASSERT_EQ(trace.arrows.size(), 4u);
  for (const base::Arrow& a : trace.arrows) {
    EXPECT_NE(a.from_rank, a.to_rank);
    EXPECT_LE(a.from_ns, a.to_ns);
    EXPECT_TRUE(std::any_of(trace.spans.begin(), trace.spans.end(), [&](const base::Span& s) {
      return s.rank == a.from_rank && s.lane == a.from_lane && s.end_ns == a.from_ns && s.category == "copy";
    })) << a.name;
  }
}

TEST(GpuTrace, SpansOfOneLaneDoNotOverlapAndLieInTheHostsTime) {
  OVERLACE_NEED_GPUS(2);
  Merged merged;
  run_gpu_threads(2, [&](GpuRank& gpu) {
    Gather gather(gpu);
    ops::run(gpu.channel, gather.args, gather.schedule);
    gpu.wait();
    base::Trace unused;
    exec::set_trace(gpu.channel, &unused);
    for (int call = 0; call < 20; ++call) ops::run(gpu.channel, gather.args, gather.schedule);
    merged.add(exec::collect_trace(gpu.channel).value());
    exec::set_trace(gpu.channel, nullptr);
  });
  const base::Trace& trace = merged.joined();
  EXPECT_EQ(trace.arrows.size(), 20u * 4);
  constexpr int64_t kTick = 1000;  // of the device's clock
  for (const int rank : {0, 1}) {
    for (const char* lane : {"sm 0", "ce 0"}) {
      std::vector<const base::Span*> spans;
      for (const base::Span& s : trace.spans)
        if (s.rank == rank && s.lane == lane) spans.push_back(&s);
      std::sort(spans.begin(), spans.end(), [](const auto* a, const auto* b) { return a->begin_ns < b->begin_ns; });
      ASSERT_GE(spans.size(), 40u);
      for (size_t i = 1; i < spans.size(); ++i)
        EXPECT_GE(spans[i]->begin_ns + kTick, spans[i - 1]->end_ns) << spans[i - 1]->name << " and " << spans[i]->name;
    }
  }
}

TEST(GpuTrace, CapturedCallsAreNotTraced) {
  OVERLACE_NEED_GPUS(1);
  run_gpu_threads(1, [&](GpuRank& gpu) {
    Gather gather(gpu);
    ops::run(gpu.channel, gather.args, gather.schedule);
    gpu.wait();
    base::Trace unused;
    exec::set_trace(gpu.channel, &unused);
    EXPECT_CUDA(cudaStreamBeginCapture(gpu.stream, cudaStreamCaptureModeThreadLocal));
    ops::run(gpu.channel, gather.args, gather.schedule);
    cudaGraph_t graph = nullptr;
    EXPECT_CUDA(cudaStreamEndCapture(gpu.stream, &graph));
    EXPECT_CUDA(cudaGraphDestroy(graph));
    EXPECT_TRUE(exec::collect_trace(gpu.channel).value().spans.empty());
    ops::run(gpu.channel, gather.args, gather.schedule);
    EXPECT_EQ(exec::collect_trace(gpu.channel).value().spans.size(), 1u);  // one rank: the plain GEMM
    exec::set_trace(gpu.channel, nullptr);
  });
}

TEST(GpuTrace, LayersShowNormsAndAttentionBetweenTheSites) {
  OVERLACE_NEED_GPUS(2);
  const auto config = model::parse_config(R"({"model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
      "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64})",
                                          "test");
  ASSERT_TRUE(config.ok()) << config.status().message();
  model::Problem problem;
  problem.tokens = problem.sequence_length = 128;
  problem.dtype = DType::bf16;
  model::SiteSchedules schedules;
  const std::vector<model::Site> sites = model::sites(*config, problem, 2).value();
  for (const model::Site& site : sites) schedules.emplace(site.name, spec::make_schedule(site.op, "hetero_fused_1d"));
  run_gpu_threads(2, [&](GpuRank& gpu) {
    auto stack = model::Stack::create(*config, problem, gpu.channel);
    ASSERT_TRUE(stack.ok()) << stack.status().message();
    EXPECT_TRUE((*stack)->run_layers(schedules, 1).ok());
    base::Trace unused;
    exec::set_trace(gpu.channel, &unused);
    EXPECT_TRUE((*stack)->run_layers(schedules, 1).ok());
    const base::Trace trace = exec::collect_trace(gpu.channel).value();
    exec::set_trace(gpu.channel, nullptr);
    EXPECT_TRUE((*stack)->synchronize().ok());
    const auto count = [&](const char* name, const char* category) {
      return count_of(trace, gpu.rank, "sm 0", name, category);
    };
    EXPECT_EQ(count("copy input", "other"), 1);
    EXPECT_EQ(count("add, norm", "other"), 3);
    EXPECT_EQ(count("rope", "other"), 1);
    EXPECT_EQ(count("attention", "other"), 1);
    EXPECT_EQ(count("activation", "other"), 1);
    for (const model::Site& site : sites) EXPECT_EQ(count((site.name + " gemm_own").c_str(), "gemm"), 1) << site.name;
  });
}

}  // namespace
}  // namespace overlace::test
