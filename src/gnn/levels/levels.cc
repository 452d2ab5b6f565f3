#include "src/gnn/levels/levels.h"

#include <algorithm>
#include <utility>

#include "src/gnn/levels/counts.h"

namespace overlace::gnn {
namespace {

constexpr int kMaxDepth = 64;

base::Status check(const InputTrace& trace, const LevelOptions& options) {
  const auto check_rows = [](const char* name, int64_t rows) {
    return rows >= 0 ? base::Status() : base::invalid_argument("{} is {}, wanted at least 0", name, rows);
  };
  OVERLACE_TRY(check_rows("gpu_rows", options.gpu_rows));
  OVERLACE_TRY(check_rows("cpu_rows", options.cpu_rows));
  OVERLACE_TRY(check_rows("disk rows", options.disk.max_rows));
  if (std::min(std::max(options.gpu_rows, options.cpu_rows), trace.num_vertices()) > kMaxRowIndex)
    return base::invalid_argument("caches of {} and {} rows, wanted at most {} each: programs have 30 bits for a row",
                                  options.gpu_rows, options.cpu_rows, kMaxRowIndex);
  if (options.depth < 0 || options.depth > kMaxDepth)
    return base::invalid_argument("depth is {}, wanted 0 to {}", options.depth, kMaxDepth);
  const bool is_still = options.policy == CachePolicy::none || options.policy == CachePolicy::hottest;
  if (options.order.order == BatchOrder::shuffle && !is_still)
    return base::invalid_argument("order is shuffle and policy {}, wanted policy static or none, or another order",
                                  name_of(options.policy));
  if (options.order.order == BatchOrder::segments && options.order.segment_batches < 1)
    return base::invalid_argument("segment_batches is {}, wanted at least 1", options.order.segment_batches);
  if (options.epoch_batches < 0 ||
      (options.epoch_batches > 0 && (trace.num_batches() == 0 || trace.num_batches() % options.epoch_batches != 0)))
    return base::invalid_argument("epoch_batches is {}, wanted 0 or a divisor of {} batches", options.epoch_batches,
                                  trace.num_batches());
  return check_inputs(trace);
}

CachedRows hottest_start(const InputTrace& trace, const LevelOptions& options) {
  const int64_t gpu = std::min(options.gpu_rows, trace.num_vertices());
  const int64_t cpu = options.policy == CachePolicy::none ? 0 : std::min(options.cpu_rows, trace.num_vertices() - gpu);
  const std::vector<uint32_t> rows = hottest_rows(use_counts(trace), gpu + cpu);
  return {{rows.begin(), rows.begin() + gpu}, {rows.begin() + gpu, rows.end()}};
}

base::Status check_start(const InputTrace& trace, const CachedRows& start) {
  std::vector<bool> is_seen(static_cast<size_t>(trace.num_vertices()));
  for (const auto* rows : {&start.gpu, &start.cpu})
    for (const uint32_t v : *rows) {
      if (v >= is_seen.size() || is_seen[v])
        return base::invalid_argument("start: row {} is {}, wanted rows below {}, each once", v,
                                      v < is_seen.size() ? "there twice" : "no vertex", is_seen.size());
      is_seen[v] = true;
    }
  return {};
}

/// Everything that does not change between the walks over a trace.
class Planner {
 public:
  Planner(const InputTrace& trace, const LevelOptions& options, PageShape page) : trace_(trace), options_(options) {
    plan_.page = page;
    const int64_t nb = trace.num_batches();
    plan_.segment_batches =
        options.order.order == BatchOrder::segments ? options.order.segment_batches : std::max<int64_t>(nb, 1);
    plan_.epoch_batches = options.epoch_batches > 0 ? options.epoch_batches : std::max<int64_t>(nb, 1);
    is_still_ = options.policy == CachePolicy::none || options.policy == CachePolicy::hottest;
    is_cycle_ = !is_still_ && options.order.order == BatchOrder::fixed;
  }

  base::Result<LevelPlan> run(const BatchPlanSink& sink) {
    OVERLACE_TRY(choose_start());
    if (options_.disk.max_rows > 0) OVERLACE_TRY(lay_out_disk());
    OVERLACE_TRY(walk(sink, &plan_));
    count();
    return std::move(plan_);
  }

 private:
  /// In a cycle the rows at the end are those to begin with: then nothing has to be restored, or little.
  base::Status choose_start() {
    constexpr int kWalks = 2;
    plan_.start = options_.start ? *options_.start : hottest_start(trace_, options_);
    OVERLACE_TRY(check_start(trace_, plan_.start));
    if (!is_cycle_ || options_.start) return {};
    if (options_.policy == CachePolicy::belady) cycle_.emplace(NextUses::of_cycle(trace_, {0, trace_.num_batches()}));
    for (int i = 0; i < kWalks; ++i) {
      LevelPlan tried;
      OVERLACE_TRY(walk(nullptr, &tried));
      if (tried.restores.empty() || tried.restores[0].rows.empty()) break;
      plan_.start.cpu = end_rows_;
    }
    return {};
  }

  base::Status lay_out_disk() {
    MemoryTrace misses(trace_.num_vertices());
    std::vector<uint32_t> rows;
    LevelPlan tried;
    const auto keep = [&](int64_t, const BatchPlan& batch) {
      misses.append(batch.pack);
      return base::Status();
    };
    OVERLACE_TRY(walk(keep, &tried));
    int64_t restored = 0;
    for (const Restore& restore : tried.restores) restored += static_cast<int64_t>(restore.rows.size());
    auto length = find_segment_length(misses, options_.disk.max_rows - restored);
    if (!length.ok()) return length.status();
    plan_.disk_segment_batches = *length;
    for (int64_t begin = 0; begin < misses.num_batches(); begin += *length)
      plan_.disk_segments.push_back(
          lay_out_segment(misses, {begin, std::min(begin + *length, misses.num_batches())}, options_.disk));
    return {};
  }

  base::Status walk(const BatchPlanSink& sink, LevelPlan* out) {
    const Segments segments(options_.order, trace_.num_batches(), plan_.epoch_batches);
    LevelSweep sweep(trace_.num_vertices(), options_.policy, options_.depth, plan_.start);
    PagePlaces places(out->disk_segments.empty() ? 0 : trace_.num_vertices());
    const PageView pages{out->disk_segments.empty() ? nullptr : &places, plan_.page};
    BatchPlan batch;
    for (int64_t s = 0; s < segments.count(); ++s) {
      const BatchRange range{segments.begin(s), segments.end(s)};
      std::optional<NextUses> segment;
      if (options_.policy == CachePolicy::belady && !cycle_)
        segment = NextUses::of_segment(trace_, range, plan_.start.cpu);
      sweep.begin(plan_.start.cpu, cycle_ ? &*cycle_ : segment ? &*segment : nullptr);
      for (int64_t b = range.begin; b < range.end; ++b) {
        if (b % plan_.epoch_batches == 0) sweep.settle();
        if (pages.places != nullptr && b % plan_.disk_segment_batches == 0)
          places.take(out->disk_segments[static_cast<size_t>(b / plan_.disk_segment_batches)]);
        OVERLACE_TRY(sweep.step(trace_.inputs(b), pages, &batch, &out->counts));
        if (sink) OVERLACE_TRY(sink(b, batch));
      }
      out->restores.push_back(restore_of(sweep.cpu_rows(), plan_.start.cpu));
    }
    end_rows_.assign(sweep.cpu_rows().begin(), sweep.cpu_rows().end());
    return {};
  }

  void count() {
    int64_t restored = 0, placed = 0;
    for (const Restore& restore : plan_.restores) restored += static_cast<int64_t>(restore.rows.size());
    for (const SegmentPages& segment : plan_.disk_segments) placed += static_cast<int64_t>(segment.rows.size());
    plan_.bytes.packs = plan_.counts.pack_rows * options_.row_bytes;
    plan_.bytes.pages = plan_.counts.pages * plan_.page.bytes;
    plan_.bytes.restores = restored * options_.row_bytes;
    plan_.stored_rows = plan_.counts.pack_rows + placed + restored;
    const auto n = static_cast<double>(std::max<int64_t>(trace_.num_vertices(), 1));
    plan_.blow_up = static_cast<double>(plan_.stored_rows) / n;
  }

  const InputTrace& trace_;
  const LevelOptions& options_;
  bool is_still_, is_cycle_;
  std::optional<NextUses> cycle_;
  std::vector<uint32_t> end_rows_;  // in the CPU cache after the last walk
  LevelPlan plan_;
};

}  // namespace

base::Result<LevelPlan> plan_levels(const InputTrace& trace, const LevelOptions& options, const BatchPlanSink& sink) {
  OVERLACE_TRY(check(trace, options));
  const auto page = page_shape(options.row_bytes, options.disk.page_bytes);
  if (!page.ok()) return page.status();
  return Planner(trace, options, *page).run(sink);
}

}  // namespace overlace::gnn
