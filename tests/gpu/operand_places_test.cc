// Operands in host memory, pinned or not, and on another GPU are refused with both places; managed memory is taken.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "overlace/ops/gemm_ar.h"
#include "tests/gpu/support/exact.h"
#include "tests/gpu/support/gpu_ranks.h"

namespace overlace::test {
namespace {

constexpr int64_t kM = 64, kN = 128, kK = 64;

TensorView matrix(void* memory, int64_t rows, int64_t columns) {
  return TensorView::contiguous(memory, DType::bf16, {rows, columns});
}

std::string thrown(Channel& channel, const ops::GemmArArgs& args, const spec::Schedule& schedule) {
  try {
    ops::run(channel, args, schedule);
  } catch (const InvalidArgument& e) {
    return e.what();
  }
  return "ok";
}

/// Calls with B there, at each of two calls: the first asks where it is, and a refusal is not kept.
void expect_refused(GpuRank& r, const ops::GemmArArgs& good, void* there, const std::string& place) {
  const spec::Schedule schedule = spec::make_schedule(ops::op_spec(r.channel, good), "library");
  ops::GemmArArgs args = good;
  args.b = matrix(there, kK, kN);
  const std::string device = std::to_string(r.runtime.device());
  for (int call = 0; call < 2; ++call) {
    EXPECT_EQ(thrown(r.channel, args, schedule),
              "gemm_ar: b is " + place + ", wanted GPU " + device + " of this context; rank " + std::to_string(r.rank));
  }
}

ops::GemmArArgs good_call(GpuRank& r) {
  return {.a = matrix(r.device_array<uint16_t>(kM * kK), kM, kK),
          .b = matrix(r.device_array<uint16_t>(kK * kN), kK, kN),
          .out = matrix(r.device_array<uint16_t>(kM * kN), kM, kN)};
}

TEST(GpuOperandPlaces, HostMemoryIsRefusedAndManagedMemoryTaken) {
  OVERLACE_NEED_GPUS(1);
  run_gpu_threads(1, [](GpuRank& r) {
    const ops::GemmArArgs good = good_call(r);
    const spec::Schedule schedule = spec::make_schedule(ops::op_spec(r.channel, good), "library");
    std::vector<uint16_t> host(kK * kN);
    expect_refused(r, good, host.data(), "in host memory");
    expect_refused(r, good, r.pinned_array<uint16_t>(kK * kN), "in host memory");
    EXPECT_EQ(thrown(r.channel, good, schedule), "ok");
    ops::GemmArArgs managed = good;
    void* memory = nullptr;
    ASSERT_EQ(cudaMallocManaged(&memory, kK * kN * 2), cudaSuccess);
    managed.b = matrix(memory, kK, kN);
    EXPECT_EQ(thrown(r.channel, managed, schedule), "ok");
    r.wait();
    EXPECT_CUDA(cudaFree(memory));
  });
}

TEST(GpuOperandPlaces, MemoryOfAnotherGpuIsRefusedAlsoWhereAllOperandsLieThere) {
  OVERLACE_NEED_GPUS(2);
  run_gpu_threads(1, [](GpuRank& r) {
    const ops::GemmArArgs good = good_call(r);
    const int other = r.runtime.device() == 0 ? 1 : 0;
    void* memory = nullptr;
    EXPECT_CUDA(cudaSetDevice(other));
    ASSERT_EQ(cudaMalloc(&memory, (kM * kK + kK * kN + kM * kN) * 2), cudaSuccess);
    EXPECT_CUDA(cudaSetDevice(r.runtime.device()));
    expect_refused(r, good, memory, "on GPU " + std::to_string(other));
    auto* const words = static_cast<uint16_t*>(memory);
    const ops::GemmArArgs all_there = {.a = matrix(words, kM, kK),
                                       .b = matrix(words + kM * kK, kK, kN),
                                       .out = matrix(words + kM * kK + kK * kN, kM, kN)};
    const spec::Schedule schedule = spec::make_schedule(ops::op_spec(r.channel, good), "library");
    EXPECT_NE(thrown(r.channel, all_there, schedule).find("a is on GPU " + std::to_string(other)), std::string::npos);
    EXPECT_EQ(thrown(r.channel, good, schedule), "ok");
    r.wait();
    EXPECT_CUDA(cudaFree(memory));
  });
}

TEST(GpuOperandPlaces, AreFoundWhileTheStreamIsCaptured) {
  OVERLACE_NEED_GPUS(1);
  run_gpu_threads(1, [](GpuRank& r) {
    const ops::GemmArArgs good = good_call(r), fresh = good_call(r);
    const spec::Schedule schedule = spec::make_schedule(ops::op_spec(r.channel, good), "library");
    ASSERT_EQ(thrown(r.channel, good, schedule), "ok");
    std::vector<uint16_t> host(kK * kN);
    EXPECT_CUDA(cudaStreamBeginCapture(r.stream, cudaStreamCaptureModeGlobal));
    EXPECT_EQ(thrown(r.channel, fresh, schedule), "ok");
    expect_refused(r, good, host.data(), "in host memory");
    cudaGraph_t graph = nullptr;
    EXPECT_CUDA(cudaStreamEndCapture(r.stream, &graph));
    EXPECT_CUDA(cudaGraphDestroy(graph));
  });
}

/// A fused kernel keeps what it made of operands that it has seen.
TEST(GpuOperandPlaces, FusedCallsTakeTurnsWithOperandsOfTheirOwn) {
  OVERLACE_NEED_GPUS(1);
  run_gpu_threads(2, [](GpuRank& r) {
    const std::vector<ExactProblem> problems = {
        {.op = "ag_gemm", .family = "k_slab", .degree = 2, .m = 512, .n = 256, .k = 512},
        {.op = "gemm_rs", .family = "tma_slot", .degree = 4, .m = 512, .n = 256, .k = 256},
        {.op = "gemm_ar", .family = "tma_slot", .degree = 2, .m = 512, .n = 256, .k = 256},
        {.op = "ag_gemm", .family = "one_shot", .m = 32, .n = 256, .k = 256},
        {.op = "gemm_rs", .family = "one_shot", .m = 32, .n = 256, .k = 256},
        {.op = "gemm_ar", .family = "one_shot", .m = 32, .n = 256, .k = 256}};
    for (ExactProblem problem : problems) {
      for (const bool bias : {false, true}) {
        problem.bias = bias;
        SCOPED_TRACE(problem.text());
        std::vector<std::unique_ptr<ExactSite>> sites;
        for (int i = 0; i < 3; ++i) sites.push_back(std::make_unique<ExactSite>(r.channel, problem));
        if (const std::string why = sites[0]->why_not(); !why.empty()) {
          ADD_FAILURE() << why;
          continue;
        }
        for (const int i : {0, 1, 0, 2, 1, 0, 0, 2}) sites[static_cast<size_t>(i)]->call();
        for (const auto& site : sites) EXPECT_EQ(site->wrong(), 0);
        r.team.barrier();
      }
    }
  });
}

}  // namespace
}  // namespace overlace::test
