// Which kernels a runtime asks for when it opens: never one that the GPU has no code for, as the call would fail.
#include "src/runtime/backend/cuda_peer/preload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <type_traits>
#include <vector>

#include "tests/ranks/nccl/stand_ins.h"

namespace overlace::test::nccl {
namespace {

namespace cp = runtime::cuda_peer;

static_assert(std::is_same_v<cp::RegisteredKernel, cp::KernelOf<cp::CodeFor::all>>, "of units that are for all GPUs");
const char kGeneric = 0, kHopper = 0;  // stand for kernels
const cp::RegisteredKernel kLoadGeneric(&kGeneric);
const cp::KernelOf<cp::CodeFor::hopper> kLoadHopper(&kHopper);

TEST(Preload, AsksForNoKernelWithoutCodeForTheGpu) {
  for (const int capability : {80, 89, 90, 100, 120}) {
    cuda::asked_kernels().clear();
    EXPECT_TRUE(cp::load_registered_kernels(capability).ok());
    const std::vector<const void*>& asked = cuda::asked_kernels();
    EXPECT_EQ(std::count(asked.begin(), asked.end(), &kGeneric), 1) << capability;
    EXPECT_EQ(std::count(asked.begin(), asked.end(), &kHopper), capability == 90 ? 1 : 0) << capability;
  }
}

}  // namespace
}  // namespace overlace::test::nccl
