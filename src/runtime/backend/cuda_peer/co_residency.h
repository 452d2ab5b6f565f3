// Grids whose blocks wait for each other: all of them must be resident at once.
#pragma once

#include <cstddef>

#include "src/base/status.h"

namespace overlace::runtime::cuda_peer {

struct Grid {
  const char* name = "";  // of the kernel, for the message
  const void* kernel = nullptr;
  int blocks = 0, threads = 0;
  size_t shared_bytes = 0;  // dynamic
};

/// co_residency with grid and room unless the grid fits `sms` SMs of the current device (a channel's budget, or
/// BackendState::sm_room). Asks the driver each time: launchers keep the answer.
base::Status check_co_resident(const Grid& grid, int sms);

}  // namespace overlace::runtime::cuda_peer
