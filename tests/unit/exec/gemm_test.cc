#include "src/exec/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <tuple>
#include <vector>

#include "src/base/half.h"

namespace overlace::exec {
namespace {

/// A matrix with its memory; pitch >= cols, the gap holds NaN.
struct Matrix {
  Matrix(int64_t rows, int64_t cols, DType dtype, int64_t gap = 0)
      : bytes(static_cast<size_t>(rows * (cols + gap)) * dtype_bytes(dtype) + 8) {
    view = TensorView::contiguous(bytes.data(), dtype, {rows, cols + gap});
    view.sizes[1] = cols;
    for (int64_t i = 0; i < rows * (cols + gap); ++i) base::store_element(bytes.data(), dtype, i, NAN);
  }
  double get(int64_t i, int64_t j) const {
    return base::load_element(bytes.data(), view.dtype, i * view.stride(0) + j);
  }
  void set(int64_t i, int64_t j, double v) { base::store_element(bytes.data(), view.dtype, i * view.stride(0) + j, v); }
  template <class F>
  void fill(F value) {
    for (int64_t i = 0; i < view.dim(0); ++i) {
      for (int64_t j = 0; j < view.dim(1); ++j) set(i, j, value(i, j));
    }
  }
  std::vector<char> bytes;
  TensorView view;
};

int64_t hashed(int64_t i, int64_t j, int64_t seed) {
  uint64_t h = static_cast<uint64_t>(i * 1000003 + j * 7919 + seed * 104729) * 0x9E3779B97F4A7C15U;
  return static_cast<int64_t>((h >> 33) % 9) - 4;
}

class CpuGemm : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (base::Status s = set_cpu_gemm_provider(GetParam()); !s.ok()) GTEST_SKIP() << s.message();
  }
  void TearDown() override { ASSERT_TRUE(set_cpu_gemm_provider("auto").ok()); }
};

struct Problem {
  int64_t m, n, k, gap;
  DType in, out;
  bool nk, bias;
  bool km = false;  // a is stored (k, m)
};

void check_integers(const Problem& p) {
  Matrix a(p.km ? p.k : p.m, p.km ? p.m : p.k, p.in, p.gap), c(p.m, p.n, p.out, p.gap), bias(1, p.n, p.out);
  Matrix b(p.nk ? p.n : p.k, p.nk ? p.k : p.n, p.in, p.gap);
  a.fill([](int64_t i, int64_t j) { return static_cast<double>(hashed(i, j, 1)); });
  b.fill([](int64_t i, int64_t j) { return static_cast<double>(hashed(i, j, 2)); });
  bias.fill([](int64_t, int64_t j) { return static_cast<double>(hashed(0, j, 3)); });
  GemmArgs args{.a = p.km ? a.view.transposed() : a.view, .b = p.nk ? b.view.transposed() : b.view, .c = c.view};
  if (p.bias) args.bias = TensorView::contiguous(bias.bytes.data(), p.out, {p.n});
  const base::Status status = cpu_gemm(args);
  ASSERT_TRUE(status.ok()) << status.message();
  std::vector<char> rounded(8);
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; ++j) {
      double want = p.bias ? bias.get(0, j) : 0;
      for (int64_t k = 0; k < p.k; ++k) want += (p.km ? a.get(k, i) : a.get(i, k)) * (p.nk ? b.get(j, k) : b.get(k, j));
      base::store_element(rounded.data(), p.out, 0, want);
      ASSERT_EQ(c.get(i, j), base::load_element(rounded.data(), p.out, 0))
          << i << " " << j << " of m " << p.m << " n " << p.n << " k " << p.k;
    }
    for (int64_t j = p.n; j < p.n + p.gap; ++j) ASSERT_TRUE(std::isnan(c.get(i, j))) << "wrote into the gap";
  }
}

TEST_P(CpuGemm, IsExactOnIntegersForEveryDtypeLayoutAndBias) {
  const std::pair<DType, DType> types[] = {{DType::fp64, DType::fp64}, {DType::fp32, DType::fp32},
                                           {DType::bf16, DType::bf16}, {DType::bf16, DType::fp32},
                                           {DType::fp16, DType::fp16}, {DType::fp16, DType::fp32}};
  for (const auto& [in, out] : types) {
    for (const bool nk : {false, true}) {
      for (const bool bias : {false, true}) {
        for (const int64_t gap : {0, 3}) {
          check_integers({1, 1, 1, gap, in, out, nk, bias});
          check_integers({7, 33, 5, gap, in, out, nk, bias});
          check_integers({13, 40, 300, gap, in, out, nk, bias});
          for (const auto& [m, n, k] : {std::tuple(1, 1, 1), {7, 33, 5}, {13, 40, 300}, {200, 65, 17}})
            check_integers({m, n, k, gap, in, out, nk, bias, /*km=*/true});
        }
        check_integers({200, 65, 17, 1, in, out, nk, bias});
      }
    }
  }
}

TEST_P(CpuGemm, TakesAColumnOfAWiderMatrixAsB) {
  Matrix a(3, 5, DType::fp32), wide(5, 7, DType::fp32), c(3, 1, DType::fp32);
  a.fill([](int64_t i, int64_t j) { return static_cast<double>(hashed(i, j, 1)); });
  wide.fill([](int64_t i, int64_t j) { return static_cast<double>(hashed(i, j, 2)); });
  TensorView column = wide.view;
  column.sizes[1] = 1, column.strides[1] = 9;  // which nobody steps
  ASSERT_TRUE(cpu_gemm({.a = a.view, .b = column, .c = c.view}).ok());
  for (int64_t i = 0; i < 3; ++i) {
    double want = 0;
    for (int64_t k = 0; k < 5; ++k) want += a.get(i, k) * wide.get(k, 0);
    EXPECT_EQ(c.get(i, 0), want) << i;
  }
}

TEST_P(CpuGemm, WithoutKIsBiasAndWithoutRowsNothing) {
  Matrix a(3, 0, DType::fp32), b(0, 4, DType::fp32), c(3, 4, DType::fp32), bias(1, 4, DType::fp32);
  bias.fill([](int64_t, int64_t j) { return static_cast<double>(j + 1); });
  const TensorView vector = TensorView::contiguous(bias.bytes.data(), DType::fp32, {4});
  ASSERT_TRUE(cpu_gemm({.a = a.view, .b = b.view, .c = c.view, .bias = vector}).ok());
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t j = 0; j < 4; ++j) EXPECT_EQ(c.get(i, j), static_cast<double>(j + 1));
  }
  EXPECT_TRUE(cpu_gemm({.a = a.view.rows(0, 0), .b = b.view, .c = c.view.rows(0, 0)}).ok());
}

TEST_P(CpuGemm, AccumulatesSlabsOfK) {
  const int64_t m = 9, n = 21, k = 64;
  Matrix a(m, k, DType::bf16), b(n, k, DType::bf16), whole(m, n, DType::fp32), sum(m, n, DType::fp32);
  a.fill([](int64_t i, int64_t j) { return static_cast<double>(hashed(i, j, 4)); });
  b.fill([](int64_t i, int64_t j) { return static_cast<double>(hashed(i, j, 5)); });
  ASSERT_TRUE(cpu_gemm({.a = a.view, .b = b.view.transposed(), .c = whole.view}).ok());
  for (int64_t k0 = 0; k0 < k; k0 += 16) {
    TensorView slab_a = a.view, slab_b = b.view.transposed();
    slab_a.data = a.bytes.data() + k0 * 2;
    slab_b.data = b.bytes.data() + k0 * 2;
    slab_a.sizes[1] = slab_b.sizes[0] = 16;
    ASSERT_TRUE(cpu_gemm({.a = slab_a, .b = slab_b, .c = sum.view, .accumulate = k0 > 0}).ok());
  }
  EXPECT_EQ(whole.bytes, sum.bytes);
}

/// The blocks of a sum over rows of a: what ag_wgrad adds shard by shard.
TEST_P(CpuGemm, AccumulatesBlocksOfRowsOfATransposedA) {
  const int64_t m = 11, n = 21, k = 64;
  Matrix a(k, m, DType::bf16), b(k, n, DType::bf16), whole(m, n, DType::fp32), sum(m, n, DType::fp32);
  a.fill([](int64_t i, int64_t j) { return static_cast<double>(hashed(i, j, 4)); });
  b.fill([](int64_t i, int64_t j) { return static_cast<double>(hashed(i, j, 5)); });
  ASSERT_TRUE(cpu_gemm({.a = a.view.transposed(), .b = b.view, .c = whole.view}).ok());
  for (const auto& [first, rows] : {std::pair(0, 1), {1, 0}, {1, 40}, {41, 23}}) {
    const base::Status done = cpu_gemm({.a = a.view.rows(first, rows).transposed(),
                                        .b = b.view.rows(first, rows),
                                        .c = sum.view,
                                        .accumulate = first > 0});
    ASSERT_TRUE(done.ok()) << done.message();
  }
  EXPECT_EQ(whole.bytes, sum.bytes);
}

void check_blocks(DType in) {
  const int64_t m = 150, n = 70, k = 600;
  Matrix a(m, k, in), b(k, n, in), whole(m, n, in == DType::fp64 ? in : DType::fp32);
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  a.fill([&](int64_t, int64_t) { return normal(random); });
  b.fill([&](int64_t, int64_t) { return normal(random); });
  ASSERT_TRUE(cpu_gemm({.a = a.view, .b = b.view, .c = whole.view}).ok());
  const int64_t element = static_cast<int64_t>(dtype_bytes(in));
  for (const int64_t block : {1, 2, 7, 32, 100}) {
    Matrix c(m, n, whole.view.dtype);
    for (int64_t i = 0; i < m; i += block) {
      const int64_t rows = std::min(block, m - i);
      ASSERT_TRUE(cpu_gemm({.a = a.view.rows(i, rows), .b = b.view, .c = c.view.rows(i, rows)}).ok());
    }
    EXPECT_EQ(whole.bytes, c.bytes) << "rows in blocks of " << block << " " << dtype_name(in);
  }
  for (int64_t block = 11; block < n; block += 20) {
    Matrix c(m, n, whole.view.dtype);
    for (int64_t j = 0; j < n; j += block) {
      TensorView part_b = b.view, part_c = c.view;
      part_b.data = b.bytes.data() + j * element;
      part_c.data = c.bytes.data() + j * static_cast<int64_t>(dtype_bytes(c.view.dtype));
      part_b.sizes[1] = part_c.sizes[1] = std::min(block, n - j);
      ASSERT_TRUE(cpu_gemm({.a = a.view, .b = part_b, .c = part_c}).ok());
    }
    EXPECT_EQ(whole.bytes, c.bytes) << "columns in blocks of " << block;
  }
  Matrix c(m, n, whole.view.dtype);
  for (int64_t k0 = 0; k0 < k; k0 += 130) {
    TensorView slab_a = a.view;
    slab_a.data = a.bytes.data() + k0 * element;
    slab_a.sizes[1] = std::min<int64_t>(130, k - k0);
    ASSERT_TRUE(cpu_gemm({.a = slab_a, .b = b.view.rows(k0, slab_a.dim(1)), .c = c.view, .accumulate = k0 > 0}).ok());
  }
  EXPECT_EQ(whole.bytes, c.bytes) << "slabs of k";
}

TEST(ReferenceGemm, BlocksOfRowsColumnsAndSlabsKeepEveryBit) {
  ASSERT_TRUE(set_cpu_gemm_provider("reference").ok());
  for (const DType in : {DType::fp32, DType::bf16, DType::fp16, DType::fp64}) check_blocks(in);
  ASSERT_TRUE(set_cpu_gemm_provider("auto").ok());
}

/// Blocks of rows may take another of its kernels: bits are kept with AVX-512, not without.
TEST(OnednnGemm, TheSameProductGivesTheSameBitsAndBlocksOfRowsAgreeToRounding) {
  if (base::Status s = set_cpu_gemm_provider("onednn"); !s.ok()) GTEST_SKIP() << s.message();
  const int64_t m = 150, n = 70, k = 600;
  Matrix a(m, k, DType::fp32), b(k, n, DType::fp32), whole(m, n, DType::fp32), again(m, n, DType::fp32);
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  a.fill([&](int64_t, int64_t) { return normal(random); });
  b.fill([&](int64_t, int64_t) { return normal(random); });
  for (Matrix* c : {&whole, &again}) ASSERT_TRUE(cpu_gemm({.a = a.view, .b = b.view, .c = c->view}).ok());
  EXPECT_EQ(whole.bytes, again.bytes);
  for (const int64_t block : {1, 2, 7, 32, 100}) {
    Matrix c(m, n, DType::fp32);
    for (int64_t i = 0; i < m; i += block) {
      const int64_t rows = std::min(block, m - i);
      ASSERT_TRUE(cpu_gemm({.a = a.view.rows(i, rows), .b = b.view, .c = c.view.rows(i, rows)}).ok());
    }
    const double bound = static_cast<double>(k) * std::ldexp(1.0, -24) * static_cast<double>(k);  // |a b| is about 2/3
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) ASSERT_NEAR(c.get(i, j), whole.get(i, j), bound) << "blocks of " << block;
  }
  ASSERT_TRUE(set_cpu_gemm_provider("auto").ok());
}

TEST_P(CpuGemm, NormalDataStayNearFp64) {
  const int64_t m = 20, n = 30, k = 1000;
  for (const DType in : {DType::fp32, DType::bf16, DType::fp16}) {
    Matrix a(m, k, in), b(k, n, in), c(m, n, DType::fp32);
    std::mt19937 random(3);
    std::normal_distribution<double> normal;
    a.fill([&](int64_t, int64_t) { return normal(random); });
    b.fill([&](int64_t, int64_t) { return normal(random); });
    ASSERT_TRUE(cpu_gemm({.a = a.view, .b = b.view, .c = c.view}).ok());
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double want = 0, magnitude = 0;
        for (int64_t l = 0; l < k; ++l) {
          want += a.get(i, l) * b.get(l, j);
          magnitude += std::abs(a.get(i, l) * b.get(l, j));
        }
        // Worst case of a chain of k additions in fp32.
        ASSERT_NEAR(c.get(i, j), want, magnitude * static_cast<double>(k) * std::ldexp(1.0, -24)) << dtype_name(in);
      }
    }
  }
}

TEST_P(CpuGemm, RefusesWhatItCannotDo) {
  Matrix a(2, 3, DType::fp32), b(3, 4, DType::fp32), c(2, 4, DType::fp32), bf(2, 4, DType::bf16);
  const auto message = [](const GemmArgs& args) {
    const base::Status s = cpu_gemm(args);
    EXPECT_EQ(s.code(), Errc::invalid_argument);
    return s.message();
  };
  EXPECT_NE(message({.a = a.view, .b = c.view, .c = c.view}).find("a (2, 3) times b (2, 4) into c (2, 4)"),
            std::string::npos);
  TensorView flat = a.view, deep = c.view;
  flat.ndim = 1, deep.ndim = 3;
  EXPECT_NE(message({.a = flat, .b = b.view, .c = c.view}).find("got 1, 2, 2"), std::string::npos);
  EXPECT_NE(message({.a = a.view, .b = b.view, .c = deep}).find("got 2, 2, 3"), std::string::npos);
  EXPECT_NE(message({.a = a.view, .b = b.view, .c = bf.view}).find("got bf16"), std::string::npos);
  Matrix bf_b(4, 4, DType::bf16);
  EXPECT_NE(message({.a = bf.view, .b = bf_b.view, .c = bf.view, .accumulate = true}).find("fp32 or fp64, got bf16"),
            std::string::npos);
  TensorView apart = a.view;  // neither dimension is contiguous
  apart.strides = {2, 5};
  EXPECT_NE(message({.a = apart, .b = b.view, .c = c.view}).find("contiguous in K or M"), std::string::npos);
  EXPECT_NE(message({.a = a.view, .b = b.view, .c = c.view, .bias = a.view}).find("bias must be (4)"),
            std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Providers, CpuGemm, ::testing::Values("reference", "onednn"),
                         [](const auto& test) { return std::string(test.param); });

TEST(CpuGemmProvider, NamesItselfAndRefusesUnknownNames) {
  ASSERT_TRUE(set_cpu_gemm_provider("reference").ok());
  EXPECT_EQ(cpu_gemm_provider(), "reference");
  ASSERT_TRUE(set_cpu_gemm_provider("auto").ok());
  if (cpu_gemm_provider() != "reference") {
    EXPECT_EQ(set_cpu_gemm_provider("onednn").message(), "") << "auto has it";
  }
  const base::Status s = set_cpu_gemm_provider("mkl");
  EXPECT_EQ(s.code(), Errc::invalid_argument);
  EXPECT_NE(s.message().find("\"mkl\", wanted auto, reference or onednn"), std::string::npos);
}

}  // namespace
}  // namespace overlace::exec
