// Rows of the runtime bench, their table and their records.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/common/arguments.h"
#include "bench/common/gpu.h"

namespace overlace::bench {

struct Options {
  int ranks = 0;  // 0: one per GPU, at most 4; two on a machine with one GPU
  int repetitions = 101;
  RunFacts run;
  bool verify_only = false;
};

/// One line of the table. Samples are the worst rank's, ours and the probe's in turn.
struct Row {
  std::string name, what;  // "peer_store", "8 CTAs, ring, 256 MiB"
  double bytes = 0;        // per rank and sample: GB/s; 0: a time in us
  double target = 0;       // GB/s to reach, or us not to exceed; 0: none
  std::vector<double> ours_us{}, plain_us{};
  bool is_verified = true;  // false: `wrong` below, not timed
  uint64_t wrong = 0;
  std::string note{};
};

/// Table to stdout; records, if wanted, appended to options.out. Number of wrong rows.
int report(const Options& options, const std::vector<Row>& rows, const std::vector<std::unique_ptr<Gpu>>& gpus,
           int devices, const std::string& nccl_version);

}  // namespace overlace::bench
