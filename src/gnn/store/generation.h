// What an artefact was made of, as far as its packs depend on it.
#pragma once

#include <string>

#include "src/base/status.h"
#include "src/gnn/dataset/dataset.h"
#include "src/gnn/levels/levels.h"
#include "src/gnn/pack/extent.h"
#include "src/gnn/store/manifest.h"

namespace overlace::gnn {

/// 32 hex digits as bytes; what is no digit counts as 0.
Generation digest_of_hex(const std::string& hex);
/// Digest of dataset, trace and what the levels were asked for.
Generation generation_of(const Manifest& manifest, const TraceEntry& trace, const PackEntry& entry);
/// Packs are planned with this; splits other than train begin with `start`, the caches of train, and leave them alone.
LevelOptions level_options(const PackEntry& entry, int64_t row_bytes, int64_t epoch_batches, const CachedRows* start);
/// stale with both ids where the artefact is of another dataset.
base::Status check_dataset(const Manifest& manifest, const Dataset& dataset, const std::string& directory);

}  // namespace overlace::gnn
