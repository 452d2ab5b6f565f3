// GEMM and AllReduce or ReduceScatter of few tokens from the host: C = all rows, or each rank's, of the sum over ranks
// of A B, where each rank has a part of K.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "src/base/status.h"
#include "src/ops/fused/instances.h"
#include "src/ops/fused/one_shot.cuh"

namespace overlace::ops::fused {

/// All ranks make it alike.
struct OneShotState {
  const ChannelPod* channel = nullptr;
  uint64_t inbox = 0, pitch = 0;  // two buffers of every heap, all words kNotCome before anybody's first call
  uint32_t* calls = nullptr;      // one_shot_counts() words of device memory, 0
  uint32_t* places = nullptr;     // one more, 0
};
struct OneShotArgs {
  const void *a = nullptr, *b = nullptr;  // (M, K of this rank), (N, K of this rank)
  void* c = nullptr;                      // (my rows, N); an address even if there are none
  const void* bias = nullptr;             // (N), or null
  std::span<const int64_t> row_offsets;   // ranks + 1, my rows are those between two; empty: all M are everybody's
  int64_t m = 0, n = 0, k = 0, lda = 0, ldb = 0, ldc = 0;
  int most_clusters = 0;      // of a grid; 0: as many as run at once. The same in all calls with a state
  int grid_clusters = 0;      // of this call's grid, at most those; 0: as many
  uint32_t* error = nullptr;  // as GemmArgs::error
  OneShotState state;
};

/// Words that count the calls of a grid.
int one_shot_counts(const ConfigSpec& spec, int clusters);

/// Everything a launch needs; reusable while the pointers hold. Ranks may use different instances: what travels does
/// not depend on how tiles are shared.
struct PreparedOneShot {
  OneShotGemmParams params;
  const Instance* instance = nullptr;
  int clusters = 0;
};
/// invalid_argument names the argument, the value and what is wanted.
base::Result<PreparedOneShot> prepare_one_shot(const Instance& instance, const OneShotArgs& args);
/// Queues; capturable. `uses_pdl` as launch() has it.
base::Status launch_one_shot(const PreparedOneShot& prepared, bool uses_pdl, cudaStream_t stream);

}  // namespace overlace::ops::fused
