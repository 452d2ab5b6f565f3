// `overlace plan` and `overlace explain`: which schedule, and why.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "overlace/plan.h"
#include "src/spec/cost_model.h"
#include "src/spec/families/families.h"

namespace overlace::cli {

struct PlanWords {
  std::string op{spec::kAgGemm.name}, dtype = "bf16", activation = "none", machine, tier = "simulation";
  std::string exchange = "rows", blocks;
  std::vector<std::string> fields;  // NAME=VALUE
  int64_t m = 0, n = 0, k = 0;
  int ranks = 0;      // 0: the machine's own; without a machine 4
  std::string check;  // FILE.json: static checks instead of a plan
  bool paper_rule = false, explain = false;
  std::string json;
};

/// Exit code; 2 where --check finds an error.
int plan(const PlanWords& words);

/// The table of `overlace plan`: the chosen schedule, the others, the reason.
std::string plan_text(const spec::OpSpec& op, const plan::Plan& plan, const spec::Machine& machine);
/// What `overlace explain` adds: the losses of the chosen schedule beside those of the next best and of the library.
std::string waterfall_text(const spec::OpSpec& op, const plan::Plan& plan, const spec::Machine& machine);
/// FiCCO's choice beside the plan, both by the same model.
std::string paper_text(const spec::OpSpec& op, const plan::Plan& plan, const spec::Machine& machine,
                       const spec::CostModel& model);
/// Lanes of one rank as rows of characters, `width` for the whole time.
std::string timeline_text(const spec::Schedule& schedule, const spec::Machine& machine, int width);

}  // namespace overlace::cli
