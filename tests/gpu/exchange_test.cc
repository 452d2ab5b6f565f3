// gemm_a2a and a2a_gemm on real GPUs: every family against exact sums, with blocks of any length, repeated and
// captured. With one GPU ranks share it (virtual ranks); the library's exchange needs a GPU for each.
#include <cmath>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "overlace/ops/a2a_gemm.h"
#include "overlace/ops/gemm_a2a.h"
#include "tests/gpu/support/values.h"

namespace overlace::test {
namespace {

struct Problem {
  bool is_before = false;  // a2a_gemm
  int64_t n = 136, k = 200;
  DType in = DType::bf16, out = DType::bf16;
  spec::BLayout layout = spec::BLayout::nk;
  bool bias = false;
  std::vector<int64_t> splits{};  // from rank s to rank d at s * ranks + d
};

/// One rank's operands: rows of a are counted over all ranks, b and the bias are the rank's own.
class Site {
 public:
  Site(GpuRank& gpu, const Problem& p) : gpu_(gpu), p_(p) {
    const auto ranks = static_cast<size_t>(gpu.size), me = static_cast<size_t>(gpu.rank);
    int64_t row = 0, mine = 0, first = 0;
    for (size_t s = 0; s < ranks; ++s)
      for (size_t d = 0; d < ranks; ++d) {
        const int64_t rows = p.splits[s * ranks + d];
        if (s == me && d == 0) first = row;
        if (s == me) mine += rows;
        for (int64_t i = 0; d == me && i < rows; ++i) origins_.push_back({row + i, static_cast<int>(s)});
        row += rows;
      }
    const bool nk = p.layout == spec::BLayout::nk;
    a_ = made(gpu, mine, p.k, p.in, [&](int64_t i, int64_t j) { return value_of(1, first + i, j); });
    b_ = nk ? made(gpu, p.n, p.k, p.in, [&](int64_t i, int64_t j) { return value_of(8 + gpu.rank, j, i); }).transposed()
            : made(gpu, p.k, p.n, p.in, [&](int64_t i, int64_t j) { return value_of(8 + gpu.rank, i, j); });
    const auto nan = [](int64_t, int64_t) { return NAN; };
    out_ = made(gpu, std::ssize(origins_), p.n, p.out, nan);
    came_ = made(gpu, p.is_before ? std::ssize(origins_) : 0, p.k, p.in, nan);
    if (!p.bias) return;
    bias_ = made(gpu, 1, p.n, p.out, [&](int64_t, int64_t j) { return value_of(16 + gpu.rank, 0, j); });
    bias_ = TensorView::contiguous(bias_.data, p.out, {p.n});
  }

  spec::Schedule schedule(const std::string& family, int degree) {
    const spec::OpSpec op = p_.is_before ? ops::op_spec(gpu_.channel, before()) : ops::op_spec(gpu_.channel, behind());
    return spec::make_schedule(op, family, degree);
  }
  void run(const spec::Schedule& schedule) {
    if (p_.is_before) return ops::run(gpu_.channel, before(), schedule);
    ops::run(gpu_.channel, behind(), schedule);
  }
  void spoil() {
    ASSERT_EQ(cudaMemsetAsync(out_.data, 0xff, bytes_of(out_), gpu_.stream), cudaSuccess);
    ASSERT_EQ(cudaMemsetAsync(came_.data, 0xff, bytes_of(came_), gpu_.stream), cudaSuccess);
  }

  void check(const std::string& what) {
    std::vector<char> out(bytes_of(out_)), came(bytes_of(came_)), rounded(8);
    gpu_.fetch(out.data(), out_.data, out.size());
    gpu_.fetch(came.data(), came_.data, came.size());
    int64_t wrong = 0;
    for (int64_t i = 0; i < std::ssize(origins_); ++i) {
      const auto [row, source] = origins_[static_cast<size_t>(i)];
      const int by = p_.is_before ? gpu_.rank : source;
      for (int64_t j = 0; j < p_.n; ++j) {
        double want = p_.bias ? value_of(16 + by, 0, j) : 0;
        for (int64_t k = 0; k < p_.k; ++k) want += value_of(1, row, k) * value_of(8 + by, k, j);
        base::store_element(rounded.data(), p_.out, 0, want);
        wrong += base::load_element(out.data(), p_.out, i * p_.n + j) != base::load_element(rounded.data(), p_.out, 0);
      }
      for (int64_t k = 0; p_.is_before && k < p_.k; ++k)
        wrong += base::load_element(came.data(), p_.in, i * p_.k + k) != value_of(1, row, k);
    }
    EXPECT_EQ(wrong, 0) << what << " rank " << gpu_.rank;
  }

 private:
  struct Origin {
    int64_t row;
    int source;
  };
  static size_t bytes_of(const TensorView& t) { return static_cast<size_t>(t.numel()) * dtype_bytes(t.dtype); }
  ops::GemmA2aArgs behind() const { return {.a = a_, .b = b_, .out = out_, .bias = bias_, .splits = p_.splits}; }
  ops::A2aGemmArgs before() const {
    return {.a_shard = a_, .b = b_, .c = out_, .bias = bias_, .a = came_, .splits = p_.splits};
  }

  GpuRank& gpu_;
  Problem p_;
  TensorView a_, b_, out_, came_, bias_;
  std::vector<Origin> origins_;
};

/// Blocks of 0 to 150 rows, a fourth of them empty.
std::vector<int64_t> drawn_splits(int ranks, int seed) {
  std::vector<int64_t> out(static_cast<size_t>(ranks * ranks));
  for (size_t i = 0; i < out.size(); ++i) {
    const uint64_t h = (i + 1) * 0x9e3779b97f4a7c15ull + static_cast<uint64_t>(seed) * 0xc2b2ae3d27d4eb4full;
    out[i] = (h >> 60) < 4 ? 0 : static_cast<int64_t>((h >> 33) % 150) + 1;
  }
  return out;
}

struct Family {
  const char* name;
  int degree;
};
constexpr Family kOurs[] = {
    {"serial", 1}, {"uniform_fused_1d", 2}, {"hetero_fused_1d", 3}, {"hetero_unfused_1d", 1}, {"hetero_unfused_1d", 4}};
constexpr Family kLibrary[] = {{"library", 1}};

void check_problem(Problem p, int ranks, std::span<const Family> families, const GpuOptions& options = {}) {
  for (const bool is_before : {false, true}) {
    p.is_before = is_before;
    run_gpu_threads(
        ranks,
        [&](GpuRank& gpu) {
          Site site(gpu, p);
          for (const Family& family : families) {
            const spec::Schedule schedule = site.schedule(family.name, family.degree);
            for (int call = 0; call < 3; ++call) {
              site.spoil();
              site.run(schedule);
              site.check(std::string(is_before ? "a2a_gemm " : "gemm_a2a ") + family.name + " " + dtype_name(p.in));
            }
          }
        },
        options);
  }
}

int all_ranks() { return gpu_count() < 4 ? 2 : 4; }

TEST(GpuExchange, GivesExactSumsInEveryTypeAndLayout) {
  OVERLACE_NEED_GPUS(1);
  Problem p{.splits = std::vector<int64_t>(static_cast<size_t>(all_ranks() * all_ranks()), 96)};
  for (const spec::BLayout layout : {spec::BLayout::nk, spec::BLayout::kn}) {
    p.layout = layout;
    p.bias = layout == spec::BLayout::kn;
    for (const auto& [in, out] : {std::pair(DType::bf16, DType::bf16), std::pair(DType::fp16, DType::fp32),
                                  std::pair(DType::fp32, DType::fp32)}) {
      p.in = in;
      p.out = out;
      check_problem(p, all_ranks(), kOurs);
    }
  }
}

TEST(GpuExchange, TakesBlocksOfAnyLength) {
  OVERLACE_NEED_GPUS(1);
  for (const int seed : {1, 2, 3}) check_problem({.splits = drawn_splits(all_ranks(), seed)}, all_ranks(), kOurs);
  std::vector<int64_t> one_way(static_cast<size_t>(all_ranks() * all_ranks()));
  one_way[1] = 77;  // all that there is goes from rank 0 to rank 1
  check_problem({.splits = one_way}, all_ranks(), kOurs);
}

TEST(GpuExchange, ByTheLibraryToo) {
  OVERLACE_NEED_GPUS(2);
  for (const int seed : {1, 2}) check_problem({.splits = drawn_splits(2, seed)}, 2, kLibrary, default_options());
  check_problem({.splits = {64, 64, 64, 64}}, 2, kLibrary, default_options());
}

TEST(GpuExchange, IsReplayedFromAGraph) {
  OVERLACE_NEED_GPUS(2);
  for (const bool is_before : {false, true})
    run_gpu_threads(2, [&](GpuRank& gpu) {
      Site site(gpu, {.is_before = is_before, .splits = drawn_splits(2, 4)});
      const spec::Schedule schedule = site.schedule("hetero_unfused_1d", 2);
      check_replays(
          gpu, [&] { site.run(schedule); }, [&] { site.spoil(); }, [&] { site.check("replay"); });
    });
}

}  // namespace
}  // namespace overlace::test
