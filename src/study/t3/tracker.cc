#include "src/study/t3/tracker.h"

#include <algorithm>

#include "src/base/status.h"

namespace overlace::study::t3 {

Tracker::Tracker(const TrackerOptions& options) : options_(options) {
  OVERLACE_ASSERT(options.sets > 0 && options.ways > 0);
  table_.resize(static_cast<size_t>(options.sets) * static_cast<size_t>(options.ways));
}

Tracker::Outcome Tracker::update(int64_t group, int wavefront, int threshold) {
  const auto sets = static_cast<uint64_t>(options_.sets), ways = static_cast<uint64_t>(options_.ways);
  const auto set = static_cast<uint64_t>(group) % sets;
  const uint64_t tag = (static_cast<uint64_t>(group) / sets) << 8 | static_cast<uint64_t>(wavefront);
  Entry* unused = nullptr;
  Entry* found = nullptr;
  for (Entry* entry = &table_[set * ways]; entry != &table_[set * ways] + ways; ++entry) {
    if (entry->count == 0)
      unused = unused == nullptr ? entry : unused;
    else if (entry->tag == tag)
      found = entry;
  }
  if (threshold == 1 && found == nullptr) return Outcome::ready;
  if (found == nullptr) {
    if (unused == nullptr) return Outcome::full;
    *unused = {tag, 1};
    peak_entries_ = std::max(peak_entries_, ++entries_);
    return Outcome::counted;
  }
  if (++found->count < threshold) return Outcome::counted;
  *found = {};
  --entries_;
  return Outcome::ready;
}

}  // namespace overlace::study::t3
