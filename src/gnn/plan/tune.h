// Which order, depth, policy and page size read least of the time, within the memory there is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/gnn/plan/predict.h"

namespace overlace::gnn {

/// What a machine does, measured or given.
struct EpochRates {
  double extent_GBps = 0;  // disk, long reads in sequence
  double page_GBps = 0;    // disk, pages of the disk cache
  double link_GBps = 0;    // copies to the GPU; 0: the GPU has no lane of its own
  double compute_ms = 0;   // of a batch
};

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
  std::string refused;  // why this one does not work here, "" if it does; then the rest is filled
  Prediction prediction;
  EpochBound bound;
};

/// Fits each candidate to its memory, on `threads` threads, and ranks them: the shortest bound first, of equal ones the
/// fewest bytes, then in the order given; those that do not fit come last with the reason. invalid_argument: a rate
/// that is not positive, no candidate.
base::Result<std::vector<Tuned>> tune(const InputTrace& trace, const std::vector<FitRequest>& candidates,
                                      const EpochRates& rates, int threads);

/// Candidates around `base`: orders fixed, segments of 128 to 1024 batches, shuffle with policy static; depths 2 to 4;
/// pages of 4 and 16 KiB where the disk is capped.
std::vector<FitRequest> candidates_of(const FitRequest& base, int64_t num_batches);

}  // namespace overlace::gnn
