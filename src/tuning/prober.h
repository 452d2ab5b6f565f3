// Tier probe of the planner: schedules of a problem, timed on a channel with data of their own.
#pragma once

#include <string>
#include <vector>

#include "overlace/channel.h"
#include "src/exec/run.h"
#include "src/spec/cost_model.h"
#include "src/tuning/measure.h"

namespace overlace::tuning {

/// One rank's; all calls are collective on the channel's team.
class ChannelProber final : public spec::Prober, private Crew {
 public:
  /// `problem_ms`: TuneOptions::problem_ms.
  explicit ChannelProber(Channel& channel, double problem_ms = 0)
      : channel_(channel), team_(channel.team()), problem_ms_(problem_ms) {}
  bool is_first() const override { return team_.rank() == 0; }
  base::Result<std::string> from_first(const std::string& mine) override;
  /// not_supported where an argument holds integers: such data cannot be made up.
  base::Result<std::vector<spec::Estimate>> measure(const std::vector<spec::Schedule>& schedules,
                                                    const spec::OpSpec& op) override;
  /// How often.
  int measured() const { return measured_; }

 private:
  base::Status synchronize() override;
  base::Status barrier() override;
  base::Result<std::vector<double>> max_over_ranks(const std::vector<double>& mine) override {
    return tuning::max_over_ranks(team_, mine);
  }

  Channel& channel_;
  Team team_;
  double problem_ms_;
  int measured_ = 0;
};

}  // namespace overlace::tuning
