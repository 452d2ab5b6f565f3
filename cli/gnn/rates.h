// What a machine does in a training epoch from packs, as words of `gnn plan` and `sim graph gnn`.
#pragma once

#include <optional>
#include <string>

#include "cli/host_rates.h"
#include "src/base/json.h"
#include "src/gnn/plan/pipeline_time.h"

namespace overlace::cli {

struct GnnRateWords {
  std::string machine = "cpu2";            // a shipped one or FILE.json
  double compute_ms = 1;                   // of a batch
  std::optional<double> link_GBps;         // none: by the machine, where that has no figures 0; 0: no time
  double check_GBps = 0, gather_GBps = 0;  // 0: no time
};

struct GnnRates {
  gnn::EpochRates epoch;
  HostRate disk, link;  // as `epoch` has them, and where they come from

  /// "disk 1.310 GB/s, pages 0.410 (measured, machine here); ...", a line.
  std::string text() const;
  /// Members `disk` and `link` for a result.
  void add_to(base::Json* result) const;
};

/// invalid_argument with the option, or with what is wrong with the machine file.
GnnRates rates_of(const GnnRateWords& words);

}  // namespace overlace::cli
