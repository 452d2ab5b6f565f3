// Kernels of GEMM and AllReduce, or ReduceScatter, of few tokens, by the name of their config.
#pragma once

#include "src/ops/gemm_core/instances.h"

namespace overlace::ops::gemm_core {

#define INSTANCE(name) const void* one_shot_kernel_##name();
#include "src/ops/gemm_core/one_shot_instances.def"
#undef INSTANCE

/// As instances(); `kernel` is the fused one.
std::span<const Instance> one_shot_instances();
const Instance* find_one_shot_instance(const char* name);

}  // namespace overlace::ops::gemm_core
