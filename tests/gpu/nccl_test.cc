// Collectives of the nccl engine: exact sums of integers, data that differ by rank and index.
#include <cstdlib>
#include <vector>

#include "overlace/net_engine.h"
#include "src/base/half.h"
#include "src/runtime/clock.h"
#include "src/runtime/engine/nccl/engine.h"
#include "src/runtime/engine/nccl/library.h"
#include "tests/gpu/support/gpu_ranks.h"

namespace overlace::test {
namespace {

constexpr size_t kCount = 4099;  // odd: tails are where bugs live

float value(int rank, size_t i) { return static_cast<float>(rank * 5000 + static_cast<int>(i) + 1); }

struct Buffers {
  Buffers(GpuRank& rank, size_t send_count, size_t recv_count)
      : gpu(rank), send(gpu.device_array<float>(send_count)), recv(gpu.device_array<float>(recv_count)) {
    std::vector<float> host(send_count);
    for (size_t i = 0; i < send_count; ++i) host[i] = value(gpu.rank, i);
    gpu.store(send, host.data(), send_count * sizeof(float));
  }
  std::vector<float> received(size_t count) {
    std::vector<float> host(count);
    gpu.fetch(host.data(), recv, count * sizeof(float));
    return host;
  }
  GpuRank& gpu;
  float *send, *recv;
};

void expect_collectives(GpuRank& gpu) {
  NetEngine* engine = gpu.team.net();
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(engine->name(), "nccl");
  EXPECT_EQ(engine->version().substr(0, 2), "2.");
  EXPECT_TRUE(gpu.runtime.caps(gpu.rank).collectives);
  const StreamRef stream = StreamRef::cuda(gpu.stream);
  const size_t n = static_cast<size_t>(gpu.size), me = static_cast<size_t>(gpu.rank);
  const auto sum = [&](size_t i) {
    float total = 0;
    for (int r = 0; r < gpu.size; ++r) total += value(r, i);
    return total;
  };
  Buffers b(gpu, kCount * n, kCount * n);

  // First a group on a stream without a handle: that of the engine's warm-up, which was a group too, is gone.
  engine->all_to_all(b.send, b.recv, kCount, DType::fp32, StreamRef::cuda(nullptr));
  EXPECT_CUDA(cudaStreamSynchronize(nullptr));

  engine->all_gather(b.send, b.recv, kCount, DType::fp32, stream);
  std::vector<float> got = b.received(kCount * n);
  for (size_t i = 0; i < kCount * n; ++i)
    ASSERT_EQ(got[i], value(static_cast<int>(i / kCount), i % kCount)) << "all_gather element " << i;

  engine->reduce_scatter(b.send, b.recv, kCount, DType::fp32, stream);
  got = b.received(kCount);
  for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(got[i], sum(me * kCount + i)) << "reduce_scatter element " << i;

  engine->all_reduce(b.send, b.recv, kCount, DType::fp32, stream);
  got = b.received(kCount);
  for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(got[i], sum(i)) << "all_reduce element " << i;

  engine->all_to_all(b.send, b.recv, kCount, DType::fp32, stream);
  got = b.received(kCount * n);
  for (size_t i = 0; i < kCount * n; ++i)
    ASSERT_EQ(got[i], value(static_cast<int>(i / kCount), me * kCount + i % kCount)) << "all_to_all element " << i;

  const int root = gpu.size - 1;
  engine->reduce(b.send, b.recv, kCount, DType::fp32, root, stream);
  if (gpu.rank == root) {
    got = b.received(kCount);
    for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(got[i], sum(i)) << "reduce element " << i;
  }
  engine->broadcast(b.send, kCount, DType::fp32, root, stream);
  std::vector<float> sent(kCount);
  gpu.fetch(sent.data(), b.send, kCount * sizeof(float));
  for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(sent[i], value(root, i)) << "broadcast element " << i;
}

void expect_ring(GpuRank& gpu) {
  NetEngine* engine = gpu.team.net();
  ASSERT_NE(engine, nullptr);
  const StreamRef stream = StreamRef::cuda(gpu.stream);
  Buffers b(gpu, kCount, kCount);
  const int to = (gpu.rank + 1) % gpu.size, from = (gpu.rank + gpu.size - 1) % gpu.size;
  engine->group_begin();
  engine->send(b.send, kCount * sizeof(float), to, stream);
  engine->recv(b.recv, kCount * sizeof(float), from, stream);
  engine->group_end();
  const std::vector<float> got = b.received(kCount);
  for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(got[i], value(from, i)) << "element " << i;
}

void expect_bf16_sum(GpuRank& gpu) {
  const StreamRef stream = StreamRef::cuda(gpu.stream);
  std::vector<uint16_t> host(kCount), got(kCount);
  for (size_t i = 0; i < kCount; ++i)
    host[i] = base::float_to_bf16(static_cast<float>((i * 7 + static_cast<size_t>(gpu.rank)) % 9) - 4);
  auto* data = gpu.device_array<uint16_t>(kCount);
  gpu.store(data, host.data(), kCount * 2);
  gpu.team.net()->all_reduce(data, data, kCount, DType::bf16, stream);
  gpu.fetch(got.data(), data, kCount * 2);
  for (size_t i = 0; i < kCount; ++i) {
    float want = 0;  // small integers: exact in bf16
    for (int r = 0; r < gpu.size; ++r) want += static_cast<float>((i * 7 + static_cast<size_t>(r)) % 9) - 4;
    ASSERT_EQ(base::bf16_to_float(got[i]), want) << "element " << i;
  }
}

void expect_refusals(GpuRank& gpu) {
  NetEngine* engine = gpu.team.net();
  auto* data = gpu.device_array<uint8_t>(64);
  const StreamRef stream = StreamRef::cuda(gpu.stream);
  EXPECT_THROW(engine->all_reduce(data, data, 16, DType::e4m3, stream), Unsupported);
  EXPECT_THROW(engine->send(data, 16, gpu.size, stream), InvalidArgument);
  EXPECT_THROW(engine->broadcast(data, 16, DType::u8, -1, stream), InvalidArgument);
  EXPECT_THROW(engine->all_gather(data, data, 1, DType::u8, StreamRef::cpu()), InvalidArgument);
}

class GpuNcclTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    OVERLACE_NEED_GPUS(GetParam());
    if (!runtime::nccl::is_available()) GTEST_SKIP() << "libnccl.so.2 was not found";
    options_.net_engine = "nccl";
  }
  GpuOptions options_;
};

TEST_P(GpuNcclTest, CollectivesAreExact) { run_gpu_threads(GetParam(), expect_collectives, options_); }
TEST_P(GpuNcclTest, SendAndReceiveInARing) { run_gpu_threads(GetParam(), expect_ring, options_); }
TEST_P(GpuNcclTest, SumsOfBf16) { run_gpu_threads(GetParam(), expect_bf16_sum, options_); }
TEST_P(GpuNcclTest, BadArgumentsAreRefused) { run_gpu_threads(GetParam(), expect_refusals, options_); }

TEST_P(GpuNcclTest, AnAbortEndsACollectiveThatAPeerNeverJoins) {
  options_.checks_end = false;
  run_gpu_threads(
      GetParam(),
      [](GpuRank& gpu) {
        if (gpu.size == 1) return gpu.runtime.close();
        auto* data = gpu.device_array<float>(1024);
        gpu.team.barrier();
        if (gpu.rank != 1) {
          try {  // rank 1 may have given up before the call, which then says so
            gpu.team.net()->all_reduce(data, data, 1024, DType::fp32, StreamRef::cuda(gpu.stream));
          } catch (const Error& error) {
            EXPECT_EQ(error.code(), Errc::aborted) << error.what();
          }
        } else {
          gpu.runtime.abort(Errc::aborted, "rank 1 gives up");
        }
        (void)cudaStreamSynchronize(gpu.stream);
        EXPECT_THROW(gpu.runtime.check(), Error);
        gpu.runtime.close();
      },
      options_);
}

/// A graph with two calls, as it lives on in a program: NCCL waits for its end when a communicator is destroyed.
cudaGraphExec_t captured_sum(GpuRank& gpu, float* data) {
  NetEngine* engine = gpu.team.net();
  const StreamRef stream = StreamRef::cuda(gpu.stream);
  engine->all_reduce(data, data, 1, DType::fp32, stream);
  EXPECT_CUDA(cudaStreamSynchronize(gpu.stream));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  EXPECT_CUDA(cudaStreamBeginCapture(gpu.stream, cudaStreamCaptureModeThreadLocal));
  engine->all_reduce(data, data, 1, DType::fp32, stream);
  engine->all_reduce(data, data, 1, DType::fp32, stream);
  EXPECT_CUDA(cudaStreamEndCapture(gpu.stream, &graph));
  EXPECT_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  EXPECT_CUDA(cudaGraphDestroy(graph));
  EXPECT_CUDA(cudaGraphLaunch(exec, gpu.stream));
  EXPECT_CUDA(cudaStreamSynchronize(gpu.stream));
  EXPECT_TRUE(engine->has_captures());
  return exec;
}

TEST_P(GpuNcclTest, CloseDoesNotWaitForGraphsThatAreAlive) {
  options_.checks_end = false;
  run_gpu_threads(
      GetParam(),
      [](GpuRank& gpu) {
        auto* data = gpu.device_array<float>(1);
        cudaGraphExec_t exec = captured_sum(gpu, data);
        const bool is_ended = gpu.size > 1 && gpu.rank == 0;  // the others' are enough to leave all communicators
        if (is_ended) {
          EXPECT_CUDA(cudaGraphExecDestroy(exec));
        }
        EXPECT_EQ(gpu.team.net()->has_captures(), !is_ended);
        const int64_t begin = runtime::now_ns();
        gpu.runtime.close();
        EXPECT_LT(runtime::now_ns() - begin, 5'000'000'000);
        if (!is_ended) {
          EXPECT_CUDA(cudaGraphExecDestroy(exec));
        }
      },
      options_);
}

TEST_P(GpuNcclTest, AnAbortDoesNotWaitForGraphsThatAreAlive) {
  options_.checks_end = false;
  run_gpu_threads(
      GetParam(),
      [](GpuRank& gpu) {
        auto* data = gpu.device_array<float>(1);
        cudaGraphExec_t exec = captured_sum(gpu, data);
        gpu.team.barrier();
        const int64_t begin = runtime::now_ns();
        gpu.runtime.abort(Errc::aborted, "as the test wants");
        EXPECT_THROW(gpu.runtime.close(), Error);
        EXPECT_LT(runtime::now_ns() - begin, 5'000'000'000);
        EXPECT_CUDA(cudaGraphExecDestroy(exec));
      },
      options_);
}

TEST(GpuNcclSubteamTest, ATeamHasACommunicatorOfItsOwn) {
  OVERLACE_NEED_GPUS(4);
  if (!runtime::nccl::is_available()) GTEST_SKIP() << "libnccl.so.2 was not found";
  GpuOptions options;
  options.net_engine = "nccl";
  run_gpu_threads(
      4,
      [](GpuRank& gpu) {
        const int first[] = {0, 2}, second[] = {3, 1};
        Team a = gpu.team.sub(first, {.name = "even", .max_ctas = 4});
        Team b = gpu.team.sub(second, {.name = "odd", .max_ctas = 4});
        Team mine = a ? a : b;
        auto* data = gpu.device_array<float>(2);
        const float host = static_cast<float>(1 << gpu.rank);
        gpu.store(data, &host, sizeof host);
        mine.net()->all_gather(data, data, 1, DType::fp32, StreamRef::cuda(gpu.stream));
        EXPECT_EQ(gpu.read(data), gpu.rank % 2 == 0 ? 1.f : 8.f);
        EXPECT_EQ(gpu.read(data + 1), gpu.rank % 2 == 0 ? 4.f : 2.f);
      },
      options);
}

TEST(GpuNcclMissingTest, RanksThatShareADeviceHaveNoEngine) {
  OVERLACE_NEED_GPUS(1);
  const int n = gpu_count() + 1;
  GpuOptions options;
  options.net_engine = "auto";
  run_gpu_threads(
      n,
      [](GpuRank& gpu) {
        EXPECT_EQ(gpu.team.net(), nullptr);
        EXPECT_FALSE(gpu.runtime.caps(gpu.rank).collectives);
      },
      options);
}

TEST(GpuNcclMissingTest, TheLibraryIsFoundOrTheReasonIsGiven) {
  const base::Result<const runtime::nccl::Library*> library = runtime::nccl::library();
  EXPECT_EQ(library.ok(), runtime::nccl::is_available());
  if (!library.ok()) {
    EXPECT_EQ(library.status().code(), Errc::not_supported);
    EXPECT_NE(library.status().message().find("libnccl.so.2"), std::string::npos) << library.status().message();
    return;
  }
  EXPECT_GE((*library)->version, runtime::nccl::kOldestVersion);
}

INSTANTIATE_TEST_SUITE_P(Ranks, GpuNcclTest, testing::Values(1, 2, 4));

}  // namespace
}  // namespace overlace::test
