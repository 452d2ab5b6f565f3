#include "src/model/layer_stream.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <utility>

namespace overlace::model {
namespace {

using base::Result;
using base::Status;

constexpr int kSlots = 2;
constexpr size_t kMostTransfers = 4096;  // that are kept for a timeline

/// For messages: a part of a checkpoint's name of the layer.
std::string name_of(int64_t layer) { return base::format("layers.{}", layer); }

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

int64_t activation_bytes(const ModelConfig& config, const Problem& problem, const Shard& shard) {
  const std::vector<MicroBatch> batches = micro_batches(problem, shard.rank, shard.ranks);
  const int64_t rows = batches.back().at + batches.back().rows, tokens = batches.front().tokens;
  const int64_t elements = (3 * rows + 3 * batches.front().rows) * config.hidden +
                           tokens * (shard.qkv_columns(config) + shard.heads * config.head_dim +
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
  const int64_t fitting = std::max<int64_t>((problem.device_bytes - out.activation_bytes) / out.layer_bytes, 0);
  if (problem.device_bytes >= out.activation_bytes && fitting >= problem.layers) return out;
  if (problem.device_bytes < out.activation_bytes || fitting < kSlots)
    return base::error(Errc::out_of_memory,
                       "device memory is {} bytes, wanted {} or more: rank {} has {} bytes of activations and {} of {} "
                       "bytes each",
                       problem.device_bytes,
                       out.activation_bytes + std::min<int64_t>(kSlots, problem.layers) * out.layer_bytes, shard.rank,
                       out.activation_bytes, problem.layers < kSlots ? "a layer" : "two slots for layers",
                       out.layer_bytes);
  const int64_t resident = fitting - kSlots;
  for (int64_t layer = 0; layer < problem.layers; ++layer)
    out.is_resident[static_cast<size_t>(layer)] = layer * resident % problem.layers < resident;
  return out;
}

Result<std::unique_ptr<LayerStream>> LayerStream::open(const ModelConfig& config, const Problem& problem,
                                                       const LayerLayout& layout, const Placement& placement) {
  auto weights = Weights::open(config, problem);
  if (!weights.ok()) return weights.status();
  auto out = std::unique_ptr<LayerStream>(new LayerStream(layout, std::move(*weights)));
  std::vector<int64_t> layers;
  std::vector<int> order;
  for (const bool is_resident : placement.is_resident) {
    out->number_.push_back(is_resident ? -1 : static_cast<int>(order.size()));
    if (is_resident) continue;
    layers.push_back(std::ssize(out->number_) - 1);
    order.push_back(out->number_.back());
  }
  OVERLACE_TRY(problem.from_disk ? out->open_disk(layers, order) : out->rest(layers));
  std::vector<offload::Block> blocks;
  for (const int64_t layer : layers) {
    const auto fill = [stream = out.get(), layer](std::span<std::byte> slot) { return stream->fill(layer, slot); };
    blocks.push_back({name_of(layer), {{nullptr, 0, layout.bytes(), fill}}});
  }
  auto stream = offload::BlockStream::open(std::move(blocks), order, {.slots = kSlots});
  if (!stream.ok()) return stream.status();
  out->stream_ = std::move(*stream);
  return out;
}

/// All layers into host memory, as their slots will hold them.
Status LayerStream::rest(const std::vector<int64_t>& layers) {
  auto memory = io::AlignedBuffer::allocate(layers.size() * static_cast<size_t>(layout_.bytes()));
  if (!memory.ok()) return memory.status();
  resting_ = std::move(*memory);
  std::byte* at = resting_.data();
  for (const int64_t layer : layers) {
    OVERLACE_TRY(layout_.read(weights_, layer, at));
    at += layout_.bytes();
  }
  return {};
}

/// A stream of the files' ranges under the one of slots: read ahead past the page cache, then made into shards.
Status LayerStream::open_disk(const std::vector<int64_t>& layers, const std::vector<int>& order) {
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
  auto stream = offload::BlockStream::open(std::move(blocks), order, {.slots = kSlots});
  if (!stream.ok()) return stream.status();
  disk_ = std::move(*stream);
  return {};
}

Status LayerStream::fill(int64_t layer, std::span<std::byte> slot) {
  const auto now_ns = [] {
    return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  };
  base::Span span;
  span.lane = "io 0";
  span.name = "weights of " + name_of(layer);
  span.category = "other";  // no communication between ranks
  span.begin_ns = now_ns();
  span.bytes = std::ssize(slot);
  OVERLACE_TRY(bring(layer, slot));
  span.end_ns = now_ns();
  const std::lock_guard lock(transfers_mutex_);
  if (transfers_.size() < kMostTransfers) transfers_.push_back(std::move(span));
  return {};
}

std::vector<base::Span> LayerStream::take_transfers() {
  const std::lock_guard lock(transfers_mutex_);
  return std::exchange(transfers_, {});
}

Status LayerStream::bring(int64_t layer, std::span<std::byte> slot) {
  const int number = number_[static_cast<size_t>(layer)];
  if (disk_ == nullptr) {
    std::memcpy(slot.data(), resting_.data() + number * layout_.bytes(), slot.size());
    return {};
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto stored = disk_->acquire(number);
  disk_ns_ += std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count();
  if (!stored.ok()) return stored.status();
  OVERLACE_TRY(layout_.read(weights_, layer, slot.data(), *stored));
  return disk_->release(number);
}

Result<LayerWeights> LayerStream::acquire(int64_t layer) {
  const auto pieces = stream_->acquire(number_[static_cast<size_t>(layer)]);
  if (!pieces.ok()) return pieces.status();
  // A view has no const data; operators only read weights.
  return layout_.at(const_cast<std::byte*>(pieces->front().data()));
}

Status LayerStream::release(int64_t layer) { return stream_->release(number_[static_cast<size_t>(layer)]); }

void LayerStream::add_to(WeightStats* stats) const {
  const offload::BlockStreamStats s = stream_->stats();
  stats->transfer_s = s.filled_s;
  stats->waited_s = s.waited_s;
  stats->disk_s = static_cast<double>(disk_ns_.load()) * 1e-9;
}

}  // namespace overlace::model
