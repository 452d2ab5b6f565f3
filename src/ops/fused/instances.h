// The kernels of the library: rows of instances.def.
#pragma once

#include <algorithm>
#include <span>
#include <string_view>

#include "src/gemm_core/config.h"

namespace overlace::ops::fused {

using namespace gemm_core;

#define INSTANCE(kernel, name) const void* kernel##_kernel_##name();
#include "src/ops/fused/instances.def"
#undef INSTANCE

/// What a config is compiled into.
enum class Kernel { gather, scatter, one_shot, gather_one_shot, grouped, moe, wgrad };

/// A row of instances.def. All fused kernels are there for bf16 and fp16, gather and scatter for B of (N, K) and (K,
/// N), those of small M for (N, K).
struct InstanceSpec {
  Kernel kernel;
  std::string_view name;
  ConfigSpec spec;
};
inline constexpr InstanceSpec kInstances[] = {
#define INSTANCE(kernel, name) {Kernel::kernel, #name, kSpec_##name},
#include "src/ops/fused/instances.def"
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

/// What is compiled of the rows of specs_of(), in their order.
std::span<const Instance> instances(Kernel kernel);
/// nullptr if there is none.
const Instance* find_instance(Kernel kernel, std::string_view name);

}  // namespace overlace::ops::fused
