// What a fused kernel's workers draw, one item after the other: tiles of the schedule's parts, in the kernel's order.
#pragma once

#include <vector>

#include "overlace/schedule.h"
#include "src/base/status.h"
#include "src/spec/expand.h"
#include "src/spec/fused_pod.h"

namespace overlace::spec {

/// The part of an instance that one worker does at a time: `tile` is the instance with regions of that tile alone.
/// Items of one instance are told of together: its signals are set behind the last one. `follows`: it goes on with the
/// tile of the item before, whose sums it adds to, so one worker takes both.
struct Item {
  int instance = 0;
  Instance tile;
  bool follows = false;
};

/// How large tiles are where the schedule does not say (parameters tile_m, tile_n), and how many workers draw.
struct Workers {
  int64_t tile_rows = 64, tile_cols = 64;
  int count = 1;
};

/// Groups of tiles that are told of together, as the parts of a woven list have them: at most `groups` for each owner,
/// or so many bands of rows where sums go on to all ranks (`sums_travel`). Sets the bands of the order in that case.
TileGroups woven_groups(TileOrder* order, int64_t groups, bool sums_travel);

/// Groups of tiles that are counted together, for at most so many copies to each owner.
TileGroups chunk_groups(const TileOrder& order, int64_t chunks);

/// The list of this rank, by parameter "items" of the schedule: "woven" (work_order_pod.h), "own_last" or "rotated"
/// (tile_order_pod.h), the functions from which GPUs make theirs. Empty if there is no such parameter, or more ranks
/// than kernels take: parts follow each other in their lanes. Instances without rows or columns are in no list. Returns
/// bad_schedule if a part is missing, if its tiles do not make up what it writes, or if an item depends on a later one.
base::Result<std::vector<Item>> items_of(const Schedule& schedule, const Expansion& expansion, const Workers& workers);

}  // namespace overlace::spec
