// `overlace plan co2`: how long a round must be.
#pragma once

#include <cstdint>
#include <string>

#include "cli/sim/network.h"

namespace overlace::cli {

/// One of `link`, `network` and `machine` says how long the exchange takes.
struct Co2PlanWords {
  double parameters = 0, step_ms = 0, wire_bytes = 4;
  std::string link;
  int64_t groups = 0;  // with `link`; 0: 2
  NetworkWords network = {.network = ""};
  std::string machine;
  int64_t shards = 1, tau = 0;
  std::string json;
};

int plan_co2(const Co2PlanWords& words);

}  // namespace overlace::cli
