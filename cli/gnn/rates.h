// What a machine does in a training epoch from packs, as words of `gnn plan` and `sim graph gnn`.
#pragma once

#include <string>

#include "src/gnn/plan/pipeline_time.h"

namespace overlace::cli {

struct GnnRateWords {
  std::string machine;                                    // FILE of `diskbench --json`; empty: 1 GB/s, pages 0.25
  double compute_ms = 1;                                  // of a batch
  double link_GBps = 0, check_GBps = 0, gather_GBps = 0;  // 0: no time
};

/// GB/s of sequential reads, by what `gnn diskbench --json` wrote. Throws InvalidArgument with the missing field,
/// IoError.
double sequential_GBps(const std::string& path);

/// invalid_argument with the option or the field of the file.
gnn::EpochRates rates_of(const GnnRateWords& words);

}  // namespace overlace::cli
