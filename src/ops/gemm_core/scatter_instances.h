// Kernels of GEMM and ReduceScatter, by the name of their config.
#pragma once

#include "src/ops/gemm_core/instances.h"

namespace overlace::ops::gemm_core {

#define INSTANCE(name) const void* scatter_kernel_##name();
#include "src/ops/gemm_core/scatter_instances.def"
#undef INSTANCE

/// As instances(); `kernel` is the fused one.
std::span<const Instance> scatter_instances();
const Instance* find_scatter_instance(const char* name);

}  // namespace overlace::ops::gemm_core
