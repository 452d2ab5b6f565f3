// The configs of configs.def, and the plain GEMMs of instances.def.
#pragma once

#include <span>

#include "src/ops/gemm_core/config.h"

namespace overlace::ops::gemm_core {

#define CONFIG(name, dtype, b_major, ...) \
  inline constexpr ConfigSpec kSpec_##name{DType::dtype, BMajor::b_major, __VA_ARGS__};
#include "src/ops/gemm_core/configs.def"
#undef CONFIG
#define INSTANCE(name) const void* kernel_##name();
#include "src/ops/gemm_core/instances.def"
#undef INSTANCE

/// A compiled kernel.
struct Instance {
  const char* name;
  ConfigSpec spec;
  const void* kernel;
};
std::span<const Instance> instances();
/// nullptr if there is none.
const Instance* find_instance(const char* name);

}  // namespace overlace::ops::gemm_core
