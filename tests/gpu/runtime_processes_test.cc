// Ranks as processes, one per GPU, and the IPC heap. This process stays without a CUDA context, so that it can fork.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "overlace/net_engine.h"
#include "tests/gpu/support/exchanges.h"
#include "tests/gpu/support/kernels.h"

namespace overlace::test {
namespace {

using Clock = std::chrono::steady_clock;

std::string error_text(const std::function<void()>& call, Errc* code) {
  try {
    call();
  } catch (const Error& error) {
    *code = error.code();
    return error.what();
  }
  *code = Errc::ok;
  return "";
}

struct HeapCase {
  int ranks;
  const char* heap;
};
void PrintTo(const HeapCase& one, std::ostream* out) { *out << one.heap << " " << one.ranks; }

class GpuProcessesTest : public testing::TestWithParam<HeapCase> {
 protected:
  void SetUp() override { OVERLACE_NEED_GPUS(GetParam().ranks); }
  void run(const std::function<void(GpuRank&)>& body, const GpuOptions& options = {}) {
    const std::string heap = GetParam().heap;
    run_gpu_processes(
        GetParam().ranks, {"OVERLACE_HEAP=" + heap},
        [&](GpuRank& gpu) {
          EXPECT_EQ(std::string(gpu.state().heap_kind()), heap);
          body(gpu);
        },
        options);
  }
};

TEST_P(GpuProcessesTest, ExchangesPatternsBetweenAllPairs) { run(exchange_patterns); }
TEST_P(GpuProcessesTest, StreamPutsAndSignalNodes) { run(exchange_stream_puts); }
TEST_P(GpuProcessesTest, ReplaysAGraphThenRunsEagerly) { run(replay_graph); }

TEST_P(GpuProcessesTest, Barriers) {
  run([](GpuRank& gpu) {
    const SignalIds ids = gpu.channel.ids(1, Domain::device, "barrier");
    auto* code = gpu.device_array<int32_t>(1);
    launch_rounds(gpu.stream, gpu.pod(), Round::barrier_block, ids.first, 10000, code);
    EXPECT_EQ(gpu.read(code), 0);
  });
}

INSTANTIATE_TEST_SUITE_P(Heaps, GpuProcessesTest,
                         testing::Values(HeapCase{1, "vmm"}, HeapCase{2, "vmm"}, HeapCase{4, "vmm"}, HeapCase{2, "ipc"},
                                         HeapCase{4, "ipc"}));

TEST(GpuProcessesTeamTest, SubteamsHaveTheirOwnRanksAndSignals) {
  OVERLACE_NEED_GPUS(4);
  run_gpu_processes(4, {}, exchange_in_subteams);
}

TEST(GpuIpcThreadsTest, AnIpcHeapServesThreadsToo) {
  OVERLACE_NEED_GPUS(1);
  for (int ranks : {2, 4}) {
    const Ended ended = fork_ranks(1, {"OVERLACE_HEAP=ipc"}, [&](Bootstrap&) {
      run_gpu_threads(ranks, [](GpuRank& gpu) {
        EXPECT_EQ(std::string(gpu.state().heap_kind()), "ipc");
        exchange_patterns(gpu);
      });
    });
    EXPECT_EQ(ended.status[0], 0);
  }
}

TEST(GpuProcessesNcclTest, AllReduceOverProcesses) {
  for (int ranks : {2, 4}) {
    if (gpu_count() < ranks) continue;
    GpuOptions options;
    options.net_engine = "auto";
    run_gpu_processes(
        ranks, {},
        [](GpuRank& gpu) {
          if (gpu.team.net() == nullptr) return;  // no NCCL on this machine
          std::vector<float> host(1001);
          for (size_t i = 0; i < host.size(); ++i) host[i] = static_cast<float>(gpu.rank * 2000 + static_cast<int>(i));
          auto* data = gpu.device_array<float>(host.size());
          gpu.store(data, host.data(), host.size() * sizeof(float));
          gpu.team.net()->all_reduce(data, data, host.size(), DType::fp32, StreamRef::cuda(gpu.stream));
          std::vector<float> got(host.size());
          gpu.fetch(got.data(), data, got.size() * sizeof(float));
          for (size_t i = 0; i < got.size(); ++i) {
            const int n = gpu.size;
            ASSERT_EQ(got[i], static_cast<float>(n * (n - 1) / 2 * 2000 + n * static_cast<int>(i))) << "element " << i;
          }
        },
        options);
  }
  OVERLACE_NEED_GPUS(2);
}

/// Survivors wait on the device for rank `victim`, which ends by `end` without a word.
void expect_survivors(int ranks, int victim, const std::function<void()>& end, int victim_status,
                      const std::string& part) {
  const Ended ended = fork_ranks(
      ranks, {},
      [&](Bootstrap& bootstrap) {
        GpuOptions options;
        options.timeout_ms = 60000;
        options.checks_end = false;
        Runtime runtime = Runtime::open(bootstrap, runtime_options(options));
        GpuRank gpu(runtime);
        const SignalIds ids = gpu.channel.ids(1, Domain::device, "lost");
        auto* code = gpu.device_array<int32_t>(1);
        gpu.team.barrier();
        if (gpu.rank == victim) {
          std::this_thread::sleep_for(std::chrono::milliseconds(300));  // the others are in their kernels
          end();
        }
        launch_wait(gpu.stream, gpu.pod(), victim, ids.first, 1, code);
        const auto begin = Clock::now();
        EXPECT_CUDA(cudaStreamSynchronize(gpu.stream));
        EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
        EXPECT_EQ(gpu.read(code), static_cast<int32_t>(Errc::aborted));
        Errc caught = Errc::ok;
        const std::string text = error_text([&] { runtime.check(); }, &caught);
        EXPECT_TRUE(caught == Errc::peer_lost || caught == Errc::aborted) << text;
        EXPECT_NE(text.find(part), std::string::npos) << text;
        // The dead rank's heap is still mapped: what runs to its end may touch it.
        uint64_t word = 1;
        gpu.fetch(&word, gpu.state().heap_base(victim) + gpu.state().user_offset(), sizeof word);
        EXPECT_EQ(word, 0u);
      },
      60000);
  for (int rank = 0; rank < ranks; ++rank)
    EXPECT_EQ(ended.status[static_cast<size_t>(rank)], rank == victim ? victim_status : 0) << "rank " << rank;
}

TEST(GpuProcessesDeathTest, KilledRanksAreReportedByTheOthers) {
  OVERLACE_NEED_GPUS(2);
  const int ranks = gpu_count() >= 4 ? 4 : 2;
  expect_survivors(
      ranks, 1, [] { ::kill(::getpid(), SIGKILL); }, -SIGKILL, "rank 1");
}

TEST(GpuProcessesDeathTest, RanksThatExitWithoutCloseAreReported) {
  OVERLACE_NEED_GPUS(2);
  expect_survivors(
      2, 0, [] { ::_exit(3); }, 3, "rank 0");
}

TEST(GpuProcessesRefusalTest, TwoProcessesOnOneGpuAreRefused) {
  OVERLACE_NEED_GPUS(1);
  const auto open_both = [](Bootstrap& bootstrap) {
    GpuOptions options;
    options.device = 0;
    Errc caught = Errc::ok;
    const std::string text = error_text([&] { (void)Runtime::open(bootstrap, runtime_options(options)); }, &caught);
    EXPECT_EQ(caught, Errc::not_supported) << text;
    EXPECT_NE(text.find("ranks 0 and 1"), std::string::npos) << text;
    EXPECT_NE(text.find("OVERLACE_ALLOW_SHARED_GPU"), std::string::npos) << text;
  };
  const Ended ended = fork_ranks(2, {}, open_both);
  EXPECT_EQ(ended.status, (std::vector<int>{0, 0}));
}

TEST(GpuProcessesRefusalTest, OneGpuIsSharedWhereAllAllowIt) {
  OVERLACE_NEED_GPUS(1);
  GpuOptions options;
  options.device = 0;
  options.heap_bytes = size_t{8} << 20;
  // Waits are the host's here: two processes take turns on the device.
  run_gpu_processes(
      2, {"OVERLACE_ALLOW_SHARED_GPU=1"},
      [](GpuRank& gpu) {
        const SymBuffer word = gpu.runtime.heap().alloc(256, 256, "word");
        const uint32_t value = 77u + static_cast<uint32_t>(gpu.rank);
        gpu.store(gpu.team.peer_ptr(word, 1 - gpu.rank), &value, sizeof value);
        gpu.team.barrier();
        EXPECT_EQ(gpu.read(static_cast<uint32_t*>(gpu.team.local_ptr(word))), 78u - static_cast<uint32_t>(gpu.rank));
        gpu.team.barrier();
      },
      options);
}

TEST(GpuProcessesRefusalTest, DifferentHeapKindsAreNamed) {
  OVERLACE_NEED_GPUS(2);
  const Ended ended = fork_ranks(2, {}, [](Bootstrap& bootstrap) {
    ::setenv("OVERLACE_HEAP", bootstrap.rank() == 0 ? "vmm" : "ipc", 1);
    Errc caught = Errc::ok;
    const std::string text =
        error_text([&] { (void)Runtime::open(bootstrap, runtime_options(GpuOptions{})); }, &caught);
    EXPECT_EQ(caught, Errc::layout_mismatch) << text;
    EXPECT_NE(text.find("OVERLACE_HEAP"), std::string::npos) << text;
  });
  EXPECT_EQ(ended.status, (std::vector<int>{0, 0}));
}

}  // namespace
}  // namespace overlace::test
