// Passes over layers that do not fit, against closed forms and against a recurrence that knows no engine.
#include "src/study/workload/offload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace overlace::study {
namespace {

OffloadRun all_from(Resting where, int layers, double compute_us, double host_us, double disk_us) {
  OffloadRun run;
  run.layers.assign(static_cast<size_t>(layers), where);
  run.compute_us = compute_us;
  run.host_us = host_us;
  run.disk_us = disk_us;
  return run;
}

/// Equal layers: the first is brought, then the slowest of the three sets the pace, then the last computes.
TEST(Offload, EqualLayersAreTheClosedForm) {
  for (const auto [c, h, d] : {std::array{100.0, 30.0, 70.0},
                               {30.0, 100.0, 70.0},
                               {30.0, 70.0, 100.0},
                               {50.0, 50.0, 50.0},
                               {0.0, 10.0, 20.0},
                               {10.0, 0.0, 0.0}})
    for (const int layers : {1, 2, 3, 8})
      for (const int slots : {2, 3, 5}) {
        OffloadRun run = all_from(Resting::disk, layers, c, h, d);
        run.slots = run.disk_slots = slots;
        run.passes = 6;
        const OffloadTime time = offload_passes(run).value();
        const double slowest = std::max({c, h, d});
        const auto where = testing::Message() << c << " " << h << " " << d << ", " << layers << " x " << slots;
        EXPECT_NEAR(time.us, c + h + d + (6 * layers - 1) * slowest, 1e-3) << where;
        EXPECT_NEAR(time.pass_us, layers * slowest, 1e-3) << where;
        EXPECT_NEAR(time.bound_us(), time.pass_us, 1e-3) << where;
        run.is_ahead = false;
        EXPECT_NEAR(offload_passes(run)->pass_us, layers * (c + h + d), 1e-3) << where;
        run.layers.assign(run.layers.size(), Resting::host);
        EXPECT_NEAR(offload_passes(run)->pass_us, layers * (c + h), 1e-3) << where;
        run.layers.assign(run.layers.size(), Resting::device);
        EXPECT_NEAR(offload_passes(run)->pass_us, layers * c, 1e-3) << where;
      }
}

/// The end of all passes; what lies where, use by use.
double recurrence(const OffloadRun& run) {
  double computed = 0, link = 0, disk = 0;
  std::vector<double> used, read;  // when slots became free
  const double way = run.streams_us / run.micro_batches;
  const auto streamed =
      std::count_if(run.layers.begin(), run.layers.end(), [](Resting r) { return r != Resting::device; });
  const double beside =
      streamed == 0 ? 0 : run.streams_us * static_cast<double>(run.layers.size()) / static_cast<double>(streamed);
  double moved = 2 * way;                   // the queue of residual streams: the first two come in
  std::vector<double> came = {way, moved};  // of each use
  for (int pass = 0; pass < run.passes; ++pass)
    for (const Resting where : run.layers) {
      if (where != Resting::device) {
        double begin = link;
        const auto slots = static_cast<size_t>(run.slots), disk_slots = static_cast<size_t>(run.disk_slots);
        if (used.size() >= slots) begin = std::max(begin, used[used.size() - slots]);
        if (where == Resting::disk) {
          if (read.size() >= disk_slots) disk = std::max(disk, read[read.size() - disk_slots]);
          disk += run.disk_us;
          begin = std::max(begin, disk);
        }
        link = begin + run.host_us + beside;
        if (where == Resting::disk) read.push_back(link);
        computed = std::max(computed, link);
      }
      for (int i = 0; i < run.micro_batches; ++i) {
        computed = std::max(computed, came[came.size() - 2]) + run.compute_us / run.micro_batches;
        moved = std::max(moved, computed) + 2 * way;  // out, and the one after next in
        came.push_back(moved);
      }
      if (where != Resting::device) used.push_back(computed);
    }
  return way > 0 ? std::max(computed, moved) : computed;
}

TEST(Offload, AnyPlacesAreTheRecurrence) {
  std::mt19937 random(20261124);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int i = 0; i < 300; ++i) {
    OffloadRun run;
    for (int layers = 1 + below(12); layers > 0; --layers) run.layers.push_back(static_cast<Resting>(below(3)));
    run.compute_us = below(200);
    run.host_us = below(200);
    run.disk_us = below(200);
    if (i % 2 == 1) run.streams_us = below(200);
    run.micro_batches = 1 << below(4);  // halves are whole picoseconds
    run.slots = 2 + below(3);
    run.disk_slots = 2 + below(3);
    run.passes = 4 + below(5);
    const OffloadTime time = offload_passes(run).value();
    EXPECT_NEAR(time.us, recurrence(run), 1e-3) << i;
    EXPECT_GE(time.us, run.passes * time.bound_us() - 1e-3) << i;
    OffloadRun waits = run;
    waits.is_ahead = false;
    EXPECT_LE(time.us, offload_passes(waits)->us + 1e-3) << i;
  }
}

/// All layers alike: what comes over the link, or what streams take both ways, is hidden if computation is longer.
TEST(Offload, StreamsAreMovedBothWays) {
  for (const auto [c, h, s] :
       {std::array{100.0, 30.0, 20.0}, {30.0, 100.0, 20.0}, {30.0, 10.0, 40.0}, {10.0, 0.0, 8.0}}) {
    OffloadRun run = all_from(Resting::host, 6, c, h, 0);
    run.streams_us = s;
    run.micro_batches = 8;
    const OffloadTime time = offload_passes(run).value();
    EXPECT_NEAR(time.host_us, 6 * (s + std::max(s, h)), 1e-9);
    EXPECT_NEAR(time.pass_us, 6 * std::max({c, h + s, 2 * s}), 1e-3) << c << " " << h << " " << s;
    run.is_ahead = false;
    EXPECT_NEAR(offload_passes(run)->pass_us, 6 * (c + h + 2 * s), 1e-3) << c << " " << h << " " << s;
  }
}

TEST(Offload, SaysWhatBinds) {
  EXPECT_EQ(offload_passes(all_from(Resting::disk, 3, 9, 3, 4))->binds(), "compute");
  EXPECT_EQ(offload_passes(all_from(Resting::disk, 3, 2, 5, 4))->binds(), "host link");
  EXPECT_EQ(offload_passes(all_from(Resting::disk, 3, 2, 3, 4))->binds(), "disk");
  EXPECT_EQ(offload_passes(all_from(Resting::host, 3, 2, 1, 4))->binds(), "compute");
}

/// Copies to the device slow products beside them; what a disk reads into memory of the host does not.
TEST(Offload, OnlyTheLinkSlowsProducts) {
  const spec::Contention slow[] = {{spec::Load::gemm_tensor, spec::Load::ce_in, {1.25}},
                                   {spec::Load::gemm_tensor, spec::Load::gemm_tensor, {3}}};
  const OffloadTime host = offload_passes(all_from(Resting::host, 4, 100, 50, 0), slow).value();
  EXPECT_NEAR(host.pass_us, 4 * 110, 1e-3);  // 50 beside the copy do 40 of 100
  const OffloadTime disk = offload_passes(all_from(Resting::disk, 4, 100, 0, 90), slow).value();
  EXPECT_NEAR(disk.pass_us, 4 * 100, 1e-3);
}

TEST(Offload, HasATimelineWithBothLanes) {
  base::Trace trace;
  ASSERT_TRUE(offload_passes(all_from(Resting::disk, 2, 10, 5, 7), {}, &trace).ok());
  std::vector<std::string> lanes;
  for (const base::Span& span : trace.spans) lanes.push_back(span.lane);
  EXPECT_EQ(std::count(lanes.begin(), lanes.end(), "disk"), 16);
  EXPECT_EQ(std::count(lanes.begin(), lanes.end(), "host"), 16);
  EXPECT_EQ(std::count(lanes.begin(), lanes.end(), "compute"), 16);
  EXPECT_FALSE(trace.arrows.empty());
}

TEST(Offload, RefusesWhatCannotBe) {
  const auto message = [](auto change) {
    OffloadRun run = all_from(Resting::disk, 2, 1, 1, 1);
    change(run);
    const auto time = offload_passes(run);
    EXPECT_EQ(time.status().code(), Errc::invalid_argument);
    return time.status().message();
  };
  EXPECT_EQ(message([](OffloadRun& r) { r.host_us = -1; }), "offload: a layer takes -1 us, wanted 0 to 1e12");
  EXPECT_EQ(message([](OffloadRun& r) { r.streams_us = -1; }), "offload: a layer takes -1 us, wanted 0 to 1e12");
  EXPECT_EQ(message([](OffloadRun& r) { r.slots = 1; }),
            "offload: 1 slots of the device and 2 of the host, wanted 2 to 1024 each");
  EXPECT_EQ(message([](OffloadRun& r) { r.layers.clear(); }),
            "offload: 0 layers, 8 passes, 1 micro-batches, wanted at least 1, 4 and 1");
  EXPECT_EQ(
      message([](OffloadRun& r) { r.micro_batches = 1 << 30; }),
      "offload: 2 layers x 1073741824 micro-batches and two transfers x 8 passes are 17179869216 tasks, wanted at "
      "most 4194304");
}

}  // namespace
}  // namespace overlace::study
