// Kernels that a runtime loads at open: loading one beside a spinning kernel can wedge a context.
#pragma once

#include "src/base/status.h"

namespace overlace::runtime::cuda_peer {

/// Which GPUs a kernel has code for: those of the build, or of them Hopper alone.
enum class CodeFor { all, hopper };

/// Address of a __global__ function, from a unit that nvcc compiled. Before main or before the runtime opens.
void register_kernel(const void* kernel, CodeFor code);
/// On the current device, which is of this compute capability (10 * major + minor): those that have code for it.
base::Status load_registered_kernels(int compute_capability);

/// static const RegisteredKernel kLoad{reinterpret_cast<const void*>(&my_kernel)};
template <CodeFor kCode>
struct KernelOf {
  explicit KernelOf(const void* kernel) { register_kernel(kernel, kCode); }
};
// What cmake/overlace_module.cmake says of the unit.
#if defined(OVERLACE_HOPPER_UNIT)
using RegisteredKernel = KernelOf<CodeFor::hopper>;
#else
using RegisteredKernel = KernelOf<CodeFor::all>;
#endif

}  // namespace overlace::runtime::cuda_peer
