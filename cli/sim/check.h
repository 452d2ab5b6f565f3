// `overlace sim check`: what every simulation must have.
#pragma once

#include <string>

namespace overlace::cli {

struct CheckWords {
  std::string machine = "h200x4", golden = "tests/golden", json;
  bool validates = false;
};

/// 1 where a property does not hold, or (with `validates`) a row that must pass misses.
int sim_check(const CheckWords& words);

}  // namespace overlace::cli
