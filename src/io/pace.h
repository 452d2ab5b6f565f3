// A queue whose results come no sooner than from a slower disk, so that such a disk can be measured on this one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "src/io/queue.h"

namespace overlace::io {

struct PaceOptions {
  int64_t bytes_per_s = 0;  // 0: as fast as the disk
  int64_t start_us = 0;     // that each request takes on top, one after the other
};

/// For EngineOptions::wrap. Requests are served one after the other in the order in which they came, each for its bytes
/// over the rate; data move at once, their results stay back until then. Faster than the disk below it does not get.
std::function<std::unique_ptr<Queue>(std::unique_ptr<Queue>)> with_pace(PaceOptions options);

}  // namespace overlace::io
