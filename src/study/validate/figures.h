// Inside validate: one function per figure. They throw Error (corrupt, io) where a table is not as expected.
#pragma once

#include <algorithm>

#include "src/study/gemm/fit.h"
#include "src/study/validate/validate.h"

namespace overlace::study {

using Rows = std::vector<ValidationRow>;

void validate_gemm(const std::string& golden, Rows* rows);        // V1
void validate_all_reduce(const std::string& golden, Rows* rows);  // V2
void validate_megatron(const std::string& golden, Rows* rows);    // V3
void validate_scale_out(const std::string& golden, Rows* rows);   // V4
void validate_sm_copy(const std::string& golden, Rows* rows);     // V5
void validate_astra_sim(const std::string& golden, Rows* rows);   // V6
void validate_t3(const std::string& golden, Rows* rows);          // V7
void validate_dlrm(const std::string& golden, Rows* rows);        // V9
void validate_mesh(const std::string& golden, Rows* rows);        // V12

/// Largest and mean |ours / published - 1| in percent.
struct Errors {
  double largest = 0, sum = 0;
  int count = 0;
  void add(double ours, double published) {
    const double error = std::abs(ours / published - 1) * 100;
    largest = std::max(largest, error);
    sum += error;
    ++count;
  }
  double mean() const { return sum / count; }
};

/// A table below `golden`.
Golden load(const std::string& golden, const std::string& path);

inline constexpr GemmMachine kA100 = {108, 312, 2000}, kMi210 = {104, 181, 1600};
std::vector<GemmPoint> gemm_points(const Golden& table);

}  // namespace overlace::study
