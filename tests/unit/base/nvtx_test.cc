#include "src/base/nvtx.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace overlace::base {
namespace {

#if defined(OVERLACE_NVTX_RECORDER)

std::string all_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(Nvtx, RangesNestAndAreMadeOnlyWhileTheyAreOn) {
  const std::filesystem::path file = std::filesystem::temp_directory_path() / format("overlace-nvtx-{}", ::getpid());
  ::setenv("NVTX_RECORDER_FILE", file.c_str(), 1);
  ::setenv("NVTX_INJECTION64_PATH", OVERLACE_NVTX_RECORDER, 1);
  ASSERT_FALSE(set_nvtx(false).value());
  int named = 0;
  const auto name = [&] { return format("task {}", ++named); };
  {
    const NvtxRange off("gemm", name);
    ASSERT_FALSE(set_nvtx(true).value());  // the range above stays none
    try {
      const NvtxRange outer("operator", name);
      const NvtxRange inner("gemm", name);
      throw_error(Errc::internal, "in a range");
    } catch (const Error&) {
    }
    const NvtxRange late("gemm", name);
    ASSERT_TRUE(set_nvtx(false).value());  // the range above still ends
    const NvtxRange off_again("gemm", name);
  }
  EXPECT_EQ(named, 3);
  EXPECT_EQ(all_of(file),
            "push overlace operator task 1\npush overlace gemm task 2\npop overlace\npop overlace\n"
            "push overlace gemm task 3\npop overlace\n");
  std::filesystem::remove(file);
}

TEST(Nvtx, TheEnvironmentDoesNotUndoWhatWasAskedFor) {
  ASSERT_TRUE(set_nvtx(true).ok());
  ASSERT_TRUE(open_nvtx().ok());  // OVERLACE_NVTX is not set
  EXPECT_TRUE(set_nvtx(false).value());
}

#else

TEST(Nvtx, IsRefusedWithoutItsHeader) {
  const Result<bool> result = set_nvtx(true);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), Errc::not_supported);
  EXPECT_EQ(result.status().message(),
            "set_nvtx: overlace was built without nvtx3/nvToolsExt.h, wanted a build that has it (CUDA toolkit)");
  EXPECT_FALSE(set_nvtx(false).value());
}

#endif

}  // namespace
}  // namespace overlace::base
