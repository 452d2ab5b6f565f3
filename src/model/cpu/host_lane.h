// Copies of a device whose memory is the host's.
#pragma once

#include <memory>

#include "src/model/device.h"

namespace overlace::model::cpu {

/// Computation is done on return, so are copies: no event has anything to order, and all that they take is waited for.
std::unique_ptr<CopyLane> make_host_lane();

}  // namespace overlace::model::cpu
