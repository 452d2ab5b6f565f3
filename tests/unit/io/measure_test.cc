#include "src/io/measure.h"

#include <gtest/gtest.h>

#include "tests/unit/io/scratch.h"

namespace overlace::io {
namespace {

TEST(MeasureStorage, MeasuresEachPointAndLeavesNothing) {
  const Scratch scratch;
  MeasureOptions options;
  options.file_bytes = 8 << 20;
  options.seconds = 0.02;
  std::vector<std::string> steps;
  double last = -1;
  options.progress = [&](std::string_view what, double share) {
    EXPECT_GT(share, last);
    last = share;
    steps.emplace_back(what);
  };
  const auto figures = measure_storage(scratch.path("."), options);
  ASSERT_TRUE(figures.ok()) << figures.status().message();
  EXPECT_EQ(figures->write.requests, 8);
  EXPECT_EQ(figures->in_order.size(), 5u);
  EXPECT_EQ(figures->at_random.size(), 3u);
  EXPECT_EQ(steps.size(), 9u);
  for (const auto& points : {figures->in_order, figures->at_random, {figures->write}})
    for (const StoragePoint& point : points) {
      EXPECT_GE(point.requests, point.is_random ? point.depth : 1);
      EXPECT_GT(point.GBps(), 0);
      EXPECT_NEAR(point.GBps() * 1e9, point.kIOPS() * 1e3 * static_cast<double>(point.request_bytes),
                  point.GBps() * 1e3);
    }
  EXPECT_GT(figures->start_us, 0);
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path(".")));
}

TEST(MeasureStorage, RefusesSizesAndNamesAMissingFolder) {
  MeasureOptions options;
  options.file_bytes = 1000;
  EXPECT_EQ(measure_storage("/tmp", options).status().message(),
            "diskbench: file_bytes is 1000, wanted a multiple of 1048576");
  const base::Status missing = measure_storage("/no/such").status();
  EXPECT_EQ(missing.code(), Errc::io);
  EXPECT_NE(missing.message().find("open for writing: No such file or directory"), std::string::npos)
      << missing.message();
}

}  // namespace
}  // namespace overlace::io
