// In which order a cluster of a kernel that also adds up takes its work: one pure function for devices and tests.
#pragma once

#include <cstdint>
#include <type_traits>

#include "src/spec/tile_order_pod.h"

namespace overlace {

/// A product of a tile; the sum of what all ranks computed of an own tile; a copy of a peer's sum into the result.
enum class Work : int32_t { product, sum, copy };

inline constexpr int32_t kBandParts = 1024;

/// Bands of the order of tiles follow each other. The sums of a band come `lag` parts of a band behind its products,
/// spread as evenly, and its copies as much behind the sums; the sums of every second cluster `stagger` parts, a tile
/// of a cluster, later, the copies of the others, so that not all store to peers at once. As lag >= kBandParts +
/// stagger, a sum of a band comes behind all products of this band, a copy behind all its sums, in every cluster of
/// every rank, whatever their lags: waits for these form no circle.
struct WorkOrder {
  int32_t clusters = 1;
  int32_t lag = kBandParts, stagger = 0;
  int32_t bands = 0;
  int32_t first[3] = {};             // cluster that has the first of each kind: behind the last of the kind before
  int32_t tiles[3][kMaxBands] = {};  // of each kind in each band
};
static_assert(std::is_trivially_copyable_v<WorkOrder>);

/// Precondition: `o` has at most kMaxBands bands.
constexpr WorkOrder make_work_order(const TileOrder& o, int32_t clusters, bool has_copies) {
  constexpr auto kProduct = static_cast<int>(Work::product), kSum = static_cast<int>(Work::sum),
                 kCopy = static_cast<int>(Work::copy);
  WorkOrder out;
  out.clusters = clusters;
  for (int32_t s = 0; s < o.size; ++s) {
    const int32_t rows = o.first_tile[s + 1] - o.first_tile[s], bands = rows == 0 ? 0 : (rows - 1) / o.band + 1;
    out.bands = bands > out.bands ? bands : out.bands;
    for (int32_t band = 0; band < bands; ++band) {
      const int32_t tiles = rows_in_band(o, s, band) * o.tiles_n;
      out.tiles[kProduct][band] += tiles;
      if (s == o.rank) out.tiles[kSum][band] = tiles;
      if (s != o.rank && has_copies) out.tiles[kCopy][band] += tiles;
    }
  }
  const int32_t own = (o.first_tile[o.rank + 1] - o.first_tile[o.rank]) * o.tiles_n;
  if (out.bands > 1) {  // behind products that are being multiplied and stored still
    out.stagger = clusters * kBandParts / out.tiles[kProduct][0];
    out.lag += out.stagger + out.stagger / 2;
  }
  out.first[kSum] = count_tiles(o) % clusters;
  out.first[kCopy] = (count_tiles(o) + own) % clusters;
  return out;
}

/// What one cluster has to do, item by item: `next` until it is false, then `work` and `tile`.
class WorkItems {
 public:
  constexpr WorkItems(const TileOrder& order, const WorkOrder& work, int32_t cluster)
      : o_(&order), w_(&work), later_(cluster % 2 * work.stagger) {
    const auto start = [&](Lane* lane, Work kind) {
      const int32_t at = cluster - w_->first[static_cast<int>(kind)];
      *lane = {at < 0 ? at + w_->clusters : at, 0, count(kind, 0), 0};
      settle(lane, kind);
    };
    start(&product_, Work::product);
    start(&sum_, Work::sum);
    start(&copy_, Work::copy);
  }

  constexpr bool next() {
    if (product_.key <= sum_.key && product_.key <= copy_.key) {
      if (product_.key == kEnd) return false;
      take(&product_, Work::product);
    } else if (sum_.key <= copy_.key) {
      take(&sum_, Work::sum);
    } else {
      take(&copy_, Work::copy);
    }
    return true;
  }
  constexpr Work work() const { return work_; }
  constexpr TileCoord tile() const {
    return work_ == Work::product ? woven_in_band(*o_, band_, at_, count(Work::product, band_))
           : work_ == Work::sum   ? own_in_band(*o_, band_, at_)
                                  : others_in_band(*o_, band_, at_);
  }

 private:
  static constexpr int32_t kEnd = 0x7fffffff;
  struct Lane {
    int32_t at = 0, band = 0, count = 0, key = kEnd;
  };

  constexpr int32_t count(Work work, int32_t band) const { return w_->tiles[static_cast<int>(work)][band]; }
  constexpr void settle(Lane* lane, Work work) const {
    for (; lane->at >= lane->count; lane->count = count(work, lane->band)) {
      lane->at -= lane->count;
      if (++lane->band < w_->bands) continue;
      lane->key = kEnd;
      return;
    }
    const int32_t late = work == Work::product ? 0
                         : work == Work::sum   ? w_->lag + later_
                                               : 2 * w_->lag + w_->stagger - later_;
    const uint32_t part = static_cast<uint32_t>(lane->at) * kBandParts / static_cast<uint32_t>(lane->count);
    lane->key = lane->band * kBandParts + static_cast<int32_t>(part) + late;
  }
  constexpr void take(Lane* lane, Work work) {
    work_ = work;
    band_ = lane->band;
    at_ = lane->at;
    lane->at += w_->clusters;
    settle(lane, work);
  }

  const TileOrder* o_;
  const WorkOrder* w_;
  int32_t later_;
  Lane product_, sum_, copy_;
  Work work_ = Work::product;
  int32_t band_ = 0, at_ = 0;
};

}  // namespace overlace
