// Collectives of CPU ranks by MPI messages. Sums are taken in rank order, in fp32 for 16-bit floats, so that they have
// the bits of engine `reference`: an MPI_Op would round after each step, and MPI chooses the order.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "overlace/net_engine.h"
#include "overlace/team.h"
#include "src/runtime/control.h"
#include "src/runtime/engine/mpi/service.h"

namespace overlace::runtime::mpi {

/// Collective over the control plane: MPI's rank of each rank of the world. not_supported where MPI's world is not that
/// of the runtime.
base::Result<std::vector<int>> exchange_ranks(Service& service, Control& control, int64_t timeout_ms);

/// Collective. `ranks`: of exchange_ranks. Lives as long as the team.
std::unique_ptr<NetEngine> make_engine(Team& team, Service& service, const std::vector<int>& ranks);

}  // namespace overlace::runtime::mpi
