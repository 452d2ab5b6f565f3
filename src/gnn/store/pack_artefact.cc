// pack_artefact() and verify_artefact(): the packs of an artefact, made and made again.
#include <sys/statvfs.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

#include "src/base/ceil_div_pod.h"
#include "src/base/crc32c.h"
#include "src/base/file.h"
#include "src/gnn/pack/files.h"
#include "src/gnn/plan/predict.h"
#include "src/gnn/store/artefact.h"
#include "src/gnn/store/generation.h"
#include "src/gnn/store/journal.h"
#include "src/io/stream.h"

namespace overlace::gnn {
namespace {

constexpr uint32_t kPassDone = 1;

std::string part_path(const std::string& directory, size_t file, const std::string& name) {
  return PackFiles::path(directory, static_cast<PackFile>(file), name) + ".part";
}

/// A pass is kept by the data on the disk first and a record of the journal then.
class JournalledFiles final : public PackStore {
 public:
  JournalledFiles(PackFiles* files, Journal* journal) : files_(files), journal_(journal) {}
  base::Status write(PackFile file, int64_t offset, std::span<const std::byte> bytes) override {
    return files_->write(file, offset, bytes);
  }
  base::Status keep(const PackProgress& done) override {
    OVERLACE_TRY(files_->sync());
    std::vector<std::byte> payload(8 + 4 * done.sums.size());
    std::memcpy(payload.data(), &done.rows, 8);
    if (!done.sums.empty()) std::memcpy(payload.data() + 8, done.sums.data(), 4 * done.sums.size());
    return journal_->append(kPassDone, payload);
  }

 private:
  PackFiles* files_;
  Journal* journal_;
};

std::optional<PackProgress> last_pass(const Journal& journal) {
  std::optional<PackProgress> done;
  for (const JournalRecord& record : journal.records()) {
    if (record.kind != kPassDone || record.payload.size() < 8 || record.payload.size() % 4 != 0) continue;
    done.emplace();
    std::memcpy(&done->rows, record.payload.data(), 8);
    done->sums.resize((record.payload.size() - 8) / 4);
    if (!done->sums.empty()) std::memcpy(done->sums.data(), record.payload.data() + 8, 4 * done->sums.size());
  }
  return done;
}

/// What is packed must be as it lies there.
class ComparingFiles final : public PackStore {
 public:
  static base::Result<std::unique_ptr<ComparingFiles>> open(io::IoEngine* engine, const std::string& directory,
                                                            const std::string& name) {
    std::unique_ptr<ComparingFiles> out(new ComparingFiles(engine));
    for (size_t i = 0; i < out->files_.size(); ++i) {
      auto file = engine->open_file(PackFiles::path(directory, static_cast<PackFile>(i), name), io::FileMode::read);
      if (!file.ok()) return file.status();
      out->files_[i] = std::move(*file);
    }
    return out;
  }
  base::Status write(PackFile file, int64_t offset, std::span<const std::byte> bytes) override {
    const auto& from = files_[static_cast<size_t>(file)];
    seen_.resize(bytes.size());
    OVERLACE_TRY(engine_->read(from, offset, std::ssize(bytes), seen_, 0));
    OVERLACE_TRY(engine_->settle());
    const auto [at, other] = std::mismatch(bytes.begin(), bytes.end(), seen_.begin());
    if (at == bytes.end()) return {};
    return base::error(Errc::corrupt, "{}: byte {} is {}, wanted {}, of the dataset and its samples", from->path(),
                       offset + (at - bytes.begin()), static_cast<int>(*other), static_cast<int>(*at));
  }

 private:
  explicit ComparingFiles(io::IoEngine* engine) : engine_(engine) {}
  io::IoEngine* engine_;
  std::array<std::shared_ptr<io::File>, 3> files_;
  std::vector<std::byte> seen_;
};

/// Checksums of each `unit` bytes of a file, in order.
base::Result<std::vector<uint32_t>> sums_of(io::IoEngine* engine, const std::string& path, int64_t bytes,
                                            int64_t unit) {
  std::vector<uint32_t> sums;
  if (bytes == 0) return sums;
  auto file = engine->open_file(path, io::FileMode::read);
  if (!file.ok()) return file.status();
  auto reader = io::StreamReader::open(engine, *file, 0, bytes);
  if (!reader.ok()) return reader.status();
  for (int64_t at = 0; at < bytes;) {
    auto chunk = (*reader)->next();
    if (!chunk.ok()) return chunk.status();
    while (!chunk->empty()) {
      if (at % unit == 0) sums.push_back(0);
      const auto n = static_cast<size_t>(std::min(unit - at % unit, std::ssize(*chunk)));
      sums.back() = base::crc32c(chunk->first(n), sums.back());
      *chunk = chunk->subspan(n);
      at += static_cast<int64_t>(n);
    }
  }
  return sums;
}

/// Everything that packing the splits of one artefact shares.
class ArtefactPacker {
 public:
  /// `anew`: packs that are made again though they seem to be there.
  ArtefactPacker(const Dataset& dataset, const std::string& directory, const ArtefactPackRequest& request,
                 std::span<const std::string> anew = {})
      : dataset_(dataset), directory_(directory), request_(request), anew_(anew) {}

  base::Result<Manifest> run() {
    const auto lock = ArtefactLock::take(directory_);
    if (!lock.ok()) return lock.status();
    OVERLACE_TRY(begin());
    if (!request_.is_dry) sweep();
    for (int64_t rank = 0; rank < request_.ranks; ++rank) {
      OVERLACE_TRY(pack_split(Split::train, rank));
      for (const Split split : {Split::valid, Split::test})
        if (manifest_.trace(split) != nullptr) OVERLACE_TRY(pack_split(split, rank));
    }
    std::error_code ignored;
    if (!request_.is_dry) std::filesystem::remove(directory_ + "/journal.log", ignored);
    return manifest_;
  }

 private:
  base::Status begin() {
    if (request_.ranks < 1 || request_.ranks > kMaxRanks)
      return base::invalid_argument("ranks is {}, wanted 1 to {}", request_.ranks, kMaxRanks);
    auto manifest = read_manifest(directory_);
    if (!manifest.ok()) return manifest.status();
    manifest_ = std::move(*manifest);
    OVERLACE_TRY(check_dataset(manifest_, dataset_, directory_));
    if (manifest_.trace(Split::train) == nullptr)
      return base::invalid_argument("{}: split train is not sampled, wanted it first", directory_);
    for (const int64_t bytes : {request_.gpu_bytes, request_.cpu_bytes, request_.disk_bytes})
      if (bytes < 0) return base::invalid_argument("cache or disk of {} bytes, wanted at least 0", bytes);
    labels_.assign(dataset_.labels().begin(), dataset_.labels().end());
    auto engine = io::IoEngine::open();
    if (!engine.ok()) return engine.status();
    engine_ = std::move(*engine);
    return {};
  }

  /// Files that a killed run was about to rename.
  void sweep() const {
    std::error_code ignored;
    std::vector<std::filesystem::path> left;
    for (const auto& entry : std::filesystem::directory_iterator(directory_, ignored))
      if (entry.path().filename().string().find(".tmp.") != std::string::npos) left.push_back(entry.path());
    for (const auto& path : left) std::filesystem::remove(path, ignored);
  }

  PackEntry entry_of(const TraceEntry& trace, int64_t rank) const {
    PackEntry e;
    const int64_t n = manifest_.num_vertices, row = manifest_.row_bytes;
    e.split = trace.split;
    e.epochs = manifest_.sampled_epochs(Split::train);
    e.rank = rank;
    e.ranks = request_.ranks;
    e.gpu_rows = std::min(n, request_.gpu_bytes / row);
    e.cpu_rows = std::min(n - e.gpu_rows, request_.cpu_bytes / row);
    const TraceEntry& train = *manifest_.trace(Split::train);
    const bool is_still = request_.policy == CachePolicy::hottest || request_.policy == CachePolicy::none;
    OrderChoice order = request_.order;
    if (request_.is_automatic_order)
      order = is_still ? OrderChoice{BatchOrder::shuffle, 0}
                       : automatic_order(base::ceil_div(train.batches, e.ranks), e.cpu_rows,
                                         train.input_rows / train.batches);
    e.order = order.order;
    const bool is_train = trace.split == Split::train;
    e.segment_batches = is_train && e.order == BatchOrder::segments ? order.segment_batches : 0;
    e.policy = is_train ? request_.policy : CachePolicy::hottest;
    e.depth = request_.depth;
    e.page_bytes = request_.page_bytes;
    e.disk_rows = is_train ? request_.disk_bytes / row : 0;
    e.name = pack_name(e.order, e.split, e.rank, e.ranks);
    return e;
  }

  base::Status pack_split(Split split, int64_t rank) {
    const TraceEntry& entry = *manifest_.trace(split);
    PackEntry packs = entry_of(entry, rank);
    const Generation generation = generation_of(manifest_, entry, packs);
    const bool is_anew = std::find(anew_.begin(), anew_.end(), packs.name) != anew_.end();
    if (const PackEntry* old = manifest_.pack(packs.name); old != nullptr && !is_anew) {
      auto plan = open_plan(directory_, manifest_, *old);
      if (plan.ok() && plan->generation == generation) {
        if (split == Split::train) start_ = plan->start;
        return {};
      }
      std::erase_if(manifest_.packs, [&](const PackEntry& e) { return e.name == packs.name; });
      OVERLACE_TRY(write_manifest());
    }
    const auto trace = SelectedTrace::open(directory_, manifest_, packs, true);
    if (!trace.ok()) return trace.status();
    PackRequest request;
    request.options =
        level_options(packs, manifest_.row_bytes, trace->epoch_batches(), split == Split::train ? nullptr : &start_);
    request.labels = labels_;
    request.generation = generation;
    request.memory_bytes = request_.memory_bytes;
    OVERLACE_TRY(write_packs(trace->trace(), std::move(request), &packs));
    // A repair that is killed finds the entry of what it has to make.
    const auto old = std::find_if(manifest_.packs.begin(), manifest_.packs.end(),
                                  [&](const PackEntry& e) { return e.name == packs.name; });
    if (old == manifest_.packs.end()) {
      manifest_.packs.push_back(std::move(packs));
    } else {
      *old = std::move(packs);
    }
    return write_manifest();
  }

  base::Status write_packs(const InputTrace& trace, PackRequest request, PackEntry* packs) {
    report("plan", *packs, 0);
    const auto predicted = predict(trace, request.options);
    if (!predicted.ok()) return predicted.status();
    const int64_t hot =
        (std::ssize(predicted->plan.start.gpu) + std::ssize(predicted->plan.start.cpu)) * request.options.row_bytes;
    const int64_t bytes[3] = {predicted->bytes_on_disk - predicted->bytes_of_pages, predicted->bytes_of_pages, hot};
    packs->blow_up = predicted->plan.blow_up;
    packs->feature_bytes = predicted->plan.bytes.total();
    packs->bytes_read = predicted->bytes_read;
    packs->packs_bytes = bytes[0];
    packs->disk_cache_bytes = bytes[1];
    packs->hot_bytes = bytes[2];
    if (packs->split == Split::train) start_ = predicted->plan.start;
    if (request_.is_dry) return {};
    const auto journal = Journal::open(directory_ + "/journal.log", request.generation);
    if (!journal.ok()) return journal.status();
    request.done = last_pass(**journal);
    for (size_t i = 0; i < 3; ++i)
      if (!std::filesystem::exists(part_path(directory_, i, packs->name))) request.done.reset();
    // A record must not outlive the rows that it speaks of: files that are made anew are empty.
    if (!request.done) OVERLACE_TRY((*journal)->forget());
    OVERLACE_TRY(check_room(bytes, packs->name));
    const auto files = PackFiles::create(directory_, packs->name, request.done.has_value());
    if (!files.ok()) return files.status();
    OVERLACE_TRY((*files)->allocate(bytes));
    const auto& features = dataset_.description().features;
    const auto rows =
        FeatureFile::open(engine_.get(), dataset_.feature_path(), features.data_offset, features.row_bytes);
    if (!rows.ok()) return rows.status();
    request.progress = [&](double share) { report("pack", *packs, share); };
    JournalledFiles store(files->get(), journal->get());
    const auto packed = pack_batches(trace, request, rows->get(), &store);
    if (!packed.ok()) return packed.status();
    PackPlan plan = plan_of(request, *packed, trace.num_vertices());
    plan.hot_sum = packed->hot_sum;
    OVERLACE_TRY((*files)->sync());
    auto sums = sums_of(engine_.get(), part_path(directory_, 1, packs->name), bytes[1], plan.page.bytes);
    if (!sums.ok()) return sums.status();
    plan.page_sums = std::move(*sums);
    const std::vector<std::byte> encoded = encode_plan(plan);
    OVERLACE_TRY(
        base::write_file_durably(plan_path(directory_, packs->name),
                                 std::string_view(reinterpret_cast<const char*>(encoded.data()), encoded.size())));
    OVERLACE_TRY((*files)->finish(*packed));
    packs->plan_bytes = std::ssize(encoded);
    packs->plan_sum = base::crc32c(encoded);
    return {};
  }

  base::Status check_room(const int64_t (&bytes)[3], const std::string& name) const {
    struct statvfs disk {};
    if (::statvfs(directory_.c_str(), &disk) != 0) return {};
    int64_t wanted = 0;
    for (size_t i = 0; i < 3; ++i) {
      std::error_code code;
      const auto there = std::filesystem::file_size(part_path(directory_, i, name), code);
      wanted += std::max<int64_t>(0, bytes[i] - (code ? 0 : static_cast<int64_t>(there)));
    }
    const auto free = static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
    if (free < wanted)
      return base::error(Errc::io, "{}: the disk has {} bytes free, wanted {} for packs {}", directory_, free, wanted,
                         name);
    return {};
  }

  base::Status write_manifest() const {
    if (request_.is_dry) return {};
    return base::write_file_durably(directory_ + "/manifest.json", manifest_json(manifest_));
  }
  void report(const char* what, const PackEntry& packs, double share) const {
    if (request_.progress) request_.progress(base::format("{} {}", what, packs.name), share);
  }

  const Dataset& dataset_;
  const std::string& directory_;
  const ArtefactPackRequest& request_;
  const std::span<const std::string> anew_;
  Manifest manifest_;
  std::vector<int32_t> labels_;
  std::unique_ptr<io::IoEngine> engine_;
  CachedRows start_;  // of train, which the other splits begin with
};

class Verifier {
 public:
  Verifier(const std::string& directory, const StepProgress& progress) : directory_(directory), progress_(progress) {}

  base::Result<VerifyReport> run(const Dataset* deep) {
    const auto manifest = read_manifest(directory_);
    if (!manifest.ok()) return manifest.status();
    if (deep != nullptr) OVERLACE_TRY(check_dataset(*manifest, *deep, directory_));
    auto engine = io::IoEngine::open();
    if (!engine.ok()) return engine.status();
    engine_ = std::move(*engine);
    for (const TraceEntry& entry : manifest->traces) {
      const auto trace = ArtefactTrace::open(directory_, entry, true);
      if (!trace.ok()) return trace.status();
      ++report_.files;
      report_.bytes += entry.bytes;
    }
    for (const PackEntry& entry : manifest->packs) OVERLACE_TRY(check_packs(*manifest, entry, deep));
    return report_;
  }

  /// Names of packs that are not whole. An error is one of samples, or of the system.
  base::Result<std::vector<std::string>> damaged(const Manifest& manifest) {
    auto engine = io::IoEngine::open();
    if (!engine.ok()) return engine.status();
    engine_ = std::move(*engine);
    std::vector<std::string> out;
    for (const PackEntry& entry : manifest.packs)
      if (!check_packs(manifest, entry, nullptr).ok()) out.push_back(entry.name);
    return out;
  }

 private:
  base::Status check_packs(const Manifest& manifest, const PackEntry& entry, const Dataset* deep) {
    const auto plan = open_plan(directory_, manifest, entry);
    if (!plan.ok()) return plan.status();
    OVERLACE_TRY(check_extents(*plan, entry));
    OVERLACE_TRY(check_rows(*plan, entry));
    report_.files += 4;
    report_.bytes += entry.packs_bytes + entry.disk_cache_bytes + entry.hot_bytes + entry.plan_bytes;
    return deep == nullptr ? base::Status() : pack_again(*deep, manifest, entry, *plan);
  }

  base::Status check_extents(const PackPlan& plan, const PackEntry& entry) {
    const std::string path = PackFiles::path(directory_, PackFile::packs, entry.name);
    const auto file = engine_->open_file(path, io::FileMode::read);
    if (!file.ok()) return file.status();
    auto buffer =
        io::AlignedBuffer::allocate(static_cast<size_t>(std::max(plan.largest_extent(), plan.largest_restore())));
    if (!buffer.ok()) return buffer.status();
    const auto check = [&](const ExtentPlace& place, int64_t number) -> base::Status {
      if (place.bytes == 0) return {};
      const std::span<std::byte> bytes(buffer->data(), static_cast<size_t>(place.bytes));
      OVERLACE_TRY(engine_->read(*file, place.offset, place.bytes, bytes, 0));
      OVERLACE_TRY(engine_->settle());
      ++report_.extents;
      return open_extent(bytes, plan.limits(number), path).status();
    };
    for (int64_t b = 0; b < plan.num_batches(); ++b) {
      OVERLACE_TRY(check(plan.extents[static_cast<size_t>(b)], b));
      if (progress_)
        progress_("verify " + entry.name, static_cast<double>(b) / static_cast<double>(plan.num_batches()));
    }
    for (int64_t s = 0; s < std::ssize(plan.restores); ++s)
      OVERLACE_TRY(check(plan.restores[static_cast<size_t>(s)], -1 - s));
    return {};
  }

  base::Status check_rows(const PackPlan& plan, const PackEntry& entry) {
    const std::string pages = PackFiles::path(directory_, PackFile::disk_cache, entry.name);
    const auto sums = sums_of(engine_.get(), pages, plan.file_bytes[1], plan.page.bytes);
    if (!sums.ok()) return sums.status();
    for (size_t i = 0; i < sums->size(); ++i)
      if ((*sums)[i] != plan.page_sums[i])
        return base::error(Errc::corrupt, "{}: checksum of page {} is {}, wanted {}", pages, i, (*sums)[i],
                           plan.page_sums[i]);
    report_.pages += std::ssize(*sums);
    if (plan.file_bytes[2] == 0) return {};
    const std::string hot = PackFiles::path(directory_, PackFile::hot, entry.name);
    const auto sum = sums_of(engine_.get(), hot, plan.file_bytes[2], plan.file_bytes[2]);
    if (!sum.ok()) return sum.status();
    if ((*sum)[0] != plan.hot_sum)
      return base::error(Errc::corrupt, "{}: checksum is {}, wanted {}", hot, (*sum)[0], plan.hot_sum);
    return {};
  }

  /// Packs into a store that compares.
  base::Status pack_again(const Dataset& dataset, const Manifest& manifest, const PackEntry& entry,
                          const PackPlan& plan) {
    const auto trace = SelectedTrace::open(directory_, manifest, entry, false);
    if (!trace.ok()) return trace.status();
    const std::vector<int32_t> labels(dataset.labels().begin(), dataset.labels().end());
    PackRequest request;
    request.options = level_options(entry, manifest.row_bytes, trace->epoch_batches(),
                                    entry.split == Split::train ? nullptr : &plan.start);
    request.labels = labels;
    request.generation = plan.generation;
    request.progress = [&](double share) {
      if (progress_) progress_("compare " + entry.name, share);
    };
    const auto& features = dataset.description().features;
    const auto rows =
        FeatureFile::open(engine_.get(), dataset.feature_path(), features.data_offset, features.row_bytes);
    if (!rows.ok()) return rows.status();
    const auto store = ComparingFiles::open(engine_.get(), directory_, entry.name);
    if (!store.ok()) return store.status();
    return pack_batches(trace->trace(), request, rows->get(), store->get()).status();
  }

  const std::string& directory_;
  const StepProgress& progress_;
  std::unique_ptr<io::IoEngine> engine_;
  VerifyReport report_;
};

/// The request that packs of this order and number of ranks were made by.
ArtefactPackRequest request_of(const PackEntry& train, int64_t row_bytes) {
  ArtefactPackRequest request;
  request.policy = train.policy;
  request.gpu_bytes = train.gpu_rows * row_bytes;
  request.cpu_bytes = train.cpu_rows * row_bytes;
  request.disk_bytes = train.disk_rows * row_bytes;
  request.page_bytes = train.page_bytes;
  request.is_automatic_order = false;
  request.order = {train.order, train.segment_batches};
  request.depth = static_cast<int>(train.depth);
  request.ranks = train.ranks;
  return request;
}

}  // namespace

base::Result<std::vector<std::string>> repair_artefact(const Dataset& dataset, const std::string& directory,
                                                       int64_t memory_bytes, const StepProgress& progress) {
  const auto manifest = read_manifest(directory);
  if (!manifest.ok()) return manifest.status();
  OVERLACE_TRY(check_dataset(*manifest, dataset, directory));
  for (const TraceEntry& entry : manifest->traces) {
    const auto trace = ArtefactTrace::open(directory, entry, true);
    if (!trace.ok()) return trace.status();
  }
  auto names = Verifier(directory, progress).damaged(*manifest);
  if (!names.ok() || names->empty()) return names;
  const auto is_damaged = [&](const PackEntry& e) {
    return std::find(names->begin(), names->end(), e.name) != names->end();
  };
  std::vector<std::pair<BatchOrder, int64_t>> done;
  for (const PackEntry& entry : manifest->packs) {
    const std::pair<BatchOrder, int64_t> kind(entry.order, entry.ranks);
    if (!is_damaged(entry) || std::find(done.begin(), done.end(), kind) != done.end()) continue;
    done.push_back(kind);
    const PackEntry* train = manifest->pack(pack_name(entry.order, Split::train, entry.rank, entry.ranks));
    if (train == nullptr)
      return base::error(Errc::corrupt, "{}/manifest.json: packs {} without those of train", directory, entry.name);
    ArtefactPackRequest request = request_of(*train, manifest->row_bytes);
    request.memory_bytes = memory_bytes;
    request.progress = progress;
    const auto packed = ArtefactPacker(dataset, directory, request, *names).run();
    if (!packed.ok()) return packed.status();
  }
  return names;
}

base::Result<Manifest> pack_artefact(const Dataset& dataset, const std::string& directory,
                                     const ArtefactPackRequest& request) {
  return ArtefactPacker(dataset, directory, request).run();
}

base::Result<VerifyReport> verify_artefact(const std::string& directory, const Dataset* deep,
                                           const StepProgress& progress) {
  return Verifier(directory, progress).run(deep);
}

}  // namespace overlace::gnn
