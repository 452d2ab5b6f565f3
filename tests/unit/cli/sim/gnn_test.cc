// A simulated training epoch from packs: equal to the planner's recurrence, and to closed forms.
#include "cli/sim/gnn.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "src/gnn/plan/tune.h"
#include "src/gnn/sample/random.h"
#include "tests/unit/gnn/support/traces.h"

namespace overlace::cli {
namespace {

using gnn::ItemTimes;

std::vector<study::GnnItem> items_of(const std::vector<ItemTimes>& times) {
  std::vector<study::GnnItem> out;
  for (const ItemTimes& t : times)
    out.push_back({t.read_us, t.check_us, t.page_us, t.page_check_us, t.link_us, t.gather_us, t.admit_us, t.train_us,
                   t.is_restore});
  return out;
}

double simulated_us(const std::vector<ItemTimes>& times, int depth, study::GnnWay way = study::GnnWay::pipelined) {
  return study::gnn_epoch(items_of(times), {.way = way, .depth = depth}).value().us;
}

/// Stages of any length, some of none; a restore now and then, pages for some.
std::vector<ItemTimes> random_items(uint64_t seed) {
  uint64_t draw = 0;
  const auto below = [&](uint64_t n) { return gnn::random_below(gnn::random_word(seed, draw++), n); };
  const double longest = static_cast<double>(1 + below(400));
  const auto us = [&] { return below(5) == 0 ? 0 : static_cast<double>(below(1000)) * longest / 1000; };
  const bool has_pages = below(2) == 0, has_link = below(2) == 0;
  std::vector<ItemTimes> out(1 + below(60));
  for (size_t i = 0; i < out.size(); ++i) {
    ItemTimes& t = out[i];
    t = {.read_us = us(), .check_us = us(), .gather_us = us(), .admit_us = us(), .train_us = us()};
    if (has_link) t.link_us = us();
    t.is_restore = i > 0 && !out[i - 1].is_restore && below(6) == 0;
    if (t.is_restore) t.train_us = t.link_us = 0;
    if (has_pages && !t.is_restore) t.page_us = us();
    if (t.page_us > 0) t.page_check_us = us();
  }
  return out;
}

TEST(SimGraphGnn, IsTheRecurrenceOfThePlanner) {
  double hidden = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const std::vector<ItemTimes> items = random_items(seed);
    const int depth = static_cast<int>(seed % 5);
    const gnn::PipelineTime planned = gnn::pipeline_time(items, depth).value();
    ASSERT_NEAR(planned.us, simulated_us(items, depth), 1e-3) << "seed " << seed;
    ASSERT_NEAR(planned.sequential_us(), simulated_us(items, depth, study::GnnWay::sequential), 1e-3) << seed;
    ASSERT_LE(planned.us, planned.sequential_us() + 1e-6) << seed;
    ASSERT_GE(planned.us, std::max({planned.disk_us, planned.link_us, planned.train_us, planned.gather_us}) - 1e-6);
    hidden += planned.sequential_us() - planned.us;
  }
  EXPECT_GT(hidden, 1000);
}

TEST(SimGraphGnn, TwoStagesAreTheClosedForm) {
  // What binds takes all of its time; the other shows once, at the end of what it runs beside.
  const auto items = [](double read, double train) {
    return std::vector<ItemTimes>(20, {.read_us = read, .train_us = train});
  };
  EXPECT_NEAR(simulated_us(items(10, 4), 3), 20 * 10 + 4, 1e-6);
  EXPECT_NEAR(simulated_us(items(4, 10), 3), 4 + 20 * 10, 1e-6);
  EXPECT_NEAR(simulated_us(items(4, 10), 3, study::GnnWay::sequential), 20 * 14, 1e-6);
  EXPECT_NEAR(simulated_us(items(10, 4), 3, study::GnnWay::free), 20 * 4, 1e-6);
}

TEST(SimGraphGnn, ARestoreWaitsForAllBeforeIt) {
  std::vector<ItemTimes> items(9, {.read_us = 1, .gather_us = 1, .admit_us = 50, .train_us = 1});
  items[4] = {.read_us = 1, .gather_us = 5, .is_restore = true};
  // Four copies of 50 us behind the first gather, the restore, then four copies more.
  EXPECT_NEAR(simulated_us(items, 3), 2 + 4 * 50 + 5 + 1 + 4 * 50, 1e-6);
}

TEST(SimGraphGnn, ADeeperRingHidesUnevenReads) {
  std::vector<ItemTimes> items(64, {.read_us = 1, .gather_us = 1, .train_us = 10});
  for (size_t i = 8; i < items.size(); i += 16) items[i].read_us = 40;
  EXPECT_LT(simulated_us(items, 4), simulated_us(items, 0));
  EXPECT_NEAR(simulated_us(items, 4), 2 + 64 * 10, 1e-6);
}

TEST(SimGraphGnn, TakesAPredictionOfATrace) {
  const gnn::MemoryTrace trace = gnn::test::sampled_trace(1 << 12, 4, 4);
  gnn::LevelOptions options{.gpu_rows = 50, .cpu_rows = 300, .row_bytes = 260};
  options.order = {gnn::BatchOrder::segments, 20};
  options.disk.max_rows = 2 << 12;
  const gnn::Prediction prediction = gnn::predict(trace, options).value();
  int64_t bytes = 0, restores = 0;
  for (const gnn::ItemBytes& item : prediction.items) {
    bytes += item.extent + item.pages;
    restores += item.is_restore;
  }
  EXPECT_EQ(bytes, prediction.bytes_read);
  EXPECT_EQ(restores, (trace.num_batches() + 19) / 20);
  const gnn::EpochRates rates{
      .extent_GBps = 0.5, .page_GBps = 0.1, .link_GBps = 20, .compute_ms = 0.4, .check_GBps = 5, .gather_GBps = 3};
  const std::vector<study::GnnItem> items = gnn_items(prediction, rates);
  const study::GnnTime time = study::gnn_epoch(items, {}).value();
  EXPECT_NEAR(time.us, gnn::pipeline_time(gnn::item_times(prediction, rates), 3)->us, 1e-2);
  const gnn::EpochBound bound = gnn::bound_of(prediction, trace.num_batches(), rates);
  EXPECT_NEAR(time.disk_us, bound.disk_s * 1e6, 1e-3 * time.disk_us);
  EXPECT_GE(time.us, bound.seconds() * 1e6 - 1e-3);
}

TEST(SimGraphGnn, TheTimelineHasALaneForDiskAndLink) {
  std::vector<ItemTimes> items(3, {.read_us = 2, .check_us = 1, .link_us = 1, .gather_us = 1, .train_us = 4});
  items[1].page_us = 3;
  base::Trace trace;
  study::gnn_epoch(items_of(items), {}, &trace).status().or_throw();
  std::vector<std::string> disk;
  int64_t link = 0;
  for (const base::Span& span : trace.spans) {
    if (span.lane == "disk") disk.push_back(span.name);
    if (span.lane == "link") link += span.end_ns - span.begin_ns;
  }
  EXPECT_EQ(disk, (std::vector<std::string>{"read[0]", "read[1]", "read[2]", "pages[1]"}));
  EXPECT_EQ(link, 3000);
  EXPECT_FALSE(trace.arrows.empty());
}

TEST(SimGraphGnn, RefusesWhatIsNoPipeline) {
  const std::vector<study::GnnItem> none;
  EXPECT_EQ(study::gnn_epoch(none, {}).status().message(), "gnn: no items, wanted at least one");
  std::vector<ItemTimes> two(2, {.is_restore = true});
  EXPECT_EQ(study::gnn_epoch(items_of(two), {}).status().message(),
            "gnn: item 1 is a restore behind a restore, wanted a batch between them");
  EXPECT_EQ(gnn::pipeline_time(two, 1).status().message(),
            "item 1 is a restore behind a restore, wanted a batch between them");
  two[0].is_restore = false;
  EXPECT_EQ(gnn::pipeline_time(two, -1).status().message(), "depth is -1, wanted at least 0");
  EXPECT_EQ(study::gnn_epoch(items_of(two), {.depth = 65}).status().message(), "gnn: depth is 65, wanted 0 to 64");
  EXPECT_EQ(study::gnn_epoch(items_of(two), {.outputs = 0}).status().message(), "gnn: 0 outputs, wanted at least 1");
  two[0].read_us = -1;
  EXPECT_EQ(study::gnn_epoch(items_of(two), {}).status().code(), Errc::invalid_argument);
}

}  // namespace
}  // namespace overlace::cli
