// What a run will do, decided and checked before any rank starts. Every rank makes the same plan from the same options.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cli/run/options.h"
#include "overlace/runtime.h"
#include "overlace/schedule.h"
#include "src/base/env.h"
#include "src/base/status.h"
#include "src/model/config.h"
#include "src/model/stack.h"

namespace overlace::cli {

/// The emulated link of CPU ranks where neither --link nor OVERLACE_LINK says otherwise.
inline constexpr const char* kDefaultLink = "200MB/s,20us";

/// CPU ranks of one host, far beyond what does anything useful.
inline constexpr int64_t kMaxRanks = 64;

/// Schedules that were asked for by name or file; a site that is missing is chosen for.
struct ScheduleRequest {
  std::map<std::string, spec::Schedule, std::less<>> by_site;
  std::string reason;  // "asked for: --schedule serial"
};

/// Where the ranks are.
struct Placement {
  int hosts = 1;
  int ranks_here = 0;        // on this rank's host; 0: all
  bool is_regular = true;    // hosts of equal size, ranks numbered host by host
  bool is_emulated = false;  // some hosts are one machine
};

struct RunPlan {
  int ranks = 1;
  Backend backend = Backend::cpu;
  LinkOptions link;
  Placement placement;
  int hosts = 1;  // that schedules make use of
  model::ModelConfig config;
  model::Problem problem;
  std::vector<model::Site> sites;
  ScheduleRequest request;
  int repetitions = 7;

  int ranks_here() const { return placement.ranks_here > 0 ? placement.ranks_here : ranks; }
  bool is_emulated() const { return link.enabled || placement.is_emulated; }
};

/// What the decision depends on besides the options.
struct Surroundings {
  int gpus = 0;
  std::string why_no_gpu;  // "CUDA driver version is insufficient ..."
  int started_ranks = 0;   // by torchrun, mpirun or our launcher; 0: none
  int rank = 0;            // of this process among them
  Placement placement;     // theirs, where they have told each other
};
Surroundings look_around(const base::Env& env);

/// Every check that needs no rank: options against each other, files that are read, schedules, and that files to be
/// written can be. Errors show the option, the value got and the value wanted.
base::Result<RunPlan> make_plan(const RunOptions& options, const base::Env& env, const Surroundings& around);

/// Hosts of equal size, at least two.
base::Status check_emulated_hosts(int64_t hosts, int64_t ranks);

/// The hidden states that a run starts with: `--input`, or seeded. tokens x hidden.
base::Result<std::vector<float>> read_input(const RunOptions& options, const RunPlan& plan);

}  // namespace overlace::cli
