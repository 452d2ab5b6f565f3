// How long a training epoch takes: the stages of the loader one behind the other, each batch in its turn.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/base/status.h"
#include "src/gnn/plan/predict.h"

namespace overlace::gnn {

/// What a machine does, measured or given.
struct EpochRates {
  double extent_GBps = 0;  // disk, long reads in sequence
  double page_GBps = 0;    // disk, pages of the disk cache
  double link_GBps = 0;    // copies to the GPU; 0: the GPU has no lane of its own
  double compute_ms = 0;   // of a batch
  double check_GBps = 0;   // checksums of what was read; 0: they take no time
  double gather_GBps = 0;  // rows into their matrix, and into the CPU cache; 0: no time
};
/// invalid_argument names the rate that is not positive, or is below 0 where 0 has a meaning.
base::Status check(const EpochRates& rates);

/// Times of one item, each stage alone. A restore is trained on by nobody.
struct ItemTimes {
  double read_us = 0, check_us = 0;       // of its extent
  double page_us = 0, page_check_us = 0;  // of its pages, which are asked for once the extent is checked
  double link_us = 0, gather_us = 0, admit_us = 0, train_us = 0;
  bool is_restore = false;
};
std::vector<ItemTimes> item_times(const Prediction& prediction, const EpochRates& rates);

struct PipelineTime {
  double us = 0;
  double disk_us = 0, link_us = 0, check_us = 0, gather_us = 0, admit_us = 0, train_us = 0;  // that each lane works
  /// All stages one after the other, none beside another.
  double sequential_us() const { return disk_us + link_us + check_us + gather_us + admit_us + train_us; }
};

/// The rules of `Epoch` (pipeline/epoch.h) as a recurrence over items, with depth D and R = 2 D + 2 places; each lane
/// takes items in their order, and the disk the pages of an item behind the extent of the next one. invalid_argument: a
/// depth below 0, a restore behind a restore.
base::Result<PipelineTime> pipeline_time(std::span<const ItemTimes> items, int depth);

}  // namespace overlace::gnn
