// Channels that share a GPU: side by side where their SM budgets fit, else in call order.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "src/runtime/backend/cuda_peer/nodes.h"
#include "src/runtime/state.h"
#include "tests/gpu/support/exact.h"
#include "tests/gpu/support/gpu_ranks.h"
#include "tests/gpu/support/objects.h"

namespace overlace::test {
namespace {

namespace cp = runtime::cuda_peer;

/// Two channels of one rank. A call of the first runs until it is released by a third stream.
struct TwoChannels {
  TwoChannels(GpuRank& rank, int budget_first, int budget_second)
      : gpu(rank),
        side(make_stream()),
        helper(make_stream()),
        first(gpu.team.channel(StreamRef::cuda(gpu.stream), {.sm_budget = budget_first})),
        second(gpu.team.channel(StreamRef::cuda(side), {.sm_budget = budget_second})),
        id(first.ids(1, Domain::device, "gate").first),
        code(gpu.device_array<int32_t>(1)) {}
  ~TwoChannels() {
    EXPECT_CUDA(cudaStreamSynchronize(side));  // of no use to its channel any more
    EXPECT_CUDA(cudaStreamDestroy(side));
    EXPECT_CUDA(cudaStreamDestroy(helper));
  }
  static cudaStream_t make_stream() {
    cudaStream_t stream = nullptr;
    EXPECT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
  }
  void begin_gated_call(Channel& channel) {
    EXPECT_EQ(runtime::begin_call(channel, [] { return std::string("gated"); }).message(), "");
    launch_wait(static_cast<cudaStream_t>(channel.stream().cuda_stream), gpu.pod(), gpu.rank, id, 1, code);
    EXPECT_EQ(runtime::end_call(channel).message(), "");
  }
  /// What a call queues: one small node.
  base::Status make_call(Channel& channel) {
    OVERLACE_TRY(runtime::begin_call(channel, [] { return std::string("small"); }));
    OVERLACE_TRY(cp::launch_epoch_end(static_cast<cudaStream_t>(channel.stream().cuda_stream), {}));
    return runtime::end_call(channel);
  }
  void release() {
    cp::SignalList list;
    list.items[0].slot = cp::slot_address(gpu.pod().team, gpu.rank, id, gpu.rank);
    list.count = 1;
    EXPECT_TRUE(cp::launch_signal(helper, list).ok());
    EXPECT_CUDA(cudaStreamSynchronize(helper));
  }

  GpuRank& gpu;
  cudaStream_t side, helper;
  Channel &first, &second;
  uint32_t id;
  int32_t* code;
};

TEST(GpuCoResidencyTest, CallsThatDoNotFitRunInCallOrder) {
  OVERLACE_NEED_GPUS(1);
  run_gpu_threads(1, [](GpuRank& gpu) {
    const int room = gpu.runtime.state().backend->sm_room();
    EXPECT_GT(room, 1);
    TwoChannels two(gpu, 0, 1);
    two.begin_gated_call(two.first);
    EXPECT_EQ(two.make_call(two.second).message(), "");
    EXPECT_EQ(gpu.runtime.stats().serialised_calls, 1u);
    EXPECT_EQ(cudaStreamQuery(two.side), cudaErrorNotReady) << "the second call did not wait for the first";
    two.release();
    EXPECT_CUDA(cudaStreamSynchronize(two.side));
    EXPECT_EQ(gpu.read(two.code), 0);
    // Nothing runs any more: no need to wait.
    EXPECT_EQ(two.make_call(two.second).message(), "");
    EXPECT_EQ(gpu.runtime.stats().serialised_calls, 1u);
    EXPECT_EQ(gpu.runtime.stats().calls, 3u);
  });
}

TEST(GpuCoResidencyTest, CallsThatFitRunSideBySide) {
  OVERLACE_NEED_GPUS(1);
  run_gpu_threads(1, [](GpuRank& gpu) {
    const int room = gpu.runtime.state().backend->sm_room();
    TwoChannels two(gpu, room - 8, 8);
    two.begin_gated_call(two.first);
    EXPECT_EQ(two.make_call(two.second).message(), "");
    EXPECT_CUDA(cudaStreamSynchronize(two.side));  // while the first still runs
    EXPECT_EQ(cudaStreamQuery(gpu.stream), cudaErrorNotReady);
    two.release();
    EXPECT_EQ(gpu.read(two.code), 0);
    EXPECT_EQ(gpu.runtime.stats().serialised_calls, 0u);
  });
}

TEST(GpuCoResidencyTest, ACapturedCallThatWouldHaveToWaitIsRefused) {
  OVERLACE_NEED_GPUS(1);
  run_gpu_threads(1, [](GpuRank& gpu) {
    const int room = gpu.runtime.state().backend->sm_room();
    TwoChannels two(gpu, room, room);
    two.begin_gated_call(two.first);
    cudaGraph_t graph = nullptr;
    EXPECT_CUDA(cudaStreamBeginCapture(two.side, cudaStreamCaptureModeGlobal));
    const base::Status status = two.make_call(two.second);
    EXPECT_EQ(status.code(), Errc::co_residency);
    EXPECT_NE(status.message().find(base::format("with {} SMs is captured while calls of channel", room)),
              std::string::npos)
        << status.message();
    EXPECT_NE(status.message().find(base::format("room for {}", room)), std::string::npos) << status.message();
    EXPECT_CUDA(cudaStreamEndCapture(two.side, &graph));  // the refusal did not end it
    size_t nodes = 1;
    EXPECT_CUDA(cudaGraphGetNodes(graph, nullptr, &nodes));
    EXPECT_EQ(nodes, 0u) << "nothing is captured";
    EXPECT_CUDA(cudaGraphDestroy(graph));
    two.release();
    gpu.wait();
    // With nothing in the way it is captured, and runs.
    EXPECT_CUDA(cudaStreamBeginCapture(two.side, cudaStreamCaptureModeGlobal));
    EXPECT_EQ(two.make_call(two.second).message(), "");
    EXPECT_CUDA(cudaStreamEndCapture(two.side, &graph));
    cudaGraphExec_t executable = nullptr;
    EXPECT_CUDA(cudaGraphInstantiate(&executable, graph, 0));
    EXPECT_CUDA(cudaGraphLaunch(executable, two.side));
    EXPECT_CUDA(cudaStreamSynchronize(two.side));
    EXPECT_CUDA(cudaGraphExecDestroy(executable));
    EXPECT_CUDA(cudaGraphDestroy(graph));
  });
}

TEST(GpuCoResidencyTest, AChannelOnASecondStreamKeepsItsOrder) {
  OVERLACE_NEED_GPUS(1);
  run_gpu_threads(1, [](GpuRank& gpu) {
    TwoChannels two(gpu, 0, 0);
    two.begin_gated_call(two.first);
    cudaStream_t moved = TwoChannels::make_stream();
    two.first.use(StreamRef::cuda(moved));
    EXPECT_EQ(two.make_call(two.first).message(), "");
    EXPECT_EQ(gpu.runtime.stats().moved_calls, 1u);
    EXPECT_EQ(cudaStreamQuery(moved), cudaErrorNotReady) << "the second stream overtook the first";
    two.release();
    EXPECT_CUDA(cudaStreamSynchronize(moved));
    EXPECT_EQ(two.make_call(two.first).message(), "");
    EXPECT_EQ(gpu.runtime.stats().moved_calls, 1u);
    two.first.use(StreamRef::cuda(gpu.stream));
    Errc caught = Errc::ok;
    try {
      two.first.use(StreamRef::cpu());
    } catch (const Error& error) {
      caught = error.code();
    }
    EXPECT_EQ(caught, Errc::invalid_argument);
    EXPECT_EQ(gpu.read(two.code), 0);
    EXPECT_CUDA(cudaStreamDestroy(moved));
  });
}

TEST(GpuCoResidencyTest, BudgetsThatDoNotFitShowBothNumbers) {
  OVERLACE_NEED_GPUS(1);
  run_gpu_threads(2, [](GpuRank& gpu) {
    const int room = gpu.runtime.state().backend->sm_room();
    std::string text;
    try {
      (void)gpu.team.channel(StreamRef::cuda(gpu.stream), {.sm_budget = room + 1});
    } catch (const Unsupported& error) {
      EXPECT_EQ(error.code(), Errc::co_residency);
      text = error.what();
    }
    EXPECT_NE(text.find(base::format("asks for {} SMs, there is room for {}", room + 1, room)), std::string::npos)
        << text;
  });
}

/// CTAs of the largest kernel that `call` queues on `stream`.
unsigned largest_grid(cudaStream_t stream, const std::function<void()>& call) {
  EXPECT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  call();
  cudaGraph_t graph = nullptr;
  EXPECT_CUDA(cudaStreamEndCapture(stream, &graph));
  size_t count = 0;
  EXPECT_CUDA(cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  EXPECT_CUDA(cudaGraphGetNodes(graph, nodes.data(), &count));
  unsigned most = 0;
  for (const cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type{};
    EXPECT_CUDA(cudaGraphNodeGetType(node, &type));
    if (type != cudaGraphNodeTypeKernel) continue;
    cudaKernelNodeParams params{};
    EXPECT_CUDA(cudaGraphKernelNodeGetParams(node, &params));
    if (params.sharedMemBytes > 64 << 10) most = std::max(most, params.gridDim.x);
  }
  EXPECT_CUDA(cudaGraphDestroy(graph));
  return most;
}

TEST(GpuCoResidencyTest, ALimitOfACallIsThatOfItsFusedKernel) {
  OVERLACE_NEED_GPUS(1);
  run_gpu_threads(2, [](GpuRank& gpu) {
    ExactSite site(gpu.channel, {.op = "gemm_rs", .family = "tma_slot", .degree = 2, .m = 4096, .n = 2048, .k = 256});
    site.call();
    const auto all = static_cast<unsigned>(gpu.runtime.state().backend->sm_room());
    const auto grid = [&] { return largest_grid(gpu.stream, [&] { site.run(); }); };
    EXPECT_EQ(grid(), all / 2 * 2);
    EXPECT_EQ(gpu.channel.limit_sms(11), 0);
    EXPECT_EQ(grid(), 10u);
    for (int i = 0; i < 3; ++i) site.call();
    EXPECT_EQ(gpu.channel.limit_sms(1), 11);
    EXPECT_EQ(grid(), 2u) << "a cluster is the least";
    site.call();
    EXPECT_EQ(gpu.channel.limit_sms(0), 1);
    EXPECT_EQ(grid(), all / 2 * 2);
    site.call();
    EXPECT_EQ(site.wrong(), 0);
    gpu.team.barrier();
  });
}

}  // namespace
}  // namespace overlace::test
