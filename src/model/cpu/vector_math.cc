#include "src/model/cpu/vector_math.h"

#include <algorithm>
#include <cstring>

namespace overlace::model::cpu {
namespace {

namespace plain {
#define OVERLACE_TARGET
#include "src/model/cpu/vector_body.inl"
#undef OVERLACE_TARGET
}  // namespace plain

#if defined(__x86_64__)
namespace avx2 {
#define OVERLACE_TARGET __attribute__((target("avx2,fma")))
#include "src/model/cpu/vector_body.inl"
#undef OVERLACE_TARGET
}  // namespace avx2
#endif

}  // namespace

const VectorMath& plain_vector_math() { return plain::kFunctions; }

const VectorMath& vector_math() {
#if defined(__x86_64__)
  static const bool is_wide = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  if (is_wide) return avx2::kFunctions;
#endif
  return plain::kFunctions;
}

}  // namespace overlace::model::cpu
