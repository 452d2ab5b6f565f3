#include "src/ops/fused/instances.h"

namespace overlace::ops::fused {

std::span<const Instance> instances(Kernel kernel) {
  static const Instance rows[] = {
#define INSTANCE(kernel, name) {#name, kSpec_##name, kernel##_kernel_##name()},
#include "src/ops/fused/instances.def"
#undef INSTANCE
  };
  const std::span<const InstanceSpec> specs = specs_of(kernel);
  return std::span(rows).subspan(static_cast<size_t>(specs.data() - kInstances), specs.size());
}

const Instance* find_instance(Kernel kernel, std::string_view name) {
  for (const Instance& i : instances(kernel)) {
    if (i.name == name) return &i;
  }
  return nullptr;
}

}  // namespace overlace::ops::fused
