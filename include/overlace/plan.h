// Which schedule to run. For now one simple rule, with its reason in words.
#pragma once

#include <string>

#include "overlace/schedule.h"

namespace overlace::plan {

#pragma GCC visibility push(default)  // exported by liboverlace.so

struct Choice {
  spec::Schedule schedule;
  std::string reason;  // "one wave of tiles and no link faster than the GEMM: library"
};

/// What the rule needs to know of the machine.
struct Hardware {
  bool is_gpu = false;
  double link_bytes_per_s = 0;  // per direction and rank; 0: copies cost the computing core itself (CPU, no link)
  double flops_per_s = 0;       // sustained, per rank, of this dtype; 0: unknown
};

/// Pure: same input, same choice. Falls back to `library` wherever a finer schedule is not expected to win.
Choice choose(const spec::OpSpec& op, const Hardware& hardware);

#pragma GCC visibility pop

}  // namespace overlace::plan
