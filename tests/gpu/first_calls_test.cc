// A rank that alone has a new N loads kernels and allocates while its peers wait in the call on their GPUs. Ranks that
// share a GPU cannot do that: docs/design/exec.md says why.
#include <chrono>
#include <thread>
#include <vector>

#include "overlace/ops/ag_gemm.h"
#include "src/base/half.h"
#include "tests/gpu/support/gpu_ranks.h"

namespace overlace::test {
namespace {

constexpr int64_t kRowsOfRank = 256, kDepth = 192, kMostColumns = 1024;

/// Ones times 1 + rank: every element is kDepth * (1 + rank).
struct Operands {
  explicit Operands(GpuRank& gpu)
      : rank(gpu),
        m(kRowsOfRank * gpu.size),
        a(filled(gpu, kRowsOfRank * kDepth, 1)),
        b(filled(gpu, kMostColumns * kDepth, static_cast<float>(1 + gpu.rank))),
        c(gpu.device_array<uint16_t>(static_cast<size_t>(m * kMostColumns))) {}

  static uint16_t* filled(GpuRank& gpu, int64_t count, float value) {
    const std::vector<uint16_t> host(static_cast<size_t>(count), base::float_to_bf16(value));
    auto* out = gpu.device_array<uint16_t>(host.size());
    gpu.store(out, host.data(), host.size() * sizeof(uint16_t));
    return out;
  }

  void run(int64_t n, const char* family) {
    const ops::AgGemmArgs args{.a_shard = TensorView::contiguous(a, DType::bf16, {kRowsOfRank, kDepth}),
                               .b = TensorView::contiguous(b, DType::bf16, {n, kDepth}).transposed(),
                               .c = TensorView::contiguous(c, DType::bf16, {m, n})};
    ops::run(rank.channel, args, spec::make_schedule(ops::op_spec(rank.channel, args), family, 2));
  }

  void check(int64_t n) {
    std::vector<uint16_t> host(static_cast<size_t>(m * n));
    rank.fetch(host.data(), c, host.size() * sizeof(uint16_t));
    const uint16_t want = base::float_to_bf16(static_cast<float>(kDepth * (1 + rank.rank)));
    int64_t wrong = 0;
    for (const uint16_t value : host) wrong += value != want ? 1 : 0;
    EXPECT_EQ(wrong, 0) << "N " << n << " rank " << rank.rank;
  }

  GpuRank& rank;
  int64_t m;
  uint16_t *a, *b, *c;
};

TEST(FirstCalls, ARankThatAloneHasANewNPreparesWhileItsPeersWait) {
  OVERLACE_NEED_GPUS(2);
  const int ranks = std::min(gpu_count(), 4);
  for (const char* family : {"hetero_unfused_1d", "serial", "uniform_fused_2d"}) {
    run_gpu_threads(ranks, [&](GpuRank& gpu) {
      Operands operands(gpu);
      const bool is_alone = gpu.rank == 1;
      for (int turn = 0; turn < 10; ++turn) {
        const int64_t n = is_alone ? 8 * (5 + 11 * turn) : 256;
        // The others' kernels wait for this rank by then, and for calls that they have queued behind.
        if (is_alone) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        operands.run(n, family);
        operands.run(n, family);
        if (turn % 3 == 2 || is_alone) operands.check(n);
      }
      gpu.wait();
    });
  }
}

}  // namespace
}  // namespace overlace::test
