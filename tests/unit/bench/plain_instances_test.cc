#include <gtest/gtest.h>

#include <set>
#include <string_view>

#include "src/ops/fused/instances.h"

namespace overlace::bench {
namespace {

constexpr std::string_view kPlain[] = {
#define INSTANCE(kernel, name) #name,
#include "bench/common/plain_instances.def"
#undef INSTANCE
};
constexpr std::string_view kConfigs[] = {
#define CONFIG(name, ...) #name,
#include "src/gemm_core/configs.def"
#undef CONFIG
};

/// A config is there for kernels of the library, or for the plain GEMM of the benches.
TEST(PlainInstances, AndThoseOfTheLibraryUseEachConfig) {
  std::set<std::string_view> used;
  for (const std::string_view name : kPlain) EXPECT_TRUE(used.insert(name).second) << name << " is there twice";
  for (const ops::fused::InstanceSpec& one : ops::fused::kInstances) used.insert(one.name);
  for (const std::string_view name : kConfigs) EXPECT_TRUE(used.contains(name)) << name << " is there for nothing";
}

}  // namespace
}  // namespace overlace::bench
