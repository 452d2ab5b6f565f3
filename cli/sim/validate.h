// `overlace sim validate`: the simulator's models beside what others published.
#pragma once

#include <string>
#include <vector>

namespace overlace::cli {

struct ValidateWords {
  std::vector<std::string> ids;
  std::string golden = "tests/golden", json, page;
};

/// 1 where a row that must pass misses.
int sim_validate(const ValidateWords& words);

}  // namespace overlace::cli
