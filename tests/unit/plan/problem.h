// What the tests of the planner share.
#pragma once

#include <string>

#include "overlace/machine.h"
#include "overlace/schedule.h"

namespace overlace::plan {

inline spec::OpSpec op_of(const std::string& name, int64_t m, int64_t n, int64_t k, int ranks = 4) {
  spec::OpSpec op;
  op.op = name;
  op.m = m;
  op.n = n;
  op.k = k;
  op.ranks = ranks;
  return op;
}

inline const spec::Machine& h200() {
  static const spec::Machine machine = spec::find_machine("h200x4");
  return machine;
}

}  // namespace overlace::plan
