#include "src/gnn/levels/sweep.h"

#include <algorithm>

namespace overlace::gnn {

LevelSweep::LevelSweep(int64_t num_vertices, CachePolicy policy, int depth, const CachedRows& cached)
    : depth_(static_cast<uint32_t>(depth)),
      policy_(make_slot_policy(policy)),
      where_(static_cast<size_t>(num_vertices), kNowhere) {
  for (size_t i = 0; i < cached.gpu.size(); ++i)
    where_[cached.gpu[i]] = row_word(RowLevel::gpu, static_cast<uint32_t>(i));
}

void LevelSweep::begin(std::span<const uint32_t> rows, const NextUses* next) {
  for (const uint32_t v : row_of_) where_[v] = kNowhere;
  row_of_.assign(rows.begin(), rows.end());
  admitted_at_.assign(rows.size(), -int64_t{depth_} - 1);
  ring_row_.assign(rows.size(), 0);
  next_ = next;
  time_ = 0;
  std::vector<uint32_t> first(rows.size(), kNeverUsed);
  for (size_t s = 0; s < rows.size(); ++s) {
    OVERLACE_ASSERT(where_[rows[s]] == kNowhere);
    where_[rows[s]] = row_word(RowLevel::cpu, static_cast<uint32_t>(s));
    if (next != nullptr) first[s] = next->first(rows[s]);
  }
  policy_->begin(first, next == nullptr ? 0 : next->end_time());
}

void LevelSweep::settle() { admitted_at_.assign(admitted_at_.size(), time_ - int64_t{depth_} - 1); }

void LevelSweep::look_up(std::span<const uint32_t> inputs, BatchPlan* out, LevelCounts* counts) {
  misses_.clear();
  out->program.resize(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const uint32_t word = where_[inputs[i]];
    if (word == kNowhere) {
      misses_.push_back({inputs[i], static_cast<uint32_t>(i), 0});
      continue;
    }
    out->program[i] = word;
    if (row_level(word) == RowLevel::gpu) {
      ++counts->gpu_hits;
      continue;
    }
    const uint32_t slot = row_index(word);
    if (const int64_t age = time_ - admitted_at_[slot]; age <= int64_t{depth_}) {
      out->program[i] = row_word(RowLevel::ring, ring_index(ring_row_[slot], static_cast<uint32_t>(age), depth_));
      ++counts->ring_hits;
    } else {
      ++counts->cpu_hits;
    }
    policy_->touch(slot, next_of(i));
  }
}

void LevelSweep::place_misses(const PageView& pages, BatchPlan* out) {
  std::sort(misses_.begin(), misses_.end(), [](const Miss& a, const Miss& b) { return a.vertex < b.vertex; });
  out->pack.clear();
  out->pages.clear();
  for (Miss& miss : misses_) {
    const uint32_t place = pages.places == nullptr ? PagePlaces::kNone : pages.places->of(miss.vertex);
    if (place == PagePlaces::kNone) {
      miss.ring_row = static_cast<uint32_t>(out->pack.size());
      out->pack.push_back(miss.vertex);
    } else {
      out->pages.push_back(place / static_cast<uint32_t>(pages.shape.rows));
    }
  }
  if (out->pages.empty()) return;
  std::sort(out->pages.begin(), out->pages.end());
  out->pages.erase(std::unique(out->pages.begin(), out->pages.end()), out->pages.end());
  const auto rows = static_cast<uint32_t>(pages.shape.rows);
  for (Miss& miss : misses_) {
    const uint32_t place = pages.places->of(miss.vertex);
    if (place == PagePlaces::kNone) continue;
    const auto page = std::lower_bound(out->pages.begin(), out->pages.end(), place / rows) - out->pages.begin();
    miss.ring_row = static_cast<uint32_t>(out->pack.size()) + static_cast<uint32_t>(page) * rows + place % rows;
  }
}

void LevelSweep::admit(BatchPlan* out) {
  // In the order of the inputs, which decides where two rows are needed at the same time.
  std::sort(misses_.begin(), misses_.end(), [](const Miss& a, const Miss& b) { return a.position < b.position; });
  changed_.clear();
  for (const Miss& miss : misses_) {
    out->program[miss.position] = row_word(RowLevel::ring, ring_index(miss.ring_row, 0, depth_));
    const auto slot = policy_->offer(next_of(miss.position));
    if (!slot) continue;
    where_[row_of_[*slot]] = kNowhere;
    where_[miss.vertex] = row_word(RowLevel::cpu, *slot);
    row_of_[*slot] = miss.vertex;
    if (admitted_at_[*slot] != time_) changed_.push_back(*slot);
    admitted_at_[*slot] = time_;
    ring_row_[*slot] = miss.ring_row;
  }
  std::sort(changed_.begin(), changed_.end());
  out->admissions.clear();
  for (const uint32_t slot : changed_) out->admissions.push_back({ring_row_[slot], slot});
}

base::Status LevelSweep::step(std::span<const uint32_t> inputs, const PageView& pages, BatchPlan* out,
                              LevelCounts* counts) {
  look_up(inputs, out, counts);
  place_misses(pages, out);
  const int64_t ring_rows =
      static_cast<int64_t>(out->pack.size()) + static_cast<int64_t>(out->pages.size()) * pages.shape.rows;
  if (ring_rows * (int64_t{depth_} + 1) > int64_t{kMaxRowIndex} + 1)
    return base::invalid_argument("levels: a batch has {} rows to read and the depth is {}, wanted at most {} rows",
                                  ring_rows, depth_, (int64_t{kMaxRowIndex} + 1) / (int64_t{depth_} + 1));
  admit(out);
  counts->rows += static_cast<int64_t>(inputs.size());
  counts->misses += static_cast<int64_t>(misses_.size());
  counts->pack_rows += static_cast<int64_t>(out->pack.size());
  counts->pages += static_cast<int64_t>(out->pages.size());
  counts->admissions += static_cast<int64_t>(out->admissions.size());
  counts->max_ring_rows = std::max(counts->max_ring_rows, ring_rows);
  ++time_;
  return {};
}

}  // namespace overlace::gnn
