// `--schedule auto`: what OVERLACE_PLAN_CACHE already knows of the sites.
#pragma once

#include <map>
#include <string>

#include "cli/run/plan.h"
#include "overlace/plan.h"
#include "overlace/team.h"
#include "src/base/env.h"
#include "src/base/status.h"

namespace overlace::cli {

/// Collective. By site, what the first rank's cache keeps of tier probe or simulation for OVERLACE_MACHINE (GPUs:
/// h200x4 where that is not set); nothing without a cache, for ranks on several hosts, over an emulated link, and where
/// that machine is of the other kind. A machine that cannot be read is a warning.
base::Result<std::map<std::string, plan::Choice>> kept_choices(const RunPlan& plan, const base::Env& env, Team& team);

}  // namespace overlace::cli
