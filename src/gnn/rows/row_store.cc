#include "src/gnn/rows/row_store.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "src/io/alignment.h"

namespace overlace::gnn {
namespace {

constexpr uint32_t kNone = 0xffffffffu;
constexpr int64_t kSlots = 32;                       // reads under way
constexpr int64_t kMostTogether = int64_t{1} << 17;  // bytes of neighbouring pages that are read at once

int64_t round_down(int64_t value) { return value - value % io::kPageBytes; }

}  // namespace

base::Result<std::unique_ptr<RowStore>> RowStore::open(const Dataset& dataset, RowStoreOptions options) {
  const Description& d = dataset.description();
  std::unique_ptr<RowStore> store(new RowStore(d.num_vertices, d.features.row_bytes, d.features.data_offset));
  auto engine = io::IoEngine::open(std::move(options.io));
  if (!engine.ok()) return engine.status();
  store->engine_ = std::move(*engine);
  auto file = store->engine_->open_file(dataset.feature_path(), io::FileMode::read);
  if (!file.ok()) return file.status();
  store->file_ = std::move(*file);
  // A row may begin at the end of one page and end at the begin of another.
  const int64_t slot = std::max(kMostTogether, io::round_up(d.features.row_bytes, io::kPageBytes) + io::kPageBytes);
  auto ring = io::Ring::make(kSlots, slot);
  if (!ring.ok()) return ring.status();
  store->ring_ = std::move(*ring);
  OVERLACE_TRY(store->fill_cache(options.cached));
  store->stats_ = {};
  return store;
}

base::Status RowStore::fill_cache(std::span<const int64_t> vertices) {
  if (vertices.empty()) return {};
  if (std::ssize(vertices) > num_rows_)
    return base::invalid_argument("cached: {} vertices, wanted at most {}", vertices.size(), num_rows_);
  try {
    std::vector<uint32_t> slots(static_cast<size_t>(num_rows_), kNone);
    for (size_t i = 0; i < vertices.size(); ++i) {
      if (vertices[i] < 0 || vertices[i] >= num_rows_ || slots[static_cast<size_t>(vertices[i])] != kNone)
        return base::invalid_argument("cached[{}] is {}, wanted each once and 0 to {}", i, vertices[i], num_rows_ - 1);
      slots[static_cast<size_t>(vertices[i])] = static_cast<uint32_t>(i);
    }
    cache_.resize(vertices.size() * static_cast<size_t>(row_bytes_));
    OVERLACE_TRY(read(vertices, cache_));
    slot_of_ = std::move(slots);
  } catch (const std::bad_alloc&) {
    return base::error(Errc::out_of_memory, "{} cached rows of {} bytes do not fit", vertices.size(), row_bytes_);
  }
  return {};
}

base::Status RowStore::read(std::span<const int64_t> ids, std::span<std::byte> out) {
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= num_rows_)
      return base::invalid_argument("ids[{}] is {}, wanted 0 to {}", i, ids[i], num_rows_ - 1);
  const auto row = static_cast<size_t>(row_bytes_);
  if (out.size() % row != 0 || out.size() / row != ids.size())
    return base::invalid_argument("out has {} bytes, wanted {} rows of {}", out.size(), ids.size(), row_bytes_);
  const std::lock_guard lock(mutex_);
  std::vector<Wanted> missed;
  for (size_t i = 0; i < ids.size(); ++i) {
    const uint32_t slot = slot_of_.empty() ? kNone : slot_of_[static_cast<size_t>(ids[i])];
    if (slot == kNone)
      missed.push_back({ids[i], i});
    else
      std::memcpy(out.data() + i * row, cache_.data() + slot * row, row);
  }
  stats_.rows += std::ssize(ids);
  stats_.cached_rows += std::ssize(ids) - std::ssize(missed);
  std::sort(missed.begin(), missed.end());
  return read_runs(runs_of(missed), missed, out);
}

std::vector<RowStore::Run> RowStore::runs_of(std::span<const Wanted> sorted) const {
  std::vector<Run> runs;
  for (size_t i = 0; i < sorted.size(); ++i) {
    const int64_t offset = data_offset_ + sorted[i].first * row_bytes_;
    const int64_t begin = round_down(offset), end = io::round_up(offset + row_bytes_, io::kPageBytes);
    const bool goes_on = !runs.empty() && begin <= runs.back().end &&
                         (end <= runs.back().end || end - runs.back().begin <= kMostTogether);
    if (goes_on) {
      runs.back().end = std::max(runs.back().end, end);
    } else {
      runs.push_back({begin, end, i, i});
    }
    runs.back().last = i + 1;
  }
  return runs;
}

base::Status RowStore::read_runs(std::span<const Run> runs, std::span<const Wanted> sorted, std::span<std::byte> out) {
  const int64_t file_bytes = data_offset_ + num_rows_ * row_bytes_;
  const auto row = static_cast<size_t>(row_bytes_);
  std::vector<int64_t> free_slots, run_in(kSlots);
  for (int64_t s = 0; s < kSlots; ++s) free_slots.push_back(s);
  base::Status failure;
  size_t next = 0;
  while (failure.ok() && (next < runs.size() || engine_->pending() > 0)) {
    for (; next < runs.size() && !free_slots.empty() && failure.ok(); ++next) {
      const int64_t slot = free_slots.back(), bytes = std::min(runs[next].end, file_bytes) - runs[next].begin;
      free_slots.pop_back();
      run_in[static_cast<size_t>(slot)] = static_cast<int64_t>(next);
      failure = engine_->read(file_, runs[next].begin, bytes, ring_.slot(slot), static_cast<uint64_t>(slot));
      ++stats_.reads;
      stats_.bytes_read += bytes;
    }
    io::Completion done[kSlots];
    const auto n = engine_->poll(done);
    if (!n.ok()) {
      failure = n.status();
      break;
    }
    for (size_t i = 0; i < *n; ++i) {
      if (!done[i].status.ok()) {
        if (failure.ok()) failure = done[i].status;
        continue;
      }
      const auto slot = static_cast<int64_t>(done[i].tag);
      const Run& run = runs[static_cast<size_t>(run_in[static_cast<size_t>(slot)])];
      for (size_t k = run.first; k < run.last; ++k) {
        const int64_t at = data_offset_ + sorted[k].first * row_bytes_ - run.begin;
        std::memcpy(out.data() + sorted[k].second * row, ring_.slot(slot).data() + at, row);
      }
      free_slots.push_back(slot);
    }
  }
  // The buffers belong to the kernel until all has ended.
  (void)engine_->settle();
  return failure;
}

RowStoreStats RowStore::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace overlace::gnn
