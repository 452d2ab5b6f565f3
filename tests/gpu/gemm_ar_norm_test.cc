// gemm_ar_norm on real GPUs: every family against exact sums and a norm in fp64, repeated and captured. With one GPU
// ranks share it (virtual ranks); the library's all-reduce needs a GPU for each.
#include "overlace/ops/gemm_ar_norm.h"

#include <cmath>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "src/ops/common/reference.h"
#include "tests/gpu/support/values.h"

namespace overlace::test {
namespace {

struct Problem {
  int64_t m = 203, n = 136, k = 72;
  DType dtype = DType::bf16;
  spec::BLayout layout = spec::BLayout::nk;
  bool bias = false;
  double residual = 0.5;  // times -1, 0 or 1
  int shifted_rank = -1;  // whose residual and weight lie an element behind where loads are wide
};

/// One rank's operands: a and b are its own, the others those of all.
class Site {
 public:
  Site(GpuRank& gpu, const Problem& p) : gpu_(gpu), p_(p) {
    const auto own = [&](int what, int64_t rows, int64_t columns, bool swaps) {
      return made(gpu, rows, columns, p.dtype, [&](int64_t i, int64_t j) {
        return swaps ? value_of(what + gpu.rank, j, i) : value_of(what + gpu.rank, i, j);
      });
    };
    a_ = own(8, p.m, p.k, false);
    b_ = p.layout == spec::BLayout::nk ? own(16, p.n, p.k, true).transposed() : own(16, p.k, p.n, false);
    residual_ = of_all(p.m, [&](int64_t i, int64_t j) { return value_of(1, i, j) * p_.residual; });
    const TensorView weight = of_all(1, [](int64_t, int64_t j) { return value_of(2, 0, j) + 1.5; });
    weight_ = TensorView::contiguous(weight.data, p.dtype, {p.n});
    if (p.bias) bias_ = vector(3, 0);
    const auto nan = [](int64_t, int64_t) { return NAN; };
    out_ = made(gpu, p.m, p.n, p.dtype, nan);
    normed_ = made(gpu, p.m, p.n, p.dtype, nan);
  }

  spec::Schedule schedule(const std::string& family, int degree) {
    return spec::make_schedule(ops::op_spec(gpu_.channel, args()), family, degree);
  }
  void run(const spec::Schedule& schedule) { ops::run(gpu_.channel, args(), schedule); }
  void spoil() {
    for (const TensorView& t : {out_, normed_})
      ASSERT_EQ(cudaMemsetAsync(t.data, 0xff, bytes_of(t), gpu_.stream), cudaSuccess);
  }

  std::vector<char> normed_bits() {
    std::vector<char> out(bytes_of(normed_));
    gpu_.fetch(out.data(), normed_.data, out.size());
    return out;
  }

  void check(const std::string& what) {
    std::vector<char> out(bytes_of(out_)), normed = normed_bits(), weight(bytes_of(weight_));
    gpu_.fetch(out.data(), out_.data, out.size());
    gpu_.fetch(weight.data(), weight_.data, weight.size());
    const auto at = [&](const std::vector<char>& from, int64_t i) {
      return base::load_element(from.data(), p_.dtype, i);
    };
    std::vector<double> kept;
    int64_t wrong = 0;
    for (int64_t i = 0; i < p_.m; ++i)
      for (int64_t j = 0; j < p_.n; ++j) {
        double sum = p_.bias ? value_of(3, 0, j) : 0;
        for (int source = 0; source < gpu_.size; ++source)
          for (int64_t k = 0; k < p_.k; ++k) sum += value_of(8 + source, i, k) * value_of(16 + source, k, j);
        kept.push_back(rounded(rounded(sum) + rounded(value_of(1, i, j) * p_.residual)));
        wrong += at(out, i * p_.n + j) != kept.back();
      }
    EXPECT_EQ(wrong, 0) << what << " out, rank " << gpu_.rank;
    const TensorView factors = TensorView::contiguous(weight.data(), p_.dtype, {p_.n});
    const std::vector<double> wanted = ops::rms_norm_reference(kept, factors, kEps);
    const double ulp = p_.dtype == DType::bf16 ? 0x1p-8 : p_.dtype == DType::fp16 ? 0x1p-11 : 0x1p-20;
    wrong = 0;
    for (size_t i = 0; i < wanted.size(); ++i)
      wrong += !(std::abs(at(normed, static_cast<int64_t>(i)) - wanted[i]) <= 1.01 * ulp * std::abs(wanted[i]));
    EXPECT_EQ(wrong, 0) << what << " normed, rank " << gpu_.rank;
  }

 private:
  static constexpr double kEps = 1e-5;

  static size_t bytes_of(const TensorView& t) { return static_cast<size_t>(t.numel()) * dtype_bytes(t.dtype); }
  double rounded(double x) const {
    uint64_t memory = 0;
    base::store_element(&memory, p_.dtype, 0, x);
    return base::load_element(&memory, p_.dtype, 0);
  }
  /// What all ranks have alike.
  template <class F>
  TensorView of_all(int64_t rows, F value) {
    const int64_t shift = gpu_.rank == p_.shifted_rank ? 1 : 0;
    TensorView out =
        made(gpu_, rows, p_.n + shift, p_.dtype, [&](int64_t i, int64_t j) { return value(i, j - shift); });
    out.data = static_cast<char*>(out.data) + static_cast<size_t>(shift) * dtype_bytes(p_.dtype);
    out.sizes[1] = p_.n;
    return out;
  }
  TensorView vector(int what, double more) {
    const auto value = [&](int64_t, int64_t j) { return value_of(what, 0, j) + more; };
    return TensorView::contiguous(made(gpu_, 1, p_.n, p_.dtype, value).data, p_.dtype, {p_.n});
  }
  ops::GemmArNormArgs args() const {
    return {.a = a_,
            .b = b_,
            .residual = residual_,
            .norm_weight = weight_,
            .out = out_,
            .normed = normed_,
            .bias = bias_,
            .eps = kEps};
  }

  GpuRank& gpu_;
  Problem p_;
  TensorView a_, b_, residual_, weight_, bias_, out_, normed_;
};

using Families = std::vector<std::pair<const char*, int>>;  // with their degrees

void check_problem(const Problem& p, int ranks, const Families& families, const GpuOptions& options = {}) {
  run_gpu_threads(
      ranks,
      [&](GpuRank& gpu) {
        Site site(gpu, p);
        for (const auto& [family, degree] : families) {
          const spec::Schedule schedule = site.schedule(family, degree);
          for (int call = 0; call < 3; ++call) {
            site.spoil();
            site.run(schedule);
            site.check(std::string(family) + " " + dtype_name(p.dtype));
          }
        }
      },
      options);
}

const Families kCopied = {{"serial", 1},           {"uniform_fused_1d", 2},
                          {"uniform_fused_2d", 2}, {"hetero_unfused_1d", 2},
                          {"grouped_fused_1d", 2}, {"grouped_unfused_1d", 2}};

TEST(GpuGemmArNorm, GivesExactSumsAndTheirNormInEveryType) {
  OVERLACE_NEED_GPUS(1);
  for (const DType dtype : {DType::bf16, DType::fp16, DType::fp32}) check_problem({.dtype = dtype}, 2, kCopied);
  check_problem({.m = 33, .n = 75, .dtype = DType::fp32, .layout = spec::BLayout::kn, .bias = true}, 3, kCopied);
  check_problem({.m = 5, .n = 5000, .bias = true}, 2, kCopied);
  check_problem({.m = 0}, 2, kCopied);
}

/// With values whose squares do not add up exactly, or any order of the sum would do.
TEST(GpuGemmArNorm, HasTheSameBitsWhereverArgumentsLie) {
  OVERLACE_NEED_GPUS(1);
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    std::mutex mutex;
    std::vector<std::vector<char>> bits;  // of each rank
    run_gpu_threads(2, [&](GpuRank& gpu) {
      Site site(gpu, {.m = 16, .n = 4096, .dtype = dtype, .residual = 0.3, .shifted_rank = 1});
      site.run(site.schedule("hetero_unfused_1d", 1));
      site.check(std::string("shifted ") + dtype_name(dtype));
      const std::lock_guard lock(mutex);
      bits.push_back(site.normed_bits());
    });
    ASSERT_EQ(bits.size(), 2u);
    EXPECT_TRUE(bits[0] == bits[1]) << dtype_name(dtype);
  }
}

TEST(GpuGemmArNorm, StandsBehindKernels) {
  OVERLACE_NEED_GPUS(1);
  check_problem({.m = 300, .n = 392, .k = 136, .bias = true}, 2, {{"tma_slot", 2}});
  for (const int64_t m : {1, 33, 64, 200}) check_problem({.m = m, .n = 392, .k = 136}, 2, {{"one_shot", 1}});
}

TEST(GpuGemmArNorm, ByTheLibraryToo) {
  OVERLACE_NEED_GPUS(2);
  check_problem({.bias = true}, 2, {{"library", 1}}, default_options());
}

TEST(GpuGemmArNorm, IsReplayedFromAGraph) {
  OVERLACE_NEED_GPUS(2);
  for (const char* family : {"hetero_unfused_1d", "one_shot", "tma_slot"})
    run_gpu_threads(2, [&](GpuRank& gpu) {
      Site site(gpu, {.m = 64, .n = 392, .k = 136});
      const spec::Schedule schedule = site.schedule(family, 2);
      check_replays(
          gpu, [&] { site.run(schedule); }, [&] { site.spoil(); },
          [&] { site.check(std::string("replay ") + family); });
    });
}

}  // namespace
}  // namespace overlace::test
