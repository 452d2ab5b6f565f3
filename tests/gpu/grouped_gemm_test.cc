// The grouped GEMM on its own, of weights that lie either way, and gradients of weights, whose K is grouped: exact sums
// at all places of tiles, gated ones, empty groups, no items at all, and a measurement that is asked for by name.
#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include "src/base/ceil_div_pod.h"
#include "src/ops/fused/grouped_launch.cuh"
#include "src/ops/fused/wgrad_launch.cuh"
#include "src/spec/work_order_pod.h"
#include "tests/gpu/support/values.h"

namespace overlace::test {
namespace {

namespace core = ops::fused;

void* upload(const void* from, size_t bytes) {
  void* out = nullptr;
  EXPECT_CUDA(cudaMalloc(&out, std::max<size_t>(bytes, 1)));
  EXPECT_CUDA(cudaMemcpy(out, from, bytes, cudaMemcpyDefault));
  return out;
}

uint32_t word_at(const void* device) {
  uint32_t out = 0;
  EXPECT_CUDA(cudaMemcpy(&out, device, 4, cudaMemcpyDefault));
  return out;
}

/// Normal numbers, the same ones over and over.
void repeat_normal(std::vector<char>& to) {
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  const size_t some = std::min<size_t>(to.size(), size_t{1} << 20);
  for (size_t i = 0; i < some / 2; ++i)
    base::store_element(to.data(), DType::bf16, static_cast<int64_t>(i), normal(random));
  for (size_t i = some; i < to.size(); i += some) std::memcpy(to.data() + i, to.data(), std::min(some, to.size() - i));
}

/// Groups of rows and their matrices in device memory. Values are -1, 0 and 1, those of the pool's gaps NaN.
class Grouped {
 public:
  Grouped(const core::Instance& instance, std::vector<int64_t> rows, int64_t n, int64_t k, bool is_filled = true)
      : instance_(instance),
        rows_(std::move(rows)),
        n_(n),
        k_(k),
        halves_(instance.spec.halves),
        c_dtype_(instance.spec.stores_fp32 ? DType::fp32 : instance.spec.dtype) {
    std::vector<uint4> items;
    const auto columns = base::ceil_div(n, int64_t{instance.spec.tile_n} * instance.spec.cluster_n / halves_);
    int64_t tiles = 0;
    for (size_t group = 0; group < rows_.size(); ++group) {
      first_.push_back(tiles * 128);
      const int64_t own = base::ceil_div(rows_[group], int64_t{128});
      for (int64_t column = 0; column < columns; ++column)
        for (int64_t row = 0; row < own; ++row)
          items.push_back({static_cast<uint32_t>(Work::product), static_cast<uint32_t>(tiles + row),
                           static_cast<uint32_t>(column), static_cast<uint32_t>(group)});
      tiles += own;
    }
    const auto count = static_cast<int32_t>(items.size());
    items.push_back({kWorks, 0, 0, 0});
    m_ = std::max<int64_t>(tiles, 1) * 128;
    const auto matrices = static_cast<int64_t>(rows_.size());
    std::vector<char> a(static_cast<size_t>(m_ * k) * 2), b(static_cast<size_t>(matrices * halves_ * n * k) * 2);
    const DType dtype = instance.spec.dtype;
    if (is_filled) {
      for (int64_t i = 0; i < m_ * k; ++i) base::store_element(a.data(), dtype, i, NAN);
      for (size_t group = 0; group < rows_.size(); ++group)
        for (int64_t i = 0; i < rows_[group]; ++i)
          for (int64_t j = 0; j < k; ++j)
            base::store_element(a.data(), dtype, (first_[group] + i) * k + j, value_a(first_[group] + i, j));
      for (int64_t i = 0; i < matrices * halves_ * n; ++i)
        for (int64_t j = 0; j < k; ++j) base::store_element(b.data(), dtype, place_b(i, j), value_b(i, j));
    }
    if (!is_filled) {
      repeat_normal(a);
      repeat_normal(b);
    }
    std::vector<float> weights;
    for (int64_t i = 0; i < m_; ++i) weights.push_back(weight(i));
    a_ = upload(a.data(), a.size());
    b_ = upload(b.data(), b.size());
    weights_ = upload(weights.data(), weights.size() * 4);
    items_ = upload(items.data(), items.size() * sizeof(uint4));
    num_items_ = upload(&count, 4);
    const std::vector<char> zeros(1024);
    counter_ = upload(zeros.data(), 512);
    error_ = upload(zeros.data(), 512);
    const std::vector<char> unwritten(static_cast<size_t>(m_ * n) * dtype_bytes(c_dtype_), '\xff');
    c_ = upload(unwritten.data(), unwritten.size());
  }
  ~Grouped() {
    for (void* p : {a_, b_, c_, weights_, items_, num_items_, counter_, error_}) EXPECT_CUDA(cudaFree(p));
  }
  Grouped(const Grouped&) = delete;
  Grouped& operator=(const Grouped&) = delete;

  core::PreparedGrouped prepare() const {
    core::GroupedArgs g;
    g.a = a_;
    g.b = b_;
    g.c = c_;
    g.m = m_;
    g.n = g.ldc = n_;
    g.k = g.lda = k_;
    g.ldb = is_k_major() ? k_ : n_;
    g.matrices = static_cast<int64_t>(rows_.size());
    g.matrix_pitch = halves_ * n_ * k_;
    g.items = static_cast<const uint4*>(items_);
    g.num_items = static_cast<const int32_t*>(num_items_);
    g.counter = static_cast<uint32_t*>(counter_);
    g.row_weights = static_cast<const float*>(weights_);
    g.error = static_cast<uint32_t*>(error_);
    const base::Result<core::PreparedGrouped> prepared = core::prepare_grouped(instance_, g);
    EXPECT_TRUE(prepared.ok()) << prepared.status().message();
    return *prepared;
  }

  /// "" or the first element that is wrong, of as many as it takes a second to compute.
  std::string mismatch() const {
    std::vector<char> c(static_cast<size_t>(m_ * n_) * dtype_bytes(c_dtype_));
    EXPECT_CUDA(cudaMemcpy(c.data(), c_, c.size(), cudaMemcpyDefault));
    for (size_t group = 0; group < rows_.size(); ++group)
      for (int64_t i = 0; i < rows_[group]; ++i)
        for (int64_t j = (i * 7) % 5; j < n_; j += 5) {
          const int64_t row = first_[group] + i, first = static_cast<int64_t>(group) * halves_ * n_;
          const double gate = sum(row, first + j);
          const double want =
              halves_ == 1 ? gate : gate / (1 + std::exp(-gate)) * sum(row, first + n_ + j) * weight(row);
          const double got = base::load_element(c.data(), c_dtype_, row * n_ + j);
          const double most = c_dtype_ == DType::fp32 ? 0
                              : halves_ == 1          ? std::abs(want) / 256
                                                      : std::abs(want) / 100 + 1e-4;
          if (!(std::abs(got - want) <= most))
            return base::format("group {}, row {}, column {}: {}, wanted {}", group, i, j, got, want);
        }
    return "";
  }
  uint32_t error() const { return word_at(error_); }
  double flops() const {
    const int64_t rows = std::accumulate(rows_.begin(), rows_.end(), int64_t{0});
    return 2.0 * static_cast<double>(rows) * static_cast<double>(n_ * halves_) * static_cast<double>(k_);
  }

 private:
  bool is_k_major() const { return instance_.spec.b_major == core::BMajor::k; }
  /// Element j of K of row i of all matrices' rows of N.
  int64_t place_b(int64_t i, int64_t j) const { return is_k_major() ? i * k_ + j : i / n_ * n_ * k_ + j * n_ + i % n_; }
  static double value_a(int64_t i, int64_t j) { return value_of(1, i, j); }
  static double value_b(int64_t i, int64_t j) { return value_of(2, i, j); }
  static float weight(int64_t i) { return static_cast<float>(i % 5 + 1) / 4; }
  double sum(int64_t row, int64_t weights) const {
    double out = 0;
    for (int64_t j = 0; j < k_; ++j) out += value_a(row, j) * value_b(weights, j);
    return out;
  }

  const core::Instance& instance_;
  std::vector<int64_t> rows_, first_;
  int64_t n_, k_, m_ = 0;
  int halves_;
  DType c_dtype_;
  void *a_ = nullptr, *b_ = nullptr, *c_ = nullptr, *weights_ = nullptr, *items_ = nullptr, *num_items_ = nullptr,
       *counter_ = nullptr, *error_ = nullptr;
};

TEST(GpuGroupedGemm, GivesTheSumsOfEachGroup) {
  OVERLACE_NEED_GPUS(1);
  EXPECT_CUDA(cudaSetDevice(0));
  for (const core::Instance& instance : core::instances(core::Kernel::grouped))
    for (const auto& [rows, n, k] : {std::tuple{std::vector<int64_t>{300, 0, 77, 1}, int64_t{520}, int64_t{1032}},
                                     {std::vector<int64_t>{5}, int64_t{8}, int64_t{8}},
                                     {std::vector<int64_t>{128, 256}, int64_t{256}, int64_t{64}},
                                     {std::vector<int64_t>{0, 1, 127, 128, 129}, int64_t{200}, int64_t{328}},
                                     {std::vector<int64_t>{0, 0}, int64_t{40}, int64_t{72}}}) {
      const Grouped problem(instance, rows, n, k);
      const core::PreparedGrouped prepared = problem.prepare();
      for (int repetition = 0; repetition < 2; ++repetition) ASSERT_TRUE(core::launch_grouped(prepared, nullptr).ok());
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      EXPECT_EQ(problem.mismatch(), "") << instance.name << ", " << rows.size() << " groups, N " << n << ", K " << k;
      EXPECT_EQ(problem.error(), 0u);
    }
}

/// Groups of rows of two operands in device memory, and room for a matrix of each group with gaps that nobody writes.
/// Values are -1, 0 and 1; what lies between the end of a group and the next multiple of 128 rows is NaN.
class Gradients {
 public:
  Gradients(const core::Instance& instance, std::vector<int64_t> rows, int64_t m, int64_t n, bool is_filled = true)
      : instance_(instance), rows_(std::move(rows)), m_(m), n_(n), ldc_(n + 8), pitch_((m + 1) * (n + 8)) {
    std::vector<core::RowGroup> groups;
    for (const int64_t count : rows_) {
      groups.push_back({static_cast<int32_t>(k_), static_cast<int32_t>(count)});
      k_ += base::round_up(count, int64_t{128});
    }
    k_ = std::max<int64_t>(k_, 128);
    std::vector<char> a(static_cast<size_t>(k_ * m) * 2), b(static_cast<size_t>(k_ * n) * 2);
    if (is_filled) {
      fill(a, groups, 3, m);
      fill(b, groups, 4, n);
    } else {
      repeat_normal(a);
      repeat_normal(b);
    }
    for (const core::RowGroup& group : groups) first_.push_back(group.first);
    const std::vector<uint4> items = core::wgrad_items(instance.spec, m, n, static_cast<int64_t>(rows_.size()));
    a_ = upload(a.data(), a.size());
    b_ = upload(b.data(), b.size());
    groups_ = upload(groups.data(), groups.size() * sizeof(core::RowGroup));
    items_ = upload(items.data(), items.size() * sizeof(uint4));
    const std::vector<char> zeros(1024), unwritten(bytes(), '\xff');
    counter_ = upload(zeros.data(), 512);
    error_ = upload(zeros.data(), 512);
    c_ = upload(unwritten.data(), unwritten.size());
  }
  ~Gradients() {
    for (void* p : {a_, b_, c_, groups_, items_, counter_, error_}) EXPECT_CUDA(cudaFree(p));
  }
  Gradients(const Gradients&) = delete;
  Gradients& operator=(const Gradients&) = delete;

  core::WgradArgs args() const {
    core::WgradArgs g;
    g.a = a_;
    g.b = b_;
    g.c = c_;
    g.m = g.lda = m_;
    g.n = g.ldb = n_;
    g.k = k_;
    g.matrices = static_cast<int64_t>(rows_.size());
    g.matrix_pitch = pitch_;
    g.ldc = ldc_;
    g.groups = static_cast<const core::RowGroup*>(groups_);
    g.items = static_cast<const uint4*>(items_);
    g.counter = static_cast<uint32_t*>(counter_);
    g.error = static_cast<uint32_t*>(error_);
    return g;
  }
  core::PreparedWgrad prepare() const {
    const base::Result<core::PreparedWgrad> prepared = core::prepare_wgrad(instance_, args());
    EXPECT_TRUE(prepared.ok()) << prepared.status().message();
    return *prepared;
  }

  std::vector<char> result() const {
    std::vector<char> c(bytes());
    EXPECT_CUDA(cudaMemcpy(c.data(), c_, c.size(), cudaMemcpyDefault));
    return c;
  }
  /// "" or the first element that is wrong, or was written where there is none.
  std::string mismatch() const {
    const std::vector<char> c = result();
    for (size_t group = 0; group < rows_.size(); ++group)
      for (int64_t i = 0; i <= m_; ++i)
        for (int64_t j = 0; j < ldc_; ++j) {
          const int64_t at = static_cast<int64_t>(group) * pitch_ + i * ldc_ + j;
          uint16_t bits = 0;
          std::memcpy(&bits, c.data() + at * 2, 2);
          const bool is_gap = i == m_ || j >= n_;
          if (is_gap && bits != 0xffff) return base::format("group {}, gap at {}, {}: {}", group, i, j, bits);
          if (is_gap) continue;
          const double want = sum(group, i, j), got = base::load_element(c.data(), instance_.spec.dtype, at);
          if (!(std::abs(got - want) <= std::abs(want) / 256))
            return base::format("group {}, row {}, column {}: {}, wanted {}", group, i, j, got, want);
        }
    return "";
  }
  uint32_t error() const { return word_at(error_); }
  uint32_t counter() const { return word_at(counter_); }
  double flops() const {
    const int64_t rows = std::accumulate(rows_.begin(), rows_.end(), int64_t{0});
    return 2.0 * static_cast<double>(rows) * static_cast<double>(m_) * static_cast<double>(n_);
  }

 private:
  size_t bytes() const { return rows_.size() * static_cast<size_t>(pitch_) * 2; }
  void fill(std::vector<char>& to, const std::vector<core::RowGroup>& groups, int tensor, int64_t columns) const {
    const DType dtype = instance_.spec.dtype;
    for (int64_t i = 0; i < k_ * columns; ++i) base::store_element(to.data(), dtype, i, NAN);
    for (const core::RowGroup& group : groups)
      for (int64_t row = group.first; row < group.first + group.rows; ++row)
        for (int64_t j = 0; j < columns; ++j)
          base::store_element(to.data(), dtype, row * columns + j, value_of(tensor, row, j));
  }
  double sum(size_t group, int64_t i, int64_t j) const {
    double out = 0;
    for (int64_t row = first_[group]; row < first_[group] + rows_[group]; ++row)
      out += value_of(3, row, i) * value_of(4, row, j);
    return out;
  }

  const core::Instance& instance_;
  std::vector<int64_t> rows_, first_;
  int64_t m_, n_, ldc_, pitch_, k_ = 0;
  void *a_ = nullptr, *b_ = nullptr, *c_ = nullptr, *groups_ = nullptr, *items_ = nullptr, *counter_ = nullptr,
       *error_ = nullptr;
};

TEST(GpuGroupedWgrad, AddsTheRowsOfEachGroupAndNoOthers) {
  OVERLACE_NEED_GPUS(1);
  EXPECT_CUDA(cudaSetDevice(0));
  for (const core::Instance& instance : core::instances(core::Kernel::wgrad))
    for (const auto& [rows, m, n] :
         {std::tuple{std::vector<int64_t>{0, 1, 127, 128, 129, 64, 300}, int64_t{136}, int64_t{264}},
          {std::vector<int64_t>{63, 65, 7}, int64_t{8}, int64_t{8}},
          {std::vector<int64_t>{640, 0, 0, 1023}, int64_t{128}, int64_t{256}},
          {std::vector<int64_t>{0, 0}, int64_t{40}, int64_t{72}},
          {std::vector<int64_t>(40, 5), int64_t{200}, int64_t{328}}}) {
      const Gradients problem(instance, rows, m, n);
      const core::PreparedWgrad prepared = problem.prepare();
      std::vector<char> first;
      for (int repetition = 0; repetition < 2; ++repetition) {
        ASSERT_TRUE(core::launch_wgrad(prepared, nullptr).ok());
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        if (repetition == 0) first = problem.result();
      }
      EXPECT_EQ(problem.mismatch(), "") << instance.name << ", " << rows.size() << " groups, M " << m << ", N " << n;
      EXPECT_EQ(problem.result(), first) << instance.name;
      EXPECT_EQ(problem.error(), 0u);
      EXPECT_EQ(problem.counter(), 0u);
    }
}

TEST(GpuGroupedWgrad, RefusesWhatItCannotTake) {
  OVERLACE_NEED_GPUS(1);
  EXPECT_CUDA(cudaSetDevice(0));
  const core::Instance& instance = core::instances(core::Kernel::wgrad)[0];
  const Gradients problem(instance, {3}, 16, 24);
  const auto said = [&](const core::WgradArgs& g) { return core::prepare_wgrad(instance, g).status().message(); };
  EXPECT_EQ(said({}), "fused kernel: m 0, n 0, k 0, matrices 0; wanted: all >= 1");
  core::WgradArgs bad = problem.args();
  bad.matrix_pitch = 16;
  EXPECT_EQ(said(bad), "gemm_core: matrices of c are 16 elements apart; wanted: a multiple of 8, >= 504");
  bad = problem.args();
  bad.groups = nullptr;
  EXPECT_EQ(said(bad), "fused kernel: groups, items, counter or error is null; wanted: all of them");
  const core::Instance& other = core::instances(core::Kernel::grouped)[0];
  EXPECT_EQ(core::prepare_wgrad(other, problem.args()).status().message(),
            base::format("fused kernel: instance {}; wanted: one with groups of k", other.name));
}

TEST(GpuGroupedGemm, RefusesWhatItCannotTake) {
  OVERLACE_NEED_GPUS(1);
  core::GroupedArgs g;
  const core::Instance& instance = core::instances(core::Kernel::grouped)[0];
  EXPECT_EQ(core::prepare_grouped(instance, g).status().message(),
            "fused kernel: m 0, n 0, k 0, matrices 0; wanted: all >= 1");
  const core::Instance& other = core::instances(core::Kernel::scatter)[0];
  EXPECT_EQ(core::prepare_grouped(other, g).status().message(),
            base::format("fused kernel: instance {}; wanted: one for a stack of matrices", other.name));
}

/// The best time of a launch, in ms.
float best_of(const std::function<base::Status()>& launch) {
  cudaEvent_t begin = nullptr, end = nullptr;
  EXPECT_CUDA(cudaEventCreate(&begin));
  EXPECT_CUDA(cudaEventCreate(&end));
  float best = 1e9f;
  for (int burst = 0; burst < 5; ++burst) {
    constexpr int kCalls = 20;
    EXPECT_CUDA(cudaEventRecord(begin));
    for (int call = 0; call < kCalls; ++call) EXPECT_TRUE(launch().ok());
    EXPECT_CUDA(cudaEventRecord(end));
    EXPECT_CUDA(cudaEventSynchronize(end));
    float ms = 0;
    EXPECT_CUDA(cudaEventElapsedTime(&ms, begin, end));
    best = std::min(best, ms / kCalls);
  }
  EXPECT_CUDA(cudaEventDestroy(begin));
  EXPECT_CUDA(cudaEventDestroy(end));
  return best;
}

const std::vector<std::tuple<std::vector<int64_t>, int64_t, int64_t>> kTimed = {
    {std::vector<int64_t>(64, 1024), 768, 2048},
    {std::vector<int64_t>(64, 1000), 768, 2048},
    {std::vector<int64_t>(4, 4096), 14336, 4096},
    {std::vector<int64_t>(8, 512), 4096, 4096}};

/// Disabled as it is no test: it prints what products take, asserts no time, and runs where it is asked for by
/// --gtest_also_run_disabled_tests --gtest_filter=*Takes*. A bench with records is to take its place.
TEST(GpuGroupedGemm, DISABLED_Takes) {
  OVERLACE_NEED_GPUS(1);
  EXPECT_CUDA(cudaSetDevice(0));
  for (const core::Instance& instance : core::instances(core::Kernel::grouped)) {
    const bool gates = instance.spec.halves == 2;
    for (const auto& [rows, n, k] : kTimed) {
      const Grouped problem(instance, rows, gates ? n : k, gates ? k : n, /*is_filled=*/false);
      const core::PreparedGrouped prepared = problem.prepare();
      const float ms = best_of([&] { return core::launch_grouped(prepared, nullptr); });
      std::printf("%s: %zu groups of %lld rows, N %lld, K %lld%s: %.1f us, %.0f TFLOP/s\n", instance.name, rows.size(),
                  static_cast<long long>(rows[0]), static_cast<long long>(gates ? 2 * n : k),
                  static_cast<long long>(gates ? k : n), gates ? ", gated" : "", static_cast<double>(ms) * 1e3,
                  problem.flops() / static_cast<double>(ms) / 1e9);
    }
  }
}

/// Disabled for the same reason.
TEST(GpuGroupedWgrad, DISABLED_Takes) {
  OVERLACE_NEED_GPUS(1);
  EXPECT_CUDA(cudaSetDevice(0));
  for (const core::Instance& instance : core::instances(core::Kernel::wgrad))
    for (const auto& [rows, m, n] : kTimed) {
      const Gradients problem(instance, rows, m, n, /*is_filled=*/false);
      const core::PreparedWgrad prepared = problem.prepare();
      const float ms = best_of([&] { return core::launch_wgrad(prepared, nullptr); });
      std::printf("%s: %zu groups of %lld rows, M %lld, N %lld: %.1f us, %.0f TFLOP/s\n", instance.name, rows.size(),
                  static_cast<long long>(rows[0]), static_cast<long long>(m), static_cast<long long>(n),
                  static_cast<double>(ms) * 1e3, problem.flops() / static_cast<double>(ms) / 1e9);
    }
}

}  // namespace
}  // namespace overlace::test
