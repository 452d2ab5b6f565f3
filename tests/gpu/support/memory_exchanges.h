// Adopted memory and striped ranges, exercised in threads and in processes.
#pragma once

#include <vector>

#include "tests/gpu/support/gpu_ranks.h"

namespace overlace::test {

inline constexpr size_t kStripePage = size_t{2} << 20;

/// What each rank gives: an allocation of its own, and where it reaches those of the others. Freed by the caller once
/// the runtime is done with it.
struct Donor {
  Donor(GpuRank& gpu, size_t donated, bool between_processes);
  /// After all ranks have finished.
  void give_back(GpuRank& gpu);
  size_t bytes;
  void* local = nullptr;
  std::vector<void*> peers, opened;
};
/// All ways to put into adopted memory, every pair; then a stream's copy by address.
void put_everywhere(GpuRank& gpu, bool between_processes);

/// A shard per rank, behind its own first; sizes differ; odd ranks have two parts of rank 0.
std::vector<StripePart> shards(int rank, int n);
/// Kernels that know nothing of ranks store into one range, the owners find their parts; and back.
void store_and_find(GpuRank& gpu);

}  // namespace overlace::test
