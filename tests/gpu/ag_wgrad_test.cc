// ag_wgrad on real GPUs: every family against exact sums, in every layout, ragged, repeated and captured. With one GPU
// ranks share it (virtual ranks).
#include "overlace/ops/ag_wgrad.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/gpu/support/values.h"

namespace overlace::test {
namespace {

struct Problem {
  int64_t m = 384, n = 136, k = 200;
  DType in = DType::bf16, out = DType::bf16;
  spec::BLayout layout = spec::BLayout::kn;
  std::vector<int64_t> offsets{};
};

/// One rank's operands; a (rows of all ranks, K) is the same for all, b is the rank's own.
class Site {
 public:
  Site(GpuRank& gpu, const Problem& p) : gpu_(gpu), p_(p) {
    spec::OpSpec op;
    op.op = "ag_wgrad";
    op.m = p.m;
    op.ranks = gpu.size;
    op.row_offsets = p.offsets;
    const std::vector<int64_t> off = spec::row_offsets(op);
    const auto rank = static_cast<size_t>(gpu.rank);
    const int64_t first = off[rank], mine = off[rank + 1] - first;
    const bool is_nk = p.layout == spec::BLayout::nk;
    const int me = 2 + gpu.rank;
    args_.a_shard = made(gpu, mine, p.k, p.in, [&](int64_t i, int64_t j) { return value_of(1, first + i, j); });
    args_.b = is_nk ? made(gpu, p.n, p.m, p.in, [&](int64_t i, int64_t j) { return value_of(me, j, i); }).transposed()
                    : made(gpu, p.m, p.n, p.in, [&](int64_t i, int64_t j) { return value_of(me, i, j); });
    const auto nan = [](int64_t, int64_t) { return NAN; };
    args_.c = made(gpu, p.k, p.n, p.out, nan);
    args_.a = made(gpu, p.m, p.k, p.in, nan);
    args_.row_offsets = p.offsets;
  }

  spec::Schedule schedule(const std::string& family, int degree) {
    return spec::make_schedule(ops::op_spec(gpu_.channel, args_), family, degree);
  }
  void run(const spec::Schedule& schedule) { ops::run(gpu_.channel, args_, schedule); }
  void spoil() {
    ASSERT_EQ(cudaMemsetAsync(args_.c.data, 0xff, bytes_of(args_.c), gpu_.stream), cudaSuccess);
    ASSERT_EQ(cudaMemsetAsync(args_.a.data, 0xff, bytes_of(args_.a), gpu_.stream), cudaSuccess);
  }

  void check(const std::string& what) {
    std::vector<char> c(bytes_of(args_.c)), a(bytes_of(args_.a)), rounded(8);
    gpu_.fetch(c.data(), args_.c.data, c.size());
    gpu_.fetch(a.data(), args_.a.data, a.size());
    int64_t wrong = 0;
    for (int64_t i = 0; i < p_.k; ++i) {
      for (int64_t j = 0; j < p_.n; ++j) {
        double want = 0;
        for (int64_t m = 0; m < p_.m; ++m) want += value_of(1, m, i) * value_of(2 + gpu_.rank, m, j);
        base::store_element(rounded.data(), p_.out, 0, want);
        wrong += base::load_element(c.data(), p_.out, i * p_.n + j) != base::load_element(rounded.data(), p_.out, 0);
      }
    }
    EXPECT_EQ(wrong, 0) << what << " rank " << gpu_.rank;
    wrong = 0;
    for (int64_t i = 0; i < p_.m; ++i)
      for (int64_t j = 0; j < p_.k; ++j)
        wrong += base::load_element(a.data(), p_.in, i * p_.k + j) != value_of(1, i, j);
    EXPECT_EQ(wrong, 0) << what << " gathered, rank " << gpu_.rank;
  }

 private:
  static size_t bytes_of(const TensorView& t) { return static_cast<size_t>(t.numel()) * dtype_bytes(t.dtype); }

  GpuRank& gpu_;
  Problem p_;
  ops::AgWgradArgs args_;
};

struct Family {
  const char* name;
  int degree;
};
constexpr Family kFamilies[] = {
    {"serial", 1}, {"shard_p2p", 1}, {"hetero_unfused_1d", 3}, {"uniform_fused_2d", 1}, {"uniform_fused_2d", 4}};

void check_problem(const Problem& p) {
  const int ranks = gpu_count() < 4 ? 2 : 4;
  run_gpu_threads(ranks, [&](GpuRank& gpu) {
    Site site(gpu, p);
    for (const Family& family : kFamilies) {
      const spec::Schedule schedule = site.schedule(family.name, family.degree);
      for (int call = 0; call < 3; ++call) {
        site.spoil();
        site.run(schedule);
        site.check(std::string(family.name) + " q " + std::to_string(family.degree) + " " + dtype_name(p.in) + "->" +
                   dtype_name(p.out));
      }
    }
  });
}

TEST(GpuAgWgrad, GivesExactSumsInEveryTypeAndLayout) {
  OVERLACE_NEED_GPUS(1);
  for (const spec::BLayout layout : {spec::BLayout::kn, spec::BLayout::nk}) {
    check_problem({.in = DType::bf16, .out = DType::bf16, .layout = layout});
    check_problem({.in = DType::fp16, .out = DType::fp32, .layout = layout});
    check_problem({.in = DType::fp32, .out = DType::fp32, .layout = layout});
  }
}

TEST(GpuAgWgrad, TakesRaggedAndEmptyShards) {
  OVERLACE_NEED_GPUS(1);
  Problem p;
  p.offsets = gpu_count() < 4 ? std::vector<int64_t>{0, 0, p.m} : std::vector<int64_t>{0, 0, 120, 120, p.m};
  check_problem(p);
  p.out = DType::fp32;
  check_problem(p);
}

TEST(GpuAgWgrad, IsReplayedFromAGraph) {
  OVERLACE_NEED_GPUS(2);
  run_gpu_threads(2, [](GpuRank& gpu) {
    Site site(gpu, {});
    const spec::Schedule schedule = site.schedule("hetero_unfused_1d", 2);
    check_replays(
        gpu, [&] { site.run(schedule); }, [&] { site.spoil(); }, [&] { site.check("replay"); });
  });
}

}  // namespace
}  // namespace overlace::test
