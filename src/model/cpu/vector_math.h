// Loops of the CPU device and of the oracle that pay for wider vectors; chosen by what the processor has.
#pragma once

#include <cstdint>

namespace overlace::model::cpu {

/// c (rows, cols) += a (rows, depth) w (depth, 8); rows <= 4, cols <= 8, w packed and padded to 8 columns.
struct Fp64Block {
  const double *a, *w;
  double* c;
  int64_t a_pitch, c_pitch, rows, cols, depth;
};

struct VectorMath {
  /// n >= 1.
  float (*largest)(const float* x, int64_t n);
  /// x becomes exp(x - shift); their sum. For x <= shift; below -87 the value of exp(-87).
  double (*exp_sum)(float* x, int64_t n, float shift);
  void (*silu)(float* x, int64_t n);
  void (*gelu_tanh)(float* x, int64_t n);
  void (*fp64_block)(const Fp64Block& block);
};

const VectorMath& vector_math();
/// The one every processor runs, for tests.
const VectorMath& plain_vector_math();

}  // namespace overlace::model::cpu
