#include "src/gnn/store/generation.h"

#include "src/spec/digest.h"

namespace overlace::gnn {

Generation digest_of_hex(const std::string& hex) {
  Generation out{};
  const auto digit = [&](size_t i) {
    const char c = i < hex.size() ? hex[i] : '0';
    return static_cast<uint8_t>(c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= '0' && c <= '9' ? c - '0' : 0);
  };
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<uint8_t>(digit(2 * i) << 4 | digit(2 * i + 1));
  return out;
}

Generation generation_of(const Manifest& m, const TraceEntry& trace, const PackEntry& e) {
  // NOTE: of the caches the sizes suffice: what they hold is a function of trace and sizes, and for other splits of the
  // trace of train, whose checksum is in the text.
  const TraceEntry* train = m.trace(Split::train);
  std::string text =
      base::format("packs 1 {} {} {} {} {} {} {} {} {} {} {} {} {} {}", m.dataset, m.row_bytes, trace.file, trace.bytes,
                   trace.sum, e.name, name_of(e.policy), e.segment_batches, e.gpu_rows, e.cpu_rows, e.depth,
                   e.page_bytes, e.disk_rows, train == nullptr ? 0u : train->sum);
  for (int64_t i = 1; i < e.epochs; ++i) {
    const TraceEntry* more = m.trace(Split::train, i);
    text += base::format(" {}", more == nullptr ? 0u : more->sum);
  }
  if (e.ranks > 1) text += base::format(" of {}", e.ranks);
  return digest_of_hex(spec::hash128(text));
}

LevelOptions level_options(const PackEntry& entry, int64_t row_bytes, int64_t epoch_batches, const CachedRows* start) {
  LevelOptions options;
  options.gpu_rows = entry.gpu_rows;
  options.cpu_rows = entry.cpu_rows;
  options.depth = static_cast<int>(entry.depth);
  options.row_bytes = row_bytes;
  options.epoch_batches = epoch_batches;
  options.disk.page_bytes = entry.page_bytes;
  options.disk.max_rows = entry.disk_rows;
  options.policy = entry.policy;
  if (entry.split == Split::train) {
    options.order = {entry.order, entry.segment_batches};
  } else if (start != nullptr) {
    options.start = *start;
  }
  return options;
}

base::Status check_dataset(const Manifest& manifest, const Dataset& dataset, const std::string& directory) {
  const Description& d = dataset.description();
  if (manifest.dataset != d.id)
    return base::error(Errc::stale, "{}: made of dataset {}, {} is {}", directory, manifest.dataset,
                       dataset.directory(), d.id);
  return {};
}

}  // namespace overlace::gnn
