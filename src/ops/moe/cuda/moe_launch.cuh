// A mixture-of-experts layer behind routing in one kernel, from the host.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "src/base/status.h"
#include "src/ops/fused/instances.h"
#include "src/ops/fused/params.cuh"
#include "src/ops/moe/cuda/kernels.h"

namespace overlace::ops::moe {

using namespace fused;

struct MoeParams {
  ChainedParams gemm;
  uint32_t* counter;
  const float* row_weights;
  uint32_t hidden_tiles, ended_tiles;  // that CTAs and warpgroups store of a tile of rows, by the two products
  LayerPod layer;
  FlowPod flow;
  TokensPod call;
};

/// The weights of the experts of this rank, gated; H, I and E_loc are those of the layer.
struct MoeLayerArgs {
  const void* w1 = nullptr;  // (E_loc, 2 I, H), first the gates' rows
  const void* w2 = nullptr;  // (E_loc, H, I)
  void* hidden = nullptr;    // (P, I)
  int64_t inter = 0;
  int64_t w1_pitch = 0, w1_matrix_pitch = 0, w2_pitch = 0, w2_matrix_pitch = 0;  // elements; multiples of 8
  uint32_t* counter = nullptr;                                                   // device memory, 0 before a launch
  uint32_t* error = nullptr;
  uint64_t timeout_ns = 2000000000;
  int most_clusters = 0;  // of the grid; 0: as many as run at once
};

struct PreparedMoe {
  MoeParams params;
  const Instance* instance = nullptr;
  int clusters = 0;
};
/// Encodes the tensor maps; `instance` is of Kernel::moe. The layer and its lists say where rows are. invalid_argument
/// names the argument, the value and what is wanted.
base::Result<PreparedMoe> prepare_moe(const Instance& instance, const MoeLayerArgs& args, const LayerPod& layer,
                                      const FlowPod& flow);

/// Behind launch_lists(), with the tokens of the call. Rows of peers' tokens go back into their heaps; sums of own
/// tokens into LayerPod::own_sums, or with one rank into the result.
base::Status launch_moe(const PreparedMoe& prepared, const TokensPod& call, cudaStream_t stream);

}  // namespace overlace::ops::moe
