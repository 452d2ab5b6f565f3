// The operators that tests go over.
#pragma once

#include <string>
#include <vector>

#include "overlace/operator.h"

namespace overlace::test {

/// Those whose problem is M, N and K alone. One with fields has tests of its own, which know values for them.
inline std::vector<const spec::OperatorDef*> sized_operators() {
  std::vector<const spec::OperatorDef*> out = spec::operators();
  std::erase_if(out, [](const spec::OperatorDef* op) { return !op->fields.empty(); });
  return out;
}

/// Their names: a new row of the library's table is tested without an edit.
inline std::vector<std::string> all_operators() {
  std::vector<std::string> out;
  for (const spec::OperatorDef* op : sized_operators()) out.emplace_back(op->name);
  return out;
}

}  // namespace overlace::test
