// The host side of exchange.cuh: what calls of one fused operator share, and its checks.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>

#include "overlace/channel.h"
#include "src/base/status.h"
#include "src/ops/fused/instances.h"
#include "src/ops/fused/params.cuh"
#include "src/runtime/backend/cuda_peer/local_memory.h"

namespace overlace::ops::fused {

/// Lists of items in device memory, each made when it is wanted first.
class ItemLists {
 public:
  /// Products in this order, or what `work` lists; `work` may be null.
  base::Result<const uint4*> of(const TileOrder& order, const WorkOrder* work);

 private:
  std::map<std::string, runtime::cuda_peer::LocalMemory, std::less<>> known_;
};

/// All ranks of the team make it alike.
struct ExchangeState {
  const ChannelPod* channel = nullptr;
  const InboxPod* inbox = nullptr;        // two buffers
  const CountersPod* counters = nullptr;  // kCounts words, 0
  ItemLists* lists = nullptr;             // of kernels that draw their items
  uint32_t first_id = 0;                  // of the operator's signals
};
/// Arguments of a call that all fused operators take. `c`: (M, N), or the rows of this rank.
struct FusedArgs {
  const void* b = nullptr;  // (N, K) or (K, N)
  void* c = nullptr;
  std::span<const int64_t> row_offsets;  // ranks + 1
  int64_t n = 0, k = 0, lda = 0, ldb = 0, ldc = 0;
  int swizzle = kTileSwizzle;
  int most_clusters = 0;      // of a grid; 0: as many as run at once. Lists of items are made for so many
  int grid_clusters = 0;      // of this call's grid, at most those; 0: as many
  uint32_t* error = nullptr;  // as GemmArgs::error
};
constexpr int grid_of(const FusedArgs& args, int most) {
  return args.grid_clusters > 0 && args.grid_clusters < most ? args.grid_clusters : most;
}
/// Order, number of tiles and of blocks of K, where waits end; gives the most clusters of a grid.
base::Result<int> prepare_tiles(const Instance& instance, TileOrderKind kind, const FusedArgs& args,
                                const ExchangeState& state, GemmParams* gemm);

/// Tiles of rows of the weights (n, k), for swapped operands, and what a stage brings. Gives the clusters that
/// run at once.
struct SwappedShape {
  int64_t tokens = 0, n = 0, k = 0;
};
base::Result<int> prepare_swapped_tiles(const Instance& instance, const TeamPod& team, const SwappedShape& shape,
                                        int most_clusters, GemmParams* gemm);

/// Rows of `rank`, and of the rank that has most.
int64_t rows_of(std::span<const int64_t> row_offsets, int rank);
int64_t longest_rows(std::span<const int64_t> row_offsets);

/// `row_offsets`: ranks + 1. `bytes`: that a buffer of the inbox must have.
base::Status validate_exchange(const ExchangeState& state, std::span<const int64_t> row_offsets, const uint32_t* error,
                               uint64_t bytes);
void fill_exchange(const ExchangeState& state, int arrivals_per_call, ExchangeParams* params);

}  // namespace overlace::ops::fused
