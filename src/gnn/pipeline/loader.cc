#include "src/gnn/pipeline/loader.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "src/base/crc32c.h"
#include "src/gnn/pack/files.h"
#include "src/gnn/pipeline/epoch.h"

namespace overlace::gnn {
namespace {

const PackEntry* choose(const Manifest& manifest, const LoaderOptions& options) {
  if (!options.packs.empty()) return manifest.pack(options.packs);
  for (const PackEntry& entry : manifest.packs)
    if (entry.split == options.split) return &entry;
  return nullptr;
}

}  // namespace

base::Result<std::unique_ptr<Loader>> Loader::open(const std::string& directory, LoaderOptions options) {
  std::unique_ptr<Loader> loader(new Loader(directory, std::move(options)));
  auto manifest = read_manifest(directory);
  if (!manifest.ok()) return manifest.status();
  loader->manifest_ = std::move(*manifest);
  const PackEntry* entry = choose(loader->manifest_, loader->options_);
  if (entry == nullptr) {
    std::string names;
    for (const PackEntry& e : loader->manifest_.packs) names += (names.empty() ? "" : ", ") + e.name;
    return base::invalid_argument("{}: no packs {}, there are: {}; see overlace gnn pack", directory,
                                  loader->options_.packs.empty()
                                      ? base::format("of {}", split_name(loader->options_.split))
                                      : loader->options_.packs,
                                  names.empty() ? "none" : names);
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
  loader->options_.packs = entry->name;
  OVERLACE_TRY(loader->allocate());
  OVERLACE_TRY(loader->load_caches());
  return loader;
}

Loader::Loader(std::string directory, LoaderOptions options)
    : directory_(std::move(directory)), options_(std::move(options)) {}

Loader::~Loader() = default;

base::Status Loader::allocate() {
  const PackPlan& p = plan_;
  const int64_t slots = 2 * int64_t{p.depth} + 2;
  buffers_.extent_room = io::round_up(std::max(p.largest_extent(), kExtentPage), io::kPageBytes);
  buffers_.rows_room = io::round_up(p.most_rows * p.row_bytes, io::kPageBytes);
  const int64_t slot = buffers_.extent_room + io::round_up(p.most_pages * p.page.bytes, io::kPageBytes);
  const int64_t output =
      std::max(buffers_.rows_room + io::round_up(p.most_block_bytes, io::kPageBytes), io::kPageBytes);
  bytes_.gpu_cache = std::ssize(p.start.gpu) * p.row_bytes;
  bytes_.cpu_cache = p.start.cpu.empty() ? 0 : (std::ssize(p.start.cpu) + 1) * p.row_bytes;
  bytes_.ring = slots * slot;
  bytes_.restore = p.largest_restore();
  bytes_.outputs = LoaderBuffers::kOutputs * output;
  const std::string list = base::format(
      "{} bytes: hot rows {}, CPU cache {}, ring of {} batches {}, restore {}, {} outputs {}", bytes_.total(),
      bytes_.gpu_cache, bytes_.cpu_cache, slots, bytes_.ring, bytes_.restore, LoaderBuffers::kOutputs, bytes_.outputs);
  if (options_.memory_bytes > 0 && bytes_.total() > options_.memory_bytes)
    return base::error(Errc::out_of_memory,
                       "{}: packs {} were planned for {}; memory_bytes is {}. Pack again with smaller caches: "
                       "overlace gnn pack {} --cpu-cache ...",
                       directory_, options_.packs, list, options_.memory_bytes, directory_);
  const auto take = [&](int64_t bytes, io::AlignedBuffer* out) -> base::Status {
    auto buffer = io::AlignedBuffer::allocate(static_cast<size_t>(bytes));
    if (!buffer.ok()) return base::error(Errc::out_of_memory, "{}: a loader takes {}", directory_, list);
    *out = std::move(*buffer);
    return {};
  };
  OVERLACE_TRY(take(bytes_.gpu_cache, &buffers_.gpu));
  OVERLACE_TRY(take(bytes_.cpu_cache, &buffers_.cpu));
  OVERLACE_TRY(take(bytes_.restore, &buffers_.restore));
  auto ring = io::Ring::make(slots, slot);
  if (!ring.ok()) return ring.status();
  buffers_.ring = std::move(*ring);
  auto outputs = io::Ring::make(LoaderBuffers::kOutputs, output);
  if (!outputs.ok()) return outputs.status();
  buffers_.outputs = std::move(*outputs);
  return {};
}

/// Rows of the caches from the hot file, which has them by vertex.
base::Status Loader::load_caches() {
  const int64_t row = plan_.row_bytes;
  std::vector<std::pair<uint32_t, std::byte*>> places;
  for (size_t i = 0; i < plan_.start.gpu.size(); ++i)
    places.push_back({plan_.start.gpu[i], buffers_.gpu.data() + static_cast<int64_t>(i) * row});
  for (size_t i = 0; i < plan_.start.cpu.size(); ++i)
    places.push_back({plan_.start.cpu[i], buffers_.cpu.data() + static_cast<int64_t>(i) * row});
  has_start_rows_ = true;
  if (places.empty()) return {};
  std::sort(places.begin(), places.end());
  const std::string path = PackFiles::path(directory_, PackFile::hot, options_.packs);
  const auto file = engine_->open_file(path, io::FileMode::read);
  if (!file.ok()) return file.status();
  const int64_t whole = io::kPageBytes / std::gcd(row, io::kPageBytes);
  const int64_t at_once = std::max<int64_t>(1, (int64_t{1} << 20) / row / whole) * whole;
  auto buffer = io::AlignedBuffer::allocate(static_cast<size_t>(io::round_up(at_once * row, io::kPageBytes)));
  if (!buffer.ok()) return buffer.status();
  uint32_t sum = 0;
  for (int64_t first = 0; first < std::ssize(places); first += at_once) {
    const int64_t count = std::min(at_once, std::ssize(places) - first);
    OVERLACE_TRY(engine_->read(*file, first * row, count * row, {buffer->data(), buffer->size()}, 0));
    OVERLACE_TRY(engine_->drain());
    sum = base::crc32c({buffer->data(), static_cast<size_t>(count * row)}, sum);
    for (int64_t i = 0; i < count; ++i)
      std::memcpy(places[static_cast<size_t>(first + i)].second, buffer->data() + i * row, static_cast<size_t>(row));
  }
  if (sum != plan_.hot_sum)
    return base::error(Errc::corrupt, "{}: checksum is {}, wanted {}", path, sum, plan_.hot_sum);
  return {};
}

base::Status Loader::start(int64_t epoch, int64_t position) {
  if (epoch < 0 || position < 0 || position > plan_.num_batches())
    return base::invalid_argument("epoch is {} and position {}, wanted both at least 0 and position at most {}", epoch,
                                  position, plan_.num_batches());
  if (epoch_) has_start_rows_ = epoch_->is_over();
  epoch_.reset();
  if (!has_start_rows_) OVERLACE_TRY(load_caches());
  has_start_rows_ = false;
  std::vector<int64_t> batches =
      epoch_sequence(plan_.order, plan_.num_batches(), options_.order_seed, static_cast<uint64_t>(epoch));
  // The segment of the first batch wanted is walked through from its beginning, for the cache's sake.
  int64_t from = position;
  if (plan_.order.order != BatchOrder::shuffle && position < plan_.num_batches())
    from -= batches[static_cast<size_t>(position)] % plan_.segment_batches;
  batches.erase(batches.begin(), batches.begin() + from);
  epoch_ = std::make_unique<Epoch>(EpochContext{plan_, options_, buffers_, *engine_, packs_, pages_}, batches,
                                   position - from, position);
  return {};
}

base::Result<std::optional<LoadedBatch>> Loader::next() {
  if (!epoch_) return base::invalid_argument("loader: next() before start()");
  return epoch_->next();
}

void Loader::release() {
  if (epoch_) epoch_->release();
}

LoaderStats Loader::stats() const { return epoch_ ? epoch_->stats() : LoaderStats(); }

}  // namespace overlace::gnn
