// Where the layers of a model that does not fit should lie, and how many tokens should walk through them together.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "src/base/status.h"
#include "src/model/config.h"
#include "src/model/stack.h"

namespace overlace::model {

struct OffloadRates {
  double flops_per_s = 0;       // of a rank
  double host_bytes_per_s = 0;  // of a rank's link to its host
  double disk_bytes_per_s = 0;  // of the host's disk, which all ranks share
};

/// The plan of each rank; layers are whole.
struct OffloadPlan {
  int64_t micro_batch = 0;
  int64_t layer_bytes = 0, activation_bytes = 0;
  int64_t resting_bytes = 0;                     // of activations, in host memory; 0: all lie on the device
  int64_t resident = 0, host = 0, disk = 0;      // layers by where they rest
  double compute_s = 0, host_s = 0, disk_s = 0;  // of one pass over all layers; each alone
  /// From so many on what streams is hidden; 0: no weights stream. None where activations, which grow with the tokens,
  /// take longer than their computation.
  std::optional<int64_t> hiding_tokens = 0;
  double total_s() const;     // each of the three beside the others
  std::string binds() const;  // "compute", "host link" or "disk"
};

/// Operations of one layer of a rank's shard over so many tokens: GEMMs, and attention over half a sequence.
double layer_flops(const ModelConfig& config, const Problem& problem, int ranks, int64_t tokens);

/// The most tokens together among those whose pass takes at most 1 % longer than the best, if there are any among those
/// without activations that rest: sequences by powers of two, or all. problem.device_bytes limits a rank, `host_bytes`
/// all ranks of a host together, of which activations that rest take theirs first, more than there is only where no
/// number of tokens goes without; layers that fit neither come from disk. out_of_memory with the smallest device memory
/// that works.
base::Result<OffloadPlan> plan_offload(const ModelConfig& config, const Problem& problem, int ranks, int64_t host_bytes,
                                       const OffloadRates& rates);

}  // namespace overlace::model
