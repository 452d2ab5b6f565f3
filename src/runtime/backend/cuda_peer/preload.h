// Kernels that a runtime loads at open: loading one beside a spinning kernel can wedge a context.
#pragma once

#include "src/base/status.h"

namespace overlace::runtime::cuda_peer {

/// Address of a __global__ function, from a unit that nvcc compiled. Before main or before the runtime opens.
void register_kernel(const void* kernel);
/// On the current device.
base::Status load_registered_kernels();

/// static const RegisteredKernel kLoad{reinterpret_cast<const void*>(&my_kernel)};
struct RegisteredKernel {
  explicit RegisteredKernel(const void* kernel) { register_kernel(kernel); }
};

}  // namespace overlace::runtime::cuda_peer
