// `overlace sim sweep`: schedules over lists of parameters.
#pragma once

#include <string>
#include <vector>

#include "src/spec/families/families.h"

namespace overlace::cli {

/// Lists: values between commas.
struct SweepWords {
  std::string op{spec::kAgGemm.name}, m, n, k;
  std::string ranks, families = "all", degrees = "1,2,4,8", dtype = "bf16";
  std::string machines;  // none: one for each number of ranks, as machine_of takes it
  int calls = 1;
  std::string json, plot;  // plot: .svg or .html
  std::vector<std::string> fields;
};

/// A row per machine, team and shape and family (its fastest degree), beside `library` and the bound; exit code.
int sim_sweep(const SweepWords& words);

}  // namespace overlace::cli
