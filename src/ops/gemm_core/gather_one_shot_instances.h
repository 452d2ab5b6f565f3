// Kernels of AllGather and GEMM of few tokens, by the name of their config.
#pragma once

#include "src/ops/gemm_core/instances.h"

namespace overlace::ops::gemm_core {

#define INSTANCE(name) const void* gather_one_shot_kernel_##name();
#include "src/ops/gemm_core/gather_one_shot_instances.def"
#undef INSTANCE

/// As instances(); `kernel` is the fused one.
std::span<const Instance> gather_one_shot_instances();
const Instance* find_gather_one_shot_instance(const char* name);

}  // namespace overlace::ops::gemm_core
