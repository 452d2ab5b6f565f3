// What the tests of simulated schedules share.
#pragma once

#include <string>

#include "overlace/schedule.h"

namespace overlace::sim {

inline spec::OpSpec op_of(const std::string& name, int ranks, int64_t m = 2048, int64_t n = 1536, int64_t k = 1024) {
  spec::OpSpec op;
  op.op = name;
  op.m = m;
  op.n = n;
  op.k = k;
  op.ranks = ranks;
  return op;
}

/// With tiles of a fused kernel where the family wants them.
inline spec::Schedule build(const spec::OpSpec& op, const std::string& family, int degree) {
  spec::Params options;
  if (family == "tma_slot") options = {{"align", int64_t{256}}, {"align_n", int64_t{128}}};
  return spec::make_schedule(op, family, degree, options);
}

}  // namespace overlace::sim
