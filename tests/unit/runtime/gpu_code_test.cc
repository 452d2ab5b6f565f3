#include "src/runtime/gpu_code.h"

#include <gtest/gtest.h>

namespace overlace::runtime {
namespace {

TEST(GpuCode, OfAnArchitectureWithItsOwnInstructionsRunsThereAlone) {
  EXPECT_TRUE(has_code_for("90a-real", 9, 0));
  for (const auto& [major, minor] : {std::pair{8, 0}, {8, 9}, {10, 0}, {12, 0}})
    EXPECT_FALSE(has_code_for("90a-real", major, minor)) << major << "." << minor;
  EXPECT_FALSE(has_code_for("90a", 10, 0)) << "nor is it translated";
}

TEST(GpuCode, RunsOnLaterGpusOfItsGenerationAndTranslatedOnAll) {
  EXPECT_TRUE(has_code_for("80-real", 8, 9));
  EXPECT_FALSE(has_code_for("80-real", 7, 5));
  EXPECT_FALSE(has_code_for("86-real", 8, 0)) << "older than the code";
  EXPECT_FALSE(has_code_for("80-real", 9, 0));
  for (const char* translated : {"80-virtual", "80"}) {
    EXPECT_TRUE(has_code_for(translated, 8, 0)) << translated;
    EXPECT_TRUE(has_code_for(translated, 12, 0)) << translated;
    EXPECT_FALSE(has_code_for(translated, 7, 5)) << translated;
  }
}

TEST(GpuCode, AnyWordOfTheListIsEnough) {
  EXPECT_TRUE(has_code_for("80-real,90a-real,100-real", 10, 0));
  EXPECT_TRUE(has_code_for("80-real,90a-real", 8, 6));
  EXPECT_FALSE(has_code_for("80-real,90a-real", 12, 0));
  EXPECT_TRUE(has_code_for("native", 7, 0)) << "what it was is not known any more";
  EXPECT_FALSE(has_code_for("", 9, 0));
}

/// What is built where nobody asks for anything else (cmake/overlace_dependencies.cmake).
TEST(GpuCode, OfTheUsualBuildRunsOnEachGpuSinceAmpere) {
  for (const auto& [major, minor] : {std::pair{8, 0}, {8, 6}, {8, 9}, {9, 0}, {10, 0}, {10, 3}, {12, 0}})
    EXPECT_TRUE(check_code_for("80,90a-real,100", 0, "GPU", major, minor).ok()) << major << "." << minor;
  const base::Status refused = check_code_for("80,90a-real,100", 0, "Tesla V100", 7, 0);
  EXPECT_EQ(refused.message(),
            "GPU 0 (Tesla V100) has compute capability 7.0, wanted one that this build has code for: 80,90a-real,100");
}

TEST(GpuCode, ARefusalNamesTheGpuAndBothCapabilities) {
  EXPECT_TRUE(check_code_for("90a-real", 0, "NVIDIA H200", 9, 0).ok());
  const base::Status refused = check_code_for("90a-real", 3, "NVIDIA A100-SXM4-80GB", 8, 0);
  EXPECT_EQ(refused.code(), Errc::not_supported);
  EXPECT_EQ(refused.message(),
            "GPU 3 (NVIDIA A100-SXM4-80GB) has compute capability 8.0, wanted one that this build has code for: "
            "90a-real");
}

}  // namespace
}  // namespace overlace::runtime
