// Shapes for tests that go over all families: what a family takes is asked of the family, never listed by hand.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "overlace/schedule.h"
#include "src/ops/fused/choose.h"
#include "src/spec/operators.h"

namespace overlace::test {

inline const std::vector<std::string>& operators() {
  static const std::vector<std::string> kAll = {"ag_gemm", "ag_wgrad", "gemm_rs", "gemm_ar"};
  return kAll;
}

/// Families that give a result: the others are measured beside them.
inline std::vector<std::string> families_with_a_result(const std::string& op) {
  std::vector<std::string> all = spec::families(op);
  std::erase_if(all, [](const std::string& f) { return f == "compute" || f == "comm" || f == "limit"; });
  return all;
}

/// The wanted problem with as many of its rows as the family takes on GPUs: M, else its half, its quarter and so on;
/// none if it does not take even one row.
inline std::optional<spec::OpSpec> shape_for(spec::OpSpec wanted, const std::string& family, int degree) {
  for (; wanted.m > 0; wanted.m /= 2)
    if (ops::fused::check_instance(spec::make_schedule(wanted, family, degree)).ok()) return wanted;
  return std::nullopt;
}

}  // namespace overlace::test
