// `overlace sim characterise`: what cutting and running beside each other costs.
#pragma once

#include <cstdint>
#include <string>

#include "src/spec/families/families.h"

namespace overlace::cli {

struct LossWords {
  std::string op{spec::kAgGemm.name}, dtype = "bf16", degrees = "1,2,4,8,16";
  std::string machine;  // as machine_of takes it
  int64_t m = 0, n = 0, k = 0;
  int ranks = 0;           // 0: the machine's own
  std::string json, plot;  // plot: .svg or .html
};

/// A row per decomposition and degree: its GEMMs and its transfers, alone, over the whole ones (decomposition
/// inefficiency loss); and how much a GEMM and a transfer slow each other (contention inefficiency loss); exit code.
int sim_characterise(const LossWords& words);

}  // namespace overlace::cli
