// One GEMM of the bench: operands, and competitors that compute it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/common/data.h"
#include "bench/common/gpu.h"
#include "bench/common/plain_gemm.cuh"
#include "src/spec/tile_order_pod.h"

namespace overlace::bench {

struct Shape {
  std::string name;
  int64_t m = 0, n = 0, k = 0;
};

/// A (M, K) normal(0, 1), B (N, K) normal(0, 1) / sqrt(K), C (M, N), in as many sets as it takes to touch twice the L2
/// between two uses. `transposed`: the same B as a (K, N) matrix.
class Problem {
 public:
  static base::Result<Problem> create(const Shape& shape, DType dtype, bool b_is_kn, Gpu& gpu, uint64_t seed);
  const Shape& shape() const { return shape_; }
  DType dtype() const { return dtype_; }
  bool b_is_kn() const { return b_is_kn_; }
  int sets() const { return static_cast<int>(a_.size()); }
  const void* a(int set) const { return a_[static_cast<size_t>(set)]; }
  const void* b(int set) const { return b_[static_cast<size_t>(set)]; }
  void* c(int set) const { return c_[static_cast<size_t>(set)]; }
  TensorView output(int set) const { return TensorView::contiguous(c(set), dtype_, {shape_.m, shape_.n}); }
  /// Compares sampled elements of set 0's output with fp64.
  base::Result<Check> check(int64_t samples, void* stream) const;

 private:
  Shape shape_;
  DType dtype_ = DType::bf16;
  bool b_is_kn_ = false;
  uint64_t seed_ = 0;
  std::vector<void*> a_, b_, c_;
};

/// Something that computes C of a set.
struct Competitor {
  std::string name;
  std::function<base::Status(int set)> enqueue;
  std::string failure;  // why it is not timed
  double max_error = 0, screen_us = 0;
  std::vector<double> burst_us;
};

/// cuBLASLt, opened at run time: one competitor per heuristic of this problem, best first by its own account. `handle`
/// keeps the library's objects alive.
struct LibraryGemm {
  std::vector<Competitor> competitors;
  std::shared_ptr<void> handle;
};
base::Result<LibraryGemm> library_competitors(const Problem& problem, int count, Gpu& gpu);

/// gemm_core with one instance and order of tiles.
struct CoreSettings {
  TileSweep sweep = TileSweep::along_n;
  int swizzle = 8;
  bool uses_pdl = true;
};
base::Result<Competitor> core_competitor(const Problem& problem, const gemm_core::Instance& instance,
                                         const CoreSettings& settings, uint32_t* error, Gpu& gpu);

/// The kernel's error word since the last call of this; 0 is good. Synchronises.
base::Result<uint32_t> take_error(uint32_t* error);

}  // namespace overlace::bench
