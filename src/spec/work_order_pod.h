// The list of what a kernel does that also adds up: one pure function for devices, simulator and tests.
#pragma once

#include <cstdint>
#include <type_traits>

#include "src/spec/tile_order_pod.h"

namespace overlace {

/// A GEMM of a tile; the sum of what all ranks computed of an own tile; a copy of a peer's sum into the result.
enum class Work : int32_t { product, sum, copy };
inline constexpr int kWorks = 3;

struct WorkItem {
  Work work = Work::product;
  TileCoord at;
};

/// GEMMs come band by band. The list is cut `delay` GEMMs behind the first of each band, which gives those of the
/// band before the time to end: the stage from there to the next cut has the sums of the band before and the copies of
/// the band before that one, spread evenly among its GEMMs. A sum awaits GEMMs of its band alone, of any rank, a
/// copy sums of its band: each item awaits items of earlier stages. So whoever takes items in this order, however many,
/// waits in no circle.
struct WorkOrder {
  int32_t bands = 0;
  int32_t first_product[kMaxBands + 1] = {};  // of each band; behind the last one, how many there are
  int32_t sums[kMaxBands] = {}, copies[kMaxBands] = {};
  int32_t first_item[kMaxBands + kWorks] = {};  // of each stage; behind the last one, how many there are
  int32_t cut[kMaxBands + kWorks] = {};         // the first GEMM of each stage
};
static_assert(std::is_trivially_copyable_v<WorkOrder>);

constexpr int32_t count_stages(const WorkOrder& w) { return w.bands == 0 ? 0 : w.bands + kWorks - 1; }
constexpr int32_t count_items(const WorkOrder& w) { return w.first_item[count_stages(w)]; }

namespace work_order_detail {

/// Sums are those of band `stage` - 1, copies those of band `stage` - 2.
constexpr int32_t sums_in_stage(const WorkOrder& w, int32_t stage) {
  return stage < 1 || stage > w.bands ? 0 : w.sums[stage - 1];
}
constexpr int32_t copies_in_stage(const WorkOrder& w, int32_t stage) { return stage < 2 ? 0 : w.copies[stage - 2]; }

constexpr WorkItem product(const TileOrder& o, const WorkOrder& w, int32_t number) {
  int32_t band = 0;
  while (number >= w.first_product[band + 1]) ++band;
  const int32_t first = w.first_product[band];
  return {Work::product, woven_in_band(o, band, number - first, w.first_product[band + 1] - first)};
}

}  // namespace work_order_detail

/// `clusters`: that take items; three halves of a round of theirs is the delay. Precondition: `o` has at most kMaxBands
/// bands.
constexpr WorkOrder make_work_order(const TileOrder& o, int32_t clusters, bool has_copies) {
  WorkOrder out;
  int32_t products[kMaxBands] = {};
  for (int32_t s = 0; s < o.size; ++s) {
    const int32_t rows = o.first_tile[s + 1] - o.first_tile[s], bands = rows == 0 ? 0 : (rows - 1) / o.band + 1;
    out.bands = bands > out.bands ? bands : out.bands;
    for (int32_t band = 0; band < bands; ++band) {
      const int32_t tiles = rows_in_band(o, s, band) * o.tiles_n;
      products[band] += tiles;
      if (s == o.rank) out.sums[band] = tiles;
      if (s != o.rank && has_copies) out.copies[band] += tiles;
    }
  }
  for (int32_t band = 0; band < out.bands; ++band)
    out.first_product[band + 1] = out.first_product[band] + products[band];
  const int32_t all = out.first_product[out.bands], delay = clusters + clusters / 2;
  for (int32_t stage = 0; stage < count_stages(out); ++stage) {
    const int32_t cut = stage + 1 < out.bands ? out.first_product[stage + 1] + delay : all;
    out.cut[stage + 1] = cut < all ? cut : all;
    out.first_item[stage + 1] = out.first_item[stage] + out.cut[stage + 1] - out.cut[stage] +
                                work_order_detail::sums_in_stage(out, stage) +
                                work_order_detail::copies_in_stage(out, stage);
  }
  return out;
}

/// The list of a kernel that has GEMMs alone, in the order of tile_at().
constexpr WorkOrder make_product_order(const TileOrder& o) {
  WorkOrder out;
  out.bands = 1;
  out.first_product[1] = count_tiles(o);
  for (int32_t stage = 1; stage <= count_stages(out); ++stage) out.first_item[stage] = out.cut[stage] = count_tiles(o);
  return out;
}

/// Precondition: 0 <= number < count_items(w). A bijection onto all GEMMs, own sums and copies.
constexpr WorkItem item_of(const TileOrder& o, const WorkOrder& w, int32_t number) {
  int32_t stage = 0;
  while (number >= w.first_item[stage + 1]) ++stage;
  const int32_t all = w.first_item[stage + 1] - w.first_item[stage], index = number - w.first_item[stage];
  const int32_t sums = work_order_detail::sums_in_stage(w, stage);
  const int32_t copies = work_order_detail::copies_in_stage(w, stage);
  if (sums + copies == 0) return work_order_detail::product(o, w, w.cut[stage] + index);
  const int32_t sum = count_before(index, sums, all);
  if (count_before(index + 1, sums, all) > sum) return {Work::sum, own_in_band(o, stage - 1, sum)};
  const int32_t other = index - sum, others = all - sums, copy = count_before(other, copies, others);
  if (count_before(other + 1, copies, others) > copy) return {Work::copy, others_in_band(o, stage - 2, copy)};
  return work_order_detail::product(o, w, w.cut[stage] + other - copy);
}

}  // namespace overlace
