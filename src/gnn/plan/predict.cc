#include "src/gnn/plan/predict.h"

#include <algorithm>

#include "src/base/ceil_div_pod.h"
#include "src/gnn/pack/extent.h"
#include "src/gnn/pipeline/output.h"

namespace overlace::gnn {
namespace {

constexpr int64_t kOutputs = 3;  // filled, waiting, in use

LoaderMemory memory_of(const Prediction& p) {
  const int64_t row = p.options.row_bytes, cpu_rows = std::ssize(p.plan.start.cpu);
  const int64_t slots = 2 * int64_t{p.options.depth} + 2;
  const OutputRoom room = output_room({p.most_rows, p.most_block_bytes}, row, true, cpu_rows > 0);
  LoaderMemory memory;
  memory.gpu_cache = std::ssize(p.plan.start.gpu) * row;
  memory.gpu_ring = slots * p.plan.counts.max_ring_rows * row;
  memory.gpu_outputs = kOutputs * room.device;
  memory.cpu_cache = cpu_rows == 0 ? 0 : (cpu_rows + 1) * row;  // and the spare slot of restores
  memory.cpu_ring = slots * (p.largest_extent + p.most_page_bytes) + p.largest_restore;
  memory.cpu_outputs = kOutputs * room.host;
  memory.alone_outputs = kOutputs * output_room({p.most_rows, p.most_block_bytes}, row, false, cpu_rows > 0).host;
  return memory;
}

ItemBytes item_of(const BatchPlan& batch, int64_t extent_bytes, const PageShape& page) {
  ItemBytes item{.extent = extent_bytes, .pages = std::ssize(batch.pages) * page.bytes};
  item.rows = std::ssize(batch.program);
  item.cpu_rows = std::count_if(batch.program.begin(), batch.program.end(),
                                [](uint32_t word) { return row_level(word) == RowLevel::cpu; });
  item.admitted = std::ssize(batch.admissions);
  return item;
}

/// Puts restores where the loader has them: behind each segment, and of nothing between sampled epochs.
std::vector<ItemBytes> with_restores(std::vector<ItemBytes> batches, const LevelPlan& plan,
                                     const LevelOptions& options) {
  if (options.order.order == BatchOrder::shuffle) return batches;
  const int64_t num_batches = std::ssize(batches);
  const Segments segments(options.order, num_batches, plan.epoch_batches);
  std::vector<ItemBytes> items;
  for (int64_t b = 0; b < num_batches; ++b) {
    items.push_back(batches[static_cast<size_t>(b)]);
    const int64_t segment = segments.of(b);
    const bool is_last = segments.end(segment) == b + 1;
    if (!is_last && (b + 1) % plan.epoch_batches != 0) continue;
    ItemBytes back{.is_restore = true};
    if (is_last) {
      const Restore& restore = plan.restores[static_cast<size_t>(segment)];
      back.extent = restore_extent_bytes(restore, options.row_bytes);
      back.rows = std::ssize(restore.moves) + std::ssize(restore.loads);
    }
    items.push_back(back);
  }
  return items;
}

int64_t rows_per_batch(const InputTrace& trace) {
  int64_t rows = 0;
  for (int64_t b = 0; b < trace.num_batches(); ++b) rows += std::ssize(trace.inputs(b));
  return rows / std::max<int64_t>(trace.num_batches(), 1);
}

}  // namespace

base::Result<Prediction> predict(const InputTrace& trace, const LevelOptions& options) {
  Prediction out;
  out.options = options;
  const auto page = page_shape(options.row_bytes, options.disk.page_bytes);
  if (!page.ok()) return page.status();
  int64_t extents = 0;
  auto plan = plan_levels(trace, options, [&](int64_t b, const BatchPlan& batch) {
    const ExtentLayout layout = extent_layout(counts_of(trace.batch(b), batch), options.row_bytes);
    const int64_t bytes = layout.bytes;
    extents += bytes;
    out.most_block_bytes = std::max(out.most_block_bytes, layout.block_bytes());
    out.largest_extent = std::max(out.largest_extent, bytes);
    out.most_page_bytes = std::max(out.most_page_bytes, std::ssize(batch.pages) * page->bytes);
    out.most_rows = std::max<int64_t>(out.most_rows, std::ssize(batch.program));
    out.items.push_back(item_of(batch, bytes, *page));
    return base::Status();
  });
  if (!plan.ok()) return plan.status();
  out.plan = std::move(*plan);
  int64_t restores = 0;
  for (const Restore& restore : out.plan.restores) {
    const int64_t bytes = restore_extent_bytes(restore, options.row_bytes);
    restores += bytes;
    out.largest_restore = std::max(out.largest_restore, bytes);
  }
  for (const SegmentPages& segment : out.plan.disk_segments)
    out.bytes_of_pages += segment.num_pages(*page) * page->bytes;
  out.bytes_read = extents + out.plan.bytes.pages + restores;
  out.bytes_on_disk = extents + out.bytes_of_pages + restores;
  out.bytes_to_gpu = extents + out.plan.bytes.pages + out.plan.counts.cpu_hits * options.row_bytes;
  out.memory = memory_of(out);
  out.items = with_restores(std::move(out.items), out.plan, options);
  return out;
}

int64_t host_bytes(const Prediction& prediction, const FitRequest& request) {
  return request.gpu_bytes > 0 ? prediction.memory.cpu() : prediction.memory.alone();
}

base::Result<Prediction> fit(const InputTrace& trace, const FitRequest& request) {
  LevelOptions options = request.options;
  if (options.row_bytes < 1) return base::invalid_argument("row_bytes is {}, wanted at least 1", options.row_bytes);
  options.disk.max_rows = request.disk_bytes / options.row_bytes;
  if (request.disk_bytes > 0 && options.disk.max_rows == 0)
    return base::invalid_argument("disk_bytes is {}, wanted at least one row of {}", request.disk_bytes,
                                  options.row_bytes);
  const int64_t mean_rows = request.is_automatic_order ? rows_per_batch(trace) : 0;

  // Smaller caches mean larger packs, so larger buffers: from caches that take all memory down to those that fit.
  options.gpu_rows = std::clamp<int64_t>(request.gpu_bytes / options.row_bytes, 0, trace.num_vertices());
  options.cpu_rows = std::clamp<int64_t>(request.cpu_bytes / options.row_bytes - 1, 0, trace.num_vertices());
  for (;;) {
    const bool may_change = options.policy == CachePolicy::belady || options.policy == CachePolicy::lru;
    if (request.is_automatic_order && may_change)
      options.order = automatic_order(trace.num_batches(), options.cpu_rows, mean_rows);
    auto tried = predict(trace, options);
    if (!tried.ok()) return tried.status();
    const LoaderMemory& memory = tried->memory;
    const int64_t on_gpu = request.gpu_bytes > 0 ? memory.gpu() : 0, on_host = host_bytes(*tried, request);
    if (on_gpu <= request.gpu_bytes && on_host <= request.cpu_bytes) return tried;
    const int64_t gpu_over = std::max<int64_t>(0, on_gpu - request.gpu_bytes);
    const int64_t cpu_over = std::max<int64_t>(0, on_host - request.cpu_bytes);
    if ((gpu_over > 0 && memory.gpu_cache == 0) || (cpu_over > 0 && memory.cpu_cache == 0))
      return base::error(Errc::out_of_memory,
                         "gpu_bytes is {} and cpu_bytes {}, wanted at least {} and {} for buffers beside caches of {} "
                         "and {} rows; smaller batches or a smaller depth need less",
                         request.gpu_bytes, request.cpu_bytes, std::max<int64_t>(0, on_gpu - memory.gpu_cache),
                         on_host - memory.cpu_cache, tried->plan.start.gpu.size(), tried->plan.start.cpu.size());
    // NOTE: an eighth more, as what leaves the caches makes the buffers larger.
    const auto smaller = [&](int64_t cached, int64_t over) {
      return std::max<int64_t>(0, cached - base::ceil_div(over + over / 8, options.row_bytes));
    };
    options.gpu_rows = smaller(std::ssize(tried->plan.start.gpu), gpu_over);
    options.cpu_rows = smaller(std::ssize(tried->plan.start.cpu), cpu_over);
  }
}

}  // namespace overlace::gnn
