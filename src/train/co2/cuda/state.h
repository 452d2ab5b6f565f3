// The state on a GPU by CUDA's runtime and the kernels of pass.h.
#pragma once

#include <memory>

#include "src/train/co2/device_state.h"

namespace overlace::train {

std::unique_ptr<DeviceState> make_cuda_state(const DeviceStateOptions& options);

}  // namespace overlace::train
