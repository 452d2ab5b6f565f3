// The configs of configs.def, and the kernels that instances.def has of them.
#pragma once

#include <algorithm>
#include <span>
#include <string_view>

#include "src/ops/gemm_core/config.h"

namespace overlace::ops::gemm_core {

#define CONFIG(name, dtype, b_major, ...) \
  inline constexpr ConfigSpec kSpec_##name{DType::dtype, BMajor::b_major, __VA_ARGS__};
#include "src/ops/gemm_core/configs.def"
#undef CONFIG
#define INSTANCE(kernel, name) const void* kernel##_kernel_##name();
#include "src/ops/gemm_core/instances.def"
#undef INSTANCE

/// What a config is compiled into.
enum class Kernel { plain, gather, scatter, one_shot, gather_one_shot, grouped };

/// A row of instances.def. All fused kernels are there for bf16 and fp16, gather and scatter for B of (N, K) and (K,
/// N), those of small M for (N, K).
struct InstanceSpec {
  Kernel kernel;
  std::string_view name;
  ConfigSpec spec;
};
inline constexpr InstanceSpec kInstances[] = {
#define INSTANCE(kernel, name) {Kernel::kernel, #name, kSpec_##name},
#include "src/ops/gemm_core/instances.def"
#undef INSTANCE
};
static_assert(std::is_sorted(std::begin(kInstances), std::end(kInstances),
                             [](const InstanceSpec& a, const InstanceSpec& b) { return a.kernel < b.kernel; }));

/// The rows of one kernel.
constexpr std::span<const InstanceSpec> specs_of(Kernel kernel) {
  const auto is_it = [kernel](const InstanceSpec& one) { return one.kernel == kernel; };
  const auto* first = std::find_if(std::begin(kInstances), std::end(kInstances), is_it);
  return {first, std::find_if_not(first, std::end(kInstances), is_it)};
}

/// A compiled kernel.
struct Instance {
  const char* name;
  ConfigSpec spec;
  const void* kernel;
};
/// As specs_of().
std::span<const Instance> instances(Kernel kernel);
/// nullptr if there is none.
const Instance* find_instance(Kernel kernel, std::string_view name);

}  // namespace overlace::ops::gemm_core

/// Body of a unit: defines the function that is declared above for `name`.
#define OVERLACE_UNIT(kernel, name, function)                              \
  const void* overlace::ops::gemm_core::kernel##_kernel_##name() {         \
    using namespace overlace::ops::gemm_core;                              \
    return reinterpret_cast<const void*>(&function<Config<kSpec_##name>>); \
  }
