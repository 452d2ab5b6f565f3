// Small calls of the operators that use signals of their own, for tests of their protocols.
#pragma once

#include <string>
#include <vector>

#include "tests/ranks/ops_cases.h"

namespace overlace::test {

inline constexpr int kWholeRanks = 3;

inline Case case_of(const std::string& op, const std::string& family) {
  const int64_t k = family == "k_slab" ? 130 : 10;       // two slabs
  const int64_t m = family == "tracked" ? 3 * 512 : 24;  // two chunks of whole rows of tiles
  return {.op = op, .family = family, .degree = 2, .m = m, .n = 6, .k = k};
}

/// Families with signals of their own that give a result.
inline std::vector<std::string> whole_families(const std::string& op) {
  std::vector<std::string> all = spec::families(op);
  std::erase_if(all,
                [](const std::string& f) { return f == "compute" || f == "comm" || f == "limit" || f == "library"; });
  return all;
}

/// One call of each of whole_families(), and one more that exchanges columns.
inline std::vector<Case> whole_cases(const std::string& op) {
  std::vector<Case> out;
  for (const bool has_columns : {false, true}) {
    if (has_columns && !spec::exchanges(op)) continue;
    for (const std::string& family : whole_families(op)) {
      out.push_back(case_of(op, family));
      if (!has_columns) continue;
      exchange_columns(&out.back(), kWholeRanks, 4);  // two blocks
      out.back().splits.clear();
    }
  }
  return out;
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
          .row_offsets = {},
          .exchange = c.cols ? spec::Exchange::cols : spec::Exchange::rows,
          .blocks = c.blocks};
}

}  // namespace overlace::test
