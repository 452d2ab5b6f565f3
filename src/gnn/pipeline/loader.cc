#include "src/gnn/pipeline/loader.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "src/base/crc32c.h"
#include "src/gnn/pack/files.h"
#include "src/gnn/pipeline/epoch.h"
#include "src/gnn/store/generation.h"

namespace overlace::gnn {
namespace {

const PackEntry* choose(const Manifest& manifest, const LoaderOptions& options) {
  const std::string rank = options.ranks == 1 ? "" : base::format("-r{}of{}", options.rank, options.ranks);
  if (!options.packs.empty()) return manifest.pack(options.packs + rank);
  for (const PackEntry& entry : manifest.packs)
    if (entry.split == options.split && entry.rank == options.rank && entry.ranks == options.ranks) return &entry;
  return nullptr;
}

std::string wanted_packs(const LoaderOptions& options) {
  const std::string which = options.packs.empty() ? base::format("of {}", split_name(options.split)) : options.packs;
  return options.ranks == 1 ? which : base::format("{} for rank {} of {}", which, options.rank, options.ranks);
}

}  // namespace

base::Result<std::unique_ptr<Loader>> Loader::open(const std::string& directory, LoaderOptions options) {
  if (options.ranks < 1 || options.ranks > kMaxRanks || options.rank < 0 || options.rank >= options.ranks)
    return base::invalid_argument("rank is {} of {}, wanted one of 1 to {} ranks", options.rank, options.ranks,
                                  kMaxRanks);
  std::unique_ptr<Loader> loader(new Loader(directory, std::move(options)));
  auto manifest = read_manifest(directory);
  if (!manifest.ok()) return manifest.status();
  loader->manifest_ = std::move(*manifest);
  const PackEntry* entry = choose(loader->manifest_, loader->options_);
  if (entry == nullptr) {
    std::string names;
    for (const PackEntry& e : loader->manifest_.packs) names += (names.empty() ? "" : ", ") + e.name;
    return base::invalid_argument("{}: no packs {}, there are: {}; see overlace gnn pack", directory,
                                  wanted_packs(loader->options_), names.empty() ? "none" : names);
  }
  auto plan = open_plan(directory, loader->manifest_, *entry);
  if (!plan.ok()) return plan.status();
  loader->plan_ = std::move(*plan);
  auto engine = io::IoEngine::open(loader->options_.io);
  if (!engine.ok()) return engine.status();
  loader->engine_ = std::move(*engine);
  for (const PackFile file : {PackFile::packs, PackFile::disk_cache}) {
    auto opened = loader->engine_->open_file(PackFiles::path(directory, file, entry->name), io::FileMode::read);
    if (!opened.ok()) return opened.status();
    (file == PackFile::packs ? loader->packs_ : loader->pages_) = std::move(*opened);
  }
  if (!loader->options_.source.empty()) OVERLACE_TRY(loader->open_source());
  const TraceEntry* trace = loader->manifest_.trace(entry->split);
  loader->trace_batches_ = trace == nullptr ? 1 : trace->batches;
  loader->options_.packs = entry->name;
  loader->options_.rank = entry->rank;
  loader->options_.ranks = entry->ranks;
  loader->device_ = std::move(loader->options_.device);
  OVERLACE_TRY(loader->allocate());
  OVERLACE_TRY(loader->load_caches());
  return loader;
}

base::Status Loader::open_source() {
  const auto dataset = Dataset::open(options_.source);
  if (!dataset.ok()) return dataset.status();
  OVERLACE_TRY(check_dataset(manifest_, *dataset, directory_));
  auto rows = RowStore::open(*dataset, {.io = {.engine = options_.io.engine}});
  if (!rows.ok()) return rows.status();
  source_ = std::move(*rows);
  return {};
}

Loader::Loader(std::string directory, LoaderOptions options)
    : directory_(std::move(directory)), options_(std::move(options)) {}

Loader::~Loader() = default;

base::Status Loader::allocate() {
  const PackPlan& p = plan_;
  const int64_t slots = 2 * int64_t{p.depth} + 2;
  const bool is_on_device = device_ != nullptr;
  buffers_.extent_room = io::round_up(std::max(p.largest_extent(), kExtentPage), io::kPageBytes);
  buffers_.room = output_room({p.most_rows, p.most_block_bytes}, p.row_bytes, is_on_device, !p.start.cpu.empty());
  const int64_t slot = buffers_.extent_room + io::round_up(p.most_pages * p.page.bytes, io::kPageBytes);
  bytes_.is_on_device = is_on_device;
  bytes_.gpu_cache = std::ssize(p.start.gpu) * p.row_bytes;
  bytes_.cpu_cache = p.start.cpu.empty() ? 0 : (std::ssize(p.start.cpu) + 1) * p.row_bytes;
  bytes_.ring = slots * slot;
  bytes_.restore = p.largest_restore();
  bytes_.outputs = LoaderBuffers::kOutputs * buffers_.room.host;
  if (is_on_device) {
    bytes_.device_ring = slots * p.max_ring_rows * p.row_bytes;
    bytes_.device_outputs = LoaderBuffers::kOutputs * buffers_.room.device;
  }
  std::string list =
      base::format("{} bytes: hot rows {}, CPU cache {}, ring of {} batches {}, restore {}, {} outputs {}",
                   bytes_.host(), is_on_device ? 0 : bytes_.gpu_cache, bytes_.cpu_cache, slots, bytes_.ring,
                   bytes_.restore, LoaderBuffers::kOutputs, bytes_.outputs);
  if (is_on_device)
    list += base::format("; and {} of the GPU: its cache {}, ring {}, outputs {}", bytes_.device(), bytes_.gpu_cache,
                         bytes_.device_ring, bytes_.device_outputs);
  if (options_.memory_bytes > 0 && bytes_.host() > options_.memory_bytes)
    return base::error(Errc::out_of_memory,
                       "{}: packs {} were planned for {}; memory_bytes is {}. Pack again with smaller caches, which "
                       "overlace gnn plan {} --fit finds for this machine",
                       directory_, options_.packs, list, options_.memory_bytes, directory_);
  const auto take = [&](int64_t bytes, io::AlignedBuffer* out) -> base::Status {
    auto buffer = io::AlignedBuffer::allocate(static_cast<size_t>(bytes));
    if (!buffer.ok()) return base::error(Errc::out_of_memory, "{}: a loader takes {}", directory_, list);
    *out = std::move(*buffer);
    return {};
  };
  if (!is_on_device) OVERLACE_TRY(take(bytes_.gpu_cache, &buffers_.gpu));
  OVERLACE_TRY(take(bytes_.cpu_cache, &buffers_.cpu));
  OVERLACE_TRY(take(bytes_.restore, &buffers_.restore));
  auto ring = io::Ring::make(slots, slot);
  if (!ring.ok()) return ring.status();
  buffers_.ring = std::move(*ring);
  auto outputs = io::Ring::make(LoaderBuffers::kOutputs, buffers_.room.host);
  if (!outputs.ok()) return outputs.status();
  buffers_.outputs = std::move(*outputs);
  return is_on_device ? allocate_on_device(list) : base::Status();
}

base::Status Loader::allocate_on_device(const std::string& list) {
  for (const auto& [bytes, to] : {std::pair{bytes_.gpu_cache, &buffers_.device_cache},
                                  {bytes_.device_ring, &buffers_.device_ring},
                                  {bytes_.device_outputs, &buffers_.device_outputs}}) {
    const auto memory = device_->allocate(bytes);
    if (!memory.ok() && memory.status().code() == Errc::out_of_memory)
      return base::error(
          Errc::out_of_memory,
          "{}: packs {} were planned for {}; {} bytes are not to be had. Pack again with smaller caches, "
          "which overlace gnn plan {} --fit finds for this machine",
          directory_, options_.packs, list, bytes, directory_);
    if (!memory.ok()) return memory.status();
    *to = *memory;
  }
  for (const std::span<std::byte> memory :
       {std::span(buffers_.cpu.data(), buffers_.cpu.size()), buffers_.ring.memory(), buffers_.outputs.memory()})
    OVERLACE_TRY(device_->pin(memory));
  buffers_.device_row.resize(plan_.start.gpu.size());
  return device_->make_events(static_cast<int>(3 * buffers_.ring.slots() + LoaderBuffers::kOutputs));
}

/// Rows of the caches from the hot file, which has them by vertex.
base::Status Loader::load_caches() {
  const int64_t row = plan_.row_bytes;
  const bool is_on_device = device_ != nullptr;
  struct Place {
    uint32_t vertex, index;  // in its cache
    bool is_cpu;
  };
  std::vector<Place> places;
  for (uint32_t i = 0; i < plan_.start.gpu.size(); ++i) places.push_back({plan_.start.gpu[i], i, false});
  for (uint32_t i = 0; i < plan_.start.cpu.size(); ++i) places.push_back({plan_.start.cpu[i], i, true});
  cache_at_ = kNowhere;  // until the rows are known to be right
  if (places.empty()) {
    cache_at_ = 0;
    return {};
  }
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) { return a.vertex < b.vertex; });
  const std::string path = PackFiles::path(directory_, PackFile::hot, options_.packs);
  const auto file = engine_->open_file(path, io::FileMode::read);
  if (!file.ok()) return file.status();
  const int64_t whole = io::kPageBytes / std::gcd(row, io::kPageBytes);
  const int64_t at_once = std::max<int64_t>(1, (int64_t{1} << 20) / row / whole) * whole;
  auto buffer = io::AlignedBuffer::allocate(static_cast<size_t>(io::round_up(at_once * row, io::kPageBytes)));
  if (!buffer.ok()) return buffer.status();
  uint32_t sum = 0;
  int64_t on_device = 0;
  std::vector<std::byte> sent;  // rows of the GPU's cache among those read at once
  for (int64_t first = 0; first < std::ssize(places); first += at_once) {
    const int64_t count = std::min(at_once, std::ssize(places) - first);
    OVERLACE_TRY(engine_->read(*file, first * row, count * row, {buffer->data(), buffer->size()}, 0));
    OVERLACE_TRY(engine_->settle());
    sum = base::crc32c({buffer->data(), static_cast<size_t>(count * row)}, sum);
    sent.clear();
    const int64_t begin = on_device;
    for (int64_t i = 0; i < count; ++i) {
      const Place& place = places[static_cast<size_t>(first + i)];
      const std::byte* from = buffer->data() + i * row;
      if (is_on_device && !place.is_cpu) {
        buffers_.device_row[place.index] = static_cast<uint32_t>(on_device++);
        sent.insert(sent.end(), from, from + row);
        continue;
      }
      const io::AlignedBuffer& cache = place.is_cpu ? buffers_.cpu : buffers_.gpu;
      std::memcpy(cache.data() + place.index * row, from, static_cast<size_t>(row));
    }
    if (sent.empty()) continue;
    const int64_t bytes = std::ssize(sent);
    OVERLACE_TRY(device_->copy(Lane::transfer, buffers_.device_cache + begin * row, sent.data(), bytes, bytes, 1));
    OVERLACE_TRY(device_->drain());
  }
  if (sum != plan_.hot_sum)
    return base::error(Errc::corrupt, "{}: checksum is {}, wanted {}", path, sum, plan_.hot_sum);
  cache_at_ = 0;
  return {};
}

base::Status Loader::start(int64_t epoch, int64_t position) {
  const int64_t steps = plan_.epoch_batches, nb = plan_.num_batches();
  if (epoch < 0 || position < 0 || position > steps)
    return base::invalid_argument("epoch is {} and position {}, wanted both at least 0 and position at most {}", epoch,
                                  position, steps);
  if (epoch_) {
    cache_at_ = epoch_->is_over() ? cache_after_ : kNowhere;
    OVERLACE_TRY(epoch_->end());  // its memory is written from here on
  }
  epoch_.reset();
  const bool is_cycle = plan_.order.order == BatchOrder::fixed;
  const int64_t own = is_cycle ? epoch % std::max<int64_t>(plan_.sampled_epochs(), 1) * steps : 0;
  std::vector<int64_t> batches =
      epoch_sequence(plan_.order, nb, options_.order_seed, static_cast<uint64_t>(epoch), steps);
  int64_t skipped = 0;
  if (position == steps || batches.empty()) {  // nothing comes, whatever the cache holds
    batches.clear();
    cache_after_ = cache_at_;
  } else {
    if (cache_at_ == kNowhere || cache_at_ > own) OVERLACE_TRY(load_caches());
    const int64_t batch = batches[static_cast<size_t>(position)];
    const Segments segments = plan_.segments();
    const bool is_still = plan_.order.order == BatchOrder::shuffle;
    const int64_t from = is_cycle ? cache_at_ : is_still ? batch : segments.begin(segments.of(batch));
    // What lies between is walked through, for the cache's sake.
    skipped = batch - from;
    std::vector<int64_t> walked(static_cast<size_t>(skipped));
    std::iota(walked.begin(), walked.end(), from);
    batches.erase(batches.begin(), batches.begin() + position);
    batches.insert(batches.begin(), walked.begin(), walked.end());
    cache_after_ = is_cycle ? (own + steps) % nb : 0;
  }
  cache_at_ = kNowhere;
  epoch_ = std::make_unique<Epoch>(
      EpochContext{plan_, options_, buffers_, *engine_, device_.get(), source_.get(), packs_, pages_, trace_batches_},
      batches, skipped, position);
  return {};
}

base::Result<std::optional<LoadedBatch>> Loader::next() {
  if (!epoch_) return base::invalid_argument("loader: next() before start(), wanted: start() first");
  return epoch_->next();
}

std::span<const std::byte> Loader::outputs() const {
  if (device_ != nullptr) return {buffers_.device_outputs, static_cast<size_t>(bytes_.device_outputs)};
  return buffers_.outputs.memory();
}

void Loader::use_stream(void* stream) {
  if (device_ != nullptr) device_->set_caller(stream);
}

void Loader::release() {
  if (epoch_) epoch_->release();
}

base::Trace Loader::timeline() const { return epoch_ ? epoch_->timeline() : base::Trace(); }

LoaderStats Loader::stats() const { return epoch_ ? epoch_->stats() : LoaderStats(); }

}  // namespace overlace::gnn
