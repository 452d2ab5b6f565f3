// Layers whose weights do not fit: they pass through slots, pass after pass, behind the computation of those before;
// and residual streams of micro-batches that do not fit either, which come into two slots and leave them. One rank
// stands for all that share a host, as all do the same at the same time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "overlace/machine.h"
#include "src/base/status.h"
#include "src/base/trace.h"
#include "src/study/workload/step.h"

namespace overlace::study {

/// Where a layer's weights rest; those of `disk` pass through memory of the host.
enum class Resting : uint8_t { device, host, disk };

struct OffloadRun {
  std::vector<Resting> layers;
  double compute_us = 0, flops = 0;  // of a layer, all micro-batches
  double host_us = 0, disk_us = 0;   // of a layer's weights, over the link and from the disk
  double streams_us = 0;  // of the residual streams of all micro-batches, over the link one way; 0: they stay
  int64_t layer_bytes = 0, streams_bytes = 0;
  int micro_batches = 1;          // that walk through a layer before it goes
  int slots = 2, disk_slots = 2;  // on the device; of the host, between disk and link
  int passes = 8;                 // of their later half all but the last are timed, beside which nothing is brought
  bool is_ahead = true;           // false: what a layer needs is asked for when the layer before it is done
};

struct OffloadTime {
  double us = 0;                       // all passes
  double pass_us = 0;                  // of those that are timed
  double compute_us = 0, disk_us = 0;  // of a pass, each alone
  double host_us = 0;                  // of a pass: all that comes over the link, or streams both ways
  double lost_us = 0;                  // of a pass, to contention
  double bound_us() const;             // of a pass: the longest of the three
  double exposed_us() const { return pass_us > compute_us ? pass_us - compute_us : 0; }
  std::string binds() const;  // "compute", "host link" or "disk"
};

/// Errc::invalid_argument for values out of range, or more than kMostTasks tasks.
base::Result<OffloadTime> offload_passes(const OffloadRun& run, std::span<const spec::Contention> contention = {},
                                         base::Trace* timeline = nullptr);

}  // namespace overlace::study
