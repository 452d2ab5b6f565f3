// `--schedule`: schedules by name or from a file.
#pragma once

#include <string>

#include "cli/run/plan.h"
#include "src/base/status.h"

namespace overlace::cli {

/// What `--schedule text` asks for at the plan's sites: nothing for "auto", else as spec::parse_family reads it. A list
/// such as "gemm_rs=tracked:2,qkv=serial" names sites or operators; what it does not name is chosen for. A file holds
/// one schedule, for the sites that pose its problem, or an object of schedules by site; each passes the static checks
/// before anything runs.
base::Result<ScheduleRequest> request_schedules(const std::string& text, const RunPlan& plan);

}  // namespace overlace::cli
