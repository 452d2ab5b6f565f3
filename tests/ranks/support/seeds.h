// Which seeds the adversary gets: OVERLACE_TEST_SEEDS="20" (from a number drawn for this run) or "1000@1" (1 to 1000).
#pragma once

#include <cstdint>
#include <string_view>

namespace overlace::test {

struct Seeds {
  uint64_t first = 0;
  int count = 1;
};

/// Throws InvalidArgument with the text and what is accepted. "": one seed, drawn.
Seeds parse_seeds(std::string_view text);
/// The seeds of this process's environment.
const Seeds& seeds();

}  // namespace overlace::test
