// What the host side of all kernels of the mainloop shares: tensor maps, the grid that fits, the launch.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "src/base/ceil_div_pod.h"
#include "src/base/status.h"
#include "src/gemm_core/config.h"
#include "src/spec/fused_pod.h"

namespace overlace::gemm_core {

base::Status cuda_status(cudaError_t e, const char* call);

/// A row-major matrix as boxes of (box_rows, box_cols).
struct Matrix {
  const char* name;
  const void* data;
  int64_t rows, cols, pitch;
  int box_rows, box_cols;
};
base::Status encode(const Matrix& x, DType dtype, CUtensorMap* map);

/// Matrices (rows * halves, cols) of 16-bit elements as boxes of one matrix, 64 columns: as many rows of each half in
/// turn as make `box_rows`.
inline constexpr int kStackColumns = 64;
struct Stack {
  const char* name;
  const void* data;
  int64_t matrices, rows, cols, matrix_pitch, pitch;
  int halves, box_rows;
};
base::Status encode_stack(const Stack& x, DType dtype, CUtensorMap* map);

/// Operand as validate_operand wants it: 16-byte aligned, rows a multiple of 8 elements apart and at least `cols`.
struct Operand {
  const char* name;
  const void* data;
  int64_t pitch, cols;
};
base::Status validate_operand(const Operand& x);
/// Matrices (rows, columns) whose rows are `pitch` elements apart: a multiple of 8 elements apart, none inside another.
base::Status validate_stack(const char* name, int64_t matrix_pitch, int64_t rows, int64_t columns, int64_t pitch);

/// Boxes in which a CTA loads A and B and stores C.
inline Matrix as_a(const ConfigSpec& s, const Matrix& whole) {
  return {whole.name, whole.data, whole.rows, whole.cols, whole.pitch, s.tile_m / s.cluster_n, kTileK};
}
inline Matrix as_b(const ConfigSpec& s, const void* data, int64_t n, int64_t k, int64_t pitch) {
  return s.b_major == BMajor::k ? Matrix{"b", data, n, k, pitch, s.tile_n / s.cluster_m, kTileK}
                                : Matrix{"b", data, k, n, pitch, kTileK / s.cluster_m, 64};
}
/// A whose rows are groups of K.
inline Matrix as_a_of_groups(const void* data, int64_t k, int64_t m, int64_t pitch) {
  return {"a", data, k, m, pitch, kTileK, 64};
}
/// B that is a stack of (halves N, K) or of (K, N), and C that is one of (M, N).
inline Stack as_b_stack(const ConfigSpec& s, const void* data, int64_t matrices, int64_t n, int64_t k,
                        int64_t matrix_pitch, int64_t pitch) {
  return s.b_major == BMajor::k ? Stack{"b", data, matrices, n, k, matrix_pitch, pitch, s.halves, s.tile_n}
                                : Stack{"b", data, matrices, k, n, matrix_pitch, pitch, 1, kTileK};
}
inline Stack as_c_stack(const ConfigSpec& s, const void* data, int64_t matrices, int64_t m, int64_t n,
                        int64_t matrix_pitch, int64_t pitch) {
  return {"c", data, matrices, m, n, matrix_pitch, pitch, 1, s.store_rows()};
}
/// Rows of B that a CTA loads of so many tokens: whole chunks of 8, as many for each CTA of a column.
inline int64_t token_rows(const ConfigSpec& s, int64_t tokens) {
  return one_shot_tokens(base::ceil_div(tokens, s.cluster_m));
}
/// B of swapped operands: in boxes of the chunks of 8 tokens that there are. Rows of a stage behind them hold what they
/// held: their sums are stored nowhere. A box of 64 with 17 to 32 of them in the tensor took a tenth longer.
inline Matrix as_tokens(const ConfigSpec& s, const void* data, int64_t tokens, int64_t k, int64_t pitch) {
  Matrix out = as_b(s, data, tokens, k, pitch);
  out.box_rows = static_cast<int>(token_rows(s, tokens));
  return out;
}
inline Matrix as_c(const ConfigSpec& s, const void* data, int64_t rows, int64_t n, int64_t pitch) {
  return {"c", data, rows, n, pitch, s.store_rows(), s.store_cols()};
}

/// Clusters of this kernel that run at once on the current device; `co_residency` if none does. Asks the driver once.
base::Result<int> count_clusters(const void* kernel, const ConfigSpec& spec, const char* name);
/// Whether it was asked for the current device before, so that the kernel is loaded there.
bool has_counted_clusters(const void* kernel);

/// Queues. `uses_pdl`: programmatic dependent launch, so CTAs may be set up while the grid before in the stream still
/// runs.
struct Grid {
  const void* kernel;
  ConfigSpec spec;
  int clusters;
  bool uses_pdl;
};
base::Status launch_grid(const Grid& grid, const void* params, cudaStream_t stream);

}  // namespace overlace::gemm_core
