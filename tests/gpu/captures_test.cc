// What a captured call uses belongs to its graph: replays stay exact behind many other shapes, behind a full heap,
// behind the end of another context; and when the graph is gone, its memory may be given up. With one GPU ranks share
// it.
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "overlace/ops/common.h"
#include "src/base/format.h"
#include "tests/gpu/support/exact.h"
#include "tests/gpu/support/gpu_ranks.h"

namespace overlace::test {
namespace {

constexpr int kRanks = 2, kReplays = 5;

GpuOptions with_heap(size_t bytes) {
  GpuOptions options = default_options();
  options.heap_bytes = bytes;
  return options;
}

/// What waits for a GPU must not meet the next call of a rank that shares it.
void settle(GpuRank& gpu) {
  gpu.wait();
  gpu.team.barrier();
}

/// "" or the code of what a call throws, the same on all ranks.
std::string outcome(GpuRank& gpu, const std::function<void()>& call, std::string* text = nullptr) {
  std::string code;
  try {
    call();
  } catch (const Error& error) {
    code = errc_name(error.code());
    if (text != nullptr) *text = error.what();
  }
  gpu.team.agree(code, "outcome of a call");
  return code;
}

/// A site that was called and captured.
struct Captured {
  Captured(GpuRank& gpu, const ExactProblem& problem) : site(gpu.channel, problem) {
    site.call();
    settle(gpu);
    replay = std::make_unique<Replay>(gpu.stream, [&] { site.call(); });
    settle(gpu);
  }
  void expect_exact(GpuRank& gpu, const std::string& when) {
    for (int i = 0; i < kReplays; ++i) replay->launch();
    EXPECT_EQ(site.wrong(), 0u) << "elements of rank " << gpu.rank << " in " << kReplays << " replays " << when << ", "
                                << site.problem().text();
    settle(gpu);
  }
  ExactSite site;
  std::unique_ptr<Replay> replay;
};

struct Family {
  const char* op;
  const char* family;
  int degree;
};
/// One of each kind that can be captured: fused kernels, copies with signals, products of chunks, one product.
constexpr Family kFamilies[] = {{"gemm_rs", "tma_slot", 4},
                                {"gemm_rs", "hetero_unfused_1d", 2},
                                {"gemm_rs", "serial", 1},
                                {"ag_gemm", "k_slab", 4},
                                {"ag_gemm", "uniform_fused_1d", 2},
                                {"gemm_ar", "tma_slot", 2},
                                {"gemm_ar", "grouped_unfused_1d", 2}};

class Captures : public testing::TestWithParam<Family> {
 protected:
  void SetUp() override { OVERLACE_NEED_GPUS(1); }
  static ExactProblem problem(int64_t m, int64_t n, int64_t k) {
    return {.op = GetParam().op,
            .family = GetParam().family,
            .degree = GetParam().degree,
            .m = m,
            .n = n,
            .k = k,
            .look_every = std::max<int64_t>(1, m * n / 100'000 * k / 4096)};
  }
};

/// More shapes than a channel keeps programs of.
TEST_P(Captures, StayExactBehindManyOtherShapes) {
  run_gpu_threads(
      kRanks,
      [](GpuRank& gpu) {
        EXPECT_CUDA(load_exact_kernels());
        Captured captured(gpu, problem(2048, 4096, 2048));
        captured.expect_exact(gpu, "at once");
        constexpr int kShapes = 300;
        auto memory = std::make_shared<ExactMemory>(gpu.stream, problem(128 + 8 * kShapes, 512, 256));
        for (int shape = 0; shape < kShapes; ++shape) {
          ExactSite other(gpu.channel, problem(128 + 8 * shape, 256 + 8 * (shape % 32), 256), memory);
          other.call();
          if (shape % 16 != 15) continue;
          ASSERT_EQ(other.wrong(), 0u) << other.problem().text();
          captured.expect_exact(gpu, base::format("behind {} other shapes", shape + 1));
        }
        captured.expect_exact(gpu, "at last");
        captured.site.call();  // eager again
        EXPECT_EQ(captured.site.wrong(), 0u) << "an eager call behind replays";
      },
      default_options());
}

/// Larger and larger calls, until the default heap of 1 GiB must give something up or refuse.
TEST_P(Captures, StayExactBehindLargerCallsAndAFullHeap) {
  run_gpu_threads(
      kRanks,
      [](GpuRank& gpu) {
        EXPECT_CUDA(load_exact_kernels());
        constexpr int64_t kN = 1024, kK = 8192, kLargest = 32768;
        auto memory = std::make_shared<ExactMemory>(gpu.stream, problem(kLargest, kN, kK));
        Captured captured(gpu, problem(8192, kN, kK));
        for (const int64_t m : {int64_t{16384}, kLargest, int64_t{16384}, int64_t{24576}}) {
          ExactSite other(gpu.channel, problem(m, kN, kK), memory);
          std::string text;
          const std::string code = outcome(
              gpu, [&] { other.call(); }, &text);
          EXPECT_TRUE(code.empty() || code == errc_name(Errc::heap_exhausted))
              << other.problem().text() << ": " << text;
          EXPECT_EQ(other.wrong(), 0u) << other.problem().text();
          settle(gpu);
          captured.expect_exact(gpu, base::format("behind M {} ({})", m, code));
        }
      },
      default_options());
}

/// Another context of the same ranks comes and goes.
TEST_P(Captures, StayExactBehindTheEndOfAnotherContext) {
  auto others = thread_bootstraps(kRanks);
  run_gpu_threads(
      kRanks,
      [&](GpuRank& gpu) {
        EXPECT_CUDA(load_exact_kernels());
        Captured captured(gpu, problem(1024, 512, 512));
        {
          Runtime other = Runtime::open(*others[static_cast<size_t>(gpu.rank)], runtime_options(with_heap(64 << 20)));
          ExactSite site(other.world().channel(StreamRef::cuda(gpu.stream)), problem(512, 512, 512));
          site.call();
          EXPECT_EQ(site.wrong(), 0u);
          settle(gpu);
          const Replay theirs(gpu.stream, [&] { site.call(); });
          captured.expect_exact(gpu, "beside another context");
          settle(gpu);
        }
        settle(gpu);
        captured.expect_exact(gpu, "behind the end of another context");
      },
      with_heap(64 << 20));
}

/// While the graph lives, a call for which there is no room is refused with what is pinned, on all ranks, or works;
/// when it is destroyed, the call works.
TEST_P(Captures, GiveTheirMemoryBackWithTheirGraph) {
  const ExactProblem first = problem(2048, 2048, 2048), second = problem(2176, 2048, 2048);
  const spec::OpSpec op = op_spec_of(second, kRanks);
  const size_t need = ops::heap_bytes(op, spec::make_schedule(op, second.family, second.degree));
  run_gpu_threads(
      kRanks,
      [&](GpuRank& gpu) {
        EXPECT_CUDA(load_exact_kernels());
        auto captured = std::make_unique<Captured>(gpu, first);
        ExactSite other(gpu.channel, second);
        std::string text;
        const bool fits = gpu.runtime.heap().in_use() + need <= gpu.runtime.heap().capacity();
        const std::string code = outcome(
            gpu, [&] { other.call(); }, &text);
        if (fits) {
          EXPECT_EQ(code, "") << text;
        } else {
          EXPECT_EQ(code, errc_name(Errc::heap_exhausted)) << text;
          EXPECT_NE(text.find("graph"), std::string::npos) << "the refusal does not say what is pinned: " << text;
        }
        settle(gpu);
        captured->expect_exact(gpu, "while another call wants its memory");
        captured.reset();
        settle(gpu);
        // The driver lets go of a graph's objects some time after the graph.
        std::string last = "not called";
        for (int look = 0; look < 100 && !last.empty(); ++look) {
          last = outcome(
              gpu, [&] { other.call(); }, &text);
          if (!last.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
        }
        EXPECT_EQ(last, "") << "behind the end of the graph: " << text;
        EXPECT_EQ(other.wrong(), 0u);
        settle(gpu);
      },
      with_heap(need * 3 / 2 + (size_t{2} << 20)));  // for one of them, not for both
}

/// Captured, destroyed and captured anew, more often than the heap has room.
TEST_P(Captures, ComeAndGo) {
  run_gpu_threads(
      kRanks,
      [](GpuRank& gpu) {
        EXPECT_CUDA(load_exact_kernels());
        size_t asked = 0;
        for (int turn = 0; turn < 40; ++turn) {
          const ExactProblem what = problem(512 + 64 * turn, 512, 512);
          const spec::OpSpec op = op_spec_of(what, kRanks);
          asked += ops::heap_bytes(op, spec::make_schedule(op, what.family, what.degree));
          Captured captured(gpu, what);
          captured.expect_exact(gpu, base::format("in turn {}", turn));
        }
        EXPECT_GT(asked, gpu.runtime.heap().capacity()) << "the heap had room for all of them";
      },
      with_heap(24 << 20));
}

INSTANTIATE_TEST_SUITE_P(Schedules, Captures, testing::ValuesIn(kFamilies), [](const auto& one) {
  return base::format("{}_{}_q{}", one.param.op, one.param.family, one.param.degree);
});

}  // namespace
}  // namespace overlace::test
