#include "src/gnn/store/artefact.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "src/base/ceil_div_pod.h"
#include "src/base/crc32c.h"
#include "src/base/file.h"
#include "src/gnn/dataset/fingerprint.h"
#include "src/gnn/pack/files.h"
#include "src/gnn/parallel.h"
#include "src/gnn/store/generation.h"

namespace overlace::gnn {
namespace {

std::span<const std::byte> bytes_of(const base::MappedFile& file) {
  return std::as_bytes(std::span(file.data(), file.size()));
}

base::Status check_size(const std::string& path, int64_t wanted) {
  std::error_code code;
  const auto size = std::filesystem::file_size(path, code);
  if (code) return base::error(Errc::io, "{}: {}", path, code.message());
  if (static_cast<int64_t>(size) != wanted)
    return base::error(Errc::corrupt, "{}: {} bytes, wanted {}", path, size, wanted);
  return {};
}

bool is_there(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

/// The manifest of an artefact that may be there already.
base::Result<Manifest> begin_manifest(const Dataset& dataset, const std::string& directory,
                                      const SamplerOptions& sampler) {
  const Description& d = dataset.description();
  if (is_there(directory + "/manifest.json")) {
    auto manifest = read_manifest(directory);
    if (!manifest.ok()) return manifest.status();
    OVERLACE_TRY(check_dataset(*manifest, dataset, directory));
    const SamplerOptions& was = manifest->sampler;
    if (was.fanouts != sampler.fanouts || was.batch_size != sampler.batch_size || was.seed != sampler.seed ||
        was.replace != sampler.replace)
      return base::invalid_argument("{}: has samples of seed {} in batches of {}, wanted those, or another directory",
                                    directory, was.seed, was.batch_size);
    return manifest;
  }
  Manifest manifest;
  manifest.dataset = d.id;
  manifest.directory = std::filesystem::absolute(dataset.directory()).lexically_normal().string();
  manifest.num_vertices = d.num_vertices;
  manifest.num_classes = d.num_classes;
  manifest.dtype = dtype_name(d.features.dtype);
  manifest.dim = d.features.dim;
  manifest.row_bytes = d.features.row_bytes;
  manifest.sampler = sampler;
  return manifest;
}

base::Result<TraceEntry> sample_split(const Dataset& dataset, const std::string& directory, const Sampler& sampler,
                                      SampledEpoch epoch, const SampleRequest& request, io::IoEngine* engine) {
  const Split split = epoch.split;
  const auto seeds = sampler.check_seeds(dataset.split(split), split_name(split));
  if (!seeds.ok()) return seeds.status();
  const std::vector<uint32_t> ordered = order_seeds(*seeds, sampler.options().seed, epoch);
  TraceHeader header;
  header.dataset = digest_of_hex(dataset.description().id);
  header.num_vertices = dataset.description().num_vertices;
  header.num_batches = num_batches(ordered.size(), sampler.options().batch_size);
  header.options = sampler.options();
  header.epoch = epoch;
  TraceEntry entry;
  entry.split = split;
  entry.epoch = epoch.epoch;
  entry.file = base::format("trace-{}-{}.ovt", split_name(split), epoch.epoch);
  const std::string path = directory + "/" + entry.file;
  auto sink = FileSink::create(engine, path);
  if (!sink.ok()) return sink.status();
  TraceWriter writer(header, sink->get());
  const int threads = thread_count(request.threads);
  const std::string what = epoch.epoch == 0 ? base::format("sample {}", split_name(split))
                                            : base::format("sample {} {}", split_name(split), epoch.epoch);
  OVERLACE_TRY(sample_epoch(sampler, ordered, epoch, threads, [&](int64_t b, const SampledBatch& batch) {
    ++entry.batches;
    entry.input_rows += std::ssize(batch.inputs);
    if (request.progress) request.progress(what, static_cast<double>(b + 1) / static_cast<double>(header.num_batches));
    return writer.append(batch);
  }));
  OVERLACE_TRY(writer.finish());
  OVERLACE_TRY((*sink)->finish());
  const auto mapped = base::MappedFile::open(path);
  if (!mapped.ok()) return mapped.status();
  entry.bytes = static_cast<int64_t>((*mapped)->size());
  entry.sum = base::crc32c(bytes_of(**mapped));
  return entry;
}

}  // namespace

base::Result<std::unique_ptr<ArtefactLock>> ArtefactLock::take(const std::string& directory) {
  std::error_code code;
  std::filesystem::create_directories(directory, code);
  if (code) return base::error(Errc::io, "{}: make the directory: {}", directory, code.message());
  const std::string path = directory + "/lock";
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return base::error(Errc::io, "{}: open: {}", path, std::generic_category().message(errno));
  std::unique_ptr<ArtefactLock> lock(new ArtefactLock(fd));
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    const int reason = errno;
    const auto holder = base::read_file(path);
    if (reason != EWOULDBLOCK)
      return base::error(Errc::io, "{}: lock: {}", path, std::generic_category().message(reason));
    return base::error(Errc::io, "{}: process {} is changing this artefact", directory,
                       holder.ok() && !holder->empty() ? *holder : "?");
  }
  const std::string own = base::format("{}", ::getpid());
  if (::ftruncate(fd, 0) != 0 || ::pwrite(fd, own.data(), own.size(), 0) != static_cast<ssize_t>(own.size()))
    return base::error(Errc::io, "{}: write: {}", path, std::generic_category().message(errno));
  return lock;
}

ArtefactLock::~ArtefactLock() { ::close(fd_); }

base::Result<Manifest> read_manifest(const std::string& directory) {
  const std::string path = directory + "/manifest.json";
  const auto text = base::read_file(path);
  if (!text.ok())
    return unreadable(
        path, base::invalid_argument("{}; wanted an artefact, see overlace gnn sample", text.status().message()));
  return parse_manifest(*text, path);
}

base::Result<ArtefactTrace> ArtefactTrace::open(const std::string& directory, const TraceEntry& entry, bool is_whole) {
  const std::string path = directory + "/" + entry.file;
  OVERLACE_TRY(check_size(path, entry.bytes));
  auto file = base::MappedFile::open(path);
  if (!file.ok()) return file.status();
  auto trace = TraceFile::open(bytes_of(**file), path);
  if (!trace.ok()) return trace.status();
  if (trace->num_batches() != entry.batches)
    return base::error(Errc::corrupt, "{}: {} batches, wanted {}", path, trace->num_batches(), entry.batches);
  if (is_whole) {
    const uint32_t seen = base::crc32c(bytes_of(**file));
    if (seen != entry.sum) return base::error(Errc::corrupt, "{}: checksum is {}, wanted {}", path, seen, entry.sum);
    OVERLACE_TRY(trace->verify());
  }
  return ArtefactTrace(std::move(*file), std::move(*trace));
}

base::Result<SelectedTrace> SelectedTrace::open(const std::string& directory, const Manifest& manifest,
                                                const PackEntry& packs, bool is_whole) {
  SelectedTrace out;
  std::vector<const InputTrace*> parts;
  for (int64_t epoch = 0; epoch < (packs.split == Split::train ? packs.epochs : 1); ++epoch) {
    const TraceEntry* entry = manifest.trace(packs.split, epoch);
    if (entry == nullptr)
      return base::error(Errc::corrupt, "{}/manifest.json: trace {} of split {} is missing", directory, epoch,
                         split_name(packs.split));
    auto file = ArtefactTrace::open(directory, *entry, is_whole);
    if (!file.ok()) return file.status();
    out.files_.push_back(std::make_unique<ArtefactTrace>(std::move(*file)));
    const TraceFile& trace = out.files_.back()->trace();
    if (trace.num_batches() != out.files_.front()->trace().num_batches())
      return base::error(Errc::corrupt, "{}/{}: {} batches, wanted {}, as the first", directory, entry->file,
                         trace.num_batches(), out.files_.front()->trace().num_batches());
    auto part = TraceSelection::of_rank(trace, static_cast<int>(packs.rank), static_cast<int>(packs.ranks));
    if (!part.ok()) return part.status();
    out.parts_.push_back(std::make_unique<TraceSelection>(std::move(*part)));
    parts.push_back(out.parts_.back().get());
  }
  auto joined = TraceSelection::joined(parts);
  if (!joined.ok()) return joined.status();
  out.joined_ = std::make_unique<TraceSelection>(std::move(*joined));
  return out;
}

std::string plan_path(const std::string& directory, const std::string& name) {
  return base::format("{}/plan-{}.ovp", directory, name);
}

base::Result<PackPlan> open_plan(const std::string& directory, const Manifest& manifest, const PackEntry& entry) {
  const std::string path = plan_path(directory, entry.name);
  const TraceEntry* trace = manifest.trace(entry.split);
  if (trace == nullptr)
    return base::error(Errc::corrupt, "{}/manifest.json: packs {} of a split without trace", directory, entry.name);
  OVERLACE_TRY(check_size(path, entry.plan_bytes));
  const auto text = base::read_file(path);
  if (!text.ok()) return text.status();
  const auto bytes = std::as_bytes(std::span(text->data(), text->size()));
  auto plan = parse_plan(bytes, path);
  if (!plan.ok()) return plan;
  if (base::crc32c(bytes) != entry.plan_sum || plan->generation != generation_of(manifest, *trace, entry))
    return base::error(Errc::stale, "{}: made for another dataset, trace or request than the manifest names", path);
  const int64_t steps = base::ceil_div(trace->batches, entry.ranks);
  const int64_t batches = steps * (entry.split == Split::train ? entry.epochs : 1);
  if (plan->num_vertices != manifest.num_vertices || plan->row_bytes != manifest.row_bytes ||
      plan->num_batches() != batches || plan->epoch_batches != steps)
    return base::error(Errc::corrupt,
                       "{}: {} vertices, rows of {} bytes, {} batches, {} of a training epoch; wanted {}, {}, {}, {}",
                       path, plan->num_vertices, plan->row_bytes, plan->num_batches(), plan->epoch_batches,
                       manifest.num_vertices, manifest.row_bytes, batches, steps);
  for (size_t i = 0; i < 3; ++i)
    OVERLACE_TRY(check_size(PackFiles::path(directory, static_cast<PackFile>(i), entry.name), plan->file_bytes[i]));
  return plan;
}

base::Result<Manifest> sample_artefact(const Dataset& dataset, const std::string& directory,
                                       const SampleRequest& request) {
  if (request.epochs < 1 || request.epochs > kMaxSampledEpochs)
    return base::invalid_argument("epochs is {}, wanted 1 to {}", request.epochs, kMaxSampledEpochs);
  if (request.threads < 0) return base::invalid_argument("threads is {}, wanted at least 0", request.threads);
  if (request.splits.empty()) return base::invalid_argument("splits: none, wanted at least one");
  const auto sampler = Sampler::make(dataset.graph(), request.sampler);
  if (!sampler.ok()) return sampler.status();
  for (const Split split : request.splits) {
    const auto seeds = sampler->check_seeds(dataset.split(split), split_name(split));
    if (!seeds.ok()) return seeds.status();
  }
  const auto lock = ArtefactLock::take(directory);
  if (!lock.ok()) return lock.status();
  auto manifest = begin_manifest(dataset, directory, request.sampler);
  if (!manifest.ok()) return manifest;
  auto engine = io::IoEngine::open();
  if (!engine.ok()) return engine.status();
  for (const Split split : request.splits) {
    for (int64_t epoch = 0; epoch < (split == Split::train ? request.epochs : 1); ++epoch) {
      if (manifest->trace(split, epoch) != nullptr) continue;
      auto entry =
          sample_split(dataset, directory, *sampler, {split, static_cast<uint32_t>(epoch)}, request, engine->get());
      if (!entry.ok()) return entry.status();
      manifest->traces.push_back(std::move(*entry));
      OVERLACE_TRY(base::write_file_durably(directory + "/manifest.json", manifest_json(*manifest)));
    }
  }
  return manifest;
}

}  // namespace overlace::gnn
