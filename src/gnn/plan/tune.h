// Which order, depth, policy and page size read least of the time, within the memory there is.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/gnn/plan/pipeline_time.h"

namespace overlace::gnn {

/// Seconds that each lane is busy in a training epoch. The longest is what binds, and the shortest an epoch can take.
struct EpochBound {
  double disk_s = 0, link_s = 0, compute_s = 0;
  double seconds() const;
  /// "disk", "link" or "compute".
  const char* binds() const;
};
EpochBound bound_of(const Prediction& prediction, int64_t num_batches, const EpochRates& rates);

struct Tuned {
  FitRequest request;
  std::string refused;    // why this one does not work here, "" if it does; then the rest is filled
  Prediction prediction;  // of the rank that takes longest
  EpochBound bound;
  PipelineTime time;                          // of all that the trace has, however many training epochs these are
  int64_t bytes_read = 0, bytes_on_disk = 0;  // of all ranks
};

/// Fits each candidate to the memory of each rank, on `threads` threads, and ranks them: the shortest time of the
/// slowest rank first, of equal ones the fewest bytes, then in the order given; those that do not fit come last with
/// the reason. `ranks`: the share of each rank that trains. invalid_argument: a rate that is not positive, no
/// candidate, no rank.
base::Result<std::vector<Tuned>> tune(std::span<const InputTrace* const> ranks,
                                      const std::vector<FitRequest>& candidates, const EpochRates& rates, int threads);
/// Fits the candidates to a single rank and orders them.
base::Result<std::vector<Tuned>> tune(const InputTrace& trace, const std::vector<FitRequest>& candidates,
                                      const EpochRates& rates, int threads);

/// Candidates around `base`: orders fixed, segments of 128 to 1024 batches, shuffle with policy static; depths 2 to 4;
/// pages of 4 and 16 KiB where the disk is capped.
std::vector<FitRequest> candidates_of(const FitRequest& base, int64_t num_batches);

}  // namespace overlace::gnn
