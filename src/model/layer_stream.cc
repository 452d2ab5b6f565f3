#include "src/model/layer_stream.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <utility>

#include "src/io/alignment.h"

namespace overlace::model {
namespace {

using base::Result;
using base::Status;

using Queue = CopyLane::Queue;

// Events of a lane, of each slot: behind the copy into it, and behind the computation that used it.
constexpr int copied(int64_t slot) { return static_cast<int>(slot); }
constexpr int used(int64_t slot) { return kSlots + static_cast<int>(slot); }

/// For messages: a part of a checkpoint's name of the layer.
std::string name_of(int64_t layer) { return base::format("layers.{}", layer); }

/// What has still to be timed.
base::Span transfer_span(int64_t layer, int64_t bytes) {
  base::Span span;
  span.lane = "io 0";
  span.name = "weights of " + name_of(layer);
  span.category = "other";  // no communication between ranks
  span.bytes = bytes;
  return span;
}

int64_t now_ns() { return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

std::vector<MicroBatch> micro_batches(const Problem& problem, int rank, int ranks) {
  const int64_t whole = problem.micro_batch > 0 ? std::min(problem.micro_batch, problem.tokens) : problem.tokens;
  std::vector<MicroBatch> out;
  int64_t at = 0;
  for (int64_t begin = 0; begin < problem.tokens; begin += whole) {
    const int64_t tokens = std::min(whole, problem.tokens - begin);
    const auto [first, rows] = token_rows(tokens, rank, ranks);
    out.push_back({tokens, begin + first, rows, at});
    at += rows;
  }
  return out;
}

int64_t Placement::streamed() const { return std::count(is_resident.begin(), is_resident.end(), false); }

int64_t activation_bytes(const ModelConfig& config, const Problem& problem, const Shard& shard, bool rests) {
  const std::vector<MicroBatch> batches = micro_batches(problem, shard.rank, shard.ranks);
  const int64_t rows = batches.back().at + batches.back().rows, tokens = batches.front().tokens;
  const int64_t between = config.has_attention() ? 3 * batches.front().rows : 0;
  const int64_t streams = rests ? (kSlots + 1) * batches.front().rows : 3 * rows;
  const int64_t elements =
      (streams + between) * config.hidden + tokens * (shard.qkv_columns(config) + shard.heads * config.head_dim +
                                                      shard.up_columns(config) + shard.intermediate);
  const bool has_table = config.positions == Positions::rope;
  const int64_t table = has_table ? problem.sequence_length * config.head_dim * int64_t{sizeof(float)} : 0;
  return elements * static_cast<int64_t>(dtype_bytes(problem.dtype)) + table;
}

Result<Placement> place_layers(const ModelConfig& config, const Problem& problem, const Shard& shard) {
  Placement out;
  out.layer_bytes = LayerLayout(config, shard, problem.dtype).bytes();
  out.activation_bytes = activation_bytes(config, problem, shard);
  out.is_resident.assign(static_cast<size_t>(problem.layers), true);
  if (problem.device_bytes == 0) return out;
  const int64_t least = std::min<int64_t>(kSlots, problem.layers) * out.layer_bytes;
  const int64_t with_slots = activation_bytes(config, problem, shard, true);
  if (problem.device_bytes < out.activation_bytes + least && with_slots < out.activation_bytes) {
    const MicroBatch last = micro_batches(problem, shard.rank, shard.ranks).back();
    out.activation_bytes = with_slots;
    out.resting_bytes = 2 * (last.at + last.rows) * config.hidden * static_cast<int64_t>(dtype_bytes(problem.dtype));
  }
  if (problem.device_bytes < out.activation_bytes + least)
    return base::error(Errc::out_of_memory,
                       "device memory is {} bytes, wanted {} or more: rank {} has {} bytes of activations{} and {} of "
                       "{} bytes each",
                       problem.device_bytes, out.activation_bytes + least, shard.rank, out.activation_bytes,
                       out.resting_bytes > 0 ? " beside those that rest in host memory" : "",
                       problem.layers < kSlots ? "a layer" : "two slots for layers", out.layer_bytes);
  const int64_t fitting = (problem.device_bytes - out.activation_bytes) / out.layer_bytes;
  if (fitting >= problem.layers) return out;
  const int64_t resident = fitting - kSlots;
  for (int64_t layer = 0; layer < problem.layers; ++layer)
    out.is_resident[static_cast<size_t>(layer)] = layer * resident % problem.layers < resident;
  return out;
}

Result<std::unique_ptr<LayerStream>> LayerStream::open(const ModelConfig& config, const Problem& problem,
                                                       const LayerLayout& layout, const Placement& placement,
                                                       Device& device, int64_t timeout_ms,
                                                       const std::function<void()>& on_layer) {
  auto weights = Weights::open(config, problem);
  if (!weights.ok()) return weights.status();
  auto out = std::unique_ptr<LayerStream>(new LayerStream(layout, std::move(*weights), device));
  std::vector<int64_t> layers;
  std::vector<int> order;
  for (const bool is_resident : placement.is_resident) {
    out->number_.push_back(is_resident ? -1 : static_cast<int>(order.size()));
    if (is_resident) continue;
    layers.push_back(std::ssize(out->number_) - 1);
    order.push_back(out->number_.back());
  }
  OVERLACE_TRY(out->make_slots(problem.from_disk));
  OVERLACE_TRY(problem.from_disk ? out->open_disk(layers, order, timeout_ms) : out->rest(layers, on_layer));
  std::vector<offload::Block> blocks;
  for (const int64_t layer : layers) {
    const auto fill = [stream = out.get(), layer](std::span<std::byte> slot) { return stream->fill(layer, slot); };
    blocks.push_back({name_of(layer), {{nullptr, 0, layout.bytes(), fill}}});
  }
  auto stream = offload::BlockStream::open(
      std::move(blocks), order, {.slots = kSlots, .memory = out->slots_, .engine = {.timeout_ms = timeout_ms}});
  if (!stream.ok()) return stream.status();
  out->stream_ = std::move(*stream);
  return out;
}

LayerStream::~LayerStream() {
  stream_.reset();  // no fill from here on
  lane_.reset();    // and no copy
  if (!slots_.empty()) device_.free(slots_.data());
  for (const auto* blocks : {&resting_, &staging_})
    for (std::byte* block : *blocks) device_.free_host(block);
}

int64_t LayerStream::slot_bytes() const { return io::round_up(layout_.bytes(), io::kPageBytes); }

/// Makes the slots of a device that copies are queued on; else they are the stream's own.
Status LayerStream::make_slots(bool from_disk) {
  auto lane = device_.make_copy_lane(2 * kSlots);
  if (!lane.ok()) return lane.status();
  lane_ = std::move(*lane);
  if (lane_ == nullptr) return {};
  const auto slots = device_.alloc(kSlots * slot_bytes(), "slots for layers");
  if (!slots.ok()) return slots.status();
  slots_ = {static_cast<std::byte*>(*slots), static_cast<size_t>(kSlots * slot_bytes())};
  for (int slot = 0; from_disk && slot < kSlots; ++slot) {
    const auto block = device_.alloc_host(layout_.bytes(), "slots for layers from files");
    if (!block.ok()) return block.status();
    staging_.push_back(static_cast<std::byte*>(*block));
  }
  return {};
}

/// All layers into host memory, as their slots will hold them.
Status LayerStream::rest(const std::vector<int64_t>& layers, const std::function<void()>& on_layer) {
  for (const int64_t layer : layers) {
    const std::string what = base::format("layer {} of {} that stream from {} bytes of host memory",
                                          resting_.size() + 1, layers.size(), std::ssize(layers) * layout_.bytes());
    const auto block = device_.alloc_host(layout_.bytes(), what);
    if (!block.ok()) return block.status();
    resting_.push_back(static_cast<std::byte*>(*block));
    OVERLACE_TRY(fill_resting(layer));
    if (on_layer) on_layer();
  }
  return {};
}

/// The last of them. A seeded one is made where resident ones are, on the device, by way of a slot.
Status LayerStream::fill_resting(int64_t layer) {
  if (lane_ == nullptr || !weights_.is_seeded()) return layout_.read(weights_, layer, resting_.back());
  for (const LayerLayout::Part& part : layout_.parts())
    OVERLACE_TRY(device_.fill(weights_.seeded(layer, part.weight, part.box), layout_.view_of(part, slots_.data())));
  return device_.download(slots_.data(), resting_.back(), layout_.bytes());
}

/// A stream of the files' ranges under the one of slots: read ahead past the page cache, then made into shards.
Status LayerStream::open_disk(const std::vector<int64_t>& layers, const std::vector<int>& order, int64_t timeout_ms) {
  std::map<std::string, std::shared_ptr<io::File>> files;
  std::vector<offload::Block> blocks;
  for (const int64_t layer : layers) {
    offload::Block block{name_of(layer), {}};
    for (const LayerLayout::Part& part : layout_.parts()) {
      const auto range = weights_.range(layer, part.weight, part.box);
      if (!range.ok()) return range.status();
      std::shared_ptr<io::File>& file = files[range->path];
      if (file == nullptr) {
        auto opened = io::File::open(range->path, io::FileMode::read);
        if (!opened.ok()) return opened.status();
        file = std::move(*opened);
      }
      block.pieces.push_back({file, range->offset, range->bytes, {}});
    }
    blocks.push_back(std::move(block));
  }
  auto stream =
      offload::BlockStream::open(std::move(blocks), order, {.slots = kSlots, .engine = {.timeout_ms = timeout_ms}});
  if (!stream.ok()) return stream.status();
  disk_ = std::move(*stream);
  return {};
}

/// On the stream's thread.
Status LayerStream::fill(int64_t layer, std::span<std::byte> slot) {
  if (lane_ != nullptr) return copy(layer, slot);
  base::Span span = transfer_span(layer, std::ssize(slot));
  span.begin_ns = now_ns();
  OVERLACE_TRY(bring(layer, slot));
  span.end_ns = now_ns();
  const std::lock_guard lock(transfers_mutex_);
  if (transfers_.size() < kMostTransfers) transfers_.push_back(std::move(span));
  return {};
}

Result<std::vector<base::Span>> LayerStream::take_transfers() {
  if (lane_ != nullptr) return lane_->take_spans();
  const std::lock_guard lock(transfers_mutex_);
  return std::exchange(transfers_, {});
}

/// Into memory of the host.
Status LayerStream::bring(int64_t layer, std::span<std::byte> slot) {
  const int64_t begin_ns = now_ns();
  Status status = read(layer, slot);
  brought_ns_ += now_ns() - begin_ns;
  return status;
}

Status LayerStream::read(int64_t layer, std::span<std::byte> slot) {
  const int number = number_of(layer);
  if (disk_ == nullptr) {
    std::memcpy(slot.data(), resting_[static_cast<size_t>(number)], slot.size());
    return {};
  }
  const int64_t begin_ns = now_ns();
  const auto stored = disk_->acquire(number);
  disk_ns_ += now_ns() - begin_ns;
  if (!stored.ok()) return stored.status();
  OVERLACE_TRY(layout_.read(weights_, layer, slot.data(), *stored));
  return disk_->release(number);
}

/// Queued, into memory of the device, from where the layer rests or through staging, which the copy before must have
/// left.
Status LayerStream::copy(int64_t layer, std::span<std::byte> slot) {
  if (!std::exchange(has_entered_, true)) OVERLACE_TRY(lane_->enter());
  const int64_t to = slot_of(slot.data());
  const std::byte* from = nullptr;
  if (disk_ == nullptr) {
    from = resting_[static_cast<size_t>(number_of(layer))];
  } else {
    std::byte* const block = staging_[static_cast<size_t>(to)];
    OVERLACE_TRY(lane_->synchronize(copied(to)));
    OVERLACE_TRY(bring(layer, {block, slot.size()}));
    from = block;
  }
  OVERLACE_TRY(lane_->wait(Queue::copies, used(to)));
  OVERLACE_TRY(lane_->copy(from, slot.data(), std::ssize(slot), transfer_span(layer, std::ssize(slot))));
  return lane_->record(Queue::copies, copied(to));
}

Result<LayerWeights> LayerStream::acquire(int64_t layer) {
  if (lane_ != nullptr) OVERLACE_TRY(lane_->begin_wait());
  const auto pieces = stream_->acquire(number_of(layer));
  if (!pieces.ok()) return pieces.status();
  const std::byte* const block = pieces->front().data();
  in_use_.push_back(block);
  if (lane_ != nullptr) OVERLACE_TRY(lane_->wait(Queue::computation, copied(slot_of(block))));
  // A view has no const data; operators only read weights.
  return layout_.at(const_cast<std::byte*>(block));
}

Status LayerStream::release(int64_t layer) {
  if (lane_ != nullptr && !in_use_.empty())
    OVERLACE_TRY(lane_->record(Queue::computation, used(slot_of(in_use_.front()))));
  OVERLACE_TRY(stream_->release(number_of(layer)));
  in_use_.pop_front();
  return {};
}

void LayerStream::add_to(WeightStats* stats) const {
  const offload::BlockStreamStats s = stream_->stats();
  constexpr double kSeconds = 1e-9;
  stats->transfer_s = static_cast<double>(brought_ns_.load()) * kSeconds;
  stats->waited_s = s.waited_s;
  stats->disk_s = static_cast<double>(disk_ns_.load()) * kSeconds;
  if (lane_ == nullptr) return;
  const CopyLane::Times times = lane_->times();
  stats->transfer_s = std::max(stats->transfer_s, times.copied_s);
  stats->waited_s = times.waited_s;
}

}  // namespace overlace::model
