// C interface between cpu_gemm and the oneDNN provider, a shared object of its own that is opened at run time.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

/// c (m, n) (+)= a (m, k) b (k, n) + bias (n); row-major, leading dimensions in elements. dtypes are overlace::DType.
struct OverlaceOnednnGemm {
  int64_t m, n, k;
  int64_t lda, ldb, ldc;
  const void* a;
  const void* b;
  const void* bias;  // of c's dtype, or null
  void* c;
  int32_t in, out;
  int32_t a_is_km;  // a is stored (k, m), m contiguous, row pitch lda; else (m, k)
  int32_t b_is_nk;  // b is stored (n, k), k contiguous, row pitch ldb; else (k, n)
  int32_t accumulate;
};

/// 0: done; 1: this oneDNN or this CPU has no such product; 2: failed, `error` says why. Any thread; uses only the
/// calling thread.
using OverlaceOnednnRun = int (*)(const OverlaceOnednnGemm*, char* error, size_t error_bytes);
/// "2.6.3"
using OverlaceOnednnVersion = const char* (*)();

inline constexpr char kOverlaceOnednnRun[] = "overlace_onednn_run";
inline constexpr char kOverlaceOnednnVersion[] = "overlace_onednn_version";

}  // extern "C"
