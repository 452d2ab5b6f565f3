// Records beside predictions: what of a record tells schedules apart, and what a prediction must not count.
#include <gtest/gtest.h>

#include <filesystem>

#include "bench/sim/choices.h"
#include "bench/sim/records.h"
#include "src/base/file.h"
#include "src/base/format.h"
#include "src/spec/machine.h"

namespace overlace::bench {
namespace {

std::string line(int m, const char* competitor, const char* schedule, double us, const char* more = "") {
  return base::format(
      R"({{"workload":"gemm_ar","case":{{"name":"x","m":{},"n":8192,"k":2048}},"team":2,"competitor":"{}",)"
      R"("schedule":"{}","status":"ok","time_us":{{"median":{}}}{}}})"
      "\n",
      m, competitor, schedule, us, more);
}

constexpr double kHostUs = 100;  // that a call of a collective takes

std::vector<Measured> predicted(const std::string& lines) {
  const std::string path = testing::TempDir() + "records_of_schedules.jsonl";
  base::write_file(path, lines).or_throw();
  std::vector<Measured> list = read_records({path}).value();
  std::filesystem::remove(path);
  spec::Machine machine = spec::find_machine("h200x4");
  machine.latency.host_collective_us.value = kHostUs;
  predict(list, machine, 4);
  return list;
}

TEST(RecordsOfSchedules, OfAGraphHaveNoTimeOfTheHost) {
  const std::vector<Measured> list = predicted(line(8, "library", "library_ar", 97, R"(,"launch":"stream")") +
                                               line(8, "library", "library_ar", 23, R"(,"launch":"chain")") +
                                               line(8, "library", "library_ar", 25, R"(,"launch":"graph")"));
  ASSERT_EQ(list.size(), 2u) << "two launches, of one of them two records";
  const Measured &stream = list[0], &graph = list[1];
  ASSERT_TRUE(!stream.is_replayed && graph.is_replayed);
  EXPECT_DOUBLE_EQ(graph.measured_us(), 24);
  EXPECT_GT(stream.predicted_us, kHostUs);
  EXPECT_GT(*stream.recurrence_us, kHostUs);
  EXPECT_LT(graph.predicted_us, kHostUs / 2);
  EXPECT_LT(*graph.recurrence_us, kHostUs / 2);
}

TEST(RecordsOfSchedules, OfAGraphThatTheHostHeldUpAreLeftOut) {
  const std::vector<Measured> list =
      predicted(line(8, "library", "library_ar", 23, R"(,"launch":"chain")") +
                line(8, "library", "library_ar", 97, R"(,"launch":"graph","flags":["host_bound"])"));
  ASSERT_EQ(list.size(), 1u);
  EXPECT_DOUBLE_EQ(list[0].measured_us(), 23);
}

TEST(RecordsOfSchedules, HaveTheTileThatTheyName) {
  // Two ranks and 512 tiles of 256x256: make_schedule takes these.
  const std::vector<Measured> list =
      predicted(line(4096, "library", "library_ar", 456) +
                line(4096, "tma_slot:4:align_n=256", "tma_slot_ar", 297, R"(,"tile_n":256)") +
                line(4096, "tma_slot:4", "tma_slot_ar", 312, R"(,"tile_n":128)") +
                line(4096, "tma_slot:8", "tma_slot_ar", 304, R"(,"tile_n":256)"));
  ASSERT_EQ(list.size(), 4u);
  const Measured &wide = list[1], &narrow = list[2];
  ASSERT_TRUE(wide.tile_cols == 0 && narrow.tile_cols == 128 && wide.degree == 4 && narrow.degree == 4);
  EXPECT_DOUBLE_EQ(wide.measured_us(), 297);
  EXPECT_TRUE(narrow.problem.empty() && narrow.predicted_us > 0 && narrow.predicted_us != wide.predicted_us);
  EXPECT_TRUE(wide.recurrence_us && !narrow.recurrence_us) << "the planner takes one tile only";
  EXPECT_NE(choices(list, spec::find_machine("h200x4")).find("| 3 | tma_slot q 4 | 297.0 |"), std::string::npos);
}

/// A cache of plans: what tier probe measured of plain products of bf16.
TEST(RecordsOfSchedules, AreReadFromWhatTuneKeeps) {
  const auto kept = [](const char* key, const char* tier) {
    return base::format(R"({{"overlace_plan":1,"key":"{}","tier":"{}",)"
                        R"("others":[["tma_slot",64,70.5,70,71],["library",1,105.0,104,106]]}})"
                        "\n",
                        key, tier);
  };
  const std::vector<Measured> list =
      predicted(kept("gemm_rs 1024 8192 2048 2 bf16 bf16 nk false false none rows 0: 0: 0: probe", "probe") +
                kept("gemm_rs 2048 8192 2048 2 bf16 bf16 nk false false none rows 0: 0: 0: simulation", "simulation") +
                kept("gemm_rs 2048 8192 2048 2 e4m3 bf16 nk false false none rows 0: 0: 0: probe", "probe"));
  ASSERT_EQ(list.size(), 2u);
  const Measured &library = list[0], &slot = list[1];
  EXPECT_TRUE(library.family == "library" && slot.family == "tma_slot" && slot.degree == 64);
  EXPECT_TRUE(slot.op.m == 1024 && slot.op.n == 8192 && slot.op.k == 2048 && slot.op.ranks == 2);
  EXPECT_DOUBLE_EQ(slot.measured_us(), 70.5);
  const std::string path = testing::TempDir() + "records_of_plans.jsonl";
  base::write_file(path, kept("gemm_rs 1024", "probe")).or_throw();
  EXPECT_EQ(read_records({path}).status().message(), path + ":1: wanted a line of plans");
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace overlace::bench
