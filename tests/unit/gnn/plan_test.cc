// Predictions against sums made by hand from the plans of all batches, fits against the memory that was given.
#include <gtest/gtest.h>

#include <algorithm>

#include "src/gnn/pack/extent_layout.h"
#include "src/gnn/parallel.h"
#include "src/gnn/plan/predict.h"
#include "src/gnn/plan/tune.h"
#include "src/gnn/sample/selection.h"
#include "tests/unit/gnn/support/traces.h"

namespace overlace::gnn {
namespace {

const MemoryTrace& planned_trace() {
  static const MemoryTrace made = test::sampled_trace(1 << 14, 4, 4);
  return made;
}

TEST(ExtentLayout, PutsSectionsOneBehindTheOther) {
  const ExtentLayout layout = extent_layout(
      {.reached = 4, .indptr = 101, .indices = 400, .seeds = 10, .inputs = 300, .admissions = 7, .pages = 5, .rows = 9},
      100);
  int64_t end = 4096;
  for (size_t i = 0; i < kExtentSections; ++i) {
    const ExtentPart& part = layout.parts[i];
    EXPECT_GE(part.offset, end);
    EXPECT_LT(part.offset, end + 4096);
    EXPECT_EQ(part.offset % 64, 0);
    end = part.offset + part.bytes;
  }
  EXPECT_EQ(layout.at(ExtentSection::reached).offset, 4096);
  EXPECT_EQ(layout.at(ExtentSection::indices).bytes, 1600);
  EXPECT_EQ(layout.at(ExtentSection::inputs).bytes, 1200);
  EXPECT_EQ(layout.at(ExtentSection::program).bytes, 1200);
  EXPECT_EQ(layout.at(ExtentSection::admissions).bytes, 56);
  EXPECT_EQ(layout.at(ExtentSection::rows).offset % 4096, 0);
  EXPECT_EQ(layout.at(ExtentSection::rows).bytes, 900);
  EXPECT_EQ(layout.bytes, layout.at(ExtentSection::rows).offset + 4096);
  EXPECT_EQ(extent_layout({}, 100).bytes, 4096);
}

TEST(Predict, CountsEveryByte) {
  for (const int64_t cap : {int64_t{0}, int64_t{2} << 14}) {
    LevelOptions options{.gpu_rows = 200, .cpu_rows = 600, .row_bytes = 260};
    options.order = {BatchOrder::segments, 20};
    options.disk.max_rows = cap;
    const Prediction seen = std::move(predict(planned_trace(), options)).value();

    int64_t extents = 0, pages = 0, largest = 0, slots = 0;
    const LevelPlan plan = std::move(plan_levels(planned_trace(), options, [&](int64_t b, const BatchPlan& batch) {
                             const BatchView view = planned_trace().batch(b);
                             const auto whole = [](int64_t words) { return (4 * words + 63) / 64 * 64; };
                             const int64_t n = std::ssize(batch.program);
                             int64_t bytes = whole(std::ssize(view.reached)) + whole(std::ssize(view.indptr)) +
                                             whole(std::ssize(view.indices)) + whole(view.num_seeds()) + 2 * whole(n) +
                                             whole(2 * std::ssize(batch.admissions)) + whole(std::ssize(batch.pages));
                             bytes = 4096 + (bytes + 4095) / 4096 * 4096;
                             bytes += (260 * std::ssize(batch.pack) + 4095) / 4096 * 4096;
                             extents += bytes;
                             largest = std::max(largest, bytes);
                             pages += std::ssize(batch.pages) * 4096;
                             for (const uint32_t word : batch.program) slots += row_level(word) == RowLevel::cpu;
                             return base::Status();
                           })).value();
    int64_t restores = 0, disk_pages = 0;
    for (const Restore& restore : plan.restores) {
      if (restore.loads.empty() && restore.moves.empty()) continue;
      const auto whole = [](int64_t words) { return (8 * words + 63) / 64 * 64; };
      restores += 4096 + (whole(std::ssize(restore.loads)) + whole(std::ssize(restore.moves)) + 4095) / 4096 * 4096;
      restores += (260 * std::ssize(restore.rows) + 4095) / 4096 * 4096;
    }
    for (const SegmentPages& segment : plan.disk_segments) disk_pages += (std::ssize(segment.rows) + 14) / 15 * 4096;
    EXPECT_EQ(seen.bytes_read, extents + pages + restores);
    EXPECT_EQ(seen.bytes_on_disk, extents + disk_pages + restores);
    EXPECT_EQ(seen.bytes_to_gpu, extents + pages + slots * 260);
    EXPECT_EQ(seen.largest_extent, largest);
    EXPECT_EQ(pages > 0, cap > 0);
    EXPECT_EQ(seen.memory.gpu_cache, 200 * 260);
    EXPECT_EQ(seen.memory.cpu_cache, 601 * 260);
    EXPECT_EQ(seen.memory.cpu_ring, 8 * (largest + seen.most_page_bytes) + seen.largest_restore);
    EXPECT_EQ(seen.memory.gpu_ring, 8 * plan.counts.max_ring_rows * 260);
    EXPECT_GT(seen.memory.gpu_outputs, 3 * seen.most_rows * (260 + 8));
    EXPECT_GT(seen.memory.gpu_outputs, seen.memory.cpu_outputs);
  }
}

TEST(Fit, FillsTheMemoryThatThereIs) {
  int64_t before = 0;
  for (const int64_t mib : {6, 8, 10}) {
    FitRequest request{.gpu_bytes = mib << 20, .cpu_bytes = mib << 20};
    request.options.row_bytes = 1024;
    const Prediction fitted = std::move(fit(planned_trace(), request)).value();
    EXPECT_LE(fitted.memory.gpu(), request.gpu_bytes);
    EXPECT_LE(fitted.memory.cpu(), request.cpu_bytes);
    EXPECT_GT(static_cast<double>(fitted.memory.gpu()), 0.95 * static_cast<double>(request.gpu_bytes));
    EXPECT_GT(fitted.plan.start.gpu.size(), 0u);
    EXPECT_GT(fitted.plan.start.cpu.size(), 0u);
    EXPECT_TRUE(before == 0 || fitted.plan.bytes.total() < before);
    before = fitted.plan.bytes.total();
  }
}

TEST(Fit, TakesNothingOfAGpuWhereThereIsNone) {
  FitRequest request{.gpu_bytes = 0, .cpu_bytes = 16 << 20};
  request.options.row_bytes = 1024;
  const Prediction fitted = std::move(fit(planned_trace(), request)).value();
  EXPECT_TRUE(fitted.plan.start.gpu.empty());
  EXPECT_GT(fitted.plan.start.cpu.size(), 0u);
  EXPECT_EQ(host_bytes(fitted, request), fitted.memory.alone());
  EXPECT_GT(fitted.memory.alone(), fitted.memory.cpu()) << "rows are gathered on the host";
  EXPECT_LE(fitted.memory.alone(), request.cpu_bytes);
  EXPECT_GT(static_cast<double>(fitted.memory.alone()), 0.95 * static_cast<double>(request.cpu_bytes));
  request.cpu_bytes = 1 << 20;
  const base::Status status = fit(planned_trace(), request).status();
  EXPECT_EQ(status.code(), Errc::out_of_memory);
  EXPECT_NE(status.message().find("gpu_bytes is 0 and cpu_bytes 1048576, wanted at least 0 and "), std::string::npos)
      << status.message();
}

TEST(Fit, TakesAllRowsWhereThereIsMemoryAndSaysWhereThereIsNone) {
  FitRequest request{.gpu_bytes = int64_t{1} << 32, .cpu_bytes = int64_t{1} << 32};
  request.options.row_bytes = 1024;
  const Prediction all = std::move(fit(planned_trace(), request)).value();
  EXPECT_EQ(all.plan.start.gpu.size(), size_t{1} << 14);
  EXPECT_EQ(all.plan.bytes.total(), 0);
  request.gpu_bytes = 1 << 20;
  const base::Status status = fit(planned_trace(), request).status();
  EXPECT_EQ(status.code(), Errc::out_of_memory);
  EXPECT_NE(status.message().find("gpu_bytes is 1048576 and cpu_bytes 4294967296, wanted at least "), std::string::npos)
      << status.message();
  request.disk_bytes = 100;
  EXPECT_EQ(fit(planned_trace(), request).status().message(), "disk_bytes is 100, wanted at least one row of 1024");
}

TEST(Tune, RanksByWhatBindsAndKeepsReasons) {
  FitRequest base{.gpu_bytes = 8 << 20, .cpu_bytes = 8 << 20};
  base.options.row_bytes = 1024;
  auto candidates = candidates_of(base, 400);
  EXPECT_EQ(candidates.size(), 3u * 3);
  candidates.resize(3);  // order fixed, depths 2 to 4
  candidates.push_back(base);
  candidates.back().gpu_bytes = 1000;
  const EpochRates rates{.extent_GBps = 1.7, .page_GBps = 0.44, .link_GBps = 50, .compute_ms = 0.01};
  const auto one = std::move(tune(planned_trace(), candidates, rates, 1)).value();
  const auto two = std::move(tune(planned_trace(), candidates, rates, 2)).value();
  ASSERT_EQ(one.size(), 4u);
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(one[i].prediction.bytes_read, two[i].prediction.bytes_read);
    EXPECT_EQ(one[i].request.options.depth, two[i].request.options.depth);
  }
  for (size_t i = 1; i < 3; ++i) EXPECT_LE(one[i - 1].time.us, one[i].time.us);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_GE(one[i].time.us * 1e-6, one[i].bound.seconds() * (1 - 1e-9));
    EXPECT_LT(one[i].time.us, one[i].time.sequential_us());
    EXPECT_EQ(one[i].bytes_read, one[i].prediction.bytes_read);
  }
  // A smaller depth leaves more memory to the caches.
  EXPECT_EQ(one[0].request.options.depth, 2);
  EXPECT_STREQ(one[0].bound.binds(), "disk");
  EXPECT_NEAR(one[0].bound.seconds(), static_cast<double>(one[0].prediction.bytes_read) / 1.7e9, 1e-12);
  EXPECT_EQ(one[3].request.gpu_bytes, 1000);
  EXPECT_EQ(one[3].refused.rfind("gpu_bytes is 1000 and", 0), 0u) << one[3].refused;

  EpochRates slow = rates;
  slow.compute_ms = 100;
  EXPECT_STREQ(tune(planned_trace(), candidates, slow, 1)->front().bound.binds(), "compute");
  slow = rates;
  slow.link_GBps = 0.1;
  EXPECT_STREQ(tune(planned_trace(), candidates, slow, 1)->front().bound.binds(), "link");
  slow.page_GBps = 0;
  EXPECT_EQ(tune(planned_trace(), candidates, slow, 1).status().message(), "page_GBps is 0, wanted more than 0");
  EXPECT_EQ(tune(planned_trace(), {}, rates, 1).status().message(), "tune: no candidates, wanted at least one");
}

TEST(Tune, TakesTheSlowestRankAndTheBytesOfAll) {
  const TraceSelection even = TraceSelection::of_rank(planned_trace(), 0, 2).value();
  const TraceSelection odd = TraceSelection::of_rank(planned_trace(), 1, 2).value();
  FitRequest base{.gpu_bytes = 8 << 20, .cpu_bytes = 8 << 20};
  base.options.row_bytes = 1024;
  const EpochRates rates{.extent_GBps = 1.7, .page_GBps = 0.44, .compute_ms = 0.01};
  const InputTrace* ranks[] = {&even, &odd};
  const Tuned both = std::move(tune(ranks, {base}, rates, 1)).value().front();
  const Tuned first = std::move(tune(even, {base}, rates, 1)).value().front();
  const Tuned second = std::move(tune(odd, {base}, rates, 1)).value().front();
  EXPECT_EQ(both.bytes_read, first.bytes_read + second.bytes_read);
  EXPECT_EQ(both.bytes_on_disk, first.bytes_on_disk + second.bytes_on_disk);
  EXPECT_NE(first.bytes_read, second.bytes_read);
  EXPECT_EQ(both.time.us, std::max(first.time.us, second.time.us));
  EXPECT_EQ(both.bound.seconds(), (first.time.us > second.time.us ? first : second).bound.seconds());
  EXPECT_EQ(tune(std::span<const InputTrace* const>(), {base}, rates, 1).status().message(),
            "tune: no ranks, wanted at least one");
}

TEST(ParallelEach, DoesAllAndReturnsTheFirstFailure) {
  for (const int threads : {1, 2, 5}) {
    std::vector<int> done(100);
    const base::Status status = parallel_each(100, threads, [&](int64_t i, int thread) -> base::Status {
      EXPECT_LT(thread, threads);
      ++done[static_cast<size_t>(i)];
      if (i == 97) throw std::bad_alloc();
      if (i == 40 || i == 60) return base::error(Errc::io, "piece {}", i);
      return {};
    });
    EXPECT_EQ(status.message(), "piece 40");
    EXPECT_EQ(std::vector<int>(done.begin(), done.begin() + 41), std::vector<int>(41, 1));
    std::vector<int> all(100);
    EXPECT_TRUE(parallel_each(100, threads, [&](int64_t i, int) {
                  return ++all[static_cast<size_t>(i)], base::Status();
                }).ok());
    EXPECT_EQ(all, std::vector<int>(100, 1));
  }
  EXPECT_TRUE(parallel_each(0, 3, [](int64_t, int) { return base::error(Errc::io, "no"); }).ok());
}

}  // namespace
}  // namespace overlace::gnn
