// `overlace sim check`: what every simulation must have; `overlace sim validate`: the models beside what others
// published.
#pragma once

#include <string>
#include <vector>

namespace overlace::cli {

struct CheckWords {
  std::string machine = "h200x4", golden = "tests/golden", json;
  bool validates = false;
};

/// 1 where a property does not hold, or (with `validates`) a row that must pass misses.
int sim_check(const CheckWords& words);

struct ValidateWords {
  std::vector<std::string> ids;
  std::string golden = "tests/golden", json, page;
};

/// 1 where a row that must pass misses.
int sim_validate(const ValidateWords& words);

}  // namespace overlace::cli
