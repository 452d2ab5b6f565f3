// Small calls of the operators that use signals of their own, for tests of their protocols.
#pragma once

#include <string>
#include <vector>

#include "tests/ranks/ops_cases.h"

namespace overlace::test {

inline constexpr int kWholeRanks = 3;

inline Case case_of(const std::string& op, const std::string& family) {
  const int64_t k = family == "k_slab" ? 130 : 10;  // two slabs
  return {.op = op, .family = family, .degree = 2, .m = 24, .n = 6, .k = k};
}

/// Families with signals of their own that give a result.
inline std::vector<std::string> whole_families(const std::string& op) {
  std::vector<std::string> all = spec::families(op);
  std::erase_if(all,
                [](const std::string& f) { return f == "compute" || f == "comm" || f == "limit" || f == "library"; });
  return all;
}

inline spec::OpSpec spec_of(const Case& c) {
  return {.op = c.op,
          .m = c.m,
          .n = c.n,
          .k = c.k,
          .ranks = kWholeRanks,
          .dtype = c.in,
          .out_dtype = c.out,
          .b_layout = c.layout,
          .bias = false,
          .row_offsets = {}};
}

}  // namespace overlace::test
