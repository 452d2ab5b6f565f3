#include "bench/gemm_core/problem.h"

#include <cmath>

namespace overlace::bench {
namespace {

constexpr uint64_t kStreamA = 1, kStreamB = 1000;
Normal left(uint64_t seed) { return Normal{seed, kStreamA, 1.0, 0, 0}; }
Normal right(uint64_t seed, int64_t k) { return Normal{seed, kStreamB, 1.0 / std::sqrt(static_cast<double>(k)), 0, 0}; }

}  // namespace

base::Result<Problem> Problem::create(const Shape& shape, DType dtype, bool b_is_kn, Gpu& gpu, uint64_t seed) {
  Problem p;
  p.shape_ = shape;
  p.dtype_ = dtype;
  p.b_is_kn_ = b_is_kn;
  p.seed_ = seed;
  const auto bytes = [](int64_t rows, int64_t cols) { return static_cast<size_t>(rows * cols * 2); };
  const size_t touched = bytes(shape.m, shape.k) + bytes(shape.n, shape.k) + bytes(shape.m, shape.n);
  const size_t wanted = 2 * static_cast<size_t>(gpu.describe().l2_bytes);
  const size_t sets = wanted / touched + 2;
  void* const stream = gpu.stream().cuda_stream;
  for (size_t set = 0; set < sets; ++set) {
    void* parts[4] = {};
    const size_t sizes[] = {bytes(shape.m, shape.k), bytes(shape.n, shape.k), bytes(shape.m, shape.n),
                            b_is_kn ? bytes(shape.n, shape.k) : 16};
    for (int i = 0; i < 4; ++i) {
      auto block = gpu.alloc(sizes[i]);
      if (!block.ok()) return block.status();
      parts[i] = *block;
    }
    const auto weights = TensorView::contiguous(parts[1], dtype, {shape.n, shape.k});
    OVERLACE_TRY(fill_normal(TensorView::contiguous(parts[0], dtype, {shape.m, shape.k}), left(seed + set), stream));
    OVERLACE_TRY(fill_normal(weights, right(seed + set, shape.k), stream));
    if (b_is_kn) OVERLACE_TRY(transpose(weights, parts[3], stream));
    p.a_.push_back(parts[0]);
    p.b_.push_back(b_is_kn ? parts[3] : parts[1]);
    p.c_.push_back(parts[2]);
  }
  OVERLACE_TRY(gpu.synchronize());
  return p;
}

base::Result<Check> Problem::check(int64_t samples, void* stream) const {
  const Factor factor{left(seed_), right(seed_, shape_.k), shape_.k};
  return check_product(output(0), &factor, 1, 0, dtype_, samples, seed_ + 99, stream);
}

base::Result<Competitor> core_competitor(const Problem& problem, const gemm_core::Instance& instance,
                                         const CoreSettings& settings, uint32_t* error, Gpu& gpu) {
  Competitor out;
  out.name = base::format("{} {}{}{}", instance.name, settings.sweep == TileSweep::along_n ? "n" : "m",
                          settings.swizzle, settings.uses_pdl ? "" : " late");
  auto prepared = std::make_shared<std::vector<PreparedPlain>>();
  const Shape& s = problem.shape();
  for (int set = 0; set < problem.sets(); ++set) {
    GemmArgs args;
    args.a = problem.a(set);
    args.b = problem.b(set);
    args.c = problem.c(set);
    args.m = s.m;
    args.n = s.n;
    args.k = s.k;
    args.lda = s.k;
    args.ldb = problem.b_is_kn() ? s.n : s.k;
    args.ldc = s.n;
    args.sweep = settings.sweep;
    args.swizzle = settings.swizzle;
    args.error = error;
    auto one = prepare_plain(instance, args);
    if (!one.ok()) return one.status();
    prepared->push_back(*one);
  }
  const bool early = settings.uses_pdl;
  auto* stream = static_cast<cudaStream_t>(gpu.stream().cuda_stream);
  out.enqueue = [prepared, early, stream](int set) {
    return launch_plain((*prepared)[static_cast<size_t>(set)], early, stream);
  };
  return out;
}

base::Result<uint32_t> take_error(uint32_t* error) {
  uint32_t word = 0;
  cudaError_t e = cudaMemcpy(&word, error, sizeof word, cudaMemcpyDeviceToHost);
  if (e == cudaSuccess) e = cudaMemset(error, 0, sizeof word);
  if (e != cudaSuccess) return base::error(Errc::cuda, "error word: {}", cudaGetErrorString(e));
  return word;
}

}  // namespace overlace::bench
