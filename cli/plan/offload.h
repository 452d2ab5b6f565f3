// `overlace plan offload`: where the layers of a model that does not fit should lie, and what then binds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "src/base/json.h"
#include "src/model/config.h"
#include "src/model/offload_plan.h"
#include "src/model/stack.h"

namespace overlace::cli {

struct PlanOffloadWords {
  std::string config = "Llama-3.1-8B", dtype = "bf16", machine = "h200x4";
  std::string device_memory, host_memory = "0", json;
  std::optional<int64_t> layers, tokens, sequence_length;
  int64_t ranks = 1;
  // 0 or none: the machine's rate; where it has no figures of the host, what was seen at one H200's.
  double tflops = 0;
  std::optional<double> host_gbps, disk_gbps;
};

/// What the words say, and where it says that layers lie. Throws InvalidArgument with the option, OutOfMemory with the
/// smallest device memory that works.
struct PlannedOffload {
  model::ModelConfig config;
  model::Problem problem;  // with the micro-batch of the plan
  int ranks = 1;
  model::OffloadRates rates;
  std::string host_origin, disk_origin;  // where these rates come from
  model::OffloadPlan plan;
};
PlannedOffload planned_offload(const PlanOffloadWords& words);

/// Exit code. Throws what planned_offload() throws.
int plan_offload(const PlanOffloadWords& words);

std::string offload_text(const PlannedOffload& planned);
base::Json offload_json(const PlannedOffload& planned);

}  // namespace overlace::cli
