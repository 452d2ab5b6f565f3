// An expert-parallel MoE layer, forward, on many GPUs: router, dispatch, the experts' grouped GEMMs, combine. Counts
// of tokens may differ from expert to expert and from rank to rank; so do transfers and GEMMs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "overlace/machine.h"
#include "src/base/json.h"
#include "src/study/network/collectives.h"
#include "src/study/workload/step.h"

namespace overlace::study {

struct MoeModel {
  int64_t hidden = 7168, intermediate = 2048;
  int experts = 256, top_k = 8;
  int64_t tokens = 4096;  // of a rank
  double element_bytes = 2;
};

/// Experts lie on the ranks of a group in order, equally many on each.
struct MoeRun {
  int group = 0;          // ranks that share all experts; 0: all of the network
  int chunks = 1;         // of the tokens: a chunk's transfers hide behind the GEMMs of the others
  double zipf = 0;        // popularity of the experts ~ 1 / rank^zipf; 0: all alike
  uint64_t seed = 1;      // which experts are the popular ones
  bool is_ideal = false;  // nothing in the network takes time
  /// Tokens that a rank of a group sends to an expert: [rank * experts + expert], tokens * top_k of each rank; empty:
  /// as zipf says.
  std::vector<int64_t> counts = {};
};

struct MoeTime {
  double layer_us = 0, bound_us = 0, serial_us = 0;
  double compute_us = 0;                   // of the rank that computes longest
  double dispatch_us = 0, combine_us = 0;  // whole, alone
  double imbalance = 1;                    // tokens of the fullest rank over the mean
  double sent_bytes = 0;                   // dispatched by a rank, mean
  std::string algorithm;
  double exposed_us() const { return layer_us - compute_us; }
};

/// Tokens of each rank for each expert: shares of the popularity, rounded so that each rank sends tokens * top_k.
std::vector<int64_t> moe_counts(const MoeModel& model, int group, double zipf, uint64_t seed);
/// {"counts": [[..], ..]}: rows are ranks of a group, columns experts. Errc::corrupt with `source` and the place.
base::Result<std::vector<int64_t>> moe_counts_from_json(const base::Json& json, int group, int experts,
                                                        std::string_view source);

/// Errc::invalid_argument where sizes do not divide, for counts of other tokens, and for more than kMostTasks transfers
/// or counts; not_supported for a machine without costs of GEMMs.
base::Result<MoeTime> moe_layer(const MoeModel& model, const MoeRun& run, const spec::Machine& machine,
                                const Network& network, base::Trace* timeline = nullptr);

}  // namespace overlace::study
