// Collectives of CPU ranks over the runtime's own puts and signals, so that they pass the emulated link like everything
// else. Sums are taken in rank order: the same bits in every run.
#pragma once

#include <cstdint>
#include <memory>

#include "overlace/net_engine.h"
#include "overlace/team.h"

namespace overlace::runtime {

/// Collective. Takes its staging from [staging, staging_end) of the heap and moves `staging` behind it; null where
/// nothing is left. Lives as long as the team.
std::unique_ptr<NetEngine> make_reference_engine(Team& team, uint64_t& staging, uint64_t staging_end);

}  // namespace overlace::runtime
