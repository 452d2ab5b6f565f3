// A queue that lies as a bad disk does, for tests: engine and readers above it must deliver right data or a named
// error.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "src/io/queue.h"

namespace overlace::io {

/// Shares of all requests, 0 to 1; at most one fault each. The same seed and requests give the same faults.
struct FaultOptions {
  uint64_t seed = 1;
  double short_moves = 0;                  // moves a part; of a read, the rest of the buffer is filled with rubbish
  double eio = 0, eagain = 0, enospc = 0;  // nothing moves; enospc meets writes only
  double flipped = 0;                      // a read delivers all bytes, one bit of them wrong
  double late = 0;                         // the result stays back while others are delivered
  double stalled = 0;                      // begins only after stall_ms, then goes on as asked
  int64_t stall_ms = 0;
  bool reorder = false;  // results leave in random order
};

struct FaultCounts {
  int64_t requests = 0, short_moves = 0, eio = 0, eagain = 0, enospc = 0, flipped = 0, late = 0, stalled = 0;
  int64_t under_way = 0;  // taken and not yet given back: their buffers are not the caller's
};

/// For EngineOptions::wrap. `counts` may be null, else outlives the engine.
std::function<std::unique_ptr<Queue>(std::unique_ptr<Queue>)> with_faults(FaultOptions options,
                                                                          FaultCounts* counts = nullptr);

}  // namespace overlace::io
