// Tier probe of the planner: candidates run for real by ranks that are threads of this process.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/calibrate/rig.h"
#include "overlace/plan.h"
#include "src/spec/cost_model.h"

namespace overlace::cli {

/// One rank's; all calls are collective.
class RigProber final : public spec::Prober {
 public:
  explicit RigProber(Rig& rig) : rig_(rig) {}
  bool is_first() const override { return rig_.team().rank() == 0; }
  base::Result<std::string> from_first(const std::string& mine) override;
  base::Result<std::vector<spec::Estimate>> measure(const std::vector<spec::Schedule>& schedules,
                                                    const spec::OpSpec& op) override;
  /// How often.
  int measured() const { return measured_; }

 private:
  Rig& rig_;
  int measured_ = 0;
};

/// Of the largest operand or result, at the upper end of its bucket of rows.
size_t operand_bytes(const std::vector<spec::OpSpec>& ops);
/// With a heap for such operands and for schedules that are measured beside each other.
RuntimeOptions probe_runtime(size_t operand_bytes, Backend backend);

/// Opens as many ranks as the operator has, on the backend of the machine, and plans on all of them; PlanMismatch where
/// they differ. Unsupported where the machine has GPUs and this one has not that many.
std::shared_ptr<const plan::Plan> plan_by_probe(const spec::OpSpec& op, const spec::Machine& machine,
                                                const plan::PlanOptions& options, const std::string& cache);

}  // namespace overlace::cli
