// Device data for benches: normal values that any rank can recompute, and a check of products against fp64.
#pragma once

#include <cstdint>

#include "overlace/tensor.h"
#include "src/base/status.h"

namespace overlace::bench {

/// Element (row, col) of the matrix `stream` of `seed`: normal(0, 1) times `scale`, rounded to the tensor's dtype. The
/// value depends on nothing else, so that a rank can make any block of a peer's operand. `first_row`, `first_col`:
/// position of the view.
struct Normal {
  uint64_t seed = 0;
  uint64_t stream = 0;
  double scale = 1;
  int64_t first_row = 0, first_col = 0;
};
base::Status fill_normal(const TensorView& matrix, const Normal& values, void* cuda_stream);

/// One product of the sum that an output element is: sum over k of left(row, k) right(col, k).
struct Factor {
  Normal left, right;  // (rows, K) and (N, K)
  int64_t k = 0;
};

struct Check {
  double max_error = 0;  // largest |got - want| / rms(want) over the sample
  double rms_error = 0;
  int64_t sampled = 0;
  bool finite = true;
};
/// Compares `samples` pseudo-random elements of `out` (rows, N), whose row 0 is row `first_row` of left, with fp64.
base::Result<Check> check_product(const TensorView& out, const Factor* factors, int count, int64_t first_row,
                                  DType operand, int64_t samples, uint64_t seed, void* cuda_stream);

/// Largest |a - b| and whether every bit agrees; for full-coverage comparison of two competitors' outputs.
struct Difference {
  double max_abs = 0, rms = 0;  // rms of a
  bool same_bits = true;
};
base::Result<Difference> compare(const TensorView& a, const TensorView& b, void* cuda_stream);

}  // namespace overlace::bench
