// `overlace sim t3`: what T3's hardware would give.
#pragma once

#include <optional>
#include <string>

namespace overlace::cli {

struct T3Words {
  std::string model = "t-nlg", config = "all", machine, json;  // machine: empty, the paper's
  int tp = 8;
  std::optional<double> update_cost, comm_cost, dram_GBps, link_GBps;  // none: the module's own
  double share = 0;  // of an iteration that these sub-layers take: end to end by Amdahl's law
  bool is_direct = false, is_sensitivity = false;
};

/// Times and DRAM traffic of the sub-layers of a model, or speed-ups over a grid of constants; exit code.
int sim_t3(const T3Words& words);

}  // namespace overlace::cli
