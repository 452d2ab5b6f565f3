// A rank of a team as the protocol sees it.
#pragma once

#include <vector>

#include "bench/common/protocol.h"
#include "overlace/team.h"

namespace overlace::bench {

class TeamCrew final : public Crew {
 public:
  TeamCrew(Team& team, Device& device) : team_(team), device_(device) {}
  base::Status synchronize() override { return device_.synchronize(); }
  base::Status barrier() override;
  base::Result<double> max_over_ranks(double mine) override;
  base::Status record_begin() override { return device_.record_begin(); }
  base::Status record_end() override { return device_.record_end(); }
  base::Result<double> elapsed_us() override { return device_.elapsed_us(); }
  ClockSample clocks() override { return device_.clocks(); }
  /// Collective: a small value of each rank, in rank order.
  base::Result<std::vector<base::Json>> gather(const base::Json& mine);

 private:
  Team& team_;
  Device& device_;
};

/// The GPU with this ordinal; the calling thread where it is negative.
base::Result<std::unique_ptr<Device>> open_device(int ordinal);

}  // namespace overlace::bench
