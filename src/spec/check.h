// Static checks S1-S12 of a schedule (docs/design/schedules.md lists them).
#pragma once

#include <string>
#include <vector>

#include "overlace/schedule.h"
#include "src/spec/machine.h"

namespace overlace::spec {

struct Finding {
  std::string code;  // "S5"
  bool is_error = true;
  std::string task;  // id of the (first) instance concerned
  int rank = 0;
  std::string text;  // both sides, in words
};

struct CheckReport {
  std::vector<Finding> findings;
  bool ok() const;  // no error among them
  std::string to_string() const;
};

struct CheckOptions {
  std::vector<int> ranks;  // team sizes to expand for; empty: {2, 3, 4, 8} where the schedule's G is not fixed, else G
  bool coverage = true;    // S9; false for compute, comm, limit
};

CheckReport check(const Schedule& schedule, const Machine& machine, const CheckOptions& options = {});

}  // namespace overlace::spec
