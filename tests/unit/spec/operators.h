// The operators that tests go over.
#pragma once

#include <string>
#include <vector>

#include "overlace/operator.h"

namespace overlace::test {

/// Names of all that are known: a new row of the library's table is tested without an edit.
inline std::vector<std::string> all_operators() {
  std::vector<std::string> out;
  for (const spec::OperatorDef* op : spec::operators()) out.emplace_back(op->name);
  return out;
}

}  // namespace overlace::test
