// A training epoch from packs (docs/design/diskgnn.md): read, check, copy to the GPU, gather, admit and train, each a
// lane, batch behind batch.
#pragma once

#include <cstdint>
#include <span>

#include "src/study/workload/step.h"

namespace overlace::study {

/// Times of one item, each stage alone, as the planner of `src/gnn` has them.
struct GnnItem {
  double read_us = 0, check_us = 0;       // of its extent
  double page_us = 0, page_check_us = 0;  // of its pages, which are asked for once the extent is checked
  double link_us = 0, gather_us = 0, admit_us = 0, train_us = 0;
  bool is_restore = false;  // behind a segment: it waits for all before it, and nobody trains on it
  int64_t disk_bytes = 0, link_bytes = 0;
};

/// sequential: no stage beside another. pipelined: as the loader does it. free: the disk takes no time.
enum class GnnWay { sequential, pipelined, free };
inline constexpr std::string_view kGnnWays[] = {"sequential", "pipelined", "free"};

struct GnnRun {
  GnnWay way = GnnWay::pipelined;
  int depth = 3;    // D: batches until an admitted row is read from its slot; 2 D + 2 places are read into
  int outputs = 3;  // matrices of gathered rows: filled, waiting, in use
};

struct GnnTime {
  double us = 0;
  double bound_us = 0;                                                     // no order is shorter
  double disk_us = 0, link_us = 0, train_us = 0;                           // that these lanes work
  double exposed_us() const { return us > train_us ? us - train_us : 0; }  // that the trainer waits
};

/// invalid_argument: no items, a depth below 0, no output, a restore behind a restore, more than kMostTasks tasks,
/// times as of Step::run().
base::Result<GnnTime> gnn_epoch(std::span<const GnnItem> items, const GnnRun& run, base::Trace* timeline = nullptr);

}  // namespace overlace::study
