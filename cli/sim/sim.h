// `overlace sim`: how long schedules would take on a machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "overlace/schedule.h"
#include "src/base/status.h"
#include "src/spec/families/families.h"
#include "src/spec/operators.h"

namespace overlace::cli {

inline constexpr int kMostSimulatedRanks = 65536;
inline constexpr int64_t kMostDegree = 1024;  // of make_schedule

/// InvalidArgument of `overlace sim`.
[[noreturn]] void refuse(const std::string& why);

struct SimWords {
  std::string schedule;  // FILE.json; else family of op
  std::string op{spec::kAgGemm.name}, family{spec::first_by_rule(spec::kAgGemm)->name}, dtype = "bf16";
  std::string machine;  // as machine_of takes it
  int64_t m = 0, n = 0, k = 0;
  int ranks = 0;  // 0: the machine's own
  int degree = 1, seeds = 0, calls = 1;
  bool parts = false;
  std::string trace, json;
  std::vector<std::string> fields;
};

/// Not_supported with what is missing if the machine's GPUs have no kernel for the schedule. CPU ranks run each one.
base::Status check_runs_on(const spec::Machine& machine, const spec::Schedule& schedule);

/// One schedule: its time and bound, with seeds p50 and p95; exit code.
int sim_run(const SimWords& words);
/// All families of an operator, fastest first, with bounds; those that cannot run behind them, with the reason.
int sim_compare(const SimWords& words);

struct DiffWords {
  std::string first, second, json;
  std::string match = "id";  // or kind
  int rank = -1;             // of which alone; < 0: all
  double max_median = -1;    // per cent; < 0: none
};
/// 1 where the median residual is above max_median.
int trace_diff(const DiffWords& words);

}  // namespace overlace::cli
