// What a batch gets once it is its turn: rows from their levels, its arrays, by CPUs or by a device.
#include <algorithm>
#include <cstring>
#include <vector>

#include "src/base/ceil_div_pod.h"
#include "src/base/log.h"
#include "src/gnn/pipeline/epoch.h"

namespace overlace::gnn {

std::span<std::byte> Epoch::slot(int64_t index) const {
  const Item& item = items_[static_cast<size_t>(index)];
  if (item.number >= 0) return context_.buffers.ring.slot(index);
  return {context_.buffers.restore.data(), context_.buffers.restore.size()};
}

int64_t Epoch::ring_rows(const Item& item) const {
  return std::ssize(item.view.rows) / row_bytes_ + std::ssize(item.view.pages) * context_.plan.page.rows;
}

/// A row of what an item has read: first those of its pack, then those of its pages.
std::span<const std::byte> Epoch::row_of(const Item& item, int64_t index, uint32_t row) const {
  const int64_t packed = std::ssize(item.view.rows) / row_bytes_;
  const auto bytes = static_cast<size_t>(row_bytes_);
  if (row < packed) return item.view.rows.subspan(row * bytes, bytes);
  const PageShape& page = context_.plan.page;
  const int64_t paged = row - packed;
  const int64_t offset = context_.buffers.extent_room + paged / page.rows * page.bytes + paged % page.rows * row_bytes_;
  return slot(index).subspan(static_cast<size_t>(offset), bytes);
}

/// Rows of the dataset take the place of those that the item has read: of its pack, or of its pages as far as any batch
/// needs them. All of them are input rows of the batch, or what a restore loads into slots.
base::Status Epoch::mend(int64_t index, bool has_pages) {
  const Item& item = items_[static_cast<size_t>(index)];
  const PackPlan& plan = context_.plan;
  const int64_t packed = std::ssize(item.view.rows) / row_bytes_;
  std::vector<int64_t> vertices;
  std::vector<uint32_t> rows;
  const auto take = [&](uint32_t row, uint32_t vertex) {
    if ((row >= packed) != has_pages || row >= ring_rows(item)) return;
    rows.push_back(row);
    vertices.push_back(vertex);
  };
  const auto depth = static_cast<uint32_t>(depth_);
  for (size_t i = 0; i < item.view.program.size(); ++i) {
    const uint32_t place = row_index(item.view.program[i]);
    if (row_level(item.view.program[i]) == RowLevel::ring && ring_age(place, depth) == 0)
      take(ring_row(place, depth), item.view.batch.inputs[i]);
  }
  if (item.number < 0)
    for (const Admission& load : item.view.admissions) take(load.ring_row, plan.start.cpu[load.slot]);
  std::vector<std::byte> bytes(rows.size() * static_cast<size_t>(row_bytes_));
  OVERLACE_TRY(context_.source->read(vertices, bytes));
  for (size_t i = 0; i < rows.size(); ++i) {
    const int64_t offset = row_of(item, index, rows[i]).data() - slot(index).data();
    std::memcpy(slot(index).data() + offset, bytes.data() + i * static_cast<size_t>(row_bytes_),
                static_cast<size_t>(row_bytes_));
  }
  base::warn_once("gnn", base::format("{}: rows are damaged and come from dataset {}; see overlace gnn verify --repair",
                                      (has_pages ? context_.pages : context_.packs)->path(), context_.options.source));
  const std::lock_guard lock(mutex_);
  stats_.mended_rows += std::ssize(rows);
  return {};
}

/// The number of a batch that is delivered; the first one has 0.
int64_t Epoch::ordinal_of(const Item& item) const {
  return item.position - items_[static_cast<size_t>(item_of_[0])].position;
}

template <class Take>
base::Status Epoch::each_row(int64_t index, const Take& take) {
  const Item& item = items_[static_cast<size_t>(index)];
  const auto depth = static_cast<uint32_t>(depth_);
  int64_t rows[3] = {0, 0, 0};
  for (size_t i = 0; i < item.view.program.size(); ++i) {
    const uint32_t word = item.view.program[i];
    const RowLevel level = row_level(word);
    uint32_t row = row_index(word);
    int64_t source = index;
    ++rows[static_cast<size_t>(level)];
    if (level == RowLevel::ring) {
      source = index - ring_age(row, depth);
      row = ring_row(row, depth);
      // Earlier batches of the segment: a restore in between has no rows that a program names.
      if (source < 0 || items_[static_cast<size_t>(source)].number < 0 ||
          row >= ring_rows(items_[static_cast<size_t>(source)]))
        return base::error(Errc::corrupt, "{}: extent {}: program[{}] is row {} of the batch {} before it",
                           context_.packs->path(), item.number, i, row, index - source);
    }
    take(level, source, row);
  }
  const std::lock_guard lock(mutex_);
  stats_.gpu_rows += rows[0];
  stats_.cpu_rows += rows[1];
  stats_.ring_rows += rows[2];
  return {};
}

/// By this thread.
base::Status Epoch::gather_rows(int64_t index, std::byte* to) {
  const auto bytes = static_cast<size_t>(row_bytes_);
  const LoaderBuffers& buffers = context_.buffers;
  return each_row(index, [&](RowLevel level, int64_t source, uint32_t row) {
    const std::byte* from = level == RowLevel::ring
                                ? row_of(items_[static_cast<size_t>(source)], source, row).data()
                                : (level == RowLevel::gpu ? buffers.gpu : buffers.cpu).data() + row * bytes;
    std::memcpy(to, from, bytes);
    to += bytes;
  });
}

/// What the item has read goes to the device's ring: rows of its pack, then those of its pages, without gaps.
base::Status Epoch::queue_ring(int64_t index) {
  const Item& item = items_[static_cast<size_t>(index)];
  const PageShape& page = context_.plan.page;
  std::byte* const to = context_.buffers.device_ring + index % slots_ * context_.plan.max_ring_rows * row_bytes_;
  const int64_t packed = std::ssize(item.view.rows), pages = std::ssize(item.view.pages);
  LoaderDevice& device = *context_.device;
  if (packed > 0) OVERLACE_TRY(device.copy(Lane::transfer, to, item.view.rows.data(), packed, packed, 1));
  if (pages == 0) return {};
  return device.copy(Lane::transfer, to + packed, slot(index).data() + context_.buffers.extent_room,
                     page.rows * row_bytes_, page.bytes, pages);
}

/// `arrays`: of the host, complete but for what the device gathers by. Its tables, in this order: the GPU's cache, the
/// CPU's cache or the rows of it that this thread has staged, the ring.
base::Status Epoch::gather_on_device(int64_t index, std::byte* arrays) {
  const Item& item = items_[static_cast<size_t>(index)];
  const LoaderBuffers& buffers = context_.buffers;
  const auto bytes = static_cast<size_t>(row_bytes_);
  const bool is_staged = row_bytes_ < kFarRowBytes;
  const int64_t inputs = std::ssize(item.view.program), ring_slot = context_.plan.max_ring_rows;
  const int64_t gpu = std::ssize(context_.plan.start.gpu);
  // There is room for as many staged rows as can be, so that no number depends on how many there are.
  const int64_t cached = std::ssize(context_.plan.start.cpu), cpu = is_staged ? (cached > 0 ? inputs : 0) : cached;
  const ArrayPlaces places = array_places(item.view.batch, true);
  auto* source = reinterpret_cast<int64_t*>(arrays + places.sources);
  std::byte* const staged = arrays + places.staged;
  int64_t num_staged = 0;
  OVERLACE_TRY(each_row(index, [&](RowLevel level, int64_t from, uint32_t row) {
    if (level == RowLevel::gpu) {
      *source++ = buffers.device_row[row];
    } else if (level == RowLevel::ring) {
      *source++ = gpu + cpu + from % slots_ * ring_slot + row;
    } else if (is_staged) {
      std::memcpy(staged + num_staged * row_bytes_, buffers.cpu.data() + row * bytes, bytes);
      *source++ = gpu + num_staged++;
    } else {
      *source++ = gpu + row;
    }
  }));
  LoaderDevice& device = *context_.device;
  const int64_t ordinal = ordinal_of(item);
  std::byte* const out = buffers.device_outputs + ordinal % LoaderBuffers::kOutputs * buffers.room.device;
  std::byte* const to = out + base::round_up(inputs * row_bytes_, kOutputAlignment);
  const int64_t sent = places.staged + num_staged * row_bytes_;
  OVERLACE_TRY(device.wait(Lane::transfer, released_event(ordinal)));
  OVERLACE_TRY(device.record(Lane::transfer, begun_event(index)));
  OVERLACE_TRY(device.copy(Lane::transfer, to, arrays, sent, sent, 1));
  OVERLACE_TRY(device.record(Lane::transfer, transferred_event(index)));
  OVERLACE_TRY(device.wait(Lane::gather, transferred_event(index)));
  const DeviceRows tables[] = {{buffers.device_cache, gpu},
                               {is_staged ? to + places.staged : buffers.cpu.data(), cpu},
                               {buffers.device_ring, slots_ * ring_slot}};
  describe(index, out, to);
  const int ctas = !is_staged && cpu > 0 ? context_.options.gather_ctas : 0;
  return device.gather(Lane::gather, {.sources = tables,
                                      .row_bytes = row_bytes_,
                                      .ids = to + places.sources,
                                      .num_ids = inputs,
                                      .out = out,
                                      .ctas = ctas});
}

/// What next() gives of a batch whose rows and arrays lie there.
void Epoch::describe(int64_t index, const std::byte* rows, const std::byte* arrays) {
  Item& item = items_[static_cast<size_t>(index)];
  const BatchView& b = item.view.batch;
  const ArrayPlaces places = array_places(b, context_.device != nullptr);
  const auto words = [&](int64_t offset, size_t count) {
    return std::span<const int64_t>(reinterpret_cast<const int64_t*>(arrays + offset), count);
  };
  LoadedBatch& out = item.out;
  const int64_t step = item.number % context_.plan.epoch_batches * context_.options.ranks + context_.options.rank;
  out.number = step % context_.trace_batches;
  out.is_repeated = step >= context_.trace_batches;
  out.sampled_epoch = item.number / context_.plan.epoch_batches;
  out.position = item.position;
  out.rows = {rows, item.view.program.size() * static_cast<size_t>(row_bytes_)};
  out.ids = words(places.ids, b.inputs.size());
  out.edges = words(places.edges, 2 * b.indices.size());
  out.classes = words(places.classes, item.view.labels.size());
  out.bytes = arrays - rows + places.end;
}

base::Status Epoch::gather(int64_t index) {
  Item& item = items_[static_cast<size_t>(index)];
  LoaderDevice* const device = context_.device;
  if (device != nullptr) OVERLACE_TRY(queue_ring(index));
  if (item.position < 0) {
    if (device == nullptr) return {};
    OVERLACE_TRY(device->record(Lane::transfer, begun_event(index)));
    OVERLACE_TRY(device->record(Lane::transfer, transferred_event(index)));
    OVERLACE_TRY(device->wait(Lane::gather, transferred_event(index)));
    return device->record(Lane::gather, gathered_event(index));
  }
  std::byte* const out = context_.buffers.outputs.slot(ordinal_of(item)).data();
  // Blocks, labels and ids lie one after the other; what points into the ring's slot shall point to the copy.
  const std::byte* blocks = slot(index).data() + kExtentPage;
  const auto block_bytes = reinterpret_cast<const std::byte*>(item.view.program.data()) - blocks;
  std::memcpy(out, blocks, static_cast<size_t>(block_bytes));
  const auto moved = [&]<class T>(std::span<const T> values) {
    const auto offset = reinterpret_cast<const std::byte*>(values.data()) - blocks;
    return std::span<const T>(reinterpret_cast<const T*>(out + offset), values.size());
  };
  const BatchView& b = item.view.batch;
  item.out.blocks = {moved(b.inputs), moved(b.reached), moved(b.indptr), moved(b.indices)};
  item.out.labels = moved(item.view.labels);
  std::byte* const rows = out + base::round_up(block_bytes, kOutputAlignment);
  std::byte* const arrays =
      device != nullptr ? rows : rows + base::round_up(std::ssize(item.view.program) * row_bytes_, kOutputAlignment);
  write_arrays(b, item.view.labels, array_places(b, device != nullptr), arrays);
  if (device != nullptr) {
    OVERLACE_TRY(gather_on_device(index, arrays));
    return device->record(Lane::gather, gathered_event(index));
  }
  describe(index, rows, arrays);
  return gather_rows(index, rows);
}

/// The CPU cache as the next segment begins with it; everything before is admitted.
base::Status Epoch::restore(int64_t index) {
  const Item& item = items_[static_cast<size_t>(index)];
  if (item.place.bytes == 0) return {};
  std::byte* cpu = context_.buffers.cpu.data();
  const auto bytes = static_cast<size_t>(row_bytes_);
  for (const SlotMove& move : item.view.moves)
    if (move.from != move.to) std::memcpy(cpu + move.to * bytes, cpu + move.from * bytes, bytes);
  for (const Admission& load : item.view.admissions)
    std::memcpy(cpu + load.slot * bytes, item.view.rows.data() + load.ring_row * bytes, bytes);
  return {};
}

}  // namespace overlace::gnn
