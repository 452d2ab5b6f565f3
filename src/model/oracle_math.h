// The heavy GEMMs of the fp64 oracle: on the CPU, or on a device that computes in fp64.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>

#include "overlace/dtype_pod.h"
#include "src/base/status.h"

namespace overlace::model {

/// Host memory in and out, row-major, nothing transposed but w.
class OracleMath {
 public:
  virtual ~OracleMath() = default;
  /// c (m, n) = a (m, k) w (n, k)^T, where `w` is of a floating dtype and every element is taken as it is.
  virtual base::Status gemm(const double* a, const void* w, DType w_dtype, double* c, int64_t m, int64_t n,
                            int64_t k) = 0;
  /// out (tokens, heads * dim) of q (tokens, heads * dim), k and v (tokens, kv_heads * dim): causal within sequences of
  /// `length`, keys within `window` (0: all), scores times 1 / sqrt(dim).
  struct Attention {
    const double *q, *k, *v;
    double* out;
    int64_t tokens, length, heads, kv_heads, dim, window;
  };
  virtual base::Status attention(const Attention& args) = 0;
};

/// GEMMs end with `aborted`, part way, once `stop` is requested.
std::unique_ptr<OracleMath> make_cpu_oracle_math(int threads, std::stop_token stop = {});
#ifdef OVERLACE_HAS_CUDA
base::Result<std::unique_ptr<OracleMath>> make_cuda_oracle_math(int device);
#endif

/// f(begin, end) on `threads` threads whose ranges make up [0, n); the first exception is rethrown.
void parallel_for(int64_t n, int threads, const std::function<void(int64_t, int64_t)>& f);

}  // namespace overlace::model
