// A rank among its team: what timing needs, and collecting bytes of any length.
#pragma once

#include <string>
#include <vector>

#include "overlace/team.h"
#include "src/base/status.h"
#include "src/model/stack.h"
#include "src/tuning/measure.h"

namespace overlace::cli {

class TeamCrew final : public tuning::Crew {
 public:
  TeamCrew(Team& team, model::Stack& stack) : team_(team), stack_(stack) {}
  base::Status synchronize() override { return stack_.synchronize(); }
  base::Status barrier() override;
  base::Result<std::vector<double>> max_over_ranks(const std::vector<double>& mine) override {
    return tuning::max_over_ranks(team_, mine);
  }

 private:
  Team& team_;
  model::Stack& stack_;
};

/// Collective: bytes of all ranks in rank order, whatever their length; empty on ranks other than 0.
base::Result<std::vector<std::string>> gather(Team& team, const std::string& mine);

/// Collective: every rank has the same status afterwards, the first failure by rank.
base::Status agree_on(Team& team, const base::Status& mine);

}  // namespace overlace::cli
