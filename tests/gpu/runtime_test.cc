// Ranks as threads of this process: opening, heaps, puts, teams, deadlines, aborts, graphs. With fewer devices than
// ranks several ranks share one.
#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include "src/runtime/backend/cuda_peer/nodes.h"
#include "tests/gpu/support/exchanges.h"
#include "tests/gpu/support/kernels.h"

namespace overlace::test {
namespace {

namespace cp = runtime::cuda_peer;

class GpuRuntimeTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { OVERLACE_NEED_GPUS(1); }
};

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

TEST_P(GpuRuntimeTest, OpensWithCapsReachAndMappedHeaps) {
  run_gpu_threads(GetParam(), [](GpuRank& gpu) {
    EXPECT_EQ(gpu.runtime.backend(), Backend::cuda_peer);
    EXPECT_EQ(gpu.runtime.device(), gpu.rank % gpu_count());
    EXPECT_EQ(std::string(gpu.state().heap_kind()), "vmm");
    const SymBuffer buffer = gpu.runtime.heap().alloc(4096, 256, "words");
    std::set<void*> places;
    for (int peer = 0; peer < gpu.size; ++peer) {
      EXPECT_EQ(gpu.team.reach(peer), peer == gpu.rank ? Reach::self : Reach::lsa);
      const Caps caps = gpu.runtime.caps(peer);
      EXPECT_TRUE(caps.load_store && caps.device_initiated && caps.copy_engine);
      EXPECT_TRUE(caps.multi_writer_signals);
      int major = 0, minor = 0;
      EXPECT_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, peer % gpu_count()));
      EXPECT_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, peer % gpu_count()));
      EXPECT_EQ(caps.compute_capability, 10 * major + minor);
      places.insert(gpu.team.peer_ptr(buffer, peer));
    }
    EXPECT_EQ(places.size(), static_cast<size_t>(gpu.size));
    // Each rank writes into all heaps; each place shows its writer.
    for (int peer = 0; peer < gpu.size; ++peer) {
      const uint32_t value = static_cast<uint32_t>(gpu.rank * 1000 + peer);
      gpu.store(static_cast<uint32_t*>(gpu.team.peer_ptr(buffer, peer)) + gpu.rank, &value, sizeof value);
    }
    gpu.team.barrier();
    for (int from = 0; from < gpu.size; ++from)
      EXPECT_EQ(gpu.read(static_cast<uint32_t*>(gpu.team.local_ptr(buffer)) + from),
                static_cast<uint32_t>(from * 1000 + gpu.rank));
    gpu.team.barrier();
    gpu.runtime.heap().free(buffer);
  });
}

TEST_P(GpuRuntimeTest, FreshHeapIsZeroAndCovered) {
  run_gpu_threads(GetParam(), [](GpuRank& gpu) {
    const size_t bytes = gpu.runtime.heap().capacity();
    EXPECT_GE(bytes, size_t{64} << 20);
    std::vector<uint64_t> words(bytes / 8, 1);
    gpu.fetch(words.data(), gpu.state().heap_base(gpu.rank) + gpu.state().user_offset(), bytes);
    EXPECT_TRUE(std::all_of(words.begin(), words.end(), [](uint64_t w) { return w == 0; }));
  });
}

TEST_P(GpuRuntimeTest, ExchangesPatternsBetweenAllPairs) { run_gpu_threads(GetParam(), exchange_patterns); }

TEST_P(GpuRuntimeTest, StreamPutsAndSignalNodes) { run_gpu_threads(GetParam(), exchange_stream_puts); }

TEST_P(GpuRuntimeTest, ReplaysAGraphThenRunsEagerly) { run_gpu_threads(GetParam(), replay_graph); }

TEST_P(GpuRuntimeTest, PostsAnEpochByAnEightByteCopy) {
  run_gpu_threads(GetParam(), [](GpuRank& gpu) {
    if (gpu.size == 1 || !gpu.state().copy_then_flag()) return;
    constexpr uint64_t kBytes = 3 << 20;
    const SymBuffer inbox = gpu.runtime.heap().alloc(kBytes, 256, "inbox");
    const SignalIds ids = gpu.channel.ids(1, Domain::stream, "post");
    const TeamPod& pod = gpu.pod().team;
    char* source = gpu.device_array<char>(kBytes);
    auto* epoch = gpu.device_array<uint64_t>(1);
    auto* wrong = gpu.device_array<uint64_t>(1);
    const int to = (gpu.rank + 1) % gpu.size, from = (gpu.rank + gpu.size - 1) % gpu.size;
    const uint64_t one = 1;
    gpu.store(epoch, &one, sizeof one);
    const cp::TicketAdd add{pod.ticket + uint64_t{ids.first} * pod.sig_stride + static_cast<uint64_t>(from), 1};
    auto* table = gpu.device_array<cp::TicketAdd>(1);
    gpu.store(table, &add, sizeof add);
    gpu.team.barrier();
    for (uint32_t call = 1; call <= 20; ++call) {
      launch_fill(gpu.stream, source, kBytes, call * 16 + static_cast<uint32_t>(gpu.rank));
      EXPECT_TRUE(cp::stream_put(gpu.team.peer_ptr(inbox, to), source, kBytes, gpu.stream).ok());
      EXPECT_TRUE(cp::stream_post(cp::slot_address(pod, to, ids.first, gpu.rank), epoch, gpu.stream).ok());
      cp::WaitList waits;
      waits.team = pod;
      waits.items[0] = {
          cp::slot_address(pod, gpu.rank, ids.first, from), epoch, 1, 1, 0, static_cast<uint32_t>(from), ids.first};
      waits.count = 1;
      EXPECT_TRUE(cp::launch_wait(gpu.stream, waits).ok());
      launch_compare(gpu.stream, gpu.team.local_ptr(inbox), kBytes, call * 16 + static_cast<uint32_t>(from), wrong);
      EXPECT_TRUE(cp::launch_epoch_end(gpu.stream, {epoch, table, 1}).ok());
      EXPECT_TRUE(cp::launch_barrier(gpu.stream, pod, gpu.pod().barrier_id).ok());
    }
    gpu.wait();
    EXPECT_EQ(gpu.read(wrong), 0u);
    EXPECT_EQ(gpu.read(epoch), 21u);
    gpu.team.barrier();
    gpu.runtime.heap().free(inbox);
  });
}

TEST_P(GpuRuntimeTest, StreamWritesAndWaitsWhereTheDeviceCan) {
  run_gpu_threads(GetParam(), [](GpuRank& gpu) {
    const cp::StreamCaps& caps = gpu.state().stream_caps();
    if (!caps.write_value || !caps.wait_value) return;
    auto* counter = gpu.device_array<uint64_t>(1);
    cudaStream_t second = nullptr;
    EXPECT_CUDA(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    auto* data = gpu.device_array<uint8_t>(4096);
    auto* wrong = gpu.device_array<uint64_t>(1);
    // The second stream waits for a local word that the first one writes after its data.
    EXPECT_TRUE(cp::stream_wait(counter, 7, false, caps, second).ok());
    EXPECT_TRUE(gpu.state().guard_stream_wait(second, {counter, 7, 0, 0, 0}).ok());
    launch_compare(second, data, 4096, 99, wrong);
    launch_fill(gpu.stream, data, 4096, 99);
    EXPECT_TRUE(cp::stream_write(counter, 7, caps, gpu.stream).ok());
    EXPECT_CUDA(cudaStreamSynchronize(second));
    EXPECT_EQ(gpu.read(wrong), 0u);
    EXPECT_TRUE(cp::stream_reset(counter, 8, gpu.stream).ok());
    EXPECT_EQ(gpu.read(counter), 0u);
    EXPECT_CUDA(cudaStreamDestroy(second));
  });
}

TEST_P(GpuRuntimeTest, TwoRuntimesInOneProcessAndReopening) {
  const int n = GetParam();
  GpuOptions options;
  options.heap_bytes = size_t{8} << 20;
  for (int generation = 0; generation < 2; ++generation) {
    auto others = thread_bootstraps(n);
    run_gpu_threads(
        n,
        [&](GpuRank& first) {
          Runtime other = Runtime::open(*others[static_cast<size_t>(first.rank)], runtime_options(options));
          {
            GpuRank second(other);
            EXPECT_NE(first.state().heap_base(first.rank), second.state().heap_base(second.rank));
            exchange_stream_puts(first);
            exchange_stream_puts(second);
          }
          other.check_quiescent();
          other.close();
        },
        options);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, GpuRuntimeTest, testing::Values(1, 2, 4));

TEST(GpuRuntimeFourRanksTest, SubteamsHaveTheirOwnRanksAndSignals) {
  OVERLACE_NEED_GPUS(1);
  run_gpu_threads(4, exchange_in_subteams);
}

TEST(GpuRuntimeFourRanksTest, MoreRanksThanThePodHolds) {
  OVERLACE_NEED_GPUS(2);  // ten ranks of one device would need more hardware queues than there are
  GpuOptions options;
  options.heap_bytes = size_t{24} << 20;  // ten inboxes of 2 MiB
  run_gpu_threads(10, exchange_patterns, options);
}

TEST(GpuRuntimeFailureTest, AWithheldSignalIsATimeoutThatNamesItAndTheContextLivesOn) {
  OVERLACE_NEED_GPUS(1);
  GpuOptions options;
  options.timeout_ms = 3000;
  options.checks_end = false;
  run_gpu_threads(2, [](GpuRank&) {});  // contexts exist from here on: opening fits the short deadline
  const auto begin = std::chrono::steady_clock::now();
  run_gpu_threads(
      2,
      [](GpuRank& gpu) {
        const SignalIds ids = gpu.channel.ids(3, Domain::device, "withheld.arrive");
        auto* code = gpu.device_array<int32_t>(1);
        gpu.team.barrier();
        Errc caught = Errc::ok;
        std::string text;
        if (gpu.rank == 0) {
          launch_wait(gpu.stream, gpu.pod(), 1, ids.first + 2, 5, code);
          EXPECT_CUDA(cudaStreamSynchronize(gpu.stream));
          EXPECT_EQ(gpu.read(code), static_cast<int32_t>(Errc::timeout));
          text = error_text([&] { gpu.runtime.check(); }, &caught);
          EXPECT_EQ(caught, Errc::timeout);
          for (const std::string& part :
               {std::string("rank 0 waited for rank 1"), base::format("signal {} ", ids.first + 2),
                std::string("withheld.arrive"), std::string("expected >= 5"), std::string("seen 3")})
            EXPECT_NE(text.find(part), std::string::npos) << "wanted \"" << part << "\" in: " << text;
          // Nothing trapped: the device still computes, and later waits return at once.
          launch_wait(gpu.stream, gpu.pod(), 1, ids.first, 1, code);
          EXPECT_EQ(gpu.read(code), static_cast<int32_t>(Errc::aborted));
        } else {
          cp::SignalList signals;
          signals.items[0].slot = cp::slot_address(gpu.pod().team, 0, ids.first + 2, 1);
          signals.items[0].value = 3;
          signals.count = 1;
          EXPECT_TRUE(cp::launch_signal(gpu.stream, signals).ok());
          // A wait of its own: ended by the abort of rank 0, long before it would have timed out alone.
          launch_wait(gpu.stream, gpu.pod(), 0, ids.first + 1, 1, code);
          EXPECT_CUDA(cudaStreamSynchronize(gpu.stream));
          EXPECT_NE(gpu.read(code), 0);
          text = error_text([&] { gpu.runtime.check(); }, &caught);
          EXPECT_NE(caught, Errc::ok) << text;
        }
        gpu.runtime.close();
      },
      options);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  run_gpu_threads(2, exchange_stream_puts);  // the same devices and contexts
}

TEST(GpuRuntimeFailureTest, AnAbortEndsTheWaitsOfAllRanks) {
  OVERLACE_NEED_GPUS(1);
  GpuOptions options;
  options.checks_end = false;
  const auto begin = std::chrono::steady_clock::now();
  run_gpu_threads(
      4,
      [](GpuRank& gpu) {
        const SignalIds ids = gpu.channel.ids(1, Domain::device, "never");
        auto* code = gpu.device_array<int32_t>(1);
        gpu.team.barrier();
        launch_wait(gpu.stream, gpu.pod(), (gpu.rank + 1) % gpu.size, ids.first, 1, code);
        if (gpu.rank == 2) gpu.runtime.abort(Errc::non_finite, "a gradient of rank 2 overflowed");
        EXPECT_CUDA(cudaStreamSynchronize(gpu.stream));
        EXPECT_EQ(gpu.read(code), static_cast<int32_t>(Errc::aborted));
        Errc caught = Errc::ok;
        const std::string text = error_text([&] { gpu.runtime.check(); }, &caught);
        EXPECT_NE(caught, Errc::ok);
        EXPECT_NE(text.find("a gradient of rank 2 overflowed"), std::string::npos) << text;
        gpu.runtime.close();
      },
      options);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(15));
}

TEST(GpuRuntimeFailureTest, AGuardedStreamWaitEndsAtItsDeadline) {
  OVERLACE_NEED_GPUS(1);
  GpuOptions options;
  options.timeout_ms = 2000;
  options.checks_end = false;
  run_gpu_threads(1, [](GpuRank&) {});  // contexts exist from here on: opening fits the short deadline
  run_gpu_threads(
      1,
      [](GpuRank& gpu) {
        const cp::StreamCaps& caps = gpu.state().stream_caps();
        if (!caps.wait_value) return;
        auto* word = gpu.device_array<uint64_t>(1);
        EXPECT_TRUE(cp::stream_wait(word, 41, false, caps, gpu.stream).ok());
        EXPECT_TRUE(gpu.state().guard_stream_wait(gpu.stream, {word, 41, 0, 0, 12}).ok());
        EXPECT_CUDA(cudaStreamSynchronize(gpu.stream));
        Errc caught = Errc::ok;
        const std::string text = error_text([&] { gpu.runtime.check(); }, &caught);
        EXPECT_EQ(caught, Errc::timeout);
        EXPECT_NE(text.find("stream 12"), std::string::npos) << text;
        EXPECT_NE(text.find("expected >= 41, seen 0"), std::string::npos) << text;
        gpu.runtime.close();
      },
      options);
}

/// What a kernel does whose own pipeline stood still.
void stand_still(GpuRank& gpu) {
  const uint32_t stuck = 1;
  gpu.store(gpu.state().pipeline_word(), &stuck, sizeof stuck);
}

TEST(GpuRuntimeFailureTest, APipelineThatStoodStillIsATimeoutAtTheNextSynchronize) {
  OVERLACE_NEED_GPUS(1);
  GpuOptions options;
  options.timeout_ms = 6000;
  options.checks_end = false;
  run_gpu_threads(
      2,
      [](GpuRank& gpu) {
        gpu.team.barrier();
        Errc caught = Errc::ok;
        EXPECT_EQ(error_text([&] { gpu.runtime.check(); }, &caught), "");
        gpu.team.barrier();
        if (gpu.rank == 1) {
          stand_still(gpu);
          const std::string text = error_text([&] { gpu.runtime.synchronize(); }, &caught);
          EXPECT_EQ(caught, Errc::timeout);
          EXPECT_EQ(text, runtime::pipeline_text(1, 6'000'000'000));
        } else {
          (void)error_text([&] { gpu.team.barrier(); }, &caught);  // nobody else comes
          EXPECT_NE(caught, Errc::ok);
        }
        (void)error_text([&] { gpu.runtime.close(); }, &caught);
      },
      options);
}

TEST(GpuRuntimeFailureTest, APipelineThatStoodStillIsFoundByTheWatcherOfAllRanks) {
  OVERLACE_NEED_GPUS(1);
  GpuOptions options;
  options.checks_end = false;
  run_gpu_threads(
      2,
      [](GpuRank& gpu) {
        gpu.team.barrier();
        if (gpu.rank == 1) stand_still(gpu);
        const auto begin = std::chrono::steady_clock::now();
        Errc caught = Errc::ok;
        std::string text;
        while (caught == Errc::ok && std::chrono::steady_clock::now() - begin < std::chrono::seconds(5)) {
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
          text = error_text([&] { gpu.runtime.check(); }, &caught);
        }
        EXPECT_NE(caught, Errc::ok) << "rank " << gpu.rank << " was not told in 5 s";
        EXPECT_NE(text.find("rank 1: a stage of a fused kernel's own pipeline"), std::string::npos) << text;
        (void)error_text([&] { gpu.runtime.close(); }, &caught);
      },
      options);
}

/// What holds a stream up in front of a wait does not count, however long it is; the wait itself does.
TEST(GpuRuntimeFailureTest, TheDeadlineOfAWaitBeginsWhenItsStreamIsThere) {
  OVERLACE_NEED_GPUS(1);
  GpuOptions options;
  options.timeout_ms = 1500;
  options.checks_end = false;
  run_gpu_threads(1, [](GpuRank&) {});
  run_gpu_threads(
      1,
      [](GpuRank& gpu) {
        const cp::StreamCaps& caps = gpu.state().stream_caps();
        if (!caps.wait_value) return;
        auto* words = gpu.device_array<uint64_t>(2);
        cudaStream_t second = nullptr;
        EXPECT_CUDA(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
        EXPECT_TRUE(cp::stream_wait(words, 1, false, caps, gpu.stream).ok());  // not guarded
        EXPECT_TRUE(gpu.state().wait_in_stream(gpu.stream, {words + 1, 7, 0, 0, 12}).ok());
        std::this_thread::sleep_for(std::chrono::milliseconds(3000));
        gpu.runtime.check();
        EXPECT_TRUE(cp::stream_write(words, 1, caps, second).ok());
        EXPECT_CUDA(cudaStreamSynchronize(gpu.stream));
        Errc caught = Errc::ok;
        const std::string text = error_text([&] { gpu.runtime.check(); }, &caught);
        EXPECT_EQ(caught, Errc::timeout);
        EXPECT_NE(text.find("expected >= 7, seen 0"), std::string::npos) << text;
        EXPECT_CUDA(cudaStreamDestroy(second));
        gpu.runtime.close();
      },
      options);
}

TEST(GpuRuntimeFailureTest, LeftOverSignalsAreNamed) {
  OVERLACE_NEED_GPUS(1);
  run_gpu_threads(2, [](GpuRank& gpu) {
    const SignalIds ids = gpu.channel.ids(1, Domain::device, "left.over");
    auto* code = gpu.device_array<int32_t>(1);
    gpu.team.barrier();
    if (gpu.rank == 1) {
      launch_many_adds(gpu.stream, gpu.pod(), 0, ids.first, 1, 2);
      gpu.wait();
    }
    gpu.team.barrier();
    if (gpu.rank == 0) {
      Errc caught = Errc::ok;
      const std::string text = error_text([&] { gpu.runtime.check_quiescent(); }, &caught);
      EXPECT_EQ(caught, Errc::internal);
      EXPECT_NE(text.find("left.over"), std::string::npos) << text;
      EXPECT_NE(text.find("of sender 1 is 2, but 0 were consumed"), std::string::npos) << text;
      launch_wait(gpu.stream, gpu.pod(), 1, ids.first, 2, code);
      EXPECT_EQ(gpu.read(code), 0);
    }
  });
}

TEST(GpuRuntimeFailureTest, BadDevicesAndSizesAreRefusedOnAllRanks) {
  OVERLACE_NEED_GPUS(1);
  const auto open_with = [](const GpuOptions& options, Errc wanted, const char* part) {
    run_gpu_bootstraps(2, [&](Bootstrap& bootstrap) {
      Errc caught = Errc::ok;
      const std::string text = error_text([&] { (void)Runtime::open(bootstrap, runtime_options(options)); }, &caught);
      EXPECT_EQ(caught, wanted) << text;
      EXPECT_NE(text.find(part), std::string::npos) << text;
    });
  };
  GpuOptions no_such_device;
  no_such_device.device = 1000;
  open_with(no_such_device, Errc::invalid_argument, "options.device is 1000");
  GpuOptions too_big;
  too_big.heap_bytes = size_t{1} << 40;
  open_with(too_big, Errc::out_of_memory, "symmetric heap");
}

TEST(GpuRuntimeFailureTest, DifferentHeapSizesAreNamed) {
  OVERLACE_NEED_GPUS(1);
  run_gpu_bootstraps(2, [](Bootstrap& bootstrap) {
    GpuOptions options;
    options.heap_bytes = (size_t{8} + static_cast<size_t>(bootstrap.rank())) << 20;
    Errc caught = Errc::ok;
    const std::string text = error_text([&] { (void)Runtime::open(bootstrap, runtime_options(options)); }, &caught);
    EXPECT_EQ(caught, Errc::layout_mismatch) << text;
    EXPECT_NE(text.find("heap_bytes"), std::string::npos) << text;
  });
}

TEST(GpuRuntimeMissingTest, WithoutADeviceAllRanksGetTheReason) {
  if (gpu_count() > 0) GTEST_SKIP() << "this machine has GPUs";
  std::string why;
  EXPECT_EQ(runtime::cuda_device_count(&why), 0);
  EXPECT_FALSE(why.empty());
  run_gpu_bootstraps(2, [&](Bootstrap& bootstrap) {
    Errc caught = Errc::ok;
    const std::string text =
        error_text([&] { (void)Runtime::open(bootstrap, runtime_options(GpuOptions{})); }, &caught);
    EXPECT_EQ(caught, Errc::not_supported) << text;
    EXPECT_NE(text.find(why), std::string::npos) << text;
  });
  EXPECT_FALSE(cp::query_stream_caps(0).wait_value);
}

}  // namespace
}  // namespace overlace::test
